//! Memory for records of up to [`MAX_SLOT`] bytes: pages of slots, a class of pages for each size
//! of slot.
//!
//! The slots of a class are dense. Where one is freed, the last of its class moves there. So a
//! class of any size has at most one page with room, whatever it held before. One hole a class
//! stays until the next: most often the next record has the size of what has just left for it.
//! Pages of a class are the larger the more records it has: its room and what its pages cost are
//! small beside it.

/// Nothing: no record, no chunk, no page.
pub(super) const NIL: u32 = u32::MAX;
/// Largest slot.
pub(super) const MAX_SLOT: usize = 2048;
/// Bits of a reference that number a slot of its page.
const SLOT_BITS: u32 = 6;
/// Slots of a page at most.
const MOST_SLOTS: usize = 1 << SLOT_BITS;
/// Bytes of a page at most.
const MOST_BYTES: usize = 32 << 10;
/// What a page takes besides its slots: its place in the directory and in its class, each in a
/// vector that may be half full, and what the allocator takes.
pub(super) const PAGE_COST: usize = 2 * (size_of::<Page>() + 4) + 16;

/// Sizes of slots: up to the first of each pair in steps of the second.
const STEPS: [(usize, usize); 2] = [(1152, 8), (MAX_SLOT, 16)];
/// Smallest slot.
const MIN_SLOT: usize = 40;

/// Number and slot size of the class for records of `bytes` bytes.
const fn class_of(bytes: usize) -> (usize, usize) {
    let (mut below, mut number, mut step) = (MIN_SLOT, 0, 0);
    while step < STEPS.len() {
        let (to, by) = STEPS[step];
        if bytes <= to {
            let more = bytes.saturating_sub(below).div_ceil(by);
            return (number + more, below + more * by);
        }
        number += (to - below) / by;
        below = to;
        step += 1;
    }
    panic!("a record beyond the largest slot");
}

/// Classes there are.
const CLASSES: usize = class_of(MAX_SLOT).0 + 1;
const _: () = assert!(CLASSES <= 256);

/// Size of the slot of a record of so many bytes.
pub(super) const fn slot_size(bytes: usize) -> usize {
    class_of(bytes).1
}

/// A page; without bytes when it is not in use.
struct Page {
    data: Box<[u8]>,
    size: u16,
    class: u8,
    slots: u8,
}

/// The pages of one size of slot, all but the last full.
struct Class {
    pages: Vec<u32>,
    /// Slots of the last page that are not beyond its last record.
    used: u8,
    /// A slot without a record, which is not the last one.
    hole: u32,
    /// Records.
    len: u32,
}

/// A record that has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Records of a shard by reference.
pub(super) struct Slab {
    pages: Vec<Page>,
    /// Pages that are not in use.
    free: Vec<u32>,
    classes: Box<[Class; CLASSES]>,
    /// Bytes of pages.
    bytes: usize,
    len: usize,
}

impl Slab {
    pub(super) fn new() -> Self {
        let class = |_| Class { pages: Vec::new(), used: 0, hole: NIL, len: 0 };
        let classes = Box::new(std::array::from_fn(class));
        Self { pages: Vec::new(), free: Vec::new(), classes, bytes: 0, len: 0 }
    }

    /// Bytes taken, of which an empty one takes [`Self::FIXED`].
    pub(super) fn bytes(&self) -> usize {
        Self::FIXED + self.bytes + (self.pages.len() - self.free.len()) * PAGE_COST
    }

    /// Bytes that an empty one takes.
    pub(super) const FIXED: usize = CLASSES * size_of::<Class>();

    /// Records.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that one more record of `bytes` bytes takes.
    pub(super) fn growth(&self, bytes: usize) -> usize {
        let (class, size) = class_of(bytes);
        if self.has_room(class) {
            return 0;
        }
        slots_of_next(self.classes[class].len, size) * size + PAGE_COST
    }

    fn has_room(&self, class: usize) -> bool {
        let class = &self.classes[class];
        let last = class.pages.last().map_or(0, |&page| self.pages[page as usize].slots);
        class.hole != NIL || class.used < last
    }

