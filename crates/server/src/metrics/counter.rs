//! Counters and gauges.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use super::Label;

/// Counts up, for ever.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// That many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts up, for ever, on one thread; every thread may read it. A write of its own costs a
/// fraction of an atomic addition.
#[derive(Debug, Default)]
pub struct OwnCounter {
    count: AtomicU64,
    #[cfg(debug_assertions)]
    owner: std::sync::OnceLock<std::thread::ThreadId>,
}

impl OwnCounter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// That many more. A second thread would lose counts: a debug build panics.
    pub fn add(&self, count: u64) {
        #[cfg(debug_assertions)]
        {
            let this = std::thread::current().id();
            assert_eq!(*self.owner.get_or_init(|| this), this, "another thread counts here");
        }
        self.count.store(self.count.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// One less.
    pub fn dec(&self) {
        self.add(-1);
    }

    /// One more until the guard is dropped, as it is with a task that is given up.
    pub fn one_more(&self) -> OneMore<'_> {
        self.inc();
        OneMore(self)
    }

    /// That many more, or fewer when negative.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    /// Now this many.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// How many now.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One more of a gauge for as long as this lives.
#[derive(Debug)]
#[must_use]
pub struct OneMore<'a>(&'a Gauge);

impl Drop for OneMore<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// One `T` for each value of a label: `hits.of(Tier::Flash).inc()`.
#[derive(Debug)]
pub struct Family<L, T = OwnCounter> {
    members: Box<[T]>,
    label: PhantomData<L>,
}

impl<L: Label, T: Default> Default for Family<L, T> {
    fn default() -> Self {
        Family { members: L::ALL.iter().map(|_| T::default()).collect(), label: PhantomData }
    }
}

impl<L: Label, T> Family<L, T> {
    /// The member for that value.
    pub fn of(&self, label: L) -> &T {
        &self.members[label.index()]
    }
}

impl<L: Label> Family<L> {
    /// One more for that value.
    pub fn inc(&self, label: L) {
        self.of(label).inc();
    }

    /// Over all values.
    pub fn total(&self) -> u64 {
        self.members.iter().map(OwnCounter::get).sum()
    }
}
