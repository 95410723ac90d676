//! The counters of a front end.

use std::sync::Arc;
use std::time::Duration;

use super::{
    CarriedFrom, Counter, Exposition, Family, FillOutcome, Gauge, Histogram, Kind, Label,
    MissReason, OwnCounter, PassReason, Path, QuarantineReason, RequestKind, TableMetrics, Tier,
    TlsFailure, WriteOutcome, WriteScopeLabel,
    histogram::{BUCKETS, octaves},
};
use crate::hotkeys::Sampler;
use crate::slow_log::{SlowLog, SlowRequest};

/// One reactor's counters of one front end. Every read is counted once in `hits`, `misses` or
/// `passes`.
#[derive(Debug, Default)]
pub struct FrontEndMetrics {
    /// Requests by what they are.
    pub requests: Family<RequestKind>,
    /// Reads answered from the cache.
    pub hits: Family<Tier>,
    /// Reads that the cache could have answered and did not.
    pub misses: Family<MissReason>,
    /// Reads that the cache had no part in.
    pub passes: Family<PassReason>,
    /// Writes by how much they may touch.
    pub writes: Family<WriteScopeLabel>,
    /// Writes by what they did to cached rows.
    pub write_outcomes: Family<WriteOutcome>,
    /// Things dropped from the cache because of a write or a schema change.
    pub invalidations: Family<WriteScopeLabel>,
    /// Reads of the database that were to fill the cache.
    pub fills: Family<FillOutcome>,
    /// Rows that were cached again after their shard had moved, without a read of the database.
    pub carried: Family<CarriedFrom>,
    /// Partitions put into quarantine.
    pub quarantines: Family<QuarantineReason>,
    /// Reads that were sent again because a node of the database was lost.
    pub repeated_reads: Counter,
    /// Fills that were sent to a second node of the database, because the first was slow.
    pub hedged_fills: Counter,
    /// Those of them that the second node answered first.
    pub hedges_won: Counter,
    /// Times that a plain write of unknown outcome was sent again.
    pub repeated_writes: Counter,
    /// Plain writes of unknown outcome that the database has now for certain.
    pub settled_writes: Counter,
    /// Plain writes of unknown outcome that are not sent again any more, and have none yet.
    pub unsettled_writes: Counter,
    /// Writes that a quorum read may miss.
    pub weak_writes: Counter,
    /// Writes whose level was raised, so that a quorum read sees them.
    pub raised_writes: Counter,
    /// Error messages that Afterglow made itself.
    pub errors: Counter,
    /// Connections taken from clients.
    pub connections_opened: Counter,
    /// Connections of clients that ended.
    pub connections_closed: Counter,
    /// Connections turned away because there were too many.
    pub connections_refused: Counter,
    /// TLS handshakes with clients that failed.
    pub tls_failures: Family<TlsFailure>,
    /// Bytes received from clients.
    pub bytes_received: OwnCounter,
    /// Bytes sent to clients.
    pub bytes_sent: OwnCounter,
    /// Reads of flash that are under way.
    pub flash_reads: Gauge,
    /// Requests of each table.
    pub tables: TableMetrics,
    /// Which keys are asked for.
    pub hot: Sampler,
    /// Where slow requests are logged; one for the process.
    pub slow: Arc<SlowLog>,
    /// From the whole request read to the answer handed to the socket.
    pub latency: Family<Path, Histogram>,
}

impl FrontEndMetrics {
    /// Counters at zero; a prefix of a key ends with the first `separator`.
    pub(super) fn new(separator: u8, slow: Arc<SlowLog>) -> Self {
        Self { hot: Sampler::new(separator), slow, ..Self::default() }
    }

    /// Counts how long a request took, and logs it if that is slow: `what` describes it then.
    pub fn took(&self, path: Path, time: Duration, what: impl FnOnce() -> SlowRequest) {
        self.latency.of(path).record(time);
        if self.slow.is_slow(time) {
            self.slow.log(&what(), path, time);
        }
    }
}

