//! Who a node says it is.

use std::net::SocketAddr;

/// A node of the fake database.
#[derive(Clone, Debug)]
pub struct Identity {
    pub address: SocketAddr,
    pub cluster: String,
    pub release: String,
    pub host_id: [u8; 16],
    /// Where it is on the ring.
    pub token: i64,
}
