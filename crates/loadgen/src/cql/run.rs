//! Measures reads and updates of a loaded table.

use std::{
    sync::atomic::Ordering,
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant, SystemTime},
};

pub use super::options::{RunOptions, Verify, Warm};
use super::{
    Connection, CqlError,
    driver::{Driver, DriverOptions, Measured, Phase, Rate, Shared, Work},
    owned::owned,
    row_work::{Records, RowWork},
    slice_work::{SliceWork, Slices},
};
use crate::{
    cpu,
    flat::Flatness,
    metrics,
    result::{ClientCpu, Errors, FORMAT, RunResult, Second, ServerCpu, VOID_ABOVE, Warmup},
    ycsb::{Action, Growth, KeyChooser, Workload},
};

/// Length of the windows that must be level: five of them, within 5 %.
const FLAT_WINDOW: Duration = Duration::from_secs(2);

/// A message for whoever watches.
#[derive(Debug)]
pub enum Progress {
    /// A second of warm-up has passed: its number, operations in it.
    Warming(u64, u64),
    /// The warm-up is over: whether level.
    Warm(Option<bool>),
    /// A second of measuring has passed: its number, operations and failures in it.
    Measuring(u64, u64, u64),
}

/// Runs it all.
pub fn run(
    options: &RunOptions,
    mut progress: impl FnMut(Progress),
) -> Result<RunResult, Box<dyn std::error::Error>> {
    let shared = Shared::default();
    let works = Works::new(options)?;
    // Without a warm-up every operation counts, also the first: none may begin before measuring
    // does.
    if matches!(options.warm, Warm::For(duration) if duration.is_zero()) {
        shared.advance(Phase::Measure);
    }
    thread::scope(|scope| {
        let (shared, works) = (&shared, &works);
        let threads: Vec<_> = (0..options.load.threads)
            .map(|t| scope.spawn(move || works.run(options, t, shared)))
            .collect();
        // Whatever ends this, the threads must end too, or the scope would wait for ever.
        let outcome = Control { options, shared, threads: &threads }.run(&mut progress);
        shared.advance(Phase::Drain);
        let mut measured = Measured::default();
        let (mut verified, mut busiest) = (0, 0.0f64);
        for thread in threads {
            let (part, checked) = thread.join().expect("a load thread panicked")?;
            busiest = busiest.max(part.cpu as f64 / 1e9 / part.elapsed.as_secs_f64().max(1e-9));
            measured.merge(&part);
            verified += checked;
        }
        let (warmup, before) = outcome?;
        let after = Snapshot::take(options)?;
        let mut result = summarise(options, &measured, warmup, verified, busiest, &before, &after);
        result.records = works.records();
        Ok(result)
    })
}

/// What the threads of a run do, and what they share.
enum Works {
    Rows(KeyChooser, Records, Growth),
    Slices(Workload, KeyChooser, Slices),
}

impl Works {
    fn new(options: &RunOptions) -> Result<Self, CqlError> {
        let (load, table) = (&options.load, &options.load.table);
        let clustered = load.workload.is_some_and(Workload::is_clustered);
        let newest_first = load.workload == Some(Workload::Feed);
        if clustered != (table.partition_rows > 0) || newest_first != table.newest_first {
            let wrong = "E needs partitions of several rows, a feed these with the newest first, \
                         any other load neither: see --partition-rows and --newest-first";
            return Err(CqlError::Unexpected(wrong.to_owned()));
        }
        if options.owned && load.mix().has(Action::Insert) {
            let wrong = "a load that inserts cannot be kept to the records of one node";
            return Err(CqlError::Unexpected(wrong.to_owned()));
        }
        let open = || Connection::open(&options.hosts[0], &options.connect);
        // Records to come must be known to YCSB's zipfian beforehand; it counts on more than come.
        let growing = |records| KeyChooser::new(load.distribution, records + records / 10);
        match load.workload {
            Some(workload @ Workload::Feed) => {
                let chooser = KeyChooser::new(load.distribution, table.partitions());
                Ok(Works::Slices(workload, chooser, Slices::of_feeds(table, &mut open()?)?))
            }
            Some(workload @ Workload::E) => {
                let chooser = growing(table.records).of_present(table.records);
                Ok(Works::Slices(workload, chooser, Slices::of_records(table)))
            }
            _ => {
                let (count, records) = match options.owned {
                    false => (table.records, Records::All),
                    true => {
                        let numbers = owned(&mut open()?, table.records)?;
                        (numbers.len() as u64, Records::These(numbers))
                    }
                };
                if count < 2 {
                    let host = &options.hosts[0];
                    let few = format!("{host} owns fewer than two records");
                    return Err(CqlError::Unexpected(few));
                }
                let chooser = KeyChooser::new(load.distribution, count).with_hot_set(load.hot_set);
                Ok(Works::Rows(chooser, records, Growth::new(table.records)))
            }
        }
    }

