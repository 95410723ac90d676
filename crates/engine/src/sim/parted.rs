//! Values in parts, as the memcached front end stores them, while the power goes at any moment.
//!
//! Parts are put first, into a namespace of their own, and acknowledged once they are written. Then
//! the head is put, which names them. After whatever end of a life a head that is found has all its
//! parts, and one that was acknowledged is found where its durability says so.

use super::plan::Setup;
use super::scenarios::NS;
use super::state::look_up;
use super::world::{Life, World};
use crate::api::{PutOptions, PutOutcome};
use crate::config::Durability;
use crate::device::sim::{Crash, SimRandom};
use crate::durability::pending::{Ack, Pending};
use crate::namespace::Namespace;
use crate::ops::get::Lookup;

/// The namespace of the parts.
const PARTS: usize = 1;
const SEEDS: u64 = 200;
/// Stores in a life at most.
const STORES: u64 = 6;

/// How a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    PartsFirst,
    /// A mistake.
    HeadAtOnce,
}

fn world(seed: u64, durability: Durability) -> World {
    let mut world = World::new(&Setup { segments: vec![12, 12], ..Setup::plain(seed) });
    let parts = match durability {
        Durability::Synced => Durability::Synced,
        Durability::WriteBack | Durability::WriteThrough => Durability::WriteThrough,
    };
    (world.options[NS].durability, world.options[PARTS].durability) =
        (durability as u8, parts as u8);
    world
}

/// The keys of the parts of a value, which say which they are.
fn parts(number: u64) -> Vec<[u8; 16]> {
    let part = |n: u64| {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key[8..].copy_from_slice(&n.to_le_bytes());
        key
    };
    (0..2 + number % 4).map(part).collect()
}

fn part(key: &[u8; 16]) -> Vec<u8> {
    key.repeat(200)
}

fn put(ns: &Namespace, key: &[u8], value: &[u8]) -> Ack<PutOutcome> {
    ns.submit_put(key, value, PutOptions { through: true, ..PutOptions::default() })
}

/// Whether all of these are stored, once that is known; false where the power goes before.
fn stored(world: &mut World, life: &mut Life, puts: Vec<Ack<PutOutcome>>) -> bool {
    puts.into_iter().all(|put| match put {
        Ack::Done(outcome) => matches!(outcome, PutOutcome::Stored { .. }),
        Ack::Later(pending) => {
            matches!(awaited(world, life, pending), Some(PutOutcome::Stored { .. }))
        }
    })
}

fn awaited(world: &mut World, life: &mut Life, pending: Pending<PutOutcome>) -> Option<PutOutcome> {
    while !pending.is_done() && !world.machine.is_down() {
        world.turn(life);
        world.clock.pass(1);
    }
    // What is said behind the moment at which the power went was heard by nobody.
    (!world.machine.is_down()).then(|| pending.wait())
}

/// Stores a value. Says whether its head was put, and whether that was acknowledged.
fn store(world: &mut World, life: &mut Life, number: u64, order: Order) -> (bool, bool) {
    let put_part = |key: &[u8; 16]| put(&life.namespaces[PARTS], key, &part(key));
    let puts: Vec<_> = parts(number).iter().map(put_part).collect();
    if order == Order::HeadAtOnce {
        let head = put(&life.namespaces[NS], b"key", &number.to_le_bytes());
        return (true, stored(world, life, vec![head]) && stored(world, life, puts));
    }
    if !stored(world, life, puts) {
        return (false, false);
    }
    let head = put(&life.namespaces[NS], b"key", &number.to_le_bytes());
    (true, stored(world, life, vec![head]))
}

fn read(life: &Life, ns: usize, key: &[u8]) -> Option<Vec<u8>> {
    match look_up(life, &life.namespaces[ns], key) {
        Lookup::Hit(hit) => Some(hit.value.to_vec()),
        _ => None,
    }
}

/// What became of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    found: usize,
    cold: usize,
    /// Heads without all their parts.
    torn: usize,
}

/// Stores values until the power goes, some times over, and looks at what is left.
fn run(seed: u64, durability: Durability, kind: Crash, order: Order, seen: &mut Seen) {
    let mut world = world(seed, durability);
    let mut random = SimRandom::new(seed ^ 0x9a47);
    let (mut life, mut number, mut begun, mut acknowledged) = (world.open(), 0, 0, None);
    for _ in 0..3 {
        world.machine.crash_after(random.below(60));
        let last = number + STORES;
        while number < last && !world.machine.is_down() {
            number += 1;
            let (is_put, is_acknowledged) = store(&mut world, &mut life, number, order);
            if is_put {
                begun = number;
            }
            if is_acknowledged {
                acknowledged = Some(number);
            }
        }
        world.crash(life, kind);
        life = world.open();
        world.load(&mut life);
        let what = format!("seed {seed}, {durability:?}, {kind:?}");
        let Some(head) = read(&life, NS, b"key") else {
            seen.cold += 1;
            let lasts = kind == Crash::Process || durability == Durability::Synced;
            // A head that was put and not acknowledged may have taken it along.
            let is_last = acknowledged.is_some_and(|last| last == begun);
            assert!(!is_last || !lasts, "{what}: {acknowledged:?} is gone");
            // A miss is no value to be compared with later.
            acknowledged = None;
            continue;
        };
        seen.found += 1;
        let found = u64::from_le_bytes(head.try_into().expect("a head"));
        assert!(acknowledged.is_none_or(|last| found >= last), "{what}: {found} is stale");
        acknowledged = Some(found);
        let whole = parts(found).iter().all(|key| read(&life, PARTS, key) == Some(part(key)));
        seen.torn += usize::from(!whole);
        assert!(whole || order == Order::HeadAtOnce, "{what}: value {found} is torn");
    }
}

#[test]
fn a_head_that_is_found_has_all_its_parts_whenever_the_power_goes() {
    for durability in [Durability::WriteBack, Durability::WriteThrough, Durability::Synced] {
        for kind in [Crash::Process, Crash::Machine] {
            let mut seen = Seen::default();
            (0..SEEDS).for_each(|seed| {
                run(seed, durability, kind, Order::PartsFirst, &mut seen);
            });
            let lasts = kind == Crash::Process || durability == Durability::Synced;
            assert!(seen.found > 100 || !lasts, "{durability:?}, {kind:?}: no test: {seen:?}");
        }
    }
}

#[test]
fn a_head_that_is_put_before_its_parts_are_written_would_be_noticed() {
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        run(seed, Durability::WriteThrough, Crash::Process, Order::HeadAtOnce, &mut seen);
    }
    assert!(seen.torn > 0, "{seen:?}");
}
