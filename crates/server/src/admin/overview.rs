//! `GET /api/v1/overview`: all figures of the dashboard in one answer. Counts are since the start;
//! rates are the difference of two answers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use afterglow_engine::{Cache, DropReason, MissReason, NamespaceStats, RefuseReason, Stats, Tier};
use serde::{Deserialize, Serialize};

use super::health::{Health, Readiness};
use crate::metrics::figures::{ByWord, DatabaseFigures, FrontEndFigures, LeaseFigures};
use crate::metrics::{Metrics, RingFigures};
use crate::version;

/// The whole answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Of Afterglow.
    pub version: String,
    /// When the process started, in seconds since 1970. Another start has counters of its own.
    pub started: f64,
    /// When this was read, in seconds since 1970.
    pub now: f64,
    /// Whether clients should come: `ready`, `degraded` or `not_ready`.
    pub readiness: String,
    /// Why not, or what is not well; empty when all is.
    pub readiness_reason: String,
    /// Processor time of the process.
    pub cpu_seconds: f64,
    /// Memory of the process, where the system tells it.
    pub resident_bytes: Option<u64>,
    /// Front ends that are open.
    pub front_ends: Vec<FrontEndFigures>,
    /// The cache, once it is open.
    pub cache: Option<CacheFigures>,
    /// The database behind the CQL front end.
    pub database: Option<DatabaseFigures>,
    /// The lease that `exclusive` tables need.
    pub lease: Option<LeaseFigures>,
    /// The ring, for a member of one.
    pub ring: Option<RingFigures>,
}

/// The engine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheFigures {
    /// By namespace.
    pub namespaces: Vec<NamespaceFigures>,
    /// The DRAM tier.
    pub dram: DramFigures,
    /// The flash tier.
    pub flash: FlashFigures,
    /// The index.
    pub index: IndexFigures,
    /// Journal and checkpoints.
    pub journal: JournalFigures,
    /// Bytes written: `record` (of which `reinserted`), `metadata`, `padding`, `journal`.
    pub written_bytes: ByWord,
    /// Copies on flash that were dropped, by reason.
    pub flash_dropped: ByWord,
    /// The index is still loading after the start.
    pub loading: bool,
    /// Parts to be loaded after the start.
    pub load_parts: u64,
    /// How many of them are.
    pub load_parts_done: u64,
}

/// Counters of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NamespaceFigures {
    /// Its name.
    pub name: String,
    /// Lookups that found, by tier.
    pub hits: ByWord,
    /// Lookups that did not find, by reason.
    pub misses: ByWord,
    /// Puts that were not stored, by reason.
    pub refused: ByWord,
    /// Objects that left memory and were not kept on flash, by reason.
    pub dropped: ByWord,
    /// Puts that were stored.
    pub stored: u64,
    /// Removes of single objects.
    pub removes: u64,
    /// Invalidations of groups, partition epochs and whole namespaces.
    pub kills: u64,
}

/// The DRAM tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DramFigures {
    /// Objects in it.
    pub objects: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that may be used.
    pub capacity_bytes: u64,
    /// Bytes of objects that are not on flash yet.
    pub unsaved_bytes: u64,
    /// Age of the oldest of them.
    pub unsaved_seconds: f64,
}

/// The flash tier and its devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FlashFigures {
    /// Segments without retired ones.
    pub segments: u64,
    /// Of these, free.
    pub segments_free: u64,
    /// Bytes a segment.
    pub segment_bytes: u64,
    /// Reads for lookups.
    pub reads: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Chunks that wait to be written.
    pub chunks_waiting: u64,
    /// Segments reclaimed.
    pub segments_reclaimed: u64,
    /// Segments retired.
    pub segments_retired: u64,
}

/// The index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexFigures {
    /// Slots that name an object on flash.
    pub slots_used: u64,
    /// All slots.
    pub slots: u64,
    /// Its memory.
    pub bytes: u64,
}

/// Journal and checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct JournalFigures {
    /// Entries that no checkpoint covers yet.
    pub entries_used: u64,
    /// All entries.
    pub entries: u64,
    /// It lacks an entry: after a crash now the cache starts cold.
    pub poisoned: bool,
    /// A checkpoint is being written.
    pub checkpoint_running: bool,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Checkpoints that failed.
    pub checkpoint_failures: u64,
}

