//! Opening: from what the last life of the cache left to a cache that serves.
//!
//! What is still valid depends on how that life ended:
//!
//! | ended by             | Mutable, survives crash          | Immutable | survives clean stop |
//! |----------------------|----------------------------------|-----------|---------------------|
//! | clean stop           | warm                             | warm      | warm                |
//! | death of the process | warm if the journal is whole     | warm      | cold                |
//! | death of the machine | cold, but `synced` ones as above | warm      | cold                |
//!
//! All are cold when the data directory is an older copy ([`older_copy`]).
//!
//! An Immutable namespace is cold when the journal says that it has lost an entry: the entry may
//! have been a removal.
//!
//! Recovery takes the newest whole checkpoint. It has a *version floor*: every change with a lower
//! version had taken effect before the first index line was captured. The steps:
//!
//! 1. Scan the journal into kill versions. What was moved from it to the kill log is read when it
//!    is needed (step 3). Kills at or above the floor can contradict index lines.
//!    Older kills cannot; they only concern records of segments that were open then.
//! 2. The cache serves. Lookups compare what they find with the kill versions until loading is
//!    over.
//! 3. Segments opened since the floor, or open at it, are *exact*. Their footers give hash and
//!    version of every record; where a segment was open when the process died, its data does. The
//!    background thread ([`crate::background`]) reads these segments first and enters only their
//!    live records in the index.
//! 4. Then it loads index lines, without slots into exact segments. When all are loaded, it clears
//!    the slots that step 1 contradicts.
//!
//! Where there were many changes since the checkpoint, steps 3 and 4 are made several times, for a
//! part of the shards each. Before anything of a part is entered, its part of the kill log is read
//! into kill versions.

mod begin;
mod build;
mod checkpoints;
mod create;
mod device_io;
mod env;
mod exact;
mod find;
mod kill_log;
mod kills;
mod load_plan;
mod look;
mod members;
mod older_copy;
mod open;
mod opening;
mod outlook;
mod past;
mod restore;
mod search;
mod superblocks;

pub use env::Env;
pub use exact::{Exact, READ, SegmentReader, enter, register};
pub use find::refuse_others;
pub use load_plan::LoadPlan;
pub use look::{Looked, look};
pub use open::{Opened, open};
pub use opening::{Opening, Origin};
pub use outlook::Outlook;
