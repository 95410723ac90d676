//! Operations that wait for a flush.

/// Those who wait for a flush.
#[derive(Debug, Default)]
pub(in crate::background) struct Flushes {
    /// Their records are written; with the device.
    pub(in crate::background) next: Vec<(u64, u16)>,
    /// The flush under way: who waits for it, what is still in flight, and whether one failed.
    pub(in crate::background) now: Vec<u64>,
    pub(in crate::background) in_flight: u32,
    pub(in crate::background) failed: bool,
}
