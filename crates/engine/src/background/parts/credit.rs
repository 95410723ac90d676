//! How much of a reclaimed segment may be reinserted: a share of other writes. Unused share is
//! saved up for a few segments only.

/// Segments' worth of bytes that reclaims may be entitled to write again at most: what was saved up
/// is gone after a few of them.
pub const CREDIT_SEGMENTS: u64 = 4;

/// Bytes of records that may be written again.
#[derive(Debug)]
pub struct Credit {
    share: f64,
    most: i64,
    /// Below 0 by at most one record.
    left: i64,
    /// New bytes up to which it was earned.
    until: u64,
}

impl Credit {
    /// None yet. `share` bytes are earned by each new one.
    pub fn new(share: f64, segment_size: u32) -> Self {
        let most = (CREDIT_SEGMENTS * u64::from(segment_size)) as i64;
        Self { share, most, left: 0, until: 0 }
    }

    /// So many bytes of new records were written since opening. What was written long ago is not
    /// saved up: reclaims would one day free almost nothing.
    pub fn earn(&mut self, new: u64) {
        let earned = (new.saturating_sub(self.until) as f64 * self.share) as i64;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(self.most);
            self.until = new;
        }
    }

    /// Whether a record may be written again.
    pub fn is_left(&self) -> bool {
        self.left > 0
    }

    /// A record is to be written again.
    pub fn spend(&mut self, len: u32) {
        self.left -= i64::from(len);
    }

    /// It was not.
    pub fn give_back(&mut self, len: u32) {
        self.left = (self.left + i64::from(len)).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_earned_however_small_the_steps() {
        let mut credit = Credit::new(0.15, 1 << 20);
        (0..=1000).for_each(|new| credit.earn(new));
        assert!((140..=150).contains(&credit.left), "{credit:?}");
        credit.spend(200);
        assert!(!credit.is_left());
        credit.give_back(200);
        assert!(credit.is_left());
    }

    #[test]
    fn a_few_segments_are_saved_up_and_no_more() {
        let mut credit = Credit::new(0.15, 1 << 20);
        credit.earn(1 << 40);
        for _ in 0..CREDIT_SEGMENTS {
            assert!(credit.is_left());
            credit.spend(1 << 20);
        }
        assert!(!credit.is_left());
        assert!(!Credit::new(0.0, 1 << 20).is_left());
    }
}
