//! Admission to flash: which objects are worth a write.
//!
//! Until flash is full everything is admitted. Then an object is admitted that has proven itself:
//! it was asked for again after it had left the cache, or is asked for a lot. What has not is
//! admitted only where trying shows that this pays: see [`AdmissionDuel`]. The write budget
//! refuses what exceeds the bytes granted so far.
//!
//! Flash is full once reclaim has something to do. Reclaim frees a segment as soon as no more than
//! its target are free, and that takes it milliseconds. So of a full cache the target and one more
//! are free for most of the time. If that one more counted as room, nearly everything would be
//! written, and fewer requests would be hits.

use super::budget::WriteBudget;
use super::duel::AdmissionDuel;
use crate::api::DropReason;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What stands between an object and flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Popularity and the write budget.
    Asked,
    /// The write budget: somebody waits for it to be on flash.
    Through(u64),
    /// The write budget: flash is the only place for it.
    OffDram,
    /// Nothing.
    Forced,
}

/// Requests counted by the sketch that prove an object worth a write. A miss and the put that
/// follows it are two. So it was missed twice and is asked for again, or was hit three times in
/// DRAM.
pub const PROVEN_AT: u8 = 5;

/// What admission goes by.
pub struct AdmissionRules {
    /// Segments that reclaim keeps free. With more than one beyond them, flash is not full.
    pub free_target: u32,
    /// Whether objects that have not proven themselves are worth a write.
    pub duel: AdmissionDuel,
    /// Bytes that may be written, if that is limited.
    pub budget: Option<WriteBudget>,
    refused: AtomicU64,
}

impl AdmissionRules {
    /// For a cache with so many bytes of flash, of which reclaim keeps so many segments free.
    pub fn new(free_target: u32, flash: u64, budget: Option<WriteBudget>) -> Self {
        Self { free_target, duel: AdmissionDuel::new(flash), budget, refused: AtomicU64::new(0) }
    }

    /// Bytes that have left DRAM so far and were not admitted.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether an object of `len` bytes, with this hash and popularity, may be written, with so
    /// many segments free and after `written` bytes since opening.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &self,
        admission: Admission,
        (hash, popularity): (u64, impl FnOnce() -> u8),
        len: u32,
        free: u32,
        written: impl FnOnce() -> u64,
    ) -> Result<(), DropReason> {
        if admission == Admission::Forced {
            return Ok(());
        }
        if !self.is_within_budget(written, len) {
            return Err(DropReason::WriteBudget);
        }
        let admitted = admission != Admission::Asked
            || free > self.free_target + 1
            || popularity() >= PROVEN_AT
            || self.duel.admits_unproven(hash);
        if admitted { Ok(()) } else { Err(DropReason::NotAdmitted) }
    }

    /// Notes that a record of `len` bytes has left DRAM and was not admitted.
    pub fn note_refused(&self, len: u32) {
        self.refused.fetch_add(u64::from(len), Ordering::Relaxed);
    }

    /// Whether the write budget, if there is one, allows `len` bytes more.
    pub fn is_within_budget(&self, written: impl FnOnce() -> u64, len: u32) -> bool {
        self.budget.as_ref().is_none_or(|budget| budget.allows(written(), len))
    }

    /// The same for what nobody asks for: half of what the budget puts by is left to others.
    pub fn has_budget_to_spare(&self, written: impl FnOnce() -> u64, len: u32) -> bool {
        self.budget.as_ref().is_none_or(|budget| budget.spares(written(), len))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const TARGET: u32 = 3;

    fn admit(rules: &AdmissionRules, popularity: u8, free: u32) -> Result<(), DropReason> {
        // No key of a sample.
        let known = (1, || popularity);
        rules.admit(Admission::Asked, known, 100, free, || 0)
    }

    #[test]
    fn the_segment_that_reclaim_has_just_freed_is_no_room_for_what_nobody_asks_for() {
        let rules = AdmissionRules::new(TARGET, 1 << 30, None);
        for free in 0..=TARGET + 1 {
            let refused = Err(DropReason::NotAdmitted);
            assert_eq!(admit(&rules, PROVEN_AT - 1, free), refused, "{free} free");
            assert_eq!(admit(&rules, PROVEN_AT, free), Ok(()), "{free} free");
        }
        assert_eq!(admit(&rules, 0, TARGET + 2), Ok(()), "flash is not full");
        let forced = rules.admit(Admission::Forced, (1, || 0), 100, 0, || 0);
        assert_eq!(forced, Ok(()));
    }

    #[test]
    fn what_has_not_proven_itself_is_admitted_where_the_samples_say_that_it_pays() {
        let rules = AdmissionRules::new(TARGET, 1 << 20, None);
        assert_eq!(admit(&rules, 0, 0), Err(DropReason::NotAdmitted));
        for hash in 0..100_000 {
            let known = (hash, || 0);
            if rules.admit(Admission::Asked, known, 100, 0, || 0).is_ok() {
                rules.duel.wrote(hash, 100);
                rules.duel.hit(hash);
            }
        }
        assert_eq!(admit(&rules, 0, 0), Ok(()), "each that was written was read");
    }
}
