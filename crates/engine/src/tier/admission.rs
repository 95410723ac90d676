//! Admission to flash: which objects are worth a write.
//!
//! While free segments exist everything is admitted. When they are scarce, an object less popular
//! than those it would evict is refused. The write budget refuses what exceeds the bytes granted so
//! far.

use super::budget::WriteBudget;
use super::victims::VictimPopularity;
use crate::api::DropReason;

/// What stands between an object and flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Popularity and the write budget.
    Asked,
    /// The write budget: somebody waits for it to be on flash.
    Through(u64),
    /// Nothing.
    Forced,
}

/// What admission goes by.
pub struct AdmissionRules {
    /// With at most this many segments free, popularity decides what is written.
    pub free_target: u32,
    /// Popularity of what reclaim drops.
    pub victims: VictimPopularity,
    /// Bytes that may be written, if that is limited.
    pub budget: Option<WriteBudget>,
}

impl AdmissionRules {
    /// Whether an object of `len` bytes and this popularity may be written, with so many segments
    /// free and after `written` bytes since opening.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &self,
        admission: Admission,
        popularity: impl FnOnce() -> u8,
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
        if admission != Admission::Asked || free > self.free_target {
            return Ok(());
        }
        if self.victims.admits(popularity()) { Ok(()) } else { Err(DropReason::NotAdmitted) }
    }

    /// Whether the write budget, if there is one, allows `len` bytes more.
    pub fn is_within_budget(&self, written: impl FnOnce() -> u64, len: u32) -> bool {
        self.budget.as_ref().is_none_or(|budget| budget.allows(written(), len))
    }
}
