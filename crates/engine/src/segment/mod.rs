//! Segments: the unit of writing and reclaiming on flash.

mod append;
mod open_segment;
mod state;
#[cfg(test)]
mod state_tests;
mod stream;

pub use append::{AppendError, Appended, Object};
pub use state::{SegmentFigures, SegmentLocation, SegmentState, SegmentTable};
pub use stream::{StreamId, Streams, StreamsConfig, WriteJob};

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
