//! The segment table: what each logical segment is used for and where it lies.
//!
//! ```text
//!            take_free                  start_sealing               written
//!   Free ───────────────▶ Open ───────────────────────▶ Sealing ───────────▶ Sealed
//!    ▲   new generation    │                               │                   │ start_reclaim
//!    │                     │ retire                        │ retire     retire │  ▼
//!    ├─────────────────────┴─────────── Retired ◀──────────┴───────────────────┘  Reclaiming
//!    │                       try_again                                          │
//!    └──────────────────────────────────────────────────────────────────────────┘
//!                                      set_free
//!
//!            take_for_checkpoint
//!   Free ────────────────────────▶ Checkpoint
//!           new generation               │ give_up_checkpoint
//!                                        ▼
//!                                     Retired
//! ```
//! The generation changes only on the edges from Free, before anything is written. From then on
//! records of the earlier use fail their checksum. A segment that could not be written is tried
//! again after a while. By then no write to it is in flight and no stream holds it. Slots that
//! still point into it then find another generation. There is no edge from Open to Sealed: until
//! the last chunk is written its records are read from memory. A segment that holds blocks of
//! checkpoints does so for as long as the cache is open, or until it cannot be written.
//!
//! Invariants, asserted where a state changes:
//! - A generation is above every earlier one of its segment.
//! - No write is in flight to a segment whose reclaim begins, or that is free or just opened. Such
//!   a write would land among the records of the next use.
//! - Every write that ends was counted when it started.

use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::free::FreeSegments;
use super::relief::Relief;
use super::used_for::SegmentState;
use crate::device::DeviceId;
use crate::format::checkpoint::SegmentEntry;
use crate::format::footer_entries::FooterEntry;
use crate::format::record::RecordFormat;

/// What is known of a segment at one moment, for people who look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFigures {
    /// What it is used for.
    pub state: SegmentState,
    /// Its device.
    pub device: DeviceId,
    /// Records in it; 0 where it is free.
    pub records: u32,
    /// Records that the index points at, about: fewer than there are while the index loads.
    pub live: u32,
    /// Bytes of its records.
    pub bytes: u32,
}

/// Where a logical segment lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentLocation {
    /// Its device.
    pub device: DeviceId,
    /// Its first byte there.
    pub offset: u64,
}

/// The place of a segment whose device is missing. Such a segment is retired for good.
pub const NO_PLACE: SegmentLocation = SegmentLocation { device: DeviceId(u16::MAX), offset: 0 };

#[derive(Debug)]
struct Segment {
    place: SegmentLocation,
    state: AtomicU8,
    generation: AtomicU64,
    min_version: AtomicU64,
    max_expiry: AtomicU32,
    records: AtomicU32,
    bytes: AtomicU32,
    /// How its records are written: a number of [`RecordFormat`].
    format: AtomicU8,
    /// Bytes of its footer, once it is sealed.
    footer: AtomicU32,
    /// Records an index slot points at, about.
    live: AtomicU32,
    /// Chunk and footer writes not finished.
    pending: AtomicU32,
    /// Journal position before it was opened: kills of its records are at or above it.
    journal_position: AtomicU64,
}

/// All segments of a cache.
#[derive(Debug)]
pub struct SegmentTable {
    segments: Box<[Segment]>,
    pub(super) free: FreeSegments,
    pub(super) relief: Relief,
    opened: AtomicU64,
    appended: AtomicU64,
    size: u32,
}

impl SegmentTable {
    /// A table of free segments of `size` bytes at `places`.
    pub fn new(places: Vec<SegmentLocation>, size: u32) -> Self {
        let segment = |place| Segment {
            place,
            state: AtomicU8::new(match place {
                NO_PLACE => SegmentState::Retired,
                _ => SegmentState::Free,
            } as u8),
            generation: AtomicU64::new(0),
            min_version: AtomicU64::new(0),
            max_expiry: AtomicU32::new(0),
            records: AtomicU32::new(0),
            bytes: AtomicU32::new(0),
            format: AtomicU8::new(RecordFormat::default() as u8),
            footer: AtomicU32::new(0),
            live: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            journal_position: AtomicU64::new(0),
        };
        let devices =
            places.iter().filter(|p| **p != NO_PLACE).map(|p| usize::from(p.device.0) + 1);
        let devices = devices.max().unwrap_or(1);
        let mut segments = vec![0; devices];
        let there = places.iter().filter(|p| **p != NO_PLACE);
        there.for_each(|p| segments[usize::from(p.device.0)] += 1);
        let relief = Relief::new(segments.len());
        let free = FreeSegments::new(segments);
        Self {
            segments: places.into_iter().map(segment).collect(),
            free,
            relief,
            opened: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            size,
        }
    }

