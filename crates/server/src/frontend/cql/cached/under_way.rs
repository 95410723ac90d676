//! How many of one kind are under way, of all reactors, and that they are not too many.

use std::sync::Arc;

/// A number of them, counted by references.
pub(super) struct UnderWay {
    each: Arc<()>,
    most: usize,
}

/// One of them, until it is dropped.
pub(super) struct OneUnderWay(#[expect(dead_code, reason = "it is counted")] Arc<()>);

impl UnderWay {
    /// So many at most.
    pub(super) fn at_most(most: usize) -> UnderWay {
        UnderWay { each: Arc::default(), most }
    }

    /// One more, if there may be.
    pub(super) fn one_more(&self) -> Option<OneUnderWay> {
        let one = self.each.clone();
        (Arc::strong_count(&one) <= self.most + 1).then_some(OneUnderWay(one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_at_most_and_each_that_ends_makes_room() {
        let all = UnderWay::at_most(128);
        let mut some: Vec<_> = (0..128).map(|_| all.one_more().expect("there is room")).collect();
        assert!(all.one_more().is_none());
        some.pop();
        assert!(all.one_more().is_some());
    }
}
