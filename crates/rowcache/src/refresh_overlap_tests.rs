//! Writes of single rows of a unit that overlap, and the reads that wait for it meanwhile.

use super::*;
use crate::gate::AWAITED_FOR;

impl Stage {
    /// What a refresh ends with, if the database has these rows.
    fn refreshed(&self, refresh: Refresh<Waiter>, rows: &Rows) -> Refreshed<Waiter> {
        let c = refresh.row().1.clustering().next().unwrap().try_into().unwrap();
        let row = self.row_of(rows, i32::from_be_bytes(c), None);
        self.cache.end_refresh(refresh, &row, self.clock.moment(), BYTES)
    }
}

fn waits_still(waiter: &Waiter) -> bool {
    Arc::strong_count(waiter) > 1
}

/// The keys of a unit's rows.
fn keys(stage: &Stage, unit: &Unit) -> Vec<i32> {
    let has = |c: &i32| {
        let row = unit.row(&stage.plan.table, &stage.row_key(*c));
        row.is_ok_and(|row| !row.stored().is_absent())
    };
    (-1..100).rev().filter(has).collect()
}

#[test]
fn a_read_waits_from_when_the_write_begins_and_sees_the_new_row() {
    let stage = Stage::new();
    let waiter = Waiter::default();
    stage.fill(&rows([10, 20]), 9);
    assert!(!stage.awaits(&waiter), "the unit is there");
    let write = stage.begin(&insert(15));
    assert!(stage.awaits(&waiter));
    let refresh = stage.settled(write).unwrap();
    assert!(stage.awaits(&waiter));
    let back = stage.refreshed(refresh, &rows([15]));
    assert_eq!((back.installed, back.waiters.len()), (Installed::Row, 2));
    assert_eq!(keys(&stage, &back.unit.unwrap()), [20, 15, 10]);
    assert!(!stage.awaits(&waiter), "the unit is there");
}

#[test]
fn a_write_that_begins_during_a_refresh_does_not_drop_the_unit() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let first = stage.refresh(&insert(15));
    let second = stage.begin(&insert(16));
    // Neither is shown without the other: the second write may have been seen already.
    let waiter = Waiter::default();
    assert!(stage.awaits(&waiter));
    let ended = stage.refreshed(first, &rows([15, 16]));
    assert_eq!((ended.installed, ended.waiters.len()), (Installed::Row, 0));
    assert!(ended.unit.is_none() && stage.unit().is_none() && waits_still(&waiter));
    let back = stage.refreshed(stage.settled(second).unwrap(), &rows([15, 16]));
    assert_eq!(back.waiters.len(), 1);
    assert_eq!(stage.unit(), Some((vec![20, 16, 15, 10], true)));
}

#[test]
fn overlapping_writes_may_be_acknowledged_and_read_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (stage, all) = (Stage::new(), rows([11, 12, 13]));
        stage.fill(&rows([10, 20]), 9);
        let mut writes: Vec<_> = [11, 12, 13].map(|c| Some(stage.begin(&insert(c)))).into();
        let mut refreshes: Vec<_> = (0..3).map(|_| None).collect();
        for at in order {
            refreshes[at] = stage.settled(writes[at].take().unwrap());
            assert!(stage.unit().is_none());
        }
        for at in order.into_iter().rev() {
            assert!(stage.unit().is_none());
            stage.refreshed(refreshes[at].take().unwrap(), &all);
        }
        assert_eq!(stage.unit(), Some((vec![20, 13, 12, 11, 10], true)), "{order:?}");
    }
}

