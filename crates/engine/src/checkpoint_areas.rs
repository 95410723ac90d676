//! Where checkpoints lie: two areas of the first device, and segments besides where the index has
//! grown.
//!
//! Areas are made for the index that a cache is created with. What a grown index needs beyond them
//! is taken from the free segments, for both areas alike, *before* the index may grow. So a
//! checkpoint always has its place. The tables of every checkpoint name these segments, and they
//! are never given back: a checkpoint that is good must not be written over.

use crate::device::DeviceId;
use crate::format::checkpoint::{BlockPlace, Header, segments_needed};
use crate::segment::SegmentTable;

/// Both areas.
#[derive(Debug, Clone)]
pub struct CheckpointAreas {
    /// Offsets on the first device.
    offsets: [u64; 2],
    /// Bytes of each.
    len: u64,
    /// Most bytes of tables that are reckoned with.
    tables: u64,
    /// Segments of each.
    segments: [Vec<u32>; 2],
}

impl CheckpointAreas {
    /// The areas at both offsets, of so many bytes, for tables of at most `tables` bytes.
    pub fn new([first, second, len]: [u64; 3], tables: u64) -> Self {
        Self { offsets: [first, second], len, tables, segments: [Vec::new(), Vec::new()] }
    }

    /// Recovery: the segments that a checkpoint's tables name. Those that are none, or hold
    /// something else, are left out: the blocks in them are lost.
    pub fn restore(&mut self, table: &SegmentTable, segments: &[Vec<u32>; 2]) {
        for (mine, found) in self.segments.iter_mut().zip(segments) {
            let keeps = |segment: &u32| {
                let kept = table.contains(*segment) && table.restore_for_checkpoint(*segment);
                if !kept {
                    tracing::warn!(segment, "a segment of a checkpoint is in use otherwise");
                }
                kept
            };
            *mine = found.iter().copied().take_while(keeps).collect();
        }
    }

    /// Offset of an area.
    pub fn offset(&self, which: u32) -> u64 {
        self.offsets[which as usize]
    }

    /// Bytes of each area.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// The segments of both.
    pub fn segments(&self) -> &[Vec<u32>; 2] {
        &self.segments
    }

    /// Whether a checkpoint fits an area.
    pub fn fits(&self, table: &SegmentTable, header: &Header, which: u32) -> bool {
        header.fits(self.len, self.segments[which as usize].len(), table.segment_size())
    }

    /// Where a block of a checkpoint lies; `None` where its segment is not known.
    pub fn block(
        &self,
        table: &SegmentTable,
        header: &Header,
        which: u32,
        (shard, block): (u32, u64),
    ) -> Option<(DeviceId, u64)> {
        match header.block_at(shard, block, self.len, table.segment_size()) {
            BlockPlace::Area(offset) => Some((DeviceId(0), self.offset(which) + offset)),
            BlockPlace::Segment(number, offset) => {
                let segment = *self.segments[which as usize].get(number)?;
                let place = table.place(segment);
                Some((place.device, place.offset + offset))
            }
        }
    }

    /// Reckons with tables of so many bytes from now on, if they are more than before.
    pub fn reckon_with(&mut self, tables: u64) {
        self.tables = self.tables.max(tables);
    }

    /// Has `take` take segments until checkpoints of shards of `lines` lines have their place in
    /// both areas. They are an eighth of all at most, and `leave` stay free. Says whether there is
    /// place now.
    pub fn make_room(
        &mut self,
        table: &SegmentTable,
        (shards, lines): (u32, u64),
        leave: u32,
        mut take: impl FnMut(&SegmentTable) -> Option<u32>,
    ) -> bool {
        let size = table.segment_size();
        let Some(needed) = segments_needed(shards, lines, self.tables, self.len, size) else {
            return false;
        };
        let missing = |segments: &Vec<u32>| needed.saturating_sub(segments.len() as u64);
        let more = self.segments.iter().map(missing).sum::<u64>();
        if more == 0 {
            return true;
        }
        let free = u64::from(table.free_count().saturating_sub(leave));
        if needed * 2 > u64::from(table.len()) / 8 || more > free {
            return false;
        }
        for segments in &mut self.segments {
            while (segments.len() as u64) < needed {
                // Writers may have taken what was free.
                let Some(segment) = take(table) else { return false };
                segments.push(segment);
            }
        }
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::format::checkpoint::area_len;
    use crate::format::record::RecordFormat;
    use crate::segment::{SegmentLocation, SegmentState};

    const SEGMENT: u32 = 128 << 10;

    fn table(segments: u64) -> SegmentTable {
        let place = |n: u64| SegmentLocation { device: DeviceId(0), offset: n * 131_072 };
        let table = SegmentTable::new((0..segments).map(place).collect(), SEGMENT);
        table.finish_restore();
        table
    }

    fn areas() -> CheckpointAreas {
        CheckpointAreas::new([4096, 1 << 20, area_len(2, 1023, 4096)], 4096)
    }

    #[test]
    fn both_areas_get_what_a_grown_index_needs_and_no_more() {
        let (table, mut areas, mut generation) = (table(64), areas(), 0);
        let mut take = |table: &SegmentTable| {
            generation += 1;
            table.take_for_checkpoint(generation)
        };
        assert!(areas.make_room(&table, (2, 1023), 0, &mut take));
        assert_eq!(areas.segments().each_ref().map(Vec::len), [0, 0]);
        // Six blocks, of which two fit the area: two segments of two blocks each.
        assert!(areas.make_room(&table, (2, 3 * 1023), 0, &mut take));
        assert_eq!(areas.segments().each_ref().map(Vec::len), [2, 2]);
        assert!(areas.make_room(&table, (2, 3 * 1023), 0, &mut take), "there is place already");
        assert_eq!(table.in_state(SegmentState::Checkpoint).count(), 4);
        assert!(
            !areas.make_room(&table, (2, 1023 * 10), 0, &mut take),
            "more than an eighth of all"
        );
        assert!(!areas.make_room(&table, (2, 1023 * 4), 59, &mut take), "those are to stay free");
        assert_eq!(table.in_state(SegmentState::Checkpoint).count(), 4, "nothing half-done");
    }

    #[test]
    fn segments_that_a_checkpoint_names_wrongly_are_left_out() {
        let (table, mut areas) = (table(8), areas());
        let used = table.take_free().unwrap();
        table.open(used, 1, 0, RecordFormat::Compact);
        areas.restore(&table, &[vec![5, used, 6], vec![7, 99]]);
        assert_eq!(areas.segments(), &[vec![5], vec![7]]);
        assert_eq!(table.state(6), SegmentState::Free);
    }
}
