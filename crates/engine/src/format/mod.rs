//! What is written to flash and to the data directory, byte by byte. `docs/internals/formats.md`
//! draws all of it.
//!
//! All integers are little endian. Every structure carries a checksum whose seed names the place
//! and the incarnation it belongs to. So bytes of an older incarnation, or bytes written to a wrong
//! place, are never accepted. Changing any of this means raising [`FORMAT_VERSION`].

pub(crate) mod block_lines;
pub mod checkpoint;
#[cfg(test)]
mod checkpoint_tests;
mod fields;
pub mod first_free;
pub mod footer;
pub mod footer_entries;
#[cfg(test)]
mod footer_tests;
pub mod journal;
pub mod kill_run;
pub mod record;
pub mod state;
pub mod superblock;

use twox_hash::XxHash3_64;

/// Version of the superblock, of segments and of the state file. The journal has had one since
/// format 1, and checkpoints count theirs apart.
pub const FORMAT_VERSION: u32 = 2;

/// Whether a file of this format version is understood. What format 1 wrote is read, and written
/// again in today's format as it changes.
#[must_use]
pub fn is_read(format: u32) -> bool {
    (1..=FORMAT_VERSION).contains(&format)
}

/// Unit of locations on flash: records start at multiples of it.
pub const UNIT: u32 = 16;

/// Alignment of every write to a device: enough for each device the engine opens.
pub const BLOCK: u32 = 4096;

/// Largest segment: what a slot of the index can name.
pub const MAX_SEGMENT: u32 = 16 << 20;

/// XXH3-64 of `bytes` under `seed`.
#[must_use]
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Hash of a key of a namespace, keyed by the cache's hash seed.
#[must_use]
pub fn key_hash(hash_seed: u64, ns: u16, key: &[u8]) -> u64 {
    let hash = checksum(mix(hash_seed ^ u64::from(ns)), key);
    #[cfg(test)]
    let hash = hash & (u64::MAX >> (16 - tag_bits(hash_seed)));
    hash
}

/// A hash seed under which tags have only so many bits, so that a simulation sees them collide.
#[cfg(test)]
pub(crate) fn weak_hash_seed(hash_seed: u64, tag_bits: u32) -> u64 {
    hash_seed >> 8 | u64::from(tag_bits) << 56
}

/// Bits of a tag under a hash seed: 16, unless a simulation wants fewer.
#[cfg(test)]
fn tag_bits(hash_seed: u64) -> u32 {
    Some((hash_seed >> 56) as u32).filter(|bits| (1..16).contains(bits)).unwrap_or(16)
}

/// Spreads the bits of `x` (the finaliser of MurmurHash3, a bijection).
#[must_use]
pub fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// `n` rounded up to a multiple of the power of two `to`.
#[must_use]
pub const fn round_up(n: u64, to: u64) -> u64 {
    (n + to - 1) & !(to - 1)
}
