//! Segments: the unit of writing and reclaiming on flash.

mod open_segment;
mod state;
#[cfg(test)]
mod state_tests;
mod stream;

pub use state::{SegmentFigures, SegmentLocation, SegmentState, SegmentTable};
pub use stream::{AppendError, Object, StreamId, Streams, StreamsConfig, WriteJob};

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
