//! The public interface: opening and closing a cache, and its namespaces.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::api::Resized;
use crate::background::{Background, THREAD};
use crate::clock::SystemClock;
use crate::config::{Config, NamespaceOptions};
use crate::core::Core;
use crate::device::area::{
    DirLock, FileMetaStore, Media, MediaError, MmapMedia, PwriteMedia, boot_id, unfit_to_map,
};
use crate::device::{self, DeviceId, DeviceSet, Disk, PatientSet};
use crate::durability::backpressure::Watch;
use crate::error::OpenError;
use crate::namespace::Namespace;
use crate::namespace::open::open_namespace;
use crate::recovery::{self, Env, Opening};
use crate::segment::SegmentFigures;
use crate::shard::ShardSlot;
use crate::stats::Stats;
use crate::sync::Mutex;
use crate::tier::LEAST_BYTES;

/// How long the background thread waits for a device before it looks at the rest of its work again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The same while only devices have something that do not answer, and there is other work to do.
const BUSY_INTERVAL: Duration = Duration::from_millis(1);
/// How long the end of a cache waits for a device, or a disk under the data directory, that does
/// not answer at all.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// How often it looks whether the background thread is over.
const JOIN: Duration = Duration::from_millis(1);

/// An open cache. Dropping it without [`Cache::close`] is like the death of the process: the next
/// opening recovers.
pub struct Cache {
    core: Arc<Core>,
    shared: Arc<BackgroundThread>,
    worker: Mutex<Option<JoinHandle<()>>>,
    watch: Mutex<Option<Watch>>,
    opening: Opening,
    /// How long its end waits for a device that does not answer.
    timeout: Duration,
    /// What the DRAM tier was opened with, and what the index has grown by in lives before; held
    /// while it is resized.
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
    /// The thread has ended with a clean stop, whose marker is written.
    clean: AtomicBool,
    /// Grows for as long as the thread gets on.
    beats: AtomicU64,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl Cache {
    /// Opens the cache of `config.data_dir`, creating it when there is none, and starts its
    /// background thread. What survived is served at once, the index loads behind.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do about it.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let silent = device::silent_among(&config.devices);
        Self::open_without(&config, &silent)
    }

