//! Keys and values that follow from their numbers, so that any read can be verified without
//! remembering what was written.

use crate::{rng::mix, ycsb::fnv_hash64};

/// Bytes of a record's key.
pub const KEY_LEN: usize = 23;

/// A field holds at least its version.
pub const MIN_FIELD_LEN: usize = 8;

/// The key of record `number`: `user` and YCSB's hash of the number, zero-padded to 19 digits so
/// that all keys have one length.
pub fn write_key(number: u64, key: &mut [u8; KEY_LEN]) {
    key[..4].copy_from_slice(b"user");
    let mut rest = fnv_hash64(number);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Words of a value after which its pattern of zeros repeats.
const PERIOD: usize = 5;

/// Fills `value` with the content of `field` of record `number` after write `version`. That is the
/// version (8 bytes, little endian), then bytes that no compressor can shrink, except `zeros`
/// percent of them. `value` must have at least [`MIN_FIELD_LEN`] bytes.
pub fn fill(number: u64, field: u32, version: u64, zeros: u32, value: &mut [u8]) {
    value[..MIN_FIELD_LEN].copy_from_slice(&version.to_le_bytes());
    let seed = seed(number, field, version);
    for (i, chunk) in value[MIN_FIELD_LEN..].chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, i, zeros)[..chunk.len()]);
    }
}

/// The version of `value` if it is, in every byte, a content of `field` of record `number` with so
/// many percent of zeros.
pub fn verify(number: u64, field: u32, zeros: u32, value: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(value.get(..MIN_FIELD_LEN)?.try_into().ok()?);
    let seed = seed(number, field, version);
    let rest = value[MIN_FIELD_LEN..].chunks(8).enumerate();
    rest.into_iter()
        .all(|(i, chunk)| *chunk == word(seed, i, zeros)[..chunk.len()])
        .then_some(version)
}

fn seed(number: u64, field: u32, version: u64) -> u64 {
    mix(mix(mix(number).wrapping_add(u64::from(field))).wrapping_add(version))
}

fn word(seed: u64, i: usize, zeros: u32) -> [u8; 8] {
    if i % PERIOD * 100 < zeros as usize * PERIOD {
        return [0; 8];
    }
    mix(seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_ycsb_with_zeropadding_19() {
        let mut key = [0; KEY_LEN];
        write_key(0, &mut key);
        assert_eq!(&key, b"user6284781860667377211");
        write_key(2, &mut key);
        assert_eq!(&key, b"user1820151046732198393");
    }

    #[test]
    fn verification_finds_every_kind_of_wrong_value() {
        let mut value = vec![0; 405];
        fill(7, 3, 9, 0, &mut value);
        assert_eq!(verify(7, 3, 0, &value), Some(9));
        assert_eq!(verify(8, 3, 0, &value), None, "another record's");
        assert_eq!(verify(7, 2, 0, &value), None, "another field's");
        for byte in [0, 8, 200, 404] {
            let mut flipped = value.clone();
            flipped[byte] ^= 1;
            assert_eq!(verify(7, 3, 0, &flipped), None, "byte {byte} flipped");
        }
        let mut torn = vec![0; 405];
        fill(7, 3, 10, 0, &mut torn);
        torn[200..].copy_from_slice(&value[200..]);
        assert_eq!(verify(7, 3, 0, &torn), None, "half old, half new");
        assert_eq!(verify(7, 3, 0, &value[..7]), None, "too short");
    }
    #[test]
    fn so_many_percent_are_zeros() {
        for percent in [0, 20, 40, 100] {
            let mut value = vec![0; 8 + 8 * 1000];
            fill(7, 3, 9, percent, &mut value);
            let zeros = value[8..].chunks(8).filter(|word| **word == [0; 8]).count();
            assert_eq!(zeros, percent as usize * 10);
            assert_eq!(verify(7, 3, percent, &value), Some(9));
            assert_eq!(verify(7, 3, 60, &value), None, "other content than expected");
        }
    }
}
