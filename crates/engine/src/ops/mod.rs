//! What happens to one key: each operation is a file that reads from top to bottom.
//!
//! - [`get`]: look up, read, verify, promote.
//! - [`put`], [`remove`]: changes, in the order that keeps them from being forgotten.
//! - [`modify`]: a read-modify-write that loses no update.
//! - [`list`]: every key or object of a namespace.

pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod modify;
pub(crate) mod put;
mod remove;
