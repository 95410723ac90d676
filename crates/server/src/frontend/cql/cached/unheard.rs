//! Changes of tables that a snapshot of the schema has before their events come.
//!
//! A server shows a change in its tables first, and tells of it tens of milliseconds later. A
//! reading of the schema may fall in between, because another table has changed, or because the
//! change was made through another node.
//!
//! 1. A snapshot shows that a table has changed, and nobody has told: what the table was is kept.
//! 2. The event comes. The next snapshot is compared with what is kept, not with the one before
//!    it, which has the change already.
//! 3. If the table has changed once more in between, there were several changes.
//!
//! Invariant: what is kept is taken by one event. A second one finds nothing, so that several
//! changes of one snapshot count as several.

use std::collections::HashMap;

use afterglow_cql::schema::{ChangeTime, Schema, SeenTable};
use uuid::Uuid;

/// The tables that have changed, and of which nobody has told.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    changes: HashMap<Uuid, UnheardChange>,
    /// What the next snapshot has is known by comparison: no event will tell of it.
    is_compared: bool,
}

/// What a table was before.
#[derive(Debug, Clone)]
pub(super) struct UnheardChange {
    before: SeenTable,
    /// Its time since. None: it changed while the schema was read, and the next reading tells.
    time: Option<ChangeTime>,
    /// It has changed more than once.
    several: bool,
}

impl UnheardChange {
    /// What the table was before the one change that is heard of now; none if there were more.
    pub(super) fn before_the_only(self, now: &SeenTable) -> Option<SeenTable> {
        let is_it = self.time.is_none() || self.time == now.time;
        (is_it && !self.several).then_some(self.before)
    }
}

impl Unheard {
    /// A change of the table is heard of: what it was before the snapshots that have it.
    pub(super) fn take(&mut self, table: Uuid) -> Option<UnheardChange> {
        self.changes.remove(&table)
    }

    /// A table, or all of a keyspace, is dropped or made: it has changed besides.
    pub(super) fn count_as_several(&mut self, keyspace: &str, table: Option<&str>) {
        let is_of = |change: &&mut UnheardChange| {
            let it = &change.before.table;
            it.keyspace == keyspace && table.is_none_or(|table| it.name == table)
        };
        self.changes.values_mut().filter(is_of).for_each(|change| change.several = true);
    }

    /// All that has changed up to the next snapshot is known without events, which went to nobody.
    pub(super) fn compared(&mut self) {
        self.is_compared = true;
    }

    /// Nobody tells of changes any more: what has changed shows when somebody does again.
    pub(super) fn clear(&mut self) {
        self.changes.clear();
    }

    /// A snapshot follows another. `is_heard`: an event has told of a change of the table.
    pub(super) fn note(&mut self, before: &Schema, now: &Schema, is_heard: impl Fn(Uuid) -> bool) {
        self.changes.retain(|id, _| now.keyspace_of(*id).is_some());
        if std::mem::take(&mut self.is_compared) {
            return;
        }
        for table in now.tables().filter(|table| !table.system && !is_heard(table.id)) {
            let [then, is] = [before, now].map(|of| of.seen(&table.keyspace, &table.name));
            let (Some(then), Some(is)) = (then, is) else { continue };
            if then.table.id != table.id {
                continue;
            }
            match (self.changes.get_mut(&table.id), then.time, is.time) {
                (_, Some(then), Some(is)) if then == is => {}
                (Some(unheard), None, Some(is)) if unheard.time.is_none() => {
                    // It has not changed: no times were told.
                    if unheard.before.time == Some(is) {
                        self.changes.remove(&table.id);
                    } else {
                        unheard.time = Some(is);
                    }
                }
                (Some(unheard), ..) => unheard.several = true,
                (None, Some(_), time) => {
                    let change = UnheardChange { before: then, time, several: false };
                    self.changes.insert(table.id, change);
                }
                (None, None, _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::plan::TableSchema;

    use super::*;

    const TABLE: Uuid = Uuid::from_u128(7);

    fn at(time: Option<ChangeTime>) -> Schema {
        let table = TableSchema::new("ks".into(), "t".into(), TABLE);
        let mut schema = Schema::of_tables([table]);
        time.into_iter().for_each(|time| schema.set_table_time(TABLE, time));
        schema
    }

    /// The time of the table before the only change, when these were its times before its event
    /// came, the last of them when it came.
    fn time_before(times: &[Option<ChangeTime>]) -> Option<ChangeTime> {
        let (mut unheard, last) = (Unheard::default(), at(*times.last().unwrap()));
        for pair in times[..times.len() - 1].windows(2) {
            unheard.note(&at(pair[0]), &at(pair[1]), |_| false);
        }
        let taken = unheard.take(TABLE);
        assert!(unheard.take(TABLE).is_none(), "one event takes it");
        taken?.before_the_only(&last.seen("ks", "t").unwrap())?.time
    }

    #[test]
    fn an_event_takes_what_its_table_was_before_the_snapshots_that_have_the_change() {
        for times in [
            &[Some(1), Some(2), Some(2)][..],
            &[Some(1), Some(2), Some(2), Some(2)],
            // It changed while the schema was read.
            &[Some(1), None, Some(2)],
            &[Some(1), None, Some(2), Some(2)],
        ] {
            assert_eq!(time_before(times), Some(1), "{times:?}");
        }
        for times in [
            // No snapshot has it.
            &[Some(1), Some(1), Some(2)][..],
            &[Some(1), None, Some(1), Some(2)],
            // It has changed again, before its event came or with it.
            &[Some(1), Some(2), Some(3), Some(3)],
            &[Some(1), Some(2), Some(3)],
            &[Some(1), Some(2), None, Some(3)],
            &[Some(1), None, None, Some(3)],
            // Nobody tells times.
            &[None, None, None],
        ] {
            assert_eq!(time_before(times), None, "{times:?}");
        }
    }

    #[test]
    fn what_is_heard_or_gone_or_of_a_connection_before_is_not_kept() {
        let (before, now) = (at(Some(1)), at(Some(2)));
        let mut unheard = Unheard::default();
        unheard.note(&before, &now, |table| table == TABLE);
        assert!(unheard.take(TABLE).is_none());
        unheard.note(&before, &now, |_| false);
        unheard.note(&now, &Schema::default(), |_| false);
        assert!(unheard.take(TABLE).is_none());
        unheard.note(&before, &now, |_| false);
        unheard.clear();
        assert!(unheard.take(TABLE).is_none());
        unheard.compared();
        unheard.note(&before, &now, |_| false);
        assert!(unheard.take(TABLE).is_none());
        unheard.note(&before, &now, |_| false);
        assert!(unheard.take(TABLE).is_some(), "events tell of changes again");
    }

    #[test]
    fn a_table_that_is_dropped_or_made_besides_has_changed_more_than_once() {
        let (before, now) = (at(Some(1)), at(Some(2)));
        let seen = now.seen("ks", "t").unwrap();
        for (keyspace, table, is_only) in [
            ("ks", Some("t"), false),
            ("ks", None, false),
            ("ks", Some("other"), true),
            ("other", Some("t"), true),
        ] {
            let mut unheard = Unheard::default();
            unheard.note(&before, &now, |_| false);
            unheard.count_as_several(keyspace, table);
            let then = unheard.take(TABLE).unwrap().before_the_only(&seen);
            assert_eq!(then.is_some(), is_only, "{keyspace} {table:?}");
        }
    }
}
