//! The front end of a test.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afterglow::config::HostPort;
use afterglow::frontend::cql::{CqlFrontEnd, CqlFrontEndConfig, PassThrough, Router};
use afterglow::metrics::Metrics;
use afterglow::reactor::{Driver, Reactors, ReactorsConfig};
use afterglow_cql::frame::Version;

use crate::client::Client;

/// A front end on its own reactors; drained at the end.
pub struct Proxy {
    pub front_end: CqlFrontEnd,
    reactors: Reactors,
}

impl Proxy {
    /// Before one node.
    pub fn before(backend: SocketAddr) -> Self {
        Self::with(backend, Driver::Auto)
    }

    /// On reactors of that kind.
    pub fn with(backend: SocketAddr, driver: Driver) -> Self {
        Self::routed(backend, driver, Arc::new(PassThrough))
    }

    /// Which keeps the plans of prepared statements in a file.
    pub fn keeping(backend: SocketAddr, plans: PathBuf) -> Self {
        Self::whole(&[backend], 2, Driver::Auto, Arc::new(PassThrough), Some(plans))
    }

    /// With something where the cache would be.
    pub fn routed(backend: SocketAddr, driver: Driver, router: Arc<dyn Router>) -> Self {
        Self::whole(&[backend], 2, driver, router, None)
    }

    /// Which is told of several nodes.
    pub fn with_contacts(backends: &[SocketAddr], driver: Driver, router: Arc<dyn Router>) -> Self {
        Self::whole(backends, 2, driver, router, None)
    }

    /// With one reactor rather than two.
    pub fn on_one_reactor(backend: SocketAddr) -> Self {
        Self::whole(&[backend], 1, Driver::Auto, Arc::new(PassThrough), None)
    }

    fn whole(
        backends: &[SocketAddr],
        reactors: usize,
        driver: Driver,
        router: Arc<dyn Router>,
        plans: Option<PathBuf>,
    ) -> Self {
        let reactors =
            Reactors::start(&ReactorsConfig { threads: Some(reactors), driver }).unwrap();
        let config = CqlFrontEndConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            backends: backends
                .iter()
                .map(|at| HostPort { host: at.ip().to_string(), port: at.port() })
                .collect(),
            credentials: None,
            advertise: None,
            host_id: Some(uuid::Uuid::from_u128(42)),
            plans,
            metrics: Arc::<Metrics>::default(),
            router,
        };
        let front_end = CqlFrontEnd::start(config, &reactors).unwrap();
        Self { front_end, reactors }
    }

    /// A client that has made the handshake.
    pub fn client(&self, version: Version) -> Client {
        Client::start(self.front_end.address(), version)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The runtime ends the process when a panicking thread wakes a task, and the message
            // would be lost.
            return;
        }
        self.front_end.drain(Duration::from_secs(1));
        self.reactors.shutdown();
    }
}
