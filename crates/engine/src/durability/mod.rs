//! Durability: which operation waits for what before it is acknowledged.
//!
//! - [`acknowledge`]: when an operation is over. [`pending`] and [`waiters`]: the two ends of an
//!   operation that waits for a device.
//! - [`backpressure`]: changes that wait for space; [`wait_lists`]: their lists.
//! - [`state_store`] and [`clean_marker`]: the state file, and its note that nothing has changed
//!   since a clean stop.

mod acknowledge;
pub(crate) mod backpressure;
mod clean_marker;
pub(crate) mod pending;
pub(crate) mod state_store;
pub(crate) mod wait_lists;
pub(crate) mod waiters;
