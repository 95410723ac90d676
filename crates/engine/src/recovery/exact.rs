//! Exact segments: segments whose records are all known, with their versions.

use std::sync::Arc;

use super::search::RecordSearch;
use crate::core::Core;
use crate::device::{AlignedBuf, DeviceSet};
use crate::format::footer;
use crate::format::footer_entries::FooterEntry;
use crate::format::journal::Event;
use crate::format::record::{RecordContext, RecordFormat};
use crate::format::{BLOCK, UNIT};
use crate::index::Location;
use crate::segment::{Appended, SegmentTable};

/// Bytes of a segment without a footer that are read at a time.
pub const READ: u32 = 1 << 20;

/// Names the cache whose segments are read.
pub struct SegmentReader<'a> {
    /// Where to read.
    pub set: &'a Arc<dyn DeviceSet>,
    /// Where segments lie.
    pub table: &'a SegmentTable,
    /// The cache.
    pub uuid: [u8; 16],
    /// Key of all hashes.
    pub hash_seed: u64,
    /// Namespaces there are.
    pub namespaces: u16,
    /// Versions from here on are unused.
    pub version_limit: u64,
}

/// The records of a segment.
#[derive(Debug)]
pub struct Exact {
    /// The segment.
    pub segment: u32,
    /// Its generation.
    pub generation: u64,
    /// How its records are written.
    pub format: RecordFormat,
    /// Bytes of its footer; 0 where it has none.
    pub footer: u32,
    /// Its records.
    pub entries: Vec<FooterEntry>,
    /// It had no footer: one has to be written.
    pub torn: bool,
}

impl Exact {
    /// No record.
    pub fn nothing(segment: u32, generation: u64) -> Self {
        let (format, entries) = (RecordFormat::default(), Vec::new());
        Self { segment, generation, format, footer: 0, entries, torn: true }
    }
}

impl<'a> SegmentReader<'a> {
    /// For the segments of an open cache.
    pub fn new(core: &'a Core, namespaces: usize) -> Self {
        Self {
            set: &core.set,
            table: &core.table,
            uuid: core.uuid,
            hash_seed: core.hash_seed,
            namespaces: namespaces as u16,
            version_limit: core.versions.peek(),
        }
    }

    fn read(&self, segment: u32, offset: u32, len: u32) -> Option<AlignedBuf> {
        let place = self.table.place(segment);
        self.set.read_at(place.device, place.offset + u64::from(offset), len).ok()
    }

    /// The footer of a segment, whatever its generation. Blocks.
    pub fn footer(&self, segment: u32) -> Option<Exact> {
        let size = self.table.segment_size();
        let last = self.read(segment, size - BLOCK, BLOCK)?;
        let len = self.footer_len(segment, &last)?;
        self.of_footer(segment, &self.read(segment, size - len, len)?)
    }

    /// Bytes of a segment's footer, as its last block says.
    pub fn footer_len(&self, segment: u32, last: &[u8]) -> Option<u32> {
        let trailer = &last[(BLOCK - footer::TRAILER) as usize..];
        let len = footer::decode_trailer(trailer, &self.uuid, segment)?.len;
        (len <= self.table.segment_size()).then_some(len)
    }

    /// The records that a footer tells of, whatever its generation.
    pub fn of_footer(&self, segment: u32, bytes: &[u8]) -> Option<Exact> {
        let size = self.table.segment_size();
        let footer = footer::decode_footer(bytes, &self.uuid, segment, size)?;
        let (generation, format) = (footer.trailer.generation, footer.trailer.records);
        let (footer, entries) = (bytes.len() as u32, footer.entries);
        Some(Exact { segment, generation, format, footer, entries, torn: false })
    }

    /// Finds records by their own checksums in all bytes of a segment that was opened as
    /// `generation`. A piece that was never written does not end the search.
    pub fn of_data(&self, segment: u32, generation: u64, data: &[u8]) -> Exact {
        let size = self.table.segment_size();
        coverage_mark!(ExactScan);
        // A header that was not written does not tell how records are.
        let header = footer::decode_header(data, &self.uuid, segment);
        let known = header.filter(|(found, _)| *found == generation).map(|(_, format)| format);
        let formats = match known {
            Some(format) => vec![format],
            None => vec![RecordFormat::Compact, RecordFormat::Fixed],
        };
        let of = |format| {
            let place = |at| RecordContext::new(self.hash_seed, generation, at, format);
            let mut search = RecordSearch::new(self.namespaces, self.version_limit, size);
            (format, search.records(data, format, place, self.hash_seed))
        };
        let found = formats.into_iter().map(of).find(|(_, entries)| !entries.is_empty());
        let (format, entries) = found.unwrap_or_default();
        Exact { segment, generation, format, footer: 0, entries, torn: true }
    }
}

/// Registers a segment whose records are known.
pub fn register(core: &Core, exact: &Exact) {
    let &Exact { segment, generation, format, footer, .. } = exact;
    if format == RecordFormat::Fixed {
        coverage_mark!(ExactFixed);
    }
    core.table.restore_exact(segment, generation, (format, footer), &exact.entries);
    if exact.torn && !exact.entries.is_empty() {
        core.streams.enqueue_footer(segment, generation, format, &exact.entries);
    }
}

/// Enters those records of a registered segment that no kill version contradicts and whose
/// namespaces are warm.
///
/// Segments are entered in the order of their generations. Each record leaves its version behind as
/// a kill version. So the newest of several copies of an object stays, also in namespaces whose
/// puts are not journalled.
///
/// A power loss takes journal entries that were not flushed, but may leave their records. Such a
/// record alone says that older ones are superseded, and says it only while it is on flash. So it
/// is journalled before it can be found. Once it was served, no older object may return when it is
/// removed or its segment is reclaimed. Only `synced` namespaces are warm after a power loss. A
/// life that ends before all its segments are read leaves the rest to the next one. The namespace
/// may have other options then ([`NamespaceState::may_lack_entries`]).
///
/// [`NamespaceState::may_lack_entries`]: crate::namespace::state::NamespaceState::may_lack_entries
pub fn enter(core: &Core, exact: &Exact, warm: &[bool]) {
    let namespaces = core.namespaces.list.read().clone();
    for e in &exact.entries {
        let ns = usize::from(e.meta.ns);
        // The slot of a dead record must not block the slot of a living one from an index line.
        if !warm.get(ns).is_some_and(|w| *w) || core.why_dead(&namespaces[ns], &e.meta).is_some() {
            continue;
        }
        let (ns, hash, version) = (&namespaces[ns], e.hash, e.meta.version);
        let mut shard = core.shard(hash).lock();
        if ns.may_lack_entries() && !shard.knows_of(hash, version) {
            coverage_mark!(JournalledAgain);
            core.journal.append(Event::Kill { hash, ns: ns.id }, version);
        }
        if shard.distrust_below(hash, version) {
            // The race: a lookup may have promoted an older object before this segment was read.
            // When evicted, it would be written out and replace this one.
            if let Some(older) = shard.dram.peek_hash(hash).filter(|o| o.version < version) {
                coverage_mark!(OlderInMemory);
                let older = older.to_entry();
                shard.dram.remove(hash, older.ns, older.key());
            }
            let at = Location { segment: exact.segment, offset_units: e.offset / UNIT };
            core.publish(&mut shard, hash, Appended { at, len: e.len });
        }
    }
}
