//! What is in a data directory, told without changing it; also of one that a server has open, as a
//! snapshot.

mod look;
mod report;
mod utc;

pub use look::{holder, inspect};
pub(crate) use report::size;
pub use report::{
    Checkpoint, Device, DeviceState, DirectoryState, Journal, Namespace, NextStart, Report,
};
