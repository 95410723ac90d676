//! Two devices of which one has too much to do: what is read most there moves to the other.

use super::devices::{FIRST, SECOND, fill, key, on};
use super::plan::Setup;
use super::scenarios::{NS, get, pass, put, put_first_in_segment};
use super::world::{EPOCH, Life, World};
use crate::api::Hit;
use crate::device::sim::Crash;
use crate::format::record::Meta;
use crate::ops::get::{FlashRead, Lookup};
use crate::ops::modify::{Change, Modify};
use crate::segment::{Object, SegmentState, StreamId};

/// Objects that are put at first.
const KEYS: u32 = 120;
/// Bytes of a segment.
const SEGMENT: u64 = 64 << 10;
/// Milliseconds after which a device is relieved.
const LASTS: u64 = 1_000;

/// Two devices of so many segments each.
fn two(segments: u32) -> Setup {
    let relieves_after = Some(LASTS);
    let segments = vec![segments; 2];
    Setup { segments, relieves_after, admits_unproven: true, ..Setup::plain(1) }
}

/// The same, where what is read once moves too while there is plenty of space.
fn two_that_move_all(segments: u32) -> Setup {
    Setup { moves_once: true, ..two(segments) }
}

fn world_with(setup: Setup) -> (World, Life) {
    let mut world = World::new(&setup);
    let mut life = world.open();
    fill(&mut world, &mut life, 0, KEYS);
    (world, life)
}

fn world() -> (World, Life) {
    world_with(two(20))
}

/// Takes an object out of DRAM.
fn out_of_dram(life: &Life, n: u32) {
    let (core, key) = (&life.core, key(n));
    let hash = core.hash(NS as u16, &key);
    core.shard(hash).lock().dram.remove(hash, NS as u16, &key);
}

/// Begins to look objects up on flash.
fn look_up(life: &Life, keys: &[u32]) -> Vec<FlashRead> {
    let begin = |&n: &u32| {
        out_of_dram(life, n);
        match life.namespaces[NS].get(&key(n)) {
            Lookup::Flash(read) => read,
            other => panic!("no test: {other:?}"),
        }
    };
    keys.iter().map(begin).collect()
}

fn finish(world: &World, read: FlashRead) -> Lookup {
    let set = world.machine.device_set();
    let bytes = set.read_at(read.device(), read.offset(), read.len());
    read.finish(bytes)
}

/// Reads objects from flash, a few each turn; all of them have the value they were put with.
fn read(world: &mut World, life: &mut Life, keys: &[u32]) {
    for &n in keys {
        out_of_dram(life, n);
        assert_eq!(get(life, &key(n)), Some(vec![n as u8; 1000]), "object {n}");
        pass(world, life, 1);
    }
}

/// Lookups that keep the first device busy, and objects of it that are none of theirs.
fn busy(world: &mut World, life: &mut Life) -> (Vec<FlashRead>, Vec<u32>) {
    let there = on(world, life, FIRST, KEYS);
    assert!(there.len() > 30, "no test: {}", there.len());
    let (asked, others) = there.split_at(8);
    let held = look_up(life, asked);
    pass(world, life, 2 * LASTS as usize / 100);
    (held, others.to_vec())
}

fn relocated(life: &Life) -> u64 {
    life.core.stats().totals.relocated_bytes
}

#[test]
fn what_is_read_twice_moves_off_a_busy_device_and_no_moment_loses_it() {
    for kind in [Crash::Process, Crash::Machine] {
        for turns in [0, 60] {
            let (mut world, mut life) = world();
            life.core.journal.sync().expect("flushed");
            let (held, others) = busy(&mut world, &mut life);
            let (hot, cold) = others.split_at(12);
            read(&mut world, &mut life, hot);
            read(&mut world, &mut life, &cold[..4]);
            assert_eq!(relocated(&life), 0, "read once");
            read(&mut world, &mut life, hot);
            assert!(relocated(&life) >= 12_000, "{:?}", life.core.stats().totals);
            if turns > 0 {
                life.core.streams.flush(u64::MAX, false);
            }
            pass(&mut world, &mut life, turns);
            let there = on(&world, &life, SECOND, KEYS);
            if turns > 0 {
                assert!(hot.iter().all(|n| there.contains(n)), "{hot:?} of {there:?}");
                assert!(cold.iter().all(|n| !there.contains(n)), "{cold:?} of {there:?}");
            }
            drop(held);
            world.crash(life, kind);
            let mut life = world.open();
            world.load(&mut life);
            if kind == Crash::Process {
                let kept = hot.iter().filter(|&&n| get(&life, &key(n)).is_some()).count();
                assert_eq!(kept, hot.len(), "{turns} turns later");
            }
        }
    }
}

