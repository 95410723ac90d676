//! The last words of a clean stop: what has been dropped and refused since the start, by reason.
//!
//! `/metrics` ends with the server. What a clean stop itself could not write is accounted for here
//! (G7).

use std::collections::BTreeMap;

use afterglow_engine::{DropReason, RefuseReason, Stats};

/// Says it.
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

    #[test]
    fn what_was_dropped_is_summed_by_reason() {
        let labels = ["dead", "queue_full", "index_full"];
        let counts = [[0, 2, 1], [0, 3, 0]];
        assert_eq!(by_reason(labels.into_iter(), counts.into_iter()), "index_full:1,queue_full:5");
        assert_eq!(by_reason(["dead"].into_iter(), [[0]].into_iter()), "nothing");
    }
}
