//! A task of a reactor waiting for another task of the same reactor; wakes in destructors.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

thread_local! {
    /// Tasks of this thread's reactor that have yielded since it last looked at sockets and disks.
    static YIELDED: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// Lets the reactor's other tasks run, and what has come from sockets and disks be seen. Only for
/// tasks of a reactor: its loop is who wakes them.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| match std::mem::replace(&mut yielded, true) {
        true => Poll::Ready(()),
        false => {
            YIELDED.with_borrow_mut(|tasks| tasks.push(context.waker().clone()));
            Poll::Pending
        }
    })
    .await;
}

/// Whether a task of this thread's reactor waits in [`yield_now`].
pub(super) fn has_yielded() -> bool {
    YIELDED.with_borrow(|tasks| !tasks.is_empty())
}

/// Sockets and disks have been looked at: tasks that yielded before go on.
pub(super) fn wake_yielded() {
    YIELDED.take().into_iter().for_each(Waker::wake);
}

/// Does what may wake a task, in a destructor: on a thread of its own if this one panics.
///
/// The runtime ends the process when a thread that panics wakes a task. One faulty request would
/// take everybody else's connections with it, and a test that fails would not say why.
pub fn wake_in_drop(act: impl FnOnce() + Send + 'static) {
    match std::thread::panicking() {
        true => drop(std::thread::spawn(act)),
        false => act(),
    }
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
        if let Some(waker) = self.waker.take() {
            // Destructors of a task that panics come here.
            wake_in_drop(|| waker.wake());
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
