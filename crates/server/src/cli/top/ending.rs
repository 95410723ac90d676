//! What ends the program besides its keys: signals, and a terminal that goes.
//!
//! A signal ends it as `q` does, so that the terminal is left as it was. A terminal that is gone
//! ends it at once: crossterm would read its end again and again, with all of a core.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tokio::runtime::{self, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long after a signal the terminal may take to be restored.
const GRACE: Duration = Duration::from_secs(2);

/// Whether a signal to end has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Ending(Arc<AtomicBool>);

impl Ending {
    /// Hears SIGTERM, SIGINT and SIGHUP from now on, and looks after the terminal.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let signals = kinds.into_iter().map(signal).collect::<io::Result<Vec<_>>>()?;
        drop(entered);
        let ending = Ending::default();
        let heard = ending.clone();
        thread::Builder::new().name("signals".into()).spawn(move || {
            await_one(&runtime, signals);
            heard.0.store(true, Ordering::Release);
            thread::sleep(GRACE);
            std::process::exit(1);
        })?;
        thread::Builder::new().name("terminal".into()).spawn(end_with_terminal)?;
        Ok(ending)
    }

    /// Whether it has.
    pub(super) fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

fn await_one(runtime: &Runtime, mut signals: Vec<Signal>) {
    runtime.block_on(std::future::poll_fn(|context| {
        match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }));
}

/// Returns only if the terminal cannot be looked after.
fn end_with_terminal() {
    let stdout = io::stdout();
    // Nothing is asked for: a hangup is told all the same.
    let mut terminal = [PollFd::new(&stdout, PollFlags::empty())];
    loop {
        match rustix::event::poll(&mut terminal, None) {
            Ok(_) if terminal[0].revents().contains(PollFlags::HUP) => std::process::exit(1),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
