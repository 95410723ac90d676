//! `afterglow inspect`: shows what is in a data directory, without changing it. If a server has it
//! open, this is a snapshot.

mod look;
mod report;
mod utc;

pub use look::{holder, inspect};
pub(crate) use report::size;
pub use report::{
    Checkpoint, Device, DeviceState, DirectoryState, Journal, Namespace, NextStart, Report,
};
