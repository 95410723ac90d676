//! What is in a data directory, told without changing it; also of one that a server has open, as a snapshot.

mod look;
mod report;

pub use look::{foretell, inspect};
pub use report::{Checkpoint, Device, DeviceState, Journal, Namespace, NextStart, Report, State};
