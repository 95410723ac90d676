//! One at a time for each key. Others wait for their turn.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Held by who has the turn.
type KeyedTurn = futures_util::lock::Mutex<()>;

/// The turns of all keys for which somebody has one, or waits.
pub struct KeyedTurns<K>(Mutex<HashMap<K, Weak<KeyedTurn>>>);

impl<K> Default for KeyedTurns<K> {
    fn default() -> Self {
        KeyedTurns(Mutex::default())
    }
}

impl<K: Eq + Hash> KeyedTurns<K> {
    /// The turn of a key, to be locked. It is forgotten once nobody has it any more.
    pub fn of(&self, key: K) -> Arc<KeyedTurn> {
        let mut turns = self.0.lock();
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::<KeyedTurn>::default();
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_turn_while_somebody_has_it_and_none_is_kept_after() {
        let turns = KeyedTurns::default();
        let (first, same, other) = (turns.of(1), turns.of(1), turns.of(2));
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
        let held = first.try_lock().expect("nobody has it");
        assert!(same.try_lock().is_none(), "it is had");
        assert!(other.try_lock().is_some(), "another key waits for nobody");
        drop(held);
        drop((first, same, other));
        let _third = turns.of(3);
        assert_eq!(turns.0.lock().len(), 1);
    }
}
