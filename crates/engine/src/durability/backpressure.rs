//! Backpressure: waiting for space in a full journal, or in a full write queue.
//!
//! An entry that finds no space in the journal is lost. Mutable namespaces are then cold after a
//! crash. So changes wait when the journal is nearly full, and it gets room at once. They
//! wait 50 ms at most, counted from when the journal was found full. Nobody waits once an entry was
//! lost, so a device that does not answer delays nobody. The rest of the journal then serves
//! callers that do not wait.
//!
//! An object that leaves the DRAM tier while the write queue is full is dropped. A caller that puts
//! faster than the device writes may rather wait than lose objects. It waits for the queue too
//! ([`Namespace::put_backpressure`](crate::Namespace::put_backpressure)). It waits while the device
//! makes progress, and at most a second after the last chunk it wrote.
//!
//! The background thread makes space and wakes waiters. But a disk may block it in a flush of the
//! state file, and it may die. So a thread that touches no disk ([`Watch`]) ends waits whose time
//! is over.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::core::Core;
use crate::durability::wait_lists::{Place, WaitLine};
use crate::error::OpenError;

/// Milliseconds that anybody waits for room in the journal.
const TIMEOUT: u64 = 50;
/// Milliseconds for which a write queue may stay full before nobody waits for it any more.
const QUEUE_TIMEOUT: u64 = 1_000;
/// Entries kept for those who do not wait, or are past the check already; at most an eighth of the
/// journal.
const RESERVE: u64 = 4096;
/// How long a blocked caller sleeps at a time, and how often at most: should the clock stand still.
const NAP: Duration = Duration::from_millis(1);
const NAPS: u32 = 100;
/// Name of the thread that ends waits, and how often it looks while somebody waits. It sleeps
/// otherwise.
const WATCH_THREAD: &str = "afterglow-room";
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// The thread that ends waits which have lasted long enough, whatever the background thread is held
/// up by. It ends with [`WaitLists::end`](super::wait_lists::WaitLists::end).
#[derive(Debug)]
pub struct Watch(JoinHandle<()>);

impl Watch {
    /// Starts it.
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, OpenError> {
        let watched = core.clone();
        let run = move || {
            let wait_lists = &watched.wait_lists;
            while !wait_lists.is_over() {
                watched.wake_for_room();
                // Who begins to wait from here on leaves a token that ends the sleep at once.
                if wait_lists.is_awaited() {
                    thread::park_timeout(WATCH_EVERY)
                } else {
                    thread::park()
                }
            }
        };
        let thread = thread::Builder::new().name(WATCH_THREAD.into()).spawn(run);
        let thread = thread.map_err(|source| OpenError::Thread { source })?;
        let _ = core.wait_lists.watcher.set(thread.thread().clone());
        // Who began to wait before could not leave one.
        thread.thread().unpark();
        Ok(Self(thread))
    }

    /// Waits for its end, once [`WaitLists::end`](super::wait_lists::WaitLists::end) was called.
    pub(crate) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!(
                "the thread that ends backpressure waits died: restart to bound the waits again"
            );
        }
    }
}

/// A future that is ready when there is room again, or when waiting for it is no use: see
/// [`Namespace::backpressure`](crate::Namespace::backpressure) and
/// [`Namespace::put_backpressure`](crate::Namespace::put_backpressure).
#[must_use]
pub struct Backpressure {
    core: Arc<Core>,
    /// Also in the write queue.
    put: bool,
    in_journal: Option<Place>,
    in_queue: Option<Place>,
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
        let wait_lists = &core.wait_lists;
        let waits = |line: &WaitLine, ticket: &mut Option<Place>, must: &dyn Fn() -> bool| {
            if !must() {
                return false;
            }
            line.register(ticket, cx.waker());
            wait_lists.wake_watcher();
            // Room that came free before it was registered woke nobody.
            must()
        };
        let pending = waits(&wait_lists.journal, in_journal, &|| core.must_wait_for_room())
            || *put && waits(&wait_lists.queue, in_queue, &|| core.must_wait_for_queue());
        if pending { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Core {
    /// Whether a change should wait now.
    pub(crate) fn must_wait_for_room(&self) -> bool {
        let (journal, wait_lists) = (&self.journal, &self.wait_lists);
        if wait_lists.is_over() {
            return false;
        }
        let reserve = RESERVE.min(journal.entries() / 8);
        if journal.used() < journal.entries() - reserve {
            wait_lists.journal.clear();
            return false;
        }
        if journal.is_poisoned() {
            return false;
        }
        let (first, must) = wait_lists.journal.is_full(self.time.millis(), TIMEOUT);
        if first {
            wait_lists.want_room();
            self.streams.wake_worker();
        }
        must
    }

    /// Whether a put that is not to cost another object its copy should wait now.
    pub(crate) fn must_wait_for_queue(&self) -> bool {
        if self.wait_lists.is_over() || !self.streams.is_nearly_full() {
            self.wait_lists.queue.clear();
            return false;
        }
        self.wait_lists.queue.is_full(self.time.millis(), QUEUE_TIMEOUT).1
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
            let _ = self.wait_lists.freed.wait_for(&mut self.wait_lists.sleeping.lock(), NAP);
        }
    }

    /// Blocks while a put that is not to cost another object its copy should wait.
    pub(crate) fn wait_for_queue(&self) {
        while self.must_wait_for_queue() {
            let _ = self.wait_lists.freed.wait_for(&mut self.wait_lists.sleeping.lock(), NAP);
        }
    }

    /// Wakes those who need not wait any more.
    pub(crate) fn wake_for_room(&self) {
        let wait_lists = &self.wait_lists;
        if wait_lists.journal.is_awaited() && !self.must_wait_for_room() {
            wait_lists.journal.wake();
        }
        if wait_lists.queue.is_awaited() && !self.must_wait_for_queue() {
            wait_lists.queue.wake();
        }
        wait_lists.freed.notify_all();
    }
}
