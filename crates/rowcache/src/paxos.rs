//! How the database runs lightweight transactions, as far as its release and its settings show.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

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
    /// As it was told last.
    release: Mutex<String>,
}

/// What ScyllaDB calls its release, whatever it is.
const SCYLLAS: &str = "3.0.8";

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
        release.clone_into(&mut self.release.lock());
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

    /// What the transactions promise less than a ring needs, with what mends it: a transaction of
    /// unknown outcome may still change the ring's map long after it was read. Nothing is said of
    /// ScyllaDB, nor of a release that is not known.
    pub fn shortfall(&self) -> Option<String> {
        if self.lax.load(Ordering::Acquire) {
            return Some(
                "the database's `paxos_variant` gives up linearizable reads, on which the ring's map rests: set it to v1 or v2 on all nodes".to_owned(),
            );
        }
        let release = self.release.lock();
        let is_old = !self.decides.load(Ordering::Acquire);
        (is_old && !release.is_empty() && *release != SCYLLAS).then(|| {
            format!(
                "serial reads of release {release} may miss a transaction in progress, and the ring's map rests on them: upgrade to 3.0.24, 3.11.10 or later"
            )
        })
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
    fn transactions_that_promise_less_than_a_ring_needs_are_told_with_what_mends_it() {
        let paxos = Paxos::default();
        assert_eq!(paxos.shortfall(), None, "nothing is known");
        for (release, is_told) in [("3.11.9", true), ("3.0.8", false), ("4.1.9", false)] {
            paxos.set_release(release);
            let told = paxos.shortfall();
            assert_eq!(told.as_deref().is_some_and(|why| why.contains(release)), is_told);
            assert_eq!(told.is_some(), is_told, "{release}");
        }
        paxos.set_settings(Some("v2_without_linearizable_reads"), None);
        assert!(paxos.shortfall().is_some_and(|why| why.contains("set it to v1 or v2")));
        paxos.set_settings(Some("v2"), None);
        assert_eq!(paxos.shortfall(), None);
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
