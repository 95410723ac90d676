//! The server as its test handles it: nodes, faults, counts, and a thread for each connection.

mod session;

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use afterglow_cql::frame::Version;

use self::session::Session;
use super::{
    Faults, StatementKind,
    accounts::Accounts,
    exec::{self, Description},
    identity::Identity,
    replicas::COPIES,
    statement::Statement,
    store::Store,
};

/// The running server. Dropping it closes all connections and joins its threads.
pub struct FakeBackend {
    shared: Arc<ServerShared>,
    acceptor: Option<JoinHandle<()>>,
}

struct ServerShared {
    identity: Identity,
    faults: Mutex<Faults>,
    store: Arc<Mutex<Store>>,
    accounts: Mutex<Accounts>,
    prepared: Arc<Mutex<HashMap<Vec<u8>, Arc<Prepared>>>>,
    stopping: AtomicBool,
    /// Open connections by number, to close them in the end.
    open: Mutex<HashMap<u64, TcpStream>>,
    /// The connections that want events, by number, with the version they speak.
    listeners: Mutex<HashMap<u64, Listener>>,
    /// Events that are still to be told, by the connection's number, see [`Faults::late_events`].
    untold: Mutex<HashMap<u64, Vec<u8>>>,
    connections: AtomicU64,
    statements: AtomicU64,
    reads: AtomicU64,
    holding: Mutex<Holding>,
    held: Condvar,
    watch: OnceLock<Box<exec::Watch>>,
}

/// Answers kept back.
#[derive(Default)]
struct Holding {
    kinds: Vec<StatementKind>,
    waiting: Vec<StatementKind>,
    /// Nothing at all is answered.
    frozen: bool,
}

/// Has a node stand still until it is dropped, see [`FakeBackend::freeze`].
pub struct Frozen<'a>(&'a FakeBackend);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        lock(&self.0.shared.holding).frozen = false;
        self.0.shared.held.notify_all();
    }
}

/// Keeps answers back until it is dropped, see [`FakeBackend::hold`].
pub struct Held<'a>(&'a FakeBackend, StatementKind);

impl Held<'_> {
    /// Waits until so many answers are kept back at once.
    pub fn wait_for(&self, answers: usize) {
        let shared = &self.0.shared;
        let mut holding = lock(&shared.holding);
        while holding.waiting.iter().filter(|kind| **kind == self.1).count() < answers {
            holding = shared.held.wait(holding).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.0.shared.holding).kinds.retain(|kind| *kind != self.1);
        self.0.shared.held.notify_all();
    }
}

/// Where to send events, and how they are framed there.
type Listener = (Arc<Mutex<TcpStream>>, Version);

struct Prepared {
    statement: Statement,
    keyspace: Option<String>,
    description: Description,
}

