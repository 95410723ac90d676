//! What is kept in the place of a value in parts: see [`super::parts`].

use afterglow_engine::FlashRead;

/// Longest value, in bytes.
const MAX_VALUE: u64 = 64 << 20;
/// Longest part. Sixteen fill a segment of 16 MiB, its footer apart.
pub const MAX_PART: u64 = 1016 << 10;
/// What a part is a multiple of.
pub const PART_UNIT: u64 = 4 << 10;

/// What is kept in the place of a value in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// 122 random bits, drawn for each store: no two values ever have the same, whatever was lost
    /// in between.
    incarnation: u128,
    len: u32,
    part: u32,
}

impl Head {
    /// Bytes of its stored form.
    pub const LEN: usize = 24;

    /// Of a new value of so many bytes, in parts of `part` bytes.
    pub fn new(len: usize, part: usize) -> Self {
        let narrow = |n: usize| u32::try_from(n).expect("64 MiB at most");
        assert!(len > 0 && part > 0, "{len} bytes in parts of {part}");
        Head { incarnation: uuid::Uuid::new_v4().as_u128(), len: narrow(len), part: narrow(part) }
    }

    /// Its stored form.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..16].copy_from_slice(&self.incarnation.to_le_bytes());
        out[16..20].copy_from_slice(&self.len.to_le_bytes());
        out[20..].copy_from_slice(&self.part.to_le_bytes());
        out
    }

    /// From its stored form; `None` where that is no head.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let (len, part) = (word(16), word(20));
        let incarnation = u128::from_le_bytes(bytes[..16].try_into().expect("sixteen"));
        let lawful =
            (1..=MAX_VALUE).contains(&len.into()) && (PART_UNIT..=MAX_PART).contains(&part.into());
        lawful.then_some(Head { incarnation, len, part })
    }

    /// Length of the value.
    pub fn value_len(&self) -> usize {
        self.len as usize
    }

    /// How many parts it has.
    pub fn count(&self) -> u32 {
        self.len.div_ceil(self.part)
    }

    /// Bytes of part `n`.
    pub fn part_len(&self, n: u32) -> usize {
        (self.len - n * self.part).min(self.part) as usize
    }

    /// Memory that the read of a part takes.
    pub fn held(&self) -> usize {
        FlashRead::most_held(self.key(0).len(), self.part.min(self.len) as usize)
    }

    /// The key of part `n`.
    pub fn key(&self, n: u32) -> [u8; 20] {
        let mut key = [0; 20];
        key[..16].copy_from_slice(&self.incarnation.to_le_bytes());
        key[16..].copy_from_slice(&n.to_le_bytes());
        key
    }
}

#[cfg(test)]
mod tests {
    use afterglow_engine::device::AlignedBuf;
    use afterglow_engine::format::record;
    use afterglow_engine::index::SizeClass;

    use super::*;

    #[test]
    fn a_head_is_read_back_as_it_was_kept_and_nothing_else_is_one() {
        let head = Head::new(5_000_000, 1016 << 10);
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        assert_eq!(Head::decode(&bytes[1..]), None);
        assert_ne!(Head::new(5_000_000, 1 << 19).incarnation, head.incarnation);
        for (len, part) in [(0, 4096u32), (1, 0), (1, 4095), (65 << 20, 4096), (1, 2 << 20)] {
            let bad = [&bytes[..16], &u32::to_le_bytes(len), &part.to_le_bytes()].concat();
            assert_eq!(Head::decode(&bad), None, "{len} {part}");
        }
    }

    #[test]
    fn the_read_of_a_part_has_the_memory_it_takes_wherever_the_part_lies() {
        for part in (PART_UNIT..=MAX_PART).step_by(PART_UNIT as usize) {
            let head = Head::new(64 << 20, part as usize);
            let record = record::most_len(head.key(0).len(), part as usize);
            // A get reads as much as a record of its size class may have, in whole blocks.
            let class = SizeClass::from_bytes(record as u32).unwrap().max_bytes() as usize;
            for offset in (0..4096).step_by(16) {
                let read = AlignedBuf::read_capacity((offset + class).next_multiple_of(4096));
                assert!(read <= head.held(), "{part} at {offset}: {read} of {}", head.held());
            }
        }
    }

    #[test]
    fn parts_make_up_the_value_and_their_keys_differ() {
        for len in [1, 4095, 4096, 4097, 8192, 1_000_000] {
            let head = Head::new(len, 4096);
            let lens: Vec<usize> = (0..head.count()).map(|n| head.part_len(n)).collect();
            assert_eq!(lens.iter().sum::<usize>(), len);
            assert!(lens.iter().all(|&part| (1..=4096).contains(&part)));
            let keys: std::collections::HashSet<_> =
                (0..head.count()).map(|n| head.key(n)).collect();
            assert_eq!(keys.len(), lens.len());
        }
    }
}
