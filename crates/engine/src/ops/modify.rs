//! Serialized read-modify-write of one key.
//!
//! 1. Find the object, with a device read if need be.
//! 2. Lock the key's shard and check that the object is still the one found. If not, begin again, a
//!    bounded number of times.
//! 3. The caller's closure decides. It runs at most once.
//! 4. Publish the change and unlock.
//!
//! Between 2 and 4 there is no other change of the key, no eviction and no relocation.
//!
//! Removals of many objects do not take the shard's lock. They take their version while nobody else
//! does so here. So either the removal comes first and the closure finds nothing, or the removal
//! gets the higher version and removes what is published.

use crate::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

use crate::sync::MutexGuard;
use bytes::Bytes;

use crate::api::{Hit, MissReason, PutOptions, PutOutcome, Tier};
use crate::core::Core;
use crate::device::{AlignedBuf, DeviceId};
use crate::durability::pending::{Ack, Pending};
use crate::index::{Location, Slot};
use crate::namespace::state::NamespaceState;
use crate::ops::get::{self, FlashRead, Lookup};
use crate::ops::put::{Put, Through};
use crate::shard::Shard;
use crate::tier::{DramEntry, EntryState, join};

/// How often the search for an object that moves begins again.
const MAX_TRIES: u8 = 8;

/// What the closure of a read-modify-write wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nothing: the object stays as it is, with its version.
    Keep,
    /// The same, and nothing is counted: the caller comes again.
    Later,
    /// Put this, as [`Namespace::put`](crate::Namespace::put) does.
    Put {
        /// The new value.
        value: Bytes,
        /// What goes with it.
        options: PutOptions,
    },
    /// Another value; expiry, group and partition stay. Like `Put` with default options where
    /// nothing was found.
    Value(Bytes),
    /// Another expiry (Unix seconds, [`NO_EXPIRY`](crate::NO_EXPIRY) for never) and a new version;
    /// the rest stays. Nothing where nothing was found.
    Touch(u32),
    /// Remove it.
    Remove,
}

/// What became of a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// Nothing was changed.
    Kept,
    /// The outcome of a put, of another value or of a touch.
    Put(PutOutcome),
    /// It is gone; the version of the removal.
    Removed(u64),
}

/// A read-modify-write that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modified<T> {
    /// What the closure returned beside the change.
    pub returned: T,
    /// What became of the change.
    pub changed: Changed,
}

/// How far a read-modify-write has come: see [`Namespace::modify`](crate::Namespace::modify).
#[must_use]
pub enum Modify<F, T> {
    /// It is over. An error says why the object could not be looked at; the closure was not called
    /// then, nothing was changed.
    Done(Result<Modified<T>, MissReason>),
    /// It is carried out, reads see it; its acknowledgement waits for the device (durabilities
    /// beyond write-back).
    Later(Pending<Modified<T>>),
    /// The object is probably on flash: read the range it names and hand the outcome to
    /// [`ModifyRead::finish`].
    Flash(ModifyRead<F>),
}

/// A read-modify-write that waits for one device read. Dropped unfinished it changes nothing and
/// counts as a miss.
#[must_use]
pub struct ModifyRead<F> {
    read: FlashRead,
    search: Search,
    change: F,
}

/// What a search for an object goes by.
struct Search {
    core: Arc<Core>,
    ns: Arc<NamespaceState>,
    key: Box<[u8]>,
    hash: u64,
    /// Where the index pointed, and which use of the segment that was.
    seen: Option<(Location, u64)>,
    tries: u8,
    /// Its outcome counts as a hit or miss of its namespace.
    counted: bool,
}

/// What is to be changed, and whether that is counted as a lookup.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    ns: &'a NamespaceState,
    key: &'a [u8],
    hash: u64,
    counted: bool,
}

impl<F> ModifyRead<F> {
    /// The device to read from.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.read.device()
    }

    /// First byte to read, a multiple of the device's alignment.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.read.offset()
    }

    /// Bytes to read, a multiple of the device's alignment.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.read.len()
    }

    /// Always false: there is something to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Goes on with the outcome of the read. The change is made, or there is another read because
    /// the object moved meanwhile (a bounded number of times).
    pub fn finish<T>(self, read: io::Result<AlignedBuf>) -> Modify<F, T>
    where
        F: FnOnce(Option<&Hit>) -> (Change, T),
    {
        let lookup = self.read.finish(read);
        self.search.settle(lookup, self.change)
    }

    /// Gives it up as if it had never been: nothing is changed, and no miss is counted.
    pub fn take_back(self) {
        self.read.take_back();
    }

    /// Ends it because too many reads are in flight: nothing is changed.
    pub fn busy<T>(self) -> Modify<F, T> {
        let _ = self.read.busy();
        self.search.give_up(MissReason::Busy)
    }
}

