//! Where values lie that are too long for one record: a *head* in the place of the value, and
//! *parts* in a namespace of their own.
//!
//! 1. A store draws an *incarnation*, and puts part after part under it.
//! 2. Once all of them are on flash, the head is put under the client's key, and written to flash
//!    too. So a reader finds the old value or the new one, whole, also after `kill -9`.
//! 3. A get reads the head, asks the index whether all parts are there, and reads one after the
//!    other.
//!
//! No part is ever replaced, so parts found under one incarnation are of one value. A part is
//! verified as every record is: checksum, key and version; its length is compared with what the
//! head says. Parts without a head are never found by anybody, and go with their segments.
//!
//! Parts are kept out of the DRAM tier: one value would push out thousands of others. They are
//! acknowledged once they are written, whatever the durability: a head on flash before its parts
//! would be of no use, and one that waits in DRAM would lose them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::head::{Head, MAX_PART, PART_UNIT};
use afterglow_engine::{
    Ack, Durability, Lookup, MissReason, Namespace, NamespaceOptions, Peek, Pending, PutOptions,
    PutOutcome, RefuseReason,
};

/// The namespace of the parts. No client's key leads there.
pub const PARTS_NAMESPACE: &str = "memcache-parts";
/// A part that flash does not take now is put again after this long.
pub const REFUSED_PAUSE: Duration = Duration::from_millis(5);
/// How often it is put again.
pub const REFUSED_TRIES: u32 = 400;

/// Bytes of a part where segments have so many.
pub fn part_len(segment: u64) -> usize {
    let part = (segment / 4).min(1 << 20) * 127 / 128 / PART_UNIT * PART_UNIT;
    usize::try_from(part.clamp(PART_UNIT, MAX_PART)).expect("at most a MiB")
}

/// The options of their namespace, where that of the objects has this durability.
pub fn options(objects: Durability) -> NamespaceOptions {
    let durability = match objects {
        Durability::WriteBack | Durability::WriteThrough => Durability::WriteThrough,
        Durability::Synced => Durability::Synced,
    };
    NamespaceOptions { durability, ..NamespaceOptions::default() }
}

/// Whether the parts of a value are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The index knows all of them.
    There,
    /// One of them is gone for good.
    Gone,
    /// It cannot be said now.
    Unknown(MissReason),
}

/// What became of a part that was put.
pub enum PartPut {
    /// It is there.
    Stored,
    /// It is acknowledged once it is where the namespace's durability says.
    Later(Pending<PutOutcome>),
    /// Flash does not take it at this moment.
    NotNow,
    /// It will not be stored.
    Refused,
}

/// Whether flash does not take a record at this moment only.
pub fn may_come_again(reason: RefuseReason) -> bool {
    use RefuseReason::{NoFreeSegment, QueueFull, WriteBudget};
    matches!(reason, QueueFull | NoFreeSegment | WriteBudget)
}

/// All parts of all values.
pub struct Parts {
    records: Namespace,
    /// Bytes of each part of a new value, but the last.
    part: usize,
    /// A value that was lost on its way to a client was told of.
    told: AtomicBool,
}

impl Parts {
    /// In a namespace, in parts of `part` bytes.
    pub fn new(records: Namespace, part: usize) -> Self {
        records.keep_off_dram();
        Parts { records, part, told: AtomicBool::new(false) }
    }

    /// The head of a new value of so many bytes.
    pub fn head(&self, len: usize) -> Head {
        Head::new(len, self.part)
    }

    /// Bytes of each part of a new value, but the last.
    pub fn part(&self) -> usize {
        self.part
    }

    /// What to await before a part is put.
    pub fn backpressure(&self) -> Option<afterglow_engine::Backpressure> {
        self.records.put_backpressure()
    }

