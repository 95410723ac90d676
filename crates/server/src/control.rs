//! The control plane: one thread with its own small runtime for admin HTTP and signals. It does not
//! wait for the reactors, nor they for it.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::admin::{self, Shown};

/// What the operator asked for by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// SIGTERM or SIGINT: finish and end. Comes once; at the second signal the process ends at
    /// once, with status 1.
    Stop(&'static str),
    /// SIGHUP: read the configuration again.
    Reload,
}

/// Asks for a stop: signals do, and whoever takes this process's place.
#[derive(Clone)]
pub struct Stopper {
    events: mpsc::Sender<Event>,
    /// Set before the event of the first stop is sent.
    stopping: Arc<AtomicBool>,
}

impl Stopper {
    /// Nobody has asked yet.
    pub fn new(events: mpsc::Sender<Event>) -> Stopper {
        Stopper { events, stopping: Arc::default() }
    }

    /// Asks for a stop, with a name for the log. False: somebody has asked before.
    pub fn stop(&self, name: &'static str) -> bool {
        let first = !self.stopping.swap(true, Ordering::AcqRel);
        if first {
            // Nobody listens any more only when the process is ending anyway.
            let _ = self.events.send(Event::Stop(name));
        }
        first
    }
}

/// The control plane could not start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The admin address cannot be had.
    #[error(transparent)]
    Admin(#[from] admin::BindError),
    /// No thread, no runtime or no signal handlers.
    #[error("cannot start the control thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The running control plane; dropping it ends it.
pub struct Control {
    admin: Option<SocketAddr>,
    stopper: Stopper,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts it: from now on signals become events.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn start(
        admin: Option<SocketAddr>,
        shown: Shown,
        stopper: Stopper,
    ) -> Result<Control, ControlError> {
        let listener = admin.map(admin::bind).transpose()?;
        let admin = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let (stop, stopped) = oneshot::channel();
        let (started, start) = mpsc::sync_channel(1);
        let sink = stopper.clone();
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            run(listener, shown, sink, stopped, &started);
        })?;
        let control = Control { admin, stopper, stop: Some(stop), thread: Some(thread) };
        start.recv().map_err(|_| std::io::Error::other("it ended while it started"))??;
        Ok(control)
    }

    /// Whether a signal has asked for a stop: long work that a stop must not wait for ends then.
    pub fn is_stopping(&self) -> bool {
        self.stopper.stopping.load(Ordering::Acquire)
    }

    /// Where the admin pages are, with the port the system chose in place of 0.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    listener: Option<TcpListener>,
    shown: Shown,
    sink: Stopper,
    stopped: oneshot::Receiver<()>,
    started: &mpsc::SyncSender<std::io::Result<()>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return drop(started.send(Err(e))),
    };
    runtime.block_on(async {
        match Signals::new() {
            Ok(signals) => tokio::spawn(signals.report_to(sink)),
            Err(e) => return drop(started.send(Err(e))),
        };
        let _ = started.send(Ok(()));
        if let Some(listener) = listener {
            tokio::spawn(async move {
                if let Err(e) = admin::serve(listener, shown, std::future::pending()).await {
                    tracing::error!("the admin address no longer answers: {e}");
                }
            });
        }
        // A page that somebody still reads must not hold up the end of the process: tasks are
        // dropped with the runtime.
        let _ = stopped.await;
    });
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Event {
        std::future::poll_fn(|context| {
            if self.terminate.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(Event::Stop("SIGTERM"));
            }
            if self.interrupt.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(Event::Stop("SIGINT"));
            }
            self.hangup.poll_recv(context).map(|_| Event::Reload)
        })
        .await
    }

    async fn report_to(mut self, sink: Stopper) {
        loop {
            match self.next().await {
                Event::Stop(name) => {
                    if !sink.stop(name) {
                        tracing::warn!(
                            "{name} again: ending at once, the cache is not written out"
                        );
                        std::process::exit(1);
                    }
                }
                // Nobody listens any more only when the process is ending anyway.
                event => _ = sink.events.send(event),
            }
        }
    }
}
