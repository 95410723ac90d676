//! How an object lies in its slot.
//!
//! ```text
//! small: | header | expiry? | group? | partition? | key | value |
//! large: | header | expiry? | group? | partition? | number | key length |
//! ```
//!
//! Expiry, group and partition take space where they are not 0. Key and value of a large object lie
//! in an allocation of their own, which readers share. Those of a small object are copied for them.

use bytes::Bytes;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::entry::{DramObject, EntryState};
use super::fifo::Queue;
use super::slab::MAX_SLOT;
use crate::index::Location;

/// Most bytes of key and value that lie in a slot.
const MAX_SMALL: usize = MAX_SLOT - HEADER - 3 * size_of::<U32>();
/// Bytes of a header.
pub(super) const HEADER: usize = size_of::<PackedHeader>();
/// Bytes behind the header of a large object.
const LARGE: usize = size_of::<LargePart>();

/// Bits of the flags. The lowest two count hits since it joined its queue, at most 3.
const FREQ: u8 = 3;
/// It is on the main queue, else on the small one.
const MAIN: u8 = 1 << 2;
/// Flash held it when it came.
const COPY: u8 = 1 << 3;
/// It is on the dirty queue.
const DIRTY: u8 = 1 << 4;
/// What follows the header.
const EXPIRY: u8 = 1 << 5;
const GROUP: u8 = 1 << 6;
const PARTITION: u8 = 1 << 7;
const PARTS: u8 = EXPIRY | GROUP | PARTITION;

/// Lengths of key and value in a slot: 11 bits each, and one that says that they are not there.
const LEN_BITS: u32 = 11;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;
const IS_LARGE: u32 = 1 << (2 * LEN_BITS);
const _: () = assert!(MAX_SMALL < 1 << LEN_BITS);

/// What every object has.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct PackedHeader {
    pub(super) hash: U64,
    /// Next record of the same bucket.
    pub(super) chain: U32,
    /// Place on small or main.
    pub(super) place: U32,
    pub(super) version: U64,
    /// Of a dirty object its place on the dirty queue, of another its location on flash.
    at: [u8; 5],
    flags: u8,
    lens: [u8; 3],
    ns: U16,
}

/// What a large object has instead of key and value.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LargePart {
    /// Which of the allocations.
    number: U32,
    key_len: U16,
}

/// Whether key and value of so many bytes have an allocation of their own.
pub(super) const fn is_large(bytes: usize) -> bool {
    bytes > MAX_SMALL
}

/// The allocation that the DRAM tier keeps of a large object; none of one that lies in a slot.
pub(crate) fn join_large(object: &DramObject<'_>) -> Option<Bytes> {
    is_large(object.len()).then(|| object.to_shared())
}

/// Bytes of a slot that an object takes, `parts` of it being expiry, group and partition.
pub(super) const fn record_len(bytes: usize, parts: usize) -> usize {
    let data = if is_large(bytes) { LARGE } else { bytes };
    HEADER + parts * size_of::<U32>() + data
}

/// The same for one object.
pub(super) fn len_of(object: &DramObject<'_>) -> usize {
    record_len(object.len(), parts_of(object))
}

/// How many of expiry, group and partition an object has.
pub(super) fn parts_of(object: &DramObject<'_>) -> usize {
    let parts = [object.expiry, object.group, object.epoch_slot];
    parts.iter().filter(|part| **part != 0).count()
}

impl PackedHeader {
    pub(super) fn of(slot: &[u8]) -> &Self {
        Self::ref_from_prefix(slot).expect("a slot is longer than a header").0
    }

    pub(super) fn of_mut(slot: &mut [u8]) -> &mut Self {
        Self::mut_from_prefix(slot).expect("a slot is longer than a header").0
    }

    /// Small or main.
    pub(super) fn queue(&self) -> Queue {
        if self.flags & MAIN == 0 { Queue::Small } else { Queue::Main }
    }

    pub(super) fn set_queue(&mut self, queue: Queue) {
        self.flags = self.flags & !MAIN | if queue == Queue::Main { MAIN } else { 0 };
    }

    /// Hits since it joined its queue.
    pub(super) fn freq(&self) -> u8 {
        self.flags & FREQ
    }

    /// Sets the hits, of which at most [`MAX_FREQ`] are counted.
    pub(super) fn set_freq(&mut self, freq: u8) {
        self.flags = self.flags & !FREQ | freq.min(MAX_FREQ);
    }

    /// Whether flash held it when it came.
    pub(super) fn is_copy(&self) -> bool {
        self.flags & COPY != 0
    }

    /// The place on the dirty queue of what is there.
    pub(super) fn dirty_place(&self) -> Option<u32> {
        (self.flags & DIRTY != 0).then(|| self.at_bits() as u32)
    }

    pub(super) fn set_dirty_place(&mut self, place: u32) {
        self.flags |= DIRTY;
        self.set_at_bits(u64::from(place));
    }

    pub(super) fn set_clean(&mut self, at: Location) {
        self.flags &= !DIRTY;
        self.set_at_bits(at.bits());
    }

    pub(super) fn is_large(&self) -> bool {
        self.lens() & IS_LARGE != 0
    }

    fn state(&self) -> EntryState {
        if self.flags & DIRTY != 0 {
            return EntryState::Dirty;
        }
        EntryState::Clean(Location::from_bits(self.at_bits()))
    }