    /// Bytes per segment.
    pub fn segment_size(&self) -> u32 {
        self.size
    }

    /// Bytes of memory it takes, the queue of free segments at its fullest included.
    pub fn bytes(&self) -> usize {
        self.segments.len() * (size_of::<Segment>() + size_of::<u32>())
    }

    /// Number of segments.
    pub fn len(&self) -> u32 {
        self.segments.len() as u32
    }

    fn at(&self, segment: u32) -> &Segment {
        &self.segments[segment as usize]
    }

    /// Whether there is such a segment.
    pub fn contains(&self, segment: u32) -> bool {
        segment < self.len()
    }

    /// Where it lies.
    pub fn place(&self, segment: u32) -> SegmentLocation {
        self.at(segment).place
    }

    /// Whether its device is missing.
    pub fn is_missing(&self, segment: u32) -> bool {
        self.place(segment) == NO_PLACE
    }

    /// What it is used for.
    pub fn state(&self, segment: u32) -> SegmentState {
        SegmentState::from_u8(self.at(segment).state.load(Ordering::Acquire))
    }

    /// Its generation, 0 before its first use.
    pub fn generation(&self, segment: u32) -> u64 {
        self.at(segment).generation.load(Ordering::Acquire)
    }

    /// How its records are written. Whoever reads a record of some generation asks for that first:
    /// if the segment is used again in between, the record's checksum does not hold either way.
    pub fn format(&self, segment: u32) -> RecordFormat {
        let number = self.at(segment).format.load(Ordering::Acquire);
        RecordFormat::from_number(number).expect("stored as one")
    }

    /// Bytes of its footer, at most those of the segment; 0 before it is sealed.
    pub fn footer(&self, segment: u32) -> u32 {
        self.at(segment).footer.load(Ordering::Acquire).min(self.size)
    }

    /// Its footer has so many bytes.
    pub fn set_footer(&self, segment: u32, len: u32) {
        self.at(segment).footer.store(len, Ordering::Release);
    }

    fn set(&self, segment: u32, state: SegmentState) {
        self.at(segment).state.store(state as u8, Ordering::Release);
    }

    /// Takes an edge if the segment is where it starts. Streams and the driver do this at the same
    /// time.
    fn try_step(&self, segment: u32, from: &[SegmentState], to: SegmentState) -> bool {
        let edge = |now| from.contains(&SegmentState::from_u8(now)).then_some(to as u8);
        self.at(segment).state.fetch_update(Ordering::AcqRel, Ordering::Acquire, edge).is_ok()
    }

    /// Takes an edge nobody else can get in the way of.
    fn step(&self, segment: u32, from: SegmentState, to: SegmentState) {
        let taken = self.try_step(segment, &[from], to);
        assert!(taken, "segment {segment} cannot go from {:?} to {to:?}", self.state(segment));
    }

    /// Takes a free segment, not yet open: [`SegmentTable::open`] follows under the same lock of
    /// its stream.
    pub fn take_free(&self) -> Option<u32> {
        self.free.take()
    }

    /// Takes a free segment of a device for blocks of checkpoints: Free to Checkpoint, with a new
    /// generation.
    pub fn take_for_checkpoint(&self, device: DeviceId, generation: u64) -> Option<u32> {
        let segment = self.free.take_on(device)?;
        let s = self.at(segment);
        let before = s.generation.load(Ordering::Acquire);
        assert!(generation > before, "segment {segment}: generation {generation} after {before}");
        self.assert_no_write(segment);
        s.generation.store(generation, Ordering::Release);
        self.step(segment, SegmentState::Free, SegmentState::Checkpoint);
        Some(segment)
    }

    /// Checkpoint to Retired: it could not be written, and another takes its place.
    pub fn give_up_checkpoint(&self, segment: u32) {
        let s = self.at(segment);
        for counter in [&s.records, &s.bytes, &s.live] {
            counter.store(0, Ordering::Relaxed);
        }
        self.step(segment, SegmentState::Checkpoint, SegmentState::Retired);
    }

