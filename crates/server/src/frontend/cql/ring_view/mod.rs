//! What drivers see of the ring: each instance as a node with the tokens of its shards, so that a
//! token-aware driver goes straight to the owner.
//!
//! 1. [`CqlShared::set_ring`](super::CqlShared::set_ring) takes what the map says now.
//! 2. `system.local`, `system.peers` and `system.peers_v2` show it at once.
//! 3. A second later clients that asked for events are told of nodes that came and went.
//! 4. Where tokens moved, connections that sent REGISTER are closed one by one: no event makes all
//!    drivers read the tokens again, a new connection does.
//!
//! Without a view this instance is the only node.

pub(super) mod news;
pub(super) mod shown;
pub(super) mod tell;
pub(super) mod view;