    /// Records there may be now.
    fn records(&self) -> u64 {
        match self {
            Works::Rows(_, _, growth) => growth.issued(),
            Works::Slices(_, _, slices) => slices.issued(),
        }
    }

    /// Does the part of one thread: what it measured, and how many reads it verified.
    fn run(
        &self,
        options: &RunOptions,
        thread: usize,
        shared: &Shared,
    ) -> Result<(Measured, u64), CqlError> {
        match self {
            Works::Rows(chooser, records, growth) => {
                let first = chooser.records() * thread as u64 / options.load.threads as u64;
                let chooser = chooser.clone().starting_at(first);
                let work = RowWork::new(options, thread, chooser, (records, growth));
                let (measured, work) = drive(options, thread, shared, work)?;
                Ok((measured, work.verified()))
            }
            Works::Slices(workload, chooser, slices) => {
                let work = SliceWork::new(options, *workload, thread, chooser.clone(), slices);
                let (measured, work) = drive(options, thread, shared, work)?;
                Ok((measured, work.verified()))
            }
        }
    }
}

fn drive<W: Work>(
    options: &RunOptions,
    thread: usize,
    shared: &Shared,
    work: W,
) -> Result<(Measured, W), CqlError> {
    let (load, threads) = (&options.load, options.load.threads as f64);
    let rate = load.rate.map(|rate| Rate {
        per_second: rate / threads,
        poisson: options.poisson.then_some(options.seed(thread)),
        offset: Duration::from_secs_f64(thread as f64 / rate),
    });
    let driver = DriverOptions {
        hosts: options.hosts.clone(),
        connect: options.connect.clone(),
        connections: load.connections / load.threads,
        in_flight: load.in_flight,
        reconnect: options.reconnect,
        rate,
        polls: options.polls,
        drain: Duration::from_secs(10),
    };
    let outcome = Driver::connect(driver, shared, work).and_then(Driver::run);
    if outcome.is_err() {
        // One thread's failure ends the others.
        shared.advance(Phase::Drain);
    }
    outcome
}

struct Control<'a, 'scope, T> {
    options: &'a RunOptions,
    shared: &'a Shared,
    threads: &'a [ScopedJoinHandle<'scope, T>],
}

impl<T> Control<'_, '_, T> {
    fn run(
        &self,
        progress: &mut impl FnMut(Progress),
    ) -> Result<(Warmup, Snapshot), Box<dyn std::error::Error>> {
        let warmup = self.warm(progress);
        let before = Snapshot::take(self.options)?;
        self.shared.advance(Phase::Measure);
        let mut second = 0;
        let started = Instant::now();
        let mut last = self.counts();
        while started.elapsed() < self.options.duration && self.alive() {
            let tick = Duration::from_secs(second + 1).min(self.options.duration);
            self.sleep_until(started + tick);
            if started.elapsed().as_secs() > second {
                second += 1;
                let now = self.counts();
                progress(Progress::Measuring(second, now.0 - last.0, now.1 - last.1));
                last = now;
            }
        }
        Ok((warmup, before))
    }

    fn warm(&self, progress: &mut impl FnMut(Progress)) -> Warmup {
        let (limit, until_flat) = match self.options.warm {
            Warm::For(duration) => (duration, false),
            Warm::UntilFlat(duration) => (duration, true),
        };
        let mut flatness = Flatness::new(5, 0.05);
        let started = Instant::now();
        let (mut last_second, mut last_window) = (self.counts().0, self.counts().0);
        let mut seconds = 0;
        while started.elapsed() < limit && self.alive() {
            self.sleep_until(started + Duration::from_secs(seconds + 1).min(limit));
            seconds += 1;
            let now = self.counts().0;
            progress(Progress::Warming(seconds, now - last_second));
            last_second = now;
            if seconds % FLAT_WINDOW.as_secs() == 0 {
                let flat = flatness.push((now - last_window) as f64 / FLAT_WINDOW.as_secs_f64());
                last_window = now;
                if until_flat && flat {
                    break;
                }
            }
        }
        let flat = until_flat.then(|| flatness.is_flat());
        progress(Progress::Warm(flat));
        Warmup {
            seconds: started.elapsed().as_secs_f64(),
            flat,
            windows: flatness.values().to_vec(),
        }
    }

