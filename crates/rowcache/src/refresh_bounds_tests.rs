//! What a unit that is written does not wait for, and how long reads wait for it.

use super::*;
use crate::gate::GateScope;

fn again(stage: &Stage, c: i32) {
    let refresh = stage.refresh(&insert(c));
    let row = stage.row_of(&rows([c]), c, None);
    drop(stage.cache.end_refresh(refresh, &row, stage.clock.moment(), BYTES));
}

#[test]
fn reads_do_not_wait_for_one_write_that_hangs_beside_others() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let hangs = stage.begin(&insert(15));
    for _ in 0..200 {
        stage.clock.pass_millis(50);
        again(&stage, 16);
    }
    let waits = stage.awaits(&Waiter::default());
    drop(hangs);
    assert!(!waits, "10 seconds after the write began");
}

#[test]
fn reads_that_have_given_up_are_forgotten() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let hangs = stage.begin(&insert(15));
    let waiter = Waiter::default();
    for _ in 0..200 {
        stage.clock.pass_millis(50);
        again(&stage, 16);
        // Each gives up after 100 ms.
        stage.awaits(&waiter);
    }
    let kept = Arc::strong_count(&waiter) - 1;
    drop(hangs);
    assert!(kept <= 8, "{kept} are kept");
}

#[test]
fn a_whole_unit_that_a_wide_write_overtakes_is_freed() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let waiter = Waiter::default();
    let Refresh(reread) = stage.refresh(&insert(15));
    assert!(stage.awaits(&waiter));
    let (row, now) = (stage.row_of(&rows([15]), 15, None), stage.clock.moment());
    let ended = reread.amend(|unit| unit.with(&stage.row_key(15), &row, now, BYTES));
    let Amended::Whole(at) = ended else { panic!("{ended:?}") };
    // Between the two steps of `end_refresh`.
    stage.cache.gates.begin_write(&GateScope::Everything);
    assert!(stage.cache.open(&at).is_none());
    stage.cache.gates.end_write(&GateScope::Everything, crate::gate::Settled::Definite);
    assert_eq!(Arc::strong_count(&waiter), 1, "the waiter is held");
    assert_eq!(stage.cache.pending.load(Ordering::Relaxed), 0, "bytes are held");
}

#[test]
fn reads_do_not_wait_beside_a_write_of_all_the_table() {
    let stage = Stage::new();
    let table = gate_of("s", "t");
    for (wide, frees) in [
        (GateScope::Table(table), true),
        (GateScope::Everything, true),
        (GateScope::Table(table.wrapping_add(1)), false),
    ] {
        stage.fill(&rows([10, 20]), 9);
        let (waiter, refresh) = (Waiter::default(), stage.refresh(&insert(15)));
        assert!(stage.awaits(&waiter));
        stage.cache.gates.begin_write(&wide);
        let freed = Arc::strong_count(&waiter) == 1;
        assert_eq!((freed, stage.awaits(&Waiter::default())), (frees, !frees), "{wide:?}");
        stage.cache.gates.end_write(&wide, crate::gate::Settled::Definite);
        let back = stage.end(refresh, &stage.row_of(&rows([15]), 15, None));
        assert_eq!(back == Installed::Row, !frees, "{wide:?}");
        assert_eq!(stage.cache.pending.load(Ordering::Relaxed), 0, "bytes are held");
    }
}

#[test]
fn a_unit_that_grows_beyond_the_bound_is_dropped() {
    let stage = Stage::new();
    for (room, fits) in [(1 << 10, true), (1, false)] {
        stage.fill(&rows([10, 20]), 9);
        let refresh = stage.refresh(&insert(15));
        let taken = stage.cache.pending.load(Ordering::Relaxed);
        // Others have taken the rest but for this.
        let others = crate::kept_unit::MOST_PENDING - taken - room;
        stage.cache.pending.fetch_add(others, Ordering::Relaxed);
        let installed = stage.end(refresh, &stage.row_of(&rows([15]), 15, None));
        assert_eq!(installed == Installed::Row, fits);
        let left = stage.cache.pending.fetch_sub(others, Ordering::Relaxed);
        assert_eq!(left, others, "what it grew by is given back");
        assert_eq!(stage.unit().is_some(), fits);
    }
}

#[test]
fn what_is_found_says_how_long_ago_its_fill_was_sent() {
    let stage = Stage::new();
    // As under `exclusive` without an end, and with one.
    for max_age in [None, Some(100)] {
        let led = stage.lead(&stage.unit_key());
        let filled = Filled { max_age, ..stage.unit_of(&rows([10, 20]), 9, false) };
        let asked_at = stage.clock.moment();
        stage.clock.pass(2);
        stage.install(&stage.unit_key(), Fill { led, filled, asked_at });
        stage.clock.pass(5);
        let unit = stage.stored_unit().unwrap();
        let row = unit.row(&stage.plan.table, &stage.row_key(10)).unwrap();
        assert_eq!((unit.age(), row.age()), (Some(7), Some(7)), "{max_age:?}");
        // A unit that follows a write keeps its time.
        again(&stage, 15);
        stage.clock.pass(1);
        assert_eq!(stage.stored_unit().unwrap().age(), Some(8));
        drop(stage.begin(&insert(15)));
        stage.clock.pass(HOLD + 1);
    }
}

