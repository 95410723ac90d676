//! `system.local`, `system.peers` and `system.peers_v2` of the database, kept for answers to
//! drivers.

use std::net::SocketAddr;
use std::time::Instant;

use afterglow_cql::system::{Peer, Proxy, SystemTables, Table};
use uuid::Uuid;

use crate::frontend::cql::client::habits::DriverHabits;
use crate::frontend::cql::ring_view::view::{RingNode, RingView};

/// The database's own tables as they were last read.
#[derive(Clone)]
pub struct DatabaseTables {
    pub(crate) local: Table,
    pub(crate) peers: Table,
    pub(crate) peers_v2: Option<Table>,
}

impl DatabaseTables {
    /// With this instance in the place of the node: drivers are told its address and, where it has
    /// one, its id.
    pub fn shown(&self, advertised: SocketAddr, host_id: Option<Uuid>) -> SystemTables {
        let (address, port) = (advertised.ip(), advertised.port());
        self.of(&Proxy { address, port, host_id, tokens: None, rack: None }, &[])
    }

    /// With the instances of a ring in the place of the nodes. While this one owns nothing it is
    /// told without tokens, to who is connected to it.
    ///
    /// Some drivers are told more: see [`DriverHabits`]. One rack is marked with `version`, that of
    /// the map when their connection was made, for who takes new tokens only then. Who forgets
    /// nothing sees instances too that died a short while ago, as a database shows dead nodes.
    pub fn with_ring(
        &self,
        advertised: SocketAddr,
        ring: &RingView,
        habits: DriverHabits,
        version: u64,
    ) -> SystemTables {
        let me = match ring.node(ring.me) {
            Some(node) => proxy(node, habits),
            None => Proxy {
                address: advertised.ip(),
                port: advertised.port(),
                host_id: Some(ring.me),
                tokens: Some(Vec::new()),
                rack: None,
            },
        };
        let text = |column| {
            let cell = self.local_cell(column).unwrap_or_default();
            String::from_utf8_lossy(cell).into_owned()
        };
        let schema_version = self.local_cell("schema_version").map(Uuid::from_slice);
        let peer = |node| Peer {
            proxy: proxy(node, habits),
            data_center: text("data_center"),
            release_version: text("release_version"),
            schema_version: schema_version.clone().and_then(Result::ok).unwrap_or_default(),
        };
        let absent = ring.absent(Instant::now()).filter(|_| habits.forgets_nothing);
        let mut peers: Vec<_> = ring.others().chain(absent).map(peer).collect();
        let first = peers.first_mut().and_then(|peer| peer.proxy.rack.as_mut());
        if let (Some(rack), true) = (first, habits.reads_racks) {
            *rack = format!("{rack}.{version}");
        }
        self.of(&me, &peers)
    }

    /// The data centre of the node that was asked.
    pub fn data_center(&self) -> Option<String> {
        String::from_utf8(self.local_cell("data_center")?.to_vec()).ok()
    }

    fn local_cell(&self, column: &str) -> Option<&[u8]> {
        let at = self.local.columns.iter().position(|of| of.name == column)?;
        self.local.rows.first()?.get(at)?.as_deref()
    }

    fn of(&self, me: &Proxy, others: &[Peer]) -> SystemTables {
        let (local, peers) = (self.local.clone(), self.peers.clone());
        SystemTables::new(local, peers, self.peers_v2.clone(), me, others)
    }
}

fn proxy(node: &RingNode, habits: DriverHabits) -> Proxy {
    let tokens = if habits.mixes_owners() { &node.newest_first } else { &node.tokens };
    Proxy {
        address: node.address.ip(),
        port: node.address.port(),
        host_id: Some(node.host_id),
        tokens: Some(tokens.iter().map(i64::to_string).collect()),
        rack: Some(node.rack.clone()),
    }
}
