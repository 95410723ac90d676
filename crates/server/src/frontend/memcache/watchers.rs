//! `watch`: lines about what happens, for the connections that asked for them.
//!
//! A request appends a line to the buffer of each watcher that wants it, on its own thread. The
//! watcher's connection takes the lines at most a few hundred times a second, and sends them. A
//! buffer is bounded: lines that do not fit are counted, and the count is sent in their place. So
//! no request waits for a watcher that does not read.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use afterglow_memcache::{LogEntry, Topics};
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, RwLock};

/// Connections that may watch at once, as in memcached.
const LIMIT: usize = 20;
/// Lines are gathered for so long before they are sent.
const GATHERED: Duration = Duration::from_millis(2);
/// Room that is kept for the line that says how many are missing.
const SKIPPED: usize = 32;
/// Bounds of a buffer, in bytes.
const LEAST: usize = 4 * 1024;
const MOST: usize = 256 * 1024;

/// The connections that watch.
pub struct Watchers {
    /// All that any of them wants.
    wanted: AtomicU8,
    /// Bytes of lines that wait for one of them.
    room: usize,
    all: RwLock<Vec<Arc<Watcher>>>,
    /// Somebody was refused since there were fewer than [`LIMIT`].
    refused: AtomicBool,
    entries: AtomicU64,
    sent: AtomicU64,
    skipped: AtomicU64,
}

/// What was written to watchers, under memcached's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchCounts {
    /// Entries that somebody wanted.
    pub entries: u64,
    /// Lines that were put into a buffer.
    pub sent: u64,
    /// Lines that a buffer had no room for.
    pub skipped: u64,
}

impl WatchCounts {
    /// What was counted since `before`.
    pub fn since(&self, before: &WatchCounts) -> WatchCounts {
        WatchCounts {
            entries: self.entries.saturating_sub(before.entries),
            sent: self.sent.saturating_sub(before.sent),
            skipped: self.skipped.saturating_sub(before.skipped),
        }
    }
}

struct Watcher {
    topics: Topics,
    buffer: Mutex<WatchBuffer>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct WatchBuffer {
    lines: Vec<u8>,
    /// Lines left out since the last one that is in.
    skipped: u64,
}

/// A connection's place among the watchers; given up when it is dropped.
pub struct Watching {
    watchers: Arc<Watchers>,
    watcher: Arc<Watcher>,
}

impl Watchers {
    /// What of the memory for requests and answers is for lines that wait.
    pub fn share(buffers: usize) -> usize {
        buffers / 8
    }

    /// None yet; `share` bytes are for the lines of all. A connection has as many again while it
    /// sends them.
    pub fn new(share: usize) -> Arc<Self> {
        Arc::new(Watchers {
            wanted: AtomicU8::new(0),
            room: (share / LIMIT / 2).clamp(LEAST, MOST),
            all: RwLock::default(),
            refused: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        })
    }

    /// Lets a connection be told of `topics`; `None` when too many watch.
    pub fn join(self: &Arc<Self>, topics: Topics) -> Option<Watching> {
        let mut all = self.all.write();
        let has_room = all.len() < LIMIT;
        self.refused.store(!has_room, Ordering::Release);
        if !has_room {
            return None;
        }
        let (buffer, waker) = Default::default();
        let watcher = Arc::new(Watcher { topics, buffer, waker });
        all.push(watcher.clone());
        self.want(&all);
        Some(Watching { watchers: self.clone(), watcher })
    }

    fn want(&self, all: &[Arc<Watcher>]) {
        let wanted = all.iter().fold(Topics::default(), |all, one| all.with(one.topics));
        self.wanted.store(wanted.bits(), Ordering::Release);
    }

    /// Whether somebody was refused because others have every place.
    pub fn is_wanted(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// How many watch.
    pub fn len(&self) -> usize {
        self.all.read().len()
    }

    /// What was counted.
    pub fn counts(&self) -> WatchCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WatchCounts { entries: of(&self.entries), sent: of(&self.sent), skipped: of(&self.skipped) }
    }

    /// Whether somebody wants entries of this topic. Nothing need be known of them otherwise.
    pub fn want_any(&self, topic: Topics) -> bool {
        Topics::from_bits(self.wanted.load(Ordering::Relaxed)).meets(topic)
    }

