//! Read-modify-writes of several threads over real files: no update is lost.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use afterglow_engine::{
    Cache, Change, Changed, Config, DeviceConfig, Hit, MissReason, NamespaceOptions, PutOptions,
    PutOutcome,
};
use bytes::Bytes;
use tempfile::TempDir;

fn open(dir: &TempDir) -> Cache {
    let flash = DeviceConfig { path: dir.path().join("flash"), size: 64 << 20 };
    let mut config = Config::new(dir.path(), vec![flash]);
    config.memory = 16 << 20;
    config.journal_size = 4 << 20;
    Cache::open(config).unwrap()
}

#[test]
fn a_change_sees_the_object_wherever_it_is() {
    let dir = TempDir::new().unwrap();
    let stored = {
        let cache = open(&dir);
        let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
        let options =
            PutOptions { expiry: u32::MAX, group: 7, token: 3 << 44, ..PutOptions::default() };
        let stored = ns.put(b"key", b"1", options).version().unwrap();
        cache.close();
        stored
    };
    let cache = open(&dir);
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    let append = |found: Option<&Hit>| {
        let value = [found.map_or(&b""[..], |hit| &hit.value[..]), b"2"].concat();
        (
            Change::Value(value.into()),
            found.map(|hit| (hit.version, hit.expiry, hit.group, hit.partition)),
        )
    };
    // On flash; the index loads behind the opening.
    let modified = loop {
        match ns.modify_blocking(b"key", append) {
            Ok(modified) => break modified,
            Err(reason) => assert_eq!(reason, MissReason::Loading),
        }
    };
    assert_eq!(modified.returned, Some((stored, u32::MAX, 7, 3)));
    // In DRAM, and with what goes with it unchanged.
    let modified = ns.modify_blocking(b"key", append).unwrap();
    assert!(modified.returned.is_some_and(|(version, ..)| version > stored));
    assert_eq!(
        modified.returned.map(|(_, expiry, group, partition)| (expiry, group, partition)),
        Some((u32::MAX, 7, 3))
    );
    assert_eq!(ns.get_blocking(b"key").unwrap().value, &b"122"[..]);
    // Touch gives a new version and keeps the rest.
    let before = ns.get_blocking(b"key").unwrap();
    let touch = |_: Option<&Hit>| (Change::Touch(0), ());
    let Changed::Put(PutOutcome::Stored { version }) =
        ns.modify_blocking(b"key", touch).unwrap().changed
    else {
        panic!("not touched")
    };
    let after = ns.get_blocking(b"key").unwrap();
    assert_eq!(
        (after.version, after.expiry, after.group, &after.value),
        (version, 0, 7, &before.value)
    );
    assert!(version > before.version);
    // Its group takes it away, and a change then finds nothing.
    ns.remove_group(7);
    assert_eq!(ns.modify_blocking(b"key", touch).unwrap().changed, Changed::Kept);
    assert_eq!(ns.modify_blocking(b"key", append).unwrap().returned, None);
    assert_eq!(ns.get_blocking(b"key").unwrap().value, &b"2"[..]);
    let remove = |found: Option<&Hit>| (Change::Remove, found.is_some());
    assert!(ns.modify_blocking(b"key", remove).unwrap().returned);
    assert!(ns.get_blocking(b"key").is_none());
}

/// A value: the number of the object's beginning, and how often it was changed since.
fn value(root: u64, changes: u64) -> Bytes {
    let mut value = [root.to_le_bytes(), changes.to_le_bytes()].concat();
    value.resize(1500, root as u8);
    value.into()
}

fn root(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

#[test]
fn no_update_is_lost_among_threads_that_change_put_remove_clear_and_evict() {
    const THREADS: u64 = 3;
    const CHANGES: u64 = 4_000;
    const KEYS: u64 = 40;
    let dir = TempDir::new().unwrap();
    let cache = open(&dir);
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    // Numbers of beginnings; below the floor all were removed by a clear that is over.
    let (roots, floor) = (AtomicU64::new(1), AtomicU64::new(0));
    let seen: Vec<u64> = std::thread::scope(|scope| {
        let changers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (ns, roots, floor) = (ns.clone(), &roots, &floor);
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    for n in 0..CHANGES {
                        let key = (n * (2 * thread + 1) % KEYS).to_le_bytes();
                        let dead_below = floor.load(Ordering::SeqCst);
                        let modified = ns.modify_blocking(&key, |found| {
                            let Some(hit) = found else {
                                let root = roots.fetch_add(1, Ordering::SeqCst);
                                return (Change::Value(value(root, 0)), None);
                            };
                            assert!(root(&hit.value) >= dead_below, "what was cleared is back");
                            let changes = u64::from_le_bytes(hit.value[8..16].try_into().unwrap());
                            let change = match n % 16 {
                                0 => Change::Remove,
                                1 => Change::Touch(u32::MAX),
                                _ => Change::Value(value(root(&hit.value), changes + 1)),
                            };
                            (change, Some(hit.version))
                        });
                        seen.extend(modified.ok().and_then(|modified| modified.returned));
                    }
                    seen
                })
            })
            .collect();
        let churn = ns.clone();
        scope.spawn(move || {
            for n in 0..30_000u64 {
                let _ =
                    churn.put(&(KEYS + n).to_le_bytes(), &[n as u8; 3000], PutOptions::default());
            }
        });
        let (clearing, roots, floor) = (ns.clone(), &roots, &floor);
        scope.spawn(move || {
            for n in 0..400u64 {
                let below = roots.load(Ordering::SeqCst);
                if n % 50 == 49 {
                    clearing.clear();
                    floor.fetch_max(below, Ordering::SeqCst);
                } else {
                    let root = roots.fetch_add(1, Ordering::SeqCst);
                    let _ = clearing.put(
                        &(n % KEYS).to_le_bytes(),
                        &value(root, 0),
                        PutOptions::default(),
                    );
                }
                std::thread::yield_now();
            }
        });
        changers.into_iter().flat_map(|changer| changer.join().unwrap()).collect()
    });
    // Two changes of the same version: one of them is lost.
    let distinct: HashSet<u64> = seen.iter().copied().collect();
    assert_eq!(distinct.len(), seen.len());
    assert!(seen.len() as u64 > THREADS * CHANGES / 4, "{} changes found an object", seen.len());
}
