//! A trace of requests, replayed.
//!
//! A trace is text, one request a line. A line has the key, and after a space or tab the bytes of
//! key and value together if they are known. Empty lines and lines that begin with `#` are left
//! out.
//!
//! The DRAM tier of the replay is the engine's own. Flash is LRU over records: what is read is
//! written again before its segment goes. Each miss is a set of the object, as of a cache aside.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, BufRead},
};

use afterglow_engine::{
    format::key_hash,
    tier::{DramEntry, DramTier, EntryState, NOWHERE, PolicyTrial},
};
use bytes::Bytes;

use super::layout::Layout;
use super::{HitRatio, Objects, Plan};

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TracedRead {
    /// Of the key.
    hash: u64,
    /// Bytes of key and value.
    len: u32,
}

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A line is no request.
    #[error("line {line}: `{text}` is no size: write the key, a space, and bytes")]
    Line {
        /// Its number.
        line: usize,
        /// What is there.
        text: String,
    },
    /// No line is a request.
    #[error("has no requests: one key a line, and behind a space its bytes if they are known")]
    Empty,
}

/// Requests in memory, 16 bytes each.
#[derive(Debug)]
pub struct Replay {
    requests: Vec<TracedRead>,
    objects: Objects,
}

/// Reads a trace; objects without a size have `default_len` bytes.
///
/// # Errors
/// See [`TraceError`].
pub fn read_trace(input: impl BufRead, default_len: u32) -> Result<Replay, TraceError> {
    let mut requests = Vec::new();
    let mut lens: HashMap<u64, u32> = HashMap::new();
    for (number, line) in input.split(b'\n').enumerate() {
        let line = line?;
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let mut words =
            line.split(|byte| *byte == b' ' || *byte == b'\t').filter(|w| !w.is_empty());
        let (Some(key), size) = (words.next(), words.next()) else { continue };
        let hash = key_hash(0, 0, key);
        let len = match size {
            None => lens.get(&hash).copied().unwrap_or(default_len),
            Some(size) => std::str::from_utf8(size)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| TraceError::Line {
                    line: number + 1,
                    text: String::from_utf8_lossy(size).into_owned(),
                })?,
        };
        lens.insert(hash, len);
        requests.push(TracedRead { hash, len });
    }
    if requests.is_empty() {
        return Err(TraceError::Empty);
    }
    let count = lens.len() as u64;
    let bytes: u64 = lens.values().map(|len| u64::from(*len)).sum();
    Ok(Replay { requests, objects: Objects { count, size: (bytes / count).max(1) } })
}

impl Replay {
    /// The objects that are asked for.
    pub fn objects(&self) -> Objects {
        self.objects
    }

    /// Requests in all.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// The share of requests that ask for an object for the first time: no cache answers these.
    pub fn first_reads(&self) -> f64 {
        self.objects.count as f64 / self.requests.len() as f64
    }

    /// What the tiers of a cache that begins empty answer. Takes as much memory as its DRAM tier.
    pub fn hit_ratio(&self, plan: &Plan) -> HitRatio {
        let mut dram = DramTier::new(usize::try_from(plan.outlook.dram).unwrap_or(usize::MAX));
        let mut flash = LeastRecentlyUsed::new(
            plan.layout.fit_flash(&plan.outlook).saturating_mul(plan.layout.bytes()),
            plan.outlook.index_objects(),
        );
        let (mut from_dram, mut from_flash) = (0_u64, 0_u64);
        let mut trial = PolicyTrial::new();
        for request in &self.requests {
            let key = request.hash.to_le_bytes();
            let layout = Layout::of(request.len.into(), plan.outlook.segment_size);
            let on_flash = flash.touch(request.hash, layout.bytes());
            if layout.parts > 0 {
                from_flash += u64::from(on_flash);
                continue;
            }
            trial.request(&mut dram, request.hash);
            if dram.get(request.hash, 0, &key).is_some() {
                from_dram += 1;
                continue;
            }
            if on_flash {
                from_flash += 1;
                let popularity = |hash| trial.popularity(hash);
                if !dram.wants_copy(request.hash, request.len as usize, popularity) {
                    continue;
                }
            }
            trial.replay(&mut dram, &entry(request, &key).object());
        }
        let share = |hits: u64| hits as f64 / self.requests.len() as f64;
        HitRatio { dram: share(from_dram), flash: share(from_flash) }
    }
}

