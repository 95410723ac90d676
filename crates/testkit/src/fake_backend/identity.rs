//! Who a node says it is.

use std::net::SocketAddr;

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
}
