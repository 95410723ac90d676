//! The orders of fill and write that a stale read would need, each tried out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

const TABLE: u32 = 7;
const SLOT: u32 = 77_777;
const KEY: &[u8] = b"key";
const CLAIM: u64 = 3;

type TestGates = Arc<Gates<&'static str>>;

fn lead(gates: &TestGates, now: Millis) -> Ticket<&'static str> {
    match gates.join((TABLE, SLOT, KEY), now, false, CLAIM, || "nobody waits") {
        Join::Lead(ticket) => ticket,
        Join::Wait => panic!("expected to lead, was told to wait"),
        Join::Bypass(why) => panic!("expected to lead, was sent past: {why:?}"),
    }
}

fn bypass(gates: &TestGates, now: Millis) -> Option<Bypass> {
    match gates.join((TABLE, SLOT, KEY), now, false, CLAIM, || "unexpected waiter") {
        Join::Bypass(why) => Some(why),
        _ => None,
    }
}

fn scopes() -> [GateScope; 3] {
    [GateScope::Slots(vec![3, SLOT]), GateScope::Table(TABLE), GateScope::Everything]
}

#[test]
fn an_undisturbed_fill_installs() {
    let gates = Gates::new();
    let mut installed = false;
    assert!(lead(&gates, 0).finish(|| installed = true).installed);
    assert!(installed);
}

#[test]
fn a_write_that_begins_during_a_fill_keeps_it_out_even_after_the_write_is_done() {
    for scope in scopes() {
        let gates = Gates::new();
        let ticket = lead(&gates, 0);
        gates.begin_write(&scope);
        gates.end_write(&scope, Settled::Definite);
        assert!(!ticket.finish(|| panic!("installed over {scope:?}")).installed);
    }
}

#[test]
fn no_fill_starts_while_a_write_is_on_its_way() {
    for scope in scopes() {
        let gates = Gates::new();
        gates.begin_write(&scope);
        gates.begin_write(&scope);
        gates.end_write(&scope, Settled::Definite);
        assert_eq!(bypass(&gates, 0), Some(Bypass::WriteInFlight), "{scope:?}");
        gates.end_write(&scope, Settled::Definite);
        assert_eq!(bypass(&gates, 0), None, "{scope:?}");
    }
}

#[test]
fn an_unknown_outcome_holds_until_its_time() {
    for scope in scopes() {
        let gates = Gates::new();
        gates.begin_write(&scope);
        gates.end_write(&scope, Settled::Unknown { hold_until: 1_000 });
        // A shorter hold does not end a longer one.
        gates.hold(&scope, 10);
        assert_eq!(bypass(&gates, 999), Some(Bypass::Quarantined), "{scope:?}");
        assert!(
            matches!(gates.join((TABLE, SLOT, KEY), 999, true, CLAIM, || "waits"), Join::Lead(_)),
            "{scope:?}"
        );
        assert!(gates.held(999) > 0);
        assert_eq!(bypass(&gates, 1_000), None, "{scope:?}");
        assert_eq!(gates.held(1_000), 0);
    }
}

#[test]
fn a_weak_write_lets_fills_through_but_marks_them() {
    for scope in scopes() {
        let gates = Gates::new();
        gates.begin_write(&scope);
        gates.end_write(&scope, Settled::Weak { until: 1_000 });
        assert!(lead(&gates, 999).is_weak(), "{scope:?}");
        assert!(!lead(&gates, 1_000).is_weak(), "{scope:?}");
        // An unknown outcome closes what is weak, and the weakness outlasts it.
        gates.begin_write(&scope);
        gates.end_write(&scope, Settled::Weak { until: 3_000 });
        gates.hold(&scope, 2_000);
        assert_eq!(bypass(&gates, 1_999), Some(Bypass::Quarantined), "{scope:?}");
        assert!(lead(&gates, 2_999).is_weak(), "{scope:?}");
    }
}

#[test]
fn other_partitions_and_tables_are_left_alone() {
    let gates = Gates::new();
    gates.begin_write(&GateScope::Slots(vec![SLOT - 1, SLOT + 1]));
    gates.begin_write(&GateScope::Table(TABLE + 1));
    assert_eq!(bypass(&gates, 0), None);
}

