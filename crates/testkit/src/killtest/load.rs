//! The load: readers and writers with a blocking connection each, that outlive the server and
//! record what they saw.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use afterglow_cql::{
    frame::notation::Value,
    message::{Consistency, QueryParams, ValuesBuilder},
};

use super::{
    clock::Lived,
    rows::{self, Rows},
};
use crate::history::{Event, OperationKind};
use afterglow_loadgen::{
    cql::{ConnectOptions, Connection, CqlError, Prepared, ServerError},
    rng::{Rng, mix},
    ycsb::{Distribution, KeyChooser},
};

/// Pause of a client whose server is away.
const AWAY: Duration = Duration::from_millis(10);
/// After its time to live a value may still be read for so long: both clocks count whole seconds.
const EXPIRY_SLACK: u64 = 2_500_000_000;
/// Longest time to live.
const MAX_TTL: u64 = 6;
/// An operation during which this process was not let run for longer says nothing about the server.
const STALLED: Duration = Duration::from_secs(1);

/// Only the database says that, and only when it was told to.
const WRITE_TIMEOUT: i32 = 0x1100;

/// What the clients do.
#[derive(Clone)]
pub(super) struct LoadOptions {
    pub(super) host: String,
    pub(super) keyspace: String,
    pub(super) rows: Rows,
    pub(super) readers: usize,
    pub(super) writers: usize,
    /// Pause of each client between its operations.
    pub(super) pause: Duration,
    pub(super) seed: u64,
    pub(super) connect: ConnectOptions,
}

/// What all clients share.
pub(super) struct LoadShared {
    options: LoadOptions,
    lived: Lived,
    origin: Instant,
    stopping: AtomicBool,
    /// Clients may go on.
    open: AtomicBool,
    busy: AtomicUsize,
    /// Odd while the server must answer.
    era: AtomicU64,
    answered: AtomicU64,
    last_timestamp: AtomicU64,
    next_number: AtomicU64,
    /// Writes begun, by key.
    begun: Vec<AtomicU32>,
    /// Partitions with a write that was not acknowledged.
    doubted: Mutex<HashSet<u64>>,
    events: Mutex<Vec<Event>>,
    complaints: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clients at work. Stopped when dropped.
pub(super) struct Load {
    shared: Arc<LoadShared>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Makes keyspace and table, with the server up, and starts clients that wait for
    /// [`Load::release`].
    pub(super) fn start(options: LoadOptions, lived: &Lived) -> Result<Load, CqlError> {
        Connection::open(&options.host, &options.connect)?.empty_table(
            &options.keyspace,
            "rows",
            "p text, c int, v blob, PRIMARY KEY (p, c)",
        )?;
        let micros = micros();
        let shared = Arc::new(LoadShared {
            lived: lived.clone(),
            origin: Instant::now(),
            stopping: AtomicBool::new(false),
            open: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            era: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            last_timestamp: AtomicU64::new(micros),
            next_number: AtomicU64::new(1),
            begun: (0..options.rows.keys).map(|_| AtomicU32::new(0)).collect(),
            doubted: Mutex::default(),
            events: Mutex::default(),
            complaints: Mutex::default(),
            options,
        });
        let chooser = KeyChooser::new(Distribution::PlainZipfian, shared.options.rows.keys);
        let (readers, writers) = (shared.options.readers, shared.options.writers);
        let clients = (0..readers + writers).map(|number| {
            let (shared, chooser) = (shared.clone(), chooser.clone());
            thread::spawn(move || {
                LoadClient::new(&shared, number as u64).work(number < readers, chooser)
            })
        });
        let clients = clients.collect();
        Ok(Load { shared, clients })
    }

    pub(super) fn shared(&self) -> &Arc<LoadShared> {
        &self.shared
    }

    /// Lets the clients go on.
    pub(super) fn release(&self) {
        self.shared.open.store(true, Ordering::SeqCst);
    }

