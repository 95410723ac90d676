//! The counters, as text: names may be added without a new ABI.

use std::fmt::Write;

use afterglow_engine::{Cache, DropReason, MissReason, RefuseReason, Tier};

use crate::cache::aglow_cache;
use crate::error::{Failure, aglow_status, guard};
use crate::memory::{copy_out, reference, store};

/// Everything counted since opening: one line for each figure, `name value`, in decimal. Those of a
/// namespace begin with its name and a dot.
pub fn text(cache: &Cache) -> String {
    let stats = cache.stats();
    let mut out = String::new();
    let mut line = |name: &str, value: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name} {value}");
    };
    for ns in &stats.namespaces {
        let name = &ns.name;
        Tier::ALL
            .iter()
            .zip(ns.hits)
            .for_each(|(t, n)| line(&format!("{name}.hits.{}", t.label()), n));
        MissReason::ALL
            .iter()
            .zip(ns.misses)
            .for_each(|(r, n)| line(&format!("{name}.misses.{}", r.label()), n));
        RefuseReason::ALL
            .iter()
            .zip(ns.refused)
            .for_each(|(r, n)| line(&format!("{name}.refused.{}", r.label()), n));
        DropReason::ALL
            .iter()
            .zip(ns.dropped)
            .for_each(|(r, n)| line(&format!("{name}.dropped.{}", r.label()), n));
        line(&format!("{name}.stored"), ns.stored);
        line(&format!("{name}.removes"), ns.removes);
        line(&format!("{name}.kills"), ns.kills);
        line(&format!("{name}.group_overflows"), ns.group_overflows);
    }
    let totals = &stats.totals;
    DropReason::ALL
        .iter()
        .zip(totals.dropped)
        .for_each(|(r, n)| line(&format!("dropped.{}", r.label()), n));
    for (name, value) in [
        ("record_bytes", totals.record_bytes),
        ("reinserted_bytes", totals.reinserted_bytes),
        ("relocated_bytes", totals.relocated_bytes),
        ("metadata_bytes", totals.metadata_bytes),
        ("device_reads", totals.device_reads),
        ("read_errors", totals.read_errors),
        ("write_errors", totals.write_errors),
        ("checkpoints", totals.checkpoints),
        ("checkpoint_failures", totals.checkpoint_failures),
        ("devices_silent", totals.devices_silent),
        ("segments_retired", totals.segments_retired),
        ("segments_reclaimed", totals.segments_reclaimed),
        ("dram_objects", stats.dram_objects),
        ("dram_bytes", stats.dram_bytes),
        ("dram_capacity", stats.dram_capacity),
        ("unsaved_bytes", stats.unsaved_bytes),
        ("index_slots", stats.index_slots),
        ("index_slots_used", stats.index_slots_used),
        ("index_bytes", stats.index_bytes),
        ("segment_size", stats.segment_size),
        ("segments", stats.segments),
        ("segments_free", stats.segments_free),
        ("chunks_waiting", stats.chunks_waiting),
        ("loading", stats.loading.into()),
    ] {
        line(name, value);
    }
    out
}

/// Copies the counters to `buffer` as text: one line for each figure, `name value`. Those of a
/// namespace begin with its name and a dot. `*len` is set to the length; there is no zero byte at
/// the end.
///
/// # Safety
/// `cache` is an open handle, `buffer` takes `capacity` bytes, `len` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_stats(
    cache: *const aglow_cache,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let text = text(&unsafe { reference(cache, "cache")? }.cache);
        // SAFETY: the caller's promise.
        unsafe { store(len, text.len()) };
        // SAFETY: the caller's promise.
        if unsafe { copy_out(text.as_bytes(), buffer, capacity) } {
            return Ok(aglow_status::AGLOW_OK);
        }
        let message = format!("the counters have {} bytes, the buffer {capacity}", text.len());
        Err(Failure::new(aglow_status::AGLOW_E_TOO_SMALL, message))
    })
}
