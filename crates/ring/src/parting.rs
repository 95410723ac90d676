//! What an owner remembers of shards that it is to hand over: see `member/hand_over.rs`.

use crate::config::Time;
use crate::identity::{Incarnation, MemberId};

/// Shards that another member has asked for.
#[derive(Debug, Clone)]
pub struct Parting {
    /// Who has asked: the member and its process.
    pub to: (MemberId, Incarnation),
    /// The version of the map under which it has asked.
    pub version: u64,
    /// What it has asked for.
    pub shards: Vec<u16>,
    /// This member does not answer for them any more, and waits for their writes.
    pub stopped: bool,
    /// They are handed over then, whatever is under way.
    pub until: Time,
}
