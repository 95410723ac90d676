//! The options that a memcached front end is started with.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afterglow_engine::Durability;
use afterglow_memcache::Parting;
use afterglow_memcache::auth::Users;

use super::limits::MemcacheLimits;
use crate::metrics::Metrics;
use crate::tls::ServerTls;

/// Requests of a connection that are carried out before others have their turn, as memcached's
/// `-R`.
pub(super) const REQUESTS_PER_EVENT: u64 = 20;

/// What a memcached front end needs to know.
pub struct MemcacheFrontEndConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: Option<SocketAddr>,
    /// Unix socket to listen on as well.
    pub unix: Option<PathBuf>,
    /// Certificates, when clients of `listen` are to speak TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Who may come in; `None`: anybody.
    pub users: Option<Users>,
    /// What may change while it serves.
    pub limits: MemcacheLimits,
    /// Bytes that an object may count: key, value and [`afterglow_memcache::ITEM_OVERHEAD`].
    pub max_item: usize,
    /// Which of them have their value in parts, and how long these are.
    pub parting: Parting,
    /// Bytes that requests and answers in flight may take, beside 64 KiB a connection.
    pub buffers: usize,
    /// Whether clients may drop everything at once.
    pub flush_enabled: bool,
    /// Whether clients may have the keys listed.
    pub dump_enabled: bool,
    /// Whether clients may be told of what happens.
    pub watch_enabled: bool,
    /// When a store is acknowledged.
    pub durability: Durability,
    /// The front end starts empty when the server was down for longer.
    pub rejoin_grace: Option<Duration>,
    /// Where the schedule of `flush_all` is kept.
    pub data_dir: PathBuf,
    /// Where to count.
    pub metrics: Arc<Metrics>,
}

/// An address the front end listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrontEndAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for FrontEndAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrontEndAddress::Tcp(address) => write!(f, "tcp:{address}"),
            FrontEndAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
