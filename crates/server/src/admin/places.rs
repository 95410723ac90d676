//! Places of the admin address's connections. Where all are taken, a further client gets the place
//! of the connection that has been idle for longest.
//!
//! A connection is idle since it last took something of an answer, or since its beginning. What a
//! client sends does not count: it could send the head of a request byte by byte for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// A bounded number of places.
pub struct Places {
    limit: usize,
    /// A connection that is idle for less keeps its place.
    grace: Duration,
    /// At most `limit`; at most one of them is evicted and not yet gone.
    taken: Mutex<Vec<Arc<Seat>>>,
    freed: Notify,
}

/// What the listener and a connection know of the connection's place.
struct Seat {
    idle_since: Mutex<Instant>,
    evicted: AtomicBool,
    /// The connection's task.
    waker: AtomicWaker,
}

/// A place, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    seat: Arc<Seat>,
}

impl Places {
    /// So many places, of which none is taken.
    pub fn new(limit: usize, grace: Duration) -> Arc<Self> {
        Arc::new(Self { limit, grace, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Waits for a place. Only one task may wait at a time.
    pub async fn take(self: &Arc<Self>) -> Place {
        loop {
            let wait = match self.try_take() {
                Ok(place) => return place,
                Err(wait) => wait,
            };
            // A place that is given back before this waits is remembered.
            let _ = timeout(wait, self.freed.notified()).await;
        }
    }

    /// A place, or for how long to wait for one at most.
    fn try_take(self: &Arc<Self>) -> Result<Place, Duration> {
        let mut taken = self.taken.lock();
        let now = Instant::now();
        if taken.len() < self.limit {
            let idle_since = Mutex::new(now);
            let (evicted, waker) = (AtomicBool::new(false), AtomicWaker::new());
            let seat = Arc::new(Seat { idle_since, evicted, waker });
            taken.push(seat.clone());
            return Ok(Place { places: self.clone(), seat });
        }
        if taken.iter().any(|seat| seat.evicted.load(Ordering::Acquire)) {
            return Err(self.grace);
        }
        let idle = |seat: &Seat| now.saturating_duration_since(*seat.idle_since.lock());
        let (idle, idlest) = taken
            .iter()
            .map(|seat| (idle(seat), seat))
            .max_by_key(|(idle, _)| *idle)
            .expect("there is at least one place");
        if idle < self.grace {
            return Err(self.grace - idle);
        }
        idlest.evicted.store(true, Ordering::Release);
        idlest.waker.wake();
        Err(self.grace)
    }
}

impl Place {
    /// The connection has taken something of an answer.
    pub fn is_used(&self) {
        *self.seat.idle_since.lock() = Instant::now();
    }

    /// Ready when the place goes to somebody else. The task is woken then.
    pub fn poll_evicted(&self, context: &Context<'_>) -> Poll<()> {
        // The waker comes first: an eviction either finds it or is seen here.
        self.seat.waker.register(context.waker());
        match self.seat.evicted.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        let before = taken.len();
        taken.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
        assert_eq!(taken.len() + 1, before, "a place is given back once");
        drop(taken);
        self.places.freed.notify_one();
    }
}
