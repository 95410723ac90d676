//! The engine itself, replaying a trace: a cache in a file, a get for each request, and a put of
//! the object's size where the get misses.
//!
//! - The replay waits while reclaim or the device is behind, as they are not in a cache that is
//!   asked in the time the trace took. So what is written is what the rules of admission and
//!   reinsertion say, not what speed makes of them.
//! - Flash has as many segments as its share of bytes takes in records. Reserve, padding and
//!   footers come on top: in a cache of usual size they are a few percent, in one that is small
//!   enough for these traces up to a fifth.
//! - One shard, so that DRAM is not divided among few objects.
//! - What the background copies because it has been in DRAM for seconds hardly counts: a replay
//!   takes seconds.

use std::{path::Path, time::Duration};

use afterglow_engine::{
    Cache, Config, DeviceConfig, Mutability, Namespace, NamespaceOptions, Outlook, PutOptions,
    Resized, Stats, Tier,
    format::{footer, footer_entries::usual_entry, record},
    tier::{DramTier, entry_bytes},
};

use super::{
    policy::{Cost, Place, Room, Tally},
    read::Trace,
};
use crate::{BenchError, store};

/// Bytes of a key.
const KEY: usize = 8;
/// Segments that flash has at least. A cache of a usual size has 256; here they bound the largest
/// object.
const SEGMENTS: u64 = 64;
/// Of these as many are free, or half full, when reclaim is not behind.
const SPARE: u64 = 5;
/// Parts of a segment that are written at a time; records do not span them.
const CHUNKS: u64 = 4;
const LARGEST_CHUNK: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Sizes of a segment.
const SEGMENT: std::ops::RangeInclusive<u64> = 64 << 10..=16 << 20;
/// Bytes of DRAM per object for its ghost, which the models are not charged for.
const GHOST: u64 = 13;
/// Slots of the index for each object that flash may hold.
const SLOTS: f64 = 1.5;
/// Segments that are free when reclaim is not behind.
const FREE: u64 = 4;
/// Parts of a segment that are put between two looks at how far reclaim and device are.
const LOOKS: u64 = 8;
const NAP: Duration = Duration::from_micros(50);

/// What a value of so many bytes takes in either tier.
pub fn cost(len: u32) -> Cost {
    let dram = entry_bytes(KEY + len as usize);
    Cost { dram: dram as u32, flash: record::usual_padded(KEY, len as usize) }
}

/// A cache to be opened for a trace.
pub struct Plan {
    config: Config,
    /// Bytes of the DRAM tier.
    dram: u64,
    room: Room,
}

impl Plan {
    /// A cache with so many bytes of DRAM for objects, and at least so many of flash.
    ///
    /// # Errors
    /// The sizes are too small for a cache.
    pub fn new(dir: &Path, trace: &Trace, dram: u64, flash: u64) -> Result<Self, BenchError> {
        let segment =
            (1 << (flash / SEGMENTS).max(1).ilog2()).clamp(*SEGMENT.start(), *SEGMENT.end());
        let record = u64::from(cost(trace.mean() as u32).flash);
        let segments = flash.div_ceil(segment_holds(segment, record)) + SPARE;
        let objects = flash / record;
        let mut config = Config::new(dir, Vec::new());
        config.shards = 1;
        config.segment_size = Some(segment as u32);
        config.index_memory = Some((objects as f64 * SLOTS) as u64 * 8);
        config.index_growth = false;
        config.journal_size = 4 << 20;
        let empty = DramTier::new(0).bytes() as u64;
        let entries = dram / u64::from(cost(trace.mean() as u32).dram);
        let dram_tier = empty + dram + entries * GHOST;
        // Checkpoint areas come on top of the segments.
        let outlook = |config: &Config, size| Outlook::of_new(config, size);
        config.memory = 1 << 30;
        let mut size = segments * segment;
        while outlook(&config, size)?.segments < segments {
            size += segment;
        }
        config.memory = memory_for(&config, size, dram_tier)?;
        config.devices = vec![DeviceConfig { path: dir.join("flash"), size }];
        let largest = (segment / 4) as usize - record::most_len(KEY, 0);
        let room = Room {
            dram,
            flash,
            unique: trace.unique,
            objects: objects as usize,
            largest: largest as u32,
        };
        Ok(Self { config, dram: dram_tier, room })
    }

    /// What the other policies are given.
    pub fn room(&self) -> &Room {
        &self.room
    }

    fn open(&self) -> Result<(Cache, Namespace), BenchError> {
        let cache = Cache::open(self.config.clone())?;
        let options =
            NamespaceOptions { mutability: Mutability::Immutable, ..NamespaceOptions::default() };
        let ns = cache.namespace("traces", options)?;
        let by = self.dram as i64 - cache.stats().dram_capacity as i64;
        match cache.resize_dram(by, &|| true) {
            Resized::Done => Ok((cache, ns)),
            Resized::TooSmall | Resized::Stopped => Err(BenchError::Void(format!(
                "{} bytes of DRAM are too few for a cache: choose a larger --share",
                self.dram
            ))),
        }
    }
}

