//! Listing keys: every key that is there is listed, wherever it lies, also while objects move.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use afterglow_engine::{Cache, Config, DeviceConfig, Namespace, NamespaceOptions, PutOptions, Survives};

struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("afterglow-keys-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

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
    let dir = Dir::new();
    let (cache, ns) = open(&dir.0, 128 << 20);
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

    let (_cache, ns) = open(&dir.0, 128 << 20);
    let there = found(&ns, 20_000);
    assert!(there.len() > 1_000, "{}", there.len());
    assert_same(&listed(&ns), &there, "all on flash, after a restart");
    ns.clear();
    assert_eq!(listed(&ns), BTreeSet::new());
}

#[test]
fn what_moves_while_it_is_listed_is_listed() {
    let dir = Dir::new();
    let (cache, ns) = open(&dir.0, 32 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Overwrites the whole flash again and again: segments are reclaimed all the time.
        scope.spawn(|| {
            let mut n = 1_000_000;
            while !stop.load(Ordering::Relaxed) {
                put(&cache, &ns, n, 4000);
                n += 1;
            }
        });
        while cache.stats().totals.segments_reclaimed < 100 {
            std::thread::yield_now();
        }
        for n in 0..50 {
            put(&cache, &ns, n, 500);
        }
        let mut whole = 0;
        for _ in 0..20 {
            let before: Vec<_> = (0..50).filter(|n| ns.get_blocking(&key(*n)).is_some()).collect();
            let Ok(listed) = ns.keys().collect::<Result<BTreeSet<_>, _>>() else { continue };
            whole += 1;
            for n in before {
                // Asked for all the time they stay, in DRAM or written again; what went meanwhile need not be listed.
                let there = listed.contains(&key(n)) || ns.get_blocking(&key(n)).is_none();
                assert!(there, "key {n} was there before and after, and was not listed");
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(whole > 0, "no listing was whole");
    });
}
