//! A cache over real files, as a program uses it.

use std::fs::File;
use std::path::Path;

use afterglow_engine::{
    Cache, Config, DeviceConfig, Durability, IoEngine, MissReason, NamespaceOptions, Opening,
    Origin, PutOptions, PutOutcome, RefuseReason, Tier, Truncated,
};
use tempfile::TempDir;

fn config(dir: &Path, io: IoEngine) -> Config {
    let flash = DeviceConfig { path: dir.join("flash"), size: 64 << 20 };
    let mut config = Config::new(dir, vec![flash]);
    config.memory = 16 << 20;
    config.journal_size = 1 << 20;
    config.io = io;
    config
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    let len = 100 + n as usize % 3000;
    (0..len).map(|i| (i as u32 ^ n) as u8).collect()
}

/// Lets the device keep up: a full queue drops what is evicted, as it must.
fn pace(cache: &Cache) {
    while cache.stats().chunks_waiting > 8 {
        std::thread::yield_now();
    }
}

fn wait_loaded(cache: &Cache) {
    while cache.stats().loading {
        std::thread::yield_now();
    }
}

/// Waits until everything put is on flash.
fn wait_saved(cache: &Cache) {
    let begun = std::time::Instant::now();
    while cache.stats().unsaved_bytes > 0 {
        assert!(
            begun.elapsed().as_secs() < 120,
            "the background copy should have finished: {:#?}",
            cache.stats()
        );
        std::thread::yield_now();
    }
}

fn round_trip(io: IoEngine) {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(config(dir.path(), io)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    for n in 0..10_000 {
        assert!(matches!(
            ns.put(&key(n), &value(n), PutOptions::default()),
            PutOutcome::Stored { .. }
        ));
        pace(&cache);
    }
    ns.remove(&key(7));
    cache.close();
    assert_eq!(
        ns.put(b"late", b"", PutOptions::default()),
        PutOutcome::Refused(RefuseReason::Closed)
    );
    drop(ns);
    drop(cache);

    let cache = Cache::open(config(dir.path(), io)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    wait_loaded(&cache);
    let mut hits = 0;
    for n in 0..10_000 {
        if let Some(hit) = ns.get_blocking(&key(n)) {
            assert_ne!(n, 7, "removed");
            assert_eq!(hit.value, value(n));
            hits += 1;
        }
    }
    let stats = cache.stats();
    assert!(hits >= 9_900, "everything fits, {hits} hits: {stats:#?}");
    let ns_stats = &stats.namespaces[0];
    assert_eq!(ns_stats.lookups(), 10_000);
    assert!(ns_stats.hits_from(Tier::Flash) > 0);
}

#[test]
fn what_was_put_is_there_after_a_clean_stop() {
    round_trip(IoEngine::Auto);
    round_trip(IoEngine::Pread);
}

#[test]
fn a_dropped_cache_recovers_what_had_reached_flash_and_nothing_stale() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    for n in 0..20_000 {
        let _ = ns.put(&key(n), &value(n), PutOptions::default());
        pace(&cache);
    }
    wait_saved(&cache);
    let stats = cache.stats();
    let given_up = stats.totals.dropped.iter().chain(&stats.namespaces[0].dropped).sum::<u64>();
    for n in 0..1000 {
        ns.remove(&key(n));
        let _ = ns.put(&key(n + 1000), b"new", PutOptions::default());
    }
    drop(ns);
    drop(cache);

    let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    wait_loaded(&cache);
    let mut hits = 0;
    for n in 0..20_000 {
        let Some(hit) = ns.get_blocking(&key(n)) else { continue };
        hits += 1;
        match n {
            0..1000 => panic!("key {n} was removed"),
            1000..2000 => assert_eq!(hit.value, &b"new"[..]),
            _ => assert_eq!(hit.value, value(n)),
        }
    }
    // The last thousand may not have reached flash; and a slot in some thousands is shared.
    let expected = 18_000 - given_up.min(17_000);
    assert!(
        hits + 40 >= expected && given_up < 1_000,
        "{hits} hits, {given_up} given up: {:#?}",
        cache.stats()
    );
}

#[test]
fn what_was_put_through_is_there_although_the_cache_was_never_closed() {
    for durability in [Durability::WriteThrough, Durability::Synced] {
        let dir = TempDir::new().unwrap();
        let options = NamespaceOptions { durability, ..NamespaceOptions::default() };
        let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
        let ns = cache.namespace("test", options).unwrap();
        for n in 0..50 {
            assert!(ns.put(&key(n), &value(n), PutOptions::default()).version().is_some());
        }
        drop((ns, cache));
        let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
        let ns = cache.namespace("test", options).unwrap();
        wait_loaded(&cache);
        for n in 0..50 {
            assert_eq!(ns.get_blocking(&key(n)).expect("acknowledged").value, value(n));
        }
        cache.close();
        assert_eq!(
            ns.put(b"late", b"", PutOptions::default()),
            PutOutcome::Refused(RefuseReason::Closed)
        );
    }
}

#[test]
fn compare_and_put_stores_only_over_the_expected_version() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    let first = ns.put_if(b"k", b"1", PutOptions::default(), None).version().unwrap();
    let mismatch = PutOutcome::Refused(RefuseReason::VersionMismatch);
    assert_eq!(ns.put_if(b"k", b"2", PutOptions::default(), None), mismatch);
    assert_eq!(ns.put_if(b"k", b"2", PutOptions::default(), Some(first + 1)), mismatch);
    assert_eq!(ns.get_blocking(b"k").unwrap().value, &b"1"[..]);
    assert!(ns.put_if(b"k", b"2", PutOptions::default(), Some(first)).version().is_some());
    assert_eq!(ns.get_blocking(b"k").unwrap().value, &b"2"[..]);
}

