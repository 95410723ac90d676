//! Rows that were too large to cache. Reading them whole again would be in vain.
//!
//! A row is remembered with the stamp of its gates, which changes with every write that may touch
//! it. Others may write past us, and cells may expire, so the row is also forgotten after a while.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use crate::clock::Millis;
use crate::stamp::Stamp;

/// Rows remembered at once. Beyond that the oldest is forgotten.
const MOST: usize = 4096;
/// For how long a row is remembered.
const REMEMBERED: Millis = 60_000;

/// The rows. Keys are distinguished by a hash with a secret seed. A key that is taken for another
/// is not cached for a while.
#[derive(Default)]
pub(super) struct TooLarge {
    hasher: RandomState,
    known: Mutex<RefusedKeys>,
}

#[derive(Default)]
struct RefusedKeys {
    by_key: HashMap<u64, (Stamp, Millis)>,
    /// By age, with the time until which each is remembered. A row that was noted again has a later
    /// end in the map.
    order: VecDeque<(u64, Millis)>,
}

impl TooLarge {
    pub(super) fn note(&self, key: &[u8], stamp: Stamp, now: Millis) {
        let (key, until) = (self.hasher.hash_one(key), now + REMEMBERED);
        let mut known = self.known.lock();
        known.by_key.insert(key, (stamp, until));
        known.order.push_back((key, until));
        known.forget(now);
    }

    /// Whether the row is too large unless a write has begun since.
    pub(super) fn has(&self, key: &[u8], stamp: Stamp, now: Millis) -> bool {
        let mut known = self.known.lock();
        if known.order.is_empty() {
            return false;
        }
        known.forget(now);
        known
            .by_key
            .get(&self.hasher.hash_one(key))
            .is_some_and(|(of, until)| *of == stamp && *until > now)
    }
}

impl RefusedKeys {
    fn forget(&mut self, now: Millis) {
        while let Some(&(key, until)) = self.order.front()
            && (until <= now || self.order.len() > MOST)
        {
            self.order.pop_front();
            if self.by_key.get(&key).is_some_and(|(_, of)| *of == until) {
                self.by_key.remove(&key);
            }
        }
        debug_assert!(self.by_key.len() <= self.order.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_is_remembered_for_a_while() {
        let (rows, stamp) = (TooLarge::default(), Stamp::default());
        for n in 0..2 * MOST as u64 {
            rows.note(&n.to_be_bytes(), stamp, n % 2);
        }
        let known =
            |now| (0..2 * MOST as u64).filter(|n| rows.has(&n.to_be_bytes(), stamp, now)).count();
        assert_eq!(known(1), MOST);
        rows.note(b"again", stamp, 1);
        rows.note(b"again", stamp, 100);
        assert!(rows.has(b"again", stamp, REMEMBERED + 99));
        assert_eq!(known(REMEMBERED + 1), 0);
        assert!(!rows.has(b"again", stamp, REMEMBERED + 100));
        assert!(rows.known.lock().by_key.is_empty());
    }
}