#[test]
fn a_row_is_read_after_the_last_of_its_writes() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let (first, second) = (stage.begin(&insert(15)), stage.begin(&insert(15)));
    let left = first.settle_and_update(Answered::Definite, || true).unit;
    assert!(matches!(left, UnitLeft::Awaited), "the other may have happened, or may yet");
    // It begins while the row is read: what is read may be older or newer.
    let refresh = stage.settled(second).unwrap();
    let third = stage.begin(&insert(15));
    assert_eq!(stage.refreshed(refresh, &rows([])).installed, Installed::Overtaken);
    let refresh = stage.settled(third).unwrap();
    let fourth = stage.begin("DELETE FROM s.t WHERE k = 1 AND c = 15");
    let last = stage.settled(fourth).unwrap();
    assert_eq!(stage.refreshed(last, &rows([])).installed, Installed::Row);
    assert_eq!(stage.unit(), Some((vec![20, 10], true)));
    // An answer that comes late changes nothing, whether the unit is there or written again.
    assert_eq!(stage.refreshed(refresh, &rows([15])).installed, Installed::Overtaken);
    assert_eq!(stage.unit(), Some((vec![20, 10], true)));
}

#[test]
fn a_late_answer_of_an_earlier_time_is_not_put_in() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let late = stage.refresh(&insert(15));
    let again = stage.refresh("DELETE FROM s.t WHERE k = 1 AND c = 15");
    stage.refreshed(again, &rows([]));
    let other = stage.begin(&insert(17));
    assert_eq!(stage.refreshed(late, &rows([15])).installed, Installed::Overtaken);
    let other = stage.settled(other).expect("the late answer did not end it");
    stage.refreshed(other, &rows([17]));
    assert_eq!(stage.unit(), Some((vec![20, 17, 10], true)));
}

#[test]
fn a_failed_read_that_another_write_has_overtaken_does_no_harm() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let waiter = Waiter::default();
    let failed = stage.refresh(&insert(15));
    let again = stage.begin(&insert(15));
    assert!(stage.awaits(&waiter));
    drop(failed);
    assert!(waits_still(&waiter));
    stage.refreshed(stage.settled(again).unwrap(), &rows([15]));
    assert_eq!(stage.unit(), Some((vec![20, 15, 10], true)));
    // Otherwise it ends the unit, whatever other rows are read.
    let (failed, other) = (stage.refresh(&insert(16)), stage.refresh(&insert(17)));
    assert!(stage.awaits(&waiter));
    drop(failed);
    assert!(!waits_still(&waiter) && !stage.awaits(&waiter));
    assert_eq!(stage.refreshed(other, &rows([17])).installed, Installed::Overtaken);
    assert_eq!(stage.unit(), None);
}

#[test]
fn nobody_waits_for_a_write_whose_outcome_is_unknown() {
    let stage = Stage::new();
    for answered in [Answered::Refused, Answered::Unknown(InDoubt::WriteTimeout)] {
        for before in [true, false] {
            stage.fill(&rows([10, 20]), 9);
            let waiter = Waiter::default();
            let known = stage.begin(&insert(15));
            let doubted = stage.begin(&insert(16));
            assert!(stage.awaits(&waiter));
            let end = |write: WriteInFlight<Waiter>| write.settle_and_update(answered, || true);
            if before {
                end(doubted);
                assert!(!waits_still(&waiter) && !stage.awaits(&waiter));
                assert!(stage.settled(known).is_none());
            } else {
                let refresh = stage.settled(known).unwrap();
                end(doubted);
                assert!(!waits_still(&waiter) && !stage.awaits(&waiter));
                let ended = stage.refreshed(refresh, &rows([15]));
                assert_eq!(ended.installed, Installed::Overtaken);
            }
            assert_eq!(stage.unit(), None);
            stage.clock.pass(HOLD + 1);
        }
    }
    // It is abandoned, or its client leaves.
    for leaves in [true, false] {
        stage.fill(&rows([10, 20]), 9);
        let waiter = Waiter::default();
        let mut write = stage.begin(&insert(15));
        assert!(stage.awaits(&waiter));
        if leaves {
            drop(write);
        } else {
            write.abandon_row();
        }
        assert!(!waits_still(&waiter) && !stage.awaits(&waiter));
        stage.clock.pass(HOLD + 1);
    }
}

