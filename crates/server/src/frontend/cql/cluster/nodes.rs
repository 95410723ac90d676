//! The database's nodes as the front end knows them: a snapshot, replaced whole when a node joins,
//! leaves or moves.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use afterglow_cql::ring::{Place, Ring};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::config::HostPort;
use crate::frontend::cql::cluster::rows::{Fetched, FetchedRow};

/// A node's address, for ever: a node that moves gets another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(usize);

/// Addresses by their numbers. Grows by the addresses that were ever seen, which are few.
#[derive(Default)]
pub struct Addresses {
    all: RwLock<Vec<Arc<HostPort>>>,
    ids: Mutex<HashMap<HostPort, NodeId>>,
}

impl Addresses {
    /// The number of an address.
    pub fn id(&self, address: &HostPort) -> NodeId {
        let mut ids = self.ids.lock();
        if let Some(id) = ids.get(address) {
            return *id;
        }
        let mut all = self.all.write();
        all.push(Arc::new(address.clone()));
        let id = NodeId(all.len() - 1);
        ids.insert(address.clone(), id);
        id
    }

    /// The address of a number.
    pub fn get(&self, id: NodeId) -> Arc<HostPort> {
        self.all.read()[id.0].clone()
    }
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Where clients reach it.
    pub id: NodeId,
    /// Who it is, wherever it is.
    pub host_id: Uuid,
    /// Where it is on the ring.
    pub place: Place,
}

/// One snapshot.
#[derive(Debug, Default)]
pub struct Topology {
    /// Grows with every snapshot.
    pub generation: u64,
    /// The nodes; the one that the control connection talks to is the first. Empty until it has
    /// talked.
    pub nodes: Vec<Node>,
    /// Their ring, by index in `nodes`.
    pub ring: Ring,
    /// They are in more than one data centre.
    pub spread: bool,
    /// Contact points, for when no node is known or can be reached.
    pub contacts: Vec<NodeId>,
}

impl Topology {
    /// Nothing but contact points.
    pub fn of_contacts(contacts: Vec<NodeId>) -> Self {
        Self { contacts, ..Self::default() }
    }

    /// The node that the control connection talks to, and the contact points while there is none.
    pub fn first(&self) -> Option<NodeId> {
        self.nodes.first().map(|node| node.id).or(self.contacts.first().copied())
    }

    /// Whether requests are sent there: once nodes are known, contact points are only where to ask
    /// for them.
    pub fn has(&self, id: NodeId) -> bool {
        self.nodes.iter().any(|node| node.id == id)
            || self.nodes.is_empty() && self.contacts.contains(&id)
    }

    /// Whether a node is in our data centre, that of the first. What others answer at LOCAL_QUORUM
    /// or acknowledge is of other replicas.
    pub fn is_near(&self, id: NodeId) -> bool {
        let Some(first) = self.nodes.first() else { return true };
        let near = |node: &Node| node.id == id && node.place.data_center == first.place.data_center;
        !self.spread || self.nodes.iter().any(near)
    }

    /// The data centre in which we are, once a node is known.
    pub fn data_center(&self) -> Option<&str> {
        self.nodes.first().map(|node| node.place.data_center.as_str())
    }

    /// Where a connection of our own can be made: contact points first, then what was learned.
    pub fn targets(&self) -> Vec<NodeId> {
        let mut all = self.contacts.clone();
        all.extend(self.nodes.iter().map(|node| node.id).filter(|id| !self.contacts.contains(id)));
        all
    }

    /// As [`Topology::targets`], of one data centre alone.
    pub fn targets_in(&self, data_center: &str) -> Vec<NodeId> {
        let mut all = self.targets();
        if self.spread {
            let is_in = |node: &Node| node.place.data_center == data_center;
            all.retain(|id| self.nodes.iter().any(|node| node.id == *id && is_in(node)));
        }
        all
    }

    /// As [`Topology::targets`], without nodes that are known to be in another data centre than
    /// ours.
    pub fn targets_nearby(&self) -> Vec<NodeId> {
        let Some(here) = self.data_center() else { return self.targets() };
        let is_far = |node: &Node| node.place.data_center != here;
        let mut all = self.targets();
        all.retain(|id| !self.nodes.iter().any(|node| node.id == *id && is_far(node)));
        all
    }
}

/// The newest snapshot, for all reactors.
pub struct TopologyStore {
    current: RwLock<Arc<Topology>>,
    generation: AtomicU64,
}

impl TopologyStore {
    /// Begins with the contact points alone.
    pub fn new(contacts: Vec<NodeId>) -> Self {
        Self {
            current: RwLock::new(Arc::new(Topology::of_contacts(contacts))),
            generation: AtomicU64::new(0),
        }
    }

    /// The newest snapshot.
    pub fn current(&self) -> Arc<Topology> {
        self.current.read().clone()
    }

    /// Generation of the newest snapshot.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Makes these nodes the newest snapshot; false when they are what it has already.
    pub fn publish(&self, nodes: Vec<Node>) -> bool {
        let mut current = self.current.write();
        if current.nodes == nodes {
            return false;
        }
        let ring = Ring::new(nodes.iter().map(|node| node.place.clone()).collect());
        let generation = current.generation + 1;
        let contacts = current.contacts.clone();
        let spread =
            nodes.windows(2).any(|pair| pair[0].place.data_center != pair[1].place.data_center);
        *current = Arc::new(Topology { generation, nodes, ring, spread, contacts });
        self.generation.store(generation, Ordering::Release);
        true
    }
}

