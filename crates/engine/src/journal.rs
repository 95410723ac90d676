//! The journal: every change that may make copies on flash stale, written before the change is
//! acknowledged.
//!
//! A writer takes a position with one atomic add and stores its entry there; no writer waits for
//! another. Positions below the *tail* are free for reuse. The tail is moved by a completed
//! checkpoint, and by a durable run of the kill log, which has what was below it.
//!
//! An entry that finds no space, or whose store fails, *poisons* the journal: its namespaces would
//! be cold if the process died now. So does an entry of this life that is gone when it is read: the
//! kernel could not write its page. A later checkpoint that covers this moment lifts the poison.

use std::ops::Range;
use std::sync::Arc;
use std::{io, iter, thread};

use crate::device::area::Media;
use crate::format::journal::{self as format, Event, JournalEntry};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes loaded at a time while scanning.
const SCAN: usize = 1 << 18;

/// Parts in which kills are kept, so that the map made of each fits a processor's caches.
const PARTS: usize = 64;
/// After so many bytes of entries the written pages of the mapping are given back.
const RELEASE: u64 = 1 << 20;

/// How often storing the poison flag is tried at once.
const POISON_TRIES: u32 = 16;

/// The journal of an open cache.
pub struct Journal {
    media: Arc<dyn Media>,
    seed: u64,
    capacity: u64,
    head: AtomicU64,
    tail: AtomicU64,
    /// A checkpoint makes up for the lost entries if it needs the journal only from this position
    /// on. `None` when sound.
    poison: Mutex<Option<u64>>,
    /// Position at which it was opened.
    began: u64,
    bare: AtomicBool,
    /// What lives before have stored is durable.
    settled: AtomicBool,
    /// Held while the medium is flushed: the medium reports an error once, and the next flush must
    /// know of it.
    flushing: Mutex<()>,
}

/// A put or remove of a single object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// Hash of namespace and key.
    pub hash: u64,
    /// Its version: lower ones are dead.
    pub version: u64,
    /// Namespace id.
    pub ns: u16,
}

/// What recovery found in a journal: every whole entry from the given position on, in no order.
#[derive(Debug, Default)]
pub struct Scan {
    /// Puts and removes of single objects, by thread and by the lowest bits of their hashes.
    kills: Vec<[Vec<Kill>; PARTS]>,
    /// All other entries.
    pub others: Vec<JournalEntry>,
    /// One past the highest position found; at least the position asked for.
    pub head: u64,
    /// The lowest position found; `u64::MAX` without entries.
    pub lowest: u64,
    /// An entry had been lost, or the journal could not be read.
    pub poisoned: bool,
    /// Highest Unix time seen.
    pub time: u64,
    /// Below this position entries were lost. Only a checkpoint can make up for them.
    pub sound_from: u64,
}

impl Scan {
    /// Puts and removes of single objects.
    pub fn kills(&self) -> impl Iterator<Item = &Kill> {
        self.kills.iter().flatten().flatten()
    }

    /// Those of one of `shards` shards (a power of two).
    pub fn kills_of(&self, shard: usize, shards: usize) -> impl Iterator<Item = &Kill> {
        let mask = shards.min(PARTS) - 1;
        let parts = (0..PARTS).filter(move |part| part & mask == shard & mask);
        let kills = parts.flat_map(|part| self.kills.iter().flat_map(move |thread| &thread[part]));
        kills.filter(move |kill| kill.hash as usize & (shards - 1) == shard)
    }
}

/// What one thread found.
struct ScanPart {
    kills: [Vec<Kill>; PARTS],
    others: Vec<JournalEntry>,
    head: u64,
    lowest: u64,
}

impl ScanPart {
    fn scan(
        media: &dyn Media,
        seed: u64,
        capacity: u64,
        needed: u64,
        slots: Range<u64>,
    ) -> io::Result<Self> {
        let mut part = Self {
            kills: [const { Vec::new() }; PARTS],
            others: Vec::new(),
            head: 0,
            lowest: u64::MAX,
        };
        let mut buf = vec![0; SCAN];
        let mut slot = slots.start;
        while slot < slots.end {
            let n = (slots.end - slot).min(SCAN as u64 / format::ENTRY);
            let bytes = &mut buf[..(n * format::ENTRY) as usize];
            media.load(format::HEADER + slot * format::ENTRY, bytes)?;
            for (i, raw) in (0..).zip(bytes.chunks_exact(format::ENTRY as usize)) {
                let claimed =
                    format::claimed_lap(raw).map(|lap| u64::from(lap) * capacity + slot + i);
                let Some(position) = claimed.filter(|position| *position >= needed) else {
                    continue;
                };
                let Some(entry) = JournalEntry::decode(raw, seed) else { continue };
                part.head = part.head.max(position + 1);
                part.lowest = part.lowest.min(position);
                match entry.event {
                    Event::Kill { hash, ns } => {
                        part.kills[hash as usize % PARTS].push(Kill {
                            hash,
                            version: entry.version,
                            ns,
                        });
                    }
                    _ => part.others.push(entry),
                }
            }
            slot += n;
        }
        Ok(part)
    }
}