    /// Recovery: a segment holds blocks of checkpoints. False when it is in use otherwise.
    pub fn restore_for_checkpoint(&self, segment: u32) -> bool {
        self.try_step(segment, &[SegmentState::Free], SegmentState::Checkpoint)
    }

    /// Free to Open, with a new generation.
    pub fn open(&self, segment: u32, generation: u64, journal_position: u64, format: RecordFormat) {
        let s = self.at(segment);
        let before = s.generation.load(Ordering::Acquire);
        assert!(generation > before, "segment {segment}: generation {generation} after {before}");
        self.assert_no_write(segment);
        self.opened.fetch_add(1, Ordering::Relaxed);
        s.journal_position.store(journal_position, Ordering::Release);
        s.format.store(format as u8, Ordering::Release);
        s.generation.store(generation, Ordering::Release);
        s.min_version.store(u64::MAX, Ordering::Relaxed);
        for counter in [&s.max_expiry, &s.records, &s.bytes, &s.live, &s.pending, &s.footer] {
            counter.store(0, Ordering::Relaxed);
        }
        self.step(segment, SegmentState::Free, SegmentState::Open);
    }

    /// Open to Sealing. False when it was retired meanwhile.
    pub fn start_sealing(&self, segment: u32) -> bool {
        self.try_step(segment, &[SegmentState::Open], SegmentState::Sealing)
    }

    /// Counts a write on its way.
    pub fn write_started(&self, segment: u32) {
        let unused = [SegmentState::Free, SegmentState::Reclaiming, SegmentState::Checkpoint];
        debug_assert!(!unused.contains(&self.state(segment)), "segment {segment} takes no records");
        self.at(segment).pending.fetch_add(1, Ordering::AcqRel);
    }

    /// The next use of a segment begins when the last write of this one is over.
    fn assert_no_write(&self, segment: u32) {
        let pending = self.pending(segment);
        assert!(
            pending == 0,
            "segment {segment}: {pending} writes of its last use are on their way"
        );
    }

