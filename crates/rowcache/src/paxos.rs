//! How the database runs lightweight transactions, as far as its release and its settings show.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Moment;
use crate::intents::words::NEVER;

/// Replicas keep what they know of a transaction for so many minutes at least.
const SHORTEST_MEMORY: u32 = 3 * 60;
/// `gc_grace_seconds` where the table's is not known: Cassandra's default.
const USUAL_GRACE: u32 = 10 * 24 * 60 * 60;
/// Minutes added for clocks that differ.
const SLACK: u32 = 60;

/// What is known of how the database runs lightweight transactions.
#[derive(Debug, Default)]
pub struct Paxos {
    /// Its release is known, and its serial reads decide transactions in progress.
    decides: AtomicBool,
    /// It was told not to be strict.
    lax: AtomicBool,
    /// It keeps what it knows until a repair.
    keeps: AtomicBool,
    asked: AtomicBool,
}

impl Paxos {
    /// Takes the node's `release_version`.
    pub fn set_release(&self, release: &str) {
        let numbers: Vec<u32> =
            release.split(['.', '-']).map_while(|number| number.parse().ok()).take(3).collect();
        // Since then serial reads write an empty proposal (CASSANDRA-12126).
        let decides = match numbers.as_slice() {
            [3, 0, patch, ..] => *patch >= 24,
            [3, 11, patch, ..] => *patch >= 10,
            [major, ..] => *major >= 4,
            [] => false,
        };
        self.decides.store(decides, Ordering::Release);
    }

    /// Takes the settings `paxos_variant` and `paxos_state_purging`, where there are any.
    pub fn set_settings(&self, variant: Option<&str>, purging: Option<&str>) {
        let is = |value: &str, of: &str| value.eq_ignore_ascii_case(of);
        self.lax.store(
            variant.is_some_and(|variant| !is(variant, "v1") && !is(variant, "v2")),
            Ordering::Release,
        );
        self.keeps.store(purging.is_some_and(|purging| is(purging, "repaired")), Ordering::Release);
        self.asked.store(true, Ordering::Release);
    }

    /// Whether a serial read decides a transaction in progress.
    pub fn serial_reads_decide(&self) -> bool {
        let of = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        of(&self.decides) && of(&self.asked) && !of(&self.lax)
    }

    /// The minute after which a transaction begun now cannot take effect any more; `grace` is the
    /// table's `gc_grace_seconds`.
    pub fn dead_after(&self, grace: Option<u32>, now: Moment) -> u32 {
        if self.keeps.load(Ordering::Acquire) {
            return NEVER;
        }
        let memory = (grace.unwrap_or(USUAL_GRACE) / 60).max(SHORTEST_MEMORY);
        (now.unix / 60).saturating_add(memory).saturating_add(SLACK).min(NEVER - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_reads_decide_where_the_release_and_its_settings_say_so() {
        let decides = |release: &str, variant: Option<&str>| {
            let paxos = Paxos::default();
            paxos.set_release(release);
            assert!(!paxos.serial_reads_decide(), "before it was asked");
            paxos.set_settings(variant, None);
            paxos.serial_reads_decide()
        };
        assert!(
            decides("5.0.5", Some("v1"))
                && decides("4.1.9", Some("v2"))
                && decides("4.0-rc1", None)
        );
        assert!(decides("3.11.19", None) && decides("3.0.24", None));
        assert!(!decides("3.11.9", None) && !decides("3.0.8", None) && !decides("", None));
        assert!(!decides("5.0.5", Some("v1_without_linearizable_reads_or_rejected_writes")));
    }

    #[test]
    fn replicas_forget_after_the_grace_of_the_table_or_never() {
        let paxos = Paxos::default();
        let now = Moment { unix: 60_000_000, boot: 0 };
        assert_eq!(paxos.dead_after(Some(60), now), 1_000_000 + 180 + 60);
        assert_eq!(paxos.dead_after(None, now), 1_000_000 + 14_400 + 60);
        assert_eq!(paxos.dead_after(Some(u32::MAX), now), 1_000_000 + u32::MAX / 60 + 60);
        paxos.set_settings(None, Some("repaired"));
        assert_eq!(paxos.dead_after(Some(60), now), NEVER);
    }
}
