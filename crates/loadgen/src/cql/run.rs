//! Measures reads and updates of a loaded table.

use std::{
    sync::atomic::Ordering,
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant, SystemTime},
};

use afterglow_cql::{frame::Version, message::Consistency};

use super::{
    Answer, ConnectOptions, Connection, CqlError, Template,
    answer::rows,
    driver::{Done, Driver, DriverOptions, Measured, Op, Phase, Rate, Shared, Work},
    owned::owned,
};
use crate::{
    cpu,
    flat::Flatness,
    metrics,
    result::{
        ClientCpu, Errors, FORMAT, LoadShape, RunResult, Second, ServerCpu, VOID_ABOVE, Warmup,
    },
    rng::Rng,
    values::{self, KEY_LEN},
    ycsb::KeyChooser,
};

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What is measured, for the report.
    pub label: String,
    /// Under which load, for the report.
    pub scenario: String,
    /// The load.
    pub load: LoadShape,
    /// Addresses; connections go round them.
    pub hosts: Vec<String>,
    /// Ask only for records that the first host owns, by the tokens that it shows to drivers.
    pub owned: bool,
    /// How to connect.
    pub connect: ConnectOptions,
    /// Consistency level.
    pub consistency: Consistency,
    /// Connect again where a connection breaks, and go on.
    pub reconnect: bool,
    /// Random distances between the operations of an open loop.
    pub poisson: bool,
    /// Clients never sleep, see [`DriverOptions::polls`].
    pub polls: bool,
    /// How to warm up.
    pub warm: Warm,
    /// How long to measure.
    pub duration: Duration,
    /// Or how many operations, whatever comes first.
    pub operations: Option<u64>,
    /// Which reads are verified byte for byte.
    pub verify: Verify,
    /// Processes whose CPU is watched.
    pub watch: Vec<(String, u32)>,
    /// Afterglow's admin address, to read hits and misses from.
    pub metrics: Option<String>,
}

/// How to warm up, always in a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warm {
    /// For so long.
    For(Duration),
    /// Until throughput is level, so long at most.
    UntilFlat(Duration),
}

/// Which reads are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Verify {
    /// None: only whether a row came.
    None,
    /// Every 64th.
    Sample,
    /// Every one; costs the client about 1 ns per byte.
    All,
}

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
    let records = records(options)?;
    let chooser = KeyChooser::new(options.load.distribution, records.count())
        .with_hot_set(options.load.hot_set);
    // Without a warm-up every operation counts, also the first: none may begin before measuring
    // does.
    if matches!(options.warm, Warm::For(duration) if duration.is_zero()) {
        shared.advance(Phase::Measure);
    }
    thread::scope(|scope| {
        let (shared, chooser, records) = (&shared, &chooser, &records);
        let threads: Vec<_> = (0..options.load.threads)
            .map(|t| {
                scope.spawn(move || Reader::run(options, t, (chooser.clone(), records), shared))
            })
            .collect();
        // Whatever ends this, the threads must end too, or the scope would wait for ever.
        let outcome = Control { options, shared, threads: &threads }.run(&mut progress);
        shared.advance(Phase::Drain);
        let mut measured = Measured::default();
        let (mut verified, mut busiest) = (0, 0.0f64);
        for thread in threads {
            let (part, reader) = thread.join().expect("a load thread panicked")?;
            busiest = busiest.max(part.cpu as f64 / 1e9 / part.elapsed.as_secs_f64().max(1e-9));
            measured.merge(&part);
            verified += reader.verified;
        }
        let (warmup, before) = outcome?;
        let after = Snapshot::take(options)?;
        Ok(summarise(options, &measured, warmup, verified, busiest, &before, &after))
    })
}

/// Which records are asked for.
enum Records {
    /// All of so many.
    All(u64),
    /// These, at least two.
    These(Vec<u64>),
}

impl Records {
    fn count(&self) -> u64 {
        match self {
            Records::All(count) => *count,
            Records::These(numbers) => numbers.len() as u64,
        }
    }

    /// The number of the record at a place below [`Records::count`].
    fn at(&self, place: u64) -> u64 {
        match self {
            Records::All(_) => place,
            Records::These(numbers) => numbers[place as usize],
        }
    }
}

fn records(options: &RunOptions) -> Result<Records, CqlError> {
    let (host, records) = (&options.hosts[0], options.load.table.records);
    if !options.owned {
        return Ok(Records::All(records));
    }
    let numbers = owned(&mut Connection::open(host, &options.connect)?, records)?;
    match numbers.len() {
        0 | 1 => Err(CqlError::Unexpected(format!("{host} owns fewer than two records"))),
        _ => Ok(Records::These(numbers)),
    }
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

/// One thread's choices and checks.
struct Reader<'a> {
    options: &'a RunOptions,
    version: Version,
    select: Option<Template>,
    updates: Vec<Template>,
    chooser: KeyChooser,
    records: &'a Records,
    rng: Rng,
    /// Operations left to start.
    left: u64,
    /// How many of them there are once recording begins.
    quota: u64,
    /// Version of the next write; unique among threads.
    next_version: u64,
    reads: u64,
    verified: u64,
}

