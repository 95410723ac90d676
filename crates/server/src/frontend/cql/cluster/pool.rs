//! Connections to the database that all clients of a reactor share: one for each node, user,
//! protocol version and keyspace.
//!
//! A caller that is given a connection holds a [`KeptBackend`] of it until it has sent its
//! requests. A connection that must give way to another ends only when nobody holds one and every
//! request is answered.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::frame::Version;
use foldhash::HashMap;
use futures_channel::oneshot;

use crate::frontend::cql::cluster::backend::{Backend, Dial, KeptBackend};
use crate::frontend::cql::cluster::error::{ConnectError, HESITATION};
use crate::frontend::cql::cluster::login::{Login, User};
use crate::frontend::cql::cluster::nodes::{Addresses, NodeId};
use crate::metrics::BackendMetrics;
use crate::tls::ClientTls;

/// Wait after a first failure to connect; doubled with every further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// Longest wait between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Connections to one node for one user over all reactors. There are as many only where clients are
/// in many keyspaces: in one, each reactor has a single connection for each protocol version.
const PER_NODE_AND_USER: usize = 64;
/// Connections to one node for one user that a reactor may have, however many reactors there are.
const PER_REACTOR: usize = 8;
/// A connection that was made for one keyspace serves at least this long before it gives way to
/// another. Clients in more keyspaces than there may be connections wait for their turn. So no
/// connection is made for each request.
const TENURE: Duration = Duration::from_millis(200);
/// Failures that are remembered: beyond that all are forgotten. Clients make up names of keyspaces,
/// and each has its own.
const MAX_DOWN: usize = 256;
/// For so long, a node that could not be reached is the last choice for a login. Where packets are
/// dropped, each attempt takes its full timeout.
const AVOIDED: Duration = Duration::from_secs(10);

/// Whose connection, and how it speaks.
#[derive(Clone)]
pub struct Who {
    /// The user; none where the database does not ask.
    pub user: Option<Arc<User>>,
    /// The protocol version.
    pub version: Version,
    /// The keyspace it is in.
    pub keyspace: Option<Rc<str>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    node: NodeId,
    user: u32,
    version: Version,
    keyspace: Option<Rc<str>>,
}

impl PoolKey {
    fn new(node: NodeId, who: &Who) -> Self {
        let user = who.user.as_ref().map_or(0, |user| user.id);
        Self { node, user, version: who.version, keyspace: who.keyspace.clone() }
    }

    fn shares_with(&self, other: &PoolKey) -> bool {
        self.node == other.node && self.user == other.user
    }
}

type Connected = Result<KeptBackend, ConnectError>;
type Dialed = Result<Rc<Backend>, ConnectError>;

/// The connections of one reactor, made when they are first needed and again after they were lost.
pub struct Pool {
    addresses: Arc<Addresses>,
    tls: Option<Arc<ClientTls>>,
    metrics: Arc<BackendMetrics>,
    entries: RefCell<HashMap<PoolKey, PoolEntry>>,
    /// When nodes could not be reached, and have not been since.
    unreached: RefCell<HashMap<NodeId, Instant>>,
    /// Nodes that went while a connection to them was being made: it is let go of once it is there.
    gone: RefCell<HashSet<NodeId>>,
    /// Places taken by connections that are being made.
    dialing: RefCell<Vec<PoolKey>>,
    /// Connections that finish what is under way, so that others can take their place.
    retiring: RefCell<Vec<(PoolKey, Rc<Backend>)>>,
    /// How many connections a node may have for one user from this reactor.
    share: usize,
    /// Who waits for a place.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

#[derive(Default)]
enum PoolEntry {
    #[default]
    Unused,
    Up(Rc<Backend>),
    /// Who waits for it, and how long to wait should it fail.
    Connecting(Vec<oneshot::Sender<Connected>>, Duration),
    Down {
        until: Instant,
        next: Duration,
        error: ConnectError,
    },
}

impl Pool {
    /// The pool of one of so many reactors.
    pub fn new(
        addresses: Arc<Addresses>,
        tls: Option<Arc<ClientTls>>,
        metrics: Arc<BackendMetrics>,
        reactors: usize,
    ) -> Self {
        Self {
            addresses,
            tls,
            metrics,
            entries: RefCell::default(),
            unreached: RefCell::default(),
            gone: RefCell::default(),
            dialing: RefCell::default(),
            retiring: RefCell::default(),
            share: (PER_NODE_AND_USER / reactors).max(PER_REACTOR),
            waiting: RefCell::default(),
        }
    }

