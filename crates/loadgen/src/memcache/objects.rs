//! Keys and values that follow from an object's number, cheap to make and to verify in every byte.

use crate::rng::{Rng, mix, unmix};

/// Bytes of every key.
pub const KEY_LEN: usize = 32;
const PREFIX: &[u8; KEY_LEN - 16] = b"afterglow-bench-";
/// Values begin at one of so many places of the pool.
const PLACES: u64 = 1 << 13;
/// Bytes between two of them.
const STEP: usize = 8;
/// Bytes at the front of a value that are its object's own.
const OWN: usize = 8;

/// Objects with values of one length.
///
/// A value is a prefix of its own and a piece of a pool of random bytes that no compressor can
/// shrink. Its number says where the piece begins. So making and verifying a value are a copy and a
/// comparison.
#[derive(Clone, Debug)]
pub struct Objects {
    len: usize,
    pool: Vec<u8>,
}

impl Objects {
    /// Objects with values of `len` bytes.
    pub fn new(len: usize) -> Self {
        let mut rng = Rng::new(0x0b7e);
        let words = (len + PLACES as usize * STEP).div_ceil(8);
        Self { len, pool: (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect() }
    }

    /// Bytes of every value.
    pub fn value_len(&self) -> usize {
        self.len
    }

    /// The key of object `id`.
    pub fn key(id: u64) -> [u8; KEY_LEN] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let (mut key, scattered) = ([0; KEY_LEN], mix(id));
        key[..PREFIX.len()].copy_from_slice(PREFIX);
        for (i, byte) in key[PREFIX.len()..].iter_mut().enumerate() {
            *byte = DIGITS[(scattered >> (4 * i)) as usize & 15];
        }
        key
    }

    /// Which object has this key; `None` when it is no key of [`Objects::key`].
    pub fn id(key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(PREFIX).filter(|digits| digits.len() == 16)?;
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let mut low_first = digits.iter().rev();
        let scattered = low_first.try_fold(0, |n, byte| Some(n << 4 | u64::from(digit(byte)?)))?;
        Some(unmix(scattered))
    }

    fn parts(&self, id: u64) -> ([u8; OWN], &[u8]) {
        let scattered = mix(id ^ 0x5eed);
        let at = (scattered % PLACES) as usize * STEP;
        (scattered.to_le_bytes(), &self.pool[at..at + self.len])
    }

    /// Appends the value of object `id`.
    pub fn append_value(&self, id: u64, out: &mut Vec<u8>) {
        let (own, rest) = self.parts(id);
        let own = &own[..OWN.min(self.len)];
        out.extend_from_slice(own);
        out.extend_from_slice(&rest[own.len()..]);
    }

    /// Whether `value` is, in every byte, that of object `id`.
    pub fn is_value(&self, id: u64, value: &[u8]) -> bool {
        let (own, rest) = self.parts(id);
        let n = OWN.min(self.len);
        value.len() == self.len && value[..n] == own[..n] && value[n..] == rest[n..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_whose_it_is() {
        for id in [0, 1, 77, 1 << 40, u64::MAX] {
            assert_eq!(Objects::id(&Objects::key(id)), Some(id));
        }
        let key = Objects::key(5);
        let mut wrong = key;
        wrong[20] = b'x';
        assert_eq!(
            [Objects::id(&key[1..]), Objects::id(&key[..31]), Objects::id(&wrong)],
            [None; 3]
        );
    }

    #[test]
    fn every_wrong_byte_is_found_and_values_differ() {
        for len in [1, 7, 8, 100, 4096] {
            let objects = Objects::new(len);
            let value = |id| {
                let mut out = Vec::new();
                objects.append_value(id, &mut out);
                out
            };
            let one = value(1);
            assert!(objects.is_value(1, &one) && one.len() == len);
            assert!(!objects.is_value(1, &one[1..]));
            for at in [0, len / 2, len - 1] {
                let mut flipped = one.clone();
                flipped[at] ^= 1;
                assert!(!objects.is_value(1, &flipped), "byte {at} of {len}");
            }
            assert!(len < 8 || !objects.is_value(2, &one));
        }
        let keys: std::collections::HashSet<_> = (0..10_000).map(Objects::key).collect();
        assert!(keys.len() == 10_000 && keys.iter().flatten().all(u8::is_ascii_graphic));
    }
}
