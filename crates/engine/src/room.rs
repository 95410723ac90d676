//! Waiting for room in a full journal.
//!
//! An entry that finds no room is lost, and with it the warmth of Mutable namespaces after a crash. Changes therefore wait when
//! the journal is nearly full, and have a checkpoint made at once; but 50 ms at most, counted from the moment it was found
//! full, and nobody waits once an entry was lost: a device that does not answer holds nobody up. What is left of the journal
//! then serves those who do not wait.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::core::Core;

/// Milliseconds that anybody waits.
const PATIENCE: u64 = 50;
/// Entries kept for those who do not wait, or are past the check already; at most an eighth of the journal.
const RESERVE: u64 = 4096;
/// How long a blocked caller sleeps at a time, and how often at most: should the clock stand still.
const NAP: Duration = Duration::from_millis(1);
const NAPS: u32 = 100;

/// Who waits for room, and since when there is none.
#[derive(Debug, Default)]
pub struct Rooms {
    /// Clock's milliseconds + 1 at which the journal was found full; 0 while it is not.
    since: AtomicU64,
    /// A checkpoint is to be made at once.
    wanted: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    freed: Condvar,
    sleeping: Mutex<()>,
}

impl Rooms {
    /// Whether somebody has asked for a checkpoint since this was last asked.
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// Whether somebody waits.
    pub fn is_awaited(&self) -> bool {
        !self.wakers.lock().is_empty()
    }
}

/// A future that is ready when the journal has room again, or after 50 ms: see [`Namespace::room`](crate::Namespace::room).
#[must_use]
pub struct Room(Arc<Core>);

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}

impl Future for Room {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Registered first: room that comes free in between wakes it.
        self.0.rooms.wakers.lock().push(cx.waker().clone());
        if self.0.must_wait_for_room() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Core {
    /// Whether a change should wait now.
    pub(crate) fn must_wait_for_room(&self) -> bool {
        let (journal, rooms) = (&self.journal, &self.rooms);
        let reserve = RESERVE.min(journal.entries() / 8);
        if journal.used() < journal.entries() - reserve {
            if rooms.since.load(Ordering::Relaxed) != 0 {
                rooms.since.store(0, Ordering::Relaxed);
            }
            return false;
        }
        if journal.is_poisoned() {
            return false;
        }
        let now = self.clock.millis();
        let found = rooms.since.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed);
        if found.is_ok() {
            rooms.wanted.store(true, Ordering::Release);
            self.streams.wake_worker();
        }
        now < found.map_or_else(|since| since - 1, |_| now) + PATIENCE
    }

    /// A future to wait for before a change, if there is no room for it.
    pub(crate) fn room(self: &Arc<Self>) -> Option<Room> {
        self.must_wait_for_room().then(|| Room(self.clone()))
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
        if self.rooms.is_awaited() && !self.must_wait_for_room() {
            let wakers = std::mem::take(&mut *self.rooms.wakers.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
        self.rooms.freed.notify_all();
    }
}
