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
    /// Set before the event of the first signal to stop is sent.
    stopping: Arc<AtomicBool>,
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
        events: mpsc::Sender<Event>,
    ) -> Result<Control, ControlError> {
        let listener = admin.map(admin::bind).transpose()?;
        let admin = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let (stop, stopped) = oneshot::channel();
        let (started, start) = mpsc::sync_channel(1);
        let stopping = Arc::new(AtomicBool::new(false));
        let sink = EventSink { events, stopping: stopping.clone() };
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            run(listener, shown, sink, stopped, &started);
        })?;
        let control = Control { admin, stopping, stop: Some(stop), thread: Some(thread) };
        start.recv().map_err(|_| std::io::Error::other("it ended while it started"))??;
        Ok(control)
    }

    /// Whether a signal has asked for a stop: long work that a stop must not wait for ends then.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
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
    sink: EventSink,
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

/// Who hears of signals.
struct EventSink {
    events: mpsc::Sender<Event>,
    stopping: Arc<AtomicBool>,
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

    async fn report_to(mut self, sink: EventSink) {
        loop {
            let event = self.next().await;
            if let Event::Stop(name) = event
                && sink.stopping.swap(true, Ordering::AcqRel)
            {
                tracing::warn!("{name} again: ending at once, the cache is not written out");
                std::process::exit(1);
            }
            // Nobody listens any more only when the process is ending anyway.
            let _ = sink.events.send(event);
        }
    }
}
