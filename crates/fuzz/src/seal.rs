//! Corrects checksums after bytes were changed, so that the code behind them is reached too.
//!
//! A checksum keeps accidents out. But a bug, of this version or another, may write wrong bytes
//! with a right checksum; a parser must survive these too.

use afterglow_engine::format::record::{self, RecordContext};
use afterglow_engine::format::{FORMAT_VERSION, checksum, mix};

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A record of as many bytes as its header claims. False when there are fewer.
pub fn record(bytes: &mut [u8], context: &RecordContext) -> bool {
    let claimed = record::claims(bytes, context).map(|(.., len)| len);
    let Some(len) = claimed.filter(|len| *len <= bytes.len()) else { return false };
    let sum = checksum(context.seed(), &bytes[6..len]).to_le_bytes();
    put(bytes, 0, &sum[..6]);
    true
}

/// The 64-byte mark at the start (magic `aglowSEG`) or end (`aglowFTR`) of a segment.
fn mark(mark: &mut [u8], magic: &[u8; 8], uuid: &[u8; 16], segment: u32) {
    put(mark, 0, magic);
    // What is not format 1 becomes today's. Its records are of one of both.
    let format = if mark[8] == 1 { 1 } else { FORMAT_VERSION };
    let records = match (format, mark[10]) {
        (1, _) => 0,
        (_, 1) => 1,
        _ => 2,
    };
    put(mark, 8, &(format as u16).to_le_bytes());
    put(mark, 10, &[records, 0]);
    put(mark, 24, &segment.to_le_bytes());
    put(mark, 32, uuid);
    let sum = checksum(u64::from(format), &mark[..56]);
    put(mark, 56, &sum.to_le_bytes());
}

/// The header of a segment.
pub fn segment_header(bytes: &mut [u8], uuid: &[u8; 16], segment: u32) {
    mark(&mut bytes[..64], b"aglowSEG", uuid, segment);
}

/// Bytes of the entries, as a trailer says.
pub fn entries_len(trailer: &[u8]) -> usize {
    let number = |at: usize| {
        u32::from_le_bytes(trailer[at..at + 4].try_into().expect("four bytes")) as usize
    };
    if trailer[8] == 1 { number(28).saturating_mul(40) } else { number(12) }
}

/// A footer: its trailer is the last 64 bytes, its entries (as many as the trailer says) the first
/// bytes. False when there is no room for so many.
pub fn footer(bytes: &mut [u8], uuid: &[u8; 16], segment: u32) -> bool {
    let Some(trailer) = bytes.len().checked_sub(64) else { return false };
    let generation = bytes[trailer + 16..trailer + 24].try_into().expect("eight bytes");
    let len = entries_len(&bytes[trailer..]);
    let Some(entries) = bytes[..trailer].get(..len) else { return false };
    let sum = checksum(u64::from_le_bytes(generation), entries);
    put(bytes, trailer + 48, &sum.to_le_bytes());
    mark(&mut bytes[trailer..], b"aglowFTR", uuid, segment);
    true
}

/// Both copies of a superblock: the second one becomes like the first.
pub fn superblock(bytes: &mut [u8]) {
    put(bytes, 0, b"aglowDEV");
    put(bytes, 8, &FORMAT_VERSION.to_le_bytes());
    let sum = checksum(0, &bytes[..88]);
    put(bytes, 88, &sum.to_le_bytes());
    bytes.copy_within(..96, 4096);
}

fn block_seed(uuid: &[u8; 16], sequence: u64) -> u64 {
    mix(sequence ^ checksum(1, uuid))
}

/// The header of a checkpoint.
pub fn checkpoint_header(bytes: &mut [u8], uuid: &[u8; 16]) {
    put(bytes, 0, b"aglowCKP");
    put(bytes, 16, uuid);
    // That of an index that has grown has one field more. Its format is even.
    let grown = bytes[8].is_multiple_of(2) && bytes.len() >= 120;
    let at = if grown { 112 } else { 104 };
    let old = matches!(bytes[8], 1 | 2);
    let format = u32::from(grown) + if old { 1 } else { 3 };
    put(bytes, 8, &format.to_le_bytes());
    let sum = checksum(0, &bytes[..at]);
    put(bytes, at, &sum.to_le_bytes());
}

/// The checksum of a checkpoint's tables, which stands in its header.
pub fn tables(header: &mut [u8], tables: &[u8], uuid: &[u8; 16], sequence: u64) {
    let sum = checksum(block_seed(uuid, sequence) ^ 1, tables);
    put(header, 96, &sum.to_le_bytes());
}

/// A block of index lines. False when it has fewer lines than it says.
pub fn block(bytes: &mut [u8], uuid: &[u8; 16], sequence: u64, shard: u32, first: u64) -> bool {
    let lines = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]) as usize;
    put(bytes, 0, b"aglowIDX");
    put(bytes, 8, &sequence.to_le_bytes());
    put(bytes, 16, &shard.to_le_bytes());
    put(bytes, 24, &first.to_le_bytes());
    let (head, body) = bytes.split_at(64);
    let Some(lines) = body.get(..lines.saturating_mul(64)) else { return false };
    let sum = checksum(checksum(block_seed(uuid, sequence), &head[..56]), lines);
    put(bytes, 56, &sum.to_le_bytes());
    true
}

/// An entry of the journal.
pub fn journal_entry(bytes: &mut [u8], seed: u64) {
    let sum = checksum(seed, &bytes[..28]) as u32;
    put(bytes, 28, &sum.to_le_bytes());
}

/// The state file: its last eight bytes.
pub fn state(bytes: &mut [u8]) {
    if let Some(body) = bytes.len().checked_sub(8).filter(|body| *body >= 12) {
        put(bytes, 0, b"aglowSTA");
        put(bytes, 8, &FORMAT_VERSION.to_le_bytes());
        let sum = checksum(0, &bytes[..body]);
        put(bytes, body, &sum.to_le_bytes());
    }
}
