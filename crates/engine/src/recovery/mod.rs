//! Opening: from what the last life of the cache left to a cache that serves.
//!
//! What may be believed depends on how that life ended:
//!
//! | ended by             | Mutable, survives crash                 | Immutable      | survives clean stop |
//! |----------------------|-----------------------------------------|----------------|---------------------|
//! | clean stop           | warm                                    | warm           | warm                |
//! | death of the process | warm if the journal is whole            | warm           | cold                |
//! | death of the machine | cold, but `synced` ones as above        | warm           | cold                |
//!
//! An Immutable namespace is cold when the journal says that it has lost an entry, which may have been a removal.
//!
//! Recovery takes the newest whole checkpoint. Its *version floor* parts the world: everything with a lower version had
//! taken effect before its first index line was captured. From there:
//!
//! 1. The journal is scanned into kill versions. Kills at or above the floor can contradict index lines; older ones
//!    cannot, they only concern records of segments that were open then.
//! 2. The cache serves: whatever lookups find is compared with the kill versions until loading is over.
//! 3. Segments opened since the floor, or open at it, are *exact*: their footers (or, for those that were open when the
//!    process died, their data) tell hash and version of every record. The driver reads them first ([`crate::background`]) and
//!    enters just the live ones in the index.
//! 4. Then it loads index lines, leaving out slots into exact segments, and when all are there sweeps those that 1 contradicts.

mod exact;
mod kills;
mod look;
mod open;
mod opening;

pub use exact::{SegmentReader, enter};
pub use look::{Outlook, look};
pub use open::{Env, Opened, open, refuse_others};
pub use opening::{Opening, Origin};

use crate::format::checkpoint::Header;

/// What the driver has to load after opening.
#[derive(Debug)]
pub struct LoadPlan {
    /// The checkpoint and its area, when there is one to load lines from.
    pub checkpoint: Option<(Header, u32)>,
    /// Generation of each segment that lines may point into; 0 for all others (exact ones among them).
    pub generations: Vec<u64>,
    /// Segments to be read exactly, and the generations they were opened with, in their order.
    pub exact: Vec<(u32, u64)>,
    /// Which namespaces (by id) may be believed.
    pub warm: Vec<bool>,
}
