//! The public face: a cache and its namespaces.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use bytes::Bytes;

use crate::api::{Hit, MissReason, PutOptions, PutOutcome, RefuseReason};
use crate::background::{Background, THREAD};
use crate::clock::SystemClock;
use crate::config::{Config, NamespaceOptions};
use crate::core::Core;
use crate::device::area::{
    DirLock, FileMetaStore, Media, MediaError, MmapMedia, PwriteMedia, boot_id, unfit_to_map,
};
use crate::device::{self, AlignedBuf, DeviceId, DeviceSet, Disk};
use crate::durability::backpressure::{Backpressure, Watch};
use crate::durability::pending::Ack;
use crate::error::OpenError;
use crate::format::journal::Event;
use crate::format::state::NamespaceRecord;
use crate::namespace::{NamespaceState, epoch_slot};
use crate::ops::get::Lookup;
use crate::ops::list::{Keys, Listed, Listing};
use crate::ops::modify::{Change, Changed, Modified, Modify};
use crate::recovery::{self, Env, Opening};
use crate::stats::Stats;

/// How long the background thread waits for a device before it looks at the rest of its work again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the end of a cache waits for a device, or a disk under the data directory, that does not answer at all.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What a shard of the DRAM tier has at least, in bytes.
const LEAST_DRAM: u64 = 4096;
/// How often it looks whether the background thread is over.
const JOIN: Duration = Duration::from_millis(1);

/// An open cache. Dropping it without [`Cache::close`] is like the death of the process: the next opening recovers.
pub struct Cache {
    core: Arc<Core>,
    shared: Arc<BackgroundThread>,
    worker: Mutex<Option<JoinHandle<()>>>,
    watch: Mutex<Option<Watch>>,
    opening: Opening,
    /// How long its end waits for a device that does not answer.
    timeout: Duration,
    /// What the DRAM tier was opened with; held while it is resized.
    dram_at_opening: Mutex<u64>,
    /// Held for as long as the cache is open.
    _lock: DirLock,
}

/// What the background thread is told.
#[derive(Default)]
struct BackgroundThread {
    close: AtomicBool,
    abandon: AtomicBool,
    /// Nobody waits for the thread any more.
    given_up: AtomicBool,
    /// Grows for as long as the thread gets on.
    beats: AtomicU64,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl Cache {
    /// Opens the cache of `config.data_dir`, creating it when there is none, and starts its background thread. What
    /// survived is served at once, the index loads behind.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do about it.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let lock = DirLock::acquire(&config.data_dir)?;
        // Before a size or mode of anything is changed.
        recovery::refuse_others(&config, &FileMetaStore::new(&config.data_dir))?;
        let opened = device::open(&config.devices, config.io)?;
        let journal = open_journal(&config)?;
        let random = || uuid::Uuid::new_v4().as_u64_pair();
        let ((a, b), (c, _)) = (random(), random());
        let env = Env {
            set: opened.set,
            meta: Arc::new(FileMetaStore::new(&config.data_dir)),
            journal,
            clock: Arc::new(SystemClock::default()),
            boot_id: boot_id().ok().map(|id| id.0),
            entropy: [a, b, c],
        };
        let (mut disk, truncated) = (opened.disk, opened.truncated);
        let mut opened = recovery::open(&config, env, &mut *disk)?;
        // Of what is made anew nothing can be lost.
        if !opened.opening.is_empty() {
            opened.opening.truncated = truncated;
        }
        Self::start(opened, disk, lock, TIMEOUT)
    }

    fn start(
        opened: recovery::Opened,
        disk: Box<dyn Disk>,
        lock: DirLock,
        timeout: Duration,
    ) -> Result<Self, OpenError> {
        let recovery::Opened { core, background, opening } = opened;
        let shared = Arc::new(BackgroundThread::default());
        let worker = {
            let (shared, core) = (shared.clone(), core.clone());
            thread::Builder::new()
                .name(THREAD.into())
                .spawn(move || {
                    core.streams.set_worker(thread::current());
                    run(background, disk, &shared);
                })
                .map_err(|source| OpenError::Thread { source })?
        };
        let dram_at_opening = Mutex::new(core.stats().dram_capacity);
        let cache = Self {
            core,
            shared,
            worker: Mutex::new(Some(worker)),
            watch: Mutex::new(None),
            opening,
            timeout,
            dram_at_opening,
            _lock: lock,
        };
        // Dropped, it ends the thread that it has already.
        *cache.watch.lock() = Some(Watch::start(&cache.core)?);
        Ok(cache)
    }

