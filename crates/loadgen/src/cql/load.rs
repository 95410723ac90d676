//! Loads the table: every record once, pipelined. A record is sent again after an overload or
//! a timeout.

use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant},
};

use afterglow_cql::message::Consistency;

use super::{
    Answer, ConnectOptions, Connection, CqlError,
    driver::{Done, Driver, DriverOptions, Measured, Op, Phase, Shared, Work},
    record::{Insert, Place},
    table::TableSpec,
};

/// Settings of a load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The table.
    pub table: TableSpec,
    /// Addresses; connections go round them.
    pub hosts: Vec<String>,
    /// How to connect.
    pub connect: ConnectOptions,
    /// Create keyspace and table first.
    pub create: bool,
    /// Consistency level of the inserts.
    pub consistency: Consistency,
    /// Threads.
    pub threads: usize,
    /// Connections per thread.
    pub connections: usize,
    /// Inserts in flight per connection.
    pub in_flight: usize,
    /// How often an insert is tried in all before the load fails.
    pub attempts: u32,
}

/// What a load took.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Loaded {
    /// Records written.
    pub records: u64,
    /// Inserts that had to be repeated.
    pub retries: u64,
    /// Wall time.
    pub seconds: f64,
}

/// Loads all records; `progress` is called about once a second with the number of records written.
pub fn load(options: &LoadOptions, mut progress: impl FnMut(u64)) -> Result<Loaded, CqlError> {
    if options.create {
        let mut connection = Connection::open(&options.hosts[0], &options.connect)?;
        options.table.create(&mut connection)?;
    }
    let started = Instant::now();
    let shared = Shared::default();
    shared.advance(Phase::Measure);
    let retries = thread::scope(|scope| {
        let threads: Vec<_> = {
            let shared = &shared;
            (0..options.threads)
                .map(|t| scope.spawn(move || Loader::run(options, t, shared)))
                .collect()
        };
        let mut next = started + Duration::from_secs(1);
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(20));
            if Instant::now() >= next {
                next += Duration::from_secs(1);
                progress(shared.operations.load(std::sync::atomic::Ordering::Relaxed));
            }
        }
        let mut retries = 0;
        for thread in threads {
            retries += thread.join().expect("a load thread panicked")?;
        }
        Ok::<u64, CqlError>(retries)
    })?;
    Ok(Loaded { records: options.table.records, retries, seconds: started.elapsed().as_secs_f64() })
}

/// One thread's share of the records.
struct Loader<'a> {
    options: &'a LoadOptions,
    insert: Option<Insert>,
    next: u64,
    end: u64,
    /// Failed inserts and when to try them again.
    again: VecDeque<(u64, Op)>,
    in_flight: u64,
    retries: u64,
}

impl<'a> Loader<'a> {
    fn run(options: &'a LoadOptions, thread: usize, shared: &'a Shared) -> Result<u64, CqlError> {
        let share = |t: usize| options.table.records * t as u64 / options.threads as u64;
        let loader = Self {
            options,
            insert: None,
            next: share(thread),
            end: share(thread + 1),
            again: VecDeque::new(),
            in_flight: 0,
            retries: 0,
        };
        let driver = DriverOptions {
            hosts: options.hosts.clone(),
            connect: options.connect.clone(),
            connections: options.connections,
            in_flight: options.in_flight,
            reconnect: true,
            rate: None,
            polls: false,
            drain: Duration::from_secs(1),
        };
        let outcome = Driver::connect(driver, shared, loader).and_then(Driver::run);
        if outcome.is_err() {
            // One thread's failure ends the others.
            shared.advance(Phase::Drain);
        }
        let (_, loader): (Measured, Self) = outcome?;
        Ok(loader.retries)
    }

    /// Tries `op` again: after 10 ms, doubled each time up to 1.28 s.
    fn later(&mut self, op: Op, now: u64) {
        self.retries += 1;
        let wait = 10_000_000 << op.attempt.min(7);
        self.again.push_back((now + wait, Op { attempt: op.attempt + 1, since: None, ..op }));
    }
}

impl Work for Loader<'_> {
    fn prepare(&mut self, connection: &mut Connection) -> Result<(), CqlError> {
        let LoadOptions { table, consistency, .. } = self.options;
        self.insert = Some(Insert::prepare(connection, table, *consistency)?);
        Ok(())
    }

    fn start(&mut self, stream: u16, out: &mut Vec<u8>, now: u64) -> Option<Op> {
        let insert = self.insert.as_ref()?;
        let op = match self.again.front() {
            Some(&(due, op)) if due <= now => {
                self.again.pop_front();
                op
            }
            _ if self.next < self.end => {
                self.next += 1;
                Op::new(self.next - 1, true)
            }
            _ => return None,
        };
        let table = &self.options.table;
        insert.append(table, Place::of(table, op.number), stream, out);
        self.in_flight += 1;
        Some(op)
    }

    fn finish(&mut self, op: Op, answer: &Answer<'_>, now: u64) -> Result<Done, CqlError> {
        self.in_flight -= 1;
        match answer {
            Answer::Done => Ok(Done::Fine),
            Answer::Error(error)
                if error.is_transient() && op.attempt + 1 < self.options.attempts =>
            {
                self.later(op, now);
                Ok(Done::Again)
            }
            Answer::Error(error) => Err(error.clone().into()),
            Answer::Rows(_) => Err(CqlError::Unexpected("rows in answer to an INSERT".to_owned())),
        }
    }

    fn lost(&mut self, op: Op) {
        self.in_flight -= 1;
        self.retries += 1;
        self.again.push_front((0, Op { since: None, ..op }));
    }

    fn exhausted(&self) -> bool {
        self.next == self.end && self.again.is_empty() && self.in_flight == 0
    }
}
