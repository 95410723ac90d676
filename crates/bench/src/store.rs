//! A cache to measure: where it lies, what is in it.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use afterglow_engine::{
    Cache, Config, DeviceConfig, Namespace, NamespaceOptions, PutOptions, Stats,
};

use super::{BenchError, progress};
use afterglow_loadgen::rng::mix;

/// Bytes of every key.
pub const KEY: usize = 16;
/// Bytes put between two looks at how far the device is behind.
const LOOK_EVERY: usize = 128 << 10;
/// Longest wait for the background work to end.
const TIMEOUT: Duration = Duration::from_secs(120);
const NAP: Duration = Duration::from_millis(1);
const NAMESPACE: &str = "bench";

/// The key of object `id`.
pub fn key(id: u64) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..8].copy_from_slice(&mix(id).to_le_bytes());
    key[8..].copy_from_slice(&id.to_be_bytes());
    key
}

/// Writes the value of object `id` into `value`: its id at both ends, something in between.
pub fn write_value(id: u64, value: &mut [u8]) {
    let ends = mix(id ^ 0x5eed).to_le_bytes();
    let n = value.len().min(8);
    value[..n].copy_from_slice(&ends[..n]);
    let at = value.len() - n;
    value[at..].copy_from_slice(&ends[..n]);
}

/// Whether `value` is that of object `id`, judged by its ends: the engine has checked the rest.
pub fn is_value(id: u64, value: &[u8], len: usize) -> bool {
    let ends = mix(id ^ 0x5eed).to_le_bytes();
    let n = len.min(8);
    value.len() == len && value[..n] == ends[..n] && value[len - n..] == ends[..n]
}

/// Where a cache lies and how large its parts are.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes of flash.
    pub size: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of index; by default what the engine thinks right.
    pub index_memory: Option<u64>,
    /// Bytes of each value.
    pub value: usize,
}

impl Shape {
    pub fn config(&self) -> Config {
        let device = DeviceConfig { path: self.flash(), size: self.size.next_multiple_of(4096) };
        let mut config = Config::new(&self.dir, vec![device]);
        config.memory = self.memory;
        config.index_memory = self.index_memory;
        config.index_growth = self.index_memory.is_none();
        config.max_blocking_reads = 1024;
        config
    }

    /// The file all objects are in.
    pub fn flash(&self) -> PathBuf {
        self.dir.join("flash")
    }

    pub fn open(&self) -> Result<(Cache, Namespace), BenchError> {
        let cache = Cache::open(self.config())?;
        let ns = cache.namespace(NAMESPACE, NamespaceOptions::default())?;
        Ok((cache, ns))
    }

    /// Bytes of flash that `objects` of these take, footers included.
    pub fn flash_for(&self, objects: u64) -> u64 {
        let record = (32 + KEY + self.value).next_multiple_of(64) as u64;
        // What does not fit the end of a chunk, checkpoint areas, and some segments to spare.
        objects * (record + 40) * 102 / 100 + objects * record / 50 + (64 << 20)
    }
}

/// A directory for a benchmark, removed with all that is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(parent: &Path) -> Result<Self, BenchError> {
        let dir = parent.join(format!("afterglow-bench-{}", std::process::id()));
        if dir.exists() {
            return Err(BenchError::Exists(dir));
        }
        std::fs::create_dir_all(&dir).map_err(BenchError::io(format!("make {}", dir.display())))?;
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Removes what is in it.
    pub fn clear(&self) -> Result<(), BenchError> {
        let clear = || {
            std::fs::remove_dir_all(&self.0)?;
            std::fs::create_dir(&self.0)
        };
        clear().map_err(BenchError::io(format!("clear {}", self.0.display())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Puts objects from two threads, never faster than the device takes them. Returns the seconds it
/// took.
pub fn fill(cache: &Cache, ns: &Namespace, ids: Range<u64>, value: usize) -> f64 {
    const STEP: u64 = 4096;
    let (next, begin) = (AtomicU64::new(ids.start), Instant::now());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buf = vec![0xa5; value];
                let look_every = (LOOK_EVERY / (value + KEY)).max(1) as u64;
                loop {
                    let from = next.fetch_add(STEP, Ordering::Relaxed);
                    if from >= ids.end {
                        return;
                    }
                    for id in from..(from + STEP).min(ids.end) {
                        if id % look_every == 0 {
                            while cache.stats().chunks_waiting > 1 {
                                thread::sleep(NAP);
                            }
                        }
                        write_value(id, &mut buf);
                        let _ = ns.put(&key(id), &buf, PutOptions::default());
                    }
                    if from % (1 << 20) == 0 && from > ids.start {
                        progress(format_args!("{} million objects put", from >> 20));
                    }
                }
            });
        }
    });
    begin.elapsed().as_secs_f64()
}

/// Waits until `done`.
pub fn wait_until(
    cache: &Cache,
    what: &str,
    done: impl Fn(&Stats) -> bool,
) -> Result<(), BenchError> {
    wait_for(cache, what, NAP, done)
}

/// The same, looking again after each `nap`.
pub fn wait_for(
    cache: &Cache,
    what: &str,
    nap: Duration,
    done: impl Fn(&Stats) -> bool,
) -> Result<(), BenchError> {
    let begin = Instant::now();
    while !done(&cache.stats()) {
        if begin.elapsed() > TIMEOUT {
            return Err(BenchError::Void(format!(
                "{what} did not end within {} s",
                TIMEOUT.as_secs()
            )));
        }
        thread::sleep(nap);
    }
    Ok(())
}

/// Waits until everything put is on flash.
pub fn settle(cache: &Cache) -> Result<(), BenchError> {
    wait_until(cache, "writing objects to flash", |s| s.unsaved_bytes == 0 && s.chunks_waiting == 0)
}

/// Objects dropped although flash had room for them: a benchmark over what is left would measure
/// something else.
pub fn no_drops(cache: &Cache) -> Result<(), BenchError> {
    let dropped: u64 = cache.stats().namespaces.iter().flat_map(|n| n.dropped).sum();
    match dropped {
        0 => Ok(()),
        n => Err(BenchError::Void(format!(
            "{n} objects were dropped while the cache was filled: give it more memory"
        ))),
    }
}
