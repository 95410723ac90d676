//! The counters of front ends and database as figures for programs that draw them: the JSON of the
//! admin address. Prometheus' text has the same figures under other names.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::histogram::{BUCKETS, Histogram, upper_bound_us};
use super::{BackendMetrics, Family, FrontEndMetrics, Label, LeaseMetrics, Path};

/// Counts by the words of one label.
pub type ByWord = BTreeMap<String, u64>;

/// What a front end has counted since the start, over all reactors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FrontEndFigures {
    /// `cql` or `memcache`.
    pub name: String,
    /// Requests by what they are.
    pub requests: ByWord,
    /// Reads answered from the cache, by tier.
    pub hits: ByWord,
    /// Reads that the cache could have answered and did not, by reason.
    pub misses: ByWord,
    /// Reads that the cache had no part in, by reason.
    pub passes: ByWord,
    /// Writes by what they may touch.
    pub writes: ByWord,
    /// Errors that Afterglow made itself.
    pub errors: u64,
    /// Connections that are open now.
    pub connections_open: u64,
    /// Connections ever taken.
    pub connections: u64,
    /// Connections turned away.
    pub connections_refused: u64,
    /// Bytes received from clients.
    pub received_bytes: u64,
    /// Bytes sent to clients.
    pub sent_bytes: u64,
    /// Reads of flash that are under way now.
    pub flash_reads_in_flight: u64,
    /// Times from the whole request to its answer, by the way it was answered; ways that no
    /// request took are left out.
    pub latency: BTreeMap<String, LatencyFigures>,
}

/// How long requests took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// How many requests.
    pub count: u64,
    /// The sum of their times.
    pub sum_seconds: f64,
    /// Upper bound in microseconds (`null`: none) and requests up to it that are in no bucket
    /// before, in rising order; empty buckets are left out. A bound is at most a quarter above the
    /// one before.
    pub buckets: Vec<(Option<u64>, u64)>,
}

/// What is counted of the database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatabaseFigures {
    /// Connections that take requests.
    pub connections_ready: i64,
    /// Connections being made.
    pub connecting: i64,
    /// Requests that wait for an answer.
    pub in_flight: i64,
    /// Requests sent.
    pub requests: u64,
    /// Requests given up without an answer.
    pub unanswered: u64,
    /// Connections that failed or ended, by reason.
    pub failures: ByWord,
}

/// Where the lease of `exclusive` tables stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseFigures {
    /// `not_needed`, `waiting`, `held` or `held_by_other`.
    pub state: String,
    /// Successful claims.
    pub acquired: u64,
    /// Successful renewals.
    pub renewed: u64,
    /// Times it was held and then not.
    pub lost: u64,
}

/// The figures of one front end, summed over its shards.
pub(super) fn front_end(name: &str, shards: &[&FrontEndMetrics]) -> FrontEndFigures {
    let sum = |of: &dyn Fn(&FrontEndMetrics) -> u64| shards.iter().map(|shard| of(shard)).sum();
    let opened: u64 = sum(&|d| d.connections_opened.get());
    let latency = Path::ALL.iter().filter(|path| path.is_of(name)).filter_map(|&path| {
        let figures = latency(shards.iter().map(|shard| shard.latency.of(path)));
        (figures.count > 0).then(|| (path.word().to_owned(), figures))
    });
    FrontEndFigures {
        name: name.to_owned(),
        requests: family(name, shards, |d| &d.requests),
        hits: family(name, shards, |d| &d.hits),
        misses: family(name, shards, |d| &d.misses),
        passes: family(name, shards, |d| &d.passes),
        writes: family(name, shards, |d| &d.writes),
        errors: sum(&|d| d.errors.get()),
        connections_open: opened.saturating_sub(sum(&|d| d.connections_closed.get())),
        connections: opened,
        connections_refused: sum(&|d| d.connections_refused.get()),
        received_bytes: sum(&|d| d.bytes_received.get()),
        sent_bytes: sum(&|d| d.bytes_sent.get()),
        flash_reads_in_flight: sum(&|d| u64::try_from(d.flash_reads.get()).unwrap_or(0)),
        latency: latency.collect(),
    }
}

fn family<L: Label>(
    front_end: &str,
    shards: &[&FrontEndMetrics],
    of: impl Fn(&FrontEndMetrics) -> &Family<L>,
) -> ByWord {
    let labels = L::ALL.iter().filter(|label| label.is_of(front_end));
    let sum = |label: L| shards.iter().map(|shard| of(shard).of(label).get()).sum();
    labels.map(|&label| (label.word().to_owned(), sum(label))).collect()
}

fn latency<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> LatencyFigures {
    let mut counts = [0; BUCKETS];
    let mut ns = 0_u64;
    for histogram in histograms {
        ns = ns.saturating_add(histogram.add_to(&mut counts));
    }
    let filled = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    LatencyFigures {
        count: counts.iter().sum(),
        sum_seconds: ns as f64 / 1e9,
        buckets: filled.map(|(bucket, count)| (upper_bound_us(bucket), *count)).collect(),
    }
}

/// The figures of the database, summed over the shards.
pub(super) fn database(shards: &[Arc<BackendMetrics>]) -> DatabaseFigures {
    let mut sum = DatabaseFigures::default();
    for shard in shards {
        sum.connections_ready += shard.ready.get();
        sum.connecting += shard.connecting.get();
        sum.in_flight += shard.in_flight.get();
        sum.requests += shard.requests.get();
        sum.unanswered += shard.unanswered.get();
        for &reason in super::ConnectFailure::ALL {
            let count = shard.failures.of(reason).get();
            *sum.failures.entry(reason.word().to_owned()).or_default() += count;
        }
    }
    sum
}

/// The figures of the lease.
pub(super) fn lease(lease: &LeaseMetrics) -> LeaseFigures {
    LeaseFigures {
        state: lease.state().word().to_owned(),
        acquired: lease.acquired.get(),
        renewed: lease.renewed.get(),
        lost: lease.lost.get(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::{MissReason, Tier};

    #[test]
    fn the_figures_of_a_front_end_are_the_sum_of_its_shards() {
        let (one, other) = (FrontEndMetrics::default(), FrontEndMetrics::default());
        one.hits.inc(Tier::Dram);
        other.hits.inc(Tier::Dram);
        other.misses.inc(MissReason::Absent);
        one.connections_opened.add(3);
        other.connections_closed.add(1);
        for micros in [1, 100, 100, 40_000_000] {
            one.latency.of(Path::Dram).record(Duration::from_micros(micros));
        }
        let seen = front_end("memcache", &[&one, &other]);
        assert_eq!((seen.hits["dram"], seen.hits["flash"], seen.misses["absent"]), (2, 0, 1));
        assert_eq!((seen.connections, seen.connections_open), (3, 2));
        assert!(!seen.misses.contains_key("quarantined"), "a reason of the CQL front end alone");
        assert!(seen.passes.is_empty() && seen.writes.is_empty());
        let latency = &seen.latency["dram"];
        assert_eq!(latency.buckets, [(Some(1), 1), (Some(112), 2), (None, 1)]);
        assert!(latency.count == 4 && (latency.sum_seconds - 40.000_201).abs() < 1e-6);
        assert_eq!(seen.latency.len(), 1, "no way that no request took");
    }
}
