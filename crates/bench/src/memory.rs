//! What an object costs in DRAM, what a miss costs the device, and whether the memory budget holds.

use std::path::PathBuf;

use afterglow_engine::{Cache, Config, DropReason, MissReason, Namespace, Outlook, Stats};

use super::{
    BenchError, alloc, pin, progress,
    report::{Check, Report},
    store::{self, Scratch, Shape, is_value, key},
};
use afterglow_loadgen::rng::Rng;

/// What is measured.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Where to make the caches.
    pub dir: PathBuf,
    /// Objects of the cache whose index is weighed; 0 leaves it out.
    pub objects: u64,
    /// Bytes of each value.
    pub value: usize,
    /// Objects of the bulk load; 0 leaves it out.
    pub bulk: u64,
    /// Memory budget of the bulk load.
    pub memory: u64,
    /// Flash of the bulk load.
    pub size: u64,
}

/// Share of the slots that shall be occupied.
const FILL: f64 = 0.9;
/// Index and segment table, bytes per object.
const BYTES_PER_OBJECT: f64 = 8.9;
/// Misses that may cost a device read.
const READS_PER_MISS: f64 = 0.001;
/// Memory of the weighed cache besides its index.
const REST: u64 = 320 << 20;
/// Bytes of index of the cache that is weighed against: as good as none.
const NO_INDEX: u64 = 1024;
/// Flash per byte of index that a cache must have.
const FLASH_PER_INDEX: u64 = 64;
/// Objects of the bulk load that are looked for at its end.
const SAMPLE: u64 = 500_000;
/// Share of them that is there where flash is large enough.
const KEPT: f64 = 0.97;
/// Objects that are read often before the index overflows.
const POPULAR: u64 = 10_000;

/// `afterglow-bench memory`.
pub fn memory(options: &MemoryOptions) -> Result<Report, BenchError> {
    if !alloc::is_counting() {
        return Err(BenchError::Void("this program does not count allocations".into()));
    }
    let scratch = Scratch::new(&options.dir)?;
    let mut report = Report::new("memory", scratch.path());
    if options.objects > 0 {
        weigh(options, &scratch, &mut report)?;
        scratch.clear()?;
    }
    if options.bulk > 0 {
        bulk_load(options, &scratch, &mut report)?;
    }
    Ok(report)
}

/// Bytes allocated by opening a cache: with an index of its own size less those of one with none.
fn index_bytes(shape: &Shape, scratch: &Scratch) -> Result<(i64, Cache, Namespace), BenchError> {
    let opened = |index_memory| -> Result<_, BenchError> {
        let shape = Shape { index_memory, ..shape.clone() };
        let before = alloc::live();
        let (cache, ns) = shape.open()?;
        Ok((alloc::live() - before, cache, ns))
    };
    let (without, cache, ns) = opened(Some(NO_INDEX))?;
    drop((ns, cache));
    scratch.clear()?;
    let (with, cache, ns) = opened(shape.index_memory)?;
    Ok((with - without, cache, ns))
}

fn weigh(
    options: &MemoryOptions,
    scratch: &Scratch,
    report: &mut Report,
) -> Result<(), BenchError> {
    let index = ((options.objects as f64 / FILL) as u64 * 8).next_multiple_of(64);
    let mut shape = Shape {
        dir: scratch.path().to_path_buf(),
        size: 0,
        memory: index + REST,
        index_memory: Some(index),
        value: options.value,
    };
    // Enough for what is put afterwards to make the index overflow.
    let more = options.objects / 8;
    shape.size = shape.flash_for(options.objects + more).max((index + 4096) * FLASH_PER_INDEX);
    let (bytes, cache, ns) = index_bytes(&shape, scratch)?;
    progress(format_args!("putting {} objects of {} B", options.objects, options.value));
    let seconds = store::fill(&cache, &ns, 0..options.objects, options.value);
    store::settle(&cache)?;
    store::no_drops(&cache)?;
    let (stats, resident) =
        (cache.stats(), pin::resident().map_err(BenchError::io("read /proc/self/status"))?);
    let used = stats.index_slots_used as f64;
    report.figure("objects put", options.objects as f64, "");
    report.figure(
        "puts a second, two threads, device included",
        options.objects as f64 / seconds,
        "/s",
    );
    report.figure("occupied slots", used, "");
    report.figure("index, by the allocator", bytes as f64, "B");
    report.figure("segment table, by its size", stats.segment_table_bytes as f64, "B");
    report.figure(
        "slots given to others because the index was full",
        index_full(&stats) as f64,
        "",
    );
    report.figure(
        "allocated in all since the program started, without mappings",
        alloc::live() as f64,
        "B",
    );
    dram_overhead(&stats, options.value, report);
    report.figure("resident, all", resident.all as f64, "B");
    report.figure("resident, without mapped files", resident.anonymous as f64, "B");
    report.figure("memory budget", shape.memory as f64, "B");
    let all = bytes as f64 + stats.segment_table_bytes as f64;
    report.checks.push(Check::at_least(
        "share of the slots occupied",
        used / stats.index_slots as f64,
        FILL - 0.001,
    ));
    report.checks.push(Check::at_most(
        "index and segment table, bytes per object",
        all / used,
        BYTES_PER_OBJECT,
    ));
    report.checks.push(Check::at_most(
        "resident memory as a share of the budget",
        resident.all as f64 / shape.memory as f64,
        1.0,
    ));
    look_up(options, &cache, &ns, report)?;
    overflow(options, &cache, &ns, more, report)
}

