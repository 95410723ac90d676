//! What is to be loaded after opening.

use crate::checkpoint_areas::AreaAt;
use crate::format::checkpoint::Header;
use crate::format::kill_run::RunHead;

/// What the driver has to load after opening.
#[derive(Debug)]
pub struct LoadPlan {
    /// The checkpoint when there is one to load lines from, and where it is: a block is read from
    /// the next place if it cannot be read from the one before.
    pub checkpoint: Option<(Header, Vec<AreaAt>)>,
    /// Generation of each segment that lines may point into; 0 for all others (exact ones among
    /// them).
    pub generations: Vec<u64>,
    /// Segments to be read exactly, and the generations they were opened with, in their order.
    pub exact: Vec<(u32, u64)>,
    /// Runs of the kill log, which contradict what lies on flash.
    pub runs: Vec<RunHead>,
    /// Records appended since the checkpoint, about.
    pub appended: u64,
    /// Which namespaces (by id) may be believed.
    pub warm: Vec<bool>,
}
