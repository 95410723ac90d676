//! Runs a server from its configuration to its end: data directory, cache, front ends, admin pages,
//! signals.

mod cache;
mod certificates;
mod ending;
mod error;
mod frontends;
mod limits;
mod memory;
mod reach;
mod reload;
mod startup;
mod takeover;

use std::{
    io::{self, Write},
    os::fd::OwnedFd,
    sync::{Arc, OnceLock, Weak, mpsc},
};

use afterglow_engine::{Cache, Looked, Outlook, Resized};
use afterglow_rowcache::intents::IntentDoubt;

pub use self::certificates::towards_database;
use self::frontends::{Entrances, FrontEnds};
use self::takeover::{HandOver, Taken};
pub use self::{cache::FLASH_FILE, error::ServeError, reload::Reload};
use crate::{
    admin::{self, Health, Hosts, Shown, Stage},
    config::{Config, IoChoice, LivePolicies},
    control::{Control, ControlError, Event, Stopper},
    data_dir::DataDir,
    frontend::cql::cached::{self, Invalidator, Named, RingHandle, RingStatus},
    frontend::memcache,
    inspect,
    logging::Logging,
    metrics::Metrics,
    operator::{Offer, Operated, OperatorSocket},
    reactor::{Driver, Reactors, ReactorsConfig},
    service_manager::{Notifier, Watchdog},
    slow_log::SlowLog,
};

/// Serves until a signal says to stop.
///
/// # Errors
/// When it cannot start, or the cache cannot be closed cleanly.
pub fn run(mut config: Config, logging: &Logging, reload: &Reload<'_>) -> Result<(), ServeError> {
    let taken = take_over(&config)?;
    let notifier = startup::notifier();
    let slow = SlowLog::new(config.slow_request_log.map(|time| time.get()), config.show_keys);
    let metrics = Arc::new(Metrics::new(config.hotkeys_separator.get(), slow));
    let health = Arc::new(Health::default());
    let (sender, events) = mpsc::channel();
    startup::say_configuration(&config);
    limits::raise_open_files();
    let opened = Arc::new(OnceLock::new());
    let shown = shown(&config, &metrics, &health, &opened);
    // Dropped last, so that a second signal ends the process however long the rest takes.
    let stopper = Stopper::new(sender);
    let control = Control::start(config.admin, shown, stopper.clone())?;
    let hand_over = Arc::new(HandOver::new(control.admin(), stopper));
    let Preparation { data_dir, looked, entrances, reactors, .. } =
        Preparation::prepare(&config, Some(taken))?;
    entrances.share(&hand_over);
    if let Some(warning) = small_index(&looked.outlook) {
        tracing::warn!("{warning}");
    }
    notifier.status("opening the cache");
    let cache = cache::open(&config, data_dir.keep(), &metrics)?;
    let _ = opened.set(Arc::downgrade(&cache));
    let policies = Arc::new(LivePolicies::new(config.table_policy.clone()));
    let opened = FrontEnds::open(&config, entrances, &cache, &policies, &metrics, &reactors)
        .and_then(|front_ends| watch(front_ends, &notifier, &reactors));
    let (front_ends, watchdog) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // As warm as it was found: only a cache that is closed survives a restart of the
            // machine.
            hand_over.close();
            reactors.shutdown();
            cache.close();
            return Err(error);
        }
    };
    let _operator = open_operator_socket(&config, &front_ends, &hand_over);
    if config.cql.is_none() {
        health.set_independent();
    }
    health.set_reactors(&reactors);
    health.set(Stage::Serving);
    let ports = say_ports(&front_ends, &control);
    let serving = format!("serving {ports}");
    notifier.ready(&serving);
    let opened_with = config.memory.get();
    let live =
        LiveServer { control: &control, cache: &cache, front_ends: &front_ends, opened_with };
    let signal = await_stop(&events, || {
        notifier.reloading();
        reload::apply(&mut config, reload, &policies, logging, &live);
        front_ends.reload_users(&config);
        front_ends.reload_secrets(&config);
        front_ends.reload_certificates();
        notifier.ready(&serving);
    });
    if let Some(signal) = signal {
        tracing::info!("{signal}: finishing requests in flight; a second signal ends at once");
    }
    notifier.stopping(ending::bound(&config), "finishing requests in flight");
    health.set(Stage::Draining);
    hand_over.close();
    let whole = ending::drain(front_ends, &config);
    watchdog.closing();
    reactors.shutdown();
    write_out(cache, whole, &config, &notifier);
    Ok(())
}

