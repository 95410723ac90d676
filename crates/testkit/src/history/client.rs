//! Concurrent readers and writers over few hot keys. Each has a blocking connection of its own and
//! records what it saw.
//!
//! They outlive the server: a broken connection makes a write's outcome unknown; then they connect
//! again and go on. Writes carry timestamps from one clock of this process, so their order is known
//! whatever the database's clock does. Their values can be verified byte for byte.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use afterglow_cql::{
    frame::notation::Value,
    message::{Consistency, QueryParams, ValuesBuilder},
};

use super::checker::{Event, OperationKind};
use afterglow_loadgen::{
    cql::{ConnectOptions, Connection, CqlError, Prepared, ServerError},
    rng::{Rng, mix},
    values,
    ycsb::{Distribution, KeyChooser},
};

/// What the clients do.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// Addresses; clients go round them.
    pub hosts: Vec<String>,
    /// How to connect. Its timeout decides when a write becomes unknown.
    pub connect: ConnectOptions,
    /// Keyspace of the table `history`; both are created, the table emptied.
    pub keyspace: String,
    /// Keys, the first ones hotter (plain zipfian).
    pub keys: u64,
    /// Clients that only read.
    pub readers: usize,
    /// Clients that only write.
    pub writers: usize,
    /// Fraction of the writes that delete.
    pub deletes: f64,
    /// Sizes of values: from, to.
    pub value_bytes: (u64, u64),
    /// Consistency level of reads and writes.
    pub consistency: Consistency,
    /// Pause of each client between its operations.
    pub pause: Duration,
    /// Seed of the choices.
    pub seed: u64,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            connect: ConnectOptions {
                timeout: Duration::from_secs(5),
                ..ConnectOptions::default()
            },
            keyspace: "history".to_owned(),
            keys: 1000,
            readers: 8,
            writers: 4,
            deletes: 0.05,
            value_bytes: (8, 4000),
            consistency: Consistency::LocalQuorum,
            pause: Duration::ZERO,
            seed: 1,
        }
    }
}

impl HistoryOptions {
    /// Creates keyspace and table, and empties the table. Do it where the policy of the table is
    /// already in force.
    pub fn create_table(&self) -> Result<(), CqlError> {
        let mut connection = Connection::open(&self.hosts[0], &self.connect)?;
        connection.empty_table(&self.keyspace, "history", "k text PRIMARY KEY, v blob")
    }
}

/// How long the last reads may take in all.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);

/// What all clients share.
struct HistoryShared {
    options: HistoryOptions,
    origin: Instant,
    stopping: AtomicBool,
    /// Reads answered so far.
    reads: AtomicU64,
    /// Writes acknowledged so far.
    writes: AtomicU64,
    read_errors: AtomicU64,
    last_timestamp: AtomicU64,
    next_value: AtomicU64,
}

/// Clients at work.
pub struct History {
    shared: Arc<HistoryShared>,
    /// What an earlier part left, see [`residue`](super::residue).
    carried: Vec<Event>,
    clients: Vec<JoinHandle<Vec<Event>>>,
}

impl History {
    /// Starts all clients. The table must be there; the server need not be up.
    pub fn start(options: HistoryOptions) -> Self {
        Self::resume(options, Instant::now(), Vec::new())
    }

    /// Goes on where an earlier history on the same table ended, with what that left. Event times
    /// count from `origin`, which must be the same for all parts.
    pub fn resume(options: HistoryOptions, origin: Instant, carried: Vec<Event>) -> Self {
        let micros = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_micros() as u64);
        let (readers, writers) = (options.readers, options.writers);
        let chooser = KeyChooser::new(Distribution::PlainZipfian, options.keys);
        let shared = Arc::new(HistoryShared {
            options,
            origin,
            stopping: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            last_timestamp: AtomicU64::new(micros),
            // Values of an earlier run on the same table are none of this one.
            next_value: AtomicU64::new(micros),
        });
        let clients = (0..readers + writers)
            .map(|number| {
                let (shared, chooser) = (shared.clone(), chooser.clone());
                thread::spawn(move || {
                    HistoryClient::new(&shared, number, chooser).work(number < readers)
                })
            })
            .collect();
        Self { shared, carried, clients }
    }

    /// Reads answered so far.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::Relaxed)
    }

    /// Writes acknowledged so far.
    pub fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }

    /// Operations answered so far.
    pub fn answered(&self) -> u64 {
        self.reads() + self.writes()
    }

    /// Reads that had no answer so far: they are no events.
    pub fn read_errors(&self) -> u64 {
        self.shared.read_errors.load(Ordering::Relaxed)
    }

    /// How many of the events carried over are acknowledged writes, and how many are unknown ones.
    pub fn carried(&self) -> (u64, u64) {
        let acknowledged = self.carried.iter().filter(|e| e.end.is_some()).count() as u64;
        (acknowledged, self.carried.len() as u64 - acknowledged)
    }

    /// Stops all clients, then reads every key once more, with the server up. Returns all events,
    /// those carried over included.
    pub fn finish(self) -> Result<Vec<Event>, CqlError> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let mut events = self.carried;
        for client in self.clients {
            events.extend(client.join().expect("a history client panicked"));
        }
        let chooser = KeyChooser::new(Distribution::Sequential, self.shared.options.keys);
        let mut client = HistoryClient::new(&self.shared, usize::MAX, chooser);
        let give_up = Instant::now() + SWEEP_LIMIT;
        for key in 0..self.shared.options.keys {
            while let Err(error) = client.ready().and_then(|()| client.read(key)) {
                if Instant::now() > give_up {
                    return Err(error);
                }
                client.link = None;
                thread::sleep(Duration::from_millis(20));
            }
        }
        events.append(&mut client.events);
        Ok(events)
    }
}

