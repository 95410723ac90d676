//! Devices through `pread` and `pwrite`: the queue for kernels and containers without io_uring.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::buf::AlignedBuf;
use super::disk::{DeviceInfo, DeviceSet, Disk, Done, Io, IoKind, IoOutput, check_io};
use super::files::{Files, read_full, write_full};

/// I/Os to a device that run at the same time. More threads cost memory and context switches. They
/// do not help one thread that mostly writes a few large chunks. Readers use
/// [`DeviceSet::read_at`] on their own threads.
const THREADS: usize = 4;

/// A queue served by a few threads for each device, which sleep while there is nothing to do. A
/// device that does not answer keeps only its own.
pub struct PreadDisk {
    files: Arc<Files>,
    queues: Vec<Arc<DeviceQueue>>,
    finished: Arc<Finished>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
}

/// What is asked of a device.
struct DeviceQueue {
    requests: Mutex<Requests>,
    /// Signalled for every request, and for all when the queue closes.
    work: Condvar,
}

/// What all I/O threads hand back.
#[derive(Default)]
struct Finished {
    done: Mutex<Vec<Done>>,
    /// Signalled for every completion.
    one: Condvar,
}

struct Requests {
    waiting: VecDeque<Io>,
    open: bool,
}

impl PreadDisk {
    /// Starts the threads.
    pub(super) fn new(files: Arc<Files>) -> io::Result<Self> {
        let queue = |_| {
            let requests = Mutex::new(Requests { waiting: VecDeque::new(), open: true });
            Arc::new(DeviceQueue { requests, work: Condvar::new() })
        };
        let queues: Vec<_> = (0..files.infos().len().max(1)).map(queue).collect();
        let (finished, threads) = (Arc::default(), Vec::with_capacity(THREADS * queues.len()));
        let mut disk = Self { files, queues, finished, threads, in_flight: 0 };
        for n in 0..THREADS * disk.queues.len() {
            let (files, finished) = (disk.files.clone(), disk.finished.clone());
            let queue = disk.queues[n / THREADS].clone();
            let builder = std::thread::Builder::new().name(format!("afterglow-io-{n}"));
            // On an error `disk` is dropped, which ends the threads already started.
            disk.threads.push(builder.spawn(move || serve(&files, &queue, &finished))?);
        }
        Ok(disk)
    }
}

impl Disk for PreadDisk {
    fn devices(&self) -> &[DeviceInfo] {
        self.files.infos()
    }

    fn submit(&mut self, io: Io) {
        self.in_flight += 1;
        // What is asked of no device is refused like the rest, by somebody's thread.
        let device = usize::from(io.device.0).min(self.queues.len() - 1);
        let queue = &self.queues[device];
        queue.requests.lock().waiting.push_back(io);
        queue.work.notify_one();
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn wait(&mut self, at_least: usize, out: &mut Vec<Done>) {
        let wanted = at_least.min(self.in_flight);
        let mut done = self.finished.done.lock();
        while done.len() < wanted {
            self.finished.one.wait(&mut done);
        }
        self.in_flight -= done.len();
        out.append(&mut done);
    }

    fn wait_for(&mut self, limit: Duration, out: &mut Vec<Done>) {
        let until = Instant::now() + limit;
        let mut done = self.finished.done.lock();
        while done.is_empty() && self.in_flight > 0 {
            if self.finished.one.wait_until(&mut done, until).timed_out() {
                break;
            }
        }
        self.in_flight -= done.len();
        out.append(&mut done);
    }
}

impl Drop for PreadDisk {
    /// Waits for what is in flight; requests still waiting for a thread are carried out too.
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.requests.lock().open = false;
            queue.work.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panicked I/O thread has already reported itself, and there is nobody to hand the
            // error to.
            let _ = thread.join();
        }
    }
}

/// Body of an I/O thread.
fn serve(files: &Files, queue: &DeviceQueue, finished: &Finished) {
    while let Some(io) = next(queue) {
        let id = io.id;
        let result = carry_out(files, io);
        finished.done.lock().push(Done { id, result });
        finished.one.notify_one();
    }
}

/// The next request, or `None` once the queue is closed and empty.
fn next(queue: &DeviceQueue) -> Option<Io> {
    let mut requests = queue.requests.lock();
    loop {
        if let Some(io) = requests.waiting.pop_front() {
            return Some(io);
        }
        if !requests.open {
            return None;
        }
        queue.work.wait(&mut requests);
    }
}

/// One request, start to end, on this thread.
fn carry_out(files: &Files, io: Io) -> io::Result<IoOutput> {
    check_io(files.infos(), &io)?;
    let alignment = files.infos()[usize::from(io.device.0)].alignment;
    let file = files.file(io.device);
    match io.kind {
        IoKind::Read { len } => {
            let mut buf = AlignedBuf::for_read(len as usize);
            read_full(file, &mut buf, io.offset, alignment)?;
            Ok(IoOutput::Read(buf))
        }
        IoKind::Write { data } => {
            write_full(file, &data, io.offset, alignment)?;
            Ok(IoOutput::Written)
        }
        IoKind::Sync => {
            file.sync_data()?;
            Ok(IoOutput::Synced)
        }
    }
}
