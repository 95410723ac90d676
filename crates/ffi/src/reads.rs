//! Reads of flash with a timeout: a device that hangs must not hold the threads of the host
//! process.
//!
//! One or two reads go through a ring that their thread keeps, with one system call, as `pread`
//! would take. At the timeout, ring and buffers are left to the kernel and the thread goes on with
//! a miss. The device is not asked again until it has answered the abandoned reads. Where io_uring
//! is refused, or older than Linux 5.11, it is `pread`, which no limit can end. Where only memory
//! or file descriptors are short, it is `pread` for that read alone.
//!
//! Of two keys the second is looked up only because it may be wanted next. It is read only together
//! with the first, and not while its device is silent. If it has no answer at the timeout, the
//! first keeps its own.

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use afterglow_engine::device::AlignedBuf;
use afterglow_engine::{Cache, DeviceId, FlashRead, Hit, Lookup, Namespace};
use io_uring::{IoUring, opcode, types};

/// Reads at once, at most.
const AT_ONCE: usize = 2;

/// A read that a lookup asks for.
#[derive(Clone, Copy)]
struct Wanted {
    device: DeviceId,
    offset: u64,
    len: u32,
}

/// What devices were asked and have not answered: the kernel may still write into the buffers.
struct GivenUp {
    devices: Vec<DeviceId>,
    ring: IoUring,
    /// Answers that are missing.
    missing: usize,
    bufs: ManuallyDrop<Vec<AlignedBuf>>,
}

/// The reads of one cache.
pub(crate) struct Reads {
    limit: Duration,
    most: u32,
    in_flight: AtomicU32,
    given_up: Mutex<Vec<GivenUp>>,
    /// Makes a ring; another one in tests.
    make: fn() -> io::Result<IoUring>,
    /// Hands reads to the kernel and waits; another one in tests.
    enter: Enter,
    /// Whether the kernel can end a wait in time: Linux 5.1 to 5.10 have io_uring and not that.
    /// Another one in tests.
    ends_waits: fn(&IoUring) -> bool,
    /// io_uring is refused here; asked once.
    refused: AtomicBool,
    /// Something was short when a ring was last to be made.
    short: AtomicBool,
    /// How many reads were given up, to be seen without the lock.
    unanswered: AtomicUsize,
}

/// Submits what a ring holds and waits for so many completions, no longer than the time given.
type Enter = fn(&IoUring, usize, &types::Timespec) -> io::Result<usize>;

fn enter(ring: &IoUring, count: usize, time: &types::Timespec) -> io::Result<usize> {
    ring.submitter().submit_with_args(count, &types::SubmitArgs::new().timespec(time))
}

/// How a wait for reads ended.
enum Waited {
    /// All reads have their results.
    Done,
    /// The time was over; the kernel still holds so many reads.
    Late(usize),
    /// The kernel took none of them, for this reason: nothing is in flight.
    Refused(io::Error),
}

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

impl Reads {
    /// At most `most` at once, each for no longer than `limit`.
    pub(crate) fn new(most: u32, limit: Duration) -> Self {
        let (in_flight, unanswered) = (AtomicU32::new(0), AtomicUsize::new(0));
        let ends_waits = |ring: &IoUring| ring.params().is_feature_ext_arg();
        let (refused, short) = (AtomicBool::new(false), AtomicBool::new(false));
        let (make, given_up) = (|| IoUring::new(AT_ONCE as u32), Mutex::default());
        Self {
            limit,
            most,
            in_flight,
            given_up,
            make,
            enter,
            ends_waits,
            refused,
            short,
            unanswered,
        }
    }

    /// Looks a key up.
    pub(crate) fn get(&self, cache: &Cache, ns: &Namespace, key: &[u8]) -> Option<Hit> {
        self.follow(cache, ns.get(key))
    }

    /// Looks two keys up. If both are on flash they are read at once; the second is not read if
    /// the first needs no flash, or if the second's device is silent.
    pub(crate) fn get_two(
        &self,
        cache: &Cache,
        ns: &Namespace,
        keys: [&[u8]; 2],
    ) -> [Option<Hit>; 2] {
        match keys.map(|key| ns.get(key)) {
            [Lookup::Flash(one), Lookup::Flash(two)] if !self.is_silent(&[wanted(&two)]) => {
                self.follow_two(cache, one, two)
            }
            [one, two] => {
                let second = without_flash(two);
                [self.follow(cache, one), second]
            }
        }
    }

