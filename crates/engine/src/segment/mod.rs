//! Segments: the unit of writing and reclaiming on flash.

mod append;
mod free;
mod open_segment;
mod read_most;
mod relief;
mod state;
#[cfg(test)]
mod state_tests;
mod stream;
mod unwritten;
mod used_for;
mod write_job;

pub use append::{AppendError, Appended, Object};
pub use free::FULL_LOAD;
pub use state::{NO_PLACE, SegmentFigures, SegmentLocation, SegmentTable};
pub use stream::{StreamId, Streams, StreamsConfig};
pub use used_for::SegmentState;
pub use write_job::WriteJob;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
