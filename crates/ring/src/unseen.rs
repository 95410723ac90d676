//! What must be known of a shard besides its gates, by members that fill weak shards
//! ([`Config::weak_fills`](crate::Config::weak_fills)) and keep intents beside their rows.
//!
//! * *Closed*: a shard that is not filled at all. Its old owner's permits may still be valid, so
//!   that a write may be acknowledged that this member has not granted. That lasts L(1+2ρ).
//! * *Brought*: holds that came with a shard. Only this process knows of them, so a successor of it
//!   takes the shard for weak.
//! * *Noted*: writes that a fill may miss, known to the rows alone and not to the ring's gates. So
//!   the next owner of the shard takes it for weak.

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::message::Outcome;

/// Each by shard, with its end.
#[derive(Debug, Default, Clone)]
pub struct Unseen {
    closed: BTreeMap<u16, Time>,
    brought: BTreeMap<u16, Time>,
    noted: BTreeMap<u16, Time>,
    /// As `noted`, of all shards, those that come later too.
    noted_of_all: Time,
}

/// What ends for the shard does not end before `until`.
pub fn raise(ends: &mut BTreeMap<u16, Time>, shard: u16, until: Time) {
    let end = ends.entry(shard).or_default();
    *end = until.max(*end);
}

/// Until when what a write has touched is held, which has ended so.
pub fn hold_of(outcome: Outcome, now: Time, config: &Config) -> Option<Time> {
    match outcome {
        Outcome::Settled | Outcome::Refused => None,
        Outcome::Weak if config.weak_fills => None,
        Outcome::Weak | Outcome::Unknown | Outcome::Decided => {
            Some(now + config.stretched(config.hold))
        }
    }
}

impl Unseen {
    /// The shard is not filled before `until`.
    pub fn close(&mut self, shard: u16, until: Time) {
        raise(&mut self.closed, shard, until);
    }

    /// Whether the shard is not to be filled now.
    pub fn is_closed(&self, shard: u16, now: Time) -> bool {
        self.closed.get(&shard).is_some_and(|until| *until > now)
    }

    /// A hold came with the shard.
    pub fn bring(&mut self, shard: u16, until: Time) {
        raise(&mut self.brought, shard, until);
    }

    /// Until when a successor of this process takes the shard for weak; 0: it need not.
    pub fn brought(&self, shard: u16) -> Time {
        self.brought.get(&shard).copied().unwrap_or(0)
    }

    /// A fill of the shard may miss a write until then.
    pub fn note(&mut self, shard: u16, until: Time) {
        raise(&mut self.noted, shard, until);
    }

    /// A fill of any shard may miss a write until then.
    pub fn note_all(&mut self, until: Time) {
        self.noted_of_all = until.max(self.noted_of_all);
    }

    /// Until when the shard's next owner takes it for weak; 0: it need not.
    pub fn noted(&self, shard: u16) -> Time {
        self.noted.get(&shard).copied().unwrap_or(0).max(self.noted_of_all)
    }

    /// Forgets what has ended.
    pub fn tidy(&mut self, now: Time) {
        for ends in [&mut self.closed, &mut self.brought, &mut self.noted] {
            ends.retain(|_, until| *until > now);
        }
    }
}