    /// Opens a namespace, creating it when there is none of that name. Handles are cheap to clone.
    ///
    /// With another mutability or survival than before, the namespace starts empty.
    ///
    /// # Errors
    /// When the metadata cannot be written, or the namespace is already open with other options.
    pub fn namespace(&self, name: &str, options: NamespaceOptions) -> Result<Namespace, OpenError> {
        open_namespace(&self.core, name, options)
    }

    /// What opening it found and kept.
    #[must_use]
    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    /// Everything counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Makes the DRAM tier smaller by so many bytes than it was opened with, until the next call; 0 gives all of it back. What no longer
    /// fits is evicted, as fast as the device takes it. Blocks until that is done. False when less than a page a shard
    /// would be left: nothing is changed then.
    pub fn withhold_dram(&self, bytes: u64) -> bool {
        let full = self.dram_at_opening.lock();
        let shards = self.core.shards.len() as u64;
        let Some(left) = full.checked_sub(bytes).filter(|left| *left >= shards * LEAST_DRAM) else {
            return false;
        };
        for shard in &self.core.shards {
            self.core.resize_dram(shard, (left / shards) as usize);
        }
        true
    }

    /// The descriptor of a device for reads on the caller's own ring, opened with `O_DIRECT`; valid as long as the cache is
    /// open.
    #[must_use]
    pub fn device_fd(&self, device: DeviceId) -> Option<RawFd> {
        self.core.set.raw_fd(device)
    }

    /// All devices, for callers that read flash themselves.
    #[must_use]
    pub fn devices(&self) -> Arc<dyn DeviceSet> {
        self.core.set.clone()
    }

    /// Makes every journal entry so far survive power loss.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn sync(&self) -> io::Result<()> {
        self.core.journal.sync()
    }

    /// The clean stop: refuses puts from now on, writes the DRAM tier out, takes a checkpoint and marks the cache clean.
    /// Blocks until that is done; a device that does not answer for ten seconds is given up, with an error in the log, and the
    /// next start is as after a crash. Calling it again does nothing.
    pub fn close(&self) {
        self.shared.close.store(true, Ordering::Release);
        self.join();
    }

    fn join(&self) {
        self.join_worker();
        // A worker that was given up has not said so.
        self.core.rooms.end();
        if let Some(watch) = self.watch.lock().take() {
            watch.join();
        }
    }

    fn join_worker(&self) {
        let Some(worker) = self.worker.lock().take() else { return };
        worker.thread().unpark();
        let (mut beats, mut since) = (self.shared.beats.load(Ordering::Relaxed), Instant::now());
        while !worker.is_finished() {
            thread::sleep(JOIN);
            let now = self.shared.beats.load(Ordering::Relaxed);
            if now != beats {
                (beats, since) = (now, Instant::now());
            } else if since.elapsed() > self.timeout {
                tracing::error!(
                    "a device or disk does not answer: it is given up, the next start is as after a crash"
                );
                self.shared.abandon.store(true, Ordering::Release);
                self.shared.given_up.store(true, Ordering::Release);
                return;
            }
        }
        if worker.join().is_err() {
            tracing::error!("the background thread died: the next start is as after a crash");
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.shared.abandon.store(true, Ordering::Release);
        self.join();
    }
}

/// The journal's area, created when there is none that could be one.
fn open_journal(config: &Config) -> Result<Arc<dyn Media>, MediaError> {
    let path = config.data_dir.join("journal");
    let len = config.journal_size.max(8192).next_multiple_of(4096);
    let fits = |len: u64| len >= 8192;
    let unfit = unfit_to_map(&config.data_dir).filter(|_| config.mapped_journal);
    if let Some(file_system) = unfit {
        tracing::info!(
            file_system,
            "the journal is written with pwrite and not mapped: a page that this file system cannot write would end the process"
        );
    }
    if config.mapped_journal && unfit.is_none() {
        let media = MmapMedia::open(&path)?.filter(|media| fits(media.len()));
        return Ok(Arc::new(media.map_or_else(|| MmapMedia::create(&path, len), Ok)?));
    }
    let media = PwriteMedia::open(&path)?.filter(|media| fits(media.len()));
    Ok(Arc::new(media.map_or_else(|| PwriteMedia::create(&path, len), Ok)?))
}

