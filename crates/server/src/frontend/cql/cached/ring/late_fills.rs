//! Fills for other members that the database does not answer in time. Each costs the member that
//! asks the whole wait, and then it asks the database itself. An owner whose last fills of a table
//! were all late passes questions for it at once, and tries one fill at a time until one is
//! answered.
//!
//! Invariant: a table is known here only while its last fills were late, or one is tried alone.

use std::collections::HashMap;

use parking_lot::Mutex;
use uuid::Uuid;

/// From so many late fills of a table on, without one that was answered.
const MANY: u32 = 3;

/// How the last fills of each table went.
#[derive(Default)]
pub struct LateFills(Mutex<HashMap<Uuid, LastFills>>);

#[derive(Default)]
struct LastFills {
    late: u32,
    is_trying: bool,
}

impl LateFills {
    /// A fill of this table that may be tried now. `None`: it would be late too.
    pub fn try_one(&self, table: Uuid) -> Option<TriedFill<'_>> {
        let mut tables = self.0.lock();
        let last = tables.get_mut(&table).filter(|last| last.late >= MANY);
        let alone = last.is_some();
        if last.is_some_and(|last| std::mem::replace(&mut last.is_trying, true)) {
            return None;
        }
        Some(TriedFill { of: self, table, alone })
    }

    fn change(&self, table: Uuid, change: impl FnOnce(&mut LastFills)) {
        let mut tables = self.0.lock();
        let last = tables.entry(table).or_default();
        change(last);
        if last.late == 0 && !last.is_trying {
            tables.remove(&table);
        }
    }
}

/// A fill under way.
pub struct TriedFill<'a> {
    of: &'a LateFills,
    table: Uuid,
    /// It is the one that is tried.
    alone: bool,
}

impl TriedFill<'_> {
    /// The database has answered it.
    pub fn answered(self) {
        self.of.change(self.table, |last| last.late = 0);
    }

    /// The database has not answered in time.
    pub fn late(self) {
        self.of.change(self.table, |last| last.late = last.late.saturating_add(1));
    }
}

impl Drop for TriedFill<'_> {
    fn drop(&mut self) {
        if self.alone {
            self.of.change(self.table, |last| last.is_trying = false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);

    fn known(fills: &LateFills) -> usize {
        fills.0.lock().len()
    }

    #[test]
    fn after_some_late_fills_one_at_a_time_is_tried_until_one_is_answered() {
        let fills = LateFills::default();
        let under_way: Vec<_> =
            (0..9).map(|_| fills.try_one(SLOW).expect("all are tried")).collect();
        under_way.into_iter().take(MANY as usize).for_each(TriedFill::late);
        let one = fills.try_one(SLOW).expect("one is tried");
        assert!(fills.try_one(SLOW).is_none(), "others pass");
        one.late();
        let again = fills.try_one(SLOW).expect("and then another one");
        assert!(fills.try_one(SLOW).is_none());
        again.answered();
        let both = [fills.try_one(SLOW), fills.try_one(SLOW)];
        assert!(both.iter().all(Option::is_some), "all are tried again");
    }

    #[test]
    fn a_table_that_is_late_keeps_no_other_one_from_being_filled() {
        let fills = LateFills::default();
        (0..MANY).for_each(|_| fills.try_one(SLOW).expect("it is tried").late());
        let one = fills.try_one(SLOW).expect("one is tried");
        for _ in 0..9 {
            fills.try_one(OTHER).expect("others are not late").answered();
        }
        assert!(fills.try_one(SLOW).is_none(), "nor does the other one end that");
        assert_eq!(known(&fills), 1, "only what is late is known");
        one.answered();
        assert_eq!(known(&fills), 0);
    }

    #[test]
    fn fills_that_are_answered_in_between_or_fail_at_once_keep_nobody_from_trying() {
        let fills = LateFills::default();
        for _ in 0..4 {
            (1..MANY).for_each(|_| fills.try_one(SLOW).expect("it is tried").late());
            fills.try_one(SLOW).expect("it is tried").answered();
        }
        (0..9).for_each(|_| drop(fills.try_one(SLOW).expect("it is tried")));
        (0..MANY).for_each(|_| fills.try_one(SLOW).expect("it is tried").late());
        drop(fills.try_one(SLOW).expect("one that fails at once"));
        assert!(fills.try_one(SLOW).is_some(), "gives its turn back");
    }
}