#[test]
fn reads_join_a_fill_and_hear_of_it() {
    let gates = Gates::new();
    let ticket = lead(&gates, 0);
    assert!(matches!(gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || "second"), Join::Wait));
    assert!(matches!(gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || "third"), Join::Wait));
    let finished = ticket.finish(|| {});
    assert_eq!(finished.waiters, ["second", "third"]);
}

#[test]
fn a_read_after_a_write_does_not_join_the_fill_from_before_it() {
    let gates = Gates::new();
    let old = lead(&gates, 0);
    assert!(matches!(gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || "before"), Join::Wait));
    let write = GateScope::Slots(vec![SLOT]);
    gates.begin_write(&write);
    gates.end_write(&write, Settled::Definite);
    let new = lead(&gates, 0);
    assert!(matches!(gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || "after"), Join::Wait));
    let old = old.finish(|| panic!("the old fill was overtaken"));
    assert_eq!(old.waiters, ["before"]);
    let new = new.finish(|| {});
    assert!(new.installed);
    assert_eq!(new.waiters, ["after"]);
}

/// Another instance may have owned the row between the two claims. The gates here know of no write
/// that it let pass.
#[test]
fn a_read_joins_no_fill_of_another_claim_and_that_one_installs_nothing_later() {
    let gates = Gates::new();
    let old = lead(&gates, 0);
    let Join::Lead(new) = gates.join((TABLE, SLOT, KEY), 0, false, CLAIM + 1, || "after") else {
        panic!("it was told to wait for what was read under another claim")
    };
    assert!(new.finish(|| {}).installed);
    let old = old.finish(|| panic!("an older fill replaced what a younger one brought"));
    assert!(old.waiters.is_empty());
}

#[test]
fn a_fill_that_takes_long_is_joined_by_nobody_and_overtaken_by_a_younger_one() {
    let gates = Gates::new();
    let late = lead(&gates, 5_000);
    assert!(matches!(gates.join((TABLE, SLOT, KEY), 5_999, false, CLAIM, || "early"), Join::Wait));
    let young = lead(&gates, 6_000);
    assert!(matches!(gates.join((TABLE, SLOT, KEY), 6_001, false, CLAIM, || "late"), Join::Wait));
    let youngest = lead(&gates, 7_000);
    let young = young.finish(|| {});
    assert_eq!((young.installed, &young.waiters[..]), (true, &["late"][..]));
    let late = late.finish(|| panic!("an older fill replaced what a younger one brought"));
    assert_eq!((late.installed, &late.waiters[..]), (false, &["early"][..]));
    assert!(youngest.finish(|| {}).installed);
}

#[test]
fn a_dropped_ticket_lets_go_of_its_waiters_and_its_key() {
    let gates: Arc<Gates<Arc<()>>> = Gates::new();
    let waiter = Arc::new(());
    let Join::Lead(ticket) = gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || unreachable!())
    else {
        panic!("leads")
    };
    assert!(matches!(
        gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || waiter.clone()),
        Join::Wait
    ));
    drop(ticket);
    assert_eq!(Arc::strong_count(&waiter), 1);
    assert!(matches!(
        gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || unreachable!()),
        Join::Lead(_)
    ));
}

#[test]
fn a_row_that_is_too_large_is_passed_by_until_a_write_or_for_a_while() {
    for scope in scopes() {
        let gates = Gates::new();
        let large = |now| {
            let finished = lead(&gates, now).finish(|| {});
            gates.note_too_large(KEY, finished.stamp, now);
        };
        large(0);
        assert_eq!(bypass(&gates, 1_000), Some(Bypass::TooLarge), "{scope:?}");
        assert!(
            matches!(gates.join((TABLE, SLOT, b"other"), 0, false, CLAIM, || ""), Join::Lead(_)),
            "{scope:?}"
        );
        gates.begin_write(&scope);
        assert_eq!(bypass(&gates, 1_000), Some(Bypass::WriteInFlight), "{scope:?}");
        gates.end_write(&scope, Settled::Definite);
        large(1_000);
        assert_eq!(bypass(&gates, 60_999), Some(Bypass::TooLarge), "{scope:?}");
        assert_eq!(bypass(&gates, 61_000), None, "{scope:?}");
        // A write that overtakes the fill may have made the row small.
        let ticket = lead(&gates, 61_000);
        gates.begin_write(&scope);
        gates.end_write(&scope, Settled::Definite);
        gates.note_too_large(KEY, ticket.finish(|| {}).stamp, 61_000);
        assert_eq!(bypass(&gates, 61_000), None, "{scope:?}");
    }
}