    /// The same, where these devices do not answer.
    fn open_without(config: &Config, silent: &[PathBuf]) -> Result<Self, OpenError> {
        let lock = DirLock::acquire(&config.data_dir)?;
        // Before a size or mode of anything is changed.
        let meta = FileMetaStore::new(&config.data_dir);
        let without = recovery::refuse_others(config, &meta, silent)?;
        let opened = device::open_with(&config.devices, config.io, without, silent)?;
        let journal = open_journal(config)?;
        let random = || uuid::Uuid::new_v4().as_u64_pair();
        let ((a, b), (c, _)) = (random(), random());
        // A seed below stands for one whose tags collide: only simulations want that.
        #[cfg(test)]
        let c = c | 1 << 63;
        let env = Env {
            patient: Arc::new(PatientSet::new(opened.set.clone())),
            set: opened.set,
            meta: Arc::new(meta),
            journal,
            clock: Arc::new(SystemClock::default()),
            boot_id: boot_id().ok().map(|id| id.0),
            entropy: [a, b, c],
        };
        let (mut disk, truncated) = (opened.disk, opened.truncated);
        let mut opened = match recovery::open(config, env, &mut *disk) {
            Ok(opened) => opened,
            Err(error) => {
                // A device that hangs holds up no end: its buffers stay where they are.
                if disk.in_flight() > 0 {
                    std::mem::forget(disk);
                }
                return Err(error);
            }
        };
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
        let both = core.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.dram.budget() + shard.index.grown_bytes()) as u64
        });
        let dram_at_opening = Mutex::new(both.sum());
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

    /// Every segment: its state and how much of it is alive.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentFigures> {
        self.core.table.figures()
    }

    /// Changes the DRAM tier's size by so many bytes from what it was opened with, until the next
    /// call. Negative makes it smaller; 0 restores it. What no longer fits is evicted, as fast as
    /// the device takes it, in steps of at most 64 KiB. Blocks until that is done, until `go_on`
    /// says no before a step, or until the clean stop begins.
    pub fn resize_dram(&self, by: i64, go_on: &dyn Fn() -> bool) -> Resized {
        let opened = self.dram_at_opening.lock();
        let shards = self.core.shards.len() as u64;
        let grown = |shard: &ShardSlot| shard.lock().index.grown_bytes() as u64;
        let grown = self.core.shards.iter().map(grown).max().unwrap_or(0);
        let least = shards * (LEAST_BYTES as u64 + grown);
        let wanted = opened.checked_add_signed(by).filter(|left| *left >= least);
        let Some(wanted) = wanted else { return Resized::TooSmall };
        let share = usize::try_from(wanted / shards).unwrap_or(usize::MAX);
        match self.core.shards.iter().all(|shard| self.core.resize_dram(shard, share, go_on)) {
            true => Resized::Done,
            false => Resized::Stopped,
        }
    }

    /// The descriptor of a device for reads on the caller's own ring, opened with `O_DIRECT`; valid
    /// as long as the cache is open.
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

    /// The clean stop: refuses puts from now on, writes the DRAM tier out, takes a checkpoint and
    /// marks the cache clean. Blocks until that is done. A device that does not answer for ten
    /// seconds is given up, with an error in the log. The next start is then as after a crash.
    /// Calling it again does nothing but say the same.
    ///
    /// Returns whether the stop was clean: the next start serves what this one has written.
    pub fn close(&self) -> bool {
        self.shared.close.store(true, Ordering::Release);
        self.join();
        // A removal that came behind the end has taken the marker back.
        let is_marked = !self.core.state.marker_cleared.load(Ordering::SeqCst);
        self.shared.clean.load(Ordering::Acquire) && is_marked
    }

    fn join(&self) {
        self.join_worker();
        // A worker that was given up has not said so.
        self.core.wait_lists.end();
        if let Some(watch) = self.watch.lock().take() {
            watch.join();
        }
    }

    fn join_worker(&self) {
        // Held to the end: another thread that closes waits for the same outcome.
        let mut held = self.worker.lock();
        let Some(worker) = held.take() else { return };
        worker.thread().unpark();
        let (mut beats, mut since) = (self.shared.beats.load(Ordering::Relaxed), Instant::now());
        while !worker.is_finished() {
            thread::sleep(JOIN);
            let now = self.shared.beats.load(Ordering::Relaxed);
            if now != beats {
                (beats, since) = (now, Instant::now());
            } else if since.elapsed() > self.timeout {
                tracing::error!(
                    "a device or disk does not answer and is given up: the next start is as after a crash"
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
    if let Some(file_system) = unfit_to_map(&config.data_dir).filter(|_| config.mapped_journal) {
        tracing::info!(
            file_system,
            "the journal is written with pwrite and not mapped: a page that this file system cannot write would end the process"
        );
    }
    if config.maps_journal() {
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
        let ends = abandoned || background.is_closed();
        let waiting = !background.awaits_only_silent_devices();
        if waiting {
            // A pass over DRAM goes on at once, whatever devices are at.
            let at_once = background.is_regaining() && !ends;
            let limit = if at_once { Duration::ZERO } else { POLL_INTERVAL };
            disk.wait_for(limit, &mut done);
        } else if disk.in_flight() > 0 {
            // What devices have that do not answer nobody waits for. It is looked at, no more: who
            // has something to write wakes a thread that is parked.
            let limit = if background.is_busy() { BUSY_INTERVAL } else { Duration::ZERO };
            disk.wait_for(limit, &mut done);
        }
        if !waiting && !ends && done.is_empty() && !background.is_busy() {
            thread::park_timeout(background.nap());
        }
        if !waiting || !done.is_empty() {
            shared.beats.fetch_add(1, Ordering::Relaxed);
        }
        for d in done.drain(..) {
            background.complete(d);
        }
        // A device that does not answer holds up no end.
        let over = ends && background.awaits_only_silent_devices();
        if over {
            shared.clean.store(background.is_clean(), Ordering::Release);
        }
        if shared.given_up.load(Ordering::Acquire) || (over && disk.in_flight() > 0) {
            // The kernel may yet write into the buffers of what is in flight: they stay where they
            // are.
            std::mem::forget(disk);
            return;
        }
        if over {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
