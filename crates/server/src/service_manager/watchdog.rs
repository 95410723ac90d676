//! Pings that the manager gets while every reactor runs its tasks.
//!
//! Each round gives every reactor a task. The next ping goes out when all of them have run. A
//! reactor that is stuck, or has ended, runs no task: pings stop and the manager restarts the
//! process. A thread of its own sends them, so that no stuck reactor can.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use super::Notifier;
use crate::reactor::Reactors;

/// Rounds within the time that the manager allows: pings come at most half of it apart.
const ROUNDS: u32 = 4;

/// The running watchdog; dropping it ends the pings.
#[derive(Debug)]
pub struct Watchdog {
    closing: Option<mpsc::Sender<()>>,
}

impl Watchdog {
    /// Starts it, if the manager wants pings.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn start(notifier: &Notifier, reactors: &Reactors) -> std::io::Result<Self> {
        let Some(within) = notifier.watchdog() else { return Ok(Self { closing: None }) };
        let (closing, told) = mpsc::channel();
        let (notifier, turns) = (notifier.clone(), Turns::begin(reactors));
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || run(&notifier, turns, within / ROUNDS, &told))?;
        Ok(Self { closing: Some(closing) })
    }

    /// Says that reactors end on purpose. From now on the manager's timeout for a stop is what
    /// bounds the process, and pings no longer depend on reactors.
    pub fn closing(&self) {
        if let Some(closing) = &self.closing {
            // Its thread ends only after us.
            let _ = closing.send(());
        }
    }
}

fn run(notifier: &Notifier, turns: Turns, every: Duration, closing: &mpsc::Receiver<()>) {
    let mut turns = Some(turns);
    loop {
        match closing.recv_timeout(every) {
            Ok(()) => turns = None,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if turns.as_mut().is_none_or(Turns::complete) {
            notifier.ping();
        }
    }
}

/// One task on each reactor, again and again.
struct Turns {
    reactors: Reactors,
    /// Reactors whose task of this round has run.
    turned: Arc<AtomicUsize>,
}

impl Turns {
    fn begin(reactors: &Reactors) -> Self {
        let mut turns = Self { reactors: reactors.clone(), turned: Arc::default() };
        turns.begin_round();
        turns
    }

    fn begin_round(&mut self) {
        // A counter for each round, so that no late task counts for the next one.
        self.turned = Arc::default();
        for index in 0..self.reactors.count() {
            let turned = self.turned.clone();
            self.reactors.spawn_on(index, move || async move {
                turned.fetch_add(1, Ordering::Relaxed);
            });
        }
    }

    /// Whether all reactors have turned; then the next round begins. Until then none does: tasks of
    /// a stuck reactor do not pile up.
    fn complete(&mut self) -> bool {
        let complete = self.turned.load(Ordering::Relaxed) == self.reactors.count();
        if complete {
            self.begin_round();
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::reactor::{Driver, ReactorsConfig};

    /// The manager wants a ping in this time.
    const WITHIN: Duration = Duration::from_millis(40);
    /// More than any machine takes for what has to come.
    const TIMEOUT: Duration = Duration::from_secs(60);

    struct Manager(UnixDatagram);

    impl Manager {
        fn watch(reactors: &Reactors) -> (Manager, Watchdog, tempfile::TempDir) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("notify");
            let manager = UnixDatagram::bind(&path).unwrap();
            manager.set_read_timeout(Some(TIMEOUT)).unwrap();
            let notifier = Notifier::connected(path.as_os_str(), Some(WITHIN)).unwrap();
            (Manager(manager), Watchdog::start(&notifier, reactors).unwrap(), dir)
        }

        fn expect_ping(&self) {
            let mut message = [0; 32];
            let len = self.0.recv(&mut message).expect("a ping");
            assert_eq!(&message[..len], b"WATCHDOG=1");
        }

        /// Whether pings stop coming: none for ten times what the manager allows.
        fn expect_silence(&self) {
            self.0.set_read_timeout(Some(WITHIN * 10)).unwrap();
            let until = std::time::Instant::now() + TIMEOUT;
            // One may be on its way, and those of before are read first.
            while self.0.recv(&mut [0; 32]).is_ok() {
                assert!(std::time::Instant::now() < until, "pings go on");
            }
            self.0.set_read_timeout(Some(TIMEOUT)).unwrap();
        }
    }

    fn reactors() -> Reactors {
        Reactors::start(&ReactorsConfig { threads: Some(2), driver: Driver::Auto }).unwrap()
    }

    #[test]
    fn pings_stop_while_one_reactor_is_stuck_and_go_on_after() {
        let reactors = reactors();
        let (manager, _watchdog, _dir) = Manager::watch(&reactors);
        manager.expect_ping();
        manager.expect_ping();
        let (release, released) = mpsc::channel::<()>();
        reactors.spawn_on(1, move || async move {
            let _ = released.recv();
        });
        manager.expect_silence();
        release.send(()).unwrap();
        manager.expect_ping();
        reactors.shutdown();
    }

    #[test]
    fn pings_stop_when_a_reactor_has_ended_by_a_bug() {
        let reactors = reactors();
        let (manager, _watchdog, _dir) = Manager::watch(&reactors);
        manager.expect_ping();
        reactors.end_by_a_bug(0);
        manager.expect_silence();
        reactors.shutdown();
    }

    #[test]
    fn a_stop_is_not_taken_for_stuck_reactors() {
        let reactors = reactors();
        let (manager, watchdog, _dir) = Manager::watch(&reactors);
        watchdog.closing();
        reactors.shutdown();
        for _ in 0..10 {
            manager.expect_ping();
        }
        drop(watchdog);
        manager.expect_silence();
    }
}
