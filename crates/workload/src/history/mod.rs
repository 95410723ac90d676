//! Histories of concurrent reads and writes, and the judgement over them.

mod checker;

pub use checker::{Event, Fault, HistoryError, Kind, Verdict, Violation, check};
