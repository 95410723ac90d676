//! A cache over several real files of which one is lost, comes back, or is new.

use std::fs;
use std::path::Path;

use afterglow_engine::{
    Cache, Config, DeviceConfig, DeviceId, Lookup, Namespace, NamespaceOptions, PutOptions,
};
use tempfile::TempDir;

const OBJECTS: u32 = 4_000;

/// Objects by the device that they lie on, in the order of the configuration.
type Placed = Vec<Vec<u32>>;

/// Each device is a file in a directory of its own, as if a file system were mounted there.
fn config(dir: &Path, names: &[&str]) -> Config {
    let device = |name: &&str| {
        fs::create_dir_all(dir.join(name)).unwrap();
        DeviceConfig { path: dir.join(name).join("flash"), size: 48 << 20 }
    };
    with_devices(dir, names.iter().map(device).collect())
}

fn with_devices(dir: &Path, devices: Vec<DeviceConfig>) -> Config {
    let mut config = Config::new(dir.join("data"), devices);
    config.memory = 16 << 20;
    config.journal_size = 1 << 20;
    config
}

fn open(config: Config) -> (Cache, Namespace) {
    let cache = Cache::open(config).unwrap();
    while cache.stats().loading {
        std::thread::yield_now();
    }
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    (cache, ns)
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    vec![n as u8; 4_000]
}

fn fill(cache: &Cache, ns: &Namespace, objects: std::ops::Range<u32>) {
    for n in objects {
        let _ = ns.put(&key(n), &value(n), PutOptions::default());
        while cache.stats().chunks_waiting > 8 {
            std::thread::yield_now();
        }
    }
}

/// Where the objects lie of a cache that was just opened, and has none in memory.
fn placed(ns: &Namespace, devices: usize, objects: std::ops::Range<u32>) -> Placed {
    let mut placed = vec![Vec::new(); devices];
    for n in objects {
        let Lookup::Flash(read) = ns.get(&key(n)) else { continue };
        let device = usize::from(read.device().0);
        read.take_back();
        // It may be another object of the same tag.
        if ns.get_blocking(&key(n)).is_some() {
            placed[device].push(n);
        }
    }
    placed
}

fn hits(ns: &Namespace, keys: &[u32]) -> usize {
    let hit = |&&n: &&u32| ns.get_blocking(&key(n)).inspect(|h| assert_eq!(h.value, value(n)));
    keys.iter().filter(|n| hit(n).is_some()).count()
}

/// All of these are there. Two objects whose tags are the same may share a slot of the index, and
/// the one that is copied later has it.
fn assert_hits(ns: &Namespace, keys: &[u32], what: &str) {
    let lost = keys.len() - hits(ns, keys);
    assert!(lost * 1_000 <= keys.len(), "{what}: {lost} of {} lost", keys.len());
}

/// A cache of these devices, closed, with objects on each of them.
fn filled(dir: &Path, names: &[&str]) -> Placed {
    let (cache, ns) = open(config(dir, names));
    fill(&cache, &ns, 0..OBJECTS);
    cache.close();
    drop((ns, cache));
    let (cache, ns) = open(config(dir, names));
    let placed = placed(&ns, names.len(), 0..OBJECTS);
    assert!(placed.iter().all(|on| on.len() > 400), "no test: {:?}", placed.concat().len());
    cache.close();
    placed
}