#[test]
fn a_write_that_is_raised_too_far_or_weak_ends_the_unit_of_all() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let (first, mut second) = (stage.begin(&insert(15)), stage.begin(&insert(16)));
    second.weaken();
    assert!(stage.settled(second).is_none());
    assert!(stage.settled(first).is_none());
    stage.clock.pass(HOLD + 1);
    stage.fill(&rows([10, 20]), 9);
    let first = stage.begin(&insert(15));
    let weak = stage.begin_weakly(&insert(16), true);
    assert!(!stage.awaits(&Waiter::default()));
    assert!(stage.settled(first).is_none() && stage.settled(weak).is_none());
    assert_eq!(stage.unit(), None);
}

#[test]
fn of_too_many_rows_the_unit_goes() {
    for (most, stays) in [(16, true), (17, false)] {
        let stage = Stage::new();
        stage.fill(&rows([90]), 64);
        let writes: Vec<_> = (0..most).map(|c| stage.begin(&insert(c))).collect();
        // Of the same rows there may be more.
        let again = stage.begin(&insert(3));
        assert_eq!(stage.awaits(&Waiter::default()), stays, "{most}");
        let mut ends: Vec<_> =
            writes.into_iter().filter_map(|write| stage.settled(write)).collect();
        ends.extend(stage.settled(again));
        assert_eq!(ends.len(), if stays { 16 } else { 0 });
        ends.into_iter().for_each(|end| drop(stage.refreshed(end, &rows(0..most))));
        assert_eq!(stage.unit().is_some(), stays, "{most}");
    }
}

#[test]
fn a_row_behind_the_last_waits_for_the_others_and_is_not_read() {
    let stage = Stage::new();
    stage.fill(&rows(0..50), 3);
    let within = stage.begin(&insert(60));
    let behind = stage.begin(&insert(7));
    let refresh = stage.settled(within).unwrap();
    stage.refreshed(refresh, &rows([60]));
    assert_eq!(stage.unit(), None, "a write of the partition is under way");
    let waiter = Waiter::default();
    assert!(stage.awaits(&waiter));
    match behind.settle_and_update(Answered::Definite, || true).unit {
        UnitLeft::Back(back) => {
            assert_eq!(keys(&stage, back.unit.as_ref().unwrap()), [60, 49, 48, 47]);
            assert_eq!(back.waiters.len(), 1);
        }
        _ => panic!("it was the last"),
    }
    assert_eq!(stage.unit(), Some((vec![60, 49, 48, 47], false)));
}

#[test]
fn a_row_that_falls_behind_the_last_meanwhile_is_left_out() {
    let stage = Stage::new();
    stage.fill(&rows(0..64), 64);
    // The last is written, and leaves when another comes in.
    let last = stage.begin("UPDATE s.t SET v = 9 WHERE k = 1 AND c = 0");
    let new = stage.refresh(&insert(70));
    stage.refreshed(new, &rows([70]));
    stage.refreshed(stage.settled(last).unwrap(), &rows([0]));
    let newest = std::iter::once(70).chain((1..64).rev()).collect();
    assert_eq!(stage.unit(), Some((newest, false)));
}

#[test]
fn reads_wait_for_a_short_time_after_the_unit_was_taken() {
    let stage = Stage::new();
    let pass = |millis| stage.clock.pass_millis(millis);
    stage.fill(&rows([10, 20]), 9);
    let write = stage.begin(&insert(15));
    pass(AWAITED_FOR - 1);
    assert!(stage.awaits(&Waiter::default()));
    pass(1);
    assert!(!stage.awaits(&Waiter::default()));
    // What becomes of it later makes no difference: it has taken long.
    let refresh = stage.settled(write).unwrap();
    let other = stage.begin(&insert(16));
    assert!(!stage.awaits(&Waiter::default()));
    // A read that does not wait fills the unit. The refresh does not replace what it brings.
    let other = stage.settled(other).unwrap();
    let led = stage.lead(&stage.unit_key());
    for late in [refresh, other] {
        assert_eq!(stage.refreshed(late, &rows([15])).installed, Installed::Overtaken);
    }
    let (filled, asked_at) = (stage.unit_of(&rows([10, 15, 16]), 9, false), stage.clock.moment());
    let installed = stage.install(&stage.unit_key(), Fill { led, filled, asked_at });
    assert_eq!((installed, stage.unit().unwrap().0), (Installed::Row, vec![16, 15, 10]));
}

