//! The intent log: writes in flight to the database, kept across a crash.

pub(crate) mod log;
mod table;
pub mod words;

pub use table::{IntentDoubt, IntentId, IntentTable, Unsettled};
