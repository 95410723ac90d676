//! The public interface of a namespace: the operations on its objects.

mod all;
pub(crate) mod open;
pub(crate) mod state;

use std::io;
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use all::Namespaces;

use crate::api::{Hit, Listed, MissReason, PutOptions, PutOutcome, RefuseReason};
use crate::core::Core;
use crate::device::{AlignedBuf, DeviceId};
use crate::durability::backpressure::Backpressure;
use crate::durability::pending::Ack;
use crate::format::journal::Event;
use crate::namespace::state::{NamespaceState, epoch_slot};
use crate::ops::get::{Lookup, Peek};
use crate::ops::list::{Keys, Listing};
use crate::ops::modify::{Change, Changed, Modified, Modify};

/// Objects with their own options. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Namespace {
    core: Arc<Core>,
    ns: Arc<NamespaceState>,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace").field("name", &self.ns.name).finish_non_exhaustive()
    }
}

impl Namespace {
    /// Unix seconds as expiry counts them: never less than ever before, also in earlier lives of
    /// the cache.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.core.time.now()
    }

    /// Looks a key up without waiting for a device: [`Lookup::Flash`] says what to read.
    pub fn get(&self, key: &[u8]) -> Lookup {
        self.core.get(&self.ns, key)
    }

    /// Where a key's object is, for who is about to replace it. Not counted as a lookup, and no use
    /// of the object.
    #[must_use]
    pub fn peek(&self, key: &[u8]) -> Peek {
        self.core.peek(&self.ns, key)
    }

    /// What flash has of a key that [`Namespace::peek`] has found there, for who is about to
    /// replace it. Not counted as a lookup, finished or not. If the key is removed before the read
    /// is finished, the outcome is what was there when this was called, or a miss.
    pub fn peek_flash(&self, key: &[u8]) -> Lookup {
        self.core.peek_flash(&self.ns, key)
    }

    /// Announces that these keys are looked up next; the first [`PREFETCHED`](crate::PREFETCHED)
    /// count. Memory is asked at once for what all of them need in DRAM. It changes nothing;
    /// looking up several keys takes less time for it.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.core.prefetch(&self.ns, keys);
    }

    /// Looks a key up; reads from flash on this thread if need be (one `pread`, no hand-off). A
    /// miss when too many such reads are in flight.
    #[must_use]
    pub fn get_blocking(&self, key: &[u8]) -> Option<Hit> {
        self.look_up_blocking(key).ok()
    }

    fn look_up_blocking(&self, key: &[u8]) -> Result<Hit, MissReason> {
        let mut lookup = self.get(key);
        loop {
            lookup = match lookup {
                Lookup::Hit(hit) => return Ok(hit),
                Lookup::Miss(reason) => return Err(reason),
                Lookup::Flash(read) => {
                    match self.read_blocking(read.device(), read.offset(), read.len()) {
                        Some(result) => read.finish(result),
                        None => read.busy(),
                    }
                }
            }
        }
    }

    /// One device read on this thread; `None` when too many are in flight.
    fn read_blocking(
        &self,
        device: DeviceId,
        offset: u64,
        len: u32,
    ) -> Option<io::Result<AlignedBuf>> {
        self.core.reads.run(|| self.core.set.read_at(device, offset, len))
    }

    /// Puts an object. When this returns no read returns an older value of the key, whatever the
    /// outcome (but for [`RefuseReason::Closed`]). Blocks for as long as the namespace's
    /// [`Durability`](crate::Durability) asks for, five seconds at most.
    pub fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> PutOutcome {
        self.core.wait_for_room();
        self.submit_put(key, value, options).wait()
    }

    /// For callers that must not block: what to await before a change (a put, removal or
    /// [`Namespace::modify`]) when the journal is full. It takes 50 ms at most; blocking calls wait
    /// by themselves. A change that does not wait, or whose wait ran out, is carried out all the
    /// same. If its journal entry is lost, Mutable namespaces would be cold after a crash until the
    /// next checkpoint.
    #[must_use]
    pub fn backpressure(&self) -> Option<Backpressure> {
        self.core.backpressure()
    }

    /// As [`Namespace::backpressure`], before a put that must not cost another object its copy on
    /// flash. It also waits while the write queue is full: as long as the device makes progress,
    /// and a second where it does not. A put that does not wait is stored all the same; what leaves
    /// the DRAM tier for it may be dropped, and counted.
    #[must_use]
    pub fn put_backpressure(&self) -> Option<Backpressure> {
        self.core.put_backpressure()
    }

    /// [`Namespace::put`] for callers that must not block: what has to be waited for is a future.
    /// See [`Namespace::backpressure`].
    pub fn submit_put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Ack<PutOutcome> {
        self.core.put(&self.ns, key, value, &options)
    }

    /// Puts an object if the key's version is `expected` (`None`: if there is no such object).
    /// Otherwise it refuses with [`RefuseReason::VersionMismatch`], also when the object cannot be
    /// read now. May read from flash to learn the version. See [`Namespace::modify`] for callers
    /// that must not block.
    pub fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
        expected: Option<u64>,
    ) -> PutOutcome {
        let change = |found: Option<&Hit>| match found.map(|hit| hit.version) == expected {
            true => (Change::Put { value: Bytes::copy_from_slice(value), options }, ()),
            false => (Change::Keep, ()),
        };
        match self.modify_blocking(key, change) {
            Ok(Modified { changed: Changed::Put(outcome), .. }) => outcome,
            _ => {
                self.ns.counters.refuse(RefuseReason::VersionMismatch);
                PutOutcome::Refused(RefuseReason::VersionMismatch)
            }
        }
    }

    /// A serialized read-modify-write: finds the object, wherever it is, and has `change` decide
    /// what becomes of it. No other change of the key comes in between, so no update is lost. What
    /// `change` returns beside the [`Change`] is handed back.
    ///
    /// Does not wait for a device: [`Modify::Flash`] says what to read, as [`Lookup::Flash`] does.
    /// `change` is called at most once, under a lock that other keys share: it should do no more
    /// than make the new value.
    ///
    /// Counts as one lookup and, if something is changed, one put or removal.
    ///
    /// ```no_run
    /// # use afterglow_engine::{Change, Changed, Hit, MissReason, Modify, Modified, Namespace};
    /// fn increment(ns: &Namespace, key: &[u8], by: u64) -> Result<Option<u64>, MissReason> {
    ///     let change = |found: Option<&Hit>| {
    ///         let Some(hit) = found else { return (Change::Keep, None) };
    ///         let old = std::str::from_utf8(&hit.value).ok().and_then(|text| text.parse::<u64>().ok());
    ///         match old.map(|old| old.wrapping_add(by)) {
    ///             Some(new) => (Change::Value(new.to_string().into()), Some(new)),
    ///             None => (Change::Keep, None),
    ///         }
    ///     };
    ///     let mut modify = ns.modify(key, change);
    ///     loop {
    ///         modify = match modify {
    ///             Modify::Done(outcome) => return outcome.map(|modified| modified.returned),
    ///             // A reactor awaits it.
    ///             Modify::Later(pending) => return Ok(pending.wait().returned),
    ///             // A reactor awaits a read on its own ring here.
    ///             Modify::Flash(read) => read.finish(Err(std::io::ErrorKind::Unsupported.into())),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn modify<F, T>(&self, key: &[u8], change: F) -> Modify<F, T>
    where
        F: FnOnce(Option<&Hit>) -> (Change, T),
    {
        self.core.modify(&self.ns, key, true, change)
    }

    /// [`Namespace::modify`] of a change that could not be made before, because the object could
    /// not be looked at. It was counted then, and is not counted again as a lookup.
    pub fn modify_again<F, T>(&self, key: &[u8], change: F) -> Modify<F, T>
    where
        F: FnOnce(Option<&Hit>) -> (Change, T),
    {
        self.core.modify(&self.ns, key, false, change)
    }

    /// [`Namespace::modify`], reading from flash on this thread if need be.
    ///
    /// # Errors
    /// Why the object could not be read. The index is still loading, the device failed, too many
    /// reads are in flight, or the object moved repeatedly. `change` was not called then, and
    /// nothing was changed.
    pub fn modify_blocking<F, T>(&self, key: &[u8], change: F) -> Result<Modified<T>, MissReason>
    where
        F: FnOnce(Option<&Hit>) -> (Change, T),
    {
        self.core.wait_for_room();
        let mut modify = self.modify(key, change);
        loop {
            modify = match modify {
                Modify::Done(outcome) => return outcome,
                Modify::Later(pending) => return Ok(pending.wait()),
                Modify::Flash(read) => {
                    match self.read_blocking(read.device(), read.offset(), read.len()) {
                        Some(result) => read.finish(result),
                        None => read.busy(),
                    }
                }
            }
        }
    }

    /// A version that no object has or will have, above those of all puts so far.
    #[must_use]
    pub fn fresh_version(&self) -> u64 {
        self.core.take_version()
    }

    /// Removes an object and returns the version of the removal: puts before it have lower
    /// versions. Blocks for a flush of the journal where the namespace is
    /// [`Durability::Synced`](crate::Durability), as all removals do.
    pub fn remove(&self, key: &[u8]) -> u64 {
        self.core.wait_for_room();
        self.core.remove(&self.ns, key)
    }

    /// [`Namespace::remove`] for callers that must not block.
    pub fn submit_remove(&self, key: &[u8]) -> Ack<u64> {
        self.core.remove_later(&self.ns, key)
    }

    /// Removes all objects of a group, in O(1). Puts into the group after this are not affected.
    pub fn remove_group(&self, group: u32) -> u64 {
        self.core.wait_for_room();
        self.core.kill(&self.ns, Event::Group { ns: self.ns.id, group })
    }

    /// [`Namespace::remove_group`] for callers that must not block.
    pub fn submit_remove_group(&self, group: u32) -> Ack<u64> {
        self.core.kill_later(&self.ns, Event::Group { ns: self.ns.id, group })
    }

    /// Removes all objects put with a token whose top 20 bits equal this one's, in O(1).
    pub fn bump_epoch(&self, token: u64) -> u64 {
        self.core.wait_for_room();
        self.core.kill(&self.ns, Event::Epoch { ns: self.ns.id, slot: epoch_slot(token) })
    }

    /// [`Namespace::bump_epoch`] for callers that must not block.
    pub fn submit_bump_epoch(&self, token: u64) -> Ack<u64> {
        self.core.kill_later(&self.ns, Event::Epoch { ns: self.ns.id, slot: epoch_slot(token) })
    }

    /// Lists the keys: all that exist from now until the last one is handed out, and maybe some put
    /// or removed meanwhile. A key may come twice. Blocks for reads of the flash that holds them,
    /// which is read once from end to end.
    pub fn keys(&self) -> Keys {
        Keys::keys(&self.core, &self.ns)
    }

    /// Lists the objects as [`Namespace::keys`] lists the keys; `take` maps each. It leaves out
    /// what cannot be read, and ends where objects move too fast. `take` is called under a lock: it
    /// must be short.
    pub fn list<T>(&self, take: impl FnMut(&Listed<'_>) -> T + Send + 'static) -> Listing<T> {
        Listing::new(&self.core, &self.ns, true, Box::new(take))
    }

    /// Samples about `most` objects of the DRAM tier at most, spread evenly over it. It shows
    /// `take` those that are alive and of this namespace. Says how many it looked at. `take` is
    /// called under a lock: it must be short.
    pub fn sample_dram(&self, most: usize, mut take: impl FnMut(&Listed<'_>)) -> u64 {
        let mut seen = 0;
        let each = most.div_ceil(self.core.shards.len()).max(1);
        for slot in &self.core.shards {
            let shard = slot.lock();
            let step = shard.dram.len().div_ceil(each).max(1);
            for object in shard.dram.every(step) {
                seen += 1;
                let is_ours = object.ns == self.ns.id;
                if is_ours && self.core.why_dead(&self.ns, &object.meta()).is_none() {
                    take(&object.listed());
                }
            }
        }
        seen
    }

    /// Has `told` called with each object that leaves the DRAM tier although flash does not take
    /// it, in the place of what was told before. It is called under a shard's lock, so it must be
    /// short and call nothing of the cache. Objects that go with their segment on flash are not
    /// read, and nobody is told of them.
    pub fn on_eviction(&self, told: impl Fn(&Listed<'_>) + Send + Sync + 'static) {
        self.ns.on_eviction(Arc::new(told));
    }

    /// Keeps what is put from now on out of the DRAM tier, also when it is read: objects that are
    /// so large that they would push all others out. A put writes to flash at once. It is refused
    /// where flash takes nothing at this moment, whatever the durability, with the reasons of
    /// `write-through`.
    pub fn keep_off_dram(&self) {
        self.ns.keep_off_dram();
    }

    /// Removes everything, in O(1).
    pub fn clear(&self) -> u64 {
        self.core.wait_for_room();
        self.core.kill(&self.ns, Event::Clear { ns: self.ns.id })
    }

    /// [`Namespace::clear`] for callers that must not block.
    pub fn submit_clear(&self) -> Ack<u64> {
        self.core.kill_later(&self.ns, Event::Clear { ns: self.ns.id })
    }
}
