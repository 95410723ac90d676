//! Reads on an io_uring of our own.

#![allow(unsafe_code)]

use std::{io, os::fd::RawFd, time::Duration};

use afterglow_engine::device::AlignedBuf;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

/// A read that has ended.
pub struct Finished<T> {
    /// What was handed in with it.
    pub tag: T,
    /// The buffer, full, or why it is not.
    pub result: io::Result<AlignedBuf>,
}

/// Reads that have ended, handed out at once.
const AT_ONCE: usize = 8;
/// What a wait with a limit ends with when nothing has happened.
const TIME_IS_OVER: i32 = Errno::TIME.raw_os_error();

/// Up to `depth` reads in flight. Buffers belong to the ring until their read has ended.
pub struct ReadRing<T> {
    ring: IoUring,
    active: Vec<Option<(T, AlignedBuf)>>,
    free: Vec<usize>,
}

impl<T> ReadRing<T> {
    /// A ring whose completions are handled when we ask for them, on this thread; where the kernel
    /// does not know that, a plain one.
    pub fn new(depth: usize) -> io::Result<Self> {
        let entries = depth.max(1).next_power_of_two() as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        let active = (0..depth).map(|_| None).collect();
        Ok(Self { ring, active, free: (0..depth).rev().collect() })
    }

    /// Whether another read may be started.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Reads in flight.
    pub fn in_flight(&self) -> usize {
        self.active.len() - self.free.len()
    }

    /// Prepares a read of all of `buf` at `offset`; [`ReadRing::submit`] and [`ReadRing::wait`]
    /// hand it to the kernel.
    ///
    /// # Panics
    /// Without room.
    pub fn read(&mut self, file: RawFd, offset: u64, mut buf: AlignedBuf, tag: T) {
        let at = self.free.pop().expect("the caller has asked for room");
        let entry = opcode::Read::new(types::Fd(file), buf.as_mut_ptr(), buf.len() as u32)
            .offset(offset)
            .build()
            .user_data(at as u64);
        self.active[at] = Some((tag, buf));
        // SAFETY: the memory is on the heap, owned by `active[at]` until the completion is seen.
        // Dropping the ring waits for all completions. Moving the `AlignedBuf` does not move the
        // memory. A descriptor closed meanwhile fails the read and touches nothing.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has an entry for every place");
    }

    /// Hands what was prepared to the kernel. What ends meanwhile waits for [`ReadRing::wait`].
    pub fn submit(&mut self) -> io::Result<()> {
        match self.ring.submit() {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    /// Submits what was prepared, sleeps until at least one read has ended, and appends finished
    /// reads. It appends few at a time, so that the device has new reads to do while the caller is
    /// busy with these.
    pub fn wait(&mut self, out: &mut Vec<Finished<T>>) -> io::Result<()> {
        if self.in_flight() == 0 {
            return Ok(());
        }
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.reap(out);
        Ok(())
    }

    /// The same, for `longest` at most: nothing may have ended then.
    pub fn wait_for(&mut self, longest: Duration, out: &mut Vec<Finished<T>>) -> io::Result<()> {
        let time = types::Timespec::from(longest);
        let args = types::SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &args) {
            Err(e) if e.raw_os_error() == Some(TIME_IS_OVER) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        self.reap(out);
        Ok(())
    }

    fn reap(&mut self, out: &mut Vec<Finished<T>>) {
        for completion in self.ring.completion().take(AT_ONCE) {
            let at = completion.user_data() as usize;
            let (tag, buf) =
                self.active[at].take().expect("a completion belongs to a read in flight");
            self.free.push(at);
            let result = match completion.result() {
                n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
                n if (n as usize) < buf.len() => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(buf),
            };
            out.push(Finished { tag, result });
        }
    }
}

impl<T> Drop for ReadRing<T> {
    fn drop(&mut self) {
        let mut out = Vec::new();
        while self.in_flight() > 0 {
            if self.wait(&mut out).is_err() {
                // The kernel may still write into them.
                std::mem::forget(std::mem::take(&mut self.active));
                return;
            }
        }
    }
}
