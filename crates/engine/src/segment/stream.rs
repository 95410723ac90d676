//! Open segments: where records are appended, in memory first.
//!
//! Each stream has one open segment, each open segment one open *chunk*. A chunk that is full (or
//! has waited long enough) is closed and queued for the device. It stays readable until it is
//! written. Chunks start and end at multiples of 4096, so a closed chunk never changes and its
//! write touches no other chunk's bytes.
//!
//! Lock order: a shard's mutex, then a stream's, then `closed`, then `queue`.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crate::sync::Mutex;

use super::append::{AppendError, Appended, Object};
use super::open_segment::OpenSegment;
use super::state::SegmentTable;
use super::used_for::SegmentState;
use super::write_job::{FOOTER, WriteJob};
use crate::device::AlignedBuf;
use crate::format::footer::{self, SegmentId};
use crate::format::footer_entries::{EntryList, EntryPosition, FooterEntry};
use crate::format::journal::Event;
use crate::format::record::{self, RecordContext, RecordFormat};
use crate::format::{BLOCK, round_up};
use crate::index::{Location, UNIT};
use crate::journal::Journal;
use crate::stats::EngineCounters;
use crate::version::Versions;

/// What kind of objects an open segment collects: objects that die at about the same time belong
/// together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamId {
    /// Objects written for the first time.
    New = 0,
    /// Objects that were read since they were written: kept at reclaim, or moved to another device.
    Reinserted = 1,
    /// Objects that expire soon.
    ShortTtl = 2,
}

/// Number of streams.
pub const STREAMS: usize = 3;

/// Chunks that wait for the device while the background work copies more: enough to keep it busy,
/// and their memory is soon used again. Never more than a third of the queue.
const AHEAD: u32 = 8;
/// Written chunks whose memory is kept for the next: fresh memory costs a page fault for every few
/// records.
const SPARE: usize = AHEAD as usize;

/// What the streams share.
pub struct Streams {
    pub(super) open: [Mutex<Option<OpenSegment>>; STREAMS],
    /// Closed chunks not yet written.
    pub(super) closed: Mutex<Vec<WriteJob>>,
    /// Memory of written chunks, for the next ones: arbitrary bytes.
    spare: Mutex<Vec<AlignedBuf>>,
    /// Jobs not yet handed to the device.
    queue: Mutex<VecDeque<WriteJob>>,
    /// Closed chunks, handed out or not. One that is longer, for a large record, counts as so many.
    outstanding: AtomicU32,
    /// Footers not yet written. They have memory of their own and take no chunk's place in the
    /// queue. Otherwise the end of a segment would cost an object when the queue is nearly full.
    footers: AtomicU32,
    /// Chunks closed so far.
    numbered: AtomicU64,
    max_outstanding: u32,
    chunk_size: u32,
    /// Operations whose record will not be written.
    lost: Mutex<Vec<u64>>,
    /// Who hands jobs to the device.
    worker: OnceLock<Thread>,
    pub(super) table: Arc<SegmentTable>,
    versions: Arc<Versions>,
    journal: Arc<Journal>,
    totals: Arc<EngineCounters>,
    uuid: [u8; 16],
    hash_seed: u64,
    /// How records are written.
    format: RecordFormat,
}

/// What the streams need to know of the cache.
pub struct StreamsConfig {
    /// The cache.
    pub uuid: [u8; 16],
    /// Key of all hashes.
    pub hash_seed: u64,
    /// How records are written.
    pub format: RecordFormat,
    /// Closed chunks that may wait for the device.
    pub max_outstanding: u32,
}

impl Streams {
    /// No open segments.
    pub fn new(
        config: &StreamsConfig,
        table: Arc<SegmentTable>,
        versions: Arc<Versions>,
        journal: Arc<Journal>,
        totals: Arc<EngineCounters>,
    ) -> Self {
        Self {
            open: Default::default(),
            closed: Mutex::default(),
            spare: Mutex::default(),
            queue: Mutex::default(),
            outstanding: AtomicU32::new(0),
            footers: AtomicU32::new(0),
            numbered: AtomicU64::new(0),
            max_outstanding: config.max_outstanding,
            chunk_size: (table.segment_size() / 4).min(1 << 20),
            lost: Mutex::default(),
            worker: OnceLock::new(),
            table,
            versions,
            journal,
            totals,
            uuid: config.uuid,
            hash_seed: config.hash_seed,
            format: config.format,
        }
    }

