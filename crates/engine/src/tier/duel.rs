//! Whether objects that few have asked for are worth their writes, found out by trying.
//!
//! Mostly they are not: of what is asked for once, most is never asked for again. But there are
//! workloads where each object is put once and read once, much later. No count of past requests can
//! tell these apart. So two samples of the keys are treated alike for ever, as in set dueling
//! (Qureshi et al., "Adaptive insertion policies", ISCA 2007): of one everything is written, of the
//! other only what has proven itself. All other keys follow what the two show:
//!
//! ```text
//!  everything ── bytes more than proven ──▶ hits more than proven     hits a byte of the unproven
//!  proven     ── bytes ──▶ hits                                       hits a byte of the proven
//! ```
//!
//! The unproven are written while a byte of them brings at least half of the hits of a byte of the
//! proven: what they displace would go on bringing hits too. On the public traces at hand it brings
//! 0 to 0.24 of them, and where each object is read once more it brings as many.
//!
//! Counts are halved each time the sample of everything has been written over twice, so that the
//! answer follows the workload.

use crate::sync::atomic::{AtomicU64, Ordering};

/// One key in so many belongs to a sample, as a power of two.
const SAMPLE_BITS: u32 = 4;
/// The samples' numbers among the parts of the key space.
const EVERYTHING: u64 = 0;
const PROVEN: u64 = 1;

/// A byte of the unproven may bring so many times fewer hits than one of the proven.
const WORTH: u128 = 2;

/// What a sample was written and read.
#[derive(Debug, Default)]
struct Sample {
    bytes: AtomicU64,
    hits: AtomicU64,
}

impl Sample {
    fn halve(&self) {
        for count in [&self.bytes, &self.hits] {
            // A count that comes between the two is lost, which does no harm.
            count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    fn set(&self, bytes: u64, hits: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.hits.store(hits, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.hits.load(Ordering::Relaxed))
    }
}

/// Two samples of the keys, and what became of what was written of them.
#[derive(Debug)]
pub struct AdmissionDuel {
    everything: Sample,
    proven: Sample,
    /// Bytes of flash that are a sample's share.
    share: u64,
}

impl AdmissionDuel {
    /// For a cache with so many bytes of flash.
    pub fn new(flash: u64) -> Self {
        let share = (flash >> SAMPLE_BITS).max(1);
        Self { everything: Sample::default(), proven: Sample::default(), share }
    }

    fn sample(&self, hash: u64) -> Option<&Sample> {
        match part(hash) {
            EVERYTHING => Some(&self.everything),
            PROVEN => Some(&self.proven),
            _ => None,
        }
    }

    /// Whether an object belongs to one of the samples.
    #[cfg(test)]
    pub fn is_sampled(&self, hash: u64) -> bool {
        self.sample(hash).is_some()
    }

    /// As if only what has proven itself had been read.
    #[cfg(test)]
    pub fn let_proven_win(&self) {
        self.everything.set(self.share, 1000);
        self.proven.set(self.share / 4, 1000);
    }

    /// As if what has not proven itself had been read as well.
    #[cfg(test)]
    pub fn let_everything_win(&self) {
        self.everything.set(self.share, 1000);
        self.proven.set(self.share / 4, 0);
    }

    /// An object was read from flash.
    pub fn hit(&self, hash: u64) {
        if let Some(sample) = self.sample(hash) {
            sample.hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// So many bytes of an object were written because it was admitted.
    pub fn wrote(&self, hash: u64, len: u32) {
        let Some(sample) = self.sample(hash) else { return };
        let before = sample.bytes.fetch_add(u64::from(len), Ordering::Relaxed);
        if part(hash) == EVERYTHING && before + u64::from(len) >= 4 * self.share {
            self.everything.halve();
            self.proven.halve();
        }
    }

    /// Whether an object is written although it has not proven itself.
    pub fn admits_unproven(&self, hash: u64) -> bool {
        match part(hash) {
            EVERYTHING => true,
            PROVEN => false,
            _ => self.unproven_pay(),
        }
    }

    fn unproven_pay(&self) -> bool {
        let ((all_bytes, all_hits), (bytes, hits)) = (self.everything.read(), self.proven.read());
        let more_bytes = all_bytes.saturating_sub(bytes);
        if more_bytes < self.share / 8 {
            // Too little was tried.
            return false;
        }
        let more_hits = all_hits.saturating_sub(hits);
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        WORTH * product(more_hits, bytes) >= product(hits, more_bytes)
    }
}

/// The part of the key space of a hash. The shards go by other bits.
fn part(hash: u64) -> u64 {
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SAMPLE_BITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LEN: u32 = 100;
    const FLASH: u64 = 1 << 20;

    /// A key that is in no sample.
    fn other() -> u64 {
        (0..).find(|&hash| part(hash) > PROVEN).expect("most keys are")
    }

    /// Writes of so many keys, of which one in `proven` has proven itself. Hits of each that is
    /// written: so many of the proven ones, so many in a hundred of the others.
    fn write(duel: &AdmissionDuel, keys: u64, proven: u64, hits: u64, others: u64) {
        for hash in 0..keys {
            let is_proven = (hash / 64).is_multiple_of(proven);
            if is_proven || duel.admits_unproven(hash) {
                duel.wrote(hash, LEN);
                let more = if is_proven { hits } else { u64::from(hash / 8 % 100 < others) };
                (0..more).for_each(|_| duel.hit(hash));
            }
        }
    }

    #[test]
    fn what_is_never_read_again_is_not_written() {
        let duel = AdmissionDuel::new(FLASH);
        assert!(!duel.admits_unproven(other()), "nothing was tried yet");
        write(&duel, 100_000, 4, 3, 10);
        assert!(!duel.admits_unproven(other()), "{duel:?}");
    }

    #[test]
    fn what_is_read_once_each_is_written_where_nothing_else_is_asked_for() {
        let duel = AdmissionDuel::new(FLASH);
        write(&duel, 100_000, u64::MAX, 0, 90);
        assert!(duel.admits_unproven(other()), "{duel:?}");
    }

    #[test]
    fn the_answer_follows_the_workload() {
        let duel = AdmissionDuel::new(FLASH);
        write(&duel, 100_000, 4, 3, 10);
        assert!(!duel.admits_unproven(other()));
        write(&duel, 1_000_000, u64::MAX, 0, 90);
        assert!(duel.admits_unproven(other()), "{duel:?}");
        write(&duel, 1_000_000, 4, 3, 10);
        assert!(!duel.admits_unproven(other()), "{duel:?}");
    }

    #[test]
    fn samples_are_a_small_share_of_the_keys_and_treated_alike_for_ever() {
        let duel = AdmissionDuel::new(FLASH);
        let hashes = || (0..100_000u64).map(|n| n.wrapping_mul(0x2545_f491_4f6c_dd1d));
        for sample in [EVERYTHING, PROVEN] {
            let share = hashes().filter(|&hash| part(hash) == sample).count();
            assert!((5_500..7_000).contains(&share), "{share} of 100,000");
        }
        let everything = hashes().filter(|&hash| duel.admits_unproven(hash)).count();
        assert!((5_500..7_000).contains(&everything), "before anything is known");
    }
}
