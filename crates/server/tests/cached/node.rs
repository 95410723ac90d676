//! A whole Afterglow over an engine in a directory of its own, and a client of it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afterglow::config::{FillHedge, HostPort, LivePolicies, TablePolicies, WriteLevels};
use afterglow::frontend::cql::cached::{
    Cached, CachedConfig, Keeping, RingConfig, RingHandle, Times, note_clean_stop,
    tables_of_last_run,
};
use afterglow::frontend::cql::{CqlFrontEnd, CqlFrontEndConfig, RingSettings, USER_IDLE};
use afterglow::hotkeys::report::HotFrontEnd;
use afterglow::metrics::{Metrics, RingEntry};
use afterglow::reactor::{Bound, Driver, Reactors, ReactorsConfig};
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, Query, QueryParams, StatementRef, Values,
    ValuesBuilder, encode_batch,
};
use afterglow_engine::device::DeviceConfig;
use afterglow_engine::{Cache, Config};
use afterglow_loadgen::cql::{ConnectOptions, Connection, CqlError, Prepared};
use afterglow_rowcache::clock::{Clock, SystemClock};
use afterglow_rowcache::lease::{CREATE_TABLE, create_keyspace};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};
use tempfile::TempDir;

type OwnedRow = Vec<Option<Vec<u8>>>;

/// Nothing here takes so long unless it never comes.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Waits until `ready` holds.
pub fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + GIVE_UP;
    while !ready() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Opens what an earlier run had open. The kernel ends rings in the background. Requests in flight