/// From so many entries on it is worth starting threads.
const MANY: usize = 1 << 16;

/// How many threads may work on that many entries.
pub fn threads_for(entries: usize) -> usize {
    if entries < MANY {
        return 1;
    }
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

impl Journal {
    /// Entries that fit `media`.
    pub fn capacity(media: &dyn Media) -> u64 {
        media.len().saturating_sub(format::HEADER) / format::ENTRY
    }

    /// Starts a new epoch: entries of earlier epochs no longer count. `positions` are those of
    /// entries already written to it.
    ///
    /// # Errors
    /// What the medium said.
    pub fn create(
        media: Arc<dyn Media>,
        uuid: &[u8; 16],
        epoch: u64,
        positions: Range<u64>,
        time: u64,
    ) -> io::Result<Self> {
        media.store(0, &format::encode_header(uuid))?;
        media.store(format::POISON_AT, &0u64.to_le_bytes())?;
        media.store(format::TIME_AT, &time.to_le_bytes())?;
        media.store(format::SOUND_FROM_AT, &0u64.to_le_bytes())?;
        media.sync()?;
        Ok(Self::resume(media, uuid, epoch, positions.end, positions.start))
    }

    /// Goes on after a scan. `head` is from the scan, `tail` is the position that the newest
    /// checkpoint needs. Without a durable checkpoint `tail` is 0, and everything in the journal is
    /// kept.
    pub fn resume(
        media: Arc<dyn Media>,
        uuid: &[u8; 16],
        epoch: u64,
        head: u64,
        tail: u64,
    ) -> Self {
        let capacity = Self::capacity(&*media);
        let (began, tail) = (head, tail.max(head.saturating_sub(capacity)));
        assert!(
            tail <= head,
            "a checkpoint needs the journal from {tail} on, which ends at {head}"
        );
        Self {
            media,
            seed: format::seed(uuid, epoch),
            capacity,
            head: head.into(),
            tail: tail.into(),
            poison: Mutex::new(None),
            began,
            bare: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            flushing: Mutex::new(()),
        }
    }

    /// Notes that this epoch was begun in doubt, with a checkpoint of an earlier epoch.
    pub fn set_bare(&self) {
        self.bare.store(true, Ordering::Release);
    }

    /// Whether no checkpoint goes with this epoch of the journal yet: a crash now would make
    /// Mutable namespaces cold.
    pub fn is_bare(&self) -> bool {
        self.bare.load(Ordering::Acquire)
    }

    /// Reads the whole reserved extent; holes are tolerated. Entries below position `needed` are in
    /// the checkpoint.
    ///
    /// Pages that the kernel could not write may have been given up since, with entries that were
    /// acknowledged. It tells that once, to whoever asks next, also where the process that stored
    /// them is gone. So it is asked ([`Media::check_written`]), and an error says that entries were
    /// lost. To flush the journal takes longer, and what nobody has written yet is read as it was
    /// stored.
    ///
    /// The race: the kernel may give up such a page at any moment. While the journal is scanned,
    /// that may take entries from under the scan; so it is asked behind it. Later, whoever flushes
    /// is told, and [`Journal::read`] flushes before it relies on entries of lives before.
    ///
    /// # Errors
    /// What the medium said; `InvalidData` when it is not the journal of this cache.
    pub fn scan(media: &dyn Media, uuid: &[u8; 16], epoch: u64, needed: u64) -> io::Result<Scan> {
        let mut header = [0; 40];
        media.load(0, &mut header)?;
        if !format::is_header(&header, uuid) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not the journal of this cache",
            ));
        }
        let (mut poison, mut time, mut sound_from) = ([0; 8], [0; 8], [0; 8]);
        media.load(format::POISON_AT, &mut poison)?;
        media.load(format::TIME_AT, &mut time)?;
        media.load(format::SOUND_FROM_AT, &mut sound_from)?;
        let mut scan = Scan {
            poisoned: poison != [0; 8],
            time: u64::from_le_bytes(time),
            sound_from: u64::from_le_bytes(sound_from),
            ..Scan::default()
        };
        let (seed, capacity) = (format::seed(uuid, epoch), Self::capacity(media));
        let threads = threads_for(capacity as usize) as u64;
        let part = |n: u64| {
            let slots = n * capacity / threads..(n + 1) * capacity / threads;
            ScanPart::scan(media, seed, capacity, needed, slots)
        };
        let parts = thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|n| scope.spawn(move || part(n))).collect();
            let first = part(0);
            let join = |t: thread::ScopedJoinHandle<'_, _>| {
                t.join().unwrap_or(Err(io::ErrorKind::Other.into()))
            };
            iter::once(first).chain(others.into_iter().map(join)).collect::<io::Result<Vec<_>>>()
        })?;
        let written = media.check_written();
        if let Err(error) = &written {
            coverage_mark!(ScannedUnwritten);
            tracing::warn!(%error, "the kernel could not write the journal: entries of it may be lost");
            // Nobody is told again. This start may end before it has written anything else.
            store_poison(media);
            let _ = media.sync();
        }
        scan.poisoned |= written.is_err();
        // Pages that were only scanned must not count as this process's memory.
        media.release(0, media.len());
        (scan.head, scan.lowest) = (needed, u64::MAX);
        for part in parts {
            scan.head = scan.head.max(part.head);
            scan.lowest = scan.lowest.min(part.lowest);
            scan.kills.push(part.kills);
            scan.others.extend(part.others);
        }
        Ok(scan)
    }

    /// Writes an entry; it survives the process when this returns. Poisons the journal when it
    /// cannot.
    pub fn append(&self, event: Event, version: u64) {
        let position = self.head.fetch_add(1, Ordering::SeqCst);
        if position >= self.tail.load(Ordering::Acquire) + self.capacity {
            coverage_mark!(JournalFull);
            return self.poison(position + 1);
        }
        if position > 0 && position.is_multiple_of(self.capacity) {
            coverage_mark!(JournalLap);
        }
        let lap = (position / self.capacity) as u32;
        let bytes = JournalEntry { event, version, lap }.encode(self.seed);
        let at = format::HEADER + position % self.capacity * format::ENTRY;
        if self.media.store(at, &bytes).is_err() {
            self.poison(position + 1);
        }
        if (at + format::ENTRY).is_multiple_of(RELEASE) && at >= 2 * RELEASE {
            // Two steps behind, where probably no writer still stores. A writer there would only
            // have a page fault.
            self.media.release(at + format::ENTRY - 2 * RELEASE, RELEASE);
        }
    }

    /// Notes that an entry below `position` is missing. If even this cannot be stored,
    /// [`Journal::retry_poison`] tries again.
    fn poison(&self, position: u64) {
        let mut poison = self.poison.lock();
        let first = poison.is_none();
        *poison = (*poison).max(Some(position));
        if first {
            tracing::warn!(
                "the journal lost an entry: Mutable namespaces would be cold after a crash until the next checkpoint"
            );
        }
        // Without the flag a crash now would hide that an entry is missing, so several tries are
        // made.
        store_poison(&*self.media);
    }

    /// Poisons the journal as of now, for reasons found elsewhere.
    pub fn poison_now(&self) {
        self.poison(self.head());
    }

    /// Stores the poison flag again while it is set.
    pub fn retry_poison(&self) {
        let poison = self.poison.lock();
        if poison.is_some() {
            let _ = self.media.store(format::POISON_AT, &1u64.to_le_bytes());
        }
    }

    /// A checkpoint lifts the poison if it needs the journal only from this position on. `None`
    /// when the journal is sound.
    pub fn poisoned_below(&self) -> Option<u64> {
        *self.poison.lock()
    }

    /// Whether an entry is missing that no checkpoint has covered yet.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned_below().is_some()
    }

    /// Position of the next entry. A writer that takes a version after this was read gets a
    /// position at or above it.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::SeqCst)
    }

    /// Bytes appended since it was opened.
    pub fn appended_bytes(&self) -> u64 {
        (self.head() - self.began) * format::ENTRY
    }

    /// Entries in use.
    pub fn used(&self) -> u64 {
        self.head().saturating_sub(self.tail.load(Ordering::Acquire)).min(self.capacity)
    }

    /// Entries it can hold.
    pub fn entries(&self) -> u64 {
        self.capacity
    }

    /// Position of the oldest entry that is kept.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Reads the entries at these positions, all of which are in use and whose writers have ended.
    /// `None` where one of them is not whole, which poisons the journal, or the medium fails.
    ///
    /// A process that dies, or a power loss, may leave holes among the entries of earlier lives.
    /// Recovery has passed over them ([`Journal::scan`]), and so does this. But what recovery has
    /// found may be given up since by the kernel, and look like such a hole. So the medium is
    /// flushed once before: it says so then, and what is durable is not given up.
    pub fn read(&self, positions: Range<u64>) -> Option<Vec<JournalEntry>> {
        assert!(positions.start >= self.tail(), "{positions:?} may have been written over");
        if positions.start < self.began && !self.settled.load(Ordering::Acquire) {
            self.sync().ok()?;
            self.settled.store(true, Ordering::Release);
        }
        let mut entries = Vec::with_capacity((positions.end - positions.start) as usize);
        let mut from = positions.start;
        while from < positions.end {
            let slot = from % self.capacity;
            let n = (positions.end - from).min(self.capacity - slot);
            let mut bytes = vec![0; (n * format::ENTRY) as usize];
            let at = format::HEADER + slot * format::ENTRY;
            self.media.load(at, &mut bytes).ok()?;
            self.media.release(at, n * format::ENTRY);
            let lap = (from / self.capacity) as u32;
            for (position, raw) in (from..).zip(bytes.chunks_exact(format::ENTRY as usize)) {
                let entry = JournalEntry::decode(raw, self.seed).filter(|entry| entry.lap == lap);
                match entry {
                    Some(entry) => entries.push(entry),
                    None if position < self.began => coverage_mark!(HoleCompacted),
                    None => {
                        coverage_mark!(EntryGone);
                        self.poison_now();
                        return None;
                    }
                }
            }
            from += n;
        }
        Some(entries)
    }

    /// Frees the entries below `position`, which a durable run of the kill log has.
    ///
    /// # Panics
    /// When `position` is beyond the head.
    pub fn free_below(&self, position: u64) {
        let head = self.head();
        assert!(position <= head, "the journal ends at {head}, below {position}");
        self.tail.fetch_max(position, Ordering::AcqRel);
    }

    /// Frees the entries below `position`: a checkpoint that does not need them is complete, synced
    /// and read back.
    ///
    /// # Panics
    /// When `position` is beyond the head: entries not yet written would be lost.
    pub fn truncate(&self, position: u64) {
        let head = self.head();
        assert!(position <= head, "the journal ends at {head}, below {position}");
        if self.tail.fetch_max(position, Ordering::AcqRel) < position {
            coverage_mark!(JournalTruncated);
        }
        self.bare.store(false, Ordering::Release);
        let _flushing = self.flushing.lock();
        let Some(below) = self.poisoned_below().filter(|below| position >= *below) else { return };
        // The checkpoint has everything that the lost entries said. If it becomes unreadable, the
        // journal must not pass for whole. So the journal's note that it is not comes first.
        if self.media.store(format::SOUND_FROM_AT, &below.to_le_bytes()).is_err() {
            return;
        }
        if self.media.sync().is_err() {
            // Entries appended since are lost too, and nothing will report that again.
            return self.poison_now();
        }
        let mut poison = self.poison.lock();
        // Not where an entry was lost while it was flushed.
        let lifted = *poison == Some(below)
            && self.media.store(format::POISON_AT, &0u64.to_le_bytes()).is_ok();
        if lifted {
            coverage_mark!(PoisonLifted);
            *poison = None;
        }
    }

    /// Remembers the highest time seen.
    pub fn store_time(&self, unix: u64) {
        let _ = self.media.store(format::TIME_AT, &unix.to_le_bytes());
    }

    /// Makes everything appended so far survive power loss. If entries were lost, makes the note of
    /// that survive.
    ///
    /// If it fails the journal is poisoned. The medium drops what it could not write and reports
    /// that once, so the next flush would succeed without it. That flush makes the poison flag
    /// durable, which is stored again before it.
    ///
    /// # Errors
    /// What the medium said.
    pub fn sync(&self) -> io::Result<()> {
        let _flushing = self.flushing.lock();
        if self.is_poisoned() {
            self.media.store(format::POISON_AT, &1u64.to_le_bytes())?;
        }
        self.media.sync().inspect_err(|_| self.poison_now())
    }
}

/// Stores that an entry is missing, in several tries.
fn store_poison(media: &dyn Media) {
    for _ in 0..POISON_TRIES {
        if media.store(format::POISON_AT, &1u64.to_le_bytes()).is_ok() {
            return;
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