type Shards = [(&'static str, Arc<FrontEndMetrics>)];

pub(super) fn expose(shards: &Shards, out: &mut Exposition) {
    use Kind::Counter as Count;
    family(shards, out, "requests", "Requests of clients.", |d| &d.requests);
    family(shards, out, "hits", "Reads answered from the cache.", |d| &d.hits);
    family(shards, out, "misses", "Cacheable reads that the cache did not answer.", |d| &d.misses);
    family(shards, out, "passes", "Reads passed to the database without a cache lookup.", |d| {
        &d.passes
    });
    family(shards, out, "writes", "Writes, by their write scope.", |d| &d.writes);
    let help = "Writes, by what they did to the cached rows that they name.";
    family(shards, out, "write_outcomes", help, |d| &d.write_outcomes);
    family(shards, out, "invalidations", "Invalidations by writes or schema changes.", |d| {
        &d.invalidations
    });
    family(shards, out, "fills", "Reads of the database to fill the cache.", |d| &d.fills);
    let help = "Rows cached again after a move of the ring without a read of the database.";
    family(shards, out, "carried", help, |d| &d.carried);
    family(
        shards,
        out,
        "quarantines",
        "Partitions kept out of the cache after writes of unknown outcome.",
        |d| &d.quarantines,
    );
    cql_alone(shards, out);

    let help = "Error messages from Afterglow itself, not from the database.";
    single(shards, out, "afterglow_errors_total", Count, help, |d| d.errors.get());
    let help = "Accepted connections of clients.";
    single(shards, out, "afterglow_client_connections_total", Count, help, |d| {
        d.connections_opened.get()
    });
    let help = "Open connections of clients.";
    single(shards, out, "afterglow_client_connections_open", Kind::Gauge, help, |d| {
        d.connections_opened.get().saturating_sub(d.connections_closed.get())
    });
    let help = "Connections of clients refused because the limit was reached.";
    single(shards, out, "afterglow_client_connections_refused_total", Count, help, |d| {
        d.connections_refused.get()
    });
    let help = "TLS handshakes with clients that failed.";
    family(shards, out, "tls_handshake_failures", help, |d| &d.tls_failures);
    let help = "Bytes received from clients.";
    single(shards, out, "afterglow_client_received_bytes_total", Count, help, |d| {
        d.bytes_received.get()
    });
    let help = "Bytes sent to clients.";
    single(shards, out, "afterglow_client_sent_bytes_total", Count, help, |d| d.bytes_sent.get());
    let help = "Reads of flash for clients that are under way.";
    single(shards, out, "afterglow_flash_reads_in_flight", Kind::Gauge, help, |d| {
        u64::try_from(d.flash_reads.get()).unwrap_or(0)
    });
    let help = "Memory of the samples of keys, prefixes and tables.";
    single(shards, out, "afterglow_hot_keys_bytes", Kind::Gauge, help, |d| d.hot.bytes() as u64);
    latency(shards, out);
}

fn cql_alone(shards: &Shards, out: &mut Exposition) {
    if !front_ends(shards).contains(&"cql") {
        return;
    }
    let help = "Writes at a level that a quorum read may miss: what they touch is cached briefly.";
    let of = |of: fn(&FrontEndMetrics) -> &Counter| sum(shards, "cql", |d| of(d).get());
    for (name, help, count) in [
        ("afterglow_weak_writes_total", help, of(|d| &d.weak_writes)),
        (
            "afterglow_raised_writes_total",
            "Writes whose level was raised by table-write-level.",
            of(|d| &d.raised_writes),
        ),
        (
            "afterglow_repeated_reads_total",
            "Reads sent again because the connection to a node of the database was lost.",
            of(|d| &d.repeated_reads),
        ),
        (
            "afterglow_hedged_fills_total",
            "Fills sent to a second node of the database too because the first was slow.",
            of(|d| &d.hedged_fills),
        ),
        (
            "afterglow_hedges_won_total",
            "Hedged fills that the second node of the database answered first.",
            of(|d| &d.hedges_won),
        ),
        (
            "afterglow_repeated_writes_total",
            "Times that a plain write of unknown outcome was sent again.",
            of(|d| &d.repeated_writes),
        ),
        (
            "afterglow_settled_writes_total",
            "Plain writes of unknown outcome that the database has now for certain.",
            of(|d| &d.settled_writes),
        ),
        (
            "afterglow_unsettled_writes_total",
            "Plain writes that were sent again, and whose outcome is still unknown.",
            of(|d| &d.unsettled_writes),
        ),
    ] {
        out.header(name, Kind::Counter, help);
        out.sample(name, &[("frontend", "cql")], count);
    }
}

pub(super) fn front_ends(shards: &Shards) -> Vec<&'static str> {
    let mut front_ends: Vec<_> = shards.iter().map(|(name, _)| *name).collect();
    front_ends.sort_unstable();
    front_ends.dedup();
    front_ends
}

/// A sum over the shards of each front end.
fn sum<T: std::iter::Sum>(
    shards: &Shards,
    front_end: &str,
    of: impl Fn(&FrontEndMetrics) -> T,
) -> T {
    shards.iter().filter(|(name, _)| *name == front_end).map(|(_, shard)| of(shard)).sum()
}

fn single(
    shards: &Shards,
    out: &mut Exposition,
    name: &str,
    kind: Kind,
    help: &str,
    of: impl Fn(&FrontEndMetrics) -> u64,
) {
    out.header(name, kind, help);
    for front_end in front_ends(shards) {
        out.sample(name, &[("frontend", front_end)], sum(shards, front_end, &of));
    }
}

fn family<L: Label>(
    shards: &Shards,
    out: &mut Exposition,
    what: &str,
    help: &str,
    of: impl Fn(&FrontEndMetrics) -> &Family<L>,
) {
    let name = format!("afterglow_{what}_total");
    let mut front_ends = front_ends(shards);
    front_ends.retain(|front_end| L::ALL.iter().any(|label| label.is_of(front_end)));
    if front_ends.is_empty() {
        return;
    }
    out.header(&name, Kind::Counter, help);
    for front_end in front_ends {
        for &label in L::ALL.iter().filter(|label| label.is_of(front_end)) {
            let count = sum(shards, front_end, |d| of(d).of(label).get());
            out.sample(&name, &[("frontend", front_end), (L::NAME, label.word())], count);
        }
    }
}

fn latency(shards: &Shards, out: &mut Exposition) {
    const NAME: &str = "afterglow_request_duration_seconds";
    out.header(
        NAME,
        Kind::Histogram,
        "Time from the complete request to the answer handed to the socket.",
    );
    for front_end in front_ends(shards) {
        for &path in Path::ALL.iter().filter(|path| path.is_of(front_end)) {
            let mut counts = [0; BUCKETS];
            let mut ns = 0;
            for (_, shard) in shards.iter().filter(|(name, _)| *name == front_end) {
                ns += shard.latency.of(path).add_to(&mut counts);
            }
            // A way that no request took has no series: there are few front ends that have them
            // all.
            if counts.iter().any(|count| *count > 0) {
                let labels = [("frontend", front_end), (Path::NAME, path.word())];
                out.histogram(NAME, &labels, octaves(&counts), ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_shows_what_means_something_for_it() {
        let shown = |names: &[&'static str]| {
            let shards: Vec<_> = names.iter().map(|name| (*name, Arc::default())).collect();
            let mut out = Exposition::default();
            expose(&shards, &mut out);
            out.finish()
        };
        let cql_alone = [
            "afterglow_passes_total",
            "afterglow_writes_total",
            "afterglow_invalidations_total",
            "afterglow_fills_total",
            "afterglow_quarantines_total",
            "afterglow_write_outcomes_total",
            "request=\"query\"",
            "reason=\"quarantined\"",
            "path=\"pass\"",
        ];
        let (memcache, both) = (shown(&["memcache"]), shown(&["cql", "memcache"]));
        for name in &cql_alone[..8] {
            assert!(!memcache.contains(name), "{name} in\n{memcache}");
            assert!(both.contains(name), "no {name} in\n{both}");
        }
        assert!(!memcache.contains(cql_alone[8]));
        assert!(
            memcache.contains("afterglow_requests_total{frontend=\"memcache\",request=\"get\"} 0")
        );
        assert!(!both.contains("afterglow_requests_total{frontend=\"cql\",request=\"get\"}"));
        assert!(!both.contains("afterglow_fills_total{frontend=\"memcache\""));
    }
}