#[test]
fn adding_over_an_object_that_cannot_be_read_now_is_refused() {
    let dir = TempDir::new().unwrap();
    let stored = {
        let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
        let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
        let stored = ns.put(b"k", b"1", PutOptions::default()).version().unwrap();
        cache.close();
        stored
    };
    let busy = || {
        let mut config = config(dir.path(), IoEngine::Auto);
        config.max_blocking_reads = 0;
        config
    };
    let cache = Cache::open(busy()).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    let mismatch = PutOutcome::Refused(RefuseReason::VersionMismatch);
    assert_eq!(ns.put_if(b"k", b"2", PutOptions::default(), None), mismatch);
    drop((ns, cache));
    let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    let begun = std::time::Instant::now();
    let hit = loop {
        // The index loads behind the opening.
        match ns.get_blocking(b"k") {
            Some(hit) => break hit,
            None => assert!(begun.elapsed().as_secs() < 120, "lost: {:#?}", cache.stats()),
        }
    };
    assert_eq!((hit.version, &hit.value[..]), (stored, &b"1"[..]));
    assert!(ns.put_if(b"k", b"2", PutOptions::default(), Some(stored)).version().is_some());
}

#[test]
fn nothing_unsaved_means_that_a_crash_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    for n in 0..1000 {
        let _ = ns.put(&key(n), &value(n), PutOptions::default());
    }
    assert!(cache.stats().unsaved_bytes > 0);
    wait_saved(&cache);
    drop(ns);
    drop(cache);

    let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    wait_loaded(&cache);
    let mut missing = 0;
    for n in 0..1000 {
        match ns.get_blocking(&key(n)) {
            Some(hit) => assert_eq!(hit.value, value(n)),
            None => missing += 1,
        }
    }
    // Two keys may share a slot of the index.
    assert_eq!(missing, cache.stats().namespaces[0].misses_for(MissReason::Collision));
}

#[test]
fn a_file_that_is_not_ours_is_left_alone_and_the_message_says_so() {
    let dir = TempDir::new().unwrap();
    let flash = dir.path().join("flash");
    let theirs = b"somebody's photographs ".repeat(4000);
    std::fs::write(&flash, &theirs).unwrap();
    let message = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap_err().to_string();
    assert!(message.contains("flash") && message.contains("not Afterglow's"), "{message}");
    assert_eq!(std::fs::read(&flash).unwrap()[..theirs.len()], theirs);
}

#[test]
fn another_format_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    drop(Cache::open(config(dir.path(), IoEngine::Auto)).unwrap());
    let path = dir.path().join("state");
    let mut state = std::fs::read(&path).unwrap();
    state[8] = 99;
    std::fs::write(&path, &state).unwrap();
    let message = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap_err().to_string();
    assert!(message.contains("format 99") && message.contains("reads format 3"), "{message}");
}

