//! Remainders by a divisor that never changes, without a division.

/// A divisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Divisor {
    by: u64,
    /// `u64::MAX / by`: at most 1 below `2^64 / by`.
    reciprocal: u64,
}

impl Divisor {
    /// # Panics
    /// When `by` is 0.
    pub(super) fn new(by: usize) -> Self {
        let by = by as u64;
        Self { by, reciprocal: u64::MAX / by }
    }

    /// `number % by`. The product with the reciprocal is the quotient or one less, because the
    /// reciprocal is at most 1 too low and `number` is below 2^64.
    pub(super) fn rest(self, number: u64) -> usize {
        let quotient = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = number - quotient * self.by;
        (if rest < self.by { rest } else { rest - self.by }) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_rest_is_what_a_division_leaves(
            number: u64, multiple: u64, by in 1..=usize::MAX, shift in 0..64u32,
        ) {
            let by = (by >> shift).max(1);
            let divisor = Divisor::new(by);
            // Multiples, and what is beside them, are where a quotient would be one off.
            let edge = multiple - multiple % by as u64;
            for number in [number, edge, edge.wrapping_sub(1), edge.wrapping_add(1), 0, u64::MAX] {
                prop_assert_eq!(divisor.rest(number) as u64, number % by as u64);
            }
        }
    }
}
