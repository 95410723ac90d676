//! Intents of writes. An intent is noted before a write is sent and settled when its outcome is
//! known. Meanwhile it is kept for the next run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;

use crate::clock::Millis;
use crate::gate::{GateScope, Settled};
use crate::intents::table::{IntentId, IntentTable};
use crate::intents::words::{
    Nature, SCOPE, WEAK, intents_of, rows_undropped, scope_of_intent, with_nature,
};

/// An intent and what it says.
pub(crate) type Noted = (IntentId, u64);

/// Intents of writes in flight, and of writes that count for some time after they were answered.
pub(crate) struct IntentLog {
    intents: IntentTable,
    /// Writes of unknown outcome; plain writes and lightweight transactions are separate.
    unknown: Mutex<KeptNote>,
    /// Writes that a fill may miss. There may be very many: a few scopes have their own intent,
    /// then all together are [`WEAK`].
    weak: Mutex<KeptNote>,
    /// Scopes in `weak`.
    max_weak: usize,
    /// Groups whose rows are not dropped yet: how many writes say so, and their one intent.
    /// Otherwise a few writes of a keyspace with many tables would fill the table.
    undropped: Mutex<HashMap<u32, (usize, IntentId)>>,
}

/// One intent per scope, the one that counts longest. Otherwise writes to a few partitions would
/// fill the table in time.
#[derive(Default)]
struct KeptNote {
    by_scope: HashMap<u64, (Millis, IntentId)>,
    /// Nothing is due before.
    due: Option<Millis>,
}

impl KeptNote {
    /// Keeps an intent. Returns the one that it makes superfluous.
    fn keep(&mut self, scope: u64, until: Millis, id: IntentId) -> Option<IntentId> {
        self.due = self.due.min(Some(until)).or(Some(until));
        match self.by_scope.entry(scope) {
            Entry::Vacant(vacant) => {
                vacant.insert((until, id));
                None
            }
            Entry::Occupied(mut there) => {
                let (latest, noted) = there.get_mut();
                if *latest >= until {
                    return Some(id);
                }
                *latest = until;
                Some(std::mem::replace(noted, id))
            }
        }
    }

    /// Settles intents that no longer count at `now`.
    fn settle_due(&mut self, now: Millis, intents: &IntentTable) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.by_scope.retain(|_, (until, id)| {
            let kept = *until > now;
            if !kept {
                intents.settle(*id);
            }
            kept
        });
        // This looks at all of them, so it runs rarely.
        self.due = self.by_scope.values().map(|(until, _)| (*until).max(now + 1_000)).min();
    }
}

impl IntentLog {
    pub(crate) fn new(intents: IntentTable) -> IntentLog {
        let max_weak = intents.free() / 4;
        IntentLog {
            intents,
            unknown: Mutex::default(),
            weak: Mutex::default(),
            max_weak,
            undropped: Mutex::default(),
        }
    }

    /// Keeps an intent that an earlier run left and whose rows are dropped now, to be found again
    /// if this run ends before `until`.
    pub(crate) fn keep_dropped(&self, (id, word): Noted, until: Millis) {
        let (scope, nature) = scope_of_intent(word);
        if nature.weak {
            return self.keep_weak((id, word), until);
        }
        if !nature.undropped {
            return self.keep_until((id, word), until);
        }
        for again in self.begin(&[scope], Nature { undropped: false, ..nature }) {
            self.keep_until(again, until);
        }
        self.intents.settle(id);
    }

    /// Keeps an intent whose outcome is not known, to be found again if this run ends before
    /// `until`.
    fn keep_until(&self, (id, word): Noted, until: Millis) {
        let superfluous = self.unknown.lock().keep(word & SCOPE, until, id);
        superfluous.into_iter().for_each(|id| self.intents.settle(id));
    }

    /// Keeps an intent of a write that fills may miss until then. From here on it says no more than
    /// that: a restart does not take it for one of unknown outcome.
    fn keep_weak(&self, (id, word): Noted, until: Millis) {
        let own = with_nature(word, Nature { weak: true, ..Nature::default() });
        let mut weak = self.weak.lock();
        let has_place =
            weak.by_scope.contains_key(&(own & SCOPE)) || weak.by_scope.len() < self.max_weak;
        let own = if has_place { own } else { WEAK };
        match weak.by_scope.get_mut(&(own & SCOPE)) {
            Some((latest, _)) => {
                *latest = until.max(*latest);
                drop(weak);
                self.intents.settle(id);
            }
            None => {
                let id = if own == word { id } else { self.intents.replace(id, own) };
                let superfluous = weak.keep(own & SCOPE, until, id);
                debug_assert_eq!(superfluous, None, "the scope was not there");
            }
        }
    }

    /// From here on these intents are of writes of this nature. It must be covered by the earlier
    /// one: a crash meanwhile may find either.
    pub(crate) fn renote(&self, noted: &mut [Noted], nature: Nature) {
        for (id, word) in noted {
            *word = with_nature(*word, nature);
            *id = self.intents.replace(*id, *word);
        }
    }

