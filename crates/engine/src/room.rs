//! Waiting for room: in a full journal, and in a full write queue.
//!
//! An entry that finds no room in the journal is lost, and with it the warmth of Mutable namespaces after a crash. Changes therefore
//! wait when the journal is nearly full, and have a checkpoint made at once; but 50 ms at most, counted from the moment it was found
//! full, and nobody waits once an entry was lost: a device that does not answer holds nobody up. What is left of the journal
//! then serves those who do not wait.
//!
//! An object that leaves the DRAM tier while the write queue is full is dropped. Who puts faster than the device writes, and would
//! rather be held up than lose that, waits for the queue too ([`Namespace::put_room`](crate::Namespace::put_room)): as long as the device goes on, and
//! a second where it does not.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::core::Core;

/// Milliseconds that anybody waits for room in the journal.
const PATIENCE: u64 = 50;
/// Milliseconds for which a write queue may stay full before nobody waits for it any more.
const QUEUE_PATIENCE: u64 = 1_000;
/// Entries kept for those who do not wait, or are past the check already; at most an eighth of the journal.
const RESERVE: u64 = 4096;
/// How long a blocked caller sleeps at a time, and how often at most: should the clock stand still.
const NAP: Duration = Duration::from_millis(1);
const NAPS: u32 = 100;

/// Who waits for one kind of room, and since when there is none.
#[derive(Debug, Default)]
struct Line {
    /// Clock's milliseconds + 1 at which it was found full; 0 while it is not.
    since: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
}

impl Line {
    fn is_awaited(&self) -> bool {
        !self.wakers.lock().is_empty()
    }

    /// There is room.
    fn clear(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// There is none at `now`: whether it was seen for the first time, and whether there is still patience.
    fn is_full(&self, now: u64, patience: u64) -> (bool, bool) {
        let found = self.since.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed);
        (found.is_ok(), now < found.map_or_else(|since| since - 1, |_| now) + patience)
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
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
}

/// A future that is ready when there is room again, or when waiting for it is no use: see [`Namespace::room`](crate::Namespace::room) and
/// [`Namespace::put_room`](crate::Namespace::put_room).
#[must_use]
pub struct Room {
    core: Arc<Core>,
    /// Also in the write queue.
    put: bool,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("put", &self.put).finish_non_exhaustive()
    }
}

impl Future for Room {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (core, rooms) = (&self.core, &self.core.rooms);
        let waits = |line: &Line, must: &dyn Fn() -> bool| {
            if !must() {
                return false;
            }
            line.wakers.lock().push(cx.waker().clone());
            // Room that came free before it was registered woke nobody.
            must()
        };
        let pending = waits(&rooms.journal, &|| core.must_wait_for_room())
            || self.put && waits(&rooms.queue, &|| core.must_wait_for_queue());
        if pending { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Core {
    /// Whether a change should wait now.
    pub(crate) fn must_wait_for_room(&self) -> bool {
        let (journal, rooms) = (&self.journal, &self.rooms);
        let reserve = RESERVE.min(journal.entries() / 8);
        if journal.used() < journal.entries() - reserve {
            rooms.journal.clear();
            return false;
        }
        if journal.is_poisoned() {
            return false;
        }
        let (first, must) = rooms.journal.is_full(self.clock.millis(), PATIENCE);
        if first {
            rooms.want();
            self.streams.wake_worker();
        }
        must
    }

    /// Whether a put that is not to cost another object its copy should wait now.
    pub(crate) fn must_wait_for_queue(&self) -> bool {
        if !self.streams.is_nearly_full() {
            self.rooms.queue.clear();
            return false;
        }
        self.rooms.queue.is_full(self.clock.millis(), QUEUE_PATIENCE).1
    }

    /// A future to wait for before a change, if there is no room for it.
    pub(crate) fn room(self: &Arc<Self>) -> Option<Room> {
        self.must_wait_for_room().then(|| Room { core: self.clone(), put: false })
    }

    /// The same for a put.
    pub(crate) fn put_room(self: &Arc<Self>) -> Option<Room> {
        let must = self.must_wait_for_room() || self.must_wait_for_queue();
        must.then(|| Room { core: self.clone(), put: true })
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
