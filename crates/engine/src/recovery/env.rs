//! What a cache is opened on: devices, areas and clock.

use crate::clock::Clock;
use crate::device::DeviceSet;
use crate::device::area::{Media, MetaStore};
use std::sync::Arc;

/// Everything outside the engine that a cache is opened over.
pub struct Env {
    /// Reads of the devices.
    pub set: Arc<dyn DeviceSet>,
    /// The same while the cache is opened: each read ends, although its device may hang.
    pub patient: Arc<dyn DeviceSet>,
    /// Metadata files.
    pub meta: Arc<dyn MetaStore>,
    /// The journal's area.
    pub journal: Arc<dyn Media>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The kernel's boot id, if it could be read.
    pub boot_id: Option<[u8; 16]>,
    /// Random bits for a new cache: its uuid and its hash seed.
    pub entropy: [u64; 3],
}