/// A connection with its statements.
struct ClientLink {
    connection: Connection,
    select: Prepared,
    insert: Prepared,
    delete: Prepared,
}

struct HistoryClient<'a> {
    shared: &'a HistoryShared,
    host: String,
    chooser: KeyChooser,
    rng: Rng,
    link: Option<ClientLink>,
    events: Vec<Event>,
}

impl<'a> HistoryClient<'a> {
    fn new(shared: &'a HistoryShared, number: usize, chooser: KeyChooser) -> Self {
        let hosts = &shared.options.hosts;
        let host = hosts[number % hosts.len()].clone();
        let rng = Rng::new(shared.options.seed ^ mix(number as u64));
        Self { shared, host, chooser, rng, link: None, events: Vec::new() }
    }

    fn work(mut self, reads: bool) -> Vec<Event> {
        while !self.shared.stopping.load(Ordering::Relaxed) {
            if self.ready().is_err() {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            let key = self.chooser.next(&mut self.rng);
            let answered = if reads { &self.shared.reads } else { &self.shared.writes };
            let outcome = if reads { self.read(key) } else { self.write(key) };
            match outcome {
                Ok(()) => {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(CqlError::Server(error)) if error.code != ServerError::UNPREPARED => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(_) => self.link = None,
            }
            if !self.shared.options.pause.is_zero() {
                thread::sleep(self.shared.options.pause);
            }
        }
        self.events
    }

    /// Connects if need be.
    fn ready(&mut self) -> Result<(), CqlError> {
        if self.link.is_some() {
            return Ok(());
        }
        let mut connection = Connection::open(&self.host, &self.shared.options.connect)?;
        let keyspace = &self.shared.options.keyspace;
        let select =
            connection.prepare(&format!("SELECT k, v FROM {keyspace}.history WHERE k = ?"))?;
        let insert =
            connection.prepare(&format!("INSERT INTO {keyspace}.history (k, v) VALUES (?, ?)"))?;
        let delete = connection.prepare(&format!("DELETE FROM {keyspace}.history WHERE k = ?"))?;
        self.link = Some(ClientLink { connection, select, insert, delete });
        Ok(())
    }

    fn now(&self) -> u64 {
        self.shared.origin.elapsed().as_nanos() as u64
    }

    fn read(&mut self, key: u64) -> Result<(), CqlError> {
        let name = name(key);
        let mut values = ValuesBuilder::positional();
        values.push(Value::Bytes(name.as_bytes()));
        let params = QueryParams {
            values: values.view(),
            ..QueryParams::new(self.shared.options.consistency)
        };
        let start = self.now();
        let Some(link) = &mut self.link else { return Ok(()) };
        let rows = link.connection.execute(&link.select, &params).inspect_err(|_| {
            self.shared.read_errors.fetch_add(1, Ordering::Relaxed);
        })?;
        let end = Some(self.now());
        let value = match rows.as_slice() {
            [] => None,
            [row] if row.len() == 2 && row[0].as_deref() == Some(name.as_bytes()) => Some(
                row[1].as_deref().and_then(|v| values::verify(key, 0, 0, v)).unwrap_or(GARBAGE),
            ),
            _ => Some(GARBAGE),
        };
        self.events.push(Event { op: OperationKind::Read, key, value, start, end, order: None });
        Ok(())
    }

    fn write(&mut self, key: u64) -> Result<(), CqlError> {
        let HistoryOptions { deletes, value_bytes: (from, to), consistency, .. } =
            self.shared.options;
        let number = self.shared.next_value.fetch_add(1, Ordering::Relaxed);
        let value = (self.rng.next_f64() >= deletes).then_some(number);
        let mut bytes = vec![0; (from + self.rng.below(to.max(from) - from + 1)) as usize];
        let name = name(key);
        let mut values = ValuesBuilder::positional();
        values.push(Value::Bytes(name.as_bytes()));
        if value.is_some() {
            values::fill(key, 0, number, 0, &mut bytes);
            values.push(Value::Bytes(&bytes));
        }
        let start = self.now();
        let order = self.timestamp();
        let timestamp = Some(order as i64);
        let params =
            QueryParams { values: values.view(), timestamp, ..QueryParams::new(consistency) };
        let Some(link) = &mut self.link else { return Ok(()) };
        let statement = if value.is_some() { &link.insert } else { &link.delete };
        let outcome = link.connection.execute(statement, &params);
        // Whatever the error says, taking the outcome for unknown accuses nobody wrongly.
        let end = outcome.is_ok().then(|| self.now());
        self.events.push(Event {
            op: OperationKind::Write,
            key,
            value,
            start,
            end,
            order: Some(order),
        });
        outcome.map(drop)
    }

    /// A write time in microseconds, above every one handed out before.
    fn timestamp(&self) -> u64 {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_micros() as u64);
        let next = |last: u64| now.max(last + 1);
        let last =
            self.shared
                .last_timestamp
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |l| Some(next(l)));
        next(last.unwrap_or_else(|l| l))
    }
}

/// Stands for bytes that are no value of their key: never written.
const GARBAGE: u64 = u64::MAX;

fn name(key: u64) -> String {
    format!("key{key:08}")
}
