//! A server from its configuration to its end: data directory, cache, doors, admin pages, signals.

mod cache;
mod limits;
mod reload;
mod startup;

use std::{
    io::{self, Write},
    sync::{Arc, mpsc},
};

use afterglow_engine::OpenError;

use crate::{
    admin::{Health, Shown, Stage},
    config::{Config, IoChoice, LivePolicies},
    control::{Control, ControlError, Event},
    data_dir::{self, DataDirError},
    door::cql::cached::{Cached, CachedConfig, CachedError},
    door::cql::{CqlDoor, CqlDoorConfig},
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
    /// The threads that serve clients.
    #[error(
        "cannot start the reactors: {0}. Raise the limits on threads, open files or locked memory, or lower --reactors"
    )]
    Reactors(#[source] io::Error),
    /// A configuration that [`load`](crate::config::load) would have refused.
    #[error("no door is configured")]
    NoDoor,
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
    let cached = Cached::open(&CachedConfig {
        engine: &cache,
        data_dir: &config.data_dir,
        policies: policies.clone(),
        restart_grace: config.restart_grace.get(),
        unknown_outcome_hold: config.unknown_outcome_hold.get(),
    })?;
    let door = CqlDoor::start(door_config(&config, metrics, &cached)?, &reactors)?;
    let keeping = cached.keep(&door);
    health.set(Stage::Serving);
    say_ports(&door, &control);
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
    let whole = door.drain(config.drain_timeout.get());
    if !whole {
        tracing::warn!(
            "requests were still in flight after {}: their connections were closed",
            config.drain_timeout
        );
    }
    keeping.stop(whole);
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

fn door_config(config: &Config, metrics: Arc<Metrics>, cached: &Cached) -> Result<CqlDoorConfig, ServeError> {
    Ok(CqlDoorConfig {
        listen: config.cql.ok_or(ServeError::NoDoor)?,
        backends: config.backend.clone(),
        credentials: config.backend_credentials.clone(),
        advertise: config.advertise,
        host_id: Some(cached.host_id()),
        plans: Some(config.data_dir.join(PLANS_FILE)),
        metrics,
        router: cached.router(),
    })
}

/// Says where it listens, in the log for people and in one line on standard output for programs.
fn say_ports(door: &CqlDoor, control: &Control) {
    let admin = control.admin().map_or_else(|| "off".into(), |address| address.to_string());
    let cql = door.address();
    tracing::info!(%cql, %admin, "serving");
    // Whoever started this may have closed its standard output; that is no reason to stop.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "ports cql={cql} admin={admin}").and_then(|()| out.flush());
}