/// Until as much may move as may at once.
fn save_up(world: &mut World, life: &mut Life) {
    pass(world, life, 40);
}

#[test]
fn what_is_read_once_moves_too_while_there_is_plenty_of_space() {
    let (mut world, mut life) = world_with(two_that_move_all(20));
    let (held, others) = busy(&mut world, &mut life);
    save_up(&mut world, &mut life);
    let cold = &others[..12];
    read(&mut world, &mut life, cold);
    assert!(relocated(&life) >= 12_000, "{:?}", life.core.stats().totals);
    drop(held);
    life.core.streams.flush(u64::MAX, false);
    pass(&mut world, &mut life, 60);
    let there = on(&world, &life, SECOND, KEYS);
    assert!(cold.iter().all(|n| there.contains(n)), "{cold:?} of {there:?}");
}

#[test]
fn what_is_read_once_moves_to_no_device_that_is_nearly_full() {
    let (mut world, mut life) = world_with(two_that_move_all(40));
    let (held, others) = busy(&mut world, &mut life);
    let (cold, table) = (&others[..12], life.core.table.clone());
    // One less than an eighth.
    while table.free_count_on(SECOND) > 4 {
        table.take_free_on(SECOND);
    }
    save_up(&mut world, &mut life);
    assert_eq!(table.relief_to(), Some(SECOND), "no test");
    read(&mut world, &mut life, cold);
    assert_eq!(relocated(&life), 0);
    read(&mut world, &mut life, cold);
    assert!(relocated(&life) >= 12_000, "no test: {:?}", life.core.stats().totals);
    drop(held);
}

#[test]
fn what_is_read_once_leaves_half_of_what_may_move_to_what_was_read_before() {
    let (mut world, mut life) = world_with(two_that_move_all(20));
    let (held, others) = busy(&mut world, &mut life);
    save_up(&mut world, &mut life);
    // No time passes: half of a segment may move, and a quarter of one by what is read once.
    for &n in &others {
        out_of_dram(&life, n);
        assert!(get(&life, &key(n)).is_some());
        world.turn(&mut life);
    }
    let (once, all) = (relocated(&life), others.len() as u64 * 1_000);
    assert!(once > SEGMENT / 8 && once <= SEGMENT / 4 && SEGMENT / 4 < all, "{once} of {all}");
    for &n in others.iter().rev() {
        out_of_dram(&life, n);
        assert!(get(&life, &key(n)).is_some());
        world.turn(&mut life);
    }
    let twice = relocated(&life);
    assert!(twice > SEGMENT * 3 / 8 && twice <= SEGMENT / 2, "{twice}");
    drop(held);
}

/// Removes the first six, and puts the others again.
fn remove_or_put_again(life: &Life, hot: &[u32]) {
    for &n in &hot[..6] {
        life.namespaces[NS].remove(&key(n));
    }
    for &n in &hot[6..] {
        put(life, &key(n), b"newer", 0);
    }
}

/// None of them is as it was before that.
fn is_gone_or_newer(life: &Life, hot: &[u32]) {
    for &n in &hot[..6] {
        assert_eq!(get(life, &key(n)), None, "object {n}");
    }
    for &n in &hot[6..] {
        assert!(get(life, &key(n)).is_none_or(|value| value == b"newer"), "object {n}");
    }
}

#[test]
fn what_has_moved_and_is_removed_or_put_again_is_not_back_after_a_crash() {
    let (mut world, mut life) = world();
    let (held, others) = busy(&mut world, &mut life);
    let hot = &others[..12];
    (0..2).for_each(|_| read(&mut world, &mut life, hot));
    drop(held);
    pass(&mut world, &mut life, 60);
    remove_or_put_again(&life, hot);
    world.crash(life, Crash::Process);
    let mut life = world.open();
    world.load(&mut life);
    is_gone_or_newer(&life, hot);
}

#[test]
fn what_is_put_or_removed_while_it_is_read_does_not_move() {
    let (mut world, mut life) = world();
    let (held, others) = busy(&mut world, &mut life);
    let hot = &others[..12];
    read(&mut world, &mut life, hot);
    let under_way = look_up(&life, hot);
    remove_or_put_again(&life, hot);
    for read in under_way {
        // It began before, so it may find what there was.
        let _ = finish(&world, read);
        pass(&mut world, &mut life, 1);
    }
    assert_eq!(relocated(&life), 0);
    drop(held);
    for &n in hot {
        out_of_dram(&life, n);
    }
    is_gone_or_newer(&life, hot);
}