    /// Appends a record; it is readable from memory at once, through [`Streams::read`]. The caller
    /// holds the shard's lock and publishes the location before it lets go. With `awaited`, an
    /// operation waits for it to be written.
    pub fn append(
        &self,
        stream: StreamId,
        object: &Object<'_>,
        now_ms: u64,
        awaited: Option<u64>,
    ) -> Result<Appended, AppendError> {
        let most = record::most_padded(object.key.len(), object.value.len());
        let mut opened = self.open[stream as usize].lock();
        self.make_room(stream, &mut opened, most)?;
        let open = opened.as_mut().expect("make_room has opened a segment");
        if open.fill == 0 || open.entries.is_empty() {
            open.since = now_ms;
        }
        let at = open.chunk_start + open.fill;
        let context = RecordContext::new(self.hash_seed, open.generation, at, self.format);
        let (meta, out) = (object.meta, &mut open.chunk[open.fill as usize..]);
        let len = record::encode(out, &context, &meta, object.key, object.value) as u32;
        let padded = self.format.padded(len);
        // The memory may have held other records before.
        open.chunk[open.fill as usize..][len as usize..padded as usize].fill(0);
        open.fill += padded;
        open.awaited.extend(awaited);
        open.entries.push(&FooterEntry { hash: object.hash, meta, offset: at, len });
        self.table.record_added(open.id, meta.version, meta.expiry, padded);
        self.totals.record_bytes.add(u64::from(padded));
        let is_long = open.chunk.len() > self.chunk_size as usize;
        if stream == StreamId::Reinserted {
            self.totals.reinserted_bytes.add(u64::from(padded));
        }
        let at = Location { segment: open.id, offset_units: at / UNIT };
        if is_long {
            // Nothing more fits. Open chunks have the memory of usual ones.
            self.close_or_seal(&mut opened);
        }
        Ok(Appended { at, len })
    }

    /// Makes the stream's open chunk take `padded` more bytes: closes the chunk, seals the segment
    /// and opens another one as far as that is needed.
    fn make_room(
        &self,
        stream: StreamId,
        open: &mut Option<OpenSegment>,
        padded: u32,
    ) -> Result<(), AppendError> {
        if let Some(o) = open
            && self.table.state(o.id) == SegmentState::Retired
        {
            self.lose(open);
        }
        if let Some(o) = open {
            let limit = self.table.segment_size() - footer::next_footer_len(&o.entries);
            // A new chunk would start at the next block.
            let in_chunk = o.fill + padded <= o.chunk.len() as u32;
            let end = if in_chunk {
                o.chunk_start + o.fill + padded
            } else {
                o.chunk_start + round_up(o.fill.into(), BLOCK.into()) as u32 + padded
            };
            if round_up(end.into(), BLOCK.into()) as u32 > limit {
                self.seal(open);
            } else if !in_chunk {
                self.check_queue()?;
                self.close_chunk(o, padded);
            }
        }
        if open.is_none() {
            if self.table.all_rest() {
                return Err(AppendError::Failing);
            }
            self.check_queue()?;
            *open = Some(self.open_segment(stream, padded)?);
        }
        Ok(())
    }