    /// After a crash, an intent that could not be noted counts as a write to everything: the table
    /// remembers that it was full.
    pub(crate) fn begin(&self, gates: &[GateScope], nature: Nature) -> Vec<Noted> {
        intents_of(gates, nature).into_iter().map(|word| (self.intents.begin(word), word)).collect()
    }

    /// Notes that rows of these groups are not dropped yet. Until
    /// [`IntentLog::settle_undropped`] is called with the same.
    pub(crate) fn begin_undropped(&self, groups: &[u32]) {
        let mut undropped = self.undropped.lock();
        for group in groups {
            // Under the lock: whoever finds the intent there is sent after it was noted.
            let noted = || (0, self.intents.begin(rows_undropped(*group)));
            undropped.entry(*group).or_insert_with(noted).0 += 1;
        }
    }

    /// What [`IntentLog::begin_undropped`] noted no longer matters: the rows are dropped, or stay.
    pub(crate) fn settle_undropped(&self, groups: &[u32]) {
        let mut undropped = self.undropped.lock();
        for group in groups {
            let (count, id) = undropped.get_mut(group).expect("each end follows its begin");
            *count -= 1;
            if *count == 0 {
                self.intents.settle(*id);
                undropped.remove(group);
            }
        }
    }

    pub(crate) fn settle(&self, noted: &[Noted], settled: Settled) {
        match settled {
            Settled::Definite => noted.iter().for_each(|(id, _)| self.intents.settle(*id)),
            Settled::Unknown { hold_until } => {
                noted.iter().for_each(|noted| self.keep_until(*noted, hold_until));
            }
            Settled::Weak { until } => noted.iter().for_each(|noted| self.keep_weak(*noted, until)),
        }
    }

    pub(crate) fn settle_due(&self, now: Millis) {
        self.unknown.lock().settle_due(now, &self.intents);
        self.weak.lock().settle_due(now, &self.intents);
    }

    /// The intents noted now are complete, and survive power loss.
    pub(crate) fn close(&self) {
        self.intents.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent_log(slots: u32) -> (tempfile::TempDir, IntentLog) {
        let dir = tempfile::tempdir().unwrap();
        let (intents, _) =
            IntentTable::open(&dir.path().join("intents"), slots, u64::MAX, false).unwrap();
        (dir, IntentLog::new(intents))
    }

    #[test]
    fn lightweight_transactions_of_unknown_outcome_do_not_fill_the_table() {
        let (_dir, intent_log) = intent_log(4);
        let scopes = [GateScope::Slots(vec![7])];
        for until in [300, 400, 500, 400, 300] {
            let noted = intent_log
                .begin(&scopes, Nature { conditional: true, dead_after: 7, ..Nature::default() });
            intent_log.settle(&noted, Settled::Unknown { hold_until: until });
            intent_log.settle_due(299);
            assert_eq!(intent_log.intents.free(), 3, "noted once, and it stays noted");
        }
        intent_log.settle_due(500);
        assert_eq!(intent_log.intents.free(), 4, "it could not take effect any more");
        let noted = intent_log.begin(&scopes, Nature { conditional: true, ..Nature::default() });
        intent_log.settle(&noted, Settled::Unknown { hold_until: u64::MAX });
        let plain = intent_log.begin(&scopes, Nature::default());
        intent_log.settle(&plain, Settled::Unknown { hold_until: 100 });
        intent_log.settle_due(99);
        assert_eq!(intent_log.intents.free(), 2);
        intent_log.settle_due(100);
        assert_eq!(intent_log.intents.free(), 3);
    }

    #[test]
    fn rows_that_many_writes_may_drop_are_noted_once_and_until_the_last_has_ended() {
        let (_dir, intent_log) = intent_log(64);
        let groups: Vec<u32> = (1..=60).collect();
        (0..2_000).for_each(|_| intent_log.begin_undropped(&groups));
        assert_eq!(intent_log.intents.free(), 4);
        (1..2_000).for_each(|_| intent_log.settle_undropped(&groups));
        assert_eq!(intent_log.intents.free(), 4, "one of them has not ended");
        intent_log.settle_undropped(&groups[1..]);
        assert_eq!(intent_log.intents.free(), 63);
        intent_log.settle_undropped(&groups[..1]);
        assert_eq!(intent_log.intents.free(), 64);
    }

    #[test]
    fn writes_at_weak_levels_neither_fill_the_table_nor_the_memory() {
        let (_dir, intent_log) = intent_log(64);
        for n in 0..10_000 {
            let noted = intent_log.begin(&[GateScope::Slots(vec![n % 1_000])], Nature::default());
            intent_log.settle(&noted, Settled::Weak { until: 500 + u64::from(n) });
        }
        assert_eq!(intent_log.intents.free(), 64 - 17, "a few, and one for all others");
        assert_eq!(intent_log.weak.lock().by_scope.len(), 17);
        intent_log.settle_due(10_498);
        assert!(intent_log.intents.free() < 64, "the last still counts");
        intent_log.settle_due(20_000);
        assert_eq!(intent_log.intents.free(), 64);
    }
}
