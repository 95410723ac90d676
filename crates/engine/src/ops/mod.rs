//! What happens to one key: each operation is a file that reads from top to bottom.
//!
//! - [`get`]: look up, read, verify, promote.
//! - [`put`]: puts, removals and removals of many, and what their acknowledgement waits for.
//! - [`modify`]: a read-modify-write that loses no update.
//! - [`list`]: every key or object of a namespace.

pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod modify;
pub(crate) mod put;
