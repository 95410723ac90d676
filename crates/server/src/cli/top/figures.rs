//! The difference between two answers of the server.

use std::collections::BTreeMap;

use crate::admin::overview::{NamespaceFigures, Overview};
use crate::metrics::figures::{ByWord, FrontEndFigures, LatencyFigures};

/// Two answers; without the first one it is all since the start of the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval<'a> {
    pub(super) from: Option<&'a Overview>,
    pub(super) to: &'a Overview,
}

/// Reads by where their answer came from.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Reads {
    pub(super) dram: u64,
    pub(super) flash: u64,
    /// From other instances of the ring.
    pub(super) ring: u64,
    pub(super) misses: u64,
}

impl Reads {
    pub(super) fn hits(&self) -> u64 {
        self.dram + self.flash + self.ring
    }

    /// A part of all lookups; `None` where there were none.
    pub(super) fn part(&self, of: u64) -> Option<f64> {
        let all = self.hits() + self.misses;
        (all > 0).then(|| of as f64 / all as f64)
    }
}

/// Bytes written to segments and checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Written {
    pub(super) total: u64,
    /// How much that is for each byte of new objects; `None` where there were none.
    pub(super) amplification: Option<f64>,
}

impl Interval<'_> {
    pub(super) fn seconds(&self) -> f64 {
        let from = self.from.map_or(self.to.started, |from| from.now);
        (self.to.now - from).max(0.001)
    }

    fn front_ends(&self) -> impl Iterator<Item = (&FrontEndFigures, Option<&FrontEndFigures>)> {
        self.to.front_ends.iter().map(|now| {
            let before =
                self.from.and_then(|from| from.front_ends.iter().find(|one| one.name == now.name));
            (now, before)
        })
    }

    /// One family of all front ends, by word.
    pub(super) fn by_word(&self, of: fn(&FrontEndFigures) -> &ByWord) -> ByWord {
        let mut sum = ByWord::new();
        for (now, before) in self.front_ends() {
            add(&mut sum, of(now), before.map(of));
        }
        sum
    }

    /// One family of all namespaces, by word.
    pub(super) fn of_namespaces(&self, of: fn(&NamespaceFigures) -> &ByWord) -> ByWord {
        let mut sum = ByWord::new();
        let all = |overview: &'_ Overview| overview.cache.clone().map(|cache| cache.namespaces);
        let before = self.from.and_then(all).unwrap_or_default();
        for now in all(self.to).unwrap_or_default() {
            let before = before.iter().find(|one| one.name == now.name);
            add(&mut sum, of(&now), before.map(of));
        }
        sum
    }

    /// Copies dropped from flash, by reason.
    pub(super) fn flash_dropped(&self) -> ByWord {
        self.of_cache(|cache| &cache.flash_dropped)
    }

    fn of_cache(&self, of: fn(&crate::admin::overview::CacheFigures) -> &ByWord) -> ByWord {
        let mut sum = ByWord::new();
        let before = self.from.and_then(|from| from.cache.as_ref());
        if let Some(now) = &self.to.cache {
            add(&mut sum, of(now), before.map(of));
        }
        sum
    }

    /// Requests by front end and kind.
    pub(super) fn requests_by_kind(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for (now, before) in self.front_ends() {
            let mut kinds = ByWord::new();
            add(&mut kinds, &now.requests, before.map(|before| &before.requests));
            all.extend(kinds.into_iter().map(|(kind, n)| (format!("{} {kind}", now.name), n)));
        }
        all
    }

    pub(super) fn requests(&self) -> u64 {
        self.by_word(|front_end| &front_end.requests).values().sum()
    }

    pub(super) fn reads(&self) -> Reads {
        let hits = self.by_word(|front_end| &front_end.hits);
        let of = |tier: &str| hits.get(tier).copied().unwrap_or(0);
        Reads {
            dram: of("dram") + of("buffer"),
            flash: of("flash"),
            ring: of("ring"),
            misses: self.by_word(|front_end| &front_end.misses).values().sum(),
        }
    }

    pub(super) fn written(&self) -> Written {
        let bytes = self.of_cache(|cache| &cache.written_bytes);
        let of = |kind: &str| bytes.get(kind).copied().unwrap_or(0);
        let total = of("record") + of("metadata") + of("padding") + of("kill_log");
        let fresh = of("record").saturating_sub(of("reinserted"));
        let amplification = (fresh > 0).then(|| total as f64 / fresh as f64);
        Written { total, amplification }
    }

    /// Requests and their latencies, by front end and path.
    pub(super) fn latencies(&self) -> Vec<(String, LatencyFigures)> {
        let mut all = Vec::new();
        for (now, before) in self.front_ends() {
            for (path, figures) in &now.latency {
                let before = before.and_then(|before| before.latency.get(path));
                all.push((format!("{} {path}", now.name), since(figures, before)));
            }
        }
        all
    }

    /// The same for all reads that the cache had a part in.
    pub(super) fn read_latency(&self) -> LatencyFigures {
        let is_read =
            |name: &str| ["dram", "flash", "miss"].iter().any(|path| name.ends_with(path));
        let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
        let latencies = self.latencies();
        let reads = latencies.iter().filter(|(name, _)| is_read(name));
        for (bound, count) in reads.flat_map(|(_, figures)| &figures.buckets) {
            *buckets.entry(bound.unwrap_or(u64::MAX)).or_default() += count;
        }
        LatencyFigures {
            count: buckets.values().sum(),
            sum_seconds: 0.0,
            buckets: buckets
                .into_iter()
                .map(|(bound, count)| ((bound < u64::MAX).then_some(bound), count))
                .collect(),
        }
    }
}

/// The bound in microseconds within which that part of requests was answered; `None` without any.
pub(super) fn percentile(figures: &LatencyFigures, part: f64) -> Option<u64> {
    let largest = figures.buckets.iter().rev().find_map(|(bound, _)| *bound).unwrap_or(1);
    let mut left = (figures.count as f64 * part).ceil() as u64;
    for (bound, count) in &figures.buckets {
        match left.checked_sub(*count) {
            Some(rest) if rest > 0 => left = rest,
            _ => return Some(bound.unwrap_or(largest)),
        }
    }
    None
}

fn since(now: &LatencyFigures, before: Option<&LatencyFigures>) -> LatencyFigures {
    let old: BTreeMap<Option<u64>, u64> =
        before.map(|before| before.buckets.iter().copied().collect()).unwrap_or_default();
    let buckets: Vec<(Option<u64>, u64)> = now
        .buckets
        .iter()
        .map(|(bound, n)| (*bound, n.saturating_sub(old.get(bound).copied().unwrap_or(0))))
        .filter(|(_, n)| *n > 0)
        .collect();
    LatencyFigures {
        count: buckets.iter().map(|(_, n)| n).sum(),
        sum_seconds: now.sum_seconds - before.map_or(0.0, |before| before.sum_seconds),
        buckets,
    }
}

fn add(sum: &mut ByWord, now: &ByWord, before: Option<&ByWord>) {
    for (word, count) in now {
        let old = before.and_then(|before| before.get(word)).copied().unwrap_or(0);
        *sum.entry(word.clone()).or_default() += count.saturating_sub(old);
    }
}