/// The last step of a stop. `whole`: every request was answered.
fn write_out(cache: Arc<Cache>, whole: bool, config: &Config, notifier: &Notifier) {
    notifier.status("writing the cache out");
    tracing::info!("writing the cache out");
    cache.close();
    ending::note_stop(whole, config);
    ending::say(&cache.stats());
    // The process ends here, and its memory with it: to free millions of small objects one by one
    // would take seconds. The locks on files go with the process too.
    std::mem::forget(cache);
}

/// The sockets of the server whose place this one takes, if it is to take one.
fn take_over(config: &Config) -> Result<Taken, ServeError> {
    match config.take_over {
        true => takeover::take_over(config, |config| {
            check(config)?;
            reach::database(config, driver(config))
        }),
        false => Ok(Taken::default()),
    }
}

/// What the admin pages are made from; the cache is added when it is open.
fn shown(
    config: &Config,
    metrics: &Arc<Metrics>,
    health: &Arc<Health>,
    opened: &Arc<OnceLock<Weak<Cache>>>,
) -> Shown {
    Shown {
        metrics: metrics.clone(),
        health: health.clone(),
        cache: opened.clone(),
        hosts: Hosts::new(config.admin, config.admin_host.clone()),
        keys_shown: config.show_keys,
    }
}

/// Lets the operator give commands. A server that cannot serves all the same.
fn open_operator_socket(
    config: &Config,
    front_ends: &FrontEnds,
    hand_over: &Arc<HandOver>,
) -> Option<OperatorSocket> {
    let (ring, invalidator) = (front_ends.ring(), front_ends.invalidator());
    let commands = Arc::new(Commands { ring, invalidator, hand_over: hand_over.clone() });
    OperatorSocket::open(&config.data_dir, commands)
        .inspect_err(|error| {
            tracing::warn!(%error, "the socket for the operator's commands cannot be made in the data directory: `afterglow ring` and `afterglow invalidate` will not reach this instance");
        })
        .ok()
}

/// What the operator may command.
struct Commands {
    ring: Option<RingHandle>,
    invalidator: Option<Invalidator>,
    hand_over: Arc<HandOver>,
}

impl Commands {
    fn ring(
        &self,
        act: impl FnOnce(&RingHandle) -> RingStatus,
    ) -> Result<serde_json::Value, String> {
        let ring = self
            .ring
            .as_ref()
            .ok_or("this instance is in no ring: start it with --ring-address")?;
        serde_json::to_value(act(ring)).map_err(|error| error.to_string())
    }

    fn invalidate(&self, named: &str) -> Result<serde_json::Value, String> {
        let invalidator = self.invalidator.as_ref().ok_or(
            "this instance has no CQL front end: `flush_all` empties what memcached clients stored",
        )?;
        let named: Named = serde_json::from_str(named)
            .map_err(|error| format!("what to drop is not understood: {error}"))?;
        Ok(invalidator.invalidate(&named)?.into())
    }
}

impl Operated for Commands {
    fn command(&self, command: &str) -> Result<serde_json::Value, String> {
        match (command, command.strip_prefix("invalidate ")) {
            ("ring status", _) => self.ring(RingHandle::status),
            ("ring shards", _) => self.ring(RingHandle::status_with_ranges),
            ("ring leave", _) => self.ring(|ring| {
                ring.leave();
                ring.status()
            }),
            (_, Some(named)) => self.invalidate(named),
            _ => Err(format!("`{command}` is not a command of this version")),
        }
    }

    fn offer(&self) -> Result<(Offer, Vec<OwnedFd>), String> {
        self.hand_over.offer()
    }

    fn succeeded(&self) {
        self.hand_over.succeeded();
    }
}

/// What is left to do once the front ends are open, as far as it can fail.
fn watch(
    mut front_ends: FrontEnds,
    notifier: &Notifier,
    reactors: &Reactors,
) -> Result<(FrontEnds, Watchdog), ServeError> {
    let watchdog = Watchdog::start(notifier, reactors).map_err(ServeError::Watchdog)?;
    front_ends.serve()?;
    Ok((front_ends, watchdog))
}

/// Reloads at each signal that asks for it, until one says to stop; that one's name.
fn await_stop(events: &mpsc::Receiver<Event>, mut reload: impl FnMut()) -> Option<&'static str> {
    loop {
        match events.recv() {
            Ok(Event::Reload) => reload(),
            Ok(Event::Stop(signal)) => return Some(signal),
            // The control plane has ended.
            Err(_) => return None,
        }
    }
}

/// What SIGHUP may change of a server.
struct LiveServer<'a> {
    control: &'a Control,
    cache: &'a Cache,
    front_ends: &'a FrontEnds,
    /// Bytes of memory that the cache was opened with.
    opened_with: u64,
}