impl Core {
    /// See [`Namespace::modify`](crate::Namespace::modify) and, where it is not `counted`,
    /// [`Namespace::modify_again`](crate::Namespace::modify_again).
    pub(crate) fn modify<F, T>(
        self: &Arc<Self>,
        ns: &Arc<NamespaceState>,
        key: &[u8],
        counted: bool,
        change: F,
    ) -> Modify<F, T>
    where
        F: FnOnce(Option<&Hit>) -> (Change, T),
    {
        let hash = self.hash(ns.id, key);
        let wanted = Wanted { ns, key, hash, counted };
        let mut shard = self.shard(hash).lock_for(hash);
        if counted {
            shard.count_request(hash);
        }
        if let Some(entry) = shard.dram.get(hash, ns.id, key) {
            let found = Ok((entry.to_entry(), Tier::Dram));
            return self.change(shard, wanted, found, change);
        }
        let loading = self.progress.loading.load(Ordering::Acquire);
        let seen = self.seen(&shard, hash);
        if seen.is_none() && !loading {
            return self.change(shard, wanted, Err(MissReason::Absent), change);
        }
        drop(shard);
        let (core, ns) = (self.clone(), ns.clone());
        let search = Search { core, ns, key: key.into(), hash, seen, tries: 0, counted };
        let lookup = get::look_up_uncounted(self, &search.ns, key, hash);
        search.settle(lookup, change)
    }

    fn seen(&self, shard: &Shard, hash: u64) -> Option<(Location, u64)> {
        let at = shard.index.peek(hash).map(Slot::location)?;
        Some((
            at,
            if self.table.contains(at.segment) { self.table.generation(at.segment) } else { 0 },
        ))
    }

    /// Asks the closure and publishes what it wants, under the shard's lock.
    fn change<F, T>(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, Shard>,
        Wanted { ns, key, hash, counted }: Wanted<'_>,
        found: Result<(DramEntry, Tier), MissReason>,
        change: F,
    ) -> Modify<F, T>
    where
        F: FnOnce(Option<&Hit>) -> (Change, T),
    {
        let no_kill = self.namespaces.removing.read();
        let found = self.alive(ns, found);
        let hit = found.as_ref().ok().map(|(entry, tier)| entry.hit(*tier));
        let (change, returned) = change(hit.as_ref());
        if counted && change != Change::Later {
            match &found {
                Ok((_, tier)) => ns.counters.hit(*tier),
                Err(reason) => ns.counters.miss(*reason),
            }
        }
        let entry = found.ok().map(|(entry, _)| entry);
        let prepared = match (&change, &entry) {
            (Change::Keep | Change::Later, _) | (Change::Touch(_), None) => {
                return Modify::Done(Ok(Modified { returned, changed: Changed::Kept }));
            }
            (Change::Remove, _) => {
                let version = self.take_version();
                drop(no_kill);
                self.remove_locked(&mut shard, ns, hash, key, version);
                drop(shard);
                return self.removed_by_modify(ns, version, returned);
            }
            (Change::Put { value, options }, _) => self.prepare(ns, hash, key, value, options),
            (Change::Value(value), None) => {
                self.prepare(ns, hash, key, value, &PutOptions::default())
            }
            (Change::Value(value), Some(old)) => {
                let (expiry, group) = (old.expiry, old.group);
                let options = PutOptions { expiry, group, ..PutOptions::default() };
                let new = self.prepare(ns, hash, key, value, &options);
                new.map(|mut new| {
                    new.epoch_slot = old.epoch_slot;
                    new
                })
            }
            (Change::Touch(expiry), Some(old)) => self.touched(old, *expiry),
        };
        let through = match &change {
            Change::Put { options, .. } => Through::of(options),
            _ => Through::No,
        };
        let put = match self.take_put_version() {
            Ok(version) => {
                drop(no_kill);
                self.put_locked(&mut shard, ns, hash, key, prepared, (version, through))
            }
            Err(reason) => Put::Refused(reason),
        };
        drop(shard);
        self.put_by_modify(ns, put, returned)
    }

