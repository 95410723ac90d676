//! The public face: a cache and its namespaces.

use crate::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::sync::Mutex;
use bytes::Bytes;

use crate::api::{Hit, Lookup, MissReason, PutOptions, PutOutcome, RefuseReason};
use crate::clock::SystemClock;
use crate::config::{Config, NamespaceOptions};
use crate::core::Core;
use crate::disk::{self, AlignedBuf, DeviceId, DeviceSet, Disk};
use crate::driver::{Driver, THREAD};
use crate::error::OpenError;
use crate::format::journal::Event;
use crate::format::state::NamespaceRecord;
use crate::media::{DirLock, FileMetaStore, Media, MmapMedia, boot_id};
use crate::modify::{Change, Changed, Modified, Modify};
use crate::namespace::{NamespaceState, epoch_slot};
use crate::pending::Ack;
use crate::recovery::{self, Env};
use crate::stats::Stats;

/// How long the background thread sleeps when nothing wakes it.
const NAP: Duration = Duration::from_millis(100);

/// An open cache. Dropping it without [`Cache::close`] is like the death of the process: the next opening recovers.
pub struct Cache {
    core: Arc<Core>,
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// Held for as long as the cache is open.
    _lock: DirLock,
}

/// What the background thread is told.
#[derive(Default)]
struct Shared {
    close: AtomicBool,
    abandon: AtomicBool,
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
        let opened = disk::open(&config.devices, config.io)?;
        let path = config.data_dir.join("journal");
        let journal = match MmapMedia::open(&path)? {
            Some(media) if media.len() >= 8192 => media,
            _ => MmapMedia::create(&path, config.journal_size.max(8192).next_multiple_of(4096))?,
        };
        let random = || uuid::Uuid::new_v4().as_u64_pair();
        let ((a, b), (c, _)) = (random(), random());
        let env = Env {
            set: opened.set,
            meta: Arc::new(FileMetaStore::new(&config.data_dir)),
            journal: Arc::new(journal),
            clock: Arc::new(SystemClock::default()),
            boot_id: boot_id().ok().map(|id| id.0),
            entropy: [a, b, c],
        };
        let mut disk = opened.disk;
        let recovery::Opened { core, driver } = recovery::open(&config, env, &mut *disk)?;
        let shared = Arc::new(Shared::default());
        let worker = {
            let (shared, core) = (shared.clone(), core.clone());
            thread::Builder::new()
                .name(THREAD.into())
                .spawn(move || {
                    core.streams.set_worker(thread::current());
                    run(driver, &mut *disk, &shared);
                })
                .map_err(|source| OpenError::Thread { source })?
        };
        Ok(Self { core, shared, worker: Mutex::new(Some(worker)), _lock: lock })
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

    /// Everything counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.stats()
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
    /// Blocks until that is done. Calling it again does nothing.
    pub fn close(&self) {
        self.shared.close.store(true, Ordering::Release);
        self.join();
    }

    fn join(&self) {
        if let Some(worker) = self.worker.lock().take() {
            worker.thread().unpark();
            if worker.join().is_err() {
                tracing::error!("the background thread died: the next start is as after a crash");
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.shared.abandon.store(true, Ordering::Release);
        self.join();
    }
}

/// A driver that tells whoever waits when it steps no more, whatever ends it.
struct Driven(Driver);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// The background thread.
fn run(driver: Driver, disk: &mut dyn Disk, shared: &Shared) {
    let mut driven = Driven(driver);
    let driver = &mut driven.0;
    let (mut ios, mut done) = (Vec::new(), Vec::new());
    loop {
        let abandoned = shared.abandon.load(Ordering::Acquire);
        if shared.close.load(Ordering::Acquire) {
            driver.start_close();
        }
        if !abandoned && !driver.is_closed() {
            driver.step(&mut ios);
        }
        for io in ios.drain(..) {
            disk.submit(io);
        }
        if disk.in_flight() > 0 {
            disk.wait(1, &mut done);
            for d in done.drain(..) {
                driver.complete(d);
            }
        } else if abandoned || driver.is_closed() {
            return;
        } else if !driver.is_busy() {
            thread::park_timeout(NAP);
        }
    }
}

pub(crate) fn open_namespace(
    core: &Arc<Core>,
    name: &str,
    options: NamespaceOptions,
) -> Result<Namespace, OpenError> {
    let mut namespaces = core.namespaces.write();
    let known = namespaces.iter().position(|ns| ns.name == name);
    if let Some(id) = known {
        let ns = &namespaces[id];
        if ns.options == options {
            ns.set_open();
            return Ok(Namespace { core: core.clone(), ns: ns.clone() });
        }
        if ns.is_open() {
            return Err(OpenError::Config(format!("namespace {name} is already open with other options")));
        }
    }
    let id = known.unwrap_or(namespaces.len());
    let Ok(id) = u16::try_from(id) else {
        return Err(OpenError::Config("65,536 namespaces exist already".into()));
    };
    let ns = Arc::new(NamespaceState::new(id, name.to_owned(), options));
    let mut cleared = 0;
    if let Some(old) = known.map(|id| &namespaces[id]) {
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
    match known {
        Some(at) => namespaces[at] = ns.clone(),
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
    /// Looks a key up without waiting for a device: [`Lookup::Flash`] says what to read.
    pub fn get(&self, key: &[u8]) -> Lookup {
        self.core.get(&self.ns, key)
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
        self.submit_put(key, value, options).wait()
    }

    /// [`Namespace::put`] for callers that must not block: what has to be waited for is a future.
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
        self.core.remove(&self.ns, key)
    }

    /// [`Namespace::remove`] for callers that must not block.
    pub fn submit_remove(&self, key: &[u8]) -> Ack<u64> {
        self.core.remove_later(&self.ns, key)
    }

    /// Removes all objects of a group, in O(1). Puts into the group after this are not affected.
    pub fn remove_group(&self, group: u32) -> u64 {
        self.core.kill(&self.ns, Event::Group { ns: self.ns.id, group })
    }

    /// [`Namespace::remove_group`] for callers that must not block.
    pub fn submit_remove_group(&self, group: u32) -> Ack<u64> {
        self.core.kill_later(&self.ns, Event::Group { ns: self.ns.id, group })
    }

    /// Removes all objects put with a token whose top 20 bits equal this one's, in O(1).
    pub fn bump_epoch(&self, token: u64) -> u64 {
        self.core.kill(&self.ns, Event::Epoch { ns: self.ns.id, slot: epoch_slot(token) })
    }

    /// [`Namespace::bump_epoch`] for callers that must not block.
    pub fn submit_bump_epoch(&self, token: u64) -> Ack<u64> {
        self.core.kill_later(&self.ns, Event::Epoch { ns: self.ns.id, slot: epoch_slot(token) })
    }

    /// Removes everything, in O(1).
    pub fn clear(&self) -> u64 {
        self.core.kill(&self.ns, Event::Clear { ns: self.ns.id })
    }

    /// [`Namespace::clear`] for callers that must not block.
    pub fn submit_clear(&self) -> Ack<u64> {
        self.core.kill_later(&self.ns, Event::Clear { ns: self.ns.id })
    }
}
