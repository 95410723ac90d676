//! The two checksums of a v5 segment, section 2.2 of `native_protocol_v5.spec`.

const CRC24_INIT: u32 = 0x87_5060;
const CRC24_POLY: u32 = 0x197_4F0B;

/// What the payload's CRC32 starts from, so that a run of zero bytes does not check.
const CRC32_SEED: [u8; 4] = [0xFA, 0x2D, 0x55, 0xCA];

/// CRC-24 of a segment header's bytes in the order of the wire (Koopman's polynomial, found for
/// Hamming distance 8 over 8 bytes).
pub fn crc24(bytes: &[u8]) -> u32 {
    let mut crc = CRC24_INIT;
    for &byte in bytes {
        crc ^= u32::from(byte) << 16;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x100_0000 != 0 {
                crc ^= CRC24_POLY;
            }
        }
    }
    crc
}

/// CRC-32 (IEEE) of a segment's payload.
pub fn crc32(payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&CRC32_SEED);
    hasher.update(payload);
    hasher.finalize()
}
