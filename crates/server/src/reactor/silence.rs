//! Devices that do not answer: reads of them are given up.
//!
//! A device that hangs may answer no read for good. A connection sends its answers in the order of
//! its requests, so one read without an end holds up all that follow it, hits in memory too. Each
//! reactor watches its own reads:
//!
//! 1. A read enters ([`enter`]) and leaves when it has come back, or when nobody waits for it.
//! 2. While there are reads, a task looks at their devices four times a second. A device is
//!    *silent* when it has had reads for two seconds and none of them came back.
//! 3. Its reads end with `TimedOut`, and so does each that would enter. Those that are under way
//!    are *left* to the kernel, with their buffers.
//! 4. One block is asked for besides. When any of these comes back, with whatever outcome, the
//!    device is no longer silent. Where many are still left, as on a device of which a part hangs,
//!    it takes no more reads until they come back.
//!
//! Invariants: what is left is bounded by the reads of one silence and [`MOST_LEFT`]. What is left
//! when the reactor ends is never freed, for the kernel may write into it later.
//!
//! Without io_uring each read that is under way takes a helper thread of the reactor, of which
//! there are 256, and the reactor stands still while there is none. There a read waits for one of
//! its device's places first: all devices together have [`PLACES`], so one that hangs takes none
//! of the others.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use afterglow_engine::device::AlignedBuf;
use compio::runtime::Runtime;
use slab::Slab;

use super::device_read::{DeviceRead, FlashFile};

/// A device that has had reads for so long, and answered none of them, is silent.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// The devices are looked at so often.
const LOOKED_AT: Duration = Duration::from_millis(250);
/// What passed between two looks counts for so much at most. In more it was this thread, or the
/// whole machine, that stood still.
const COUNTED: Duration = Duration::from_millis(500);
/// A device of which more reads are left than this takes none.
const MOST_LEFT: usize = 64;
/// What a silent device is asked for besides.
const BLOCK: usize = 4096;
/// Reads under way at most where each takes a helper thread. Other work has the rest of these.
pub(super) const PLACES: usize = 192;

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
    /// Reads that somebody waits for; the wakers of those that wait.
    reads: Cell<usize>,
    waiting: Wakers,
    /// Reads that were given up, and have not come back.
    left: Cell<usize>,
    /// Reads that the kernel has, how many it may have, and who waits until it has fewer.
    under_way: Cell<usize>,
    places: usize,
    for_place: Wakers,
    /// How long it has had reads and answered none.
    quiet: Cell<Duration>,
    is_silent: Cell<bool>,
    /// A block has been asked for.
    is_asked: Cell<bool>,
}

/// Who waits for something. Each knows the number that its waker has here, once it has one.
#[derive(Default)]
struct Wakers(RefCell<Slab<Waker>>);

impl Wakers {
    fn set(&self, number: &mut Option<usize>, waker: &Waker) {
        let mut wakers = self.0.borrow_mut();
        match number {
            Some(number) => wakers[*number].clone_from(waker),
            None => *number = Some(wakers.insert(waker.clone())),
        }
    }

    /// Says whether there was one.
    fn remove(&self, number: &mut Option<usize>) -> bool {
        // It is dropped when nothing is borrowed any more.
        let waker = number.take().map(|number| self.0.borrow_mut().remove(number));
        waker.is_some()
    }

