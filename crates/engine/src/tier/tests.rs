//! Tests of the DRAM tier against a plain model.

use crate::index::{Location, MAX_SEGMENTS};
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Room for the tier's own structures and `bytes` more.
fn budget(bytes: usize) -> usize {
    DramTier::new(0).bytes() + bytes
}

/// A hash as spread out as a real one.
pub(super) fn hash(key: u64) -> u64 {
    (key + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn entry(key: u64, version: u64, value_len: usize, state: EntryState) -> DramEntry {
    let mut data = key.to_le_bytes().to_vec();
    data.resize(8 + value_len, version as u8);
    DramEntry {
        hash: hash(key),
        version,
        data: data.into(),
        key_len: 8,
        expiry: 0,
        group: 0,
        epoch_slot: 0,
        ns: 3,
        state,
    }
}

fn dirty(key: u64, version: u64, value_len: usize) -> DramEntry {
    entry(key, version, value_len, EntryState::Dirty)
}

fn get(tier: &mut DramTier, key: u64) -> Option<DramEntry> {
    tier.get(hash(key), 3, &key.to_le_bytes()).map(|object| object.to_entry())
}

#[test]
fn the_least_budget_holds_objects() {
    let mut tier = DramTier::new(LEAST_BYTES);
    for key in 0..100 {
        tier.insert(&dirty(key, 1, 100).object(), &mut Evicted::default());
        assert!(get(&mut tier, key).is_some() && tier.bytes() <= LEAST_BYTES, "{key}");
    }
}

#[test]
fn an_object_is_found_by_its_whole_key_only() {
    let mut tier = DramTier::new(budget(10_000));
    tier.insert(&dirty(1, 5, 10).object(), &mut Evicted::default());
    assert_eq!(
        get(&mut tier, 1).map(|found| (found.version, found.object().value().len())),
        Some((5, 10))
    );
    assert!(tier.peek(hash(1), 4, &1u64.to_le_bytes()).is_none(), "another namespace");
    assert!(tier.peek(hash(1), 3, &2u64.to_le_bytes()).is_none(), "another key");
    assert!(tier.remove(hash(1), 3, &2u64.to_le_bytes()).is_none());
    assert_eq!(tier.remove(hash(1), 3, &1u64.to_le_bytes()), Some(5));
    assert!(tier.is_empty() && get(&mut tier, 1).is_none());
}

/// Copies taken of so many reads from flash, each of another object, every one of which is read
/// `again` times.
fn copies_taken(tier: &mut DramTier, keys: std::ops::Range<u64>, again: usize) -> usize {
    let at = EntryState::Clean(Location { segment: 1, offset_units: 2 });
    let taken = keys.filter(|&key| {
        let copy = entry(key, 1, 100, at);
        let wanted = tier.wants_copy(copy.hash, copy.data.len(), |_| 0);
        if wanted {
            tier.insert(&copy.object(), &mut Evicted::default());
        }
        (0..again).for_each(|_| drop(get(tier, key)));
        wanted
    });
    taken.count()
}

#[test]
fn copies_of_what_flash_holds_are_taken_for_as_long_as_there_is_room_or_they_are_used() {
    let mut tier = DramTier::new(budget(100_000));
    let room = 300;
    assert_eq!(copies_taken(&mut tier, 0..room, 0), room as usize, "there is room for all");
    copies_taken(&mut tier, 10_000..20_000, 0);
    let few = copies_taken(&mut tier, 20_000..30_000, 0);
    assert!((1000..2000).contains(&few), "{few} copies taken that nobody asks for again");
    copies_taken(&mut tier, 30_000..40_000, 1);
    assert_eq!(copies_taken(&mut tier, 40_000..50_000, 1), 10_000, "they are asked for again");
    copies_taken(&mut tier, 50_000..60_000, 0);
    tier.set_budget(budget(200_000), &mut Evicted::default());
    assert_eq!(copies_taken(&mut tier, 60_000..60_100, 0), 100, "there is room again");
}

#[test]
fn an_object_that_has_room_evicts_nothing_whatever_else_is_known_of_it() {
    for len in 1..200 {
        let mut tier = DramTier::new(budget(0));
        let mut other = dirty(1, 1, len);
        (other.expiry, other.group, other.epoch_slot) = (u32::MAX, u32::MAX, u32::MAX);
        let bytes = other.data.len();
        let enough = (budget(0)..).find(|&enough| {
            tier.set_budget(enough, &mut Evicted::default());
            tier.has_room(bytes)
        });
        tier.insert(&other.object(), &mut Evicted::default());
        let (has, may) = (tier.bytes(), enough.expect("a budget that is enough"));
        assert!(tier.len() == 1 && has <= may, "{has} of {may} bytes for {bytes}");
    }
}

#[test]
fn few_copies_are_taken_where_what_they_push_out_is_as_likely_to_be_read_again() {
    const KEYS: u64 = 2_000;
    let at = EntryState::Clean(Location { segment: 1, offset_units: 2 });
    let (mut reads, mut taken) = (0, 0);
    // With so few objects the averages are rough, and any one size may be wrong for a while by
    // chance.
    for objects in (300..480).step_by(20) {
        let mut tier = DramTier::new(budget(objects * (entry_bytes(108))));
        for draw in 0..200_000 {
            let key = hash(draw) % KEYS;
            if get(&mut tier, key).is_some() {
                continue;
            }
            let wanted = tier.wants_copy(hash(key), 108, |_| 0);
            if wanted {
                tier.insert(&entry(key, 1, 100, at).object(), &mut Evicted::default());
            }
            if draw >= 100_000 {
                reads += 1;
                taken += u64::from(wanted);
            }
        }
    }
    assert!(taken * 4 < reads, "{taken} of {reads} taken");
}

#[test]
fn an_object_beyond_the_budget_is_its_own_victim_and_takes_the_older_version_along() {
    let mut tier = DramTier::new(budget(2_000));
    let mut victims = Evicted::default();
    tier.insert(&dirty(1, 1, 10).object(), &mut victims);
    tier.insert(&dirty(2, 2, 10).object(), &mut victims);
    let replaced = tier.insert(&dirty(1, 3, 5_000).object(), &mut victims);
    assert_eq!(replaced, Some(1));
    assert_eq!(victims.iter().map(|victim| victim.version).collect::<Vec<_>>(), [3]);
    assert!(get(&mut tier, 1).is_none() && get(&mut tier, 2).is_some());
}

#[test]
fn dirty_objects_come_oldest_first_and_only_the_very_version_turns_clean() {
    let at = Location { segment: 1, offset_units: 2 };
    let mut tier = DramTier::new(budget(100_000));
    for key in 0..4 {
        tier.insert(&dirty(key, key, 10).object(), &mut Evicted::default());
    }
    let order =
        |tier: &DramTier| tier.dirty_by(u64::MAX).map(|entry| entry.version).collect::<Vec<_>>();
    assert_eq!(order(&tier), [0, 1, 2, 3]);
    assert!(!tier.mark_clean(hash(1), 7, at), "another version is in DRAM by now");
    assert!(tier.mark_clean(hash(1), 1, at));
    // Written again, it keeps its place: what is written all the time must be copied too.
    tier.insert(&dirty(0, 9, 10).object(), &mut Evicted::default());
    assert_eq!(order(&tier), [9, 2, 3]);
    assert_eq!(tier.dirty_len(), 3);
    tier.insert(&dirty(1, 10, 10).object(), &mut Evicted::default());
    assert_eq!(order(&tier), [9, 2, 3, 10]);
    assert!(tier.mark_clean(hash(2), 2, at) && tier.mark_dirty(hash(2), 2));
    assert_eq!(order(&tier), [9, 3, 10, 2]);
    assert_eq!(tier.peek_hash(hash(2)).map(|entry| entry.state), Some(EntryState::Dirty));
}

#[test]
fn what_is_updated_all_the_time_gets_old_among_the_dirty_and_young_again_by_its_copy() {
    let at = Location { segment: 1, offset_units: 2 };
    let mut tier = DramTier::new(budget(100_000));
    let put = |tier: &mut DramTier, ms, key, version| {
        tier.set_now(ms);
        tier.insert(&dirty(key, version, 10).object(), &mut Evicted::default());
    };
    let by = |tier: &DramTier, ms| tier.dirty_by(ms).map(|entry| entry.version).collect::<Vec<_>>();
    assert_eq!(tier.dirty_since(), None);
    put(&mut tier, 1000, 1, 1);
    put(&mut tier, 2000, 2, 2);
    put(&mut tier, 3000, 1, 3);
    assert_eq!((by(&tier, 999), by(&tier, 1000), by(&tier, 2000)), (vec![], vec![3], vec![3, 2]));
    assert!(tier.mark_clean(hash(1), 3, at));
    put(&mut tier, 4000, 1, 4);
    assert_eq!(
        (by(&tier, 3999), by(&tier, 4000), tier.dirty_since()),
        (vec![2], vec![2, 4], Some(2000))
    );
}

#[test]
fn a_scan_does_not_push_out_what_is_used() {
    let mut tier = DramTier::new(budget(100 * (entry_bytes(108))));
    let mut victims = Evicted::default();
    for _ in 0..4 {
        for key in 0..50 {
            if get(&mut tier, key).is_none() {
                tier.insert(&dirty(key, 1, 100).object(), &mut victims);
            }
        }
    }
    for key in 1000..6000 {
        tier.insert(&dirty(key, 1, 100).object(), &mut victims);
    }
    let left = (0..50).filter(|&key| get(&mut tier, key).is_some()).count();
    assert!(left >= 45, "{left} of 50 hot objects are left after a scan");
}

/// Objects that are asked for once more at a distance beyond a small queue of 10 %, after main was
/// filled by others.
#[test]
fn the_share_of_small_follows_the_workload() {
    let mut tier = DramTier::new(budget(1000 * (entry_bytes(4008) + 16)));
    let mut victims = Evicted::default();
    let mut request = |key| {
        let hit = get(&mut tier, key).is_some();
        if !hit {
            tier.insert(&dirty(key, 1, 4000).object(), &mut victims);
            victims.clear();
        }
        hit
    };
    for key in (0..6).flat_map(|_| 0..900) {
        request(key);
    }
    let hits = (1000..21_000).filter(|&key| {
        request(key);
        key >= 11_000 && request(key - 300)
    });
    let hits = hits.count();
    assert!(
        hits > 7_000,
        "{hits} of 10000 objects were still there when they were asked for again"
    );
}

/// Going round and round over a little more than fits is the worst case of every queue: nothing
/// comes back before it leaves.
#[test]
fn a_loop_larger_than_the_tier_still_has_hits() {
    let mut tier = DramTier::new(budget(1000 * (entry_bytes(4008) + 16)));
    let mut victims = Evicted::default();
    let mut hits = 0;
    for key in (0..20).flat_map(|_| 0..1200) {
        if get(&mut tier, key).is_some() {
            hits += 1;
        } else {
            tier.insert(&dirty(key, 1, 4000).object(), &mut victims);
            victims.clear();
        }
    }
    assert!(hits > 20 * 1200 / 3, "{hits} hits in 24000 requests");
}

#[test]
fn a_smaller_budget_evicts_at_once() {
    let mut tier = DramTier::new(budget(100_000));
    for key in 0..100 {
        tier.insert(&dirty(key, key, 400).object(), &mut Evicted::default());
    }
    let mut victims = Evicted::default();
    let smaller = budget(20_000);
    tier.set_budget(smaller, &mut victims);
    assert!(tier.bytes() <= smaller && tier.len() + victims.len() == 100 && !tier.is_empty());
    tier.set_budget(0, &mut victims);
    assert!(tier.is_empty() && victims.len() == 100);
}

/// What the tier remembers of evictions shrinks with the budget too.
#[test]
fn a_tier_that_shrinks_a_lot_still_holds_objects() {
    let mut tier = DramTier::new(budget(8 << 20));
    let mut victims = Evicted::default();
    for key in 0..100_000 {
        tier.insert(&dirty(key, key, 50).object(), &mut victims);
        victims.clear();
    }
    let smaller = budget(20_000);
    tier.set_budget(smaller, &mut victims);
    assert!(tier.bytes() <= smaller && !tier.is_empty(), "{} B of {smaller}", tier.bytes());
    tier.insert(&dirty(200_000, 200_000, 50).object(), &mut victims);
    assert!(get(&mut tier, 200_000).is_some());
}

/// A listing goes by parts, and others come and go and change their size between two of them.
#[test]
fn what_is_there_all_the_time_is_visited_once() {
    let mut tier = DramTier::new(budget(1 << 20));
    let put = |tier: &mut DramTier, key, len| {
        tier.insert(&dirty(key, key, len).object(), &mut Evicted::default());
    };
    (0..600).for_each(|key| put(&mut tier, key, 100));
    let (mut seen, mut from, mut turn) = (HashMap::new(), Some(0), 0);
    while let Some(part) = from {
        from = tier.visit(part, 16, |object| *seen.entry(object.version).or_insert(0) += 1);
        // Keys below 200 stay, and some of them change. Those above go, or come.
        put(&mut tier, turn * 7 % 200, 200 + turn as usize * 40);
        for n in 0..20 {
            let key = 200 + (turn * 20 + n) % 400;
            tier.remove(hash(key), 3, &key.to_le_bytes());
        }
        if turn > 10 {
            (0..60).for_each(|n| put(&mut tier, 10_000 + turn * 60 + n, 10));
        }
        turn += 1;
    }
    assert!(turn > 20, "many parts");
    assert!((0..200).all(|key| seen.get(&key) == Some(&1)));
}

/// What a tier with 50,000 clean objects takes besides their keys and values, for each.
fn overhead(len: impl Fn(u64) -> usize) -> usize {
    let mut tier = DramTier::new(1 << 30);
    let at = EntryState::Clean(Location { segment: 1, offset_units: 2 });
    for key in 0..50_000 {
        tier.insert(&entry(key, key, len(key) - 8, at).object(), &mut Evicted::default());
    }
    let data: usize = tier.iter().map(|object| object.len()).sum();
    assert_eq!(tier.len(), 50_000);
    (tier.bytes() - data) / 50_000
}

/// With the hashes of what left it lately it is up to 11 bytes more.
#[test]
fn an_object_takes_64_bytes_besides_key_and_value_at_most() {
    const GHOST: usize = 11;
    for len in [20, 30, 108, 116, 200, 300, 500, 1032, 1040, 1500, 1990] {
        let measured = overhead(|_| len);
        println!("{len} B: {measured} B beyond, {} by its size", entry_bytes(len) - len);
        assert!(measured <= 64 + GHOST, "{measured} B beyond {len}");
        assert!(entry_bytes(len) - len <= 64);
    }
    let mixed = overhead(|key| 20 + hash(key) as usize % 500);
    println!("20 to 519 B: {mixed} B beyond");
    assert!(mixed <= 64 + GHOST, "{mixed} B beyond sizes of all kinds");
}

#[derive(Debug, Clone)]
enum Op {
    Put { key: u64, len: usize, clean: bool, parts: u32 },
    Get { key: u64 },
    Remove { key: u64 },
    Clean { key: u64 },
    Dirty { key: u64 },
    Retain { even: bool },
    Budget { bytes: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..900u64;
    let len = prop_oneof![20 => 0..600usize, 2 => 600..2100usize, 1 => 2100..5000usize];
    prop_oneof![
        12 => (key.clone(), len, any::<bool>(), 0..8u32)
            .prop_map(|(key, len, clean, parts)| Op::Put { key, len, clean, parts }),
        8 => key.clone().prop_map(|key| Op::Get { key }),
        3 => key.clone().prop_map(|key| Op::Remove { key }),
        3 => key.clone().prop_map(|key| Op::Clean { key }),
        1 => key.prop_map(|key| Op::Dirty { key }),
        1 => any::<bool>().prop_map(|even| Op::Retain { even }),
        1 => (0..300_000usize).prop_map(|bytes| Op::Budget { bytes }),
    ]
}

/// Whether listing the tier, all at once and in parts, and its dirty queue agree with the model.
fn is_listed_as(
    tier: &DramTier,
    model: &HashMap<u64, DramEntry>,
) -> Result<(), proptest::test_runner::TestCaseError> {
    let mut expected: Vec<DramEntry> = model.values().cloned().collect();
    expected.sort_by_key(|entry| entry.version);
    let mut listed: Vec<DramEntry> = tier.iter().map(|object| object.to_entry()).collect();
    listed.sort_by_key(|entry| entry.version);
    prop_assert_eq!(&listed, &expected);
    let (mut visited, mut from) = (Vec::new(), Some(0));
    while let Some(part) = from {
        from = tier.visit(part, 10, |object| visited.push(object.to_entry()));
    }
    visited.sort_by_key(|entry| entry.version);
    prop_assert_eq!(&visited, &expected);
    let dirty = expected.iter().filter(|entry| entry.object().is_dirty());
    let least: usize = dirty.map(|entry| entry_bytes(entry.data.len())).sum();
    // Expiry, group and partition come on top.
    let most = least + tier.dirty_len() * 3 * 4 + tier.dirty_len() * 32;
    prop_assert!((least..=most).contains(&tier.dirty_bytes()));
    prop_assert_eq!(tier.dirty_by(u64::MAX).count(), tier.dirty_len());
    prop_assert!(tier.dirty_by(u64::MAX).all(|object| object.is_dirty()));
    Ok(())
}

proptest! {
    /// Nothing is lost without being handed over, nothing is returned that was not put last, and
    /// the budget holds.
    #[test]
    fn the_tier_is_a_map_that_hands_over_what_it_drops(ops in prop::collection::vec(op(), 1..700)) {
        let at = Location { segment: MAX_SEGMENTS - 2, offset_units: (1 << 20) - 1 };
        let mut tier = DramTier::new(budget(200_000));
        let mut model: HashMap<u64, DramEntry> = HashMap::new();
        let mut version = 0;
        for op in ops {
            let mut victims = Evicted::default();
            let mut may_exceed = false;
            match op {
                Op::Put { key, len, clean, parts } => {
                    version += 1;
                    let state = if clean { EntryState::Clean(at) } else { EntryState::Dirty };
                    let part = |bit: u32| if parts & bit == 0 { 0 } else { version as u32 ^ bit };
                    let (expiry, group, epoch_slot) = (part(1), part(2), part(4));
                    let new = entry(key, version, len, state);
                    let new = DramEntry { expiry, group, epoch_slot, ..new };
                    let held = tier.peek_hash(hash(key)).map(|object| object.to_entry());
                    let replaced = tier.insert(&new.object(), &mut victims);
                    prop_assert_eq!(replaced, held.as_ref().map(|held| held.version));
                    prop_assert_eq!(held, model.insert(key, new));
                }
                Op::Get { key } => prop_assert_eq!(get(&mut tier, key), model.get(&key).cloned()),
                Op::Remove { key } => {
                    let held = tier.peek_hash(hash(key)).map(|object| object.to_entry());
                    let removed = tier.remove(hash(key), 3, &key.to_le_bytes());
                    prop_assert_eq!(removed, held.as_ref().map(|held| held.version));
                    prop_assert_eq!(held, model.remove(&key));
                }
                Op::Clean { key } => {
                    let known = model.get_mut(&key);
                    let held = known.as_ref().map_or(0, |entry| entry.version);
                    prop_assert_eq!(tier.mark_clean(hash(key), held, at), known.is_some());
                    if let Some(entry) = known {
                        entry.state = EntryState::Clean(at);
                    }
                }
                Op::Dirty { key } => {
                    // Dirty objects take a little more, until the next insertion.
                    may_exceed = true;
                    let known = model.get_mut(&key);
                    let held = known.as_ref().map_or(0, |entry| entry.version);
                    prop_assert_eq!(tier.mark_dirty(hash(key), held), known.is_some());
                    if let Some(entry) = known {
                        entry.state = EntryState::Dirty;
                    }
                }
                Op::Retain { even } => {
                    let goes = |object: &DramObject<'_>| object.version.is_multiple_of(2) != even;
                    let going = tier.iter().filter(goes).map(|object| object.to_entry());
                    for gone in going.collect::<Vec<_>>() {
                        tier.remove(gone.hash, 3, gone.key());
                    }
                    model.retain(|_, entry| (entry.version % 2 == 0) == even);
                }
                Op::Budget { bytes } => tier.set_budget(budget(bytes), &mut victims),
            }
            for victim in victims.to_entries() {
                let key = u64::from_le_bytes(victim.key().try_into().unwrap());
                prop_assert_eq!(model.remove(&key), Some(victim));
            }
            prop_assert_eq!(tier.len(), model.len());
            prop_assert!(may_exceed || tier.bytes() <= tier.budget());
        }
        is_listed_as(&tier, &model)?;
    }
}
