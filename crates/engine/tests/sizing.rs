//! What is planned, held against a real cache that was filled.

use std::time::{Duration, Instant};

use afterglow_engine::{
    Cache, Config, DeviceConfig, NamespaceOptions, Outlook, PutOptions, PutOutcome,
};

const FLASH: u64 = 32 << 20;

/// Key and value together.
const OBJECT: usize = 300;

fn put(cache: &Cache, ns: &afterglow_engine::Namespace, n: u64) {
    let key = format!("{n:016}");
    let until = Instant::now() + Duration::from_secs(60);
    while cache.stats().chunks_waiting > 4 {
        assert!(Instant::now() < until, "the device is stuck: {:#?}", cache.stats());
        std::thread::yield_now();
    }
    let put = ns.put(key.as_bytes(), &vec![n as u8; OBJECT - key.len()], PutOptions::default());
    assert!(matches!(put, PutOutcome::Stored { .. }), "{put:?}");
}

fn near(name: &str, real: f64, planned: f64, tolerance: f64) {
    let off = (real - planned).abs() / planned;
    assert!(off <= tolerance, "{name}: {real} is not within {tolerance} of the planned {planned}");
}

#[test]
fn a_full_cache_holds_and_has_written_what_was_planned() {
    let dir = tempfile::tempdir().unwrap();
    let device = DeviceConfig { path: dir.path().join("flash"), size: FLASH };
    let mut config = Config::new(dir.path(), vec![device]);
    config.memory = 16 << 20;
    config.journal_size = 1 << 20;
    // One slot for 512 bytes: as many as this flash may have.
    config.index_memory = Some(FLASH / 64);
    config.index_growth = false;
    let planned = Outlook::of_new(&config, FLASH).unwrap();
    assert_eq!(afterglow_engine::look(&config).unwrap().outlook, planned, "as opening divides it");

    let cache = Cache::open(config.clone()).unwrap();
    let ns = cache.namespace("test", NamespaceOptions::default()).unwrap();
    let filled = planned.flash_records(OBJECT);
    assert!(filled > planned.index_objects(), "the index is what is short here");
    for n in 0..filled * 3 / 4 {
        put(&cache, &ns, n);
    }
    // Nothing had to go yet, neither for a slot nor for a segment.
    let stats = cache.stats();
    let per_put = planned.written_by_put(&config, OBJECT);
    let stored = stats.namespaces[0].stored as f64;
    near("DRAM", stats.dram_bytes as f64, planned.dram as f64, 0.05);
    let records = (stats.totals.record_bytes + stats.unsaved_bytes) as f64;
    near("records", records, stored * per_put.record, 0.25);

    for n in filled * 3 / 4..filled * 3 {
        put(&cache, &ns, n);
    }
    let stats = cache.stats();
    // What is planned can be had without evicting many; pressed further the index fills up.
    let kept = stats.index_slots_used;
    assert!((planned.flash_objects(OBJECT)..=planned.index_slots).contains(&kept), "{kept}");
    // A slow machine writes more checkpoints than puts ask for, because they come by time as well.
    let (totals, puts) = (stats.totals, stats.namespaces[0].stored as f64);
    let (checkpoints, index) = (totals.checkpoints as f64, planned.index_bytes as f64);
    let footers = totals.record_bytes as f64 / per_put.record * per_put.footer;
    let metadata = totals.metadata_bytes as f64;
    near("footers and checkpoints", metadata, footers + checkpoints * index, 0.30);
    let paced = puts * per_put.checkpoint / index;
    assert!(checkpoints >= 0.7 * paced, "{checkpoints} checkpoints of {paced} by puts");
    cache.close();
}

#[test]
fn what_opening_refuses_is_refused_here_with_the_same_words() {
    let mut config = Config::new("nowhere", vec![]);
    config.memory = 1 << 20;
    let refused = Outlook::of_new(&config, 1 << 30).unwrap_err().to_string();
    assert!(refused.contains("configure more memory"), "{refused}");
    config.memory = 64 << 20;
    assert!(Outlook::of_new(&config, 64 << 10).is_err());
}
