//! Where checkpoints lie: in two areas of each *home*, and segments besides where the index has
//! grown.
//!
//! A home is a device with areas. A cache of several devices has two homes, and every checkpoint is
//! written to both: a device that is lost, or that cannot be written, costs no checkpoint.
//!
//! Areas are made for the index that a cache is created with. What a grown index needs beyond them
//! is taken from the free segments of the home's device, for both areas alike, *before* the index
//! may grow. So a checkpoint always has its place. The tables of every checkpoint name these
//! segments, and they are never given back: a checkpoint that is good must not be written over. One
//! that cannot be written gets another in its place.
//!
//! A write to an area whose device did not answer may still land there when nobody waits for it any
//! more ([`CheckpointAreas::late_write`]). Until it is over the area takes no other checkpoint: a
//! header that lands late would name blocks of another one.

use crate::device::DeviceId;
use crate::format::checkpoint::{BlockPlace, Header, segments_needed};
use crate::segment::SegmentTable;

/// Most homes.
pub const HOMES: usize = 2;

/// A home of checkpoints.
#[derive(Debug, Clone)]
pub struct Home {
    /// Its device.
    pub device: DeviceId,
    /// Which of the two homes it is: the tables name the segments of both by that.
    pub number: usize,
    /// Offsets of its areas.
    pub offsets: [u64; 2],
    /// Bytes of each.
    pub len: u64,
    /// Version at which its device joined: it has no checkpoint from before.
    pub epoch: u64,
}

/// One of the two areas of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AreaAt {
    /// The home, by its place in the list.
    pub home: usize,
    /// The area.
    pub which: u32,
}

/// A home with what is known of it while the cache is open.
#[derive(Debug, Clone)]
struct HomeInUse {
    home: Home,
    /// Segments of each area.
    segments: [Vec<u32>; 2],
    /// Writes to each area that nobody waits for any more.
    late: [u32; 2],
}

/// The areas of all homes.
#[derive(Debug, Clone)]
pub struct CheckpointAreas {
    homes: Vec<HomeInUse>,
    /// Most bytes of tables that are reckoned with.
    tables: u64,
}

impl CheckpointAreas {
    /// The areas of these homes, for tables of at most `tables` bytes.
    pub fn new(homes: Vec<Home>, tables: u64) -> Self {
        let in_use = |home| HomeInUse { home, segments: [Vec::new(), Vec::new()], late: [0; 2] };
        Self { homes: homes.into_iter().map(in_use).collect(), tables }
    }

    /// Recovery: the segments of a home that a checkpoint's tables name. Those that are none, or
    /// hold something else, are left out: the blocks in them are lost.
    pub fn restore(
        &mut self,
        table: &SegmentTable,
        number: usize,
        (sequence, segments): (u64, &[Vec<u32>; 2]),
        is_opened: impl Fn(u32) -> bool,
    ) {
        let Some(home) = self.homes.iter_mut().find(|home| home.home.number == number) else {
            return;
        };
        // They were those of another device of that number.
        if home.home.epoch > sequence {
            return;
        }
        for (mine, found) in home.segments.iter_mut().zip(segments) {
            let keeps = |segment: &u32| {
                let kept = table.contains(*segment)
                    && !is_opened(*segment)
                    && table.restore_for_checkpoint(*segment);
                if !kept {
                    tracing::warn!(segment, "a segment of a checkpoint is in use otherwise");
                }
                kept
            };
            *mine = found.iter().copied().take_while(keeps).collect();
        }
    }

    /// The homes, by their places in the list.
    pub fn homes(&self) -> std::ops::Range<usize> {
        0..self.homes.len()
    }

    /// A home's device.
    pub fn device(&self, home: usize) -> DeviceId {
        self.homes[home].home.device
    }

    /// Offset of an area on its home's device.
    pub fn offset(&self, at: AreaAt) -> u64 {
        self.homes[at.home].home.offsets[at.which as usize]
    }

    /// Bytes of each area of a home.
    pub fn bytes(&self, home: usize) -> u64 {
        self.homes[home].home.len
    }

    /// The segments of the home of this number.
    pub fn segments(&self, number: usize) -> [Vec<u32>; 2] {
        let home = self.homes.iter().find(|home| home.home.number == number);
        home.map(|home| home.segments.clone()).unwrap_or_default()
    }

    /// Segments of all homes.
    pub fn count(&self) -> usize {
        self.homes.iter().flat_map(|home| &home.segments).map(Vec::len).sum()
    }

    /// Whether parts of a home's checkpoints lie on a device.
    pub fn lies_on(&self, table: &SegmentTable, at: AreaAt, device: DeviceId) -> bool {
        let home = &self.homes[at.home];
        home.home.device == device
            || home.segments[at.which as usize].iter().any(|&s| table.place(s).device == device)
    }

    /// Whether a checkpoint fits an area, and nothing is on its way there.
    pub fn takes(&self, table: &SegmentTable, header: &Header, at: AreaAt) -> bool {
        !self.is_late(at) && self.fits(table, header, at)
    }

    /// Whether a checkpoint fits an area.
    pub fn fits(&self, table: &SegmentTable, header: &Header, at: AreaAt) -> bool {
        let home = &self.homes[at.home];
        header.fits(home.home.len, home.segments[at.which as usize].len(), table.segment_size())
    }

    /// Nobody waits any more for a write to an area, which may still land there.
    pub fn late_write(&mut self, at: AreaAt) {
        self.homes[at.home].late[at.which as usize] += 1;
    }

