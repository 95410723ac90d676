//! Writes an object of the DRAM tier to flash: admits it, appends it to its stream, publishes it in
//! the index.

use crate::api::{DropReason, NO_EXPIRY};
use crate::core::Core;
use crate::format::record;
use crate::index::{Location, SizeClass, Slot};
use crate::segment::{AppendError, Appended, Object, StreamId};
use crate::shard::Shard;
use crate::tier::admission::Admission;
use crate::tier::{DramEntry, DramObject, NOWHERE};

/// Objects that expire within this many seconds go to their own segments.
const SHORT_TTL: u64 = 3600;

impl Core {
    /// Copies an entry of the DRAM tier to flash; what is refused is not asked for again until it
    /// is evicted.
    pub(crate) fn copy_out(&self, shard: &mut Shard, entry: &DramEntry, forced: bool) -> bool {
        let admission = if forced { Admission::Forced } else { Admission::Asked };
        match self.write_out(shard, &entry.object(), admission) {
            Ok(at) => shard.dram.mark_clean(entry.hash, entry.version, at),
            // The device is behind or segments are being reclaimed: the entry stays dirty and is
            // tried again.
            Err(DropReason::QueueFull | DropReason::NoFreeSegment | DropReason::WriteFailed) => {
                false
            }
            Err(_) => {
                self.totals.copies_refused.inc();
                shard.dram.mark_clean(entry.hash, entry.version, NOWHERE)
            }
        }
    }

    /// Appends an object to its stream and publishes where it is.
    pub(crate) fn write_out(
        &self,
        shard: &mut Shard,
        entry: &DramObject<'_>,
        admission: Admission,
    ) -> Result<Location, DropReason> {
        // The pair of what a get checks before it promotes: nothing older is copied to flash, where
        // its slot would take the newer record's place.
        debug_assert!(!shard.is_superseded(entry.hash, entry.version), "{entry:?} is superseded");
        let (key, value) = (entry.key(), entry.value());
        let len = record::usual_padded(key.len(), value.len());
        let known = (entry.hash, || shard.sketch.estimate(entry.hash));
        let free = self.table.free_count();
        self.admission.admit(admission, known, len, free, || self.written())?;
        let short =
            entry.expiry != NO_EXPIRY && u64::from(entry.expiry) < self.time.now() + SHORT_TTL;
        let stream = if short { StreamId::ShortTtl } else { StreamId::New };
        let object = Object { hash: entry.hash, meta: entry.meta(), key, value };
        let awaited = if let Admission::Through(id) = admission { Some(id) } else { None };
        let appended = self.append(stream, &object, awaited)?;
        if admission == Admission::Asked {
            self.admission.duel.wrote(entry.hash, appended.len);
        }
        self.publish(shard, entry.hash, appended);
        Ok(appended.at)
    }

    pub(crate) fn append(
        &self,
        stream: StreamId,
        object: &Object<'_>,
        awaited: Option<u64>,
    ) -> Result<Appended, DropReason> {
        self.streams.append(stream, object, self.time.millis(), awaited).map_err(|e| match e {
            AppendError::NoFreeSegment => DropReason::NoFreeSegment,
            AppendError::QueueFull => DropReason::QueueFull,
            AppendError::Failing => DropReason::WriteFailed,
        })
    }

    /// Adds a line to an index that is full and may grow.
    pub(crate) fn grow_index(&self, shard: &mut Shard) {
        let gone = shard.index.grow_if_full();
        self.count_gone(gone);
    }

    /// Keeps an index from growing while a checkpoint captures it. One that is about to be full
    /// grows before, as far as it takes no long time under the shard's lock.
    pub(crate) fn hold_index(&self, shard: &mut Shard) {
        const MOST: usize = 1024;
        let gone = shard.index.grow_ahead(MOST);
        self.count_gone(gone);
        shard.index.hold();
    }

    fn count_gone(&self, gone: Vec<Slot>) {
        for slot in gone {
            self.table.slot_removed(slot.location().segment);
            self.totals.dropped(DropReason::IndexFull, 1);
        }
    }

    /// Points the index at a record.
    pub(crate) fn publish(&self, shard: &mut Shard, hash: u64, record: Appended) {
        let Appended { at, len } = record;
        debug_assert!(at.offset() + len <= self.table.segment_size(), "{at:?} of {len} bytes");
        let class = SizeClass::from_bytes(len).expect("a quarter of a segment fits a size class");
        self.grow_index(shard);
        let inserted = shard.index.insert(hash, at, class);
        self.table.slot_added(at.segment);
        if let Some(old) = inserted.replaced {
            self.table.slot_removed(old.location().segment);
        }
        if let Some(old) = inserted.evicted {
            self.table.slot_removed(old.location().segment);
            self.totals.dropped(DropReason::IndexFull, 1);
        }
    }
}