    /// Writes an entry to all who want it.
    pub fn log(&self, entry: &LogEntry<'_>) {
        if !self.want_any(entry.topic()) {
            return;
        }
        let gid = self.entries.fetch_add(1, Ordering::Relaxed) + 1;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut line = Vec::with_capacity(192);
        entry.write(gid, since, &mut line);
        for watcher in self.all.read().iter().filter(|one| one.topics.meets(entry.topic())) {
            self.append(watcher, &line);
        }
    }

    fn append(&self, watcher: &Watcher, line: &[u8]) {
        let mut buffer = watcher.buffer.lock();
        let buffer = &mut *buffer;
        if buffer.lines.len() + line.len() + SKIPPED > self.room {
            buffer.skipped += 1;
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let first = buffer.lines.is_empty();
        if buffer.skipped > 0 {
            let skipped = std::mem::take(&mut buffer.skipped);
            buffer.lines.extend_from_slice(format!("skipped={skipped}\n").as_bytes());
        }
        buffer.lines.extend_from_slice(line);
        self.sent.fetch_add(1, Ordering::Relaxed);
        if first {
            watcher.waker.wake();
        }
    }
}

impl Watching {
    /// Waits for lines, and takes all there are. To be awaited by one task.
    pub async fn lines(&self) -> Vec<u8> {
        poll_fn(|context| {
            self.watcher.waker.register(context.waker());
            match self.watcher.buffer.lock().lines.is_empty() {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        compio::time::sleep(GATHERED).await;
        std::mem::take(&mut self.watcher.buffer.lock().lines)
    }
}

impl std::fmt::Debug for Watching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watching").field("topics", &self.watcher.topics).finish_non_exhaustive()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut all = self.watchers.all.write();
        all.retain(|one| !Arc::ptr_eq(one, &self.watcher));
        self.watchers.want(&all);
    }
}

#[cfg(test)]
mod tests {
    use afterglow_memcache::Fetched;

    use super::*;

    fn fetch(watchers: &Watchers) {
        watchers.log(&LogEntry::Fetch { key: b"k", fetched: Fetched::Missing, cfd: 1 });
    }

    fn taken(watching: &Watching) -> String {
        String::from_utf8(std::mem::take(&mut watching.watcher.buffer.lock().lines)).unwrap()
    }

    #[test]
    fn who_does_not_read_loses_lines_and_is_told_how_many() {
        let watchers = Watchers::new(0);
        let (slow, quick) = (watchers.join(Topics::FETCHERS), watchers.join(Topics::FETCHERS));
        let (slow, quick) = (slow.unwrap(), quick.unwrap());
        let mut seen = 0;
        for _ in 0..1000 {
            fetch(&watchers);
            seen += taken(&quick).lines().count();
        }
        assert_eq!(seen, 1000, "another one that does not read costs nobody a line");
        let kept = taken(&slow);
        assert!(kept.len() <= LEAST && !kept.contains("skipped="));
        let kept = kept.lines().count() as u64;
        fetch(&watchers);
        let missing = 1000 - kept;
        assert!(taken(&slow).starts_with(&format!("skipped={missing}\nts=")), "{missing}");
        let counts = watchers.counts();
        assert_eq!((counts.entries, counts.skipped), (1001, missing));
        assert_eq!(counts.sent, 2 * 1001 - missing);
    }

    #[test]
    fn nothing_is_written_for_nobody_and_places_are_given_up() {
        let watchers = Watchers::new(1 << 20);
        fetch(&watchers);
        let all: Vec<_> = (0..LIMIT).filter_map(|_| watchers.join(Topics::MUTATIONS)).collect();
        assert!(all.len() == LIMIT && watchers.join(Topics::FETCHERS).is_none());
        assert!(watchers.is_wanted());
        fetch(&watchers);
        assert_eq!(watchers.counts(), WatchCounts::default(), "nobody asked for look-ups");
        drop(all);
        assert!(watchers.len() == 0 && !watchers.want_any(Topics::MUTATIONS));
        assert!(watchers.join(Topics::FETCHERS).is_some() && !watchers.is_wanted());
    }
}
