//! Reads the database's tables about itself.

use std::rc::Rc;

use afterglow_cql::frame::{Flags, Opcode};
use uuid::Uuid;

use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::query::query;
use crate::frontend::cql::cluster::rows::Fetched;
use crate::frontend::cql::cluster::system_tables::DatabaseTables;
use crate::frontend::cql::shared::CqlShared;

/// What the node that we talk to says of itself.
pub struct ContactNode {
    /// The cluster's name.
    pub cluster: String,
    /// Its release.
    pub release: String,
    /// Its data centre.
    pub data_center: Option<String>,
    /// Version of its schema.
    pub schema_version: Option<String>,
}

/// Reads the tables and keeps them. `None` when the database does not answer as it should.
pub async fn load(front_end: &CqlShared, backend: &Rc<Backend>) -> Option<ContactNode> {
    let local = fetch(backend, "SELECT * FROM system.local WHERE key='local'").await?;
    let row = local.rows().next()?;
    let node = ContactNode {
        cluster: row.text("cluster_name").unwrap_or_default(),
        release: row.text("release_version").unwrap_or_default(),
        data_center: row.text("data_center"),
        schema_version: row
            .bytes("schema_version")
            .and_then(|id| Uuid::from_slice(id).ok())
            .map(|id| id.to_string()),
    };
    let known =
        front_end.system.read().as_ref().map(|known| (known.peers.clone(), known.peers_v2.clone()));
    let (peers, peers_v2) = match known {
        // Only their columns matter, and those stay the same.
        Some(known) => known,
        None => (
            fetch(backend, "SELECT * FROM system.peers LIMIT 1").await?.into_table(),
            fetch(backend, "SELECT * FROM system.peers_v2 LIMIT 1").await.map(Fetched::into_table),
        ),
    };
    *front_end.system.write() = Some(DatabaseTables { local: local.into_table(), peers, peers_v2 });
    Some(node)
}

async fn fetch(backend: &Rc<Backend>, text: &str) -> Option<Fetched> {
    let body = query(backend.version(), text);
    let answer = backend.call(Opcode::Query, Flags::NONE, body.into()).await.ok()?;
    Fetched::new(&answer)
}
