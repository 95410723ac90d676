//! The index against a plain model, at high fill, and under concurrent readers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::slot::tag_of;
use super::*;

/// A hash as spread out as a real one.
fn hash(key: u64) -> u64 {
    let mut x = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A location that tells from which key and round it is.
fn location(n: u64) -> Location {
    Location {
        segment: (n >> 20) as u32 & (MAX_SEGMENTS - 1),
        offset_units: n as u32 & ((1 << 20) - 1),
    }
}

const CLASS: SizeClass = SizeClass(5);

/// What makes two keys share a slot: tag and base lines.
fn identity(index: &Index, hash: u64) -> (u16, [usize; 2]) {
    let mut lines = index.lines_of(hash).map(|line| line % index.base_lines());
    lines.sort_unstable();
    (tag_of(hash), lines)
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u64),
    Remove(u64),
    RemoveIf(u64, bool),
    ReplaceIf(u64, bool),
    Lookup(u64),
    Grow,
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..400u64;
    prop_oneof![
        120 => key.clone().prop_map(Op::Insert),
        20 => key.clone().prop_map(Op::Remove),
        20 => (key.clone(), any::<bool>()).prop_map(|(key, right)| Op::RemoveIf(key, right)),
        20 => (key.clone(), any::<bool>()).prop_map(|(key, right)| Op::ReplaceIf(key, right)),
        40 => key.prop_map(Op::Lookup),
        20 => Just(Op::Grow),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    /// Every slot there ever was is present, replaced, removed or evicted: none is lost silently,
    /// none comes back.
    #[test]
    fn the_index_is_a_map_that_tells_what_it_drops(
        lines in 1..40usize,
        ops in prop::collection::vec(op(), 1..500),
    ) {
        let mut writer = IndexWriter::growing(lines, lines * MAX_GROUP);
        let mut model = HashMap::new();
        for (n, op) in ops.into_iter().enumerate() {
            let (new, elsewhere) = (location(n as u64), location(1 << 30));
            match op {
                Op::Insert(key) => {
                    let done = writer.insert(hash(key), new, CLASS);
                    let before = model.insert(identity(&writer, hash(key)), new);
                    prop_assert_eq!(done.replaced.map(Slot::location), before);
                    if let Some(evicted) = done.evicted {
                        let at = evicted.location();
                        let known = model.iter().find(|(_, known)| **known == at);
                        let known = known.map(|(who, _)| *who);
                        prop_assert!(known.is_some_and(|who| who.0 == evicted.tag()), "evicted what was not there");
                        model.remove(&known.unwrap());
                    }
                }
                Op::Remove(key) => {
                    prop_assert_eq!(writer.remove(hash(key)).map(Slot::location), model.remove(&identity(&writer, hash(key))));
                }
                Op::RemoveIf(key, right) => {
                    let who = identity(&writer, hash(key));
                    let known = model.get(&who).copied().filter(|_| right);
                    let expected = known.unwrap_or(elsewhere);
                    let done = writer.remove_if(hash(key), expected);
                    prop_assert_eq!(done, right && model.contains_key(&who));
                    if done {
                        model.remove(&who);
                    }
                }
                Op::ReplaceIf(key, right) => {
                    let who = identity(&writer, hash(key));
                    let known = model.get(&who).copied().filter(|_| right);
                    let expected = known.unwrap_or(elsewhere);
                    let done = writer.replace_if(hash(key), expected, new, CLASS);
                    prop_assert_eq!(done, right && model.contains_key(&who));
                    if done {
                        model.insert(who, new);
                    }
                }
                Op::Lookup(key) => {
                    let found = writer.lookup(hash(key));
                    let found = found.map(Slot::location);
                    let known = model.get(&identity(&writer, hash(key))).copied();
                    prop_assert_eq!(found, known);
                    prop_assert_eq!(writer.peek(hash(key)).map(Slot::location), found);
                }
                Op::Grow if writer.lines() < writer.most_lines() => {
                    for gone in writer.index.table.grow() {
                        let known = model.iter().find(|(_, known)| **known == gone.location());
                        let known = known.map(|(who, _)| *who);
                        prop_assert!(known.is_some_and(|who| who.0 == gone.tag()), "what was not there is gone");
                        model.remove(&known.unwrap());
                    }
                }
                Op::Grow => {}
                Op::Clear => {
                    writer.clear();
                    model.clear();
                }
            }
            prop_assert_eq!(writer.len(), model.len());
        }
        let words: Vec<_> = writer.line_words(0..writer.lines()).flatten().filter_map(Slot::from_word).collect();
        prop_assert_eq!(words.len(), model.len(), "at most one slot per tag over both lines");
    }

    #[test]
    fn the_other_line_of_the_other_line_is_the_line(lines in 1..5000usize, key: u64) {
        let index = IndexWriter::with_lines(lines).reader();
        let [first, other] = index.lines_of(key);
        prop_assert!(first < lines && other < lines);
        prop_assert_eq!(index.table.pair(other, tag_of(key)), [other, first]);
    }

    /// What a checkpoint holds comes back, except where the key was written meanwhile.
    #[test]
    fn a_loaded_line_never_goes_over_what_happened_meanwhile(
        keys in 1..300u64,
        meanwhile in prop::collection::vec(0..300u64, 0..60),
    ) {
        let lines = 97;
        let mut old = IndexWriter::with_lines(lines);
        (0..keys).for_each(|key| { old.insert(hash(key), location(key), CLASS); });
        let mut new = IndexWriter::with_lines(lines);
        meanwhile.iter().for_each(|&key| { new.insert(hash(key), location(1000 + key), CLASS); });
        let mut total = LineLoaded::default();
        for (line, words) in old.line_words(0..lines).enumerate() {
            let done = new.load_line(line, words);
            total.loaded += done.loaded;
            total.kept += done.kept;
            total.dropped += done.dropped;
        }
        prop_assert_eq!(total.loaded + total.kept + total.dropped, old.len());
        prop_assert_eq!(total.dropped, 0, "there is room for all of these");
        for key in 0..keys {
            let who = identity(&new, hash(key));
            let written = meanwhile.iter().rev().find(|&&other| identity(&new, hash(other)) == who);
            let before = old.peek(hash(key)).unwrap().location();
            let expected = written.map_or(before, |&other| location(1000 + other));
            prop_assert_eq!(new.peek(hash(key)).map(Slot::location), Some(expected));
        }
    }
}

/// A checkpoint takes the lines bit by bit while keys go on coming and push others to their other
/// lines.
#[test]
fn no_slot_slips_through_between_two_captures() {
    let (lines, step) = (4000, 50);
    let mut writer = IndexWriter::with_lines(lines);
    let before = (writer.slots() * 9 / 10) as u64;
    for key in 0..before {
        writer.insert(hash(key), location(key), CLASS);
    }
    let (mut captured, mut next) = (std::collections::HashSet::new(), before);
    for from in (0..lines).step_by(step) {
        captured.extend(
            writer
                .line_words(from..from + step)
                .flatten()
                .filter_map(Slot::from_word)
                .map(Slot::location),
        );
        writer.set_captured(from + step);
        for key in next..next + 20 {
            writer.insert(hash(key), location(key), CLASS);
        }
        next += 20;
    }
    let slipped = (0..before)
        .filter(|&key| writer.peek(hash(key)).is_some_and(|slot| slot.location() == location(key)))
        .filter(|&key| !captured.contains(&location(key)));
    assert_eq!(slipped.count(), 0);
}

/// The memory target: at most 8.9 bytes per object at 90 % fill. Eviction must not start before
/// that.
#[test]
fn the_table_fills_to_nine_tenths_without_evicting() {
    let mut writer = IndexWriter::with_memory(1 << 20);
    let slots = writer.slots();
    let target = slots * 9 / 10;
    let mut key = 0;
    let mut evicted = 0;
    while writer.len() < target {
        let done = writer.insert(hash(key), location(key), CLASS);
        evicted += usize::from(done.evicted.is_some());
        key += 1;
    }
    assert_eq!(evicted, 0, "evicted below 90 % fill");
    assert!((slots * 8) as f64 / writer.len() as f64 <= 8.9);
    let mut full = 0;
    while evicted == 0 {
        evicted += usize::from(writer.insert(hash(key), location(key), CLASS).evicted.is_some());
        full = writer.len();
        key += 1;
    }
    assert!(full * 100 / slots >= 93, "the first eviction came at {} %", full * 100 / slots);
}

#[test]
fn false_hits_are_rare() {
    let mut writer = IndexWriter::with_memory(1 << 20);
    let mut key = 0;
    while writer.len() < writer.slots() * 9 / 10 {
        writer.insert(hash(key), location(key), CLASS);
        key += 1;
    }
    let found = (key..key + 1_000_000).filter(|&other| writer.peek(hash(other)).is_some()).count();
    // 16 slots of which 9 in 10 are taken, 65535 tags: 0.022 %.
    assert!((100..400).contains(&found), "{found} false hits in a million");
}

/// The share that `docs/guide/guarantees.md` names. A key that enters a full index takes another
/// key's slot as often as a lookup finds a false hit.
#[test]
fn few_keys_share_a_slot() {
    const ROUNDS: u64 = 8;
    let (mut keys, mut lost) = (0, 0);
    for round in 0..ROUNDS {
        let mut writer = IndexWriter::with_memory(1 << 20);
        let target = (writer.slots() * 9 / 10) as u64;
        for n in 0..target {
            let key = round * target + n;
            let done = writer.insert(hash(key), location(n), CLASS);
            lost += u64::from(done.replaced.is_some());
        }
        keys += target;
    }
    // On average the index is half full while it fills: half of 0.022 %.
    let per_million = lost * 1_000_000 / keys;
    assert!((55..220).contains(&per_million), "{per_million} keys in a million were lost");
}

#[test]
fn what_is_looked_up_outlives_what_is_not() {
    let mut writer = IndexWriter::with_lines(64);
    let kept: Vec<u64> = (0..100).collect();
    kept.iter().for_each(|&key| {
        writer.insert(hash(key), location(key), CLASS);
    });
    for key in 1000..5000 {
        writer.insert(hash(key), location(key), CLASS);
        if key % 20 == 0 {
            kept.iter().for_each(|&key| {
                let _ = writer.lookup(hash(key));
            });
        }
    }
    let left = kept
        .iter()
        .filter(|&&key| writer.peek(hash(key)).is_some_and(|slot| slot.location() == location(key)))
        .count();
    assert!(left >= 95, "{left} of 100 keys in use are left");
}

#[test]
fn a_new_place_halves_the_popularity() {
    let mut writer = IndexWriter::with_lines(4);
    writer.insert(hash(1), location(1), CLASS);
    (0..9).for_each(|_| {
        let _ = writer.lookup(hash(1));
    });
    assert_eq!(writer.peek(hash(1)).map(Slot::freq), Some(3), "it saturates");
    assert_eq!(writer.insert(hash(1), location(2), CLASS).replaced.map(Slot::freq), Some(3));
    assert_eq!(
        writer.peek(hash(1)).map(|slot| (slot.freq(), slot.location())),
        Some((1, location(2)))
    );
    writer.insert(hash(1), location(3), CLASS);
    assert_eq!(writer.peek(hash(1)).map(Slot::freq), Some(0), "it must be read again to count");
}

/// Readers run while a writer inserts, moves, replaces and removes. A key that is there all the
/// time is always found, with a location it really had. It is never one older than a reader has
/// been told of.
#[test]
fn readers_see_every_slot_old_or_new() {
    const STABLE: u64 = 200;
    const ROUNDS: u64 = 10_000;
    let mut writer = IndexWriter::with_lines(60);
    // Locations carry key and round.
    let at = |key: u64, round: u64| location(key << 24 | (round & 0xff_ffff));
    (0..STABLE).for_each(|key| {
        writer.insert(hash(key), at(key, 0), CLASS);
    });
    let index = writer.reader();
    let (stop, floor) = (AtomicBool::new(false), AtomicU64::new(0));
    let check = || {
        let mut looks = 0u64;
        while !stop.load(Ordering::Acquire) || looks == 0 {
            for key in 0..STABLE {
                let told = floor.load(Ordering::Acquire);
                let slot = index.lookup(hash(key)).expect("a key that is never removed");
                let Location { segment, offset_units } = slot.location();
                let word = u64::from(segment) << 20 | u64::from(offset_units);
                assert_eq!((word >> 24, slot.size_class()), (key, CLASS));
                assert!(word & 0xff_ffff >= told, "a location older than one already published");
                looks += 1;
            }
        }
        looks
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(check)).collect();
        for round in 1..=ROUNDS {
            // Keys that come and go force moves; few enough that nothing is evicted.
            let passing = 10_000 + round % 500;
            if identity_is_free(&writer, passing, STABLE) {
                let done = writer.insert(hash(passing), at(passing, round), CLASS);
                assert_eq!(done.evicted, None);
            }
            writer.remove(hash(10_000 + (round + 300) % 500));
            if round % 100 == 0 {
                (0..STABLE).for_each(|key| {
                    writer.insert(hash(key), at(key, round), CLASS);
                });
                floor.store(round, Ordering::Release);
            }
        }
        stop.store(true, Ordering::Release);
        assert!(
            readers
                .into_iter()
                .all(|reader| reader.join().expect("no reader saw anything wrong") > 0)
        );
    });
}