/// What is to be said now.
pub(super) fn overview(metrics: &Metrics, health: &Health, cache: Option<&Arc<Cache>>) -> Overview {
    let (readiness, reason) =
        match health.readiness(metrics.is_database_reached(), metrics.ring_entry()) {
            Readiness::Ready => ("ready", ""),
            Readiness::Degraded(why) => ("degraded", why),
            Readiness::Not(why) => ("not_ready", why),
        };
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (database, lease) = metrics.database_figures().unzip();
    Overview {
        version: version::LONG.to_owned(),
        started: seconds(metrics.started()).as_secs_f64(),
        now: seconds(SystemTime::now()).as_secs_f64(),
        readiness: readiness.to_owned(),
        readiness_reason: reason.to_owned(),
        cpu_seconds: crate::metrics::cpu_seconds(),
        resident_bytes: crate::metrics::resident_bytes(),
        front_ends: metrics.front_end_figures(),
        cache: cache.map(|cache| CacheFigures::of(&cache.stats())),
        database,
        lease,
        ring: metrics.ring(),
    }
}

impl CacheFigures {
    fn of(stats: &Stats) -> Self {
        let totals = &stats.totals;
        let written = [
            ("record", totals.record_bytes),
            ("reinserted", totals.reinserted_bytes),
            ("metadata", totals.metadata_bytes),
            ("padding", totals.padding_bytes),
            ("journal", stats.journal_bytes),
            ("kill_log", totals.kill_log_bytes),
        ];
        CacheFigures {
            namespaces: stats.namespaces.iter().map(NamespaceFigures::of).collect(),
            dram: DramFigures {
                objects: stats.dram_objects,
                used_bytes: stats.dram_bytes,
                capacity_bytes: stats.dram_capacity,
                unsaved_bytes: stats.unsaved_bytes,
                unsaved_seconds: stats.unsaved_ms as f64 / 1e3,
            },
            flash: FlashFigures {
                segments: stats.segments,
                segments_free: stats.segments_free,
                segment_bytes: stats.segment_size,
                reads: totals.device_reads,
                read_errors: totals.read_errors,
                write_errors: totals.write_errors,
                chunks_waiting: stats.chunks_waiting,
                segments_reclaimed: totals.segments_reclaimed,
                segments_retired: totals.segments_retired,
            },
            index: IndexFigures {
                slots_used: stats.index_slots_used,
                slots: stats.index_slots,
                bytes: stats.index_bytes,
            },
            journal: JournalFigures {
                entries_used: stats.journal_used,
                entries: stats.journal_capacity,
                poisoned: stats.journal_poisoned,
                checkpoint_running: stats.checkpointing,
                checkpoints: totals.checkpoints,
                checkpoint_failures: totals.checkpoint_failures,
            },
            written_bytes: by_word(written.into_iter()),
            flash_dropped: by_word(dropped(&totals.dropped)),
            loading: stats.loading,
            load_parts: stats.load_parts,
            load_parts_done: stats.load_parts_done,
        }
    }
}

impl NamespaceFigures {
    fn of(stats: &NamespaceStats) -> Self {
        let hits = Tier::ALL.iter().map(|tier| tier.label()).zip(stats.hits);
        let misses = MissReason::ALL.iter().map(|reason| reason.label()).zip(stats.misses);
        let refused = RefuseReason::ALL.iter().map(|reason| reason.label()).zip(stats.refused);
        NamespaceFigures {
            name: stats.name.clone(),
            hits: by_word(hits),
            misses: by_word(misses),
            refused: by_word(refused),
            dropped: by_word(dropped(&stats.dropped)),
            stored: stats.stored,
            removes: stats.removes,
            kills: stats.kills,
        }
    }
}

fn dropped(counts: &[u64]) -> impl Iterator<Item = (&'static str, u64)> {
    DropReason::ALL.iter().map(|reason| reason.label()).zip(counts.iter().copied())
}

fn by_word(counts: impl Iterator<Item = (&'static str, u64)>) -> ByWord {
    counts.map(|(word, count)| (word.to_owned(), count)).collect()
}