    /// Bytes of a chunk, unless a record is longer.
    pub fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// Whether half of the chunks that may wait for the device do. The other half is for puts that
    /// have passed this check. Each may evict several objects from DRAM, of which the largest takes
    /// a chunk of its own. Puts of other threads do the same.
    pub fn is_nearly_full(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed) >= self.max_outstanding / 2
    }

    /// Whether flash can take whatever leaves DRAM now. Few chunks wait, no write has failed
    /// lately, and each stream of objects from DRAM can open a segment.
    pub fn have_room(&self) -> bool {
        const FROM_DRAM: u32 = STREAMS as u32 - 1;
        !self.is_nearly_full() && !self.table.all_rest() && self.table.free_count() >= FROM_DRAM
    }

    /// Whether as many chunks wait for the device as the background work may copy ahead. That is
    /// fewer than make puts wait, which would otherwise never find room; and what leaves DRAM
    /// meanwhile is lost where it finds none.
    pub fn is_ahead(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed) >= AHEAD.min(self.max_outstanding / 3)
    }

    fn check_queue(&self) -> Result<(), AppendError> {
        let full = self.outstanding.load(Ordering::Relaxed) >= self.max_outstanding;
        if full {
            coverage_mark!(QueueFull);
        }
        if full { Err(AppendError::QueueFull) } else { Ok(()) }
    }

    fn chunk_for(&self, start: u32, padded: u32) -> AlignedBuf {
        let room = self.table.segment_size() - start;
        let wanted = self.chunk_size.max(round_up(padded.into(), BLOCK.into()) as u32);
        let len = wanted.min(room) as usize;
        let spare = if wanted == self.chunk_size { self.spare.lock().pop() } else { None };
        let Some(mut chunk) = spare else { return AlignedBuf::zeroed(len) };
        chunk.set_len(len);
        chunk
    }

    fn open_segment(&self, stream: StreamId, padded: u32) -> Result<OpenSegment, AppendError> {
        let id = match stream {
            StreamId::Reinserted => self.table.take_free_for_read_most(),
            StreamId::New | StreamId::ShortTtl => self.table.take_free(),
        };
        let id = id.ok_or(AppendError::NoFreeSegment)?;
        let journal_position = self.journal.head();
        let generation = self.versions.take();
        // Recovery looks for the records of a segment without footer only if it knows that it was
        // opened.
        self.journal.append(Event::Open { segment: id }, generation);
        self.table.open(id, generation, journal_position, self.format);
        let place = self.table.place(id);
        tracing::debug!(device = place.device.0, offset = place.offset, "segment opened");
        let mut chunk = self.chunk_for(0, footer::HEADER + padded);
        let name = self.name(id, generation, self.format);
        footer::encode_header(&mut chunk, &name);
        self.totals.metadata_bytes.add(footer::HEADER.into());
        Ok(OpenSegment {
            id,
            generation,
            format: self.format,
            entries: EntryList::new(generation, self.format),
            chunk,
            chunk_start: 0,
            fill: footer::HEADER,
            since: 0,
            awaited: Vec::new(),
        })
    }

    /// Queues the open chunk and starts another one behind it.
    fn close_chunk(&self, open: &mut OpenSegment, padded: u32) {
        let len = round_up(open.fill.into(), BLOCK.into()) as u32;
        let next = self.chunk_for(open.chunk_start + len, padded);
        let mut chunk = std::mem::replace(&mut open.chunk, next);
        if len == 0 {
            return; // Nothing in it yet; it was only too small.
        }
        chunk[open.fill as usize..len as usize].fill(0);
        chunk.set_len(len as usize);
        open.assert_chunk(&chunk, self.table.segment_size(), self.hash_seed);
        self.totals.padding_bytes.add(u64::from(len - open.fill));
        let awaited = std::mem::take(&mut open.awaited);
        let (segment, start, data) = (open.id, open.chunk_start, Arc::new(chunk));
        let number = self.numbered.fetch_add(1, Ordering::SeqCst);
        self.enqueue(WriteJob { segment, start, data, awaited, since: open.since, number });
        open.chunk_start += len;
        open.fill = 0;
    }

    fn enqueue(&self, job: WriteJob) {
        self.table.write_started(job.segment);
        self.outstanding.fetch_add(job.weight(self.chunk_size), Ordering::Relaxed);
        let closed = WriteJob { awaited: Vec::new(), ..job.clone() };
        self.closed.lock().push(closed);
        self.push_job(job);
    }

    fn push_job(&self, job: WriteJob) {
        self.queue.lock().push_back(job);
        self.wake_worker();
    }

    /// Jobs wake this thread from now on.
    pub fn set_worker(&self, worker: Thread) {
        let _ = self.worker.set(worker);
    }

    /// Queues the rest of a segment and its footer.
    pub(super) fn seal(&self, open: &mut Option<OpenSegment>) {
        let Some(mut o) = open.take() else { return };
        // The footer's write is counted before the state changes, so that Sealed comes with the
        // last of all writes.
        if o.fill > 0 {
            self.close_chunk(&mut o, 0);
        }
        let data = self.footer(&self.name(o.id, o.generation, o.format), &o.entries);
        let start = self.table.segment_size() - data.len() as u32;
        assert!(
            o.chunk_start <= start,
            "records reach into the footer: {} > {start}",
            o.chunk_start
        );
        self.table.write_started(o.id);
        if !self.table.start_sealing(o.id) {
            // A write of it has failed meanwhile: what there is of it is given up.
            return self.table.write_done(o.id);
        }
        self.push_footer(o.id, start, data);
    }

    fn name(&self, segment: u32, generation: u64, records: RecordFormat) -> SegmentId {
        SegmentId { uuid: self.uuid, segment, generation, records }
    }

    /// The footer of a segment, which is known to be as long from now on.
    fn footer(&self, name: &SegmentId, entries: &EntryList) -> AlignedBuf {
        let mut data = AlignedBuf::zeroed(footer::footer_len(entries) as usize);
        footer::encode_footer(&mut data, name, entries);
        #[cfg(test)]
        if self.format == RecordFormat::Fixed {
            let entries = entries.read(&mut EntryPosition::default(), usize::MAX);
            data = AlignedBuf::copy_of(&footer::encode_fixed_footer(name, &entries));
        }
        self.totals.metadata_bytes.add(data.len() as u64);
        self.table.set_footer(name.segment, data.len() as u32);
        data
    }

    /// How it writes records: in a simulation maybe as format 1 did.
    #[cfg(test)]
    pub fn format(&self) -> RecordFormat {
        self.format
    }

    fn push_footer(&self, segment: u32, start: u32, data: AlignedBuf) {
        self.footers.fetch_add(1, Ordering::Relaxed);
        let (data, awaited) = (Arc::new(data), Vec::new());
        self.push_job(WriteJob { segment, start, data, awaited, since: 0, number: FOOTER });
    }

    /// Queues a footer for a segment that recovery found without one. It takes no more than was
    /// kept for it when the records were written: those that are lost need no entry, and a gap
    /// costs less than one.
    pub fn enqueue_footer(
        &self,
        segment: u32,
        generation: u64,
        records: RecordFormat,
        entries: &[FooterEntry],
    ) {
        let mut list = EntryList::new(generation, records);
        entries.iter().for_each(|entry| list.push(entry));
        let data = self.footer(&self.name(segment, generation, records), &list);
        let start = self.table.segment_size() - data.len() as u32;
        let last = entries.last().map_or(footer::HEADER, |e| e.offset + e.len);
        assert!(last <= start, "records of segment {segment} reach into the footer: {last}");
        self.table.write_started(segment);
        self.push_footer(segment, start, data);
    }

    /// Closes chunks whose first record came before `before_ms`; with `seal`, seals their segments
    /// too.
    pub fn flush(&self, before_ms: u64, seal: bool) {
        for stream in &self.open {
            let mut open = stream.lock();
            let Some(o) = open.as_mut() else { continue };
            if self.table.state(o.id) == SegmentState::Retired {
                self.lose(&mut open);
            } else if seal {
                self.seal(&mut open);
            } else if o.fill > 0 && o.since < before_ms && !o.entries.is_empty() {
                self.close_or_seal(&mut open);
            }
        }
    }

    /// Closes chunks that somebody waits for, where no write of their segment is on its way: those
    /// who come meanwhile share the next chunk.
    pub fn close_awaited(&self) {
        for stream in &self.open {
            let mut open = stream.lock();
            if open.as_ref().is_some_and(|o| !o.awaited.is_empty() && !self.table.is_pending(o.id))
            {
                self.close_or_seal(&mut open);
            }
        }
    }

    /// Closes the open chunk, and seals its segment when nothing would fit behind.
    fn close_or_seal(&self, open: &mut Option<OpenSegment>) {
        let Some(o) = open else { return };
        let room = self.table.segment_size() - footer::next_footer_len(&o.entries);
        if o.chunk_start + round_up(o.fill.into(), BLOCK.into()) as u32 + BLOCK > room {
            self.seal(open);
        } else {
            self.close_chunk(o, 0);
        }
    }

    /// Forgets a segment that was retired while it was open.
    fn lose(&self, open: &mut Option<OpenSegment>) {
        if let Some(o) = open.take() {
            self.lost.lock().extend(o.awaited);
        }
    }

    /// Operations whose record will not be written.
    pub fn take_lost(&self) -> Vec<u64> {
        std::mem::take(&mut self.lost.lock())
    }

    /// Wakes the thread that hands jobs to the device.
    pub fn wake_worker(&self) {
        if let Some(worker) = self.worker.get() {
            worker.unpark();
        }
    }

    /// Seals segments opened before a position of the journal, which is kept as far back as open
    /// segments reach.
    pub fn seal_opened_before(&self, position: u64) {
        for stream in &self.open {
            let mut open = stream.lock();
            if open.as_ref().is_some_and(|o| self.table.journal_position(o.id) < position) {
                coverage_mark!(SealedForJournal);
                self.seal(&mut open);
            }
        }
    }

    /// Waits until every segment that is being opened now is open, and its journal entry stored.
    pub fn let_all_finish(&self) {
        self.open.iter().for_each(|stream| drop(stream.lock()));
    }

    /// A copy of `len` bytes at `offset` of a segment (fewer at the end of what is there), if they
    /// are still in memory.
    pub fn read(&self, segment: u32, offset: u32, len: u32) -> Option<Vec<u8>> {
        let cut = |start: u32, bytes: &[u8]| {
            let from = offset.checked_sub(start)? as usize;
            let rest = bytes.get(from..).filter(|r| !r.is_empty())?;
            Some(rest[..rest.len().min(len as usize)].to_vec())
        };
        // Open chunks first: a chunk that is closed meanwhile is in `closed` before it leaves here.
        for stream in &self.open {
            if let Some(o) = stream.lock().as_ref().filter(|o| o.id == segment)
                && let Some(found) = cut(o.chunk_start, &o.chunk[..o.fill as usize])
            {
                return Some(found);
            }
        }
        self.closed
            .lock()
            .iter()
            .filter(|job| job.segment == segment)
            .find_map(|job| cut(job.start, &job.data))
    }

    /// Some records of an open segment, from a position on that moves behind them; `None` when no
    /// stream holds it.
    pub fn entries(
        &self,
        segment: u32,
        generation: u64,
        from: &mut EntryPosition,
        most: usize,
    ) -> Option<Vec<FooterEntry>> {
        self.open.iter().find_map(|stream| {
            let open = stream.lock();
            let open = open.as_ref().filter(|o| o.id == segment && o.generation == generation)?;
            Some(open.entries.read(from, most))
        })
    }

    /// Whether everything appended until the first call with this `before` is on flash, but for
    /// what was in a segment that is retired. That call finds `None` there: it closes all open
    /// chunks and keeps the number of the next one.
    pub fn are_all_written(&self, before: &mut Option<u64>) -> bool {
        let before = *before.get_or_insert_with(|| {
            self.flush(u64::MAX, false);
            self.numbered.load(Ordering::SeqCst)
        });
        self.closed.lock().iter().all(|job| job.number >= before)
    }

    /// The next job for one of the devices that `takes` chooses, by its segment. A footer has to
    /// wait until all it lists is written, because recovery trusts it. Otherwise recovery could
    /// take a record that is not there for the newest copy of an object, though another copy
    /// exists.
    pub fn next_job_of(&self, takes: impl Fn(u32) -> bool) -> Option<WriteJob> {
        self.take_job(|job| takes(job.segment) && self.is_due(job))
    }

    /// A job that was not handed out and whose segment is retired, of those that `takes` chooses.
    pub fn next_retired_job(&self, takes: impl Fn(u32) -> bool) -> Option<WriteJob> {
        let is_retired = |segment| self.table.state(segment) == SegmentState::Retired;
        self.take_job(|job| takes(job.segment) && is_retired(job.segment))
    }

    fn take_job(&self, takes: impl Fn(&WriteJob) -> bool) -> Option<WriteJob> {
        let mut queue = self.queue.lock();
        let at = queue.iter().position(takes)?;
        queue.remove(at)
    }

    fn is_due(&self, job: &WriteJob) -> bool {
        job.number != FOOTER || self.table.pending(job.segment) == 1
    }

    /// A job is over: its bytes are on flash, or its segment is retired.
    pub fn job_done(&self, job: &WriteJob) {
        self.closed.lock().retain(|c| (c.segment, c.start) != (job.segment, job.start));
        match job.number {
            FOOTER => self.footers.fetch_sub(1, Ordering::Relaxed),
            _ => self.outstanding.fetch_sub(job.weight(self.chunk_size), Ordering::Relaxed),
        };
    }

    /// Keeps the memory of a written chunk for the next one. Nobody may read it any more, and it
    /// must take the place of a chunk that may wait.
    pub fn recycle(&self, job: WriteJob) {
        let Some(chunk) = Arc::into_inner(job.data) else { return };
        let mut spare = self.spare.lock();
        let held = spare.len() as u32 + self.outstanding.load(Ordering::Relaxed);
        let fits = spare.len() < SPARE && held < self.max_outstanding;
        if fits && chunk.capacity() == self.chunk_size as usize {
            spare.push(chunk);
        }
    }

    /// Jobs not yet done, by their memory.
    pub fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Relaxed) + self.footers.load(Ordering::Relaxed)
    }

    /// Whether jobs wait that can be handed to the device.
    pub fn has_jobs(&self) -> bool {
        self.queue.lock().iter().any(|job| self.is_due(job))
    }

    /// Whether a stream holds this segment, also one that was retired.
    pub fn holds(&self, segment: u32) -> bool {
        self.open.iter().any(|stream| stream.lock().as_ref().is_some_and(|o| o.id == segment))
    }

    /// Whether no segment is open.
    pub fn all_sealed(&self) -> bool {
        self.open.iter().all(|s| s.lock().is_none())
    }
}
