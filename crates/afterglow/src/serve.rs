//! A server from its configuration to its end: data directory, cache, doors, admin pages, signals.

mod cache;
mod doors;
mod limits;
mod reload;
mod startup;

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, mpsc},
};

use afterglow_engine::OpenError;

use self::doors::Doors;
use crate::{
    admin::{Health, Shown, Stage},
    config::{Config, IoChoice, LivePolicies},
    control::{Control, ControlError, Event},
    data_dir::{self, DataDirError},
    door::cql::cached::CachedError,
    door::memcache::{MemcacheDoorError, TlsError},
    logging::Logging,
    metrics::Metrics,
    reactor::{Driver, ListenError, Reactors, ReactorsConfig},
};

/// The flash file in the data directory, when no other place is configured.
pub const FLASH_FILE: &str = "flash";
/// The file of prepared statements in the data directory.
const PLANS_FILE: &str = "plans";

/// Reads the configuration again, for SIGHUP; the error says what is wrong with it.
pub type Reload<'a> = dyn Fn() -> Result<Config, String> + 'a;

/// Why a server could not start, or not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The cache cannot be opened.
    #[error(transparent)]
    Cache(#[from] OpenError),
    /// The cached path cannot be set up.
    #[error(transparent)]
    Cached(#[from] CachedError),
    /// Admin address or signals.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A door's address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The memcache door.
    #[error(transparent)]
    Memcache(#[from] MemcacheDoorError),
    /// Certificates of the memcache door.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Users of the memcache door.
    #[error("cannot use {}: {why}. It names who may use the memcache door, one name:password a line", .path.display())]
    Users {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The threads that serve clients.
    #[error(
        "cannot start the reactors: {0}. Raise the limits on threads, open files or locked memory, or lower --reactors"
    )]
    Reactors(#[source] io::Error),
}

/// Serves until a signal says to stop.
///
/// # Errors
/// When it cannot start, or the cache cannot be closed cleanly.
pub fn run(mut config: Config, logging: &Logging, reload: &Reload<'_>) -> Result<(), ServeError> {
    let metrics = Arc::new(Metrics::default());
    let health = Arc::new(Health::default());
    let (sender, events) = mpsc::channel();
    startup::say_configuration(&config);
    limits::raise_open_files();
    let shown = Shown { metrics: metrics.clone(), health: health.clone() };
    // Dropped last, so that a second signal ends the process however long the rest takes.
    let control = Control::start(config.admin, shown, sender)?;
    let data_dir = data_dir::prepare(&config.data_dir)?;
    let cache = cache::open(&config, data_dir, &metrics)?;
    let policies = Arc::new(LivePolicies::new(config.table_policy.clone()));
    let reactors = start_reactors(&config)?;
    let doors = Doors::open(&config, &cache, &policies, &metrics, &reactors)?;
    if config.cql.is_none() {
        health.set_independent();
    }
    health.set(Stage::Serving);
    say_ports(&doors, &control);
    while let Ok(event) = events.recv() {
        match event {
            Event::Reload => reload::apply(&mut config, reload, &policies, logging),
            Event::Stop(signal) => {
                tracing::info!("{signal}: finishing what is in flight; a second signal ends at once");
                break;
            }
        }
    }
    health.set(Stage::Draining);
    let whole = doors.close(config.drain_timeout.get());
    if !whole {
        tracing::warn!(
            "requests were still in flight after {}: their connections were closed",
            config.drain_timeout
        );
    }
    reactors.shutdown();
    tracing::info!("writing the cache out");
    cache.close();
    tracing::info!("ended");
    Ok(())
}

fn start_reactors(config: &Config) -> Result<Reactors, ServeError> {
    let driver = match config.io {
        IoChoice::Pread => Driver::Readiness,
        IoChoice::Auto | IoChoice::Uring => Driver::Auto,
    };
    let wanted = ReactorsConfig { threads: Some(config.reactor_count()), driver };
    Reactors::start(&wanted).map_err(ServeError::Reactors)
}

/// Says where it listens, in the log for people and in one line on standard output for programs.
fn say_ports(doors: &Doors, control: &Control) {
    let admin = control.admin().map_or_else(|| "off".into(), |address| address.to_string());
    let ports: Vec<String> =
        doors.addresses().into_iter().map(|(door, address)| format!("{door}={address}")).collect();
    let ports = ports.join(" ");
    tracing::info!(%ports, %admin, "serving");
    // Whoever started this may have closed its standard output; that is no reason to stop.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "ports {ports} admin={admin}").and_then(|()| out.flush());
}
