//! What a full flash takes: what has proven itself, and what is seen to be read once written.

use super::plan::Setup;
use super::scenarios::{NS, crash, get, pass, put, world};
use super::world::{Life, World};
use crate::device::sim::Crash;

/// Turns of a tenth of a second in which the background has copied what it copies.
const COPIED: usize = 100;
const VALUE: [u8; 1200] = [7; 1200];

fn key(n: u32) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// Puts objects that nobody asks for until reclaim has begun. Returns their number.
fn fill(world: &mut World, life: &mut Life) -> u32 {
    for n in 0..20_000 {
        put(life, &key(n), &VALUE, 0);
        if n % 20 == 0 {
            pass(world, life, 5);
        }
        if life.core.stats().totals.segments_reclaimed > 4 {
            return n + 1;
        }
    }
    panic!("no test: flash is not full: {:?}", life.core.stats());
}

fn flash(life: &Life) -> u64 {
    u64::from(life.core.table.len()) * u64::from(life.core.table.segment_size())
}

#[test]
fn what_is_asked_for_a_lot_after_its_copy_was_refused_is_copied_in_time() {
    let (mut world, mut life) = world(1);
    fill(&mut world, &mut life);
    life.core.admission.duel.let_proven_win();
    // In none of the samples, whose fate does not depend on what the others show.
    let follows = |n: &u32| {
        let hash = life.core.hash(NS as u16, &key(*n));
        !life.core.admission.duel.is_sampled(hash)
    };
    let key = key((200_000..).find(follows).expect("most are in none"));
    put(&life, &key, &VALUE, 0);
    let refused = life.core.stats().totals.copies_refused;
    pass(&mut world, &mut life, COPIED);
    assert!(life.core.stats().totals.copies_refused > refused, "no test: it is admitted");
    assert!(life.on_flash(&world.machine, NS as u8, &key).is_none(), "no test: it is on flash");
    for _ in 0..6 {
        assert!(get(&life, &key).is_some());
    }
    pass(&mut world, &mut life, COPIED);
    let life = crash(&mut world, life, Crash::Process);
    assert!(get(&life, &key).is_some(), "it was asked for, and is lost with the process");
}

#[test]
fn what_the_write_budget_refused_is_copied_once_the_budget_allows() {
    let mut world = World::new(&Setup { write_budget: Some(100), ..Setup::plain(1) });
    let mut life = world.open();
    let refused = |life: &Life| life.core.stats().totals.copies_refused;
    for n in 0..400 {
        put(&life, &key(n), &VALUE, 0);
        pass(&mut world, &mut life, 1);
    }
    put(&life, b"hot", &VALUE, 0);
    let ask = |life: &Life| (0..20).all(|_| get(life, b"hot").is_some());
    assert!(ask(&life));
    let before = refused(&life);
    pass(&mut world, &mut life, COPIED);
    assert!(refused(&life) > before, "no test: the budget allows it");
    assert!(life.on_flash(&world.machine, NS as u8, b"hot").is_none(), "no test: it is on flash");
    // What an hour grants.
    world.clock.pass(3_600_000);
    pass(&mut world, &mut life, 1);
    assert!(ask(&life));
    pass(&mut world, &mut life, COPIED);
    let life = crash(&mut world, life, Crash::Process);
    assert!(get(&life, b"hot").is_some(), "it is asked for all the time, and is lost");
}

/// No count of requests can show that such objects are worth a write; trying does.
#[test]
fn what_is_put_once_and_read_once_much_later_is_served_from_a_full_flash() {
    let (mut world, mut life) = world(1);
    let mut next = fill(&mut world, &mut life);
    // A quarter of flash, which DRAM is a small part of. Free segments are another part.
    let behind = (flash(&life) / 4 / VALUE.len() as u64) as u32;
    let (mut hits, mut reads) = (0, 0);
    let (turnovers, counted) = (6, 4);
    for turn in 0..turnovers {
        for _ in 0..4 * behind {
            put(&life, &key(next), &VALUE, 0);
            let found = get(&life, &key(next - behind)).is_some();
            if turn >= counted {
                (hits, reads) = (hits + u32::from(found), reads + 1);
            }
            next += 1;
            if next.is_multiple_of(5) {
                pass(&mut world, &mut life, 5);
            }
        }
    }
    assert!(f64::from(hits) >= 0.8 * f64::from(reads), "{hits} of {reads} reads are hits");
}