/// Whether a key shares its slot with none of the stable ones.
fn identity_is_free(index: &Index, key: u64, stable: u64) -> bool {
    (0..stable).all(|other| identity(index, hash(other)) != identity(index, hash(key)))
}

/// Fills an index of `base` lines that grows as it must, to `percent` of `lines` lines. Returns it,
/// its keys, and how many of them it has told to be gone.
fn grown(base: usize, lines: usize, percent: usize) -> (IndexWriter, u64, usize) {
    let mut writer = IndexWriter::growing(base, base * MAX_GROUP);
    writer.allow(lines);
    let keys = (lines * SLOTS_PER_LINE * percent / 100) as u64;
    let mut gone = 0;
    for key in 0..keys {
        gone += writer.grow_if_full().len();
        let done = writer.insert(hash(key), location(key), CLASS);
        gone += usize::from(done.evicted.is_some()) + usize::from(done.replaced.is_some());
    }
    (writer, keys, gone)
}

fn kept(index: &Index, keys: u64) -> usize {
    let there = |key: &u64| index.peek(hash(*key)).map(Slot::location) == Some(location(*key));
    (0..keys).filter(there).count()
}

/// Also between two rounds, where some groups have a line more than others.
#[test]
fn an_index_that_grows_keeps_nearly_all_at_ninety_percent() {
    const BASE: usize = 1_000;
    for tenths in [10, 11, 13, 15, 17, 19, 20, 25, 30, 35, 50, 75, 100, 130, 160] {
        let lines = BASE * tenths / 10;
        let (writer, keys, gone) = grown(BASE, lines, 90);
        // Keys that share a slot need none of their own.
        let short = lines - writer.lines();
        assert!(short <= lines / 100, "it grows when it is full: {}", writer.lines());
        let kept = kept(&writer, keys);
        assert_eq!(kept + gone, keys as usize, "every slot that went was told");
        assert_eq!(kept, writer.len());
        let share = kept as f64 / keys as f64;
        assert!(share >= 0.985, "{lines} lines: {share:.4} of the keys are kept");
        let bytes = (writer.lines() * LINE_BYTES) as f64 / kept as f64;
        assert!(bytes <= 9.1, "{lines} lines: {bytes:.2} bytes a key");
    }
}