    /// Such a write is over.
    pub fn late_write_ended(&mut self, at: AreaAt) {
        self.homes[at.home].late[at.which as usize] -= 1;
    }

    /// Whether such a write is on its way.
    pub fn is_late(&self, at: AreaAt) -> bool {
        self.homes[at.home].late[at.which as usize] > 0
    }

    /// Which of the area's segments a block of a checkpoint lies in; `None` where it is in the area
    /// itself.
    pub fn segment_of(
        &self,
        table: &SegmentTable,
        header: &Header,
        at: AreaAt,
        (shard, block): (u32, u64),
    ) -> Option<usize> {
        match header.block_at(shard, block, self.bytes(at.home), table.segment_size()) {
            BlockPlace::Area(_) => None,
            BlockPlace::Segment(number, _) => Some(number),
        }
    }

    /// Puts a segment in the place of one of an area's; the one that was there.
    pub fn replace(&mut self, at: AreaAt, number: usize, segment: u32) -> u32 {
        let there = &mut self.homes[at.home].segments[at.which as usize][number];
        std::mem::replace(there, segment)
    }

    /// Where a block of a checkpoint lies; `None` where its segment is not known.
    pub fn block(
        &self,
        table: &SegmentTable,
        header: &Header,
        at: AreaAt,
        (shard, block): (u32, u64),
    ) -> Option<(DeviceId, u64)> {
        let home = &self.homes[at.home];
        match header.block_at(shard, block, home.home.len, table.segment_size()) {
            BlockPlace::Area(offset) => Some((home.home.device, self.offset(at) + offset)),
            BlockPlace::Segment(number, offset) => {
                let segment = *home.segments[at.which as usize].get(number)?;
                coverage_mark!(BlockInSegment);
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
    /// both areas of each home whose device `answers`. They are an eighth of all at most for each
    /// home, and `leave` stay free. Says whether there is place now in such a home.
    pub fn make_room(
        &mut self,
        table: &SegmentTable,
        size: (u32, u64),
        leave: u32,
        answers: impl Fn(DeviceId) -> bool,
        mut take: impl FnMut(DeviceId) -> Option<u32>,
    ) -> bool {
        let (tables, mut any) = (self.tables, false);
        for home in self.homes.iter_mut().filter(|home| answers(home.home.device)) {
            any |= home.make_room(table, size, tables, leave, &mut take);
        }
        any
    }
}

impl HomeInUse {
    fn make_room(
        &mut self,
        table: &SegmentTable,
        (shards, lines): (u32, u64),
        tables: u64,
        leave: u32,
        take: &mut impl FnMut(DeviceId) -> Option<u32>,
    ) -> bool {
        let size = table.segment_size();
        let Some(needed) = segments_needed(shards, lines, tables, self.home.len, size) else {
            return false;
        };
        let missing = |segments: &Vec<u32>| needed.saturating_sub(segments.len() as u64);
        let more = self.segments.iter().map(missing).sum::<u64>();
        if more == 0 {
            return true;
        }
        let device = self.home.device;
        let free = u64::from(table.free_count().saturating_sub(leave));
        let free = free.min(u64::from(table.free_count_on(device)));
        if needed * 2 > u64::from(table.len()) / 8 || more > free {
            return false;
        }
        for segments in &mut self.segments {
            while (segments.len() as u64) < needed {
                // Writers may have taken what was free.
                let Some(segment) = take(device) else { return false };
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
        let home = Home {
            device: DeviceId(0),
            number: 0,
            offsets: [4096, 1 << 20],
            len: area_len(2, 1023, 4096),
            epoch: 1,
        };
        CheckpointAreas::new(vec![home], 4096)
    }

    #[test]
    fn both_areas_get_what_a_grown_index_needs_and_no_more() {
        let (table, mut areas, mut generation) = (table(64), areas(), 0);
        let mut take = |device| {
            generation += 1;
            table.take_for_checkpoint(device, generation)
        };
        let all = |_| true;
        assert!(!areas.make_room(&table, (2, 1023), 0, |_| false, &mut take), "none answers");
        assert!(areas.make_room(&table, (2, 1023), 0, all, &mut take));
        assert_eq!(areas.segments(0).each_ref().map(Vec::len), [0, 0]);
        // Six blocks, of which two fit the area: two segments of two blocks each.
        assert!(areas.make_room(&table, (2, 3 * 1023), 0, all, &mut take));
        assert_eq!(areas.segments(0).each_ref().map(Vec::len), [2, 2]);
        assert!(areas.make_room(&table, (2, 3 * 1023), 0, all, &mut take), "there is place");
        assert_eq!(table.in_state(SegmentState::Checkpoint).count(), 4);
        assert!(
            !areas.make_room(&table, (2, 1023 * 10), 0, all, &mut take),
            "more than an eighth of all"
        );
        assert!(
            !areas.make_room(&table, (2, 1023 * 4), 59, all, &mut take),
            "those are to stay free"
        );
        assert_eq!(table.in_state(SegmentState::Checkpoint).count(), 4, "nothing half-done");
    }

    #[test]
    fn segments_that_a_checkpoint_names_wrongly_are_left_out() {
        let (table, mut areas) = (table(8), areas());
        let used = table.take_free().unwrap();
        table.open(used, 1, 0, RecordFormat::Compact);
        areas.restore(&table, 0, (9, &[vec![5, used, 6], vec![7, 99]]), |_| false);
        assert_eq!(areas.segments(0), [vec![5], vec![7]]);
        assert_eq!(table.state(6), SegmentState::Free);
    }
}
