//! `system.local`, `system.peers` and `system.peers_v2` of the database, kept for answers to
//! drivers.

use std::net::SocketAddr;

use afterglow_cql::system::{Proxy, SystemTables, Table};
use uuid::Uuid;

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
        let proxy =
            Proxy { address: advertised.ip(), port: advertised.port(), host_id, tokens: None };
        SystemTables::new(
            self.local.clone(),
            self.peers.clone(),
            self.peers_v2.clone(),
            &proxy,
            &[],
        )
    }
}