    /// Wakes the first so many. A waker may run anything, so nothing is borrowed then.
    fn wake(&self, most: usize) {
        let wakers: Vec<_> =
            self.0.borrow().iter().take(most).map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A read that somebody waits for.
pub(super) struct ReadUnderWay {
    device: Rc<WatchedDevice>,
    waker: Option<usize>,
    /// Where it waits for a place; and its place.
    queued: Option<usize>,
    place: Option<HeldPlace>,
}

/// A read that the kernel has.
struct HeldPlace(Rc<WatchedDevice>);

impl HeldPlace {
    fn of(device: &Rc<WatchedDevice>) -> Self {
        device.under_way.set(device.under_way.get() + 1);
        HeldPlace(device.clone())
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.for_place.wake(1);
    }
}

/// A read of `file` begins.
///
/// # Errors
/// `TimedOut` where the device is silent, or has too many reads that never came back.
pub(super) async fn enter(file: &FlashFile) -> io::Result<ReadUnderWay> {
    let device = watched(file);
    device.check()?;
    if device.reads.replace(device.reads.get() + 1) == 0 {
        device.quiet.set(Duration::ZERO);
    }
    let mut reading = ReadUnderWay { device, waker: None, queued: None, place: None };
    poll_fn(|context| {
        if reading.device.under_way.get() < reading.device.places {
            return Poll::Ready(Ok(()));
        }
        reading.device.for_place.set(&mut reading.queued, context.waker());
        match reading.wait(context.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    })
    .await?;
    reading.place = Some(HeldPlace::of(&reading.device));
    reading.device.for_place.remove(&mut reading.queued);
    Ok(reading)
}

/// The device of a file. Somebody looks from now on.
fn watched(file: &FlashFile) -> Rc<WatchedDevice> {
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
    device
}

fn gave_up() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

impl ReadUnderWay {
    /// The read has come back, with whatever outcome.
    pub(super) fn came_back(&self) {
        self.device.answered();
    }

    /// The read has not come back. `waker` is woken when it is given up.
    ///
    /// # Errors
    /// `TimedOut` where it is.
    pub(super) fn wait(&mut self, waker: &Waker) -> io::Result<()> {
        if self.device.is_silent.get() {
            return Err(gave_up());
        }
        self.device.waiting.set(&mut self.waker, waker);
        Ok(())
    }

    /// Nobody waits for the read any more.
    pub(super) fn leave(mut self, read: DeviceRead) {
        let place = self.place.take().expect("it is under way");
        compio::runtime::spawn(Left::of(read, place).come_back()).detach();
    }
}

impl Drop for ReadUnderWay {
    fn drop(&mut self) {
        self.device.reads.set(self.device.reads.get() - 1);
        self.device.waiting.remove(&mut self.waker);
        // It may have been woken for a place that it does not take.
        if self.device.for_place.remove(&mut self.queued) {
            self.device.for_place.wake(1);
        }
    }
}

/// A read that was given up.
struct Left {
    read: Option<DeviceRead>,
    place: HeldPlace,
}

impl Left {
    fn of(read: DeviceRead, place: HeldPlace) -> Self {
        place.0.left.set(place.0.left.get() + 1);
        Self { read: Some(read), place }
    }

    async fn come_back(mut self) {
        if let Some(read) = &mut self.read {
            // An error is an answer too: the reads that follow find out for themselves.
            let _answer = read.await;
        }
        self.read = None;
        self.place.0.answered();
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // The reactor ends first. Dropped, the read would take its buffer along.
        std::mem::forget(self.read.take());
        self.place.0.left.set(self.place.0.left.get() - 1);
    }
}

impl WatchedDevice {
    fn of(file: FlashFile) -> Self {
        let takes_threads = Runtime::with_current(|runtime| runtime.driver_type().is_polling());
        let devices = file.devices();
        let places = if takes_threads { (PLACES / devices).max(1) } else { usize::MAX };
        Self {
            file,
            reads: Cell::default(),
            waiting: Wakers::default(),
            left: Cell::default(),
            under_way: Cell::default(),
            places,
            for_place: Wakers::default(),
            is_asked: Cell::default(),
            quiet: Cell::default(),
            is_silent: Cell::default(),
        }
    }

    /// Whether there is anything to look at.
    fn is_watched(&self) -> bool {
        self.reads.get() > 0 || self.left.get() > 0 || self.is_silent.get()
    }

    /// Whether it takes reads.
    fn check(&self) -> io::Result<()> {
        match self.is_silent.get() || self.left.get() > MOST_LEFT {
            true => Err(gave_up()),
            false => Ok(()),
        }
    }

    /// Something has come back.
    fn answered(&self) {
        self.quiet.set(Duration::ZERO);
        self.is_silent.set(false);
    }

    /// `passed` went by since the last look.
    fn pass(self: &Rc<Self>, passed: Duration) {
        if self.is_silent.get() {
            if !self.is_asked.replace(true) {
                compio::runtime::spawn(ask(self.clone())).detach();
            }
        } else if self.under_way.get() > self.left.get() {
            self.quiet.set(self.quiet.get() + passed);
            if self.quiet.get() >= SILENT_AFTER {
                self.fall_silent();
            }
        }
    }

    fn fall_silent(&self) {
        tracing::warn!(
            device = %self.file.path().display(),
            "the device answers no read: what lies there is a miss until it does"
        );
        self.is_silent.set(true);
        self.waiting.wake(usize::MAX);
    }
}

/// Asks a silent device for a block. It may be that nothing else is left that could come back.
async fn ask(device: Rc<WatchedDevice>) {
    let read = DeviceRead::of(&device.file, 0, AlignedBuf::for_read(BLOCK));
    Left::of(read, HeldPlace::of(&device)).come_back().await;
    device.is_asked.set(false);
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

/// That somebody looks. It ends with its task, also where the runtime ends first.
struct Looking;

impl Drop for Looking {
    fn drop(&mut self) {
        // At the end of a thread there may be nothing left.
        let _ended = WATCHED.try_with(|watched| watched.borrow_mut().is_looking = false);
    }
}
