//! What all key choosers have in common.

use crate::rng::Rng;

/// Something that picks the next item number.
pub trait Generator {
    /// The next item.
    fn next(&mut self, rng: &mut Rng) -> u64;
}

/// YCSB's 64-bit FNV-1 style hash over the eight bytes of `value`, low byte first, made
/// non-negative as Java's `Math.abs` does it.
pub fn fnv_hash64(value: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    let hash = value
        .to_le_bytes()
        .iter()
        .fold(OFFSET_BASIS, |h, &b| (h ^ u64::from(b)).wrapping_mul(PRIME));
    java_abs(hash)
}

/// `Math.abs` on a Java long. Its one surprise, `abs(MIN) == MIN`, is mapped to 0 here: YCSB would
/// compute a negative item from it, once in 2^64 draws.
pub fn java_abs(v: u64) -> u64 {
    (v as i64).checked_abs().unwrap_or(0) as u64
}
