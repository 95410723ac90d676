//! Waiting for room: in a full journal, and in a full write queue.
//!
//! An entry that finds no room in the journal is lost, and with it the warmth of Mutable namespaces after a crash. Changes therefore
//! wait when the journal is nearly full, and have a checkpoint made at once; but 50 ms at most, counted from the moment it was found
//! full, and nobody waits once an entry was lost: a device that does not answer holds nobody up. What is left of the journal
//! then serves those who do not wait.
//!
//! An object that leaves the DRAM tier while the write queue is full is dropped. Who puts faster than the device writes, and would
//! rather be held up than lose that, waits for the queue too ([`Namespace::put_backpressure`](crate::Namespace::put_backpressure)): as long as the device goes on, and
//! a second from the last chunk it wrote where it does not.
//!
//! The background thread makes room, and wakes those who wait for it. But a disk may block it in a flush of the state file, and it may die: so a
//! thread that touches no disk ([`Watch`]) ends the waits that have lasted long enough.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::error::OpenError;

/// Milliseconds that anybody waits for room in the journal.
const TIMEOUT: u64 = 50;
/// Milliseconds for which a write queue may stay full before nobody waits for it any more.
const QUEUE_TIMEOUT: u64 = 1_000;
/// Entries kept for those who do not wait, or are past the check already; at most an eighth of the journal.
const RESERVE: u64 = 4096;
/// How long a blocked caller sleeps at a time, and how often at most: should the clock stand still.
const NAP: Duration = Duration::from_millis(1);
const NAPS: u32 = 100;
/// Name of the thread that ends waits, and how often it looks while somebody waits. It sleeps otherwise.
const WATCH_THREAD: &str = "afterglow-room";
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// Who waits for one kind of room, and since when there is none.
#[derive(Debug, Default)]
struct Line {
    /// Clock's milliseconds + 1 at which it was found full; 0 while it is not.
    since: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// Wakers of those who wait.
#[derive(Debug, Default)]
struct Waiting {
    wakers: Vec<Waker>,
    /// How often they were all woken.
    rounds: u64,
}

/// Where the waker of one who waits stands: in which round, and at which place.
#[derive(Debug, Clone, Copy)]
struct Ticket {
    round: u64,
    place: usize,
}

impl Line {
    fn is_awaited(&self) -> bool {
        !self.waiting.lock().wakers.is_empty()
    }

    /// Has `waker` woken when the wait ends. Who is registered by this ticket already keeps the place: it may be polled often.
    fn register(&self, ticket: &mut Option<Ticket>, waker: &Waker) {
        let waiting = &mut *self.waiting.lock();
        if let Some(mine) = ticket.filter(|t| t.round == waiting.rounds) {
            waiting.wakers[mine.place].clone_from(waker);
            return;
        }
        *ticket = Some(Ticket { round: waiting.rounds, place: waiting.wakers.len() });
        waiting.wakers.push(waker.clone());
    }

    /// There is room.
    fn clear(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// There is none at `now`: whether it was seen for the first time, and whether its time is not over yet.
    fn is_full(&self, now: u64, timeout: u64) -> (bool, bool) {
        let found = self.since.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed);
        (found.is_ok(), now < found.map_or_else(|since| since - 1, |_| now) + timeout)
    }