    fn counts(&self) -> (u64, u64) {
        let Shared { operations, failures, .. } = self.shared;
        (operations.load(Ordering::Relaxed), failures.load(Ordering::Relaxed))
    }

    fn alive(&self) -> bool {
        self.shared.phase() != Phase::Drain
            && !self.threads.iter().all(ScopedJoinHandle::is_finished)
    }

    fn sleep_until(&self, end: Instant) {
        while Instant::now() < end && self.alive() {
            thread::sleep(
                Duration::from_millis(5).min(end.saturating_duration_since(Instant::now())),
            );
        }
    }
}

/// Counters of everything watched, at one moment.
struct Snapshot {
    at: Instant,
    unix: u64,
    own: u64,
    servers: Vec<u64>,
    machine: u64,
    cache: Option<metrics::CacheCounters>,
}

impl Snapshot {
    fn take(options: &RunOptions) -> Result<Self, String> {
        let of = |(name, pid): &(String, u32)| {
            cpu::of_process(*pid).map_err(|e| format!("cannot watch {name}, process {pid}: {e}"))
        };
        let cache = options.metrics.as_ref().map(|address| {
            metrics::scrape(address)
                .map_err(|e| format!("cannot read http://{address}/metrics: {e}"))
        });
        Ok(Self {
            at: Instant::now(),
            unix: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            own: cpu::of_self(),
            servers: options.watch.iter().map(of).collect::<Result<_, _>>()?,
            machine: cpu::of_machine().map_err(|e| format!("cannot read /proc/stat: {e}"))?,
            cache: cache.transpose()?,
        })
    }
}

fn summarise(
    options: &RunOptions,
    measured: &Measured,
    warmup: Warmup,
    verified: u64,
    busiest: f64,
    before: &Snapshot,
    after: &Snapshot,
) -> RunResult {
    let seconds = measured.elapsed.as_secs_f64();
    let mut all = measured.reads.clone();
    all.merge(&measured.writes);
    let operations = measured.service.count();
    let wall = (after.at - before.at).as_nanos() as f64;
    let cores = |now: u64, then: u64| (now - then) as f64 / wall;
    let servers: Vec<ServerCpu> = options
        .watch
        .iter()
        .zip(after.servers.iter().zip(&before.servers))
        .map(|((name, _), (&now, &then))| ServerCpu {
            name: name.clone(),
            cores: cores(now, then),
            us_per_operation: (now - then) as f64 / 1000.0 / operations.max(1) as f64,
        })
        .collect();
    let client = cores(after.own, before.own);
    let available = thread::available_parallelism().map_or(1, usize::from) as f64;
    let void = busiest > VOID_ABOVE || client > VOID_ABOVE * available;
    let watched: f64 = servers.iter().map(|s| s.cores).sum();
    RunResult {
        format: FORMAT,
        label: options.label.clone(),
        scenario: options.scenario.clone(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        started_unix: before.unix,
        load: options.load.clone(),
        warmup,
        seconds,
        operations,
        per_second: operations as f64 / seconds.max(1e-9),
        reads: measured.reads.summary(),
        writes: measured.writes.summary(),
        service: measured.service.summary(),
        curve: measured.reads.curve(),
        all: all.summary(),
        all_curve: all.curve(),
        records: 0,
        errors: Errors {
            not_found: measured.not_found,
            wrong: measured.wrong,
            refused: measured
                .refused
                .iter()
                .map(|(code, (n, text))| (*code, *n, text.clone()))
                .collect(),
            lost: measured.lost,
            reconnects: measured.reconnects,
            unsent: measured.unsent,
        },
        verified,
        client: ClientCpu { cores: client, busiest_thread: busiest, void },
        other_cores: (!servers.is_empty())
            .then(|| cores(after.machine, before.machine) - client - watched),
        servers,
        cache: after.cache.as_ref().zip(before.cache.as_ref()).map(|(now, then)| now.since(then)),
        timeline: measured.windows.iter().map(second).collect(),
    }
}

fn second(window: &super::driver::Window) -> Second {
    let latency = window.latency.summary();
    Second {
        operations: window.operations,
        failures: window.failures,
        p50_us: latency.p50_us,
        p99_us: latency.p99_us,
    }
}