    /// The connection, if it is there now.
    pub fn ready(&self, node: NodeId, who: &Who) -> Option<KeptBackend> {
        match self.entries.borrow().get(&PoolKey::new(node, who)) {
            Some(PoolEntry::Up(backend)) if !backend.is_closed() => Some(backend.keep()),
            _ => None,
        }
    }

    /// Begins to make the connection if there is none and none is being made, unless that failed a
    /// moment ago.
    pub fn prepare(self: &Rc<Self>, node: NodeId, who: &Who) {
        // Whether it comes about is for the next request to see.
        let _ = self.begin(node, who);
    }

    /// The connection, made if need be. Fails at once for a while after an attempt has failed.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub async fn acquire(self: &Rc<Self>, node: NodeId, who: &Who) -> Connected {
        match self.begin(node, who)? {
            Begun::Ready(backend) => Ok(backend),
            Begun::Waiting(waiting) => waiting.await.unwrap_or_else(|_| Err(given_up())),
        }
    }

    /// As [`Pool::acquire`], but without a keyspace where the node refuses that. It was dropped
    /// under the session. Names that say their keyspace still mean what they did, and the database
    /// refuses others.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub async fn acquire_in(self: &Rc<Self>, node: NodeId, who: &Who) -> Connected {
        match self.acquire(node, who).await {
            Err(ConnectError::Refused { .. }) if who.keyspace.is_some() => {
                self.acquire(node, &Who { keyspace: None, ..who.clone() }).await
            }
            made => made,
        }
    }

    fn begin(self: &Rc<Self>, node: NodeId, who: &Who) -> Result<Begun, ConnectError> {
        let key = PoolKey::new(node, who);
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(key.clone()).or_default();
        let (answer, waiting) = oneshot::channel();
        let backoff = match entry {
            PoolEntry::Up(backend) if !backend.is_closed() => {
                return Ok(Begun::Ready(backend.keep()));
            }
            PoolEntry::Down { until, error, .. } if Instant::now() < *until => {
                return Err(error.clone());
            }
            PoolEntry::Connecting(waiters, _) => {
                waiters.push(answer);
                return Ok(Begun::Waiting(waiting));
            }
            PoolEntry::Down { next, .. } => *next,
            PoolEntry::Unused | PoolEntry::Up(_) => FIRST_BACKOFF,
        };
        *entry = PoolEntry::Connecting(vec![answer], backoff);
        let (pool, login) = (self.clone(), who.user.as_ref().map(|user| user.login()));
        compio::runtime::spawn(async move { pool.connect(key, login).await }).detach();
        Ok(Begun::Waiting(waiting))
    }

    /// Has the database check credentials, by making a connection with them. The caller gives it to
    /// [`Pool::adopt`] if they are good. `known`: the user that they were good for before, whose
    /// connections stay within their number. Others take nobody's place: who guesses a password
    /// must not end its owner's connections.
    ///
    /// # Errors
    /// [`ConnectError::Refused`] has the database's words.
    pub async fn try_login(
        &self,
        node: NodeId,
        login: Login,
        known: Option<u32>,
        version: Version,
    ) -> Dialed {
        let key = known.map(|user| PoolKey { node, user, version, keyspace: None });
        if let Some(key) = &key {
            self.make_room(key).await;
        }
        let made = self.dial(node, version, None, Some(login)).await;
        if let Some(key) = &key {
            self.dialed(key);
        }
        made
    }

    /// Keeps a connection that a login has made, if its place is free.
    pub fn adopt(self: &Rc<Self>, node: NodeId, who: &Who, backend: Rc<Backend>) {
        let key = PoolKey::new(node, who);
        let full = self.taken(&key) >= self.share;
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(key).or_default();
        let free = match entry {
            PoolEntry::Up(there) => there.is_closed(),
            PoolEntry::Connecting(..) => false,
            PoolEntry::Unused | PoolEntry::Down { .. } => true,
        };
        if free && !full {
            self.watch(&backend);
            *entry = PoolEntry::Up(backend);
        } else {
            backend.close();
        }
    }

    /// Closes all connections.
    pub fn close(&self) {
        for (_, entry) in self.entries.borrow_mut().drain() {
            if let PoolEntry::Up(backend) = entry {
                backend.close();
            }
        }
        self.retiring.borrow_mut().drain(..).for_each(|(_, backend)| backend.close());
        self.place_is_free();
    }

    /// Releases nodes that are no longer wanted, once their requests in flight have ended. Forgets
    /// failures, so that a node that is back is tried at once.
    pub fn keep(&self, wanted: impl Fn(NodeId) -> bool) {
        self.gone.borrow_mut().retain(|node| !wanted(*node));
        self.unreached.borrow_mut().clear();
        self.retain(|key, entry| match entry {
            PoolEntry::Up(_) => wanted(key.node),
            PoolEntry::Connecting(..) => {
                if !wanted(key.node) {
                    self.gone.borrow_mut().insert(key.node);
                }
                true
            }
            PoolEntry::Down { .. } => false,
            PoolEntry::Unused => true,
        });
    }

    /// The users that have connections.
    pub fn users(&self) -> HashSet<u32> {
        self.entries.borrow().keys().map(|key| key.user).filter(|user| *user > 0).collect()
    }

    /// Ends the connections of these users, once their requests in flight have ended. One that is
    /// being made stays.
    pub fn end_users(&self, over: &HashSet<u32>) {
        let is_being_made = |entry: &PoolEntry| matches!(entry, PoolEntry::Connecting(..));
        self.retain(|key, entry| !over.contains(&key.user) || is_being_made(entry));
    }

    /// Forgets what does not stay. A connection among that ends once its requests in flight have.
    fn retain(&self, stays: impl Fn(&PoolKey, &PoolEntry) -> bool) {
        let mut left = Vec::new();
        self.entries.borrow_mut().retain(|key, entry| {
            let stays = stays(key, entry);
            if !stays && let PoolEntry::Up(backend) = entry {
                left.push((key.clone(), backend.clone()));
            }
            stays
        });
        left.into_iter().for_each(|(key, backend)| self.retire(key, backend));
    }

    fn retire(&self, key: PoolKey, backend: Rc<Backend>) {
        backend.retire();
        let mut retiring = self.retiring.borrow_mut();
        retiring.retain(|(_, backend)| !backend.is_closed());
        retiring.push((key, backend));
    }

    /// Places that connections of the same node and user take, those being made included.
    fn taken(&self, key: &PoolKey) -> usize {
        let entries = self.entries.borrow();
        let up =
            |entry: &PoolEntry| matches!(entry, PoolEntry::Up(backend) if !backend.is_closed());
        let open =
            entries.iter().filter(|(other, entry)| other.shares_with(key) && up(entry)).count();
        let dialing = self.dialing.borrow().iter().filter(|other| other.shares_with(key)).count();
        open + dialing + self.leaving(key)
    }

    fn leaving(&self, key: &PoolKey) -> usize {
        let retiring = self.retiring.borrow();
        retiring
            .iter()
            .filter(|(other, backend)| other.shares_with(key) && !backend.is_closed())
            .count()
    }

    /// Takes a place for a connection that is about to be made, until [`Pool::dialed`]. Waits for a
    /// connection if need be. To make space, it ends one that nobody or few use and that has served
    /// for its time. It takes no more requests then, so it ends.
    async fn make_room(&self, key: &PoolKey) {
        while self.taken(key) >= self.share {
            let (free, wait) = oneshot::channel();
            self.waiting.borrow_mut().push(free);
            let mut timeout = None;
            if self.leaving(key) == 0
                && let Some((victim, backend)) = self.victim(key)
            {
                timeout = TENURE.checked_sub(backend.age()).filter(|left| !left.is_zero());
                if timeout.is_none() {
                    self.entries.borrow_mut().remove(&victim);
                    self.retire(victim, backend);
                }
            }
            if self.taken(key) < self.share {
                break;
            }
            // Dropped without a word when the pool is gone, and then all is over anyway.
            match timeout {
                Some(timeout) => drop(compio::time::timeout(timeout, wait).await),
                None => drop(wait.await),
            }
        }
        self.dialing.borrow_mut().push(key.clone());
    }

    fn dialed(&self, key: &PoolKey) {
        let mut dialing = self.dialing.borrow_mut();
        if let Some(at) = dialing.iter().position(|other| other == key) {
            dialing.swap_remove(at);
        }
    }

    fn victim(&self, key: &PoolKey) -> Option<(PoolKey, Rc<Backend>)> {
        let entries = self.entries.borrow();
        let candidates = entries.iter().filter_map(|(other, entry)| match entry {
            PoolEntry::Up(backend) if other != key && other.shares_with(key) => {
                Some((other, backend))
            }
            _ => None,
        });
        // Of those that have served for their time the one that fewest use; else the oldest, which
        // is the next to have.
        let least = candidates.min_by_key(|(_, backend)| {
            let left = TENURE.saturating_sub(backend.age());
            (left, backend.in_use(), backend.last_heard())
        });
        least.map(|(key, backend)| (key.clone(), backend.clone()))
    }

    /// A connection was made, or has ended: whoever waits for a place may look again.
    pub fn place_is_free(&self) {
        for waiting in self.waiting.borrow_mut().drain(..) {
            let _ = waiting.send(());
        }
    }

    async fn dial(
        &self,
        node: NodeId,
        version: Version,
        keyspace: Option<Rc<str>>,
        login: Option<Login>,
    ) -> Dialed {
        let (tls, metrics) = (self.tls.clone(), self.metrics.clone());
        let (events, shared) = (None, true);
        let dial = Dial { version, keyspace, login, events, shared, tls, metrics };
        self.connect_to(node, dial).await
    }

    /// A connection for one client alone, logged in; it is not kept here.
    ///
    /// # Errors
    /// [`ConnectError::Refused`] has the database's words.
    pub async fn log_in_alone(&self, node: NodeId, login: Login, version: Version) -> Dialed {
        let (tls, metrics) = (self.tls.clone(), self.metrics.clone());
        let (keyspace, login, events, shared) = (None, Some(login), None, false);
        let dial = Dial { version, keyspace, login, events, shared, tls, metrics };
        self.connect_to(node, dial).await
    }

    async fn connect_to(&self, node: NodeId, dial: Dial) -> Dialed {
        let made = Backend::connect(&self.addresses.get(node), dial).await;
        match &made {
            Err(error) if error.leaves_others() => {
                self.unreached.borrow_mut().insert(node, Instant::now());
            }
            _ => drop(self.unreached.borrow_mut().remove(&node)),
        }
        made
    }

    /// Whether the last attempt to reach this node failed, a moment ago.
    pub fn is_avoided(&self, node: NodeId) -> bool {
        self.unreached.borrow().get(&node).is_some_and(|since| since.elapsed() < AVOIDED)
    }

    /// Whether a node is worth asking before others, by what its connections and attempts have
    /// shown. Nodes are asked in this order; equals keep theirs.
    pub fn doubt(&self, node: NodeId) -> Doubt {
        let entries = self.entries.borrow();
        let silent = |(key, entry): (&PoolKey, &PoolEntry)| match entry {
            PoolEntry::Up(backend) => key.node == node && backend.is_silent(),
            _ => false,
        };
        match () {
            () if self.is_avoided(node) => Doubt::Unreached,
            () if entries.iter().any(silent) => Doubt::Silent,
            () => Doubt::None,
        }
    }

    /// Whether this connection to a node is silent, or has not been heard for a while and another
    /// one to the same node is silent: that is of the node, and not only of the connection.
    pub fn is_silent(&self, node: NodeId, backend: &Backend) -> bool {
        // Every request comes here: one look at the clock.
        let is_idle = backend.last_heard().elapsed() >= HESITATION;
        is_idle && (backend.in_flight() > 0 || self.doubt(node) == Doubt::Silent)
    }

    /// Whether a node has said within this time that it has too much to do.
    pub fn was_overloaded(&self, within: Duration) -> bool {
        let entries = self.entries.borrow();
        let mut up = entries.values().filter_map(|entry| match entry {
            PoolEntry::Up(backend) => Some(backend),
            _ => None,
        });
        up.any(|backend| backend.was_overloaded(within))
    }

    async fn connect(self: &Rc<Self>, key: PoolKey, login: Option<Login>) {
        self.make_room(&key).await;
        let result = self.dial(key.node, key.version, key.keyspace.clone(), login).await;
        self.dialed(&key);
        result.iter().for_each(|backend| self.watch(backend));
        let mut entries = self.entries.borrow_mut();
        let Some(PoolEntry::Connecting(waiters, backoff)) = entries.remove(&key) else {
            // Closed meanwhile.
            result.iter().for_each(|backend| backend.close());
            return;
        };
        let mut left = None;
        match &result {
            // The node went meanwhile: who waits is answered, and nobody else asks it.
            Ok(backend) if self.gone.borrow().contains(&key.node) => {
                left = Some((key, backend.clone()))
            }
            Ok(backend) => drop(entries.insert(key, PoolEntry::Up(backend.clone()))),
            // A keyspace that does not exist may exist in a moment, and made-up names must not fill
            // the table.
            Err(ConnectError::Refused { .. }) => {}
            Err(error) => {
                let until = Instant::now() + backoff;
                let next = (backoff * 2).min(MAX_BACKOFF);
                note_down(&mut entries, key, PoolEntry::Down { until, next, error: error.clone() });
            }
        }
        drop(entries);
        for waiter in waiters {
            // Who gave up waiting does not want it.
            let kept = result.as_ref().map(Backend::keep).map_err(Clone::clone);
            let _ = waiter.send(kept);
        }
        left.into_iter().for_each(|(key, backend)| self.retire(key, backend));
        self.place_is_free();
    }

    /// Tells those who wait for a place when this connection ends.
    fn watch(self: &Rc<Self>, backend: &Backend) {
        let pool = Rc::downgrade(self);
        backend.on_end(move || {
            if let Some(pool) = pool.upgrade() {
                pool.place_is_free();
            }
        });
    }
}