    /// A slot for `bytes` bytes, whose content is any.
    pub(super) fn alloc(&mut self, bytes: usize) -> u32 {
        let (number, size) = class_of(bytes);
        if !self.has_room(number) {
            self.add_page(number, size);
        }
        self.len += 1;
        let class = &mut self.classes[number];
        class.len += 1;
        if class.hole != NIL {
            return std::mem::replace(&mut class.hole, NIL);
        }
        class.used += 1;
        class.last().expect("a page with room was made")
    }

    fn add_page(&mut self, number: usize, size: usize) {
        let class = &mut self.classes[number];
        let slots = slots_of_next(class.len, size);
        let data = vec![0; slots * size].into_boxed_slice();
        self.bytes += data.len();
        let page = Page { data, size: size as u16, class: number as u8, slots: slots as u8 };
        let at = match self.free.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            }
        };
        class.pages.push(at);
        class.used = 0;
    }

    /// Frees a slot. Another record may move, at most one.
    pub(super) fn free(&mut self, at: u32) -> Option<Moved> {
        let number = usize::from(self.page(at).class);
        self.len -= 1;
        let class = &mut self.classes[number];
        class.len -= 1;
        let hole = std::mem::replace(&mut class.hole, at);
        let mut moved = None;
        if class.last() == Some(at) {
            class.hole = hole;
            self.pop_slot(number);
        } else if hole != NIL {
            let from = class.last().expect("a hole is before the last record");
            self.copy(from, hole);
            moved = Some(Moved { from, to: hole });
            self.pop_slot(number);
        }
        // A hole that is the last slot now is none.
        while self.classes[number].hole != NIL
            && self.classes[number].last() == Some(self.classes[number].hole)
        {
            self.classes[number].hole = NIL;
            self.pop_slot(number);
        }
        if self.len == 0 {
            // No class has a page any more.
            (self.pages, self.free) = (Vec::new(), Vec::new());
        }
        moved
    }

    /// Takes the last slot of a class away, and its page if it was the only one there.
    fn pop_slot(&mut self, number: usize) {
        let class = &mut self.classes[number];
        class.used -= 1;
        if class.used > 0 {
            return;
        }
        let page = class.pages.pop().expect("its slot was the last");
        class.used = class.pages.last().map_or(0, |&page| self.pages[page as usize].slots);
        if class.pages.capacity() > 4 * class.pages.len() {
            class.pages.shrink_to(2 * class.pages.len());
        }
        let gone = std::mem::take(&mut self.pages[page as usize].data);
        self.bytes -= gone.len();
        self.free.push(page);
    }

    fn copy(&mut self, from: u32, to: u32) {
        let (source, target) = (self.range(from), self.range(to));
        let [a, b] = [from, to].map(|at| (at >> SLOT_BITS) as usize);
        if a == b {
            self.pages[a].data.copy_within(source, target.start);
            return;
        }
        let [a, b] = self.pages.get_disjoint_mut([a, b]).expect("two pages");
        b.data[target].copy_from_slice(&a.data[source]);
    }

    fn page(&self, at: u32) -> &Page {
        &self.pages[(at >> SLOT_BITS) as usize]
    }

    fn range(&self, at: u32) -> std::ops::Range<usize> {
        let size = usize::from(self.page(at).size);
        let start = slot_of(at) * size;
        start..start + size
    }

    /// Bytes of the slot of a record.
    pub(super) fn size(&self, at: u32) -> usize {
        usize::from(self.page(at).size)
    }

    /// The slot of a record.
    pub(super) fn slot(&self, at: u32) -> &[u8] {
        let page = self.page(at);
        let size = usize::from(page.size);
        &page.data[slot_of(at) * size..][..size]
    }

    /// The slot of a record, to be changed.
    pub(super) fn slot_mut(&mut self, at: u32) -> &mut [u8] {
        let page = &mut self.pages[(at >> SLOT_BITS) as usize];
        let size = usize::from(page.size);
        &mut page.data[slot_of(at) * size..][..size]
    }

    /// All records, in no particular order.
    pub(super) fn records(&self) -> impl Iterator<Item = u32> {
        let pages = self.pages.iter().zip(0_u32..).filter(|(page, _)| !page.data.is_empty());
        pages.flat_map(|(page, number)| {
            let class = &self.classes[usize::from(page.class)];
            let is_last = class.pages.last() == Some(&number);
            let used = if is_last { class.used } else { page.slots };
            let slots = (0..u32::from(used)).map(move |slot| number << SLOT_BITS | slot);
            slots.filter(|&at| at != class.hole)
        })
    }
}