/// A driver that tells whoever waits when it steps no more, whatever ends it.
struct Driven(Background);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// The background thread.
fn run(background: Background, mut disk: Box<dyn Disk>, shared: &BackgroundThread) {
    let mut driven = Driven(background);
    let background = &mut driven.0;
    let (mut ios, mut done) = (Vec::new(), Vec::new());
    loop {
        let abandoned = shared.abandon.load(Ordering::Acquire);
        if shared.close.load(Ordering::Acquire) {
            background.start_close();
        }
        if !abandoned && !background.is_closed() {
            background.step(&mut ios);
        }
        for io in ios.drain(..) {
            disk.submit(io);
        }
        let waiting = disk.in_flight() > 0;
        if waiting {
            disk.wait_for(POLL_INTERVAL, &mut done);
        } else if abandoned || background.is_closed() {
            return;
        } else if !background.is_busy() {
            thread::park_timeout(background.nap());
        }
        if !waiting || !done.is_empty() {
            shared.beats.fetch_add(1, Ordering::Relaxed);
        }
        for d in done.drain(..) {
            background.complete(d);
        }
        if shared.given_up.load(Ordering::Acquire) {
            // The kernel may yet write into the buffers of what is in flight: they stay where they are.
            std::mem::forget(disk);
            return;
        }
    }
}

