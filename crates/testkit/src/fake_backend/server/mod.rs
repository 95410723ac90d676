//! The server as its test handles it: nodes, faults, scripts, counts, and a thread for each
//! connection.

mod bodies;
mod hold;
mod lock;
mod ring;
mod script;
mod session;
mod shared;
mod wire;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use afterglow_cql::{frame::Version, message::Consistency, response::Event};

pub use self::hold::{Frozen, Held};
pub use self::script::{Ask, Script, TEXT, rows_body};
use self::{
    hold::Holds,
    lock::lock,
    session::Session,
    shared::{Database, ServerShared},
};
use super::{
    accounts::Accounts,
    exec::{self, Context, Reply},
    faults::{Faults, StatementKind},
    parse::parse,
    replicas::COPIES,
};

/// The running server. Dropping it closes all connections and joins its threads.
pub struct FakeBackend {
    shared: Arc<ServerShared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FakeBackend {
    /// Listens on `address` (port 0: any free one) and serves.
    pub fn start(address: SocketAddr, faults: Faults) -> io::Result<Self> {
        Self::serve(address, faults, Version::MAX, None, Database::default())
    }

    /// A database of its own at any free port, which speaks up to `highest`. It shows `script`
    /// every request, and answers those that the script does not (it returns false).
    pub fn scripted(
        highest: Version,
        script: impl Fn(&Arc<Ask>) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self::serve(
            address,
            Faults::default(),
            highest,
            Some(Box::new(script)),
            Database::default(),
        )
    }

    /// Another node of the same database, at any free port. It has faults, accounts and counts of
    /// its own, and tells its listeners of the schema changes that it is asked for itself.
    pub fn join(&self) -> io::Result<Self> {
        self.join_as(None)
    }

    /// Another node of the same database, which shows `script` every request, see
    /// [`FakeBackend::scripted`].
    pub fn join_scripted(
        &self,
        script: impl Fn(&Arc<Ask>) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        self.join_as(Some(Box::new(script)))
    }

    fn join_as(&self, script: Option<Box<Script>>) -> io::Result<Self> {
        let (address, shared) = (SocketAddr::new(self.address().ip(), 0), &self.shared);
        Self::serve(address, Faults::default(), shared.highest, script, shared.database.clone())
    }

    fn serve(
        address: SocketAddr,
        faults: Faults,
        highest: Version,
        script: Option<Box<Script>>,
        database: Database,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let joined_as = lock(&database.store).join(listener.local_addr()?);
        let shared = Arc::new(ServerShared {
            joined_as,
            highest,
            script,
            faults: Mutex::new(faults),
            database,
            accounts: Mutex::<Accounts>::default(),
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
            refused: AtomicU64::new(0),
            listeners: Mutex::default(),
            untold: Mutex::default(),
            connections: AtomicU64::new(0),
            statements: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            holds: Holds::default(),
            watch: OnceLock::new(),
            behind: AtomicI64::new(0),
        });
        let acceptor = {
            let shared = shared.clone();
            thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self { shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address()
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

    /// From now on whoever connects must log in; adds a user, who may read nothing yet, or changes
    /// the password.
    pub fn add_user(&self, user: &str, password: &str) {
        lock(&self.shared.accounts).set(user, password);
    }

    /// Lets a user read a table (`keyspace.table`), or no longer. Everything else is open to every
    /// user.
    pub fn grant_read(&self, user: &str, table: &str, may: bool) {
        lock(&self.shared.accounts).grant(user, table, may);
    }

    /// Logins of a user so far, and how many connections it had at once at most.
    pub fn logins(&self, user: &str) -> (u64, u64) {
        lock(&self.shared.accounts).seen(user)
    }

    /// Closes every connection that there is; new ones are served.
    pub fn hang_up(&self) {
        lock(&self.shared.open).hang_up();
    }

    /// Closes every connection that there is, and new ones at once; or serves new ones again.
    pub fn set_down(&self, down: bool) {
        let mut open = lock(&self.shared.open);
        open.down = down;
        open.hang_up();
    }

    /// How many connections were made so far, without those that were refused.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections there are now.
    pub fn live(&self) -> usize {
        lock(&self.shared.open).streams.len()
    }

    /// How many connections were closed at once because the node was down.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Sends an event to everybody who listens at this node.
    pub fn announce(&self, event: &Event<'_>) {
        self.shared.announce(event);
    }

    /// Runs a statement here, past connections and faults; nobody is told of a change of the
    /// schema.
    ///
    /// # Panics
    /// The statement is refused.
    pub fn run(&self, text: &str) {
        let store = &mut lock(&self.shared.database.store);
        let identity = self.shared.identity(store);
        let context = Context {
            identity: &identity,
            keyspace: None,
            values: &[],
            timestamp: None,
            consistency: Consistency::One,
            now: self.shared.now(),
            lie: false,
            watch: None,
        };
        let done = parse(text).and_then(|statement| exec::execute(store, &statement, &context));
        let reply = done.unwrap_or_else(|refusal| panic!("{text}: {}", refusal.message));
        if let Reply::SchemaChange { .. } = reply {
            lock(&self.shared.database.prepared).clear();
        }
    }

    /// Its clock is behind by so much from now on.
    pub fn set_behind(&self, behind: Duration) {
        self.shared.behind.store(behind.as_micros() as i64, Ordering::SeqCst);
    }

    /// From now on there are [`COPIES`] of every row of users' tables: reads and writes take as
    /// many as their level says. They stand for what their keyspace's replication promises; that is
    /// the caller's to set.
    pub fn replicate(&self) {
        lock(&self.shared.database.store).replicas.get_or_insert_default();
    }

    /// From now on these copies answer. The others miss what is written meanwhile, also when they
    /// are back.
    pub fn set_copies(&self, up: [bool; COPIES]) {
        lock(&self.shared.database.store).replicas.get_or_insert_default().set_up(up);
    }

    /// The copies that answer get all that they have missed.
    pub fn deliver_hints(&self) {
        lock(&self.shared.database.store).replicas.get_or_insert_default().deliver();
    }

    /// From now on nothing is answered, nor anybody hung up on, as by a process that was stopped,
    /// until what this returns is dropped.
    pub fn freeze(&self) -> Frozen<'_> {
        self.shared.holds.freeze()
    }

    /// From now on statements of that kind are executed but not answered, until what this returns
    /// is dropped. A connection answers one after the other, so what comes after such a statement
    /// waits too.
    pub fn hold(&self, kind: StatementKind) -> Held<'_> {
        self.shared.holds.hold(kind)
    }
}

impl Drop for FakeBackend {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.holds.end();
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
        let Some(number) = admit(&stream, shared) else { continue };
        threads.retain(|t| !t.is_finished());
        let shared = shared.clone();
        threads.push(thread::spawn(move || {
            // A connection that breaks is the client's business.
            let _ = Session::serve(stream, number, &shared);
            lock(&shared.open).streams.remove(&number);
        }));
    }
    lock(&shared.open).hang_up();
    for thread in threads {
        let _ = thread.join();
    }
}

/// The number of a new connection; `None` if the node is down, and it is closed.
fn admit(stream: &TcpStream, shared: &ServerShared) -> Option<u64> {
    let mut open = lock(&shared.open);
    if open.down {
        shared.refused.fetch_add(1, Ordering::SeqCst);
        return None;
    }
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    if let Ok(handle) = stream.try_clone() {
        open.streams.insert(number, handle);
    }
    Some(number)
}
