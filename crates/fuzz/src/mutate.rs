//! A small deterministic mutator: enough to shake a parser in a test, without a nightly toolchain.

/// Lengths and numbers at which parsers stumble.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
/// Longest input it makes.
const LONGEST: usize = 1 << 16;

/// A pseudo-random sequence (SplitMix64, Steele et al., 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`; 0 when `n` is.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// One to eight changes to one of `inputs`: bits, bytes, numbers, pieces of it or of another input
/// inserted, removed, repeated.
#[must_use]
pub fn mutate(random: &mut Random, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut data = inputs.get(random.below(inputs.len())).cloned().unwrap_or_default();
    for _ in 0..=random.below(8) {
        let at = random.below(data.len() + 1);
        match random.below(8) {
            0 if at < data.len() => data[at] ^= 1 << random.below(8),
            1 if at < data.len() => data[at] = random.next() as u8,
            2 => put_number(random, &mut data[at..]),
            3 => data.truncate(at),
            4 => drop(data.drain(at..data.len().min(at + 1 + random.below(16)))),
            5 => {
                let bytes = random.next().to_le_bytes();
                let n = 1 + random.below(8);
                data.splice(at..at, bytes[..n].iter().copied());
            }
            _ => {
                let other = &inputs[random.below(inputs.len())];
                let from = random.below(other.len() + 1);
                let piece = other[from..other.len().min(from + random.below(64))].to_vec();
                // Over what is there, or between it.
                let end = if random.below(2) == 0 { at } else { data.len().min(at + piece.len()) };
                data.splice(at..end, piece);
            }
        }
        data.truncate(LONGEST);
    }
    data
}

/// A number of 1, 2, 4 or 8 bytes, in either byte order, near one of [`NUMBERS`], as far as there
/// is room.
fn put_number(random: &mut Random, to: &mut [u8]) {
    let number =
        NUMBERS[random.below(NUMBERS.len())].wrapping_add(random.below(3) as u64).wrapping_sub(1);
    let width = 1 << random.below(4);
    let mut bytes = number.to_le_bytes();
    if random.below(2) == 0 {
        bytes[..width].reverse();
    }
    let n = width.min(to.len());
    to[..n].copy_from_slice(&bytes[..n]);
}
