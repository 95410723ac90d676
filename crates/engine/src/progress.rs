//! How far opening and the background work have come: written by them, read by lookups and
//! statistics.

use crate::sync::atomic::{AtomicBool, AtomicU64};

/// See each field.
#[derive(Default)]
pub struct Progress {
    /// The index is loading: what lookups find is compared with the kill versions.
    pub loading: AtomicBool,
    /// Segments written since the checkpoint are still to be read. Until then an older copy may
    /// pass for the newest of a key, unless the journal tells.
    pub unread: AtomicBool,
    /// Segments and blocks of index lines to be loaded after opening.
    pub load_parts: AtomicU64,
    /// Those already loaded.
    pub load_parts_done: AtomicU64,
    /// A checkpoint is being written.
    pub checkpointing: AtomicBool,
    /// Some objects in DRAM pass for copied whose copy was in a retired segment.
    pub regaining: AtomicBool,
}