#[test]
fn one_cache_at_a_time_per_directory() {
    let dir = TempDir::new().unwrap();
    let first = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let message = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap_err().to_string();
    assert!(message.contains("in use"), "{message}");
    drop(first);
    Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
}

#[test]
fn a_device_of_another_cache_is_refused_and_left_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    drop(Cache::open(config(one.path(), IoEngine::Auto)).unwrap());
    drop(Cache::open(config(two.path(), IoEngine::Auto)).unwrap());
    let path = two.path().join("flash");
    std::fs::rename(one.path().join("flash"), &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    for size in [64 << 20, 48 << 20] {
        let mut config = config(two.path(), IoEngine::Auto);
        config.devices[0].size = size;
        let message = Cache::open(config).unwrap_err().to_string();
        assert!(message.contains("another cache"), "{message}");
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.permissions().mode() & 0o777), (64 << 20, 0o640));
    }
}

#[test]
fn damaged_files_cost_warmth_and_nothing_else() {
    const VERSIONS: u32 = 4;
    let dir = TempDir::new().unwrap();
    let of_version = |n: u32, version: u32| value(n * VERSIONS + version);
    // All versions of a key reach flash, so that damage may uncover an old one.
    let options =
        NamespaceOptions { durability: Durability::WriteThrough, ..NamespaceOptions::default() };
    for (damage, close) in
        ["state", "journal", "flash"].into_iter().flat_map(|d| [(d, true), (d, false)])
    {
        let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
        let ns = cache.namespace("test", options).unwrap();
        for version in 0..VERSIONS {
            let put = |n| ns.submit_put(&key(n), &of_version(n, version), PutOptions::default());
            let acks: Vec<_> = (0..500).map(put).collect();
            assert!(acks.into_iter().all(|ack| ack.wait().version().is_some()));
        }
        for n in 0..50 {
            ns.remove(&key(n));
        }
        if close {
            cache.close();
        }
        drop((ns, cache));
        let path = dir.path().join(damage);
        let mut bytes = std::fs::read(&path).unwrap();
        // The superblocks stay; everything else is stirred, but for a few records in a hundred.
        let (from, step) = if damage == "flash" { (8192, 40_009) } else { (20, 101) };
        for at in (from..bytes.len()).step_by(step) {
            bytes[at] ^= 0x55;
        }
        std::fs::write(&path, &bytes).unwrap();
        let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
        let ns = cache.namespace("test", options).unwrap();
        wait_loaded(&cache);
        for n in 0..500 {
            if let Some(hit) = ns.get_blocking(&key(n)) {
                assert!(n >= 50, "{damage}: key {n} was removed");
                assert_eq!(
                    hit.value,
                    of_version(n, VERSIONS - 1),
                    "{damage}: an old value, or a wrong one"
                );
            }
        }
        assert!(
            ns.put(b"k", b"v", PutOptions::default()).version().is_some(),
            "{damage}: the cache goes on"
        );
    }
}

#[test]
fn opening_tells_what_it_found_and_half_a_flash_file_costs_only_what_it_held() {
    let dir = TempDir::new().unwrap();
    let flash = dir.path().join("flash");
    let fill = |cache: &Cache| {
        let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
        for n in 0..20_000 {
            let _ = ns.put(&key(n), &value(n), PutOptions::default());
            pace(cache);
        }
    };
    let open = || Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    let cache = open();
    assert_eq!(cache.opening().origin, Origin::New);
    fill(&cache);
    cache.close();
    drop(cache);

    let half = File::options().write(true).open(&flash).unwrap();
    half.set_len(32 << 20).unwrap();
    drop(half);
    let cache = open();
    let Opening { origin, namespaces, warm, truncated, .. } = cache.opening().clone();
    assert_eq!((origin, namespaces, warm), (Origin::Closed, 1, 1));
    assert_eq!(truncated, [Truncated { path: flash.clone(), left: 32 << 20, size: 64 << 20 }]);
    wait_loaded(&cache);
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    let found: Vec<_> = (0..20_000).map(|n| (n, ns.get_blocking(&key(n)))).collect();
    for (n, hit) in found.iter().filter_map(|(n, hit)| Some((n, hit.as_ref()?))) {
        assert_eq!(hit.value, value(*n));
    }
    let hits = found.iter().filter(|(_, hit)| hit.is_some()).count();
    assert!((2_000..18_000).contains(&hits), "{hits} of 20,000 objects");
    drop((ns, cache));

    // Not closed, and the journal gone; then closed, and the flash gone.
    std::fs::remove_file(dir.path().join("journal")).unwrap();
    let cache = open();
    let found = cache.opening();
    assert_eq!((found.origin, found.warm, found.journal), (Origin::Process, 0, false));
    assert!(found.to_string().starts_with("cold: "), "{found}");
    assert!(found.truncated.is_empty());
    cache.close();
    drop(cache);
    std::fs::remove_file(flash).unwrap();
    let cache = open();
    assert!(matches!(cache.opening().origin, Origin::Replaced(why) if why.contains("missing")));
}

