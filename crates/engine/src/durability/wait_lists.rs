//! The lists of callers that wait for space, in the journal and in the write queue, and since when
//! each is full.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread::Thread;

use parking_lot::{Condvar, Mutex};

/// Who waits for one kind of room, and since when there is none.
#[derive(Debug, Default)]
pub(super) struct WaitLine {
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
pub(super) struct Place {
    round: u64,
    place: usize,
}

impl WaitLine {
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.lock().wakers.is_empty()
    }

    /// Has `waker` woken when the wait ends. Who is registered by this ticket already keeps the
    /// place: it may be polled often.
    pub(super) fn register(&self, ticket: &mut Option<Place>, waker: &Waker) {
        let waiting = &mut *self.waiting.lock();
        if let Some(mine) = ticket.filter(|t| t.round == waiting.rounds) {
            waiting.wakers[mine.place].clone_from(waker);
            return;
        }
        *ticket = Some(Place { round: waiting.rounds, place: waiting.wakers.len() });
        waiting.wakers.push(waker.clone());
    }

    /// There is room.
    pub(super) fn clear(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// There is none at `now`: whether it was seen for the first time, and whether its time is not
    /// over yet.
    pub(super) fn is_full(&self, now: u64, timeout: u64) -> (bool, bool) {
        let found = self.since.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed);
        (found.is_ok(), now < found.map_or_else(|since| since - 1, |_| now) + timeout)
    }

    /// What makes room goes on: the time of whoever waits begins anew. Not where room was found
    /// meanwhile, which ends all waits.
    fn goes_on(&self, now: u64) {
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 {
            let _ =
                self.since.compare_exchange(since, now + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(super) fn wake(&self) {
        let mut waiting = self.waiting.lock();
        waiting.rounds += 1;
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Who waits for room.
#[derive(Debug, Default)]
pub struct WaitLists {
    pub(super) journal: WaitLine,
    pub(super) queue: WaitLine,
    /// A checkpoint is to be made at once.
    wanted: AtomicBool,
    /// The journal is to get room at once.
    room_wanted: AtomicBool,
    pub(super) freed: Condvar,
    pub(super) sleeping: Mutex<()>,
    /// Nobody makes room any more, so nobody waits for it.
    over: AtomicBool,
    pub(super) watcher: OnceLock<Thread>,
}

impl WaitLists {
    /// Asks for room in the journal at once.
    pub(crate) fn want_room(&self) {
        self.room_wanted.store(true, Ordering::Release);
    }

    /// Whether somebody has asked for room in the journal since this was last asked.
    pub fn take_room_wanted(&self) -> bool {
        self.room_wanted.swap(false, Ordering::AcqRel)
    }

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

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(super) fn wake_watcher(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Wakes(AtomicU64);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_is_polled_often_is_registered_once_and_woken_by_the_latest_waker() {
        let line = WaitLine::default();
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