fn entry(request: &TracedRead, key: &[u8]) -> DramEntry {
    let mut data = vec![0; (request.len as usize).max(key.len())];
    data[..key.len()].copy_from_slice(key);
    DramEntry {
        hash: request.hash,
        version: 1,
        data: Bytes::from(data),
        key_len: key.len() as u32,
        expiry: 0,
        group: 0,
        epoch_slot: 0,
        ns: 0,
        state: EntryState::Clean(NOWHERE),
    }
}

/// Objects in the order of their last use, within bounds of bytes and number.
struct LeastRecentlyUsed {
    places: HashMap<u64, (u64, u64)>,
    order: BTreeMap<u64, u64>,
    used: u64,
    bytes: u64,
    count: u64,
    now: u64,
}

impl LeastRecentlyUsed {
    fn new(bytes: u64, count: u64) -> Self {
        Self { places: HashMap::new(), order: BTreeMap::new(), used: 0, bytes, count, now: 0 }
    }

    /// Uses an object, and puts it in if it is not there; whether it was.
    fn touch(&mut self, hash: u64, len: u64) -> bool {
        self.now += 1;
        let before = self.places.insert(hash, (self.now, len));
        if let Some((when, len)) = before {
            self.order.remove(&when);
            self.used -= len;
        }
        self.order.insert(self.now, hash);
        self.used += len;
        while self.used > self.bytes || self.places.len() as u64 > self.count {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some((_, len)) = self.places.remove(&oldest) {
                self.used -= len;
            }
        }
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Size, size::Wishes};

    #[test]
    fn keys_with_and_without_sizes_are_read() {
        let text = "# key bytes\na 100\nb\t300\n\na\n c \na 50\n";
        let replay = read_trace(text.as_bytes(), 200).unwrap();
        let lens: Vec<u32> = replay.requests.iter().map(|request| request.len).collect();
        assert_eq!(lens, [100, 300, 100, 200, 50]);
        assert_eq!(replay.objects(), Objects { count: 3, size: (50 + 300 + 200) / 3 });
        assert_eq!(replay.first_reads(), 3.0 / 5.0);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let error = read_trace("a 1\nb many\n".as_bytes(), 1).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("many"), "{error}");
        assert!(matches!(read_trace("#\n".as_bytes(), 1), Err(TraceError::Empty)));
    }

    #[test]
    fn what_is_used_least_recently_goes_first() {
        let mut flash = LeastRecentlyUsed::new(300, 10);
        let mut uses = |hash| flash.touch(hash, 100);
        assert_eq!([uses(1), uses(2), uses(3), uses(1)], [false, false, false, true]);
        // 4 takes the place of 2.
        assert_eq!([uses(4), uses(1), uses(3), uses(2)], [false, true, true, false]);
    }

    #[test]
    fn reads_in_turn_of_more_than_memory_holds_are_answered_from_flash() {
        let count = 100_000;
        let text: String = (0..count * 3).map(|n| format!("key{} 1000\n", n % count)).collect();
        let replay = read_trace(text.as_bytes(), 1).unwrap();
        let wishes = Wishes { memory: Some(Size::mib(32)), flash: Some(Size::gib(1)) };
        let plan = Plan::find(replay.objects(), wishes).unwrap();
        let ratio = replay.hit_ratio(&plan);
        // All but the first reads, and few from memory: no order would be worse for it.
        assert!((ratio.miss() - 1.0 / 3.0).abs() < 1e-6, "{ratio:?}");
        assert!(ratio.flash > 0.5, "{ratio:?}");
    }
}
