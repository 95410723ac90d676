//! Who a node says it is.

use std::net::SocketAddr;

use afterglow_cql::response::CqlType;

/// A node of the fake database.
#[derive(Clone, Debug)]
pub struct Identity {
    pub address: SocketAddr,
    pub cluster: String,
    pub release: String,
    pub data_center: String,
    pub host_id: [u8; 16],
    /// Where it is on the ring.
    pub token: i64,
    /// The version of the schema that it shows, where that is not the true one.
    pub shows_schema: Option<u64>,
    /// A table (`keyspace`, `name`) that it has not heard of, though it coordinates requests to it.
    pub lacks: Option<(String, String)>,
    /// A column that has this type as far as the node has heard.
    pub sees: Option<SeenType>,
}

/// The type of a column as one node has it.
#[derive(Clone, Debug)]
pub struct SeenType {
    pub keyspace: String,
    pub table: String,
    pub column: String,
    /// As the schema's own tables write it.
    pub type_name: String,
    pub cql: CqlType,
}

impl SeenType {
    /// Whether it is the type of a column of this table.
    pub fn is_of(&self, keyspace: &str, table: &str) -> bool {
        (self.keyspace.as_str(), self.table.as_str()) == (keyspace, table)
    }
}