#[test]
fn a_fill_of_the_unit_frees_those_who_wait_for_it() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let (waiter, refresh) = (Waiter::default(), stage.refresh(&insert(15)));
    assert!(stage.awaits(&waiter));
    let _led = stage.lead(&stage.unit_key());
    assert!(!waits_still(&waiter) && !stage.awaits(&waiter));
    assert_eq!(stage.refreshed(refresh, &rows([15])).installed, Installed::Overtaken);
}

#[test]
fn a_read_waits_for_no_unit_of_another_claim_or_that_would_not_serve_it() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let write = stage.begin(&insert(15));
    let asks = |permission, serves: bool| {
        let (table, key) = (&stage.plan.table, stage.row_key(10));
        stage.cache.await_unit(table, &key, permission, |_| serves, Waiter::default)
    };
    assert!(asks(stage.permission(), true) && !asks(stage.permission(), false));
    assert!(!asks(CachePermission::Exclusive { claim: 8 }, true));
    assert!(!asks(CachePermission::Bounded { seconds: 9 }, true));
    drop(write);
}

#[test]
fn a_row_that_a_fill_brings_meanwhile_is_not_older_than_the_unit() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let (refresh, waiter) = (stage.refresh(&insert(15)), Waiter::default());
    assert!(stage.awaits(&waiter));
    let led = stage.lead(&stage.row_key(20));
    let (filled, asked_at) = (stage.row_of(&rows([20]), 20, None), stage.clock.moment());
    let row = Fill { led, filled, asked_at };
    assert_eq!(stage.install(&stage.row_key(20), row), Installed::Row);
    let ended = stage.refreshed(refresh, &rows([15]));
    assert_eq!((ended.installed, ended.unit.is_none()), (Installed::Overtaken, true));
    assert_eq!(stage.unit(), None);
}

#[test]
fn what_waits_is_gone_after_a_crash() {
    let mut stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let (refresh, write) = (stage.refresh(&insert(15)), stage.begin(&insert(16)));
    stage.restart();
    assert_eq!(stage.unit(), None);
    assert!(matches!(stage.join(&stage.unit_key()), Join::Bypass(Bypass::Quarantined)));
    std::mem::forget((refresh, write));
}

#[test]
fn two_rows_that_are_put_in_at_the_same_time_are_both_in() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let Refresh(first) = stage.refresh(&insert(15));
    let second = std::cell::RefCell::new(Some(stage.refresh(&insert(16))));
    let (row, now) = (stage.row_of(&rows([15]), 15, None), stage.clock.moment());
    let made = std::cell::Cell::new(0);
    let ended = first.amend(|unit| {
        made.set(made.get() + 1);
        let after = unit.with(&stage.row_key(15), &row, now, BYTES);
        // The other one comes between.
        let other = second.borrow_mut().take();
        other.into_iter().for_each(|other| drop(stage.refreshed(other, &rows([16]))));
        after
    });
    let Amended::Whole(at) = ended else { panic!("it was the last: {ended:?}") };
    assert_eq!((made.get(), stage.unit()), (2, None));
    assert_eq!(stage.cache.open(&at).unwrap().installed, Installed::Row);
    assert_eq!(stage.unit(), Some((vec![20, 16, 15, 10], true)));
    assert!(stage.cache.open(&at).is_none(), "once");
}

