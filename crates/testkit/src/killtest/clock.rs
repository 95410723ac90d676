//! Time as the processes under test have lived it: what a stopped or starved machine took away does
//! not count.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Pause between two looks at the clock.
const TICK: Duration = Duration::from_millis(20);
/// A look that comes later than this says that nothing ran meanwhile; the rest of the gap was not
/// lived.
const MOST: Duration = Duration::from_millis(200);

/// Counts lived time. Clones count the same.
#[derive(Clone)]
pub(super) struct Lived(Arc<Counts>);

#[derive(Default)]
struct Counts {
    lived: AtomicU64,
    lost: AtomicU64,
    frozen: AtomicBool,
    over: AtomicBool,
}

/// Keeps [`Lived`] going until it is dropped.
pub(super) struct Ticker(Lived, Option<JoinHandle<()>>);

impl Lived {
    pub(super) fn start() -> (Lived, Ticker) {
        let lived = Lived(Arc::default());
        let ticking = lived.clone();
        let thread = thread::spawn(move || {
            let mut last = Instant::now();
            while !ticking.0.over.load(Ordering::Relaxed) {
                thread::sleep(TICK);
                let now = Instant::now();
                ticking.add(now - last);
                last = now;
            }
        });
        (lived.clone(), Ticker(lived, Some(thread)))
    }

    fn add(&self, gap: Duration) {
        let lived =
            if self.0.frozen.load(Ordering::Relaxed) { Duration::ZERO } else { gap.min(MOST) };
        self.0.lived.fetch_add(lived.as_nanos() as u64, Ordering::Relaxed);
        self.0.lost.fetch_add((gap - gap.min(MOST)).as_nanos() as u64, Ordering::Relaxed);
    }

    /// How long.
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.0.lived.load(Ordering::Relaxed))
    }

    /// How much time was not lived because this process was not let run, freezes apart.
    pub(super) fn lost(&self) -> Duration {
        Duration::from_nanos(self.0.lost.load(Ordering::Relaxed))
    }

    /// While the server is stopped on purpose.
    pub(super) fn freeze(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Sleeps until so much was lived.
    pub(super) fn sleep(&self, time: Duration) {
        let end = self.now() + time;
        while self.now() < end {
            thread::sleep(TICK.min(end.saturating_sub(self.now())));
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.0.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_gaps_and_freezes_are_not_lived() {
        let lived = Lived(Arc::default());
        lived.add(Duration::from_millis(150));
        lived.add(Duration::from_secs(60));
        assert_eq!(lived.now(), Duration::from_millis(350));
        assert_eq!(lived.lost(), Duration::from_millis(59_800));
        lived.freeze(true);
        lived.add(Duration::from_millis(100));
        assert_eq!(lived.now(), Duration::from_millis(350));
    }
}
