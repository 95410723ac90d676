//! Queues of records: lists of chunks with some references each.
//!
//! A record knows its place on a queue, so it can leave from the middle, and a record that moves in
//! memory is pointed at anew. Its neighbours are not looked at. Chunks that many have left from the
//! middle are merged with a neighbour. So memory follows the number of records.

use super::slab::NIL;

/// Bits of a place that number the entry of its chunk.
const ENTRY_BITS: u32 = 5;
/// Entries of a chunk.
const ENTRIES: usize = 1 << ENTRY_BITS;
/// A chunk with so few entries left is merged with a neighbour, if both are so many at most.
const FEW: u8 = 12;
const MERGED: u8 = 28;

/// What a chunk takes: with its place in the directory, which may be half full, and what the
/// allocator takes.
const CHUNK_COST: usize = size_of::<Chunk>() + 2 * size_of::<Option<Box<Chunk>>>() + 16;

/// The queues a record can be on: one of small and main, and dirty besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Small = 0,
    Main = 1,
    Dirty = 2,
}

/// Some neighbours of a queue, oldest first.
struct Chunk {
    /// References, or NIL where one has left.
    records: [u32; ENTRIES],
    /// When each joined, counted from `base`; less where that is too much.
    joined: [u16; ENTRIES],
    base: u32,
    /// Neighbouring chunks.
    older: u32,
    newer: u32,
    /// The first entry with a record.
    first: u8,
    /// Behind the last entry that was ever used.
    end: u8,
    /// Entries with a record.
    live: u8,
}

/// Ends, length and bytes of a queue.
#[derive(Debug, Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
    len: usize,
    bytes: usize,
}

const EMPTY: Ends = Ends { oldest: NIL, newest: NIL, len: 0, bytes: 0 };

/// The three queues of a shard.
pub(super) struct Queues {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Numbers without a chunk.
    free: Vec<u32>,
    ends: [Ends; 3],
}