    /// Holds the clients and waits until none has anything under way.
    pub(super) fn hold(&self) {
        self.shared.open.store(false, Ordering::SeqCst);
        while self.shared.busy.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Does `each` to every key of `keys`, several at a time, trying again until it has been done.
    pub(super) fn for_all(
        &self,
        keys: &[u64],
        each: impl Fn(&mut LoadClient<'_>, u64) -> Result<(), CqlError> + Sync,
    ) {
        const SIDE_BY_SIDE: usize = 4;
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for number in 0..SIDE_BY_SIDE.min(keys.len()) {
                let (each, next) = (&each, &next);
                scope.spawn(move || {
                    let mut client = LoadClient::new(&self.shared, 1_000 + number as u64);
                    while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut tries = 0;
                        while client.attempt(|client| each(client, *key)).is_err() && tries < 200 {
                            tries += 1;
                            thread::sleep(AWAY);
                        }
                    }
                });
            }
        });
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

impl LoadShared {
    /// From now on the server must answer, or need not.
    pub(super) fn expect(&self, up: bool) {
        let era = self.era.load(Ordering::SeqCst);
        if (era % 2 == 1) != up {
            self.era.store(era + 1, Ordering::SeqCst);
        }
    }

    /// Operations answered so far.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Writes of `key` begun so far.
    pub(super) fn begun(&self, key: u64) -> u32 {
        self.begun[key as usize].load(Ordering::SeqCst)
    }

    /// From now on it is remembered which partitions have had a write without an acknowledgement.
    pub(super) fn forget_doubts(&self) {
        lock(&self.doubted).clear();
    }

    /// Whether nobody was told how a write to the partition of `key` ended: the cache keeps such
    /// partitions out for a while.
    pub(super) fn is_doubted(&self, key: u64) -> bool {
        lock(&self.doubted).contains(&(key / rows::PARTITION))
    }

    /// The present, as events have it.
    pub(super) fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// All events since the last time.
    pub(super) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Answers that a server that is up must not give, since the last time.
    pub(super) fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.complaints))
    }

    /// A write time in microseconds, above every one handed out before.
    fn timestamp(&self) -> u64 {
        let now = micros();
        let next = |last: u64| now.max(last + 1);
        let last = self
            .last_timestamp
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |l| Some(next(l)));
        next(last.unwrap_or_else(|l| l))
    }
}

fn micros() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}

/// A connection with its statements.
struct PreparedLink {
    /// When it was made. The server may have died and come back since, while nobody looked at the
    /// connection.
    era: u64,
    connection: Connection,
    select: Prepared,
    insert: Prepared,
    insert_for: Prepared,
    delete: Prepared,
    wipe: Prepared,
}

/// What a write does.
#[derive(Clone, Copy)]
enum Write {
    Insert,
    /// Insert with a time to live in seconds.
    InsertFor(u64),
    Delete,
    /// Delete the whole partition.
    Wipe,
}

pub(super) struct LoadClient<'a> {
    shared: &'a LoadShared,
    rng: Rng,
    link: Option<PreparedLink>,
    events: Vec<Event>,
}

impl<'a> LoadClient<'a> {
    fn new(shared: &'a LoadShared, number: u64) -> Self {
        let rng = Rng::new(shared.options.seed ^ mix(number));
        Self { shared, rng, link: None, events: Vec::new() }
    }

