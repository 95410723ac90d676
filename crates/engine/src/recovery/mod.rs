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
//! Recovery takes the newest whole checkpoint. Its *version floor* parts the world: everything with a lower version had
//! taken effect before its first index line was captured. From there:
//!
//! 1. The journal is scanned into kill versions. Kills at or above the floor can contradict index lines; older ones
//!    cannot, they only concern records of segments that were open then.
//! 2. Segments opened since the floor, or open at it, are *exact*: their footers (or, for those that were open when the
//!    process died, their data) tell hash and version of every record, so just the live ones are entered in the index.
//! 3. The cache serves. The driver loads index lines behind ([`crate::driver`]), leaving out slots into exact segments,
//!    and compares what it finds with the kill versions of 1 until all lines are there and the contradicted are swept.

mod exact;
mod open;

pub use exact::meta_of;
pub use open::{Env, Opened, STATE, open};

use std::collections::HashMap;

use crate::format::checkpoint::Header;

/// What the driver has to load after opening.
#[derive(Debug, Default)]
pub struct LoadPlan {
    /// The checkpoint and its area, when there is one to load lines from.
    pub checkpoint: Option<(Header, u32)>,
    /// Generation of each segment that lines may point into; 0 for all others (exact ones among them).
    pub generations: Vec<u64>,
}

/// Kill versions found in the journal.
#[derive(Debug, Default)]
pub struct Kills {
    /// By hash: lower versions are dead, wherever they are.
    pub all: HashMap<u64, u64>,
    /// The same from entries at or above the checkpoint's floor only: these contradict index lines.
    pub lines: HashMap<u64, u64>,
}
