//! Why a server cannot start, or does not end well.

use std::{io, path::PathBuf};

use afterglow_engine::OpenError;

use crate::{
    config::Size,
    control::ControlError,
    data_dir::DataDirError,
    frontend::{cql::cached::CachedError, memcache::MemcacheFrontEndError},
    reactor::ListenError,
    ring_link::{SecretError, TransportError},
    tls::TlsError,
};

/// Why a server could not start, or not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// More memory is configured than there is.
    #[error("--memory {wanted} exceeds the {there} available to this process: configure less")]
    Memory {
        /// What is configured.
        wanted: Size,
        /// What there is.
        there: Size,
    },
    /// The flash is not what the cache was made of.
    #[error("{0} (--discard-cache)")]
    Mismatch(#[source] OpenError),
    /// The cache cannot be opened.
    #[error(transparent)]
    Cache(OpenError),
    /// The cached path cannot be set up.
    #[error(transparent)]
    Cached(#[from] CachedError),
    /// Admin address or signals.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A front end's address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The links of the ring.
    #[error(transparent)]
    Ring(#[from] TransportError),
    /// The ring's secret.
    #[error(transparent)]
    RingSecret(#[from] SecretError),
    /// The memcached front end.
    #[error(transparent)]
    Memcache(#[from] MemcacheFrontEndError),
    /// Certificates of a front end, or for connections to the database.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Users of the memcached front end.
    #[error("cannot use {}: {why}. It must name the users of the memcached front end, one name:password a line", .path.display())]
    Users {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The server that runs does not hand over, or does not end.
    #[error("cannot take over: {0}")]
    TakeOver(String),
    /// The database does not let the process in that is to take over.
    #[error(
        "cannot take over, the server that runs goes on: {0}. Set --backend and its options right, or restart without --take-over if the database is away"
    )]
    Database(String),
    /// The threads that serve clients.
    #[error(
        "cannot start the reactors: {0}. Raise the limits on threads, open files or locked memory, or lower --reactors"
    )]
    Reactors(#[source] io::Error),
    /// The thread that tells the service manager that reactors turn.
    #[error("cannot start the watchdog thread: {0}. Raise the limit on threads")]
    Watchdog(#[source] io::Error),
}

impl From<OpenError> for ServeError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Mismatch { .. } => ServeError::Mismatch(error),
            other => ServeError::Cache(other),
        }
    }
}
