//! What a get may return.
//!
//! Every key has a list of states (a value, or nothing) with the moment each began. A get that lasts from `start` to `end` may
//! return any state the key was in meanwhile, or miss; never anything older (G1) and never anything else (G2). An operation
//! the machine died under may or may not have happened: its state is *uncertain*, and the one before it stays allowed until
//! a later certain one, or until somebody sees the new one.

use std::collections::BTreeMap;

/// A value with what kills it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub value: Vec<u8>,
    pub expiry: u32,
    pub group: u32,
    pub slot: u32,
}

#[derive(Debug, Clone)]
struct State {
    since: u64,
    object: Option<Object>,
    certain: bool,
}

/// Namespace and key.
pub type Key = (usize, Vec<u8>);

/// The oracle.
#[derive(Debug, Default)]
pub struct Oracle {
    keys: BTreeMap<Key, Vec<State>>,
    moment: u64,
}

impl Oracle {
    /// Now, as a moment a get may start at.
    pub fn now(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A key's state becomes `object`; the moment it does.
    pub fn set(&mut self, key: &Key, object: Option<Object>, certain: bool) -> u64 {
        let since = self.now();
        self.keys.entry(key.clone()).or_default().push(State { since, object, certain });
        since
    }

    /// Whether the state that began at `since` is the newest of its key.
    pub fn is_newest(&self, key: &Key, since: u64) -> bool {
        self.keys.get(key).and_then(|states| states.last()).is_some_and(|state| state.since == since)
    }

    /// What was never acknowledged may be forgotten, although it was seen.
    pub fn doubt(&mut self, key: &Key, since: u64) {
        for state in self.keys.get_mut(key).into_iter().flatten().filter(|state| state.since == since) {
            state.certain = false;
        }
    }

    /// What a get of `key` now would find in a cache that forgets nothing; `None` when that is not certain.
    pub fn current(&self, key: &Key) -> Option<&Object> {
        let last = self.keys.get(key)?.last()?;
        last.object.as_ref().filter(|_| last.certain)
    }

    /// Kills the objects of a namespace that `dead` chooses.
    pub fn kill(&mut self, ns: usize, certain: bool, dead: impl Fn(&Object) -> bool) {
        let since = self.now();
        for states in self.keys.iter_mut().filter(|(k, _)| k.0 == ns).map(|(_, s)| s) {
            // An uncertain object below a dead one would come to light.
            let any = states.iter().any(|s| s.object.as_ref().is_some_and(&dead));
            let all_dead = states.iter().rev().take_while_inclusive(|s| !s.certain);
            let all_dead = all_dead.into_iter().all(|s| s.object.as_ref().is_none_or(&dead));
            if any && all_dead {
                states.push(State { since, object: None, certain });
            }
        }
    }

    /// Puts an object back that a removal may not have removed for good.
    pub fn doubt_removals(&mut self, ns: usize, object: impl Fn(&Key) -> Object) {
        let since = self.now();
        for (key, states) in self.keys.iter_mut().filter(|(k, _)| k.0 == ns) {
            if states.last().is_some_and(|s| s.object.is_none()) {
                states.push(State { since, object: Some(object(key)), certain: false });
            }
        }
    }

    /// Checks what a get that started at `start` has returned.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&mut self, key: &Key, start: u64, value: &[u8], expired_at: u64) -> Result<(), String> {
        let Some(states) = self.keys.get_mut(key) else {
            return Err(format!("{key:?} was never put, got {} bytes", value.len()));
        };
        let first = states.iter().rposition(|s| s.since <= start && s.certain).unwrap_or(0);
        let is_it = |s: &State| s.object.as_ref().is_some_and(|o| o.value == value);
        let Some(newest) = states.iter().rposition(is_it) else {
            return Err(format!("{key:?}: {} bytes that were never put", value.len()));
        };
        if newest < first {
            return Err(format!(
                "{key:?}: stale, state {newest} of {}, allowed from {first}: {:?}",
                states.len(),
                brief(states)
            ));
        }
        // A touch leaves two states of one value: which of them was seen, only the expiry can tell.
        let lives =
            |s: &State| s.object.as_ref().is_some_and(|o| o.expiry == 0 || u64::from(o.expiry) > expired_at);
        let Some(at) = (first..=newest).rev().find(|&at| is_it(&states[at]) && lives(&states[at])) else {
            return Err(format!("{key:?}: expired, time is {expired_at}: {:?}", states[newest]));
        };
        // Seen, so it happened; nobody may see anything before it from now on.
        if at + 1 == states.len() {
            states[at].certain = true;
        }
        Ok(())
    }

    /// All keys with a certain current object.
    pub fn live(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.keys.keys().filter_map(|k| Some((k, self.current(k)?)))
    }
}

fn brief(states: &[State]) -> Vec<(u64, Option<usize>, bool)> {
    states.iter().map(|s| (s.since, s.object.as_ref().map(|o| o.value.len()), s.certain)).collect()
}

trait TakeWhileInclusive: Iterator + Sized {
    fn take_while_inclusive(self, go_on: impl Fn(&Self::Item) -> bool) -> Vec<Self::Item> {
        let mut taken = Vec::new();
        for item in self {
            let stop = !go_on(&item);
            taken.push(item);
            if stop {
                break;
            }
        }
        taken
    }
}

impl<I: Iterator> TakeWhileInclusive for I {}
