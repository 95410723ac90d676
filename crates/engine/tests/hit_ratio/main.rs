//! Hit ratios of the DRAM tier beside the policies it must keep up with, over public traces:
//!
//! ```sh
//! AFTERGLOW_TRACES=/path/to/traces cargo test -p afterglow-engine --test hit_ratio
//! ```
//!
//! Without traces a synthetic one is judged alone: popularity as Zipf has it, with scans through
//! it.
//!
//! Capacity is 1 % and 10 % of the unique keys, all objects of equal size; independent draws stand
//! beside the traces. `copies` is ours where flash holds everything and what was read may be left
//! there, `taken` the share of reads whose copy was taken. Fails when either is more than one point
//! below the best, on the synthetic trace more than two.

mod reference;
mod traces;

use std::process::ExitCode;

use afterglow_engine::index::Location;
use afterglow_engine::tier::{DramEntry, DramTier, EntryState, PolicyTrial, entry_bytes};
use bytes::Bytes;

/// Bytes of every object: large enough that the tier's own structures do not decide.
const OBJECT: usize = 40_000;
/// Bytes per object the tier may have for its ghost, which the plain policies are not charged for.
const GHOST: usize = 13;
/// Points that ours may be below the best.
const TOLERANCE: f64 = 1.0;
/// The same for the synthetic trace, which has less recency than public ones: copies are 1.7 points
/// below W-TinyLFU at 1 %.
const SYNTHETIC_TOLERANCE: f64 = 2.0;

fn main() -> ExitCode {
    let mut traces = vec![traces::scanned()];
    if let Some(dir) = std::env::var_os("AFTERGLOW_TRACES") {
        traces.extend(traces::load(dir.as_ref()).expect("readable traces"));
        traces.extend(traces::drawn());
    }
    for name in traces::names().filter(|name| !traces.iter().any(|trace| trace.name == *name)) {
        println!("left out: {name}, which is not in the folder that AFTERGLOW_TRACES names");
    }
    println!(
        "{:24}{:>10}{:>9}{:>6}{:>8}{:>9}{:>11}{:>7}{:>8}{:>7}",
        "trace",
        "requests",
        "unique",
        "size",
        "LRU",
        "S3-FIFO",
        "W-TinyLFU",
        "ours",
        "copies",
        "taken"
    );
    let mut behind = 0;
    for (trace, percent) in traces.iter().flat_map(|trace| [(trace, 1), (trace, 10)]) {
        let (requests, unique) = (&trace.requests, trace.unique);
        let capacity = unique * percent / 100;
        let ratio = |hits: usize| hits as f64 * 100.0 / requests.len() as f64;
        let rivals = [reference::lru, reference::s3_fifo, reference::w_tiny_lfu]
            .map(|policy| ratio(policy(requests, unique, capacity)));
        let (ours, copies) = (ours(requests, capacity), copies(requests, capacity));
        let taken = copies.taken as f64 / (requests.len() - copies.hits) as f64;
        let (ours, copies) = (ratio(ours.hits), ratio(copies.hits));
        println!(
            "{:24}{:>10}{unique:>9}{:>6}{:>8.1}{:>9.1}{:>11.1}{ours:>7.1}{copies:>8.1}{taken:>7.2}",
            trace.name,
            requests.len(),
            format!("{percent} %"),
            rivals[0],
            rivals[1],
            rivals[2],
        );
        let ours = ours.min(copies);
        let tolerance =
            if trace.name == traces::SYNTHETIC { SYNTHETIC_TOLERANCE } else { TOLERANCE };
        behind += usize::from(rivals.iter().any(|&rival| rival - ours > tolerance));
    }
    if behind > 0 {
        println!(
            "{behind} times more than {TOLERANCE} points ({SYNTHETIC_TOLERANCE} on the synthetic trace) behind the best"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// What a replay came to.
struct Replayed {
    hits: usize,
    /// Objects taken in.
    taken: usize,
}

/// The DRAM tier with room for `capacity` objects.
fn ours(requests: &[u32], capacity: usize) -> Replayed {
    replay(requests, capacity, EntryState::Dirty)
}

/// The same when flash holds everything: what is asked for is a copy, which is not always taken.
fn copies(requests: &[u32], capacity: usize) -> Replayed {
    replay(requests, capacity, EntryState::Clean(Location { segment: 0, offset_units: 0 }))
}

fn replay(requests: &[u32], capacity: usize, state: EntryState) -> Replayed {
    let fixed = DramTier::new(0).bytes();
    let mut tier = DramTier::new(fixed + capacity * (entry_bytes(OBJECT) + GHOST));
    let data = Bytes::from(vec![0; OBJECT]);
    let (mut trial, mut taken) = (PolicyTrial::new(), 0);
    let hits = reference::hits(requests, |key| {
        let hash = hash(key);
        trial.request(&mut tier, hash);
        if tier.get(hash, 0, &[]).is_some() {
            return true;
        }
        if state == EntryState::Dirty
            || tier.wants_copy(hash, OBJECT, |hash| trial.popularity(hash))
        {
            trial.replay(&mut tier, &entry(hash, data.clone(), state).object());
            taken += 1;
        }
        false
    });
    Replayed { hits, taken }
}

fn entry(hash: u64, data: Bytes, state: EntryState) -> DramEntry {
    DramEntry {
        hash,
        version: 1,
        data,
        key_len: 0,
        expiry: 0,
        group: 0,
        epoch_slot: 0,
        ns: 0,
        state,
    }
}

/// A bijection on 64 bits that spreads (the finalizer of SplitMix64).
fn hash(key: u32) -> u64 {
    let mut x = (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