impl Queues {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), ends: [EMPTY; 3] }
    }

    /// Memory taken, or a little more: a place on a queue is paid for before its chunk is made. So
    /// the memory of queues grows in no steps that would evict many at once, unless chunks are
    /// sparse.
    pub(super) fn memory(&self) -> usize {
        self.paid().max(self.chunk_bytes())
    }

    /// Memory that one more record takes at most, on dirty too.
    pub(super) fn growth(&self, now: u32) -> usize {
        let grows = |queue: Queue| {
            let newest = self.ends[queue as usize].newest;
            newest == NIL || !self.chunk(newest).has_room(now)
        };
        let more = [grows(Queue::Small) || grows(Queue::Main), grows(Queue::Dirty)];
        let chunks = more.into_iter().filter(|grows| *grows).count() * CHUNK_COST;
        let paid = self.paid() + 2 * Self::EACH;
        paid.max(self.chunk_bytes() + chunks) - self.memory()
    }

    fn paid(&self) -> usize {
        Self::FIXED + self.ends.iter().map(|ends| ends.len).sum::<usize>() * Self::EACH
    }

    fn chunk_bytes(&self) -> usize {
        (self.chunks.len() - self.free.len()) * CHUNK_COST
    }

    /// What a place on a queue takes.
    pub(super) const EACH: usize = CHUNK_COST.div_ceil(ENTRIES);
    /// What empty queues take: for the chunks at the ends of each, which are not full.
    pub(super) const FIXED: usize = 3 * 2 * CHUNK_COST;

    /// Records on a queue.
    pub(super) fn len(&self, queue: Queue) -> usize {
        self.ends[queue as usize].len
    }

    /// Bytes of the records on a queue.
    pub(super) fn bytes(&self, queue: Queue) -> usize {
        self.ends[queue as usize].bytes
    }

    /// A record on a queue takes more bytes now, or fewer.
    pub(super) fn resize(&mut self, queue: Queue, old: usize, new: usize) {
        let bytes = &mut self.ends[queue as usize].bytes;
        *bytes = *bytes + new - old;
    }

    /// Place of the oldest record.
    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        match self.ends[queue as usize].oldest {
            NIL => None,
            chunk => Some(chunk << ENTRY_BITS | u32::from(self.chunk(chunk).first)),
        }
    }

    /// Place of the next newer record.
    pub(super) fn newer(&self, place: u32) -> Option<u32> {
        let (chunk, entry) = (self.chunk(place >> ENTRY_BITS), entry_of(place));
        if let Some(at) = chunk.next(entry + 1) {
            return Some(place >> ENTRY_BITS << ENTRY_BITS | at as u32);
        }
        match chunk.newer {
            NIL => None,
            newer => Some(newer << ENTRY_BITS | u32::from(self.chunk(newer).first)),
        }
    }

    /// The record at a place.
    pub(super) fn record(&self, place: u32) -> u32 {
        self.chunk(place >> ENTRY_BITS).records[entry_of(place)]
    }

    /// When the record at a place joined its queue. Understated where it came more than an hour
    /// after the others of its chunk.
    pub(super) fn joined(&self, place: u32) -> u32 {
        self.chunk(place >> ENTRY_BITS).time(entry_of(place))
    }

    /// Has the record at a place be known by another reference.
    pub(super) fn repoint(&mut self, place: u32, record: u32) {
        self.chunk_mut(place >> ENTRY_BITS).records[entry_of(place)] = record;
    }

    /// Makes a record of so many bytes the newest of a queue; gives its place.
    pub(super) fn push(&mut self, queue: Queue, record: u32, bytes: usize, now: u32) -> u32 {
        let newest = self.ends[queue as usize].newest;
        let number = match newest != NIL && self.chunk(newest).has_room(now) {
            true => newest,
            false => self.add_chunk(queue, now),
        };
        let ends = &mut self.ends[queue as usize];
        ends.len += 1;
        ends.bytes += bytes;
        let chunk = self.chunk_mut(number);
        number << ENTRY_BITS | chunk.push(record, now) as u32
    }

    /// Takes a record of so many bytes off its queue. Others may get another place: `moved` is told
    /// of each record and its new place.
    pub(super) fn remove(
        &mut self,
        queue: Queue,
        place: u32,
        bytes: usize,
        moved: impl FnMut(u32, u32),
    ) {
        let ends = &mut self.ends[queue as usize];
        ends.len -= 1;
        ends.bytes -= bytes;
        let number = place >> ENTRY_BITS;
        let chunk = self.chunk_mut(number);
        chunk.take(entry_of(place));
        let (live, older, newer) = (chunk.live, chunk.older, chunk.newer);
        if live == 0 {
            return self.drop_chunk(queue, number);
        }
        if live > FEW {
            return;
        }
        let fits = |other: u32| other != NIL && self.chunk(other).live + live <= MERGED;
        if fits(older) {
            self.merge(queue, older, number, moved);
        } else if fits(newer) {
            self.merge(queue, number, newer, moved);
        }
    }

    /// Moves the entries of `newer` behind those of its neighbour `older`.
    fn merge(&mut self, queue: Queue, older: u32, newer: u32, mut moved: impl FnMut(u32, u32)) {
        let entries =
            [older, newer].map(|number| self.chunk(number).entries().collect::<Vec<_>>()).concat();
        self.drop_chunk(queue, newer);
        let chunk = self.chunk_mut(older);
        (chunk.base, chunk.first, chunk.end, chunk.live) = (entries[0].1, 0, 0, 0);
        for (record, joined) in entries {
            let at = chunk.push(record, joined) as u32;
            moved(record, older << ENTRY_BITS | at);
        }
    }

    fn add_chunk(&mut self, queue: Queue, now: u32) -> u32 {
        let older = self.ends[queue as usize].newest;
        let (records, joined) = ([NIL; ENTRIES], [0; ENTRIES]);
        let chunk =
            Chunk { records, joined, base: now, older, newer: NIL, first: 0, end: 0, live: 0 };
        let chunk = Some(Box::new(chunk));
        let number = match self.free.pop() {
            Some(number) => {
                self.chunks[number as usize] = chunk;
                number
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() as u32 - 1
            }
        };
        self.ends[queue as usize].newest = number;
        match older {
            NIL => self.ends[queue as usize].oldest = number,
            older => self.chunk_mut(older).newer = number,
        }
        number
    }

    fn drop_chunk(&mut self, queue: Queue, number: u32) {
        let gone = self.chunks[number as usize].take().expect("a chunk of a queue");
        match gone.older {
            NIL => self.ends[queue as usize].oldest = gone.newer,
            older => self.chunk_mut(older).newer = gone.newer,
        }
        match gone.newer {
            NIL => self.ends[queue as usize].newest = gone.older,
            newer => self.chunk_mut(newer).older = gone.older,
        }
        self.free.push(number);
        if self.free.len() == self.chunks.len() {
            *self = Self::new();
        }
    }

    fn chunk(&self, number: u32) -> &Chunk {
        self.chunks[number as usize].as_deref().expect("a chunk of a queue")
    }

    fn chunk_mut(&mut self, number: u32) -> &mut Chunk {
        self.chunks[number as usize].as_deref_mut().expect("a chunk of a queue")
    }
}