pub(crate) fn open_namespace(
    core: &Arc<Core>,
    name: &str,
    options: NamespaceOptions,
) -> Result<Namespace, OpenError> {
    // One at a time; those who only look namespaces up (evictions, under their shard's lock) do not wait for the disk.
    let _opening = core.opening.lock();
    let (known, count) = {
        let namespaces = core.namespaces.read();
        (namespaces.iter().find(|ns| ns.name == name).cloned(), namespaces.len())
    };
    if let Some(ns) = &known {
        if ns.options == options {
            ns.set_open();
            return Ok(Namespace { core: core.clone(), ns: ns.clone() });
        }
        if ns.is_open() {
            return Err(OpenError::Config(format!("namespace {name} is already open with other options")));
        }
    }
    let id = known.as_ref().map_or(count, |ns| usize::from(ns.id));
    let Ok(id) = u16::try_from(id) else {
        return Err(OpenError::Config("65,536 namespaces exist already".into()));
    };
    let ns = Arc::new(NamespaceState::new(id, name.to_owned(), options));
    let mut cleared = 0;
    if let Some(old) = known {
        ns.restore(&old.kills());
        let same = old.options.mutability == options.mutability && old.options.survives == options.survives;
        if !same {
            cleared = core.kill(&ns, Event::Clear { ns: id });
        }
        // The new options may promise more at power loss than the old ones: for what the old ones have journalled, too.
        core.journal.sync().map_err(OpenError::io("flushing the journal"))?;
    }
    core.update_state(|state| {
        let kill = state.namespaces.iter().find(|n| n.id == id).map_or(0, |n| n.kill).max(cleared);
        state.namespaces.retain(|n| n.id != id);
        state.namespaces.push(NamespaceRecord { id, name: name.to_owned(), options, kill });
        state.namespaces.sort_by_key(|n| n.id);
    })
    .map_err(OpenError::io("writing the state file"))?;
    ns.set_open();
    let mut namespaces = core.namespaces.write();
    match namespaces.get_mut(usize::from(id)) {
        Some(place) => *place = ns.clone(),
        None => namespaces.push(ns.clone()),
    }
    Ok(Namespace { core: core.clone(), ns })
}

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
    /// Unix seconds as expiry counts them: never less than ever before, also in earlier lives of the cache.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.core.now()
    }

    /// Looks a key up without waiting for a device: [`Lookup::Flash`] says what to read.
    pub fn get(&self, key: &[u8]) -> Lookup {
        self.core.get(&self.ns, key)
    }

    /// Says that these keys are looked up next, of which the first [`PREFETCHED`](crate::EXPECTED) are taken note of: what is in
    /// DRAM is asked of memory for all of them at once. It changes nothing; looking up several keys takes less time for it.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.core.prefetch(&self.ns, keys);
    }

    /// Looks a key up; reads from flash on this thread if need be (one `pread`, no hand-off). A miss when too many such
    /// reads are in flight.
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
                Lookup::Flash(read) => match self.read_blocking(read.device(), read.offset(), read.len()) {
                    Some(result) => read.finish(result),
                    None => read.busy(),
                },
            }
        }
    }

    /// One device read on this thread; `None` when too many are in flight.
    fn read_blocking(&self, device: DeviceId, offset: u64, len: u32) -> Option<io::Result<AlignedBuf>> {
        let core = &self.core;
        let allowed = core.blocking_reads.fetch_add(1, Ordering::Relaxed) < core.max_blocking_reads;
        let result = allowed.then(|| core.set.read_at(device, offset, len));
        core.blocking_reads.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Puts an object. When this returns no read returns an older value of the key, whatever the outcome (but for
    /// [`RefuseReason::Closed`]). Blocks for as long as the namespace's [`Durability`](crate::Durability) asks for, five seconds at
    /// most.
    pub fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> PutOutcome {
        self.core.wait_for_room();
        self.submit_put(key, value, options).wait()
    }

    /// For callers that must not block: what to await before a change (a put, removal or [`Namespace::modify`]) when the journal
    /// is full. It takes 50 ms at most; blocking calls wait by themselves. A change that does not wait, or whose wait was in
    /// vain, is carried out all the same: when its journal entry is lost, Mutable namespaces would be cold after a crash until
    /// the next checkpoint.
    #[must_use]
    pub fn backpressure(&self) -> Option<Backpressure> {
        self.core.backpressure()
    }

    /// As [`Namespace::backpressure`], before a put that is not to cost another object its way to flash: also while the write queue is full, for as
    /// long as the device goes on, and for a second where it does not. A put that does not wait is stored all the same; what leaves the
    /// DRAM tier for it may be dropped, and counted.
    #[must_use]
    pub fn put_backpressure(&self) -> Option<Backpressure> {
        self.core.put_backpressure()
    }

    /// [`Namespace::put`] for callers that must not block: what has to be waited for is a future. See [`Namespace::backpressure`].
    pub fn submit_put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Ack<PutOutcome> {
        self.core.put(&self.ns, key, value, &options)
    }

    /// Puts an object if the key's version is `expected` (`None`: if there is no such object); refuses with
    /// [`RefuseReason::VersionMismatch`] otherwise, also when the object cannot be looked at now. May read from flash to learn
    /// the version. See [`Namespace::modify`] for callers that must not block.
    pub fn put_if(&self, key: &[u8], value: &[u8], options: PutOptions, expected: Option<u64>) -> PutOutcome {
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

    /// A serialized read-modify-write: finds the object, wherever it is, and has `change` decide what becomes of it. No other
    /// change of the key comes in between, so no update is lost. What `change` returns beside the [`Change`] is handed back.
    ///
    /// Does not wait for a device: [`Modify::Flash`] says what to read, as [`Lookup::Flash`] does. `change` is called at most
    /// once, under a lock that other keys share: it should do no more than make the new value.
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
        self.core.modify(&self.ns, key, change)
    }

    /// [`Namespace::modify`], reading from flash on this thread if need be.
    ///
    /// # Errors
    /// Why the object could not be looked at: the index is still loading, the device failed, too many reads are in flight, or
    /// the object moved again and again. `change` was not called then, and nothing was changed.
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
                Modify::Flash(read) => match self.read_blocking(read.device(), read.offset(), read.len()) {
                    Some(result) => read.finish(result),
                    None => read.busy(),
                },
            }
        }
    }

    /// Removes an object and returns the version of the removal: puts before it have lower versions. Blocks for a flush of
    /// the journal where the namespace is [`Durability::Synced`](crate::Durability), as all removals do.
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

    /// Lists the keys: all that are there from now until the last one is handed out, and maybe some put or removed meanwhile; a key
    /// may come twice. Blocks for reads of the flash that holds them, which is read once from end to end.
    pub fn keys(&self) -> Keys {
        Keys::keys(&self.core, &self.ns)
    }

    /// Lists the objects as [`Namespace::keys`] does the keys, each as what `take` makes of it, but leaves out what cannot be read, and ends
    /// where objects move too fast. `take` is called under a lock: it must be short.
    pub fn list<T>(&self, take: impl FnMut(&Listed<'_>) -> T + Send + 'static) -> Listing<T> {
        Listing::new(&self.core, &self.ns, true, Box::new(take))
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

#[cfg(test)]
mod tests;