    /// Puts part `n` of a value.
    pub fn put(&self, head: &Head, n: u32, part: &[u8]) -> PartPut {
        assert_eq!(part.len(), head.part_len(n), "part {n} of {head:?}");
        // It has no expiry: its head has one, which a touch may change.
        match self.records.submit_put(&head.key(n), part, PutOptions::default()) {
            Ack::Done(PutOutcome::Stored { .. }) => PartPut::Stored,
            Ack::Done(PutOutcome::Refused(reason)) if may_come_again(reason) => PartPut::NotNow,
            Ack::Done(PutOutcome::Refused(_)) => PartPut::Refused,
            Ack::Later(pending) => PartPut::Later(pending),
        }
    }

    /// Whether all parts are there, as far as the index knows: no device is read.
    ///
    /// The index has no keys, and another object may have the place of a part. Nearly all of those
    /// are shorter than the part, and the index knows that.
    pub fn presence(&self, head: &Head) -> Presence {
        for n in 0..head.count() {
            let key = head.key(n);
            let may_be_it = match self.records.peek(&key) {
                Peek::Dram(hit) => hit.value.len() == head.part_len(n),
                Peek::Flash | Peek::Absent => match self.records.peek_flash(&key) {
                    Lookup::Miss(reason) if reason.is_absence() => false,
                    Lookup::Miss(reason) => return Presence::Unknown(reason),
                    Lookup::Hit(hit) => hit.value.len() == head.part_len(n),
                    Lookup::Flash(read) => {
                        let most = read.most_of_record() as usize;
                        read.take_back();
                        most >= head.part_len(n)
                    }
                },
            };
            if !may_be_it {
                return Presence::Gone;
            }
        }
        Presence::There
    }

    /// Looks part `n` of a value up.
    pub fn look_up(&self, head: &Head, n: u32) -> Lookup {
        self.records.get(&head.key(n))
    }

    /// Says, once in the life of the process, that a value could not be sent to its end.
    pub fn tell_lost(&self, n: u32, reason: MissReason) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                part = n,
                reason = reason.label(),
                "a value in parts was lost while it was sent, so its connection was closed: a part was evicted or is damaged; the client reads again and misses. More flash keeps parts longer; `corrupt` or `device` means that the device fails. memcached_parts_lost_total counts what follows"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use afterglow_engine::device::DeviceConfig;
    use afterglow_engine::{Cache, Config};

    use super::*;

    #[test]
    fn a_part_whose_place_a_shorter_object_has_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let device = DeviceConfig { path: dir.path().join("flash"), size: 32 << 20 };
        let mut config = Config::new(dir.path(), vec![device]);
        (config.memory, config.journal_size) = (16 << 20, 1 << 20);
        let cache = Cache::open(config).unwrap();
        let records = cache.namespace("parts", options(Durability::WriteThrough)).unwrap();
        let parts = Parts::new(records.clone(), 8192);
        let head = parts.head(20_000);
        let put = |n: u32, len: usize| {
            let put = records.put(&head.key(n), &vec![7; len], PutOptions::default());
            assert!(matches!(put, PutOutcome::Stored { .. }), "{put:?}");
        };
        // What is still being written is read from memory, with its length.
        let is_sealed = |n: u32| match records.peek_flash(&head.key(n)) {
            Lookup::Flash(read) => {
                read.take_back();
                true
            }
            _ => false,
        };
        put(0, 8192);
        put(1, 8192);
        put(2, 20_000 - 2 * 8192);
        assert_eq!(parts.presence(&head), Presence::There);
        // As the index sees an object whose hash it cannot tell from the part's.
        put(1, 100);
        assert_eq!(parts.presence(&head), Presence::Gone);
        (3..).take_while(|_| !is_sealed(1)).for_each(|other| put(other, 8192));
        assert_eq!(parts.presence(&head), Presence::Gone);
        cache.close();
    }

    #[test]
    fn parts_fill_segments_of_any_size() {
        assert_eq!(part_len(16 << 20), 1016 << 10);
        for segment in [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20u64] {
            let (part, room) = (part_len(segment) as u64, segment / 32);
            assert!(part + 64 <= segment / 4, "{segment}: a quarter is the most of a record");
            assert!(segment % (part + 64) < segment / 4 || segment < 1 << 20, "{room}");
        }
    }
}