#[test]
fn groups_epochs_and_whole_namespaces_die_at_once_and_stay_dead() {
    let dir = TempDir::new().unwrap();
    let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
    let put = |group, token| PutOptions { group, token, ..PutOptions::default() };
    {
        let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
        let ns = cache.namespace("test", options).unwrap();
        let other = cache.namespace("other", options).unwrap();
        let _ = ns.put(b"group", b"1", put(7, 0));
        let _ = ns.put(b"epoch", b"1", put(0, 5 << 44 | 123));
        let _ = ns.put(b"stays", b"1", put(8, 6 << 44));
        let _ = other.put(b"cleared", b"1", put(0, 0));
        ns.remove_group(7);
        ns.bump_epoch(5 << 44);
        other.clear();
        let _ = ns.put(b"again", b"1", put(7, 5 << 44));
        cache.close();
    }
    let cache = Cache::open(config(dir.path(), IoEngine::Auto)).unwrap();
    wait_loaded(&cache);
    let ns = cache.namespace("test", options).unwrap();
    let other = cache.namespace("other", options).unwrap();
    assert!(ns.get_blocking(b"group").is_none() && ns.get_blocking(b"epoch").is_none());
    assert!(other.get_blocking(b"cleared").is_none());
    assert!(ns.get_blocking(b"stays").is_some() && ns.get_blocking(b"again").is_some());
}

/// The same lives, each with the journal that the life before has written in the other way.
#[test]
fn a_journal_that_is_not_mapped_serves_the_same() {
    let dir = TempDir::new().unwrap();
    for life in 0..3u32 {
        let mut config = config(dir.path(), IoEngine::Auto);
        config.mapped_journal = life % 2 == 0;
        let cache = Cache::open(config).unwrap();
        let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
        wait_loaded(&cache);
        for n in (0..life * 100).filter(|n| n % 100 != 50) {
            let hit =
                ns.get_blocking(&key(n)).unwrap_or_else(|| panic!("{n} is lost in life {life}"));
            assert_eq!(&hit.value[..], value(n), "life {life}");
        }
        for before in 0..life {
            assert!(ns.get_blocking(&key(before * 100 + 50)).is_none(), "a removed object is back");
        }
        for n in life * 100..(life + 1) * 100 {
            let _ = ns.put(&key(n), b"older", PutOptions::default());
            let _ = ns.put(&key(n), &value(n), PutOptions::default());
        }
        while cache.stats().unsaved_bytes > 0 {
            std::thread::yield_now();
        }
        // Not noted anywhere but in the journal: the cache ends as by `kill -9`.
        ns.remove(&key(life * 100 + 50));
        drop(ns);
        drop(cache);
    }
}

#[test]
fn what_is_evicted_and_not_written_is_told() {
    let dir = TempDir::new().unwrap();
    let mut config = config(dir.path(), IoEngine::Pread);
    // An hour of it is there at once: 3.6 MB.
    config.write_budget = Some(1000);
    let cache = Cache::open(config).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    ns.on_eviction(move |evicted| {
        tell.send((evicted.key.to_vec(), evicted.value.to_vec(), evicted.expiry)).unwrap();
    });
    for n in 0..20_000 {
        let _ =
            ns.put(&key(n), &value(n), PutOptions { expiry: u32::MAX, ..PutOptions::default() });
    }
    let lost = cache.stats().namespaces[0].dropped.iter().sum::<u64>();
    let told: Vec<_> = told.try_iter().collect();
    assert!(lost > 1000 && told.len() as u64 == lost, "{lost} {}", told.len());
    for (told, bytes, expiry) in told {
        let n: u32 = std::str::from_utf8(&told).unwrap()[4..].parse().unwrap();
        assert!(bytes == value(n) && expiry == u32::MAX && ns.get_blocking(&told).is_none());
    }
}
