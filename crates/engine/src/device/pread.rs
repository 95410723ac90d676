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

/// I/Os that run at the same time. More threads cost memory and context switches. They do not help
/// one thread that mostly writes a few large chunks. Readers use [`DeviceSet::read_at`] on their
/// own threads.
const THREADS: usize = 4;

/// A queue served by a few threads that sleep while there is nothing to do.
pub struct PreadDisk {
    files: Arc<Files>,
    shared: Arc<PreadShared>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
}

/// What the driving thread and the I/O threads share.
struct PreadShared {
    queue: Mutex<Requests>,
    /// Signalled for every request, and for all when the queue closes.
    work: Condvar,
    done: Mutex<Vec<Done>>,
    /// Signalled for every completion.
    finished: Condvar,
}

struct Requests {
    waiting: VecDeque<Io>,
    open: bool,
}

impl PreadDisk {
    /// Starts the threads.
    pub(super) fn new(files: Arc<Files>) -> io::Result<Self> {
        let shared = Arc::new(PreadShared {
            queue: Mutex::new(Requests { waiting: VecDeque::new(), open: true }),
            work: Condvar::new(),
            done: Mutex::new(Vec::new()),
            finished: Condvar::new(),
        });
        let mut disk = Self { files, shared, threads: Vec::with_capacity(THREADS), in_flight: 0 };
        for n in 0..THREADS {
            let (files, shared) = (disk.files.clone(), disk.shared.clone());
            let builder = std::thread::Builder::new().name(format!("afterglow-io-{n}"));
            // On an error `disk` is dropped, which ends the threads already started.
            disk.threads.push(builder.spawn(move || serve(&files, &shared))?);
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
        self.shared.queue.lock().waiting.push_back(io);
        self.shared.work.notify_one();
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn wait(&mut self, at_least: usize, out: &mut Vec<Done>) {
        let wanted = at_least.min(self.in_flight);
        let mut done = self.shared.done.lock();
        while done.len() < wanted {
            self.shared.finished.wait(&mut done);
        }
        self.in_flight -= done.len();
        out.append(&mut done);
    }

    fn wait_for(&mut self, limit: Duration, out: &mut Vec<Done>) {
        let until = Instant::now() + limit;
        let mut done = self.shared.done.lock();
        while done.is_empty() && self.in_flight > 0 {
            if self.shared.finished.wait_until(&mut done, until).timed_out() {
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
        self.shared.queue.lock().open = false;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panicked I/O thread has already reported itself, and there is nobody to hand the
            // error to.
            let _ = thread.join();
        }
    }
}

/// Body of an I/O thread.
fn serve(files: &Files, shared: &PreadShared) {
    while let Some(io) = next(shared) {
        let id = io.id;
        let result = carry_out(files, io);
        shared.done.lock().push(Done { id, result });
        shared.finished.notify_one();
    }
}

/// The next request, or `None` once the queue is closed and empty.
fn next(shared: &PreadShared) -> Option<Io> {
    let mut queue = shared.queue.lock();
    loop {
        if let Some(io) = queue.waiting.pop_front() {
            return Some(io);
        }
        if !queue.open {
            return None;
        }
        shared.work.wait(&mut queue);
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