/// Readers and a writer race over one key. "Database" and "cache" are two cells; the writer follows
/// the order that the gates demand. A reader that starts after a write was acknowledged must not
/// see an older value in the cache. The writer goes on until a fill has got through, or the race
/// would show nothing.
#[test]
fn racing_fills_never_leave_the_cache_behind_an_acknowledged_write() {
    const EMPTY: u64 = u64::MAX;
    let gates: TestGates = Gates::new();
    let database = AtomicU64::new(0);
    let cache = AtomicU64::new(EMPTY);
    let acknowledged = AtomicU64::new(0);
    let fills = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for value in 1.. {
                if value > 30_000 {
                    if fills.load(Ordering::SeqCst) > 0 {
                        break;
                    }
                    std::thread::yield_now();
                }
                let scope = &scopes()[value as usize % 3];
                gates.begin_write(scope);
                cache.store(EMPTY, Ordering::SeqCst);
                database.store(value, Ordering::SeqCst);
                gates.end_write(scope, Settled::Definite);
                acknowledged.store(value, Ordering::SeqCst);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        for _ in 0..3 {
            threads.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let newest = acknowledged.load(Ordering::SeqCst);
                    let cached = cache.load(Ordering::SeqCst);
                    if cached != EMPTY {
                        assert!(cached >= newest, "read {cached} after {newest} was acknowledged");
                        continue;
                    }
                    if let Join::Lead(ticket) =
                        gates.join((TABLE, SLOT, KEY), 0, false, CLAIM, || "waits")
                    {
                        let value = database.load(Ordering::SeqCst);
                        std::thread::yield_now();
                        if ticket.finish(|| cache.store(value, Ordering::SeqCst)).installed {
                            fills.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
}

/// The engine key of the unit of a partition, and of a row of it.
fn unit_and_row(row: u8) -> (Vec<u8>, Vec<u8>) {
    let unit = [&[9; 16][..], &[0, 1, b'k']].concat();
    let row = [&unit[..], &[0, 1, row]].concat();
    (unit, row)
}

fn lead_of(gates: &TestGates, key: &[u8]) -> Ticket<&'static str> {
    match gates.join((TABLE, SLOT, key), 0, false, CLAIM, || "nobody waits") {
        Join::Lead(ticket) => ticket,
        _ => panic!("expected to lead"),
    }
}

#[test]
fn a_unit_keeps_out_older_fills_of_its_rows_and_hears_of_newer_rows() {
    let (gates, (unit, row)) = (Gates::new(), unit_and_row(1));
    let (older, of_unit) = (lead_of(&gates, &row), lead_of(&gates, &unit));
    let newer = lead_of(&gates, &unit_and_row(2).1);
    let other = lead_of(&gates, KEY);
    assert!(newer.finish(|| ()).installed);
    let mut heard = Vec::new();
    assert!(of_unit.finish_beside(|rows| heard.extend_from_slice(rows)).installed);
    assert_eq!(heard, [unit_and_row(2).1.into_boxed_slice()]);
    assert!(!older.finish(|| panic!("it is older than the unit")).installed);
    assert!(other.finish(|| ()).installed, "of another partition");
}

#[test]
fn a_read_does_not_join_a_fill_of_its_row_that_is_older_than_an_installed_unit() {
    let (gates, (unit, row)) = (Gates::new(), unit_and_row(1));
    let (older, of_unit) = (lead_of(&gates, &row), lead_of(&gates, &unit));
    assert!(of_unit.finish(|| ()).installed);
    // The unit may have answered a read of the row, and be evicted by now.
    assert!(lead_of(&gates, &row).finish(|| ()).installed);
    assert!(older.finish(|| panic!("it is older than the unit")).waiters.is_empty());
}
