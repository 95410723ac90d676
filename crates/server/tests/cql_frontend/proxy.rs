//! The front end of a test.

use std::backtrace::Backtrace;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use afterglow::config::HostPort;
use afterglow::frontend::cql::{
    CqlFrontEnd, CqlFrontEndConfig, PassThrough, RingSettings, Router, USER_IDLE,
};
use afterglow::metrics::Metrics;
use afterglow::reactor::{Driver, Reactors, ReactorsConfig};
use afterglow::tls::{ClientTls, ServerTls};
use afterglow_cql::frame::Version;

use crate::client::Client;

/// A front end on its own reactors; drained at the end.
pub struct Proxy {
    pub front_end: CqlFrontEnd,
    reactors: Reactors,
}

/// How a front end is made, where a test does not care.
struct Shape {
    reactors: usize,
    plans: Option<PathBuf>,
    ring: RingSettings,
    tls: Option<Arc<ServerTls>>,
    backend_tls: Option<Arc<ClientTls>>,
    user_idle: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            reactors: 2,
            plans: None,
            ring: RingSettings::default(),
            tls: None,
            backend_tls: None,
            user_idle: USER_IDLE,
        }
    }
}

/// Has panics of reactors written to the standard error as they happen. What a test prints is kept
/// until its end, and lost if the process aborts: as it does where a task panics while it is
/// dropped. Those that a test makes on purpose say so, and are left out.
fn show_panics_of_reactors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let is_meant = panic.payload_as_str().is_some_and(|why| why.contains("on purpose"));
            let name = thread.name().filter(|name| name.starts_with("reactor-") && !is_meant);
            if let Some(name) = name {
                let trace = Backtrace::force_capture();
                let _ = writeln!(std::io::stderr(), "{name}: {panic}\n{trace}");
            }
            before(panic);
        }));
    });
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
        let shape = Shape { plans: Some(plans), ..Shape::default() };
        Self::whole(&[backend], Driver::Auto, Arc::new(PassThrough), shape)
    }

    /// Which lets go of users whom no client has had for so long.
    pub fn forgetting_users(backend: SocketAddr, user_idle: Duration) -> Self {
        let shape = Shape { user_idle, ..Shape::default() };
        Self::whole(&[backend], Driver::Auto, Arc::new(PassThrough), shape)
    }

    /// With something where the cache would be.
    pub fn routed(backend: SocketAddr, driver: Driver, router: Arc<dyn Router>) -> Self {
        Self::whole(&[backend], driver, router, Shape::default())
    }

    /// Which tells drivers of a ring in that way.
    pub fn in_ring(backend: SocketAddr, ring: RingSettings) -> Self {
        let shape = Shape { ring, ..Shape::default() };
        Self::whole(&[backend], Driver::Auto, Arc::new(PassThrough), shape)
    }

    /// With one reactor, and something where the cache would be; tells drivers of a ring.
    pub fn routed_in_ring(
        backend: SocketAddr,
        router: Arc<dyn Router>,
        ring: RingSettings,
    ) -> Self {
        let shape = Shape { reactors: 1, ring, ..Shape::default() };
        Self::whole(&[backend], Driver::Auto, router, shape)
    }

    /// Which is told of several nodes.
    pub fn with_contacts(backends: &[SocketAddr], driver: Driver, router: Arc<dyn Router>) -> Self {
        Self::whole(backends, driver, router, Shape::default())
    }

    /// With TLS towards clients, the database, or both.
    pub fn secured(
        backend: SocketAddr,
        tls: Option<Arc<ServerTls>>,
        backend_tls: Option<Arc<ClientTls>>,
    ) -> Self {
        let shape = Shape { tls, backend_tls, ..Shape::default() };
        Self::whole(&[backend], Driver::Auto, Arc::new(PassThrough), shape)
    }

    /// With one reactor rather than two.
    pub fn on_one_reactor(backend: SocketAddr) -> Self {
        Self::routed_on_one_reactor(backend, Arc::new(PassThrough))
    }

    /// With one reactor, and something where the cache would be.
    pub fn routed_on_one_reactor(backend: SocketAddr, router: Arc<dyn Router>) -> Self {
        let shape = Shape { reactors: 1, ..Shape::default() };
        Self::whole(&[backend], Driver::Auto, router, shape)
    }

    fn whole(
        backends: &[SocketAddr],
        driver: Driver,
        router: Arc<dyn Router>,
        Shape { reactors, plans, ring, tls, backend_tls, user_idle }: Shape,
    ) -> Self {
        show_panics_of_reactors();
        let reactors =
            Reactors::start(&ReactorsConfig { threads: Some(reactors), driver }).unwrap();
        let config = CqlFrontEndConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            backends: backends
                .iter()
                .map(|at| HostPort { host: at.ip().to_string(), port: at.port() })
                .collect(),
            credentials: None,
            tls,
            backend_tls,
            advertise: None,
            host_id: Some(uuid::Uuid::from_u128(42)),
            ring,
            plans,
            user_idle,
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