    /// What was found, if it is alive.
    fn alive(
        &self,
        ns: &NamespaceState,
        found: Result<(DramEntry, Tier), MissReason>,
    ) -> Result<(DramEntry, Tier), MissReason> {
        let (entry, tier) = found?;
        match self.why_dead(ns, &entry.meta()) {
            Some(reason) => Err(reason),
            None => Ok((entry, tier)),
        }
    }

    /// The object is removed: what its acknowledgement waits for.
    fn removed_by_modify<F, T>(
        self: &Arc<Self>,
        ns: &NamespaceState,
        version: u64,
        returned: T,
    ) -> Modify<F, T> {
        self.removed(ns);
        let modified = Modified { returned, changed: Changed::Removed(version) };
        match self.settle_later(ns) {
            Some(ticket) => {
                Modify::Later(Pending::new(self, ticket, modified, |modified, _| modified))
            }
            None => Modify::Done(Ok(modified)),
        }
    }

    /// The object is put, or refused: what its acknowledgement waits for.
    fn put_by_modify<F, T>(
        self: &Arc<Self>,
        ns: &NamespaceState,
        put: Put,
        returned: T,
    ) -> Modify<F, T> {
        let modified = |outcome| Modified { returned, changed: Changed::Put(outcome) };
        let refused = |modified, reason| {
            let changed = Changed::Put(PutOutcome::Refused(reason));
            Modified { changed, ..modified }
        };
        match self.acknowledge(ns, put, modified, refused) {
            Ack::Done(modified) => Modify::Done(Ok(modified)),
            Ack::Later(pending) => Modify::Later(pending),
        }
    }
}

impl Search {
    /// Goes on with what a lookup has found.
    fn settle<F, T>(mut self, mut lookup: Lookup, change: F) -> Modify<F, T>
    where
        F: FnOnce(Option<&Hit>) -> (Change, T),
    {
        loop {
            let found = match lookup {
                Lookup::Flash(read) => {
                    self.seen = Some(read.seen());
                    return Modify::Flash(ModifyRead { read, search: self, change });
                }
                Lookup::Miss(reason) if !reason.is_absence() => return self.give_up(reason),
                Lookup::Miss(reason) => Err(reason),
                Lookup::Hit(hit) => Ok(hit),
            };
            let (core, hash) = (&self.core, self.hash);
            let shard = core.shard(hash).lock_for(hash);
            let tier = found.as_ref().map_or(Tier::Dram, |hit| hit.tier);
            if let Some(entry) = shard.dram.peek(hash, self.ns.id, &self.key) {
                let found = Ok((entry.to_entry(), tier));
                return core.change(shard, self.wanted(), found, change);
            }
            let loading = core.progress.loading.load(Ordering::Acquire);
            let seen = core.seen(&shard, hash);
            let found = match seen {
                // Whatever was found is gone, and nothing has come.
                None if !loading => Some(found.and(Err(MissReason::Absent))),
                // Whether its group was removed may be forgotten.
                Some((at, generation)) if !core.table.is_still(at.segment, generation) => None,
                Some(_) if seen == self.seen => Some(found.map(|hit| (self.entry(&hit), hit.tier))),
                _ => None,
            };
            if let Some(found) = found {
                return core.change(shard, self.wanted(), found, change);
            }
            drop(shard);
            coverage_mark!(ModifyOvertaken);
            self.seen = seen;
            self.tries += 1;
            if self.tries > MAX_TRIES {
                return self.give_up(MissReason::Moved);
            }
            lookup = get::look_up_uncounted(&self.core, &self.ns, &self.key, hash);
        }
    }

    fn give_up<F, T>(self, reason: MissReason) -> Modify<F, T> {
        if self.counted {
            self.ns.counters.miss(reason);
        }
        Modify::Done(Err(reason))
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted { ns: &self.ns, key: &self.key, hash: self.hash, counted: self.counted }
    }

    /// An object on flash that the DRAM tier did not take.
    fn entry(&self, hit: &Hit) -> DramEntry {
        DramEntry {
            hash: self.hash,
            version: hit.version,
            data: join(&self.key, &hit.value),
            key_len: self.key.len() as u32,
            expiry: hit.expiry,
            group: hit.group,
            epoch_slot: hit.partition,
            ns: self.ns.id,
            state: EntryState::Dirty,
        }
    }
}