/// Locks even if another thread panicked: the fake's state stays usable for the test that will report the panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl FakeBackend {
    /// Listens on `address` (port 0: any free one) and serves.
    pub fn start(address: SocketAddr, faults: Faults) -> io::Result<Self> {
        Self::serve(address, faults, Arc::default(), Arc::default())
    }

    /// Another node of the same database, at any free port. It has faults, accounts and counts of its own, and tells its listeners
    /// of the schema changes that it is asked for itself.
    pub fn join(&self) -> io::Result<Self> {
        let shared = &self.shared;
        let address = SocketAddr::new(self.address().ip(), 0);
        Self::serve(address, Faults::default(), shared.store.clone(), shared.prepared.clone())
    }

    fn serve(
        address: SocketAddr,
        faults: Faults,
        store: Arc<Mutex<Store>>,
        prepared: Arc<Mutex<HashMap<Vec<u8>, Arc<Prepared>>>>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let identity = {
            let mut store = lock(&store);
            let number = store.nodes.len() as u8;
            let identity = Identity {
                address: listener.local_addr()?,
                cluster: "Fake Cluster".to_owned(),
                release: "5.0.5".to_owned(),
                host_id: [0xFA, 0x4E, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, number + 1],
                // Each halves what is left, as far as it goes.
                token: u64::from(number).reverse_bits() as i64,
            };
            store.nodes.push(identity.clone());
            identity
        };
        let shared = Arc::new(ServerShared {
            identity,
            faults: Mutex::new(faults),
            store,
            accounts: Mutex::default(),
            prepared,
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
            listeners: Mutex::default(),
            untold: Mutex::default(),
            connections: AtomicU64::new(0),
            statements: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            holding: Mutex::default(),
            held: Condvar::new(),
            watch: OnceLock::new(),
        });
        let acceptor = {
            let shared = shared.clone();
            thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self { shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.identity.address
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        *lock(&self.shared.faults) = faults;
    }

    /// Tells `watch` of every row that is read by its whole key from now on; once at most.
    pub fn watch(&self, watch: impl Fn(&exec::Served<'_>) + Send + Sync + 'static) {
        let _ = self.shared.watch.set(Box::new(watch));
    }

    /// Statements executed so far (not counting those of batches apart).
    pub fn statements(&self) -> u64 {
        self.shared.statements.load(Ordering::Relaxed)
    }

    /// SELECTs on tables of users executed so far.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::SeqCst)
    }

    /// From now on whoever connects must log in; adds a user, who may read nothing yet, or changes the password.
    pub fn add_user(&self, user: &str, password: &str) {
        lock(&self.shared.accounts).set(user, password);
    }

    /// Lets a user read a table (`keyspace.table`), or no longer. Everything else is open to every user.
    pub fn grant_read(&self, user: &str, table: &str, may: bool) {
        lock(&self.shared.accounts).grant(user, table, may);
    }

    /// Logins of a user so far, and how many connections it had at once at most.
    pub fn logins(&self, user: &str) -> (u64, u64) {
        lock(&self.shared.accounts).seen(user)
    }

    /// Closes every connection that there is; new ones are served.
    pub fn hang_up(&self) {
        for stream in lock(&self.shared.open).values() {
            // One that is closed already is closed.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// From now on there are [`COPIES`] of every row of users' tables: reads and writes take as many as their level says. They
    /// stand for what their keyspace's replication promises; that is the caller's to set.
    pub fn replicate(&self) {
        lock(&self.shared.store).replicas.get_or_insert_default();
    }

    /// From now on these copies answer. The others miss what is written meanwhile, also when they are back.
    pub fn set_copies(&self, up: [bool; COPIES]) {
        lock(&self.shared.store).replicas.get_or_insert_default().set_up(up);
    }

    /// The copies that answer get all that they have missed.
    pub fn deliver_hints(&self) {
        lock(&self.shared.store).replicas.get_or_insert_default().deliver();
    }

    /// From now on nothing is answered, nor anybody hung up on, as by a process that was stopped, until what this returns is dropped.
    pub fn freeze(&self) -> Frozen<'_> {
        lock(&self.shared.holding).frozen = true;
        Frozen(self)
    }

    /// From now on statements of that kind are executed but not answered, until what this returns is dropped. A connection
    /// answers one after the other, so what comes after such a statement waits too.
    pub fn hold(&self, kind: StatementKind) -> Held<'_> {
        lock(&self.shared.holding).kinds.push(kind);
        Held(self, kind)
    }
}

impl Drop for FakeBackend {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.held.notify_all();
        // Wakes the acceptor, which then sees that it is over.
        let _ = TcpStream::connect_timeout(&self.address(), Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<ServerShared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            break;
        }
        let Ok(stream) = stream else { continue };
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        if let Ok(handle) = stream.try_clone() {
            lock(&shared.open).insert(number, handle);
        }
        threads.retain(|t| !t.is_finished());
        let shared = shared.clone();
        threads.push(thread::spawn(move || {
            // A connection that breaks is the client's business.
            let _ = Session::serve(stream, number, &shared);
            lock(&shared.open).remove(&number);
        }));
    }
    for handle in lock(&shared.open).values() {
        let _ = handle.shutdown(std::net::Shutdown::Both);
    }
    for thread in threads {
        let _ = thread.join();
    }
}
