//! The new owner's side of a move.
//!
//! 1. It asks the old owner for shards, and journals the snapshot that it gets.
//! 2. It makes one compare-and-set for the version that the old owner named.
//!
//! The old owner does not answer for those shards until the map has passed that version. So the
//! snapshot stays true as long as the compare-and-set can apply. Either of the two moves the
//! version on; time does not.

use crate::config::{Config, Time};
use crate::identity::MemberId;
use crate::map::Map;
use crate::message::{Message, ShardState};
use crate::placement;

/// The most shards of one move. Nobody answers for them until it is known: the reads of so many go
/// to the database meanwhile. Of 4,096 these are 1.6 %, for a tenth of a second or so.
const MOST: usize = 64;

#[derive(Debug, Default, Clone)]
pub struct Handover {
    /// Who was asked, when, and for how many shards.
    asked: Option<(MemberId, Time, usize)>,
    /// What may be moved at which version.
    ready: Option<(u64, MemberId, Vec<u16>)>,
}

impl Handover {
    /// Asks for shards that are to be ours, when the map has been the same for long enough.
    pub fn ask(
        &mut self,
        map: &Map,
        me: MemberId,
        now: Time,
        config: &Config,
    ) -> Option<(MemberId, Message)> {
        // An owner that has not the newest map yet gives no answer.
        if self.asked.is_some_and(|(_, sent, _)| now < sent + config.retry) {
            return None;
        }
        let (from, shards) = placement::wanted(map, me)?;
        let shards = shards.into_iter().take(MOST).map(|s| s as u16).collect();
        Some((from, self.ask_for(from, shards, now)))
    }

    /// Asks an owner for these shards.
    pub fn ask_for(&mut self, from: MemberId, shards: Vec<u16>, now: Time) -> Message {
        self.asked = Some((from, now, shards.len()));
        Message::HandoverWanted { shards }
    }

    /// Who was asked for how many shards, under the present map.
    pub fn asked(&self) -> Option<(MemberId, usize)> {
        self.asked.map(|(from, _, shards)| (from, shards))
    }

    /// The old owner's snapshot. False if it is not for us, or not of our version.
    pub fn received(
        &mut self,
        map: &Map,
        from: MemberId,
        version: u64,
        states: &[ShardState],
    ) -> bool {
        let expected = self.asked.is_some_and(|(owner, ..)| owner == from);
        let known = states.iter().all(|s| {
            map.shards
                .get(usize::from(s.shard))
                .is_some_and(|shard| shard.owner == Some(from) && shard.epoch == s.epoch)
        });
        if !expected || !known || version != map.version || states.is_empty() {
            coverage_mark!(HandoverTooLate);
            return false;
        }
        self.ready = Some((version, from, states.iter().map(|s| s.shard).collect()));
        true
    }

    /// The map with the move, if it may be made now.
    pub fn moved(&mut self, map: &Map, me: MemberId) -> Option<Map> {
        let (version, _, shards) = self.ready.take()?;
        if version != map.version {
            return None;
        }
        let mut next = map.next();
        shards.iter().for_each(|shard| next.give(usize::from(*shard), Some(me)));
        Some(next)
    }

    /// A newer map.
    pub fn adopted(&mut self) {
        self.asked = None;
        self.ready = None;
    }
}