impl<'a> Reader<'a> {
    fn run(
        options: &'a RunOptions,
        thread: usize,
        (chooser, records): (KeyChooser, &'a Records),
        shared: &'a Shared,
    ) -> Result<(Measured, Self), CqlError> {
        let load = &options.load;
        let (threads, number) = (load.threads as u64, thread as u64);
        let seed = load.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let reader = Self {
            options,
            version: options.connect.version,
            select: None,
            updates: Vec::new(),
            chooser: chooser.starting_at(records.count() * number / threads),
            records,
            rng: Rng::new(seed),
            left: u64::MAX,
            quota: options
                .operations
                .map_or(u64::MAX, |n| n * (number + 1) / threads - n * number / threads),
            next_version: (number + 1) << 40,
            reads: 0,
            verified: 0,
        };
        let rate = load.rate.map(|rate| Rate {
            per_second: rate / threads as f64,
            poisson: options.poisson.then_some(seed),
            offset: Duration::from_secs_f64(number as f64 / rate),
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
        let outcome = Driver::connect(driver, shared, reader).and_then(Driver::run);
        if outcome.is_err() {
            // One thread's failure ends the others.
            shared.advance(Phase::Drain);
        }
        outcome
    }

    /// Whether the rows are exactly the one row of record `number`.
    fn judge(&mut self, number: u64, message: &[u8]) -> Result<Done, CqlError> {
        let table = &self.options.load.table;
        let verify = match self.options.verify {
            Verify::None => false,
            Verify::Sample => self.reads.is_multiple_of(64),
            Verify::All => true,
        };
        self.reads += 1;
        // A message as long as a row has one; without verification that has to do.
        if !verify && message.len() as u64 > u64::from(table.fields) * u64::from(table.field_size) {
            return Ok(Done::Fine);
        }
        let rows = rows(self.version, message)?;
        let Some(row) = rows.iter().next() else { return Ok(Done::NotFound) };
        let row = row?;
        self.verified += 1;
        let mut key = [0; KEY_LEN];
        values::write_key(number, &mut key);
        let mut cells = row.cells();
        let right_key = cells.next() == Some(Some(&key[..]));
        let right_fields = (0..table.fields).zip(cells.by_ref()).filter(|(field, cell)| {
            cell.is_some_and(|c| {
                c.len() == table.field_size as usize
                    && values::verify(number, *field, table.zeros, c).is_some()
            })
        });
        let complete = right_fields.count() == table.fields as usize && cells.next().is_none();
        Ok(if right_key && complete && rows.count == 1 { Done::Fine } else { Done::Wrong })
    }
}

impl Work for Reader<'_> {
    fn prepare(&mut self, connection: &mut Connection) -> Result<(), CqlError> {
        let table = &self.options.load.table;
        let (version, consistency) = (connection.version(), self.options.consistency);
        let select = connection.prepare(&table.select())?;
        self.select = Some(Template::new(version, &select, &[KEY_LEN], consistency));
        if self.options.load.read_ratio < 1.0 {
            self.updates.clear();
            for field in 0..table.fields {
                let update = connection.prepare(&table.update(field))?;
                let lengths = [table.field_size as usize, KEY_LEN];
                self.updates.push(Template::new(version, &update, &lengths, consistency));
            }
        }
        Ok(())
    }

    fn start(&mut self, stream: u16, out: &mut Vec<u8>, _: u64) -> Option<Op> {
        self.left = self.left.checked_sub(1)?;
        let number = self.records.at(self.chooser.next(&mut self.rng));
        let write = self.options.load.read_ratio < 1.0
            && self.rng.next_f64() >= self.options.load.read_ratio;
        let mut key = [0; KEY_LEN];
        values::write_key(number, &mut key);
        if write {
            let field = self.rng.below(u64::from(self.options.load.table.fields)) as u32;
            let template = &self.updates[field as usize];
            let envelope = template.append(stream, out);
            let zeros = self.options.load.table.zeros;
            values::fill(number, field, self.next_version, zeros, &mut envelope[template.place(0)]);
            envelope[template.place(1)].copy_from_slice(&key);
            self.next_version += 1;
        } else {
            let template = self.select.as_ref()?;
            template.append(stream, out)[template.place(0)].copy_from_slice(&key);
        }
        Some(Op { number, write, attempt: 0 })
    }

    fn finish(&mut self, op: Op, answer: &Answer<'_>, _: u64) -> Result<Done, CqlError> {
        match answer {
            Answer::Rows(message) if !op.write => self.judge(op.number, message),
            Answer::Done if op.write => Ok(Done::Fine),
            Answer::Error(error) => Ok(Done::Refused(error.clone())),
            other => Err(CqlError::Unexpected(format!("{other:?}"))),
        }
    }

    fn lost(&mut self, _: Op) {}

    fn measure(&mut self) {
        self.left = self.quota;
        self.verified = 0;
    }

    fn exhausted(&self) -> bool {
        self.left == 0
    }
}