#[test]
fn it_moves_a_few_bytes_a_second_and_only_as_long_as_a_device_is_busy() {
    let (mut world, mut life) = world();
    let (held, others) = busy(&mut world, &mut life);
    for _ in 0..2 {
        for &n in &others {
            out_of_dram(&life, n);
            assert!(get(&life, &key(n)).is_some());
            // What waits for the device is not to be what bounds it.
            world.turn(&mut life);
        }
    }
    // Half of a segment at once, and a quarter of one each second, of which none has passed.
    let (moved, all) = (relocated(&life), others.len() as u64 * 1_000);
    assert!(moved > 0 && moved <= SEGMENT / 2 && SEGMENT / 2 < all, "{moved} of {all} bytes");
    drop(held);
    // The average of the last seconds takes its time.
    pass(&mut world, &mut life, 800);
    let before = relocated(&life);
    read(&mut world, &mut life, &others);
    assert_eq!(relocated(&life), before, "nothing is busy any more");
}

#[test]
fn nothing_moves_before_it_has_lasted_or_where_both_are_busy() {
    let (mut world, mut life) = world();
    let there = [on(&world, &life, FIRST, KEYS), on(&world, &life, SECOND, KEYS)];
    let hot = &there[0][8..14];
    let held = look_up(&life, &there[0][..8]);
    pass(&mut world, &mut life, LASTS as usize / 100 / 2);
    for _ in 0..3 {
        for &n in hot {
            out_of_dram(&life, n);
            assert!(get(&life, &key(n)).is_some());
        }
    }
    assert_eq!(relocated(&life), 0, "it has not lasted");
    let both = look_up(&life, &there[1][..8]);
    pass(&mut world, &mut life, 1);
    drop((held, both));
    pass(&mut world, &mut life, 800);
    let before = relocated(&life);
    let held = [look_up(&life, &there[0][..8]), look_up(&life, &there[1][..8])];
    pass(&mut world, &mut life, 4 * LASTS as usize / 100);
    read(&mut world, &mut life, hot);
    read(&mut world, &mut life, hot);
    assert_eq!(relocated(&life), before, "both are busy");
    drop(held);
}

#[test]
fn what_moves_does_not_go_on_into_a_segment_of_the_busy_device() {
    let (mut world, mut life) = world();
    let meta = Meta { ns: NS as u16, version: 1, expiry: 0, group: 0, epoch_slot: 0 };
    let object = Object { hash: 1, meta, key: b"left", value: b"open" };
    // As a reclaim leaves one open.
    loop {
        let left = life.core.append(StreamId::Reinserted, &object, None).expect("there is room");
        if life.core.table.place(left.at.segment).device == FIRST {
            break;
        }
        life.core.streams.flush(u64::MAX, true);
        pass(&mut world, &mut life, 20);
    }
    let (held, others) = busy(&mut world, &mut life);
    let hot = &others[..12];
    (0..2).for_each(|_| read(&mut world, &mut life, hot));
    drop(held);
    life.core.streams.flush(u64::MAX, true);
    pass(&mut world, &mut life, 60);
    let there = on(&world, &life, SECOND, KEYS);
    assert!(hot.iter().all(|n| there.contains(n)), "{hot:?} of {there:?}");
}

#[test]
fn a_device_that_is_full_takes_nothing_and_nothing_is_dropped() {
    const MANY: u32 = 520;
    let (mut world, mut life) = world_with(two(9));
    fill(&mut world, &mut life, KEYS, MANY);
    let reclaimed = |life: &Life| life.core.stats().totals.segments_reclaimed;
    assert_eq!(reclaimed(&life), 0, "no test: it was too much");
    let (held, _) = busy(&mut world, &mut life);
    let others = &on(&world, &life, FIRST, MANY)[8..];
    (0..3).for_each(|_| read(&mut world, &mut life, others));
    let left = on(&world, &life, FIRST, MANY).len();
    assert!(left > 40 && left < others.len(), "no test: {left} of {} are left", others.len());
    let (free, reserve) = (life.core.table.free_count(), life.core.admission.free_target);
    assert!(free > reserve, "{free} of {reserve} segments are free");
    assert_eq!(reclaimed(&life), 0, "something had to go");
    pass(&mut world, &mut life, 5);
    assert_eq!(life.core.table.relief_to(), None, "it takes no more");
    drop(held);
}