    /// Counts a write that succeeded; Sealing to Sealed with the last one.
    pub fn write_done(&self, segment: u32) {
        let before = self.at(segment).pending.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "segment {segment}: a write ends that never started");
        if before == 1 {
            self.try_step(segment, &[SegmentState::Sealing], SegmentState::Sealed);
        }
    }

    /// A write failed. True the first time.
    pub fn retire(&self, segment: u32) -> bool {
        let written = [SegmentState::Open, SegmentState::Sealing, SegmentState::Sealed];
        self.try_step(segment, &written, SegmentState::Retired)
    }

    /// Sealed to Reclaiming.
    pub fn start_reclaim(&self, segment: u32) {
        self.assert_no_write(segment);
        self.step(segment, SegmentState::Sealed, SegmentState::Reclaiming);
    }

    /// Reclaiming to Sealed: its device does not answer. What was not looked at yet is as it was.
    pub fn stop_reclaim(&self, segment: u32) {
        self.step(segment, SegmentState::Reclaiming, SegmentState::Sealed);
    }

    /// Reclaiming to Free.
    pub fn set_free(&self, segment: u32) {
        self.assert_no_write(segment);
        self.step(segment, SegmentState::Reclaiming, SegmentState::Free);
        self.push_free(segment);
    }

    /// Retired to Free. False when it is not retired, or writes to it are on their way.
    pub fn try_again(&self, segment: u32) -> bool {
        let again = !self.is_pending(segment)
            && self.try_step(segment, &[SegmentState::Retired], SegmentState::Free);
        if again {
            self.push_free(segment);
        }
        again
    }

    /// A record was appended.
    pub fn record_added(&self, segment: u32, version: u64, expiry: u32, bytes: u32) {
        let s = self.at(segment);
        s.min_version.fetch_min(version, Ordering::Relaxed);
        s.max_expiry.fetch_max(if expiry == 0 { u32::MAX } else { expiry }, Ordering::Relaxed);
        s.records.fetch_add(1, Ordering::Relaxed);
        s.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.appended.fetch_add(1, Ordering::Relaxed);
    }

    /// Records appended since the cache was opened.
    pub fn appended(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }

    /// An index slot points at a record of it.
    pub fn slot_added(&self, segment: u32) {
        if let Some(s) = self.segments.get(segment as usize) {
            s.live.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An index slot does not point at a record of it any more.
    pub fn slot_removed(&self, segment: u32) {
        if let Some(s) = self.segments.get(segment as usize) {
            // Counts are estimates while an index loads: never below zero.
            let _ = s.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        }
    }

    /// Segments opened since the cache was.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// The lowest journal position that kills of records may have in segments not yet sealed: a
    /// checkpoint calls these open.
    pub fn oldest_open_position(&self) -> Option<u64> {
        let open = self.in_state(SegmentState::Open).chain(self.in_state(SegmentState::Sealing));
        open.map(|s| self.journal_position(s)).min()
    }

    /// Journal position before it was opened.
    pub fn journal_position(&self, segment: u32) -> u64 {
        self.at(segment).journal_position.load(Ordering::Acquire)
    }

    /// Records of it in the index, about.
    pub fn live(&self, segment: u32) -> u32 {
        self.at(segment).live.load(Ordering::Relaxed)
    }

    /// All segments in their order, each by itself: the states of two are of two moments.
    pub fn figures(&self) -> Vec<SegmentFigures> {
        let figures = |id: u32| {
            let (segment, state) = (self.at(id), self.state(id));
            let holds = |counter: &AtomicU32| match state {
                SegmentState::Free | SegmentState::Checkpoint => 0,
                _ => counter.load(Ordering::Relaxed),
            };
            let records = holds(&segment.records);
            SegmentFigures {
                state,
                device: if segment.place == NO_PLACE { DeviceId(0) } else { segment.place.device },
                records,
                live: holds(&segment.live).min(records),
                bytes: holds(&segment.bytes),
            }
        };
        (0..self.len()).map(figures).collect()
    }

    /// Latest expiry of its records; `u32::MAX` when one never expires.
    pub fn max_expiry(&self, segment: u32) -> u32 {
        self.at(segment).max_expiry.load(Ordering::Relaxed)
    }

    /// Number of free segments that may be taken: those of devices that rest do not count, unless
    /// all rest.
    pub fn free_count(&self) -> u32 {
        self.free.count()
    }

    /// Number of free segments of a device.
    pub fn free_count_on(&self, device: DeviceId) -> u32 {
        self.free.count_on(device)
    }

    fn push_free(&self, segment: u32) {
        self.free.push(self.place(segment).device, segment);
    }

    /// Number of devices that segments lie on.
    pub fn devices(&self) -> usize {
        self.free.devices()
    }

    /// A device takes new segments, or rests: writes to it have failed a moment ago, or it does
    /// not answer.
    pub fn set_resting(&self, device: DeviceId, resting: bool) {
        self.free.set_resting(device, resting);
    }

    /// Whether segments lie on a device.
    pub fn has_segments_on(&self, device: DeviceId) -> bool {
        usize::from(device.0) < self.devices() && self.free.has_segments(device)
    }

    /// Whether no device takes new segments.
    pub fn all_rest(&self) -> bool {
        self.free.all_rest()
    }

    /// Whether a segment's device takes new segments, or none does.
    pub fn is_usable(&self, segment: u32) -> bool {
        self.free.is_usable(self.place(segment).device)
    }

    /// A device does not answer, or does again.
    pub fn set_silent(&self, device: DeviceId, silent: bool) {
        self.free.set_silent(device, silent);
    }

    /// Whether a segment's device does not answer. What lies there is a miss.
    pub fn is_silent(&self, segment: u32) -> bool {
        self.free.is_silent(self.place(segment).device)
    }

    /// A lookup is sent to the device of a segment.
    pub fn look_up(&self, segment: u32) {
        self.free.look_up(self.place(segment).device);
    }

    /// Whether a lookup was sent to a device since this was last asked.
    pub fn take_looked_up(&self, device: DeviceId) -> bool {
        self.free.take_looked_up(device)
    }

    /// The I/Os that a device had in flight on an average of the last minute, in thousandths.
    pub fn set_load(&self, device: DeviceId, load: u32) {
        self.free.set_load(device, load);
    }

    /// Segments in use by a state.
    pub fn in_state(&self, state: SegmentState) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter(move |&s| self.state(s) == state)
    }

    /// The lowest generation of the segments that may hold records. Those of missing devices hold
    /// none.
    pub fn lowest_generation(&self) -> u64 {
        let used = (0..self.len()).filter(|&s| !self.is_missing(s) && self.may_hold_records(s));
        used.map(|s| self.generation(s)).min().unwrap_or(u64::MAX)
    }

    fn may_hold_records(&self, segment: u32) -> bool {
        !matches!(self.state(segment), SegmentState::Free | SegmentState::Checkpoint)
    }

    /// Whether the use of a segment that was seen before goes on.
    pub fn is_still(&self, segment: u32, generation: u64) -> bool {
        // The state first: a later use has another generation.
        self.contains(segment)
            && self.may_hold_records(segment)
            && self.generation(segment) == generation
    }

    /// The table for a checkpoint. What is being sealed counts as open: its footer is not yet known
    /// to be there. A segment that is being reclaimed counts as sealed. Until it is opened again
    /// its records are good, and its slots may be the only ones that a crash leaves.
    pub fn entries(&self) -> Vec<SegmentEntry> {
        let entry = |id: u32| {
            let s = self.at(id);
            let state = match self.state(id) {
                // The tables name those of checkpoints apart.
                SegmentState::Free | SegmentState::Checkpoint => 0,
                SegmentState::Open | SegmentState::Sealing => 1,
                SegmentState::Sealed | SegmentState::Reclaiming => 2,
                SegmentState::Retired => 3,
            };
            SegmentEntry {
                generation: s.generation.load(Ordering::Acquire),
                min_version: s.min_version.load(Ordering::Relaxed),
                max_expiry: s.max_expiry.load(Ordering::Relaxed),
                records: s.records.load(Ordering::Relaxed),
                bytes: s.bytes.load(Ordering::Relaxed),
                state,
                format: self.format(id),
                footer: self.footer(id),
            }
        };
        (0..self.len()).map(entry).collect()
    }

    /// Recovery: a segment holds sealed records.
    pub fn restore(&self, segment: u32, entry: &SegmentEntry) {
        let s = self.at(segment);
        s.generation.store(entry.generation, Ordering::Release);
        s.min_version.store(entry.min_version, Ordering::Relaxed);
        s.max_expiry.store(entry.max_expiry, Ordering::Relaxed);
        s.records.store(entry.records, Ordering::Relaxed);
        s.bytes.store(entry.bytes, Ordering::Relaxed);
        s.live.store(0, Ordering::Relaxed);
        s.format.store(entry.format as u8, Ordering::Release);
        s.footer.store(entry.footer, Ordering::Release);
        self.set(segment, SegmentState::Sealed);
    }

    /// Recovery: its records are still to be read. Neither free nor reclaimed until
    /// [`SegmentTable::restore_exact`].
    pub fn set_unread(&self, segment: u32, generation: u64) {
        self.at(segment).generation.store(generation, Ordering::Release);
        self.set(segment, SegmentState::Sealing);
    }

    /// Recovery: a segment holds just these records; with none it is free. Its footer has `footer`
    /// bytes.
    pub fn restore_exact(
        &self,
        segment: u32,
        generation: u64,
        (format, footer): (RecordFormat, u32),
        records: &[FooterEntry],
    ) {
        let expiry = |e: &FooterEntry| if e.meta.expiry == 0 { u32::MAX } else { e.meta.expiry };
        let entry = SegmentEntry {
            generation,
            min_version: records.iter().map(|e| e.meta.version).min().unwrap_or(u64::MAX),
            max_expiry: records.iter().map(expiry).max().unwrap_or(0),
            records: records.len() as u32,
            bytes: records.iter().map(|e| format.padded(e.len)).sum(),
            state: 2,
            format,
            footer,
        };
        self.restore(segment, &entry);
        if records.is_empty() {
            self.set(segment, SegmentState::Free);
            self.push_free(segment);
        }
    }

    /// Writes to it that are on their way.
    pub fn pending(&self, segment: u32) -> u32 {
        self.at(segment).pending.load(Ordering::Acquire)
    }

    /// Whether writes to it are on their way.
    pub fn is_pending(&self, segment: u32) -> bool {
        self.pending(segment) > 0
    }

    /// Whether recovery has found a segment without a footer that is not written yet. A checkpoint
    /// must not call it sealed.
    pub fn is_footer_pending(&self) -> bool {
        self.in_state(SegmentState::Sealed).any(|s| self.is_pending(s))
    }

    /// Recovery is over: everything not restored is free.
    pub fn finish_restore(&self) {
        let free = self.in_state(SegmentState::Free);
        self.free.set(free.map(|segment| (self.place(segment).device, segment)));
    }
}
