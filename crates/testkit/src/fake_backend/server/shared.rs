//! What the connections of a node share.

use std::{
    collections::HashMap,
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use afterglow_cql::{
    frame::{Header, Opcode, Version},
    response::Event,
};

use super::{hold::Holds, lock::lock, script::Script, wire::Wire};
use crate::fake_backend::{
    accounts::Accounts,
    exec::{Description, Watch, micros_now},
    faults::Faults,
    identity::Identity,
    statement::Statement,
    store::Store,
};

pub struct Prepared {
    pub statement: Statement,
    pub keyspace: Option<String>,
    pub description: Description,
}

/// Where to send events, and the version that is spoken there.
pub type Listener = (Arc<Wire>, Version);

/// Events with their bodies.
pub type Events = Vec<(Header, Vec<u8>)>;

/// What nodes have prepared, by the node's address and the statement's id.
pub type PreparedByNode = HashMap<(SocketAddr, Vec<u8>), Arc<Prepared>>;

/// What all nodes of a database share.
#[derive(Clone, Default)]
pub struct Database {
    pub store: Arc<Mutex<Store>>,
    pub prepared: Arc<Mutex<PreparedByNode>>,
}

pub struct ServerShared {
    /// Who it was when it joined, and is still once it has left.
    pub joined_as: Identity,
    pub highest: Version,
    pub script: Option<Box<Script>>,
    pub faults: Mutex<Faults>,
    pub database: Database,
    pub accounts: Mutex<Accounts>,
    pub stopping: AtomicBool,
    pub open: Mutex<Open>,
    pub refused: AtomicU64,
    /// The connections that want events, by number.
    pub listeners: Mutex<HashMap<u64, Listener>>,
    /// Events that are still to be told, by the connection's number, see [`Faults::late_events`].
    pub untold: Mutex<HashMap<u64, Events>>,
    pub connections: AtomicU64,
    pub statements: AtomicU64,
    pub reads: AtomicU64,
    pub holds: Holds,
    pub watch: OnceLock<Box<Watch>>,
    /// Microseconds that its clock is behind.
    pub behind: AtomicI64,
}

/// Open connections.
#[derive(Default)]
pub struct Open {
    /// By number.
    pub streams: HashMap<u64, TcpStream>,
    /// No more are taken.
    pub down: bool,
}

impl Open {
    /// Closes them all.
    pub fn hang_up(&self) {
        for stream in self.streams.values() {
            // One that is closed already is closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl ServerShared {
    /// Microseconds since 1970, by its clock.
    pub fn now(&self) -> i64 {
        micros_now() - self.behind.load(Ordering::SeqCst)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.joined_as.address
    }

    /// Who it is now.
    pub fn identity(&self, store: &Store) -> Identity {
        store
            .nodes
            .iter()
            .find(|node| node.address == self.address())
            .unwrap_or(&self.joined_as)
            .clone()
    }

    /// What was prepared here under this id.
    pub fn prepared(&self, id: &[u8]) -> Option<Arc<Prepared>> {
        lock(&self.database.prepared).get(&(self.address(), id.to_vec())).cloned()
    }

    /// Sends an event to everybody who listens at this node.
    pub fn announce(&self, event: &Event<'_>) {
        let late = matches!(event, Event::Schema(_)) && lock(&self.faults).late_events;
        let listeners: Vec<_> =
            lock(&self.listeners).iter().map(|(number, to)| (*number, to.clone())).collect();
        let mut body = Vec::new();
        event.encode(&mut body);
        for (number, (wire, version)) in listeners {
            let header = Header::new(version, -1, Opcode::Event);
            if late {
                lock(&self.untold).entry(number).or_default().push((header, body.clone()));
                continue;
            }
            // A dead one is found out by its own thread.
            let _ = wire.send(&header, &body);
        }
    }
}