/// The queries whose answers tell the nodes: of the node that is asked, of the others since
/// Cassandra 4.0, and before.
pub const LOCAL: &str =
    "SELECT host_id, data_center, rack, tokens FROM system.local WHERE key='local'";
/// See [`LOCAL`].
pub const PEERS_V2: &str = "SELECT peer, native_address, native_port, host_id, data_center, rack, tokens FROM system.peers_v2";
/// See [`LOCAL`].
pub const PEERS: &str =
    "SELECT peer, rpc_address, host_id, data_center, rack, tokens FROM system.peers";

/// The nodes that these answers tell of; `asked` is the address at which the first was asked. A row
/// that lacks something is of a node that is coming or going, and left out.
pub fn read(
    local: &Fetched,
    peers: &Fetched,
    asked: &HostPort,
    addresses: &Addresses,
) -> Vec<Node> {
    let own = local.rows().filter_map(|row| node(&row, addresses.id(asked)));
    let others = peers.rows().filter_map(|row| {
        let told = row.bytes("native_address").or(row.bytes("rpc_address")).and_then(ip);
        // A node that listens on every address is reached at the one that other nodes use.
        let told =
            told.filter(|ip| !ip.is_unspecified()).or_else(|| row.bytes("peer").and_then(ip))?;
        let port =
            row.int("native_port").and_then(|port| u16::try_from(port).ok()).unwrap_or(asked.port);
        node(&row, addresses.id(&HostPort { host: told.to_string(), port }))
    });
    let mut nodes: Vec<Node> = own.chain(others).collect();
    // While a node moves, both its addresses may be told.
    let mut seen = std::collections::HashSet::new();
    nodes.retain(|node| seen.insert(node.host_id));
    nodes
}

fn node(row: &FetchedRow<'_>, id: NodeId) -> Option<Node> {
    let host_id = row.bytes("host_id").and_then(|id| Uuid::from_slice(id).ok())?;
    let tokens =
        crate::frontend::cql::cluster::rows::text_set(row.bytes("tokens").unwrap_or_default());
    let tokens: Vec<i64> = tokens.iter().filter_map(|token| token.parse().ok()).collect();
    let place = Place { data_center: row.text("data_center")?, rack: row.text("rack")?, tokens };
    Some(Node { id, host_id, place })
}

/// An inet value.
pub fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_set(items: &[&str]) -> Vec<u8> {
        let mut out = (items.len() as i32).to_be_bytes().to_vec();
        for item in items {
            out.extend((item.len() as i32).to_be_bytes());
            out.extend(item.as_bytes());
        }
        out
    }

    #[test]
    fn our_data_center_is_that_of_the_node_that_was_asked() {
        let node = |number: usize, data_center: &str| Node {
            id: NodeId(number),
            host_id: Uuid::from_u128(number as u128),
            place: Place {
                data_center: data_center.into(),
                rack: "r".into(),
                tokens: vec![number as i64],
            },
        };
        let near = |nodes: Vec<Node>| {
            let store = TopologyStore::new(vec![NodeId(9)]);
            store.publish(nodes);
            [1, 2, 3, 9].map(|id| store.current().is_near(NodeId(id)))
        };
        assert_eq!(near(Vec::new()), [true; 4], "nothing is known yet");
        assert_eq!(near(vec![node(1, "a"), node(2, "a")]), [true; 4], "there is but one");
        let both = vec![node(1, "a"), node(2, "b"), node(3, "a")];
        assert_eq!(near(both), [true, false, true, false]);
    }

    #[test]
    fn nodes_are_read_from_what_one_of_them_says() {
        let tokens = |text: &str| Some(text_set(&[text]));
        let host = |n: u8| Some(vec![n; 16]);
        let (dc, rack) = (Some(b"dc".to_vec()), Some(b"r".to_vec()));
        let columns = ["host_id", "data_center", "rack", "tokens"];
        let local =
            Fetched::of(&columns, vec![vec![host(1), dc.clone(), rack.clone(), tokens("-5")]]);
        let columns =
            ["peer", "native_address", "native_port", "host_id", "data_center", "rack", "tokens"];
        let ip = |last: u8| Some(vec![10, 0, 0, last]);
        let port = |port: i32| Some(port.to_be_bytes().to_vec());
        let row = |peer, native, port, host, tokens| {
            vec![peer, native, port, host, dc.clone(), rack.clone(), tokens]
        };
        let peers = Fetched::of(
            &columns,
            vec![
                row(ip(2), ip(12), port(9142), host(2), tokens("7")),
                row(ip(3), Some(vec![0; 4]), port(9042), host(3), None),
                row(ip(4), ip(4), port(9042), None, tokens("9")),
                // The second again, at its old address.
                row(ip(5), ip(5), port(9042), host(2), tokens("7")),
            ],
        );
        let addresses = Addresses::default();
        let asked: HostPort = "db.example:19042".parse().unwrap();
        let nodes = read(&local, &peers, &asked, &addresses);
        let shown: Vec<_> = nodes
            .iter()
            .map(|node| {
                (
                    addresses.get(node.id).to_string(),
                    node.host_id.as_bytes()[0],
                    node.place.tokens.clone(),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("db.example:19042".to_owned(), 1, vec![-5]),
                ("10.0.0.12:9142".to_owned(), 2, vec![7]),
                ("10.0.0.3:9042".to_owned(), 3, vec![]),
            ]
        );
        let store = TopologyStore::new(vec![addresses.id(&asked)]);
        assert!(store.publish(nodes.clone()) && !store.publish(nodes));
        assert_eq!(store.generation(), 1);
    }
}