impl Class {
    /// Its last slot.
    fn last(&self) -> Option<u32> {
        self.pages.last().map(|page| page << SLOT_BITS | u32::from(self.used - 1))
    }
}

/// Which of its page's slots a reference names.
fn slot_of(at: u32) -> usize {
    at as usize & (MOST_SLOTS - 1)
}

/// Slots of the next page of a class of so many records. Of `n` slots half are room, on average,
/// and a record pays the n-th part of a page's cost: together that is least for this `n`.
fn slots_of_next(len: u32, size: usize) -> usize {
    let least = (len as usize * 2 * PAGE_COST / size).isqrt();
    least.clamp(1, MOST_SLOTS).min(MOST_BYTES / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_its_record_and_wastes_little() {
        let mut classes = std::collections::BTreeSet::new();
        for bytes in 0..=MAX_SLOT {
            let (class, size) = class_of(bytes);
            assert!(size >= bytes && size.is_multiple_of(8), "{bytes} B in {size} B");
            assert!(bytes < MIN_SLOT || size - bytes < 16, "{bytes} B in {size} B");
            classes.insert((class, size));
        }
        let numbers: Vec<_> = classes.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..CLASSES).collect::<Vec<_>>(), "a class has one size");
    }

    /// Records of three sizes come and go by chance; each has its own content throughout.
    #[test]
    fn a_record_keeps_its_bytes_when_it_moves_and_memory_follows_the_records() {
        let mut slab = Slab::new();
        let mut known: Vec<(u32, u64)> = Vec::new();
        let mut random = 1_u64;
        for turn in 0..20_000_u64 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(turn | 1);
            let grows = if turn < 10_000 { 11 } else { 5 };
            if (random >> 40) % 16 < grows || known.is_empty() {
                let at = slab.alloc([60, 300, 1500][(random >> 50) as usize % 3]);
                slab.slot_mut(at)[..8].copy_from_slice(&turn.to_le_bytes());
                known.push((at, turn));
            } else {
                let (at, _) = known.swap_remove((random >> 30) as usize % known.len());
                if let Some(Moved { from, to }) = slab.free(at) {
                    known.iter_mut().filter(|(at, _)| *at == from).for_each(|(at, _)| *at = to);
                }
            }
            if turn % 64 == 0 {
                let held =
                    |&(at, content): &(u32, u64)| slab.slot(at)[..8] == content.to_le_bytes();
                assert!(known.iter().all(held), "turn {turn}");
                let mut all: Vec<u32> = slab.records().collect();
                let mut expected: Vec<u32> = known.iter().map(|(at, _)| *at).collect();
                all.sort_unstable();
                expected.sort_unstable();
                assert_eq!(all, expected);
                let used: usize = known.iter().map(|(at, _)| slab.size(*at)).sum();
                // A page of each class, a hole, and what pages take besides their slots.
                let most = used + used / 4 + 3 * MAX_SLOT + known.len() * PAGE_COST / 2;
                assert!(slab.bytes() <= Slab::FIXED + most, "{} B for {used}", slab.bytes());
            }
        }
        // References change as records move: whatever is first goes.
        for _ in 0..known.len() {
            let first = slab.records().next().expect("as many as are known");
            slab.free(first);
        }
        assert_eq!((slab.len(), slab.bytes()), (0, Slab::FIXED));
    }
}
