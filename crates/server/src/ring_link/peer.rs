//! What is known of a peer: counted for as long as it is wanted or has a link.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use afterglow_ring::MemberId;
use parking_lot::Mutex;

use super::lanes::PeerRoom;
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
    /// What waits for it.
    pub room: PeerRoom,
    /// Which of its links the next probe takes.
    pub probes: Probes,
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

/// Probes of a peer. While they are answered all take the same link, so that one that is lost is
/// left after one probe, and not gone back to.
#[derive(Debug, Default)]
pub struct Probes {
    is_open: AtomicBool,
    turn: AtomicUsize,
}

impl Probes {
    /// A probe is sent: by which link, counted on from the one that messages take, and whether it
    /// leaves another.
    pub fn next(&self) -> (usize, bool) {
        let leaves = self.is_open.swap(true, Ordering::Relaxed);
        let more = usize::from(leaves);
        (self.turn.fetch_add(more, Ordering::Relaxed).wrapping_add(more), leaves)
    }

    /// One has been answered.
    pub fn answered(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }
}