#[test]
fn a_unit_that_was_looked_up_before_another_write_is_not_taken() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let of = |text: &str| RowOfUnit::of(&stage.cache, &stage.scope(text), &stage.plan.table);
    let of = of(&insert(15)).unwrap();
    let (gates, now) = (&stage.cache.gates, stage.clock.now());
    assert!(gates.begin_row_write(of.gates, &of.row).is_none());
    let stamp = gates.sole_writer(of.gates, now).unwrap();
    let (unit, covered) = stage.cache.keep_unit(&of).unwrap();
    let other = stage.begin(&insert(16));
    assert!(gates.amend(unit, &of.row, covered, stamp, now).is_none());
    drop(other);
}

#[test]
fn a_unit_that_ends_while_it_is_written_is_neither_cached_nor_shown() {
    let stage = Stage::new();
    for (passed, is_shown) in [(19, true), (20, false)] {
        let led = stage.lead(&stage.unit_key());
        let filled = Filled { max_age: Some(20), ..stage.unit_of(&rows(0..9), 3, false) };
        let asked_at = stage.clock.moment();
        stage.install(&stage.unit_key(), Fill { led, filled, asked_at });
        let refresh = stage.refresh(&insert(60));
        stage.clock.pass(passed);
        let back = stage.refreshed(refresh, &rows([60]));
        assert_eq!((back.unit.is_some(), stage.unit().is_some()), (is_shown, is_shown));
        stage.clock.pass(20);
    }
}

#[test]
fn a_wider_write_that_comes_between_leaves_no_unit() {
    for other in [
        "DELETE FROM s.t WHERE k = 1",
        "DELETE FROM s.t WHERE k = 1 AND c > 3",
        "UPDATE s.t SET v = 1 WHERE k = 1 AND c IN (15, 25)",
        "INSERT INTO s.t (k, c, v) VALUES (1, 15, 1) IF NOT EXISTS",
        "BEGIN BATCH INSERT INTO s.t (k, c, v) VALUES (1, 15, 1); \
         INSERT INTO s.t (k, c, v) VALUES (1, 16, 1); APPLY BATCH",
        "TRUNCATE s.t",
    ] {
        let stage = Stage::new();
        let fill = || stage.fill(&rows([10, 20]), 9);
        let row = stage.row_of(&rows([15]), 15, None);
        // Already in flight.
        fill();
        let first = stage.begin(other);
        let second = stage.begin(&insert(15));
        assert!(stage.settled(second).is_none(), "{other}");
        assert!(stage.settled(first).is_none(), "{other}");
        // While the write is on its way.
        fill();
        let (write, waiter) = (stage.begin(&insert(15)), Waiter::default());
        assert!(stage.awaits(&waiter), "{other}");
        let later = stage.begin(other);
        assert!(!stage.awaits(&waiter), "{other}");
        // Who waits for a write of a whole table is told when the first write ends.
        assert!(other == "TRUNCATE s.t" || Arc::strong_count(&waiter) == 1, "{other}");
        assert!(stage.settled(write).is_none(), "{other}");
        assert_eq!(Arc::strong_count(&waiter), 1, "{other}");
        later.settle(Answered::Definite);
        // While the row is read.
        for ends_first in [true, false] {
            fill();
            let refresh = stage.refresh(&insert(15));
            let later = stage.begin(other);
            let later = if ends_first {
                later.settle(Answered::Definite);
                None
            } else {
                Some(later)
            };
            assert!(!stage.awaits(&Waiter::default()), "{other}");
            let ended = stage.end(refresh, &row);
            // Of a table that is in doubt nothing is installed at all.
            let is_in_doubt = later.is_some() && other == "TRUNCATE s.t";
            let expected = if is_in_doubt { Installed::Uncacheable } else { Installed::Overtaken };
            assert_eq!(ended, expected, "{other}");
            assert_eq!(stage.unit(), None, "{other}");
            later.into_iter().for_each(|later| later.settle(Answered::Definite));
        }
    }
}