/// Bytes of records of this size that a segment holds.
fn segment_holds(segment: u64, record: u64) -> u64 {
    let chunk = (segment / CHUNKS).min(LARGEST_CHUNK);
    let entries = (segment / record) as usize * usual_entry(record as u32);
    let footer = u64::from(footer::len_with(entries));
    // The block with the header, and half a block for the chunk that each reclaim closes.
    let lost = if record.is_multiple_of(BLOCK) { BLOCK } else { BLOCK + BLOCK / 2 };
    (segment - footer - lost) * (chunk / record * record) / chunk
}

/// The least memory, in steps, of which the DRAM tier gets so many bytes.
fn memory_for(config: &Config, size: u64, dram: u64) -> Result<u64, BenchError> {
    const STEP: u64 = 16 << 10;
    let mut config = config.clone();
    let (mut low, mut high) = (0, (dram + (128 << 20)) / STEP);
    while low < high {
        let middle = (low + high) / 2;
        config.memory = middle * STEP;
        match Outlook::of_new(&config, size) {
            Ok(outlook) if outlook.dram >= dram => high = middle,
            // Too little for anything is refused.
            _ => low = middle + 1,
        }
    }
    config.memory = high * STEP;
    Outlook::of_new(&config, size)?;
    Ok(config.memory)
}

/// What the engine came to.
#[derive(Debug)]
pub struct Replayed {
    /// Counted by the engine, bytes by the replay.
    pub tally: Tally,
    /// Bytes of records that reclaims wrote again.
    pub reinserted: u64,
    /// Bytes of metadata and padding written.
    pub metadata: u64,
    /// Objects that were refused or dropped for other reasons than admission and reclaim.
    pub lost: u64,
}

/// Replays a trace through a new cache.
///
/// # Errors
/// The cache cannot be opened, its reclaim stands still, or its counters and the replay disagree.
pub fn ours(plan: &Plan, trace: &Trace) -> Result<Replayed, BenchError> {
    let (cache, ns) = plan.open()?;
    let value = vec![0xa5; plan.room.largest as usize];
    let segment = u64::from(plan.config.segment_size.unwrap_or_default());
    let (mut tally, mut put) = (Tally::default(), 0);
    for request in &trace.requests {
        if request.len > plan.room.largest {
            tally.count(request.len, Place::Nowhere);
            continue;
        }
        let key = u64::from(request.key).to_le_bytes();
        let place = match ns.get_blocking(&key).map(|hit| hit.tier) {
            Some(Tier::Dram) => Place::Dram,
            Some(Tier::Buffer | Tier::Flash) => Place::Flash,
            None => Place::Nowhere,
        };
        tally.count(request.len, place);
        if place == Place::Nowhere {
            let _ = ns.put(&key, &value[..request.len as usize], PutOptions::default());
        }
        // What is read from flash makes other objects leave DRAM too.
        if place != Place::Dram {
            put += u64::from(cost(request.len).flash);
        }
        if put > segment / LOOKS {
            put = 0;
            keep_up(&cache)?;
        }
    }
    judge(&cache.stats(), tally)
}

/// Waits until device and reclaim have done what is due.
fn keep_up(cache: &Cache) -> Result<(), BenchError> {
    let is_due = |stats: &Stats| stats.chunks_waiting > 1 || stats.segments_free < FREE;
    if !is_due(&cache.stats()) {
        return Ok(());
    }
    store::wait_for(cache, "reclaim", NAP, |stats| !is_due(stats))
}

/// Compares the engine's counters with what the replay saw.
fn judge(stats: &Stats, tally: Tally) -> Result<Replayed, BenchError> {
    use afterglow_engine::DropReason;
    let totals = &stats.totals;
    let Some(ns) = stats.namespaces.first() else {
        return Err(BenchError::Void("the cache has no namespace".into()));
    };
    let flash = ns.hits_from(Tier::Flash) + ns.hits_from(Tier::Buffer);
    let counted = [ns.hits_from(Tier::Dram), flash];
    if counted != tally.hits {
        return Err(BenchError::Void(format!(
            "the engine counted {counted:?} hits from DRAM and flash, its caller {:?}",
            tally.hits
        )));
    }
    let dropped = |reason: DropReason| ns.dropped[reason as usize];
    let meant = dropped(DropReason::NotAdmitted) + dropped(DropReason::Reclaimed);
    let refused: u64 = ns.refused.iter().sum();
    let lost = ns.dropped.iter().sum::<u64>() - meant
        + refused
        + totals.dropped[DropReason::IndexFull as usize];
    Ok(Replayed {
        tally: Tally { written: totals.record_bytes, ..tally },
        reinserted: totals.reinserted_bytes,
        metadata: totals.metadata_bytes + totals.padding_bytes,
        lost,
    })
}