/// on one keep files, their locks and ports for a moment after the run has ended.
fn once_let_go<T, E: std::fmt::Debug>(open: impl Fn() -> Result<T, E>) -> T {
    let deadline = Instant::now() + GIVE_UP;
    loop {
        match open() {
            Ok(opened) => return opened,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A database with tables `ks.t (k text, v text)`, `ks.wide (k text, c int, v text)`, `ks.marks (k
/// text, c int)`, `ks.ids (k uuid, v text)` and `ks.feed (k text, c timeuuid, v text)`, and the
/// lease's. So no change of the schema comes in between unless a test makes it.
pub fn database() -> FakeBackend {
    furnished(FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap())
}

/// One that lets everybody in, and answers no query about these tables while it is `mute`.
pub fn database_that_may_be_mute(about: &'static str, mute: &Arc<AtomicBool>) -> FakeBackend {
    let mute = mute.clone();
    furnished(
        FakeBackend::scripted(Version::MAX, move |ask| {
            mute.load(Ordering::SeqCst) && ask.text.contains(about)
        })
        .unwrap(),
    )
}

pub fn furnished(database: FakeBackend) -> FakeBackend {
    let lease = create_keyspace("datacenter1", 1);
    for text in [
        &lease,
        CREATE_TABLE,
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE ks.t (k text PRIMARY KEY, v text)",
        "CREATE TABLE ks.other (k text PRIMARY KEY, v text)",
        "CREATE TABLE ks.wide (k text, c int, v text, PRIMARY KEY (k, c))",
        "CREATE TABLE ks.marks (k text, c int, PRIMARY KEY (k, c))",
        "CREATE TABLE ks.ids (k uuid PRIMARY KEY, v text)",
        "CREATE TABLE ks.feed (k text, c timeuuid, v text, PRIMARY KEY (k, c))",
    ] {
        direct(&database, text);
    }
    database
}

/// A timestamp near the clock: these many microseconds after the first that was asked for.
pub fn micros(n: i64) -> i64 {
    static FIRST: OnceLock<i64> = OnceLock::new();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    FIRST.get_or_init(now) + n
}

/// Runs a statement past Afterglow.
pub fn direct(database: &FakeBackend, text: &str) {
    let mut direct =
        Connection::open(&database.address().to_string(), &ConnectOptions::default()).unwrap();
    direct.query(text, Consistency::One).unwrap();
}

/// A running Afterglow.
pub struct Node {
    pub address: SocketAddr,
    /// The policies in force; to replace them is SIGHUP.
    pub policies: Arc<LivePolicies>,
    directory: PathBuf,
    metrics: Arc<Metrics>,
    parts: Option<Parts>,
}

struct Parts {
    cache: Cache,
    reactors: Reactors,
    front_end: CqlFrontEnd,
    keeping: Keeping,
}

/// How to run one.
#[derive(Clone)]
pub struct Setup {
    pub directory: PathBuf,
    pub database: SocketAddr,
    /// `pattern=policy`, first match wins.
    pub policy: &'static str,
    pub restart_grace: Duration,
    pub planned_restart_grace: Duration,
    pub write_levels: WriteLevels,
    pub hold: Duration,
    pub times: Times,
    pub fill_hedge: FillHedge,
    pub reactors: usize,
    /// Of the engine, in bytes.
    pub memory: u64,
    /// Of units of partitions; 0: none.
    pub partition_unit_size: u64,
    /// Where to listen; port 0: anywhere.
    pub listen: SocketAddr,
    /// Our own user and password, in a file.
    pub credentials: Option<PathBuf>,
    /// The ring that it is in.
    pub ring: Option<RingConfig>,
}

impl Setup {
    pub fn new(directory: &Path, database: &FakeBackend, policy: &'static str) -> Self {
        Self {
            directory: directory.to_owned(),
            database: database.address(),
            policy,
            restart_grace: Duration::from_secs(60),
            planned_restart_grace: Duration::ZERO,
            write_levels: WriteLevels::default(),
            hold: Duration::from_secs(600),
            times: Times::default(),
            memory: 64 << 20,
            partition_unit_size: 64 << 10,
            fill_hedge: FillHedge::default(),
            reactors: 2,
            listen: "127.0.0.1:0".parse().unwrap(),
            credentials: None,
            ring: None,
        }
    }

    /// Starts, and waits for the lease where it is needed.
    pub fn start(&self) -> Node {
        let node = self.start_without_lease();
        if self.policy.ends_with("exclusive") {
            node.wait_for_lease("held");
        }
        node
    }

    pub fn start_without_lease(&self) -> Node {
        let metrics = Arc::<Metrics>::default();
        let device = DeviceConfig { path: self.directory.join("flash"), size: 32 << 20 };
        let cache = once_let_go(|| {
            let mut config = Config::new(&self.directory, vec![device.clone()]);
            (config.memory, config.journal_size) = (self.memory, 1 << 20);
            Cache::open(config)
        });
        let rules = vec![self.policy.parse().unwrap()];
        let policies = Arc::new(LivePolicies::new(TablePolicies { rules }));
        let shape = ReactorsConfig { threads: Some(self.reactors), driver: Driver::Auto };
        let reactors = Reactors::start(&shape).unwrap();
        let config = CachedConfig {
            engine: &cache,
            data_dir: &self.directory,
            policies: policies.clone(),
            restart_grace: self.restart_grace,
            planned_restart_grace: self.planned_restart_grace,
            write_levels: self.write_levels.clone(),
            unknown_outcome_hold: self.hold,
            times: self.times,
            partition_unit_size: self.partition_unit_size,
            fill_hedge: self.fill_hedge,
            ring: self.ring.clone(),
        };
        let tables = tables_of_last_run(&cache, &self.directory);
        let cached = Cached::open(&config, tables).unwrap();
        let config = CqlFrontEndConfig {
            listen: self.listen,
            backends: vec![HostPort {
                host: self.database.ip().to_string(),
                port: self.database.port(),
            }],
            credentials: self.credentials.clone(),
            tls: None,
            backend_tls: None,
            advertise: None,
            host_id: Some(cached.host_id()),
            ring: RingSettings::default(),
            plans: Some(self.directory.join("plans")),
            user_idle: USER_IDLE,
            metrics: metrics.clone(),
            router: cached.router(),
        };
        let front_end = once_let_go(|| CqlFrontEnd::start(config.clone(), &reactors));
        let links = self.ring.as_ref().map(|ring| once_let_go(|| Bound::tcp(ring.listen)));
        let keeping = cached.keep(&front_end, links).expect("the links can be opened");
        let address = front_end.address();
        let parts = Some(Parts { cache, reactors, front_end, keeping });
        Node { address, policies, directory: self.directory.clone(), metrics, parts }
    }
}

impl Node {
    pub fn client(&self, version: Version) -> Client {
        let options = ConnectOptions { version, timeout: GIVE_UP, ..ConnectOptions::default() };
        Client(Connection::open(&self.address.to_string(), &options).unwrap())
    }

    /// A client that logs in.
    pub fn log_in(&self, version: Version, user: &str, password: &str) -> Result<Client, CqlError> {
        let credentials = Some((user.to_owned(), password.to_owned()));
        let options =
            ConnectOptions { version, credentials, timeout: GIVE_UP, ..ConnectOptions::default() };
        Connection::open(&self.address.to_string(), &options).map(Client)
    }

    /// The sum of the samples whose line has all these parts.
    pub fn count(&self, parts: &[&str]) -> u64 {
        let text = self.metrics.render(Default::default());
        let matching = text
            .lines()
            .filter(|line| !line.starts_with('#') && parts.iter().all(|p| line.contains(p)));
        matching.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// How far it is on its way into its ring.
    pub fn ring_entry(&self) -> RingEntry {
        self.metrics.ring_entry()
    }

    /// Reads of flash that lookups needed.
    pub fn device_reads(&self) -> u64 {
        self.parts.as_ref().expect("it runs").cache.stats().totals.device_reads
    }

    /// The hottest keys and tables of the CQL front end.
    pub fn hot_keys(&self, named: bool) -> HotFrontEnd {
        let all = self.metrics.hot_keys(named).front_ends;
        all.into_iter().find(|front_end| front_end.name == "cql").expect("it is open")
    }

    pub fn hits(&self) -> u64 {
        self.count(&["afterglow_hits_total"])
    }

    pub fn ring(&self) -> RingHandle {
        let parts = self.parts.as_ref().expect("it runs");
        parts.keeping.ring().expect("it is in a ring")
    }

    pub fn wait_for_lease(&self, state: &str) {
        let state = format!("state=\"{state}\"");
        wait_until(&format!("the lease has {state}"), || {
            self.count(&["afterglow_lease_state", &state]) == 1
        });
    }

    /// The clean stop.
    pub fn stop(mut self) {
        let Some(Parts { cache, reactors, front_end, keeping }) = self.parts.take() else { return };
        assert!(front_end.drain(GIVE_UP), "a request was left without an answer");
        keeping.stop(true);
        reactors.shutdown();
        cache.close();
        note_clean_stop(&self.directory, SystemClock.now(), SystemClock.unix()).unwrap();
    }

    /// Ends as a process that is killed: nothing is drained, given back, written out or marked
    /// clean.
    pub fn crash(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(Parts { cache, reactors, front_end, keeping }) = self.parts.take() else { return };
        // The sockets go first, as they do when the kernel takes a process away.
        front_end.drain(Duration::ZERO);
        reactors.shutdown();
        drop((keeping, front_end, cache));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The runtime ends the process when a panicking thread wakes a task, and the message
            // would be lost.
            std::mem::forget(self.parts.take());
        } else {
            self.end();
        }
    }
}

/// A client that expects answers.
pub struct Client(Connection);

impl Client {
    pub fn raw(&mut self) -> &mut Connection {
        &mut self.0
    }

    /// Runs a statement that must succeed.
    pub fn run(&mut self, text: &str) -> Vec<OwnedRow> {
        self.try_run(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    pub fn try_run(&mut self, text: &str) -> Result<Vec<OwnedRow>, CqlError> {
        self.0.query(text, Consistency::LocalQuorum)
    }

    /// Sends these as one logged batch.
    pub fn batch(&mut self, texts: &[String], level: Consistency) -> Envelope {
        let version = self.0.version();
        let part =
            |text| BatchStatement { statement: StatementRef::Text(text), values: Values::NONE };
        let statements: Vec<_> = texts.iter().map(|text| part(text)).collect();
        let params = QueryParams::new(level);
        let encode = |out: &mut Vec<u8>| {
            encode_batch(version, BatchKind::Logged, &statements, &params, out);
        };
        self.0.call(Flags::NONE, Opcode::Batch, encode).unwrap()
    }

    pub fn prepare(&mut self, text: &str) -> Prepared {
        self.0.prepare(text).unwrap()
    }

    pub fn execute(&mut self, prepared: &Prepared, values: &[&str]) -> Vec<OwnedRow> {
        self.try_execute(prepared, values).unwrap()
    }

    pub fn try_execute(
        &mut self,
        prepared: &Prepared,
        values: &[&str],
    ) -> Result<Vec<OwnedRow>, CqlError> {
        let mut bound = ValuesBuilder::positional();
        for value in values {
            bound.push(Value::Bytes(value.as_bytes()));
        }
        let params =
            QueryParams { values: bound.view(), ..QueryParams::new(Consistency::LocalQuorum) };
        self.0.execute(prepared, &params)
    }

    /// `v` of a row of `ks.t`.
    pub fn value(&mut self, key: &str) -> Option<String> {
        one_text(self.run(&format!("SELECT v FROM ks.t WHERE k = '{key}'")))
    }

    /// `v` of a row of `ks.wide`.
    pub fn wide(&mut self, key: &str, c: i32) -> Option<String> {
        one_text(self.run(&format!("SELECT v FROM ks.wide WHERE k = '{key}' AND c = {c}")))
    }

    pub fn put(&mut self, key: &str, value: &str) {
        self.run(&format!("INSERT INTO ks.t (k, v) VALUES ('{key}', '{value}')"));
    }

    /// Runs a query with parameters and flags of its own.
    pub fn query_with(
        &mut self,
        flags: Flags,
        text: &str,
        params: QueryParams<'_>,
        prefix: &[u8],
    ) -> Envelope {
        let version = self.0.version();
        self.0
            .call(flags, Opcode::Query, |out| {
                out.extend_from_slice(prefix);
                Query { text, params }.encode(version, out);
            })
            .unwrap()
    }
}

pub fn one_text(rows: Vec<OwnedRow>) -> Option<String> {
    assert!(rows.len() <= 1, "{rows:?}");
    let cell = rows.into_iter().next()?.pop()??;
    Some(String::from_utf8(cell).unwrap())
}

/// A database and an Afterglow before it, for one test.
pub struct House {
    pub node: Node,
    pub database: FakeBackend,
    pub directory: TempDir,
}

impl House {
    pub fn new(policy: &'static str) -> Self {
        Self::with(policy, |_| ())
    }

    pub fn with(policy: &'static str, change: impl FnOnce(&mut Setup)) -> Self {
        let (database, directory) = (database(), TempDir::new().unwrap());
        let mut setup = Setup::new(directory.path(), &database, policy);
        change(&mut setup);
        Self { node: setup.start(), database, directory }
    }

    /// A client that goes past Afterglow.
    pub fn past(&self) -> Connection {
        let options = ConnectOptions { version: Version::V5, ..ConnectOptions::default() };
        Connection::open(&self.database.address().to_string(), &options).unwrap()
    }

    /// The reads that reach the database while `act` runs.
    pub fn reads<T>(&self, act: impl FnOnce() -> T) -> (u64, T) {
        let before = self.database.reads();
        let result = act();
        (self.database.reads() - before, result)
    }

    /// The same; none where the machine stood still in between. Who waits for a row that is read
    /// for a write does so for a tenth of a second, and then asks the database too.
    pub fn reads_at_once<T>(&self, act: impl FnOnce() -> T) -> (Option<u64>, T) {
        let began = Instant::now();
        let (reads, result) = self.reads(act);
        ((began.elapsed() < Duration::from_millis(100)).then_some(reads), result)
    }
}