    /// Reads for two lookups at once, and goes on with the first alone until that has ended.
    fn follow_two(&self, cache: &Cache, one: FlashRead, two: FlashRead) -> [Option<Hit>; 2] {
        let wanted = [&one, &two].map(wanted);
        let Some(outcomes) = self.admitted(&wanted, || self.read_all(cache, &wanted)) else {
            two.take_back();
            return [self.follow(cache, one.busy()), None];
        };
        let mut outcomes = outcomes.into_iter();
        let mut next = || outcomes.next().unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        let first = self.follow(cache, one.finish(next()));
        [first, without_flash(two.finish(next()))]
    }

    /// Reads for a lookup until it has ended.
    fn follow(&self, cache: &Cache, mut lookup: Lookup) -> Option<Hit> {
        loop {
            lookup = match lookup {
                Lookup::Hit(hit) => return Some(hit),
                Lookup::Miss(_) => return None,
                Lookup::Flash(read) => {
                    let wanted = [wanted(&read)];
                    match self
                        .admitted(&wanted, || self.read_all(cache, &wanted))
                        .and_then(|mut all| all.pop())
                    {
                        Some(outcome) => read.finish(outcome),
                        None => read.busy(),
                    }
                }
            }
        }
    }

    /// Runs reads unless too many run already, or a device of theirs is silent.
    fn admitted<T>(&self, wanted: &[Wanted], read: impl FnOnce() -> T) -> Option<T> {
        if self.is_silent(wanted) {
            return None;
        }
        let allowed = self.in_flight.fetch_add(1, Ordering::Relaxed) < self.most;
        let outcome = allowed.then(read);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    /// Whether a read of one of the devices was given up and is not answered yet.
    fn is_silent(&self, wanted: &[Wanted]) -> bool {
        if self.unanswered.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut given_up = self.lock();
        let before = given_up.len();
        given_up.retain_mut(|reads| {
            reads.missing -= reads.ring.completion().count().min(reads.missing);
            if reads.missing == 0 {
                // SAFETY: the kernel has finished with the buffers, and the entry goes now.
                unsafe { ManuallyDrop::drop(&mut reads.bufs) };
            }
            reads.missing > 0
        });
        self.unanswered.store(given_up.len(), Ordering::Relaxed);
        if before > 0 && given_up.is_empty() {
            tracing::info!("flash answers again");
        }
        given_up
            .iter()
            .any(|reads| wanted.iter().any(|wanted| reads.devices.contains(&wanted.device)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<GivenUp>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self, reads: GivenUp) {
        let mut given_up = self.lock();
        if given_up.is_empty() {
            tracing::warn!(limit = ?self.limit, "a read of flash exceeds its limit: flash is not read until it answers");
        }
        given_up.push(reads);
        self.unanswered.store(given_up.len(), Ordering::Relaxed);
    }

    /// Reads on a ring, all at once: an outcome of each, `TimedOut` of those that have not ended
    /// when the time is over. The ring is the thread's again afterwards, unless it was given up or
    /// refused the reads. `Unsupported`: the kernel took none of them.
    fn read(
        &self,
        mut ring: IoUring,
        wanted: &[Wanted],
        fds: &[RawFd],
    ) -> io::Result<Vec<io::Result<AlignedBuf>>> {
        let mut bufs: Vec<_> =
            wanted.iter().map(|wanted| AlignedBuf::for_read(wanted.len as usize)).collect();
        for (n, (wanted, fd)) in wanted.iter().zip(fds).enumerate() {
            let read = opcode::Read::new(types::Fd(*fd), bufs[n].as_mut_ptr(), wanted.len)
                .offset(wanted.offset);
            // SAFETY: until its completion is seen a buffer is kept: here, or in `given_up`, where
            // nothing drops it before.
            unsafe { ring.submission().push(&read.build().user_data(n as u64)) }
                .expect("a ring that is taken has no reads in flight, and a place for each");
        }
        let mut results = [None; AT_ONCE];
        let missing = match wait(&mut ring, self.enter, self.limit, wanted.len(), &mut results) {
            Waited::Done => None,
            Waited::Late(missing) => Some(missing),
            Waited::Refused(reason) => {
                if !is_lack(&reason) {
                    self.refuse(&reason);
                }
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        let (mut devices, mut late) = (Vec::new(), Vec::new());
        let outcome = |((buf, wanted), result): ((AlignedBuf, &Wanted), Option<i32>)| match result {
            None => {
                devices.push(wanted.device);
                late.push(buf);
                Err(io::ErrorKind::TimedOut.into())
            }
            Some(n) if n < 0 => Err(io::Error::from_raw_os_error(-n)),
            Some(n) if n as usize == buf.len() => Ok(buf),
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let outcomes = bufs.into_iter().zip(wanted).zip(results).map(outcome).collect();
        match missing {
            None => RING.with_borrow_mut(|kept| *kept = Some(ring)),
            Some(missing) => {
                self.give_up(GivenUp { devices, ring, missing, bufs: ManuallyDrop::new(late) })
            }
        }
        Ok(outcomes)
    }

    /// Reads on a ring where there can be one; as many outcomes as were wanted.
    fn read_all(&self, cache: &Cache, wanted: &[Wanted]) -> Vec<io::Result<AlignedBuf>> {
        let fds: Option<Vec<RawFd>> =
            wanted.iter().map(|wanted| cache.device_fd(wanted.device)).collect();
        if let Some((ring, fds)) = fds.and_then(|fds| Some((self.ring()?, fds)))
            && let Ok(outcomes) = self.read(ring, wanted, &fds)
        {
            return outcomes;
        }
        let devices = cache.devices();
        let read = |wanted: &Wanted| devices.read_at(wanted.device, wanted.offset, wanted.len);
        wanted.iter().map(read).collect()
    }

    /// The ring of this thread, or a new one; `None` where there is none for this read.
    fn ring(&self) -> Option<IoUring> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(ring) = RING.with_borrow_mut(Option::take) {
            return Some(ring);
        }
        match (self.make)() {
            Ok(ring) if (self.ends_waits)(&ring) => {
                if self.short.load(Ordering::Relaxed) && self.short.swap(false, Ordering::Relaxed) {
                    tracing::info!("reads of flash end in time again");
                }
                Some(ring)
            }
            Ok(_) => {
                self.refuse(&io::Error::other("this kernel is older than Linux 5.11"));
                None
            }
            Err(reason) if is_lack(&reason) => {
                if !self.short.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %reason,
                        "no io_uring can be made for now: a device that hangs holds up the threads \
                         that read it"
                    );
                }
                None
            }
            Err(reason) => {
                self.refuse(&reason);
                None
            }
        }
    }

    /// From now on reads go without a ring; said once.
    fn refuse(&self, reason: &io::Error) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %reason,
                "io_uring cannot be used here: a device that hangs holds up the threads that read \
                 it. Linux 5.11 or newer that allows io_uring ends such reads in time"
            );
        }
    }
}

