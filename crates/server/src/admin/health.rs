//! Health: whether clients should use this server.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::metrics::RingEntry;
use crate::reactor::Reactors;

/// What is said after a thread has ended by a bug.
pub(super) const REACTOR_ENDED: &str = "a thread that serves clients has ended: restart";

/// How far the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Opening the cache and the front ends.
    Starting,
    /// Front ends are open.
    Serving,
    /// Going down.
    Draining,
}

/// The answer to `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// Yes, though not all is well.
    Degraded(&'static str),
    /// No.
    Not(&'static str),
}

/// Where the process stands; set by who starts and stops it.
#[derive(Debug, Default)]
pub struct Health {
    /// A [`Stage`], as its discriminant.
    stage: AtomicU8,
    backend_seen: AtomicBool,
    /// No front end needs a database.
    independent: AtomicBool,
    /// The threads that serve clients, once they are started.
    reactors: OnceLock<Reactors>,
}

impl Health {
    /// Says how far the process is.
    pub fn set(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Says which threads serve clients.
    pub fn set_reactors(&self, reactors: &Reactors) {
        self.reactors.get_or_init(|| reactors.clone());
    }

    /// Says that no front end needs a database.
    pub fn set_independent(&self) {
        self.independent.store(true, Ordering::Relaxed);
    }

    /// Whether only a restart would mend it: false when a thread that serves clients has ended
    /// although no stop was asked for.
    pub fn is_alive(&self) -> bool {
        self.stage.load(Ordering::Relaxed) != Stage::Serving as u8 || self.are_reactors_running()
    }

    fn are_reactors_running(&self) -> bool {
        self.reactors.get().is_none_or(Reactors::are_running)
    }

    /// Whether clients should come, given whether the database can be reached now and how far this
    /// instance is on its way into its ring.
    ///
    /// Until the database was reached once there is nothing to give to a driver. After that, hits
    /// are served without it, and sending clients elsewhere would only lose them. For the same
    /// reason whoever could write through its ring once stays ready: all members lose the ring at
    /// one time.
    pub fn readiness(&self, backend: bool, entry: RingEntry) -> Readiness {
        let backend = backend || self.independent.load(Ordering::Relaxed);
        if backend {
            self.backend_seen.store(true, Ordering::Relaxed);
        }
        const SERVING: u8 = Stage::Serving as u8;
        const DRAINING: u8 = Stage::Draining as u8;
        let whole = self.are_reactors_running();
        match (
            self.stage.load(Ordering::Relaxed),
            backend,
            self.backend_seen.load(Ordering::Relaxed),
        ) {
            (SERVING, ..) if !whole => Readiness::Not(REACTOR_ENDED),
            (SERVING, _, true) if entry == RingEntry::Awaited => {
                Readiness::Not("this instance is not in its ring yet: writes would wait")
            }
            (SERVING, true, _) if entry == RingEntry::Late => Readiness::Degraded(
                "this instance is not in its ring: reads pass through, and writes may be refused",
            ),
            (SERVING, true, _) if entry == RingEntry::KeptOut => Readiness::Degraded(
                "another instance or ring has the lease: reads of `exclusive` tables pass through, and writes are refused",
            ),
            (SERVING, true, _) => Readiness::Ready,
            (SERVING, false, true) => {
                Readiness::Degraded("the database cannot be reached: only hits are served")
            }
            (SERVING, false, false) => Readiness::Not("the database was not reached yet"),
            (DRAINING, ..) => Readiness::Not("shutting down"),
            _ => Readiness::Not("starting"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::{Driver, ReactorsConfig};

    #[test]
    fn clients_come_once_the_database_was_there_and_go_when_it_ends() {
        let health = Health::default();
        assert_eq!(health.readiness(false, RingEntry::Done), Readiness::Not("starting"));
        health.set(Stage::Serving);
        assert_eq!(
            health.readiness(false, RingEntry::Done),
            Readiness::Not("the database was not reached yet")
        );
        assert_eq!(health.readiness(true, RingEntry::Done), Readiness::Ready);
        assert!(
            matches!(health.readiness(false, RingEntry::Done), Readiness::Degraded(_)),
            "hits are served without it"
        );
        health.set(Stage::Draining);
        assert_eq!(health.readiness(true, RingEntry::Done), Readiness::Not("shutting down"));
    }

    #[test]
    fn clients_go_elsewhere_when_a_thread_that_serves_them_has_ended() {
        for ends in [0, 1] {
            let health = Health::default();
            health.set_independent();
            health.set(Stage::Serving);
            let threads = ReactorsConfig { threads: Some(2), driver: Driver::Auto };
            let reactors = Reactors::start(&threads).unwrap();
            health.set_reactors(&reactors);
            assert_eq!(health.readiness(false, RingEntry::Done), Readiness::Ready);
            assert!(health.is_alive());
            reactors.end_by_a_bug(ends);
            assert!(
                matches!(health.readiness(false, RingEntry::Done), Readiness::Not(_)),
                "reactor {ends}"
            );
            assert!(!health.is_alive(), "whoever asks for life restarts it");
            reactors.shutdown();
            health.set(Stage::Draining);
            assert!(health.is_alive(), "a stop is not to be cut off");
        }
    }

    #[test]
    fn clients_come_when_the_ring_has_let_the_instance_in_or_takes_long() {
        let health = Health::default();
        health.set(Stage::Serving);
        assert!(matches!(health.readiness(false, RingEntry::Awaited), Readiness::Not(_)));
        assert!(matches!(health.readiness(true, RingEntry::Awaited), Readiness::Not(_)));
        for entry in [RingEntry::Late, RingEntry::KeptOut] {
            assert!(matches!(health.readiness(true, entry), Readiness::Degraded(_)));
        }
        assert_eq!(health.readiness(true, RingEntry::Done), Readiness::Ready);
    }

    #[test]
    fn front_ends_that_need_no_database_do_not_wait_for_one() {
        let health = Health::default();
        health.set_independent();
        assert_eq!(health.readiness(false, RingEntry::Done), Readiness::Not("starting"));
        health.set(Stage::Serving);
        assert_eq!(health.readiness(false, RingEntry::Done), Readiness::Ready);
    }
}
