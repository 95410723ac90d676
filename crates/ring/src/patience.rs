//! How long a move of shards waits until it is known what their rows are worth.
//!
//! A shard that moves while a side has heard of a change of the schema, and has not read its
//! version, is weak for a hold. One that moves after rows of before were distrusted, and before the
//! map was read, brings no rows. Both pass in moments: a round trip to the database, or its nodes'
//! agreement. So a move waits for it.
//!
//! Not for good: the database may tell of changes all the time, or never show a version. The wait
//! ends at a bound. It begins anew once a move has gone ahead without doubt, or when moves have not
//! waited for as long again.

use crate::config::Time;

/// Since when one side of a move has waited.
#[derive(Debug, Default, Clone)]
pub struct Patience(Option<Time>);

impl Patience {
    /// Whether a move that would go ahead now waits: while there is a `doubt`, and for `most` of
    /// time at most since the first one that did.
    pub fn waits(&mut self, doubt: bool, now: Time, most: Time) -> bool {
        if !doubt {
            self.0 = None;
            return false;
        }
        let since = self.0.filter(|since| now < since + 2 * most).unwrap_or(now);
        self.0 = Some(since);
        now < since + most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_waits_while_there_is_a_doubt_and_not_for_good() {
        let mut patience = Patience::default();
        assert!(!patience.waits(false, 1, 10));
        let waited = [5, 14, 15, 24, 25, 35].map(|now| patience.waits(true, now, 10));
        assert_eq!(waited, [true, true, false, false, true, false]);
        assert!(!patience.waits(false, 36, 10), "it goes ahead");
        assert!(patience.waits(true, 37, 10), "and may wait again");
    }
}