/// What a lookup has found, if that is known without another read of flash.
fn without_flash(lookup: Lookup) -> Option<Hit> {
    match lookup {
        Lookup::Hit(hit) => Some(hit),
        Lookup::Miss(_) => None,
        Lookup::Flash(read) => {
            read.take_back();
            None
        }
    }
}

fn wanted(read: &FlashRead) -> Wanted {
    Wanted { device: read.device(), offset: read.offset(), len: read.len() }
}

/// Hands what was pushed to the kernel and waits for `count` completions. Results go to the places
/// that reads name.
///
/// A read that the kernel has not taken is not in flight, so nobody waits for it. A ring that holds
/// only such reads may be dropped with its buffers.
fn wait(
    ring: &mut IoUring,
    enter: Enter,
    limit: Duration,
    count: usize,
    results: &mut [Option<i32>],
) -> Waited {
    let (end, mut missing) = (Instant::now() + limit, count);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let outcome = enter(ring, missing, &types::Timespec::from(left));
        for completion in ring.completion() {
            results[completion.user_data() as usize] = Some(completion.result());
            missing -= 1;
        }
        let in_flight = missing - ring.submission().len();
        match outcome {
            _ if missing == 0 => return Waited::Done,
            Err(reason) if in_flight == 0 && missing == count && !passes(&reason) => {
                return Waited::Refused(reason);
            }
            _ if left.is_zero() && in_flight == 0 => {
                return Waited::Refused(io::ErrorKind::WouldBlock.into());
            }
            _ if left.is_zero() => return Waited::Late(in_flight),
            _ => {}
        }
    }
}

/// Whether an error says nothing of the reads: it was interrupted, or the time was over.
fn passes(reason: &io::Error) -> bool {
    matches!(reason.kind(), io::ErrorKind::Interrupted) || reason.raw_os_error() == Some(ETIME)
}

/// Whether something is short, which passes. What the kernel refuses or does not know it will not
/// allow or learn.
fn is_lack(reason: &io::Error) -> bool {
    reason.kind() == io::ErrorKind::WouldBlock
        || matches!(reason.raw_os_error(), Some(ENOMEM | ENFILE | EMFILE))
}

// Of Linux, the same numbers on all of its machines that we build for.
const ENOMEM: i32 = 12;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ETIME: i32 = 62;

#[cfg(test)]
mod tests;
