//! Units that are filled in vain: a fill reads many more rows than the read that asks for it wants,
//! and the unit is gone before other reads come. The partition is written as often as it is read,
//! or it is read from both of its ends. Such units are filled seldom.
//!
//! A unit has a score from its first wasteful fill on. Such a fill lowers it, a hit raises it. At
//! [`WORTHLESS`] one read in [`TRIED`] makes a fill; the hits that follow count as any.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// Units whose scores are known, at some 40 bytes each. Beyond that the oldest is forgotten.
const MOST: usize = 64 * 1024;
/// So many wasteful fills more than hits, and most reads do not fill any more.
const WORTHLESS: i32 = -8;
/// So many hits more than wasteful fills, and the score is not kept any more.
const WORTHY: i32 = 8;
/// One in so many reads fills a unit whose fills were wasted.
const TRIED: i32 = 32;

/// The scores. Units are distinguished by a hash with a secret seed. Two that are taken for one
/// have one score.
#[derive(Default)]
pub(super) struct Churn {
    hasher: RandomState,
    scores: Mutex<Scores>,
}

#[derive(Default)]
struct Scores {
    by_unit: HashMap<u64, i32>,
    /// By age. Scores that were kept no more are still in it.
    order: VecDeque<u64>,
}

impl Churn {
    /// Whether a read that has missed this unit may fill it.
    pub(super) fn may_fill(&self, unit: &[u8]) -> bool {
        let unit = self.hasher.hash_one(unit);
        let mut scores = self.scores.lock();
        let Some(score) = scores.by_unit.get_mut(&unit) else { return true };
        if *score <= WORTHLESS {
            *score -= 1;
            if *score > WORTHLESS - TRIED {
                return false;
            }
            *score = WORTHLESS + 1;
        }
        true
    }

    /// A fill of this unit was wasteful.
    pub(super) fn waste(&self, unit: &[u8]) {
        let unit = self.hasher.hash_one(unit);
        let mut scores = self.scores.lock();
        match scores.by_unit.get_mut(&unit) {
            Some(score) => *score -= 1,
            None => scores.begin(unit),
        }
    }

    /// A unit has answered a read.
    pub(super) fn hit(&self, unit: &[u8]) {
        let mut scores = self.scores.lock();
        if scores.by_unit.is_empty() {
            return;
        }
        let unit = self.hasher.hash_one(unit);
        if let Some(score) = scores.by_unit.get_mut(&unit) {
            *score += 1;
            if *score >= WORTHY {
                scores.by_unit.remove(&unit);
            }
        }
    }
}

impl Scores {
    fn begin(&mut self, unit: u64) {
        self.by_unit.insert(unit, -1);
        self.order.push_back(unit);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_unit.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many misses of a unit make a wasteful fill, with so many hits after each.
    fn fills(churn: &Churn, misses: u32, hits: u32) -> u32 {
        let miss = |_| {
            let fills = churn.may_fill(b"unit");
            if fills {
                churn.waste(b"unit");
                (0..hits).for_each(|_| churn.hit(b"unit"));
            }
            u32::from(fills)
        };
        (0..misses).map(miss).sum()
    }

    #[test]
    fn what_is_hit_as_often_as_it_is_filled_is_always_filled() {
        for hits in [1, 2, 100] {
            assert_eq!(fills(&Churn::default(), 1_000, hits), 1_000, "{hits}");
        }
    }

    #[test]
    fn what_is_never_hit_is_seldom_filled_and_soon_again_when_it_is_hit() {
        let churn = Churn::default();
        let filled = fills(&churn, 1_000, 0);
        assert!((30..50).contains(&filled), "{filled} fills of 1,000 misses");
        let filled = fills(&churn, 100, 10);
        assert!(filled > 60, "{filled} fills of 100 misses");
    }

    #[test]
    fn a_bounded_number_of_scores_is_kept() {
        let churn = Churn::default();
        for unit in 0..3 * MOST {
            churn.waste(&unit.to_be_bytes());
            (0..(unit % 3) * 20).for_each(|_| churn.hit(&unit.to_be_bytes()));
        }
        let scores = churn.scores.lock();
        assert!(scores.by_unit.len() <= MOST && scores.order.len() == MOST);
    }
}
