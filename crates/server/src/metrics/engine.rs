//! The engine's own counters.

use afterglow_engine::{
    DropReason, EngineTotals, MissReason, NamespaceStats, RefuseReason, Stats, Tier,
};

use super::{Exposition, Kind};

/// Adds all the engine knows of itself.
pub fn expose(stats: &Stats, out: &mut Exposition) {
    namespaces(&stats.namespaces, out);
    totals(&stats.totals, stats.journal_bytes, out);
    checkpoints(&stats.totals, out);
    levels(stats, out);
}

/// A family over namespaces and the members of one array of reasons.
fn by_reason<'a, const N: usize>(
    all: &'a [NamespaceStats],
    out: &mut Exposition,
    what: &str,
    help: &str,
    label: (&str, Vec<&'static str>),
    of: impl Fn(&'a NamespaceStats) -> &'a [u64; N],
) {
    let name = format!("afterglow_engine_{what}_total");
    out.header(&name, Kind::Counter, help);
    for namespace in all {
        for (word, count) in label.1.iter().zip(of(namespace)) {
            out.sample(&name, &[("namespace", &namespace.name), (label.0, word)], count);
        }
    }
}

fn namespaces(all: &[NamespaceStats], out: &mut Exposition) {
    let tiers = Tier::ALL.iter().map(|tier| tier.label()).collect();
    by_reason(all, out, "hits", "Lookups that found their object.", ("tier", tiers), |n| &n.hits);
    let reasons = MissReason::ALL.iter().map(|reason| reason.label()).collect();
    by_reason(
        all,
        out,
        "misses",
        "Lookups that did not find their object.",
        ("reason", reasons),
        |n| &n.misses,
    );
    let reasons = RefuseReason::ALL.iter().map(|reason| reason.label()).collect();
    by_reason(all, out, "refused_puts", "Puts that were not stored.", ("reason", reasons), |n| {
        &n.refused
    });
    let reasons = DropReason::ALL.iter().map(|reason| reason.label()).collect();
    by_reason(
        all,
        out,
        "dropped",
        "Objects that left memory and were not kept on flash.",
        ("reason", reasons),
        |n| &n.dropped,
    );

    let mut single = |what: &str, help: &str, of: fn(&NamespaceStats) -> u64| {
        let name = format!("afterglow_engine_{what}_total");
        out.header(&name, Kind::Counter, help);
        for namespace in all {
            out.sample(&name, &[("namespace", &namespace.name)], of(namespace));
        }
    };
    single("stored_puts", "Puts that were stored.", |n| n.stored);
    single("removes", "Removes of single objects.", |n| n.removes);
    single("kills", "Invalidations of groups, partition epochs and whole namespaces.", |n| n.kills);
    single(
        "group_overflows",
        "How often more groups had been invalidated than are remembered: the oldest objects went with them.",
        |n| n.group_overflows,
    );
}

fn totals(totals: &EngineTotals, journal: u64, out: &mut Exposition) {
    const DROPPED: &str = "afterglow_engine_flash_dropped_total";
    out.header(DROPPED, Kind::Counter, "Copies on flash that were dropped.");
    for (reason, count) in DropReason::ALL.iter().zip(totals.dropped) {
        out.sample(DROPPED, &[("reason", reason.label())], count);
    }
    const WRITTEN: &str = "afterglow_engine_written_bytes_total";
    out.header(
        WRITTEN,
        Kind::Counter,
        "Bytes written to flash and journal. `record` includes `reinserted`, which includes `relocated`; \
         `metadata` is headers, footers and checkpoints; `kill_log` is what of the journal was kept elsewhere.",
    );
    for (kind, bytes) in [
        ("record", totals.record_bytes),
        ("reinserted", totals.reinserted_bytes),
        ("relocated", totals.relocated_bytes),
        ("metadata", totals.metadata_bytes),
        ("padding", totals.padding_bytes),
        ("journal", journal),
        ("kill_log", totals.kill_log_bytes),
    ] {
        out.sample(WRITTEN, &[("kind", kind)], bytes);
    }
    for (what, help, count) in [
        ("device_reads", "Reads of a device for lookups.", totals.device_reads),
        ("device_read_errors", "Reads of a device that failed.", totals.read_errors),
        ("device_write_errors", "Writes and flushes of a device that failed.", totals.write_errors),
        (
            "devices_silent",
            "How often a device did not answer and was left alone until it did.",
            totals.devices_silent,
        ),
        (
            "lost_index_blocks",
            "Blocks of the index found damaged while loading.",
            totals.lost_index_blocks,
        ),
        (
            "retired_segments",
            "Segments retired because a write to them failed.",
            totals.segments_retired,
        ),
        (
            "retired_segments_tried_again",
            "Retired segments that were given back to be tried again.",
            totals.segments_tried_again,
        ),
        ("reclaimed_segments", "Segments reclaimed.", totals.segments_reclaimed),
        (
            "copies_lost",
            "Objects in DRAM whose copy on flash was reclaimed when no space was free for another.",
            totals.copies_lost,
        ),
        (
            "copies_refused",
            "Copies of objects in DRAM that were refused by popularity or write budget: a crash loses the objects.",
            totals.copies_refused,
        ),
        ("stale_slots", "Index slots cleared because their record was gone.", totals.stale_slots),
    ] {
        out.single(&format!("afterglow_engine_{what}_total"), Kind::Counter, help, count);
    }
}

/// What keeps the journal short.
fn checkpoints(totals: &EngineTotals, out: &mut Exposition) {
    for (what, help, count) in [
        ("checkpoints", "Checkpoints completed.", totals.checkpoints),
        ("checkpoint_failures", "Checkpoints that failed.", totals.checkpoint_failures),
        (
            "compactions",
            "How often a part of the journal went to the kill log, instead of a checkpoint.",
            totals.compactions,
        ),
        (
            "compaction_failures",
            "Compactions of the journal that failed: checkpoints are written instead.",
            totals.compaction_failures,
        ),
        (
            "lost_kill_parts",
            "Parts of the kill log that could not be read after the start: shards of the index stayed empty.",
            totals.lost_kill_parts,
        ),
    ] {
        out.single(&format!("afterglow_engine_{what}_total"), Kind::Counter, help, count);
    }
}

fn levels(stats: &Stats, out: &mut Exposition) {
    for (what, help, value) in [
        ("dram_bytes", "Memory held by objects in the DRAM tier.", stats.dram_bytes),
        ("dram_capacity_bytes", "Upper limit of the DRAM tier.", stats.dram_capacity),
        (
            "unsaved_bytes",
            "Bytes of objects in memory that are not on flash yet: a crash now would lose them.",
            stats.unsaved_bytes,
        ),
        (
            "unsaved_age_seconds",
            "Age of the oldest change that is not on flash yet. Over 10 s: the device or free space is \
             short.",
            stats.unsaved_ms.div_ceil(1000),
        ),
        ("index_bytes", "Memory of the index.", stats.index_bytes),
        ("index_slots_used", "Slots of the index that name an object.", stats.index_slots_used),
        ("index_slots", "All slots of the index.", stats.index_slots),
        ("segment_table_bytes", "Memory of the segment table.", stats.segment_table_bytes),
        ("flash_segments_free", "Segments free to be written.", stats.segments_free),
        ("flash_segments", "Segments in use or free.", stats.segments),
        ("flash_segment_bytes", "Size of a segment.", stats.segment_size),
        ("flash_bytes", "Flash in use or free.", stats.segments * stats.segment_size),
        ("chunks_waiting", "Writes waiting for a device.", stats.chunks_waiting),
        (
            "journal_entries_used",
            "Journal entries that neither a checkpoint nor the kill log has yet.",
            stats.journal_used,
        ),
        ("journal_entries", "All entries of the journal.", stats.journal_capacity),
        (
            "journal_poisoned",
            "1 while the journal lacks an entry: after a crash now the cache starts cold.",
            stats.journal_poisoned.into(),
        ),
        (
            "clock_behind_seconds",
            "Seconds that the wall clock is behind the cache's time, by which objects expire.",
            stats.clock_behind,
        ),
        (
            "checkpoint_running",
            "1 while a checkpoint is being written.",
            stats.checkpointing.into(),
        ),
        ("loading", "1 while the index is still loading after the start.", stats.loading.into()),
        ("load_parts", "Segments and index blocks to load after the start.", stats.load_parts),
        (
            "load_parts_done",
            "Segments and index blocks already loaded after the start.",
            stats.load_parts_done,
        ),
    ] {
        out.single(&format!("afterglow_engine_{what}"), Kind::Gauge, help, value);
    }
}