impl Chunk {
    /// Whether one more that joins now has room, and its time too.
    fn has_room(&self, now: u32) -> bool {
        usize::from(self.end) < ENTRIES && now.saturating_sub(self.base) <= u32::from(u16::MAX)
    }

    fn push(&mut self, record: u32, joined: u32) -> usize {
        let at = usize::from(self.end);
        let passed = joined.saturating_sub(self.base);
        self.records[at] = record;
        self.joined[at] = u16::try_from(passed).unwrap_or(u16::MAX);
        (self.end, self.live) = (self.end + 1, self.live + 1);
        at
    }

    fn take(&mut self, entry: usize) {
        self.records[entry] = NIL;
        self.live -= 1;
        if entry == usize::from(self.first) {
            self.first = self.next(entry + 1).unwrap_or(ENTRIES) as u8;
        }
    }

    /// The first entry with a record from this one on.
    fn next(&self, from: usize) -> Option<usize> {
        (from..usize::from(self.end)).find(|&entry| self.records[entry] != NIL)
    }

    fn time(&self, entry: usize) -> u32 {
        self.base.saturating_add(u32::from(self.joined[entry]))
    }

    /// Its records and their times.
    fn entries(&self) -> impl Iterator<Item = (u32, u32)> {
        let all = (0..usize::from(self.end)).map(|entry| (self.records[entry], self.time(entry)));
        all.filter(|(record, _)| *record != NIL)
    }
}

/// Which of its chunk's entries a place names.
fn entry_of(place: u32) -> usize {
    place as usize & (ENTRIES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue with its plain model: records in their order, each with its place and time.
    struct Modelled {
        queues: Queues,
        model: Vec<(u32, u32, u32)>,
        next: u32,
    }

    impl Modelled {
        fn push(&mut self, now: u32) {
            let place = self.queues.push(Queue::Main, self.next, 10, now);
            self.model.push((self.next, place, now));
            self.next += 1;
        }

        fn remove(&mut self, at: usize) {
            let (_, place, _) = self.model.remove(at);
            let model = &mut self.model;
            self.queues.remove(Queue::Main, place, 10, |record, place| {
                let at = model.binary_search_by_key(&record, |known| known.0).unwrap();
                model[at].1 = place;
            });
        }

        fn check(&self) {
            let queues = &self.queues;
            let mut at = queues.oldest(Queue::Main);
            for &(record, place, time) in &self.model {
                assert_eq!(at, Some(place));
                assert_eq!((queues.record(place), queues.joined(place)), (record, time));
                at = queues.newer(place);
            }
            assert_eq!(at, None);
            assert_eq!(queues.len(Queue::Main), self.model.len());
            assert_eq!(queues.bytes(Queue::Main), self.model.len() * 10);
        }
    }

    #[test]
    fn order_and_time_survive_removals_from_anywhere_and_memory_follows() {
        let mut queue = Modelled { queues: Queues::new(), model: Vec::new(), next: 0 };
        let mut random = 7_u64;
        for turn in 0..6_000_u32 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(u64::from(turn) | 1);
            let grows = if turn < 3_000 { 10 } else { 6 };
            if (random >> 40) % 16 < grows || queue.model.is_empty() {
                queue.push(turn);
            } else {
                queue.remove((random >> 20) as usize % queue.model.len());
            }
            if turn % 16 == 0 {
                queue.check();
                let most = queue.model.len().div_ceil(6) + 2;
                assert!(
                    queue.queues.chunk_bytes() <= most * CHUNK_COST,
                    "{} left",
                    queue.model.len()
                );
            }
        }
        while !queue.model.is_empty() {
            queue.remove(0);
        }
        queue.check();
        assert_eq!((queue.queues.chunk_bytes(), queue.queues.memory()), (0, Queues::FIXED));
    }

    #[test]
    fn what_joins_hours_later_is_told_its_own_time() {
        let mut queue = Modelled { queues: Queues::new(), model: Vec::new(), next: 0 };
        [0, 5, 200_000, 200_001, u32::MAX].into_iter().for_each(|now| queue.push(now));
        queue.check();
    }
}