/// What an object costs in the DRAM tier beyond its key and value: all of the tier's memory, with
/// the hashes of what left it lately, by the number of its objects.
fn dram_overhead(stats: &Stats, value: usize, report: &mut Report) {
    report.figure("DRAM tier, by its own account", stats.dram_bytes as f64, "B");
    report.figure("DRAM tier, objects", stats.dram_objects as f64, "");
    let each = stats.dram_bytes as f64 / stats.dram_objects.max(1) as f64;
    let beyond = each - (store::KEY + value) as f64;
    report.figure("DRAM tier, bytes per object beyond key and value", beyond, "B");
}

fn index_full(stats: &Stats) -> u64 {
    stats.totals.dropped[DropReason::IndexFull as usize]
}

/// Objects that are not there, and some that are.
fn look_up(
    options: &MemoryOptions,
    cache: &Cache,
    ns: &Namespace,
    report: &mut Report,
) -> Result<(), BenchError> {
    let absent = (options.objects / 10).clamp(10_000, 2_000_000);
    progress(format_args!("looking up {absent} objects that are not there"));
    let before = cache.stats();
    for id in 0..absent {
        if ns.get_blocking(&key(id + (1 << 48))).is_some() {
            return Err(BenchError::Void(format!("object {id} was never put and was found")));
        }
    }
    let after = cache.stats();
    let reads = after.totals.device_reads - before.totals.device_reads;
    let collisions =
        |s: &Stats| s.namespaces.iter().map(|n| n.misses_for(MissReason::Collision)).sum::<u64>();
    report.figure("misses by tag collision", (collisions(&after) - collisions(&before)) as f64, "");
    report.checks.push(Check::at_most(
        "device reads per miss",
        reads as f64 / absent as f64,
        READS_PER_MISS,
    ));
    let (mut rng, mut found, tries) = (Rng::new(3), 0u64, 10_000);
    for _ in 0..tries {
        let id = rng.below(options.objects);
        if let Some(hit) = ns.get_blocking(&key(id)) {
            if !is_value(id, &hit.value, options.value) {
                return Err(BenchError::Void(format!("object {id} came back with another value")));
            }
            found += 1;
        }
    }
    report.checks.push(Check::at_least(
        "share of the objects put that are found",
        found as f64 / f64::from(tries),
        0.998,
    ));
    Ok(())
}

/// More objects than there are slots: the index gives slots of objects nobody reads to others, and
/// counts them.
fn overflow(
    options: &MemoryOptions,
    cache: &Cache,
    ns: &Namespace,
    more: u64,
    report: &mut Report,
) -> Result<(), BenchError> {
    progress(format_args!("putting {more} more"));
    let popular = POPULAR.min(options.objects / 100);
    let popular = |n: u64| n * (options.objects / popular);
    let count = POPULAR.min(options.objects / 100);
    for _ in 0..3 {
        for n in 0..count {
            // Counts in the index; the read is not wanted.
            drop(ns.get(&key(popular(n))));
        }
    }
    let before = cache.stats();
    store::fill(cache, ns, options.objects..options.objects + more, options.value);
    store::settle(cache)?;
    let after = cache.stats();
    let evicted = index_full(&after) - index_full(&before);
    let grown = after.index_slots_used - before.index_slots_used;
    report.figure("objects put into the full index", more as f64, "");
    report.figure("slots it gave to others", evicted as f64, "");
    // Some share slots by equal tags. Others were in DRAM when their slot was given away, and take
    // one again as they leave it. So the sum may be a little more than one each.
    let accounted = (grown + evicted) as f64 / more as f64;
    report.checks.push(Check::at_least(
        "objects put into the full index that took a free slot or a counted one",
        accounted,
        0.995,
    ));
    let kept = |ids: &mut dyn Iterator<Item = u64>| {
        let (mut found, mut all) = (0u64, 0u64);
        for id in ids {
            found += u64::from(ns.get_blocking(&key(id)).is_some());
            all += 1;
        }
        found as f64 / all.max(1) as f64
    };
    let read = kept(&mut (0..count).map(popular));
    let unread = kept(&mut (0..count).map(|n| popular(n) + 1));
    report.figure("of objects never read, still found", 100.0 * unread, "%");
    report.checks.push(Check::at_least("of objects read before, share still found", read, 0.998));
    Ok(())
}

