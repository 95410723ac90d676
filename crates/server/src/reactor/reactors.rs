//! The threads of the reactors: started, given tasks, ended.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;
use parking_lot::Mutex;

use super::runtime::{self, Driver};
use super::wake::wake_in_drop;

/// Starts a task on the reactor it is called from.
type Job = Box<dyn FnOnce() + Send>;

/// How many reactors, and what drives them.
#[derive(Debug, Clone, Default)]
pub struct ReactorsConfig {
    /// Threads; `None`: one for each core this process may run on.
    pub threads: Option<usize>,
    /// What drives sockets and disk; `Auto` unless one wants to measure or test the fallback.
    pub driver: Driver,
}

/// Handle to the running reactors; clones share them. They end when [`Reactors::shutdown`] is
/// called, not before.
#[derive(Clone)]
pub struct Reactors {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Reactors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactors").field("count", &self.count()).finish_non_exhaustive()
    }
}

struct Inner {
    reactors: Vec<Reactor>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let reactors = std::mem::take(&mut self.reactors);
        wake_in_drop(|| drop(reactors));
    }
}

struct Reactor {
    jobs: mpsc::UnboundedSender<Job>,
    /// Connections of clients that live here, for balancing new ones.
    connections: AtomicUsize,
}

impl Reactors {
    /// Starts the threads and waits until each has its runtime.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made: out of descriptors, memory or threads.
    pub fn start(config: &ReactorsConfig) -> io::Result<Self> {
        let count = config.threads.unwrap_or_else(default_threads).max(1);
        let mut reactors = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let (jobs, inbox) = mpsc::unbounded();
            let (ready, started) = std::sync::mpsc::sync_channel(1);
            let driver = config.driver;
            let thread = std::thread::Builder::new()
                .name(format!("reactor-{index}"))
                .spawn(move || run(index, driver, inbox, &ready))?;
            started
                .recv()
                .map_err(|_| io::Error::other("a reactor thread ended while it started"))??;
            reactors.push(Reactor { jobs, connections: AtomicUsize::new(0) });
            threads.push(thread);
        }
        Ok(Self { inner: Arc::new(Inner { reactors, threads: Mutex::new(threads) }) })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.inner.reactors.len()
    }

    /// Runs the task that `make` makes on reactor `index`. After [`Reactors::shutdown`] it is
    /// dropped unseen.
    ///
    /// # Panics
    /// When there is no reactor `index`.
    pub fn spawn_on<F>(&self, index: usize, make: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        // `make` runs within the task as well: a task that panics ends alone, what panics outside
        // of it ends the reactor.
        let job: Job =
            Box::new(move || compio::runtime::spawn(async move { make().await }).detach());
        // A closed inbox means that the process is going down; whoever waits for the task sees its
        // channel closed.
        let _ = self.inner.reactors[index].jobs.unbounded_send(job);
    }

    /// Runs a task on reactor `index` and gives its result; `None` when the reactor ended before.
    pub async fn run_on<F, T>(
        &self,
        index: usize,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Option<T>
    where
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let (answer, result) = oneshot::channel();
        self.spawn_on(index, move || async move {
            let _ = answer.send(make().await);
        });
        result.await.ok()
    }

    /// As [`Reactors::run_on`], for a thread that is no reactor: blocks until the result is there.
    pub fn block_on<F, T>(
        &self,
        index: usize,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Option<T>
    where
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let (answer, result) = std::sync::mpsc::sync_channel(1);
        self.spawn_on(index, move || async move {
            let _ = answer.send(make().await);
        });
        result.recv().ok()
    }

    /// Ends the reactors and waits for their threads. Tasks that still run are dropped where they
    /// wait: drain front ends first.
    pub fn shutdown(&self) {
        for reactor in &self.inner.reactors {
            reactor.jobs.close_channel();
        }
        for thread in self.inner.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// Whether reactor `index` takes tasks. One that has ended by a panic never does again, nor
    /// does any after [`Reactors::shutdown`].
    pub(super) fn runs(&self, index: usize) -> bool {
        // Its thread holds the inbox.
        !self.inner.reactors[index].jobs.is_closed()
    }

    /// Whether all reactors take tasks.
    pub fn are_running(&self) -> bool {
        (0..self.count()).all(|index| self.runs(index))
    }

    /// Ends reactor `index` as a bug outside of any task does, and waits until that is seen.
    #[cfg(test)]
    pub fn end_by_a_bug(&self, index: usize) {
        let ends: Job = Box::new(|| panic!("a bug outside of any task"));
        self.inner.reactors[index].jobs.unbounded_send(ends).expect("it runs");
        while self.runs(index) {
            std::thread::yield_now();
        }
    }

    /// The reactor that runs and has the fewest connections of clients, and that one more is there
    /// now until the guard is dropped.
    pub(super) fn place_connection(&self) -> (usize, ConnectionGuard) {
        let load = |index: &usize| self.inner.reactors[*index].connections.load(Ordering::Relaxed);
        let index =
            (0..self.count()).filter(|index| self.runs(*index)).min_by_key(load).unwrap_or(0);
        self.inner.reactors[index].connections.fetch_add(1, Ordering::Relaxed);
        (index, ConnectionGuard { reactors: self.clone(), index })
    }
}

/// Counts as one connection of its reactor as long as it lives.
pub struct ConnectionGuard {
    reactors: Reactors,
    index: usize,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.reactors.inner.reactors[self.index].connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A reactor's thread: starts what comes in until the inbox is closed.
fn run(
    index: usize,
    driver: Driver,
    mut inbox: mpsc::UnboundedReceiver<Job>,
    ready: &std::sync::mpsc::SyncSender<io::Result<()>>,
) {
    let runtime = match runtime::build(driver, index == 0) {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    runtime::run(runtime, async move {
        while let Some(job) = inbox.next().await {
            job();
        }
    });
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