impl reload::Serving for LiveServer<'_> {
    /// Blocks this thread, which nobody but signals waits for; a signal to stop ends it at the next
    /// step.
    fn set_memory(&self, wanted: &Config) -> Result<(), String> {
        memory::check(wanted).map_err(|error| error.to_string())?;
        let dropped = || ending::dropped(&self.cache.stats());
        let before = dropped();
        let by = wanted.memory.get() as i64 - self.opened_with as i64;
        match self.cache.resize_dram(by, &|| !self.control.is_stopping()) {
            Resized::Done => {}
            Resized::TooSmall => {
                return Err(format!("{} leaves no memory for objects", wanted.memory));
            }
            Resized::Stopped => return Err("the server stops before it is resized".to_owned()),
        }
        tracing::info!(
            "memory for objects was resized; objects dropped meanwhile: {}",
            dropped().saturating_sub(before)
        );
        Ok(())
    }

    fn set_limits(&self, wanted: &Config) {
        self.front_ends.set_limits(wanted);
    }
}

/// All that serving needs but for the cache. Opening the cache takes its mark of a clean stop away,
/// so everything that can fail comes before.
struct Preparation {
    data_dir: DataDir,
    looked: Looked,
    entrances: Entrances,
    reactors: Reactors,
    /// What is doubted of the intents of the last run.
    intents: Option<IntentDoubt>,
}

impl Preparation {
    /// Prepares it. `taken`: see [`Entrances::prepare`].
    fn prepare(config: &Config, taken: Option<Taken>) -> Result<Self, ServeError> {
        memory::check(config)?;
        let data_dir = DataDir::prepare(&config.data_dir)?;
        let looked = cache::look(config, data_dir.path())?;
        let intents = match config.cql {
            Some(_) => cached::look(data_dir.path())?,
            None => None,
        };
        if config.has_memcache() {
            memcache::look(data_dir.path())?;
        }
        let entrances = Entrances::prepare(config, taken)?;
        let reactors = start_reactors(config)?;
        Ok(Self { data_dir, looked, entrances, reactors, intents })
    }
}

/// What a check found.
pub struct Checked {
    /// How memory and flash are divided, and what is left out.
    pub looked: Looked,
    /// The process that serves from the data directory now: its addresses were not tried.
    pub served_by: Option<u32>,
    /// What is doubted of the writes that were in flight when the last run ended.
    pub intents: Option<IntentDoubt>,
}

/// Does what [`run`] does, up to opening the cache, and undoes it.
///
/// # Errors
/// Those of [`run`].
pub fn check(config: &Config) -> Result<Checked, ServeError> {
    let served_by = inspect::holder(&config.data_dir.join("lock"));
    let bind = served_by.is_none();
    if let Some(admin) = config.admin.filter(|_| bind) {
        drop(admin::bind(admin).map_err(ControlError::Admin)?);
    }
    let ready = Preparation::prepare(config, bind.then(Taken::default))?;
    ready.reactors.shutdown();
    // Of a server that runs the table is in motion.
    let intents = ready.intents.filter(|_| bind);
    Ok(Checked { looked: ready.looked, served_by, intents })
}

/// Bytes of flash for a slot, of an index as large as it may get, from which on it is worth a
/// warning: few objects are so large on average.
const WIDE_SLOT: u64 = 4096;

/// What is to be said where the index has room for few objects beside the flash.
pub fn small_index(outlook: &Outlook) -> Option<String> {
    let bytes = outlook.flash / outlook.index_slots_most.max(1);
    (bytes > WIDE_SLOT).then(|| {
        format!(
            "the index can grow to one slot for {bytes} bytes of flash: objects that are smaller on average are given up before flash \
             is full. Raise --memory, of which half may become index"
        )
    })
}

fn start_reactors(config: &Config) -> Result<Reactors, ServeError> {
    let wanted = ReactorsConfig { threads: Some(config.reactor_count()), driver: driver(config) };
    Reactors::start(&wanted).map_err(ServeError::Reactors)
}

fn driver(config: &Config) -> Driver {
    match config.io {
        IoChoice::Pread => Driver::Readiness,
        IoChoice::Auto | IoChoice::Uring => Driver::Auto,
    }
}

/// Says where it listens, in the log for people and in one line on standard output for programs.
/// Gives the ports.
fn say_ports(front_ends: &FrontEnds, control: &Control) -> String {
    let admin = control.admin().map_or_else(|| "off".into(), |address| address.to_string());
    let ports: Vec<String> = front_ends
        .addresses()
        .into_iter()
        .map(|(front_end, address)| format!("{front_end}={address}"))
        .collect();
    let ports = ports.join(" ");
    // `ports=` in front of `cql=` would read as one key with another for its value.
    tracing::info!(%admin, "serving {ports}");
    // Whoever started this may have closed its standard output; that is no reason to stop.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "ports {ports} admin={admin}").and_then(|()| out.flush());
    ports
}