/// Many objects at once: does the process ever take more than it was given?
fn bulk_load(
    options: &MemoryOptions,
    scratch: &Scratch,
    report: &mut Report,
) -> Result<(), BenchError> {
    let shape = Shape {
        dir: scratch.path().to_path_buf(),
        size: options.size,
        memory: options.memory,
        index_memory: None,
        value: options.value,
    };
    let (cache, ns) = shape.open()?;
    progress(format_args!(
        "bulk load of {} objects into {} MiB of memory",
        options.bulk,
        options.memory >> 20
    ));
    // Forgets the highest resident size so far (proc(5)).
    std::fs::write("/proc/self/clear_refs", "5")
        .map_err(BenchError::io("write /proc/self/clear_refs"))?;
    let seconds = store::fill(&cache, &ns, 0..options.bulk, options.value);
    let resident = pin::resident().map_err(BenchError::io("read /proc/self/status"))?;
    let stats = cache.stats();
    report.figure("bulk load: objects put", options.bulk as f64, "");
    report.figure("bulk load: puts a second", options.bulk as f64 / seconds, "/s");
    report.figure("bulk load: slots used", stats.index_slots_used as f64, "");
    report.figure("bulk load: slots given to others", index_full(&stats) as f64, "");
    report.figure("bulk load: segments reclaimed", stats.totals.segments_reclaimed as f64, "");
    report.figure("bulk load: highest resident memory", resident.peak as f64, "B");
    report.figure("bulk load: allocated without mappings", alloc::live() as f64, "B");
    report.figure("bulk load: DRAM tier, by its own account", stats.dram_bytes as f64, "B");
    report.figure(
        "bulk load: resident without mapped files at its end",
        resident.anonymous as f64,
        "B",
    );
    let share = resident.peak as f64 / options.memory as f64;
    kept_of_bulk(options, &cache, &ns, report)?;
    report.checks.push(Check::at_most(
        "bulk load: highest resident memory as a share of the budget",
        share,
        1.0,
    ));
    Ok(())
}

/// How many objects of the bulk load are there at its end, by a sample. Flash of more than they
/// take is to hold nearly all: the index grows for them.
fn kept_of_bulk(
    options: &MemoryOptions,
    cache: &Cache,
    ns: &Namespace,
    report: &mut Report,
) -> Result<(), BenchError> {
    store::settle(cache)?;
    let (mut rng, mut found) = (Rng::new(7), 0_u64);
    let sample = options.bulk.min(SAMPLE);
    for _ in 0..sample {
        let id = rng.below(options.bulk);
        let value = ns.get_blocking(&key(id));
        found += u64::from(value.is_some_and(|o| is_value(id, &o.value, options.value)));
    }
    let (stats, kept) = (cache.stats(), found as f64 / sample as f64);
    report.figure("bulk load: objects found of a sample", 100.0 * kept, "%");
    report.figure("bulk load: index", stats.index_bytes as f64, "B");
    let bytes = stats.index_bytes as f64 / stats.index_slots_used.max(1) as f64;
    report.figure("bulk load: index, bytes per object", bytes, "B");
    let mut config = Config::new(&options.dir, Vec::new());
    config.memory = options.memory;
    let len = store::KEY + options.value;
    let outlook = Outlook::of_new(&config, options.size)?.grown_for(len);
    if outlook.flash_objects(len) >= options.bulk {
        report.checks.push(Check::at_least("bulk load: share of the objects kept", kept, KEPT));
    }
    Ok(())
}
