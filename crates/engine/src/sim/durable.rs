//! What an acknowledgement promises that waits for a device, step by step.

use super::plan::Setup;
use super::scenarios::{NS, crash, get};
use super::world::{Life, World};
use crate::api::{PutOptions, PutOutcome, RefuseReason};
use crate::config::Durability;
use crate::device::sim::{Crash, SimFaults, SimIo};
use crate::durability::pending::{Ack, Pending};
use crate::ops::modify::{Change, Changed, Modified, Modify};

/// A world whose first namespace has this durability.
fn durable(seed: u64, durability: Durability) -> (World, Life) {
    let mut world = World::new(&Setup::plain(seed));
    world.options[NS].durability = durability as u8;
    let life = world.open();
    (world, life)
}

fn submit(life: &Life, key: &[u8], value: &[u8]) -> Pending<PutOutcome> {
    match life.namespaces[NS].submit_put(key, value, PutOptions::default()) {
        Ack::Later(pending) => pending,
        Ack::Done(outcome) => panic!("acknowledged without waiting: {outcome:?}"),
    }
}

/// Turns until the put is acknowledged; the clock stands still.
pub(super) fn acknowledged(
    world: &mut World,
    life: &mut Life,
    pending: Pending<PutOutcome>,
) -> PutOutcome {
    for _ in 0..1000 {
        if pending.is_done() {
            return pending.wait();
        }
        world.turn(life);
    }
    panic!("not acknowledged")
}

#[test]
fn what_was_acknowledged_write_through_is_a_hit_after_the_death_of_the_process() {
    for seed in 0..50 {
        let (mut world, mut life) = durable(seed, Durability::WriteThrough);
        let pending = submit(&life, b"key", b"value");
        assert!(!pending.is_done(), "nothing is written yet");
        assert_eq!(get(&life, b"key").as_deref(), Some(&b"value"[..]), "but seen");
        let outcome = acknowledged(&mut world, &mut life, pending);
        assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
        let life = crash(&mut world, life, Crash::Process);
        assert_eq!(get(&life, b"key").as_deref(), Some(&b"value"[..]), "seed {seed}");
    }
}

#[test]
fn one_put_of_many_that_are_written_back_is_a_hit_after_the_death_of_the_process() {
    for seed in 0..50 {
        let (mut world, mut life) = durable(seed, Durability::WriteBack);
        let through = PutOptions { through: true, ..PutOptions::default() };
        let put = |key: &[u8], options| life.namespaces[NS].submit_put(key, key, options);
        assert!(matches!(put(b"other", PutOptions::default()), Ack::Done(_)), "as ever");
        let Ack::Later(pending) = put(b"put", through) else { panic!("it did not wait") };
        let value = bytes::Bytes::from_static(b"changed");
        let change = Change::Put { value, options: through };
        let Modify::Later(changed) = life.namespaces[NS].modify(b"changed", |_| (change, ()))
        else {
            panic!("it did not wait")
        };
        assert!(!pending.is_done() && !changed.is_done(), "nothing is written yet");
        for _ in 0..1000 {
            if pending.is_done() && changed.is_done() {
                break;
            }
            world.turn(&mut life);
        }
        assert!(matches!(pending.wait(), PutOutcome::Stored { .. }));
        assert!(matches!(changed.wait().changed, Changed::Put(PutOutcome::Stored { .. })));
        let life = crash(&mut world, life, Crash::Process);
        for key in [&b"put"[..], b"changed"] {
            assert_eq!(get(&life, key).as_deref(), Some(key), "seed {seed}");
        }
    }
}

/// It waits in DRAM then, as all others do.
#[test]
fn one_put_that_flash_does_not_take_is_stored_as_any_that_is_written_back() {
    let (world, life) = durable(1, Durability::WriteBack);
    let through = PutOptions { through: true, ..PutOptions::default() };
    let put = |n: u32| life.namespaces[NS].submit_put(&n.to_le_bytes(), &[1; 2000], through);
    // Nothing is written meanwhile.
    let last = (0..100_000).find(|n| matches!(put(*n), Ack::Done(_))).expect("the queue is full");
    assert_eq!(get(&life, &last.to_le_bytes()), Some(vec![1; 2000]));
    drop((life, world));
}

