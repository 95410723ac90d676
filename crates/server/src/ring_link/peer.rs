//! What is known of a peer: counted for as long as it is wanted or has a link.

use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use afterglow_ring::MemberId;
use parking_lot::Mutex;

use crate::metrics::Counter;

/// A peer as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerState {
    /// The member.
    pub id: MemberId,
    /// Where it is dialled; for one that only dials us, where it comes from.
    pub address: String,
    /// Open links.
    pub links: usize,
    /// Since when the newest is up.
    pub up_since: Option<SystemTime>,
    /// The version of the protocol that it speaks.
    pub version: Option<u16>,
    /// Why the last link failed or ended.
    pub last_error: Option<String>,
    /// Messages that came.
    pub messages_in: u64,
    /// Messages that were sent.
    pub messages_out: u64,
    /// Bytes that came, as on the wire.
    pub bytes_in: u64,
    /// Bytes that were sent, as on the wire.
    pub bytes_out: u64,
    /// Messages that were not taken: too much waited, or no credit was left.
    pub refused: u64,
}

/// Where a peer is counted.
#[derive(Debug, Default)]
pub struct PeerRecord {
    /// Where it is.
    pub address: Mutex<String>,
    /// Why the last link failed or ended.
    pub last_error: Mutex<Option<String>>,
    /// Whether it is dialled.
    pub wanted: AtomicBool,
    /// See [`PeerState`].
    pub messages_in: Counter,
    /// See [`PeerState`].
    pub messages_out: Counter,
    /// See [`PeerState`].
    pub bytes_in: Counter,
    /// See [`PeerState`].
    pub bytes_out: Counter,
    /// See [`PeerState`].
    pub refused: Counter,
}
