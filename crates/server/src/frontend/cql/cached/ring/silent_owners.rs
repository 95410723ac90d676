//! Old owners that did not answer a PULL: they are not asked again for a while, so that one that
//! hangs costs few reads the wait.

use std::collections::HashMap;

use afterglow_ring::{MemberId, Time};
use parking_lot::Mutex;

/// For how long, in microseconds.
const PAUSE: Time = 1_000_000;

/// Who is not asked, and until when.
#[derive(Default)]
pub struct SilentOwners(Mutex<HashMap<MemberId, Time>>);

impl SilentOwners {
    /// Whether this one is not to be asked now.
    pub fn has(&self, owner: MemberId, now: Time) -> bool {
        self.0.lock().get(&owner).is_some_and(|until| now < *until)
    }

    /// It did not answer in time.
    pub fn note(&self, owner: MemberId, now: Time) {
        self.0.lock().insert(owner, now + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_owner_that_did_not_answer_is_not_asked_for_a_while() {
        let (silent, [a, b]) = (SilentOwners::default(), [MemberId(1), MemberId(2)]);
        assert!(!silent.has(a, 5));
        silent.note(a, 5);
        assert!(silent.has(a, 4 + PAUSE) && !silent.has(b, 6));
        assert!(!silent.has(a, 5 + PAUSE));
    }
}