/// Its caller is told, and says what becomes of it.
#[test]
fn one_put_that_flash_does_not_take_is_refused_where_its_caller_says_so() {
    let (world, life) = durable(1, Durability::WriteBack);
    let options = PutOptions { through: true, or_refused: true, ..PutOptions::default() };
    let put = |n: u32| life.namespaces[NS].submit_put(&n.to_le_bytes(), &[1; 2000], options);
    // Nothing is written meanwhile.
    let told = |n| match put(n) {
        Ack::Done(outcome) => Some((n, outcome)),
        Ack::Later(_) => None,
    };
    let (last, outcome) = (0..100_000).find_map(told).expect("the queue is full");
    assert_eq!(outcome, PutOutcome::Refused(RefuseReason::QueueFull));
    assert_eq!(get(&life, &last.to_le_bytes()), None);
    let change = Change::Put { value: vec![1; 2000].into(), options };
    let changed = life.namespaces[NS].modify(b"changed", |_| (change, ()));
    let Modify::Done(Ok(Modified { changed, .. })) = changed else { panic!("it waits") };
    assert_eq!(changed, Changed::Put(PutOutcome::Refused(RefuseReason::QueueFull)));
    drop((life, world));
}

#[test]
fn what_was_acknowledged_synced_is_a_hit_after_power_loss() {
    for seed in 0..50 {
        let (mut world, mut life) = durable(seed, Durability::Synced);
        for n in 0..3u8 {
            let pending = submit(&life, b"key", &[n; 100]);
            let outcome = acknowledged(&mut world, &mut life, pending);
            assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
        }
        let life = crash(&mut world, life, Crash::Machine);
        assert_eq!(get(&life, b"key"), Some(vec![2; 100]), "seed {seed}");
    }
}

#[test]
fn a_device_that_fails_or_is_silent_refuses_with_a_reason_and_the_older_object_is_gone() {
    for durability in [Durability::WriteThrough, Durability::Synced] {
        for (write_error, sync_error, silent) in
            [(1.0, 0.0, false), (0.0, 1.0, false), (0.0, 0.0, true)]
        {
            if durability == Durability::WriteThrough && sync_error > 0.0 {
                continue;
            }
            let (mut world, mut life) = durable(1, durability);
            let pending = submit(&life, b"key", b"old");
            let _ = acknowledged(&mut world, &mut life, pending);
            world.machine.set_faults(SimFaults { write_error, sync_error, ..SimFaults::none() });
            let pending = submit(&life, b"key", b"new");
            if silent {
                for _ in 0..6 {
                    assert!(!pending.is_done(), "it has five seconds");
                    world.turn_without_answers(&mut life);
                    world.clock.pass(1000);
                }
                world.turn_without_answers(&mut life);
                assert!(pending.is_done(), "nobody waits for a dead device");
            }
            let outcome = acknowledged(&mut world, &mut life, pending);
            assert_eq!(
                outcome,
                PutOutcome::Refused(RefuseReason::Device),
                "{durability:?} {write_error} {sync_error}"
            );
            assert_eq!(get(&life, b"key"), None);
            let life = crash(&mut world, life, Crash::Process);
            assert_eq!(get(&life, b"key"), None, "nor does it return");
        }
    }
}

#[test]
fn those_who_wait_at_the_same_time_share_a_write() {
    let (mut world, mut life) = durable(1, Durability::WriteThrough);
    let before = life.core.stats().totals;
    let waiting: Vec<_> = (0..50u8).map(|n| submit(&life, &[n], &[n; 100])).collect();
    for pending in waiting {
        assert!(matches!(acknowledged(&mut world, &mut life, pending), PutOutcome::Stored { .. }));
    }
    let padding = life.core.stats().totals.padding_bytes - before.padding_bytes;
    assert!(padding < 2 * 4096, "{padding} bytes were written to fill blocks");
}

/// The flush of the first is under way, the second waits for the next one: each record is written.
/// Then the device fails, and the segment of both is given up.
#[test]
fn what_waits_for_a_flush_is_refused_when_its_segment_is_given_up() {
    let (mut world, mut life) = durable(1, Durability::Synced);
    world.machine.hold_up(SimIo::Sync, 0, 40);
    let first = submit(&life, b"first", b"value");
    while !world.machine.is_held_up() {
        world.turn(&mut life);
    }
    let second = submit(&life, b"second", b"value");
    for _ in 0..10 {
        world.turn(&mut life);
    }
    let copied = life.on_flash(&world.machine, NS as u8, b"second");
    assert!(copied.is_some() && !first.is_done() && !second.is_done(), "no test");
    world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
    let third = submit(&life, b"third", b"value");
    for (pending, key) in [(third, &b"third"[..]), (second, b"second"), (first, b"first")] {
        let outcome = acknowledged(&mut world, &mut life, pending);
        assert_eq!(outcome, PutOutcome::Refused(RefuseReason::Device), "{key:?}");
        assert_eq!(get(&life, key), None, "{key:?}");
    }
    let life = crash(&mut world, life, Crash::Machine);
    for key in [&b"first"[..], b"second", b"third"] {
        assert_eq!(get(&life, key), None, "{key:?} returns");
    }
}
