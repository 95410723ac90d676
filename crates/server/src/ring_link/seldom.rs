//! What is said again and again is logged once a minute for each cause.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// For so long the same is not said again.
const PAUSE: Duration = Duration::from_secs(60);
/// Causes that are remembered. Strangers have many; while all are fresh, further ones are not told.
pub const MOST: usize = 256;

/// What was said a moment ago.
#[derive(Debug)]
pub struct Seldom<K>(Mutex<HashMap<K, Instant>>);

impl<K> Default for Seldom<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Seldom<K> {
    /// Whether to say it now, because that was not done a moment ago.
    pub fn is_news(&self, cause: K, now: Instant) -> bool {
        let mut said = self.0.lock();
        let fresh = |at: &Instant| now.saturating_duration_since(*at) < PAUSE;
        if said.get(&cause).is_some_and(fresh) {
            return false;
        }
        if said.len() >= MOST {
            said.retain(|_, at| fresh(at));
        }
        let room = said.len() < MOST;
        if room {
            said.insert(cause, now);
        }
        room
    }

    /// How many causes are remembered.
    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        self.0.lock().len()
    }
}