#[test]
fn an_index_grows_only_as_far_as_it_may_and_not_while_it_is_held() {
    let (mut writer, keys, _) = grown(100, 100, 90);
    writer.allow(150);
    writer.hold();
    let fill = |writer: &mut IndexWriter, from: u64| {
        for key in from..from + 400 {
            writer.grow_if_full();
            writer.insert(hash(key), location(key), CLASS);
        }
    };
    fill(&mut writer, keys);
    assert_eq!(writer.lines(), 100, "it is held");
    writer.let_go();
    fill(&mut writer, keys + 400);
    fill(&mut writer, keys + 800);
    assert_eq!(writer.lines(), 150, "it is allowed no more");
    writer.allow(usize::MAX);
    assert_eq!(writer.allowed(), writer.most_lines());
}

/// The lines of a checkpoint belong to an index that has grown further meanwhile, or less far.
#[test]
fn lines_of_any_extent_are_loaded() {
    const BASE: usize = 200;
    let (from, keys, _) = grown(BASE, BASE * 5 / 2, 80);
    let kept_there = kept(&from, keys);
    for lines in [BASE * 5 / 2, BASE * 3, BASE * 7] {
        let mut into = IndexWriter::growing(BASE, BASE * MAX_GROUP);
        into.set_lines(lines);
        let mut loaded = 0;
        for (line, words) in from.line_words(0..from.lines()).enumerate() {
            let done = into.load_line(line, words);
            assert_eq!(done.kept, 0, "line {line}: two slots of one tag");
            loaded += done.loaded;
        }
        assert_eq!(kept(&into, keys), loaded);
        assert!(loaded * 1000 >= kept_there * 999, "{lines} lines: {loaded} of {kept_there}");
    }
}

/// Readers run while the index grows sixteenfold: a key that is there is found.
#[test]
fn readers_find_every_key_while_the_index_grows() {
    const BASE: usize = 40;
    const STABLE: u64 = 150;
    let mut writer = IndexWriter::growing(BASE, BASE * MAX_GROUP);
    for key in 0..STABLE {
        assert_eq!(writer.insert(hash(key), location(key), CLASS), Inserted::default());
    }
    let index = writer.reader();
    let stop = AtomicBool::new(false);
    let check = || {
        let mut looks = 0;
        while !stop.load(Ordering::Acquire) || looks == 0 {
            for key in 0..STABLE {
                let found = index.lookup(hash(key)).map(Slot::location);
                assert_eq!(found, Some(location(key)), "key {key}");
                looks += 1;
            }
        }
        looks
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(check)).collect();
        while writer.lines() < writer.most_lines() {
            assert_eq!(writer.index.table.grow(), []);
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Release);
        let looks: Vec<u64> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(looks.iter().all(|&looks| looks > 0));
    });
    assert_eq!(kept(&writer, STABLE), STABLE as usize);
}