    /// What makes room goes on: the time of whoever waits begins anew. Not where room was found meanwhile, which ends all waits.
    fn goes_on(&self, now: u64) {
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 {
            let _ = self.since.compare_exchange(since, now + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn wake(&self) {
        let mut waiting = self.waiting.lock();
        waiting.rounds += 1;
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Who waits for room.
#[derive(Debug, Default)]
pub struct Rooms {
    journal: Line,
    queue: Line,
    /// A checkpoint is to be made at once.
    wanted: AtomicBool,
    freed: Condvar,
    sleeping: Mutex<()>,
    /// Nobody makes room any more, so nobody waits for it.
    over: AtomicBool,
    watcher: OnceLock<Thread>,
}

impl Rooms {
    /// Asks for a checkpoint at once.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    /// Whether somebody has asked for a checkpoint since this was last asked.
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// Whether somebody waits.
    pub fn is_awaited(&self) -> bool {
        self.journal.is_awaited() || self.queue.is_awaited()
    }

    /// A chunk was written.
    pub(crate) fn device_goes_on(&self, now: u64) {
        self.queue.goes_on(now);
    }

    /// Nobody makes room any more: all waits end.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.journal.wake();
        self.queue.wake();
        self.freed.notify_all();
        self.wake_watcher();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn wake_watcher(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }
}

/// The thread that ends waits which have lasted long enough, whatever the background thread is held up by. It ends with [`Rooms::end`].
#[derive(Debug)]
pub struct Watch(JoinHandle<()>);

impl Watch {
    /// Starts it.
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, OpenError> {
        let watched = core.clone();
        let run = move || {
            let rooms = &watched.rooms;
            while !rooms.is_over() {
                watched.wake_for_room();
                // Who begins to wait from here on leaves a token that ends the sleep at once.
                if rooms.is_awaited() { thread::park_timeout(WATCH_EVERY) } else { thread::park() }
            }
        };
        let thread = thread::Builder::new().name(WATCH_THREAD.into()).spawn(run);
        let thread = thread.map_err(|source| OpenError::Thread { source })?;
        let _ = core.rooms.watcher.set(thread.thread().clone());
        // Who began to wait before could not leave one.
        thread.thread().unpark();
        Ok(Self(thread))
    }

    /// Waits for its end, once [`Rooms::end`] was called.
    pub(crate) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the thread that ends waits for room has died");
        }
    }
}

/// A future that is ready when there is room again, or when waiting for it is no use: see [`Namespace::backpressure`](crate::Namespace::backpressure) and
/// [`Namespace::put_backpressure`](crate::Namespace::put_backpressure).
#[must_use]
pub struct Backpressure {
    core: Arc<Core>,
    /// Also in the write queue.
    put: bool,
    in_journal: Option<Ticket>,
    in_queue: Option<Ticket>,
}

impl Backpressure {
    fn new(core: &Arc<Core>, put: bool) -> Self {
        Self { core: core.clone(), put, in_journal: None, in_queue: None }
    }
}

impl std::fmt::Debug for Backpressure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backpressure").field("put", &self.put).finish_non_exhaustive()
    }
}

impl Future for Backpressure {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { core, put, in_journal, in_queue } = self.get_mut();
        let rooms = &core.rooms;
        let waits = |line: &Line, ticket: &mut Option<Ticket>, must: &dyn Fn() -> bool| {
            if !must() {
                return false;
            }
            line.register(ticket, cx.waker());
            rooms.wake_watcher();
            // Room that came free before it was registered woke nobody.
            must()
        };
        let pending = waits(&rooms.journal, in_journal, &|| core.must_wait_for_room())
            || *put && waits(&rooms.queue, in_queue, &|| core.must_wait_for_queue());
        if pending { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Core {
    /// Whether a change should wait now.
    pub(crate) fn must_wait_for_room(&self) -> bool {
        let (journal, rooms) = (&self.journal, &self.rooms);
        if rooms.is_over() {
            return false;
        }
        let reserve = RESERVE.min(journal.entries() / 8);
        if journal.used() < journal.entries() - reserve {
            rooms.journal.clear();
            return false;
        }
        if journal.is_poisoned() {
            return false;
        }
        let (first, must) = rooms.journal.is_full(self.clock.millis(), TIMEOUT);
        if first {
            rooms.want();
            self.streams.wake_worker();
        }
        must
    }

    /// Whether a put that is not to cost another object its copy should wait now.
    pub(crate) fn must_wait_for_queue(&self) -> bool {
        if self.rooms.is_over() || !self.streams.is_nearly_full() {
            self.rooms.queue.clear();
            return false;
        }
        self.rooms.queue.is_full(self.clock.millis(), QUEUE_TIMEOUT).1
    }

    /// A future to wait for before a change, if there is no room for it.
    pub(crate) fn backpressure(self: &Arc<Self>) -> Option<Backpressure> {
        self.must_wait_for_room().then(|| Backpressure::new(self, false))
    }

    /// The same for a put.
    pub(crate) fn put_backpressure(self: &Arc<Self>) -> Option<Backpressure> {
        let must = self.must_wait_for_room() || self.must_wait_for_queue();
        must.then(|| Backpressure::new(self, true))
    }

    /// Blocks while a change should wait.
    pub(crate) fn wait_for_room(&self) {
        for _ in 0..NAPS {
            if !self.must_wait_for_room() {
                return;
            }
            let _ = self.rooms.freed.wait_for(&mut self.rooms.sleeping.lock(), NAP);
        }
    }

    /// Blocks while a put that is not to cost another object its copy should wait.
    pub(crate) fn wait_for_queue(&self) {
        while self.must_wait_for_queue() {
            let _ = self.rooms.freed.wait_for(&mut self.rooms.sleeping.lock(), NAP);
        }
    }

    /// Wakes those who need not wait any more.
    pub(crate) fn wake_for_room(&self) {
        let rooms = &self.rooms;
        if rooms.journal.is_awaited() && !self.must_wait_for_room() {
            rooms.journal.wake();
        }
        if rooms.queue.is_awaited() && !self.must_wait_for_queue() {
            rooms.queue.wake();
        }
        rooms.freed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Wakes(AtomicU64);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_is_polled_often_is_registered_once_and_woken_by_the_latest_waker() {
        let line = Line::default();
        let [first, other, last] = std::array::from_fn(|_| Arc::new(Wakes(AtomicU64::new(0))));
        let (mut mine, mut others) = (None, None);
        for _ in 0..1000 {
            line.register(&mut mine, &first.clone().into());
            line.register(&mut others, &other.clone().into());
        }
        line.register(&mut mine, &last.clone().into());
        assert_eq!(line.waiting.lock().wakers.len(), 2);
        line.wake();
        assert!(!line.is_awaited());
        // Woken for nothing it waits on, in the next round.
        line.register(&mut mine, &last.clone().into());
        line.wake();
        assert_eq!([first, other, last].map(|w| w.0.load(Ordering::SeqCst)), [0, 1, 2]);
    }
}
