//! When objects were last read, for the few clients that ask (`mg` with `h` or `l`, `me`).
//!
//! memcached keeps this with each object. Ours may be on flash, where nothing is written for a
//! read. So a small table in memory, by hash, has the objects that were used lately. An object that
//! is not in it was not used lately.

use std::sync::atomic::{AtomicU64, Ordering};

/// Entries; a power of two. 512 KiB.
const ENTRIES: usize = 1 << 16;

/// The table. An entry is 32 bits of the key's hash, 31 bits of seconds since the start, and
/// whether it was read.
pub struct Recency {
    start: u64,
    entries: Box<[AtomicU64]>,
}

/// A key's place in the table.
#[derive(Debug, Clone, Copy)]
pub struct TablePlace(u64);

impl Recency {
    /// An empty table at second `now`.
    pub fn new(now: u64) -> Self {
        Recency { start: now, entries: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Where a key stands.
    pub fn place(key: &[u8]) -> TablePlace {
        // FNV-1a (Fowler, Noll and Vo), eight bytes at a time: nothing but this table depends on
        // it.
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let mut hash = 0xcbf2_9ce4_8422_2325 ^ key.len() as u64;
        let mut chunks = key.chunks_exact(8);
        for chunk in &mut chunks {
            hash = (hash ^ u64::from_le_bytes(chunk.try_into().expect("eight bytes")))
                .wrapping_mul(PRIME);
            hash ^= hash >> 29;
        }
        for byte in chunks.remainder() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
        TablePlace(hash ^ hash >> 32)
    }

    fn entry(&self, place: TablePlace) -> &AtomicU64 {
        &self.entries[place.0 as usize % ENTRIES]
    }

    /// Whether it was read since it was stored, and for how many seconds it was left alone.
    pub fn of(&self, place: TablePlace, now: u64) -> (bool, u32) {
        let entry = self.entry(place).load(Ordering::Relaxed);
        let since = now.saturating_sub(self.start);
        let known = entry >> 32 == place.0 >> 32 && entry != 0;
        let used = if known { entry >> 1 & 0x7fff_ffff } else { 0 };
        (known && entry & 1 == 1, u32::try_from(since.saturating_sub(used)).unwrap_or(u32::MAX))
    }

    /// It was stored, or read.
    pub fn used(&self, place: TablePlace, now: u64, read: bool) {
        let since = now.saturating_sub(self.start) & 0x7fff_ffff;
        let entry = place.0 >> 32 << 32 | since << 1 | u64::from(read);
        // Most reads find what they would write: a line that is only read can stay in every core's
        // cache.
        let slot = self.entry(place);
        if slot.load(Ordering::Relaxed) != entry {
            slot.store(entry, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_what_was_used_lately_and_of_the_rest_that_it_was_not() {
        let table = Recency::new(100);
        let (a, b) = (Recency::place(b"a"), Recency::place(b"some longer key"));
        assert_eq!(table.of(a, 107), (false, 7));
        table.used(a, 107, false);
        assert_eq!((table.of(a, 109), table.of(b, 109)), ((false, 2), (false, 9)));
        table.used(a, 110, true);
        assert_eq!(table.of(a, 110), (true, 0));
        table.used(a, 111, false);
        assert_eq!(table.of(a, 111), (false, 0), "stored anew");
    }
}