/// Reads objects from flash without a turn of the background work in between.
fn read_at_once(life: &Life, keys: &[u32]) {
    for &n in keys {
        out_of_dram(life, n);
        assert_eq!(get(life, &key(n)), Some(vec![n as u8; 1000]), "object {n}");
    }
}

#[test]
fn what_is_read_to_be_changed_does_not_move_first() {
    let (mut world, mut life) = world();
    let (held, others) = busy(&mut world, &mut life);
    let hot = &others[..12];
    read(&mut world, &mut life, hot);
    for &n in hot {
        out_of_dram(&life, n);
        let change = |hit: Option<&Hit>| {
            assert!(hit.is_some(), "object {n}");
            (Change::Value(vec![7; 1000].into()), ())
        };
        let Modify::Flash(read) = life.namespaces[NS].modify(&key(n), change) else {
            panic!("no test: object {n} is not on flash")
        };
        let bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
        assert!(matches!(read.finish(bytes), Modify::Done(Ok(_))), "object {n}");
        out_of_dram(&life, n);
    }
    assert_eq!(relocated(&life), 0, "what is replaced at once was written twice");
    drop(held);
}

#[test]
fn nothing_moves_to_a_device_that_rests_or_does_not_answer_or_is_full() {
    // What it is, whether the background work sees it too, and how it comes.
    type Ill = (&'static str, bool, fn(&Life));
    let ills: [Ill; 4] = [
        ("it rests", false, |life| life.core.table.set_resting(SECOND, true)),
        ("it is silent", false, |life| life.core.table.set_silent(SECOND, true)),
        ("it is full", true, |life| while life.core.table.take_free_on(SECOND).is_some() {}),
        ("reclaim is near", true, |life| {
            let reserve = life.core.admission.free_target + 1;
            while life.core.table.free_count() > reserve {
                life.core.table.take_free_on(FIRST).or_else(|| life.core.table.take_free());
            }
        }),
    ];
    for (what, is_seen, befalls) in ills {
        let (mut world, mut life) = world();
        let (held, others) = busy(&mut world, &mut life);
        read(&mut world, &mut life, &others[..12]);
        // The background work has not looked at it yet.
        befalls(&life);
        read_at_once(&life, &others[..12]);
        assert_eq!(relocated(&life), 0, "{what}");
        pass(&mut world, &mut life, 2);
        assert_eq!(life.core.table.relief_to().is_none(), is_seen, "{what}");
        drop(held);
    }
}

#[test]
fn what_moves_goes_to_no_segment_that_reclaim_has_opened_elsewhere_meanwhile() {
    let (mut world, mut life) = world();
    let (held, others) = busy(&mut world, &mut life);
    let hot = &others[..12];
    read(&mut world, &mut life, hot);
    life.core.table.set_resting(SECOND, true);
    let meta = Meta { ns: NS as u16, version: 1, expiry: 0, group: 0, epoch_slot: 0 };
    let object = Object { hash: 1, meta, key: b"left", value: b"open" };
    let left = life.core.append(StreamId::Reinserted, &object, None).expect("there is room");
    assert_eq!(life.core.table.place(left.at.segment).device, FIRST, "no test");
    life.core.table.set_resting(SECOND, false);
    read_at_once(&life, hot);
    assert!(relocated(&life) >= 12_000, "{:?}", life.core.stats().totals);
    life.core.streams.flush(u64::MAX, true);
    pass(&mut world, &mut life, 60);
    let there = on(&world, &life, SECOND, KEYS);
    assert!(hot.iter().all(|n| there.contains(n)), "{hot:?} of {there:?}");
    drop(held);
}

#[test]
fn a_device_that_has_hung_is_not_relieved_of_what_it_could_not_do() {
    let (mut world, mut life) = world();
    let (held, others) = busy(&mut world, &mut life);
    let hot = &others[..12];
    read(&mut world, &mut life, hot);
    let to = life.core.table.relief_to();
    assert_eq!(to, Some(SECOND), "no test");
    world.machine.set_mute(FIRST, true);
    put(&life, b"late", &[1; 1000], 0);
    pass(&mut world, &mut life, 100);
    assert!(life.core.stats().totals.devices_silent > 0, "no test");
    assert_eq!(life.core.table.relief_to(), None, "nothing is asked of it");
    drop(held);
    world.machine.set_mute(FIRST, false);
    pass(&mut world, &mut life, 1);
    let before = relocated(&life);
    read_at_once(&life, hot);
    assert_eq!(relocated(&life), before, "it has nothing to do");
}

#[test]
fn what_moves_leaves_half_of_the_saved_write_budget_to_others() {
    for (rate, moves) in [(1_000, true), (60, false)] {
        let (mut world, mut life) = world_with(Setup { write_budget: Some(rate), ..two(20) });
        let budget = life.core.admission.budget.as_ref().expect("there is one");
        let (saved, written) = (rate * 3_600, life.core.written());
        assert!(budget.allows(written, 20_000), "no test: {written} of {saved}");
        assert_eq!(written < saved / 2, moves, "no test: {written} of {saved}");
        let (held, others) = busy(&mut world, &mut life);
        (0..2).for_each(|_| read(&mut world, &mut life, &others[..12]));
        assert_eq!(relocated(&life) > 0, moves, "{rate}");
        drop(held);
    }
}

#[test]
fn what_has_moved_goes_with_its_namespace() {
    let (mut world, mut life) = world();
    let (held, others) = busy(&mut world, &mut life);
    let hot = &others[..12];
    (0..2).for_each(|_| read(&mut world, &mut life, hot));
    assert!(relocated(&life) >= 12_000, "no test");
    // Some are on flash at both places, none of them in DRAM.
    hot.iter().for_each(|&n| out_of_dram(&life, n));
    life.namespaces[NS].clear();
    drop(held);
    pass(&mut world, &mut life, 60);
    assert!(hot.iter().all(|&n| get(&life, &key(n)).is_none()));
    world.crash(life, Crash::Process);
    let mut life = world.open();
    world.load(&mut life);
    assert!(hot.iter().all(|&n| get(&life, &key(n)).is_none()), "back after a crash");
}

#[test]
fn what_has_moved_ends_with_its_time() {
    let (mut world, mut life) = world();
    for n in KEYS..2 * KEYS {
        put(&life, &key(n), &[n as u8; 1000], EPOCH as u32 + 5_000);
        pass(&mut world, &mut life, 2);
    }
    life.core.streams.flush(u64::MAX, true);
    pass(&mut world, &mut life, 60);
    let (held, _) = busy(&mut world, &mut life);
    let there = on(&world, &life, FIRST, 2 * KEYS);
    let ends: Vec<u32> = there.into_iter().filter(|&n| n >= KEYS).take(12).collect();
    (0..2).for_each(|_| read(&mut world, &mut life, &ends));
    assert!(relocated(&life) >= 12_000, "no test");
    drop(held);
    pass(&mut world, &mut life, 60);
    world.clock.set_unix(EPOCH + 6_000);
    read_none(&life, &ends);
    world.crash(life, Crash::Process);
    let mut life = world.open();
    world.load(&mut life);
    read_none(&life, &ends);
}

fn read_none(life: &Life, keys: &[u32]) {
    for &n in keys {
        out_of_dram(life, n);
        assert_eq!(get(life, &key(n)), None, "object {n}");
    }
}

#[test]
fn what_was_read_before_its_segment_was_used_anew_does_not_move_over_what_is_newer() {
    // One device, which is told to relieve itself: its place is used anew the soonest.
    let mut world = World::new(&Setup::plain(1));
    let mut life = world.open();
    let table = life.core.table.clone();
    let begin = |life: &Life| match life.namespaces[NS].get(b"key") {
        Lookup::Flash(read) => read,
        other => panic!("no test: {other:?}"),
    };
    put_first_in_segment(&mut world, &mut life, b"key", &[0; 900]);
    drop(begin(&life));
    let old = begin(&life);
    let bytes = life.core.set.read_at(old.device(), old.offset(), old.len());
    let is_there_again = (1..200u8).any(|n| {
        put_first_in_segment(&mut world, &mut life, b"key", &[n; 900]);
        begin(&life).offset() == old.offset()
    });
    assert!(is_there_again, "the place was never used again");
    let dead = |&segment: &u32| table.live(segment) == 0 && !table.is_pending(segment);
    for segment in table.in_state(SegmentState::Sealed).filter(dead).collect::<Vec<_>>() {
        table.start_reclaim(segment);
        table.set_free(segment);
    }
    table.begin_relief(|_| true, FIRST);
    table.grant_relief(SEGMENT, SEGMENT);
    let _ = old.finish(bytes);
    assert_eq!(relocated(&life), 0);
    assert_ne!(get(&life, b"key"), Some(vec![0; 900]), "the older value is back");
    // And what is current does move now.
    let hash = life.core.hash(NS as u16, b"key");
    life.core.shard(hash).lock().dram.remove(hash, NS as u16, b"key");
    assert!(get(&life, b"key").is_some() && relocated(&life) > 0, "no test");
}
