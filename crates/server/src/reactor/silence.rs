//! Devices that do not answer: reads of them are given up.
//!
//! A device that hangs may answer no read for good. A connection sends its answers in the order of
//! its requests, so one read without an end holds up all that follow it, hits in memory too. Each
//! reactor watches its own reads:
//!
//! 1. A read enters ([`enter`]) and leaves when it has come back, or when nobody waits for it.
//! 2. While there are reads, a task looks at their devices four times a second. A device is
//!    *silent* when it has had reads for two seconds and none of them came back.
//! 3. Its reads end with `TimedOut`, and so does each that would enter. The kernel keeps the
//!    buffers of those that are under way.
//! 4. One block of it is asked for. When that comes back, with whatever outcome, the device is no
//!    longer silent.
//!
//! While a device is silent, one block is asked for at a time, and nothing else.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use afterglow_engine::device::AlignedBuf;
use slab::Slab;

use super::device_read::{FlashFile, read_whole};

/// A device that has had reads for so long, and answered none of them, is silent.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// The devices are looked at so often.
const LOOKED_AT: Duration = Duration::from_millis(250);
/// What passed between two looks counts for so much at most. In more it was this thread, or the
/// whole machine, that stood still.
const COUNTED: Duration = Duration::from_millis(500);
/// What a silent device is asked for.
const BLOCK: usize = 4096;

thread_local! {
    static WATCHED: RefCell<Watched> = const {
        RefCell::new(Watched { devices: Vec::new(), is_looking: false })
    };
}

/// The devices of this thread that have reads under way, or are silent.
struct Watched {
    devices: Vec<Rc<WatchedDevice>>,
    is_looking: bool,
}

/// A device, as this thread sees it.
struct WatchedDevice {
    file: FlashFile,
    /// Reads under way; the wakers of those that wait.
    reads: Cell<usize>,
    waiting: RefCell<Slab<Waker>>,
    /// How long it has had reads and answered none.
    quiet: Cell<Duration>,
    is_silent: Cell<bool>,
}

/// A read under way.
pub(super) struct ReadUnderWay {
    device: Rc<WatchedDevice>,
    place: Option<usize>,
}

/// A read of `file` begins.
///
/// # Errors
/// `TimedOut` where the device is silent.
pub(super) fn enter(file: &FlashFile) -> io::Result<ReadUnderWay> {
    let (device, begins) = WATCHED.with_borrow_mut(|watched| {
        let known = watched.devices.iter().find(|device| device.file.is_same(file)).cloned();
        let device = known.unwrap_or_else(|| {
            let device = Rc::new(WatchedDevice::of(file.clone()));
            watched.devices.push(device.clone());
            device
        });
        (device, !std::mem::replace(&mut watched.is_looking, true))
    });
    if begins {
        compio::runtime::spawn(look(Looking)).detach();
    }
    if device.is_silent.get() {
        return Err(gave_up());
    }
    if device.reads.replace(device.reads.get() + 1) == 0 {
        device.quiet.set(Duration::ZERO);
    }
    Ok(ReadUnderWay { device, place: None })
}

fn gave_up() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the device has answered no read for two seconds")
}

impl ReadUnderWay {
    /// The read has come back, with whatever outcome.
    pub(super) fn came_back(&self) {
        self.device.quiet.set(Duration::ZERO);
    }

    /// The read has not come back. `waker` is woken when it is given up.
    ///
    /// # Errors
    /// `TimedOut` where it is.
    pub(super) fn wait(&mut self, waker: &Waker) -> io::Result<()> {
        if self.device.is_silent.get() {
            return Err(gave_up());
        }
        let mut waiting = self.device.waiting.borrow_mut();
        match self.place {
            Some(place) => waiting[place].clone_from(waker),
            None => self.place = Some(waiting.insert(waker.clone())),
        }
        Ok(())
    }
}

impl Drop for ReadUnderWay {
    fn drop(&mut self) {
        self.device.reads.set(self.device.reads.get() - 1);
        if let Some(place) = self.place {
            let _waker = self.device.waiting.borrow_mut().remove(place);
        }
    }
}

impl WatchedDevice {
    fn of(file: FlashFile) -> Self {
        Self {
            file,
            reads: Cell::default(),
            waiting: RefCell::default(),
            quiet: Cell::default(),
            is_silent: Cell::default(),
        }
    }

    /// Whether there is anything to look at.
    fn is_watched(&self) -> bool {
        self.reads.get() > 0 || self.is_silent.get()
    }

    /// `passed` went by since the last look.
    fn pass(self: &Rc<Self>, passed: Duration) {
        if self.is_silent.get() || self.reads.get() == 0 {
            return;
        }
        self.quiet.set(self.quiet.get() + passed);
        if self.quiet.get() >= SILENT_AFTER {
            self.fall_silent();
        }
    }

    fn fall_silent(self: &Rc<Self>) {
        tracing::warn!(
            device = %self.file.path().display(),
            "the device answers no read: what lies there is a miss until it does"
        );
        self.is_silent.set(true);
        compio::runtime::spawn(ask(Asking(self.clone()))).detach();
        // A waker may run anything, so nothing is borrowed then.
        let wakers: Vec<_> = self.waiting.borrow().iter().map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Looks at the devices as long as there are any.
async fn look(_looking: Looking) {
    let mut looked = Instant::now();
    loop {
        compio::time::sleep(LOOKED_AT).await;
        let now = Instant::now();
        let passed = now.duration_since(looked).min(COUNTED);
        looked = now;
        let devices = WATCHED.with_borrow_mut(|watched| {
            watched.devices.retain(|device| device.is_watched());
            watched.devices.clone()
        });
        if devices.is_empty() {
            return;
        }
        devices.iter().for_each(|device| device.pass(passed));
    }
}

/// Asks a silent device for a block.
async fn ask(asking: Asking) {
    // An error is an answer too: the reads that follow find out for themselves.
    let _answer = read_whole(&asking.0.file, 0, AlignedBuf::for_read(BLOCK)).await;
}

/// That somebody looks. It ends with its task, also where the runtime ends first.
struct Looking;

impl Drop for Looking {
    fn drop(&mut self) {
        // At the end of a thread there may be nothing left.
        let _ended = WATCHED.try_with(|watched| watched.borrow_mut().is_looking = false);
    }
}

/// A silent device that is asked. It is no longer silent when that ends.
struct Asking(Rc<WatchedDevice>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.quiet.set(Duration::ZERO);
        self.0.is_silent.set(false);
    }
}