    fn at_bits(&self) -> u64 {
        let [a, b, c, d, e] = self.at;
        u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
    }

    fn set_at_bits(&mut self, bits: u64) {
        debug_assert!(bits < 1 << 40);
        let [a, b, c, d, e, ..] = bits.to_le_bytes();
        self.at = [a, b, c, d, e];
    }

    fn lens(&self) -> u32 {
        let [a, b, c] = self.lens;
        u32::from_le_bytes([a, b, c, 0])
    }
}

/// Hits counted at most.
pub(super) const MAX_FREQ: u8 = FREQ;

/// Writes an object that is neither on a queue nor in a bucket yet. A large one has the allocation
/// `number`.
pub(super) fn write_new(slot: &mut [u8], object: &DramObject<'_>, number: u32) {
    let header = PackedHeader {
        hash: object.hash.into(),
        chain: 0.into(),
        place: 0.into(),
        version: 0.into(),
        at: [0; 5],
        flags: if object.is_dirty() { 0 } else { COPY },
        lens: [0; 3],
        ns: 0.into(),
    };
    *PackedHeader::of_mut(slot) = header;
    write(slot, object, number);
}

/// Writes an object in the place of an older one. Its queues, its place in the bucket and its state
/// stay.
pub(super) fn write(slot: &mut [u8], object: &DramObject<'_>, number: u32) {
    let (header, rest) =
        PackedHeader::mut_from_prefix(slot).expect("a slot is longer than a header");
    header.version = object.version.into();
    header.ns = object.ns.into();
    header.flags &= !PARTS;
    let (mut parts, mut behind) = (0, 0);
    for (flag, part) in
        [(EXPIRY, object.expiry), (GROUP, object.group), (PARTITION, object.epoch_slot)]
    {
        if part != 0 {
            parts |= flag;
            rest[behind..behind + 4].copy_from_slice(&part.to_le_bytes());
            behind += 4;
        }
    }
    header.flags |= parts;
    let (key, value) = (object.key, object.value);
    let rest = &mut rest[behind..];
    let lens = if is_large(object.len()) {
        let part = LargePart { number: number.into(), key_len: (key.len() as u16).into() };
        rest[..LARGE].copy_from_slice(part.as_bytes());
        IS_LARGE
    } else {
        rest[..key.len()].copy_from_slice(key);
        rest[key.len()..object.len()].copy_from_slice(value);
        (value.len() as u32) << LEN_BITS | key.len() as u32
    };
    let [a, b, c, _] = lens.to_le_bytes();
    header.lens = [a, b, c];
}

/// The number of a large object's allocation.
pub(super) fn large_number(slot: &[u8]) -> Option<u32> {
    let header = PackedHeader::of(slot);
    header.is_large().then(|| large_part(behind_parts(header, slot)).number.get())
}

/// Has a large object be in another allocation.
pub(super) fn set_large_number(slot: &mut [u8], number: u32) {
    let start = slot.len() - behind_parts(PackedHeader::of(slot), slot).len();
    let bytes = U32::new(number);
    slot[start..start + size_of::<U32>()].copy_from_slice(bytes.as_bytes());
}

fn large_part(rest: &[u8]) -> &LargePart {
    LargePart::ref_from_prefix(rest).expect("the slot of a large object").0
}

/// What comes behind expiry, group and partition.
fn behind_parts<'a>(header: &PackedHeader, slot: &'a [u8]) -> &'a [u8] {
    &slot[HEADER + (header.flags & PARTS).count_ones() as usize * size_of::<U32>()..]
}

/// Whether the object in a slot is that of a key.
pub(super) fn is(slot: &[u8], ns: u16, key: &[u8], large: impl Fn(u32) -> bool) -> bool {
    let header = PackedHeader::of(slot);
    if header.ns.get() != ns {
        return false;
    }
    let rest = behind_parts(header, slot);
    if header.is_large() {
        return large(large_part(rest).number.get());
    }
    rest.get(..(header.lens() & LEN_MASK) as usize) == Some(key)
}

/// The object in a slot; `large` finds the allocation of a large one.
pub(super) fn read<'a>(slot: &'a [u8], large: impl FnOnce(u32) -> &'a Bytes) -> DramObject<'a> {
    let header = PackedHeader::of(slot);
    let mut rest = &slot[HEADER..];
    let mut part = |flag| {
        if header.flags & flag == 0 {
            return 0;
        }
        let (part, behind) = rest.split_at(size_of::<U32>());
        rest = behind;
        u32::from_le_bytes(part.try_into().expect("four bytes"))
    };
    let (expiry, group, epoch_slot) = (part(EXPIRY), part(GROUP), part(PARTITION));
    let ((key, value), shared) = if header.is_large() {
        let part = large_part(rest);
        let data = large(part.number.get());
        (data.split_at(part.key_len.get().into()), Some(data))
    } else {
        let lens = header.lens();
        let (key, value) = rest.split_at((lens & LEN_MASK) as usize);
        ((key, &value[..(lens >> LEN_BITS) as usize]), None)
    };
    DramObject {
        hash: header.hash.get(),
        version: header.version.get(),
        expiry,
        group,
        epoch_slot,
        ns: header.ns.get(),
        state: header.state(),
        key,
        value,
        shared,
    }
}