    fn work(mut self, reads: bool, mut chooser: KeyChooser) {
        let LoadShared { open, busy, stopping, options, answered, .. } = self.shared;
        while !stopping.load(Ordering::Relaxed) {
            busy.fetch_add(1, Ordering::SeqCst);
            if !open.load(Ordering::SeqCst) {
                busy.fetch_sub(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(2));
                continue;
            }
            // A third of the reads go everywhere, so that more than the hottest rows come into the
            // cache.
            let keys = options.rows.keys;
            let anywhere = self.rng.below(3) == 0;
            let key = if anywhere { self.rng.below(keys) } else { chooser.next(&mut self.rng) };
            let outcome = self.attempt(|client| match reads {
                true => client.read(key).map(drop),
                false => client.write_somehow(key),
            });
            busy.fetch_sub(1, Ordering::SeqCst);
            match outcome {
                Ok(()) => {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => thread::sleep(AWAY),
            }
            if !options.pause.is_zero() {
                thread::sleep(options.pause);
            }
        }
    }

    /// Does one operation, connecting first if need be; hands its events over, and complains if the
    /// server had to answer and did not.
    fn attempt(
        &mut self,
        deed: impl FnOnce(&mut LoadClient<'a>) -> Result<(), CqlError>,
    ) -> Result<(), CqlError> {
        let (era, lost) = (self.shared.era.load(Ordering::SeqCst), self.shared.lived.lost());
        let outcome = self.connect(era).and_then(|()| deed(self));
        if !self.events.is_empty() {
            lock(&self.shared.events).append(&mut self.events);
        }
        if let Err(error) = &outcome {
            let expected = era % 2 == 1 && self.shared.era.load(Ordering::SeqCst) == era;
            let stalled = self.shared.lived.lost() - lost > STALLED;
            let unprepared =
                matches!(error, CqlError::Server(e) if e.code == ServerError::UNPREPARED);
            let doubtful = matches!(error, CqlError::Server(e) if e.code == WRITE_TIMEOUT);
            if expected && !stalled && !unprepared && !doubtful {
                lock(&self.shared.complaints).push(error.to_string());
            }
            if !matches!(error, CqlError::Server(_)) || unprepared {
                self.link = None;
            }
        }
        outcome
    }

    /// A server that must answer is not asked over a connection to the one before it.
    fn connect(&mut self, era: u64) -> Result<(), CqlError> {
        if self.link.as_ref().is_some_and(|link| era.is_multiple_of(2) || link.era == era) {
            return Ok(());
        }
        let LoadOptions { host, connect, keyspace, .. } = &self.shared.options;
        let mut connection = Connection::open(host, connect)?;
        let mut prepare = |text: String| connection.prepare(&text);
        let table = format!("{keyspace}.rows");
        let select = prepare(format!("SELECT p, c, v FROM {table} WHERE p = ? AND c = ?"))?;
        let insert = prepare(format!("INSERT INTO {table} (p, c, v) VALUES (?, ?, ?)"))?;
        let insert_for =
            prepare(format!("INSERT INTO {table} (p, c, v) VALUES (?, ?, ?) USING TTL ?"))?;
        let delete = prepare(format!("DELETE FROM {table} WHERE p = ? AND c = ?"))?;
        let wipe = prepare(format!("DELETE FROM {table} WHERE p = ?"))?;
        self.link =
            Some(PreparedLink { era, connection, select, insert, insert_for, delete, wipe });
        Ok(())
    }

    /// Reads a row; returns the number of the write that its value is of.
    pub(super) fn read(&mut self, key: u64) -> Result<Option<u64>, CqlError> {
        let (partition, clustering) = rows::columns(key);
        let mut values = ValuesBuilder::positional();
        values.push(Value::Bytes(partition.as_bytes()));
        values.push(Value::Bytes(&clustering));
        let params =
            QueryParams { values: values.view(), ..QueryParams::new(Consistency::LocalQuorum) };
        let start = self.shared.now();
        let Some(link) = &mut self.link else { return Ok(None) };
        let rows = link.connection.execute(&link.select, &params)?;
        let end = Some(self.shared.now());
        let value = match rows.as_slice() {
            [] => None,
            [row] => Some(match row.as_slice() {
                [Some(p), Some(c), Some(v)] if rows::key_of(p, c) == Some(key) => {
                    rows::number(key, v).unwrap_or(GARBAGE)
                }
                _ => GARBAGE,
            }),
            _ => Some(GARBAGE),
        };
        self.events.push(Event { op: OperationKind::Read, key, value, start, end, order: None });
        Ok(value)
    }

    /// Writes a row anew.
    pub(super) fn insert(&mut self, key: u64) -> Result<(), CqlError> {
        self.write(key, Write::Insert)
    }

    fn write_somehow(&mut self, key: u64) -> Result<(), CqlError> {
        let mut key = key;
        if Rows::is_still(key) {
            key += rows::PARTITION;
        }
        let keys = self.shared.options.rows.keys;
        if key >= keys {
            return Ok(());
        }
        let write = match self.rng.below(100) {
            0..70 => Write::Insert,
            70..80 => Write::InsertFor(1 + self.rng.below(MAX_TTL)),
            80..93 => Write::Delete,
            _ => Write::Wipe,
        };
        self.write(key, write)
    }

    fn write(&mut self, key: u64, write: Write) -> Result<(), CqlError> {
        let LoadShared { options, begun, next_number, .. } = self.shared;
        let number = rows::number_of(
            next_number.fetch_add(1, Ordering::Relaxed),
            matches!(write, Write::InsertFor(_)),
        );
        let (partition, clustering) = rows::columns(key);
        let bytes = match write {
            Write::Insert | Write::InsertFor(_) => {
                rows::value(key, number, options.rows.size(key, number))
            }
            Write::Delete | Write::Wipe => Vec::new(),
        };
        let ttl = if let Write::InsertFor(ttl) = write { ttl } else { 0 };
        let seconds = (ttl as i32).to_be_bytes();
        let parts: &[&[u8]] = match write {
            Write::Insert => &[partition.as_bytes(), &clustering, &bytes],
            Write::InsertFor(_) => &[partition.as_bytes(), &clustering, &bytes, &seconds],
            Write::Delete => &[partition.as_bytes(), &clustering],
            Write::Wipe => &[partition.as_bytes()],
        };
        let mut values = ValuesBuilder::positional();
        for part in parts {
            values.push(Value::Bytes(part));
        }
        let touched = match write {
            Write::Wipe => options.rows.partition(key),
            _ => key..key + 1,
        };
        for key in touched.clone() {
            begun[key as usize].fetch_add(1, Ordering::SeqCst);
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        let statement = match write {
            Write::Insert => &link.insert,
            Write::InsertFor(_) => &link.insert_for,
            Write::Delete => &link.delete,
            Write::Wipe => &link.wipe,
        };
        let start = self.shared.now();
        let timestamp = self.shared.timestamp();
        let params = QueryParams {
            values: values.view(),
            timestamp: Some(timestamp as i64),
            ..QueryParams::new(Consistency::LocalQuorum)
        };
        let outcome = link.connection.execute(statement, &params);
        // Whatever the error says, taking the outcome for unknown accuses nobody wrongly.
        let end = outcome.is_ok().then(|| self.shared.now());
        if end.is_none() {
            lock(&self.shared.doubted).insert(key / rows::PARTITION);
        }
        let value = matches!(write, Write::Insert | Write::InsertFor(_)).then_some(number);
        let order = 2 * timestamp;
        let event =
            |key| Event { op: OperationKind::Write, key, value, start, end, order: Some(order) };
        self.events.extend(touched.map(event));
        if ttl > 0 {
            self.events.push(expiry(event(key), ttl, order + 1));
        }
        outcome.map(drop)
    }
}

/// The end of what `write` wrote for `ttl` seconds: like a deletion just after it, at a time known
/// within a second or two.
fn expiry(write: Event, ttl: u64, order: u64) -> Event {
    let second = 1_000_000_000;
    Event {
        value: None,
        start: write.start + (ttl - 1) * second,
        end: write.end.map(|end| end + ttl * second + EXPIRY_SLACK),
        order: Some(order),
        ..write
    }
}

/// Stands for bytes that are no value of their key: never written.
const GARBAGE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake_backend::FakeBackend,
        killtest::clock::{Lived, Ticker},
    };

    fn stage() -> (FakeBackend, Load, Ticker) {
        let server = FakeBackend::start(([127, 0, 0, 1], 0).into(), Default::default()).unwrap();
        let options = LoadOptions {
            host: server.address().to_string(),
            keyspace: "stage".to_owned(),
            rows: Rows { keys: 64, largest: 1024 },
            readers: 3,
            writers: 3,
            pause: Duration::ZERO,
            seed: 1,
            connect: ConnectOptions {
                timeout: Duration::from_secs(10),
                ..ConnectOptions::default()
            },
        };
        let (lived, ticker) = Lived::start();
        let load = Load::start(options, &lived).unwrap();
        (server, load, ticker)
    }

    /// Lets the clients work for a while.
    fn work(load: &Load) {
        let before = load.shared().answered();
        load.release();
        while load.shared().answered() < before + 100 {
            thread::sleep(Duration::from_millis(1));
        }
        load.hold();
    }

    #[test]
    fn a_client_that_slept_through_the_servers_death_does_not_accuse_its_successor() {
        let (server, load, _ticker) = stage();
        load.shared().expect(true);
        work(&load);
        load.shared().expect(false);
        server.hang_up();
        load.shared().expect(true);
        work(&load);
        assert_eq!(load.shared().take_complaints(), Vec::<String>::new());

        // A server that must answer and hangs up is accused.
        server.hang_up();
        work(&load);
        assert!(!load.shared().take_complaints().is_empty());
    }

    #[test]
    fn a_write_without_an_acknowledgement_puts_its_partition_in_doubt() {
        let (server, load, _ticker) = stage();
        let shared = load.shared();
        let mut client = LoadClient::new(shared, 99);
        client.attempt(|client| client.insert(1)).unwrap();
        server.hang_up();
        client.attempt(|client| client.insert(9)).unwrap_err();
        let doubted: Vec<u64> = (0..64).filter(|key| shared.is_doubted(*key)).collect();
        assert_eq!(doubted, (8..16).collect::<Vec<_>>());
        shared.forget_doubts();
        assert!(!shared.is_doubted(9));
    }
}
