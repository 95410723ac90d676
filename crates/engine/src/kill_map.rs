//! Kill versions of single keys, while the index loads.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// By hash: lower versions are dead, wherever they are.
pub type KillMap = HashMap<u64, u64, BuildHasherDefault<Spread>>;

/// Hashes are random already, but all those of a shard have their lowest bits in common, which is
/// where a map looks.
#[derive(Debug, Default, Clone, Copy)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes are keys");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
