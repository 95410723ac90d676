//! How many reads of flash writes may have begun, and no device answered.

use std::sync::Arc;

/// Of all reactors. Fewer than the threads of one of them that reads by threads, so that reads of
/// clients find some.
const MOST: usize = 128;

/// Turns, each taken until its device has answered.
#[derive(Default)]
pub(super) struct WriteReads(Arc<()>);

/// A turn, until it is dropped.
pub(super) struct BegunRead(#[expect(dead_code, reason = "it is counted")] Arc<()>);

impl WriteReads {
    /// A turn, if there is one.
    pub(super) fn turn(&self) -> Option<BegunRead> {
        let turn = self.0.clone();
        (Arc::strong_count(&turn) <= MOST + 1).then_some(BegunRead(turn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_turns_and_each_comes_back() {
        let reads = WriteReads::default();
        let mut turns: Vec<_> = (0..MOST).map(|_| reads.turn().expect("a turn")).collect();
        assert!(reads.turn().is_none());
        turns.pop();
        assert!(reads.turn().is_some());
    }
}
