//! Operations on one key: each is a file that reads from top to bottom.
//!
//! - [`get`]: look up, read, verify, promote.
//! - [`put`], [`remove`]: changes, in the order that makes them survive a crash.
//! - [`modify`]: a read-modify-write that loses no update.
//! - [`relocate`]: moves a record that was read to another device.
//! - [`list`]: every key or object of a namespace.

pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod modify;
pub(crate) mod put;
mod relocate;
mod remove;
