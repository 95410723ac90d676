//! A small seeded generator: xoshiro256++ (Blackman and Vigna, public domain reference), seeded
//! through SplitMix64. Not for secrets: it exists so that one seed gives one run.

/// A seeded pseudo-random source.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A source whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut s = seed;
        let state = std::array::from_fn(|_| {
            s = s.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(s)
        });
        Self { state }
    }

    /// The next 64 uniformly distributed bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let mut s = [a, b, c ^ a, d ^ b];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= b << 17;
        s[3] = s[3].rotate_left(45);
        self.state = s;
        result
    }

    /// A double in `[0, 1)` with 53 random bits, like Java's `nextDouble`.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number in `0..n` (`n` > 0) by multiply-shift; its bias is below 2^-32 for `n` below 2^32.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

/// SplitMix64's finaliser: a bijection that scatters all bits.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What [`mix`] made `z` from.
#[inline]
pub fn unmix(mut z: u64) -> u64 {
    z = (z ^ (z >> 31) ^ (z >> 62)).wrapping_mul(0x3196_42B2_D24D_8EC3);
    z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(0x96DE_1B17_3F11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_sequence() {
        let take = |seed| {
            let mut r = Rng::new(seed);
            (0..4).map(|_| r.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn what_is_mixed_can_be_had_back() {
        let mut r = Rng::new(3);
        let some = (0..1000).map(|_| r.next_u64());
        for z in [0, 1, u64::MAX].into_iter().chain(some) {
            assert_eq!((unmix(mix(z)), mix(unmix(z))), (z, z));
        }
    }

    #[test]
    fn matches_the_reference_xoshiro256plusplus() {
        // First outputs of the published C code for the state {1, 2, 3, 4}.
        let mut r = Rng { state: [1, 2, 3, 4] };
        assert_eq!(
            [r.next_u64(), r.next_u64(), r.next_u64()],
            [41943041, 58720359, 3588806011781223]
        );
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut r = Rng::new(1);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[r.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
    }
}
