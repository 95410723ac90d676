//! Who waits for what, and what must last before anybody hears of it.
//!
//! - [`acknowledge`]: when an operation is over; [`pending`] and [`waiters`]: both ends of one that
//!   waits for a device.
//! - [`backpressure`]: changes that wait for room; [`rooms`]: their lists.
//! - [`state_store`] and [`clean_marker`]: the state file, and its word that nothing has changed
//!   since a clean stop.

mod acknowledge;
pub(crate) mod backpressure;
mod clean_marker;
pub(crate) mod pending;
pub(crate) mod rooms;
pub(crate) mod state_store;
pub(crate) mod waiters;