#[test]
fn a_device_taken_out_of_the_configuration_costs_what_it_held_and_no_more() {
    for (left, gone) in [("a", 1), ("b", 0)] {
        let dir = TempDir::new().unwrap();
        let before = filled(dir.path(), &["a", "b"]);
        let (cache, ns) = open(config(dir.path(), &[left]));
        assert_hits(&ns, &before[1 - gone], left);
        assert_eq!(hits(&ns, &before[gone]), 0);
        fill(&cache, &ns, OBJECTS..OBJECTS + 500);
        cache.close();
        drop((ns, cache));
        let (_cache, ns) = open(config(dir.path(), &[left]));
        let new: Vec<u32> = (OBJECTS..OBJECTS + 500).collect();
        assert_hits(&ns, &new, &format!("{left} alone after its own stop"));
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_done_without_and_comes_back_empty() {
    let dir = TempDir::new().unwrap();
    let before = filled(dir.path(), &["a", "b"]);
    for name in ["a", "b"] {
        // As where a file system is not mounted.
        fs::rename(dir.path().join("b"), dir.path().join("away")).unwrap();
        let both = config(dir.path(), &["a", "b"]);
        fs::remove_dir(dir.path().join("b")).unwrap();
        let (cache, ns) = open(both);
        assert_hits(&ns, &before[0], name);
        for &n in &before[1] {
            assert!(ns.get_blocking(&key(n)).is_none());
            ns.remove(&key(n));
        }
        cache.close();
        drop((ns, cache));
        fs::rename(dir.path().join("away"), dir.path().join("b")).unwrap();
        let (cache, ns) = open(config(dir.path(), &["a", "b"]));
        assert_eq!(hits(&ns, &before[1]), 0, "{name}: what was removed meanwhile is back");
        assert_hits(&ns, &before[0], name);
        cache.close();
    }
}

#[test]
fn a_device_that_returns_after_the_others_went_on_is_taken_as_empty() {
    let dir = TempDir::new().unwrap();
    let before = filled(dir.path(), &["a", "b"]);
    // Another one is in its place meanwhile, and has its share.
    let (cache, ns) = open(config(dir.path(), &["a", "other"]));
    fill(&cache, &ns, OBJECTS..2 * OBJECTS);
    for &n in &before[1] {
        ns.remove(&key(n));
    }
    cache.close();
    drop((ns, cache));
    let (cache, ns) = open(config(dir.path(), &["a", "other", "b"]));
    let now = placed(&ns, 3, 0..2 * OBJECTS);
    assert!(now[1].len() > 400, "the one in its place was not used: {}", now[1].len());
    assert_eq!(now[2], [], "what it had");
    assert_eq!(hits(&ns, &before[1]), 0, "what was removed meanwhile is back");
    assert_hits(&ns, &before[0], "of the one that stayed");
    assert_hits(&ns, &now[1], "of the other one");
    cache.close();
}

#[test]
fn a_device_that_is_added_or_replaced_by_an_empty_one_is_used_and_costs_the_others_nothing() {
    let dir = TempDir::new().unwrap();
    let before = filled(dir.path(), &["a"]);
    let (cache, ns) = open(config(dir.path(), &["a", "b"]));
    assert_hits(&ns, &before[0], "before anything is on the new one");
    // More than is free on the first one.
    fill(&cache, &ns, OBJECTS..3 * OBJECTS);
    cache.close();
    drop((ns, cache));
    let (cache, ns) = open(config(dir.path(), &["a", "b"]));
    let with_both = placed(&ns, 2, 0..3 * OBJECTS);
    assert!(with_both[1].len() > 4_000, "it is not used: {}", with_both[1].len());
    assert!(cache.segments().iter().any(|s| s.device == DeviceId(1) && s.records > 0));
    cache.close();
    drop((ns, cache));
    // An empty file in the place of the first one, which alone had the checkpoints at first.
    fs::remove_file(dir.path().join("a/flash")).unwrap();
    let (cache, ns) = open(config(dir.path(), &["a", "b"]));
    assert_hits(&ns, &with_both[1], "of the one that stayed");
    assert_eq!(hits(&ns, &with_both[0]), 0);
    fill(&cache, &ns, 3 * OBJECTS..4 * OBJECTS);
    cache.close();
    drop((ns, cache));
    let (_cache, ns) = open(config(dir.path(), &["a", "b"]));
    let replaced = placed(&ns, 2, 3 * OBJECTS..4 * OBJECTS);
    assert!(replaced[0].len() > 400, "the empty one is not used: {}", replaced[0].len());
}

#[test]
fn devices_may_be_given_in_another_order() {
    let dir = TempDir::new().unwrap();
    let before = filled(dir.path(), &["a", "b"]);
    let (_cache, ns) = open(config(dir.path(), &["b", "a"]));
    let all = before.concat();
    assert_hits(&ns, &all, "in another order");
}
