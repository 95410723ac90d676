//! A task of a reactor waiting for another task of the same reactor.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Lets the reactor's other tasks run, and what has come from sockets and disks be seen.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| match std::mem::replace(&mut yielded, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// Where one task waits until a condition on shared state holds; others call [`Wake::wake`] after
/// changing the state.
///
/// One waiter at a time: a later one takes the place of the earlier.
#[derive(Debug, Default)]
pub struct Wake {
    waker: RefCell<Option<Waker>>,
}

impl Wake {
    /// Has the waiter look again.
    pub fn wake(&self) {
        match self.waker.take() {
            // The runtime ends the process when a panicking thread wakes a task. Destructors of a
            // task that panics come here, and one faulty request must not take everybody else's
            // connections with it.
            Some(waker) if std::thread::panicking() => {
                drop(std::thread::spawn(move || waker.wake()))
            }
            Some(waker) => waker.wake(),
            None => {}
        }
    }

    /// Waits until `ready` gives something; asks now and after every wake-up.
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| match ready() {
            Some(value) => Poll::Ready(value),
            None => {
                self.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