#[test]
fn a_batch_with_a_row_that_the_server_names_is_not_one_row() {
    let script = "CREATE TABLE s.u (k int, c timeuuid, v int, PRIMARY KEY (k, c));";
    let schema = Arc::new(Schema::of_tables(defined_tables(script, None).unwrap()));
    let index = Index::of(schema.clone());
    let scope = |texts: &[&str]| {
        let mut scope = WriteScope::default();
        for text in texts {
            let Plan::Write(plan) = analyse(&parse(text), &*schema, None) else { panic!("{text}") };
            scope.add(&plan, &|_| None, &index);
        }
        scope
    };
    let named = "INSERT INTO s.u (k, c, v) VALUES (1, 50554d6e-29bb-11e5-b345-feff819cdc9f, 0)";
    let new = "INSERT INTO s.u (k, c, v) VALUES (1, now(), 0)";
    assert!(scope(&[named]).only_row().is_some());
    assert_eq!(scope(&[new]).only_row(), None);
    assert_eq!(scope(&[new, named]).only_row(), None);
    assert_eq!(scope(&[named, new]).only_row(), None, "it writes another row, too");
    let batch = format!("BEGIN BATCH {named}; {new}; APPLY BATCH");
    assert_eq!(scope(&[&batch]).only_row(), None, "it writes another row, too");
}

#[test]
fn a_unit_does_not_lack_the_new_row_of_a_batch() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let write = stage.begin_with_new_row(&insert(15));
    // The database has 10, 15, 20 and 33 now.
    if let Some(refresh) = stage.settled(write) {
        let row = stage.row_of(&rows([15]), 15, None);
        drop(stage.cache.end_refresh(refresh, &row, stage.clock.moment(), BYTES));
    }
    assert_eq!(stage.unit(), None, "it is served, and lacks 33");
}

#[test]
fn reads_do_not_wait_for_a_unit_that_cannot_come_back() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let refresh = stage.refresh(&insert(15));
    let led = stage.lead(&stage.row_key(20));
    let (filled, asked_at) = (stage.row_of(&rows([20]), 20, None), stage.clock.moment());
    stage.install(&stage.row_key(20), Fill { led, filled, asked_at });
    let waits = stage.awaits(&Waiter::default());
    drop(refresh);
    assert!(!waits, "it has a row that a fill has brought since");
}

#[test]
fn reads_do_not_wait_for_one_row_that_is_always_written() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let mut under_way = stage.begin(&insert(15));
    for _ in 0..200 {
        stage.clock.pass_millis(50);
        let next = stage.begin(&insert(15));
        assert!(stage.settled(std::mem::replace(&mut under_way, next)).is_none());
    }
    let waits = stage.awaits(&Waiter::default());
    drop(under_way);
    assert!(!waits, "for 10 seconds no read that waited got anything");
}

/// Nothing is dropped for a statement that is refused, and a fill that began before it may not have
/// seen what others wrote beside it. The permission of each is from before.
#[test]
fn a_fill_that_began_before_a_refusal_is_overtaken_while_it_is_awaited_and_after() {
    for text in ["TRUNCATE s.t", "DROP TABLE s.t", "FROBNICATE"] {
        for after in [false, true] {
            let stage = Stage::new();
            let asked = [stage.unit_key(), stage.row_key(10)].map(|key| {
                let led = stage.lead(&key);
                (key, led, stage.clock.moment())
            });
            let mut refused = Some(stage.begin(text));
            let refuse = |write: WriteInFlight<Waiter>| write.settle(Answered::Refused);
            if after {
                refused.take().into_iter().for_each(refuse);
            }
            for (key, led, asked_at) in asked {
                let filled = match key.has_clustering() {
                    true => stage.row_of(&rows([10]), 10, None),
                    false => stage.unit_of(&rows([10]), 9, false),
                };
                let installed = stage.install(&key, Fill { led, filled, asked_at });
                assert_eq!(installed, Installed::Overtaken, "{text}, after: {after}");
            }
            refused.into_iter().for_each(refuse);
            let left = [stage.unit_key(), stage.row_key(10)].map(|key| stage.cache.look_up(&key));
            assert!(!left.iter().any(|left| matches!(left, Lookup::Hit(_))), "{text}");
            // One that begins now is installed.
            stage.fill(&rows([10]), 9);
        }
    }
}
