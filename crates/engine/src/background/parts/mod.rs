//! The state of each background task between two steps.

pub(super) mod balance;
pub(super) mod checkpoint;
pub(super) mod close;
pub(super) mod compaction;
pub(super) mod credit;
pub(super) mod device_work;
pub(super) mod flushes;
pub(super) mod forgetting;
pub(super) mod load;
pub(super) mod reclaim;
pub(super) mod regaining;
