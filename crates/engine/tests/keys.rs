//! Listing keys: every key that is there is listed, wherever it lies, also while objects move.

use std::collections::BTreeSet;
use std::path::Path;

use afterglow_engine::{
    Cache, Config, DeviceConfig, Durability, Namespace, NamespaceOptions, PutOptions, Survives,
};
use tempfile::TempDir;

fn open(dir: &Path, flash: u64) -> (Cache, Namespace) {
    let mut config = Config::new(dir, vec![DeviceConfig { path: dir.join("flash"), size: flash }]);
    (config.memory, config.journal_size, config.mapped_journal) = (16 << 20, 1 << 20, false);
    let cache = Cache::open(config).unwrap();
    let options = NamespaceOptions { survives: Survives::CleanStop, ..NamespaceOptions::default() };
    let ns = cache.namespace("rows", options).unwrap();
    while cache.stats().loading {
        std::thread::yield_now();
    }
    (cache, ns)
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn put(cache: &Cache, ns: &Namespace, n: u32, len: usize) {
    while cache.stats().chunks_waiting > 2 {
        std::thread::yield_now();
    }
    let options = PutOptions { group: 1 + n % 3, ..PutOptions::default() };
    assert!(ns.put(&key(n), &vec![n as u8; len], options).version().is_some());
}

fn found(ns: &Namespace, keys: u32) -> BTreeSet<Vec<u8>> {
    (0..keys).map(key).filter(|key| ns.get_blocking(key).is_some()).collect()
}

fn assert_same(listed: &BTreeSet<Vec<u8>>, there: &BTreeSet<Vec<u8>>, when: &str) {
    let names = |keys: Vec<&Vec<u8>>| {
        keys.iter().map(|k| String::from_utf8_lossy(k).into_owned()).collect::<Vec<_>>()
    };
    let missing = names(there.difference(listed).take(10).collect());
    let ghosts = names(listed.difference(there).take(10).collect());
    assert!(listed == there, "{when}: {missing:?} not listed, {ghosts:?} listed and not there");
}

fn listed(ns: &Namespace) -> BTreeSet<Vec<u8>> {
    ns.keys().map(|key| key.expect("a whole listing")).collect()
}

#[test]
fn every_key_that_is_there_is_listed_and_no_other() {
    let dir = TempDir::new().unwrap();
    let (cache, ns) = open(dir.path(), 128 << 20);
    let other = cache.namespace("other", NamespaceOptions::default()).unwrap();
    for n in 0..20_000 {
        put(&cache, &ns, n, 2000);
        if n % 100 == 0 {
            put(&cache, &other, 1_000_000 + n, 100);
        }
    }
    for n in (0..20_000).step_by(7) {
        ns.remove(&key(n));
    }
    ns.remove_group(2);
    let removed = |n: u32| n.is_multiple_of(7) || 1 + n % 3 == 2;
    // A device that falls behind loses some.
    let there = found(&ns, 20_000);
    assert!(
        there.len() > 1_000 && !(0..20_000).any(|n| removed(n) && there.contains(&key(n))),
        "{}",
        there.len()
    );
    assert_same(&listed(&ns), &there, "some in DRAM, some in open segments, most in sealed ones");
    cache.close();
    drop((ns, other, cache));

    let (_cache, ns) = open(dir.path(), 128 << 20);
    let there = found(&ns, 20_000);
    assert!(there.len() > 1_000, "{}", there.len());
    assert_same(&listed(&ns), &there, "all on flash, after a restart");
    ns.clear();
    assert_eq!(listed(&ns), BTreeSet::new());
}

#[test]
fn what_moves_while_it_is_listed_is_listed() {
    let dir = TempDir::new().unwrap();
    let (cache, ns) = open(dir.path(), 32 << 20);
    // Its objects are on flash when a put returns.
    let options =
        NamespaceOptions { durability: Durability::WriteThrough, ..NamespaceOptions::default() };
    let others = cache.namespace("others", options).unwrap();
    let reclaimed = || cache.stats().totals.segments_reclaimed;
    let mut n = 1_000_000;
    while reclaimed() < 20 {
        put(&cache, &ns, n, 4000);
        n += 1;
    }
    while cache.stats().unsaved_bytes > 0 {
        std::thread::yield_now();
    }
    let before = reclaimed();
    let is_there = |n: &u32| ns.get_blocking(&key(*n)).is_some();
    for _ in 0..10 {
        // The oldest are the next to be moved, because they are asked for here.
        let there: Vec<_> = (1_000_000..n).filter(is_there).take(100).collect();
        let mut listed = BTreeSet::new();
        // Two segments are written while it is listed, so about two are reclaimed, and no more
        // passes are in vain.
        let mut moves = 64;
        for key in ns.keys() {
            listed.insert(key.unwrap());
            if moves > 0 {
                put(&cache, &others, n, 4000);
                (n, moves) = (n + 1, moves - 1);
            }
        }
        for n in there {
            // Asked for all the time they stay, in DRAM or written again; what went meanwhile need
            // not be listed.
            let is_listed = listed.contains(&key(n)) || !is_there(&n);
            assert!(is_listed, "key {n} was there before and after, and was not listed");
        }
    }
    assert!(reclaimed() > before, "nothing moved");
}
