//! A clean stop: how long it may take, the end of the front ends, and the last log lines. They say
//! what has been dropped and refused since the start, by reason.
//!
//! `/metrics` ends with the server. Objects that a clean stop itself could not write are counted
//! here (G7).

use std::{collections::BTreeMap, time::Duration};

use afterglow_engine::{DropReason, RefuseReason, Stats};
use afterglow_rowcache::clock::{Clock, SystemClock};

use super::frontends::FrontEnds;
use crate::{config::Config, frontend::cql::cached};

/// What a stop may take besides the drain and the writing of DRAM to flash: a device that does not
/// answer is given up meanwhile.
const CLOSING: Duration = Duration::from_secs(20);
/// Bytes of memory that a busy machine writes out in a second, at least.
const WRITTEN_A_SECOND: u64 = 20 << 20;

/// The longest that a clean stop takes: what a service manager must wait.
pub(super) fn bound(config: &Config) -> Duration {
    let writing = Duration::from_secs(config.memory.get().div_ceil(WRITTEN_A_SECOND));
    config.drain_timeout.get() + CLOSING + writing
}

/// Lets requests in flight end, and closes the front ends. Whether all have ended.
pub(super) fn drain(front_ends: FrontEnds, config: &Config) -> bool {
    let whole = front_ends.close(config.drain_timeout.get());
    if !whole {
        tracing::warn!(
            "requests were still in flight after {}: their connections were closed",
            config.drain_timeout
        );
    }
    whole
}

/// Notes, as the last word, that this run ended cleanly, if it did: `planned-restart-grace` counts
/// from now.
pub(super) fn note_stop(clean: bool, config: &Config) {
    if !clean || config.cql.is_none() {
        return;
    }
    if let Err(error) =
        cached::note_clean_stop(&config.data_dir, SystemClock.now(), SystemClock.unix())
    {
        tracing::warn!(%error, "the clean stop cannot be noted in the data directory: planned-restart-grace does not count");
    }
}

/// How many objects of any namespace were dropped on their way out of memory.
pub(super) fn dropped(stats: &Stats) -> u64 {
    stats.namespaces.iter().flat_map(|namespace| namespace.dropped).sum()
}

/// Says the last words.
pub(super) fn say(stats: &Stats) {
    let dropped =
        stats.namespaces.iter().map(|namespace| namespace.dropped).chain([stats.totals.dropped]);
    let refused = stats.namespaces.iter().map(|namespace| namespace.refused);
    let dropped = by_reason(DropReason::ALL.iter().map(|reason| reason.label()), dropped);
    let refused = by_reason(RefuseReason::ALL.iter().map(|reason| reason.label()), refused);
    tracing::info!(%dropped, %refused, "ended");
}

/// `reason:count,reason:count`, without reasons that never came; `nothing` where none came.
fn by_reason<const N: usize>(
    labels: impl Iterator<Item = &'static str> + Clone,
    counts: impl Iterator<Item = [u64; N]>,
) -> String {
    let mut sums = BTreeMap::new();
    for (label, count) in counts.flat_map(|counts| labels.clone().zip(counts)) {
        *sums.entry(label).or_insert(0) += count;
    }
    let words: Vec<String> = sums
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(label, count)| format!("{label}:{count}"))
        .collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;

    #[test]
    fn a_stop_has_the_time_that_the_guide_tells_operators_to_give() {
        let config = Config { memory: Size::gib(8), ..Config::default() };
        // drain-timeout plus 20 s plus 1 s for each 20 MiB of memory.
        assert_eq!(bound(&config), Duration::from_secs(10 + 20 + 410));
    }

    #[test]
    fn what_was_dropped_is_summed_by_reason() {
        let labels = ["dead", "queue_full", "index_full"];
        let counts = [[0, 2, 1], [0, 3, 0]];
        assert_eq!(by_reason(labels.into_iter(), counts.into_iter()), "index_full:1,queue_full:5");
        assert_eq!(by_reason(["dead"].into_iter(), [[0]].into_iter()), "nothing");
    }
}
