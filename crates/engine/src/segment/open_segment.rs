//! An open segment: the records of a stream that are not in a closed chunk yet. Also what must be
//! true of a chunk before it is written.

use crate::device::AlignedBuf;
use crate::format::BLOCK;
use crate::format::footer;
use crate::format::footer_entries::{EntryList, EntryPosition};
use crate::format::record::{self, RecordContext, RecordFormat};

/// The segment that a stream appends to, and its open chunk.
pub(super) struct OpenSegment {
    pub(super) id: u32,
    pub(super) generation: u64,
    /// How its records are written.
    pub(super) format: RecordFormat,
    pub(super) entries: EntryList,
    pub(super) chunk: AlignedBuf,
    pub(super) chunk_start: u32,
    pub(super) fill: u32,
    /// When the first record of the open chunk came, in milliseconds.
    pub(super) since: u64,
    /// Operations that wait for a record of the open chunk.
    pub(super) awaited: Vec<u64>,
}

impl OpenSegment {
    /// Before its write: `chunk`, the open one, lies within the segment in front of the footer, in
    /// whole blocks. Debug builds read every record of it back as a get will ([`record::decode`]).
    pub(super) fn assert_chunk(&self, chunk: &[u8], segment_size: u32, hash_seed: u64) {
        let (start, end) = (self.chunk_start, self.chunk_start + chunk.len() as u32);
        assert!(start.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK), "{start} to {end}");
        let footer = segment_size - footer::footer_len(&self.entries);
        assert!(end <= footer, "a chunk ends at {end}, its segment's footer begins at {footer}");
        if !cfg!(debug_assertions) {
            return;
        }
        let entries = self.entries.read(&mut EntryPosition::default(), usize::MAX);
        for entry in entries.iter().filter(|entry| entry.offset >= start) {
            let at = entry.offset;
            let context = RecordContext::new(hash_seed, self.generation, at, self.format);
            let found = record::decode(&chunk[(at - start) as usize..], &context);
            let found = found.map(|record| (record.meta, record.len as u32));
            assert_eq!(found, Some((entry.meta, entry.len)), "segment {} at {at}", self.id);
        }
    }
}
