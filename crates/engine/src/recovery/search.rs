//! Looks for records in the bytes of a segment that has no footer.
//!
//! A record may start at each unit. Where none does, what lies there may claim any length: values
//! of the segment's last use, which somebody chose. A checksum over each claim would take a
//! segment's length for every unit of it. So what is spent on claims that do not hold is bounded.
//! After that the search goes by blocks: every chunk begins with one, so no chunk behind is lost
//! as a whole.

use crate::format::footer::HEADER;
use crate::format::footer_entries::FooterEntry;
use crate::format::record::{self, RecordContext, RecordFormat};
use crate::format::{BLOCK, UNIT, key_hash};

/// Checksums of claims that do not hold are over so many times the segment, before the search goes
/// by blocks.
const DOUBT: u64 = 64;

/// A search of one segment.
pub(super) struct RecordSearch {
    namespaces: u16,
    version_limit: u64,
    /// Longest record.
    most: usize,
    /// Bytes that claims may still take a checksum of without being a record.
    doubt: u64,
    /// Bytes that did.
    wasted: u64,
}

impl RecordSearch {
    /// Of a segment of `size` bytes, in a cache of so many namespaces that has used no version from
    /// this limit on.
    pub(super) fn new(namespaces: u16, version_limit: u64, size: u32) -> Self {
        let (most, doubt) = (size as usize / 4, DOUBT * u64::from(size));
        Self { namespaces, version_limit, most, doubt, wasted: 0 }
    }

    /// Bytes of a record that is worth a checksum: arbitrary bytes would claim enormous lengths.
    fn claimed(&self, bytes: &[u8], context: &RecordContext) -> Option<usize> {
        let (ns, version, len) = record::claims(bytes, context)?;
        let plausible = ns < self.namespaces && version < self.version_limit && len <= self.most;
        (plausible && len <= bytes.len()).then_some(len)
    }

    /// The records of a format in the bytes of a segment. A piece that was never written does not
    /// end the search.
    pub(super) fn records(
        &mut self,
        data: &[u8],
        format: RecordFormat,
        place: impl Fn(u32) -> RecordContext,
        hash_seed: u64,
    ) -> Vec<FooterEntry> {
        let mut entries = Vec::new();
        let (mut at, size) = (HEADER, data.len() as u32);
        while at + record::MIN_RECORD as u32 <= size {
            let (bytes, context) = (&data[at as usize..], place(at));
            let claimed = self.claimed(bytes, &context);
            let Some(found) = claimed.and_then(|_| record::decode(bytes, &context)) else {
                self.wasted += claimed.unwrap_or(0) as u64;
                let step = if self.wasted < self.doubt { UNIT } else { BLOCK };
                at = (at / step + 1) * step;
                continue;
            };
            let (meta, len) = (found.meta, found.len as u32);
            let hash = key_hash(hash_seed, meta.ns, found.key);
            entries.push(FooterEntry { hash, meta, offset: at, len });
            at += format.padded(len);
        }
        entries
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::format::record::{Meta, encode};

    const SIZE: u32 = 1 << 18;

    fn place(at: u32) -> RecordContext {
        RecordContext::new(7, 9, at, RecordFormat::Compact)
    }

    /// Each unit claims a record of nearly a quarter of the segment.
    fn hostile() -> Vec<u8> {
        let unit = [0, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0xff];
        let data = unit.repeat(SIZE as usize / unit.len());
        let claimed = RecordSearch::new(1, 10, SIZE).claimed(&data, &place(0));
        assert!(claimed.is_some_and(|len| len > SIZE as usize / 5), "{claimed:?}");
        data
    }

    #[test]
    fn what_somebody_put_there_before_does_not_make_a_search_endless() {
        let mut data = hostile();
        let meta = Meta { version: 9, ..Meta::default() };
        for at in [HEADER, SIZE / 2] {
            encode(&mut data[at as usize..], &place(at), &meta, b"key", b"value");
        }
        let mut search = RecordSearch::new(1, 10, SIZE);
        let found = search.records(&data, RecordFormat::Compact, place, 7);
        let at: Vec<u32> = found.iter().map(|entry| entry.offset).collect();
        assert_eq!(at, [HEADER, SIZE / 2], "what is at a block's start is found in any case");
        let most = (DOUBT + 1 + u64::from(SIZE / BLOCK / 4)) * u64::from(SIZE);
        assert!(search.wasted <= most, "{} bytes for a segment of {SIZE}", search.wasted);
    }

    #[test]
    fn without_such_bytes_every_unit_is_looked_at() {
        let mut data = vec![0; SIZE as usize];
        let meta = Meta { version: 9, ..Meta::default() };
        let places = [HEADER, HEADER + UNIT * 7, SIZE / 2 + UNIT, SIZE - UNIT * 2];
        for at in places {
            encode(&mut data[at as usize..], &place(at), &meta, b"", b"");
        }
        let found = RecordSearch::new(1, 10, SIZE).records(&data, RecordFormat::Compact, place, 7);
        assert_eq!(found.iter().map(|entry| entry.offset).collect::<Vec<_>>(), places);
    }
}
