//! Writes on their way to the database, kept across a crash.

mod table;

pub use table::{IntentDoubt, IntentId, IntentTable, Unsettled};