/// Why a node is asked after others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// It is not.
    None,
    /// It owes answers and is not heard.
    Silent,
    /// It could not be connected to a moment ago.
    Unreached,
}

enum Begun {
    Ready(KeptBackend),
    Waiting(oneshot::Receiver<Connected>),
}

fn given_up() -> ConnectError {
    ConnectError::Unreachable { address: "-".into(), reason: "the attempt was given up".into() }
}

fn note_down(entries: &mut HashMap<PoolKey, PoolEntry>, key: PoolKey, down: PoolEntry) {
    let is_down = |entry: &PoolEntry| matches!(entry, PoolEntry::Down { .. });
    if entries.values().filter(|entry| is_down(entry)).count() >= MAX_DOWN {
        entries.retain(|_, entry| !is_down(entry));
    }
    entries.insert(key, down);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_made_up_keyspaces_do_not_fill_the_memory() {
        let addresses = Addresses::default();
        let node = addresses.id(&crate::config::HostPort { host: "127.0.0.1".into(), port: 1 });
        let mut entries = HashMap::default();
        let key = |n: usize| {
            let who =
                Who { user: None, version: Version::V4, keyspace: Some(n.to_string().into()) };
            PoolKey::new(node, &who)
        };
        let mut other = key(0);
        other.keyspace = None;
        entries.insert(other.clone(), PoolEntry::Connecting(Vec::new(), FIRST_BACKOFF));
        for n in 0..10 * MAX_DOWN {
            let (until, next) = (Instant::now(), MAX_BACKOFF);
            note_down(&mut entries, key(n), PoolEntry::Down { until, next, error: given_up() });
            assert!(entries.contains_key(&key(n)) && entries.len() <= MAX_DOWN + 1);
        }
        assert!(matches!(entries[&other], PoolEntry::Connecting(..)), "who waits is not forgotten");
    }
}
