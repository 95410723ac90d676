//! Which link is the shortest way from the thread that sends.
//!
//! A message between two instances costs one wake-up on each side, if it leaves on a link of the
//! sending reactor and is answered on the link that it came by. Any other link costs one more on
//! either side: its reactor must be woken to write, and the receiver's to hand the answer over.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

thread_local! {
    /// The link whose message this thread hands to its receiver now; 0 for none.
    static READING: Cell<u64> = const { Cell::new(0) };
}

/// Where a link is.
#[derive(Debug)]
pub struct Home {
    /// The thread that reads and writes it.
    thread: ThreadId,
    /// The link's number in this process, from 1.
    number: u64,
}

impl Home {
    /// Of a new link of the calling thread.
    pub fn here() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { thread: thread::current().id(), number }
    }

    /// How far the link is from the calling thread: less is nearer.
    pub fn distance(&self) -> u8 {
        let came_by_it = READING.get() == self.number;
        match (came_by_it, self.thread == thread::current().id()) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    }
}

/// A message of a link is handed to its receiver, for as long as this lives.
pub struct Reading(());

impl Reading {
    /// A message of that link. One thread hands over one message at a time.
    pub fn of(home: &Home) -> Self {
        debug_assert_eq!(READING.get(), 0, "a receiver does not read links");
        READING.set(home.number);
        Self(())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.set(0);
    }
}
