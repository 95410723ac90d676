//! Opening: from what the last life of the cache left to a cache that serves.
//!
//! What may be believed depends on how that life ended:
//!
//! | ended by             | Mutable, survives crash          | Immutable | survives clean stop |
//! |----------------------|----------------------------------|-----------|---------------------|
//! | clean stop           | warm                             | warm      | warm                |
//! | death of the process | warm if the journal is whole     | warm      | cold                |
//! | death of the machine | cold, but `synced` ones as above | warm      | cold                |
//!
//! An Immutable namespace is cold when the journal says that it has lost an entry, which may have
//! been a removal.
//!
//! Recovery takes the newest whole checkpoint. Its *version floor* parts the world: everything with
//! a lower version had taken effect before its first index line was captured. From there:
//!
//! 1. The journal is scanned into kill versions. Kills at or above the floor can contradict index
//!    lines; older ones cannot, they only concern records of segments that were open then.
//! 2. The cache serves: whatever lookups find is compared with the kill versions until loading is
//!    over.
//! 3. Segments opened since the floor, or open at it, are *exact*: their footers (or, for those
//!    that were open when the process died, their data) tell hash and version of every record. The
//!    driver reads them first ([`crate::background`]) and enters just the live ones in the index.
//! 4. Then it loads index lines, leaving out slots into exact segments, and when all are there
//!    sweeps those that 1 contradicts.

mod begin;
mod build;
mod create;
mod device_io;
mod env;
mod exact;
mod find;
mod kills;
mod load_plan;
mod look;
mod open;
mod opening;
mod past;
mod restore;

pub use env::Env;
pub use exact::{SegmentReader, enter};
pub use find::refuse_others;
pub use load_plan::LoadPlan;
pub use look::{Outlook, look};
pub use open::{Opened, open};
pub use opening::{Opening, Origin};
