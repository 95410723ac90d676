//! Devices through io_uring.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::buf::{AlignedBuf, WriteBuf};
use super::disk::{DeviceId, DeviceInfo, DeviceSet, Disk, Done, Io, IoKind, IoOutput, check_io};
use super::files::{Files, advance};

/// Entries of the submission queue, and the most I/Os the kernel has at once; the rest waits in a
/// backlog.
const DEPTH: u32 = 256;
/// Times one I/O is started again after the kernel said "again".
const MAX_RETRIES: u8 = 64;

/// A queue over one io_uring.
pub struct UringDisk {
    ring: IoUring,
    files: Arc<Files>,
    /// I/Os the kernel knows, indexed by `user_data`. An entry, and with it the memory, stays until
    /// its completion.
    active: Vec<Option<Active>>,
    /// Free places of `active`.
    free: Vec<usize>,
    backlog: VecDeque<Active>,
    /// Finished without the kernel: refused requests.
    refused: Vec<Done>,
    /// Whether the kernel has stopped taking requests.
    broken: bool,
}

/// An I/O under way.
struct Active {
    id: u64,
    device: DeviceId,
    offset: u64,
    transfer: Transfer,
    /// Bytes transferred so far.
    progress: usize,
    retries: u8,
}

enum Transfer {
    Read(AlignedBuf),
    Write(WriteBuf),
    Sync,
}

impl Transfer {
    fn len(&self) -> usize {
        match self {
            Self::Read(buf) => buf.len(),
            Self::Write(data) => data.len(),
            Self::Sync => 0,
        }
    }
}

impl UringDisk {
    /// Sets the ring up, or says why the kernel refuses.
    pub(super) fn new(files: Arc<Files>) -> io::Result<Self> {
        let ring = IoUring::new(DEPTH)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for code in [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE] {
            if !probe.is_supported(code) {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("the kernel's io_uring lacks operation {code}"),
                ));
            }
        }
        let active: Vec<Option<Active>> = (0..DEPTH).map(|_| None).collect();
        let free = (0..DEPTH as usize).rev().collect();
        Ok(Self {
            ring,
            files,
            active,
            free,
            backlog: VecDeque::new(),
            refused: Vec::new(),
            broken: false,
        })
    }

    /// I/Os the kernel has.
    fn in_kernel(&self) -> usize {
        self.active.len() - self.free.len()
    }

    /// Moves backlog into the submission queue as far as there is room.
    fn fill(&mut self) {
        while let Some(&slot) = self.free.last() {
            let Some(next) = self.backlog.pop_front() else { return };
            let entry = self.entry(&next, slot);
            self.active[slot] = Some(next);
            self.free.pop();
            // SAFETY: the memory the entry points to is owned by `active[slot]`. That slot is
            // emptied only when the entry's completion has been seen. The memory does not move with
            // the `Active`: it is behind a pointer. The descriptor lives in `files`, which outlives
            // the ring's use of it because `drop` waits for every completion.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            // Never more entries than places in `active`, and the queue has as many.
            pushed.expect("the submission queue has room for every active I/O");
        }
    }

    /// The kernel's description of what is left of an I/O.
    fn entry(&self, io: &Active, slot: usize) -> squeue::Entry {
        let fd = types::Fd(self.files.file(io.device).as_raw_fd());
        let left = (io.transfer.len() - io.progress) as u32;
        let offset = io.offset + io.progress as u64;
        let entry = match &io.transfer {
            Transfer::Read(buf) => {
                opcode::Read::new(fd, buf.as_raw().wrapping_add(io.progress), left)
                    .offset(offset)
                    .build()
            }
            Transfer::Write(data) => {
                opcode::Write::new(fd, data.as_raw().wrapping_add(io.progress), left)
                    .offset(offset)
                    .build()
            }
            Transfer::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(slot as u64)
    }

    /// Takes every completion there is.
    fn reap(&mut self, out: &mut Vec<Done>) {
        if self.broken {
            // All are accounted for already.
            return;
        }
        while let Some(completion) = self.ring.completion().next() {
            let slot = completion.user_data() as usize;
            let mut io = self.active[slot].take().expect("a completion belongs to an active I/O");
            self.free.push(slot);
            match settle(&mut io, completion.result(), &self.files) {
                Advance::Again => self.backlog.push_front(io),
                Advance::Finished(result) => {
                    let result = result.map(|()| output(io.transfer));
                    out.push(Done { id: io.id, result });
                }
            }
        }
    }

    /// Hands queued entries to the kernel and sleeps until `want` completions are there. Also
    /// returns early: when interrupted, and when completions must be taken first; the caller reaps
    /// and comes back.
    fn enter(&mut self, want: usize) {
        match self.ring.submit_and_wait(want) {
            Ok(_) => {}
            Err(e) if matches!(e.raw_os_error(), Some(code) if RETRY.contains(&code)) => {}
            Err(e) => self.give_up(&e),
        }
    }

    /// Sleeps until there is a completion (the ring's descriptor is readable then), or for that
    /// long.
    fn sleep(&mut self, limit: Duration) {
        let fd = self.ring.as_raw_fd();
        // SAFETY: the ring, and with it its descriptor, stays open for as long as it is borrowed
        // here.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit))
        {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => self.give_up(&error.into()),
        }
    }

    /// The ring is ours, set up and probed: when the kernel still refuses it, it is gone.
    /// Everything in flight fails, and so does everything from now on. The kernel may not have let
    /// go of the memory, so that is never used again.
    fn give_up(&mut self, reason: &io::Error) {
        tracing::error!(%reason, "io_uring accepts no more requests: flash is out of use, restart to use it again");
        self.broken = true;
        for slot in 0..self.active.len() {
            if let Some(io) = self.active[slot].take() {
                self.free.push(slot);
                self.refused.push(Done { id: io.id, result: Err(gone()) });
                std::mem::forget(io.transfer);
            }
        }
        let waiting = std::mem::take(&mut self.backlog);
        self.refused.extend(waiting.into_iter().map(|io| Done { id: io.id, result: Err(gone()) }));
    }
}

/// What a broken ring answers.
fn gone() -> io::Error {
    io::Error::other("io_uring stopped taking requests")
}

/// `EINTR`, `EAGAIN`, `EBUSY`: the request was not wrong, the moment was.
const RETRY: [i32; 3] = [
    rustix::io::Errno::INTR.raw_os_error(),
    rustix::io::Errno::AGAIN.raw_os_error(),
    rustix::io::Errno::BUSY.raw_os_error(),
];

/// What a completion means for its I/O.
enum Advance {
    Finished(io::Result<()>),
    Again,
}

/// Accounts a completion: errors, transfers cut short, the end.
fn settle(io: &mut Active, result: i32, files: &Files) -> Advance {
    if result < 0 {
        let again = RETRY[..2].contains(&-result) && io.retries < MAX_RETRIES;
        io.retries += u8::from(again);
        return if again {
            Advance::Again
        } else {
            Advance::Finished(Err(io::Error::from_raw_os_error(-result)))
        };
    }
    let (total, stuck) = match &io.transfer {
        Transfer::Sync => return Advance::Finished(Ok(())),
        Transfer::Read(buf) => (buf.len(), io::ErrorKind::UnexpectedEof),
        Transfer::Write(data) => (data.len(), io::ErrorKind::WriteZero),
    };
    let alignment = files.infos()[usize::from(io.device.0)].alignment;
    match advance(io.progress, result as usize, total, alignment, stuck) {
        Ok(coverage_mark) if coverage_mark == total => Advance::Finished(Ok(())),
        Ok(coverage_mark) => {
            io.progress = coverage_mark;
            Advance::Again
        }
        Err(e) => Advance::Finished(Err(e)),
    }
}

fn output(transfer: Transfer) -> IoOutput {
    match transfer {
        Transfer::Read(buf) => IoOutput::Read(buf),
        Transfer::Write(_) => IoOutput::Written,
        Transfer::Sync => IoOutput::Synced,
    }
}

impl Disk for UringDisk {
    fn devices(&self) -> &[DeviceInfo] {
        self.files.infos()
    }

    fn submit(&mut self, io: Io) {
        let accepted = if self.broken { Err(gone()) } else { check_io(self.files.infos(), &io) };
        if let Err(e) = accepted {
            self.refused.push(Done { id: io.id, result: Err(e) });
            return;
        }
        let transfer = match io.kind {
            IoKind::Read { len } => Transfer::Read(AlignedBuf::for_read(len as usize)),
            IoKind::Write { data } => Transfer::Write(data),
            IoKind::Sync => Transfer::Sync,
        };
        self.backlog.push_back(Active {
            id: io.id,
            device: io.device,
            offset: io.offset,
            transfer,
            progress: 0,
            retries: 0,
        });
        self.fill();
        self.enter(0);
    }

    fn in_flight(&self) -> usize {
        self.in_kernel() + self.backlog.len() + self.refused.len()
    }

    fn wait(&mut self, at_least: usize, out: &mut Vec<Done>) {
        let wanted = out.len() + at_least.min(self.in_flight());
        loop {
            out.append(&mut self.refused);
            if self.broken {
                return;
            }
            self.reap(out);
            self.fill();
            let missing = wanted.saturating_sub(out.len()).min(self.in_kernel());
            let queued = !self.ring.submission().is_empty();
            if missing == 0 && !queued {
                return;
            }
            self.enter(missing.min(1));
        }
    }

    fn wait_for(&mut self, limit: Duration, out: &mut Vec<Done>) {
        let until = Instant::now() + limit;
        loop {
            let before = out.len();
            self.wait(0, out);
            let left = until.saturating_duration_since(Instant::now());
            if out.len() > before || self.in_flight() == 0 || left.is_zero() {
                return;
            }
            self.sleep(left);
        }
    }
}

impl Drop for UringDisk {
    /// Waits for the kernel to let go of every buffer.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut out = Vec::new();
        while self.in_kernel() > 0 {
            self.enter(1);
            self.reap(&mut out);
            // What was cut short is not continued: nobody waits for it.
            self.backlog.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;
    use crate::device::DeviceConfig;
    use crate::testing::TempDir;

    /// A completion of fewer bytes is not the whole: the rest is asked for, and the end of the
    /// device is an error.
    #[test]
    fn a_completion_cut_short_is_continued_and_never_taken_for_the_whole() {
        let dir = TempDir::new();
        let config = DeviceConfig { path: dir.path().join("flash"), size: 1 << 20 };
        let files = Files::open(&[config], false, &[]).expect("opened");
        let active = |transfer| Active {
            id: 1,
            device: DeviceId(0),
            offset: 0,
            transfer,
            progress: 0,
            retries: 0,
        };
        let transfers = || {
            [
                Transfer::Read(AlignedBuf::zeroed(16_384)),
                Transfer::Write(AlignedBuf::zeroed(16_384).into()),
            ]
        };
        for mut io in transfers().map(active) {
            assert!(matches!(settle(&mut io, 8192, &files), Advance::Again));
            assert_eq!(io.progress, 8192);
            // Not a whole step: it goes on from the last one.
            assert!(matches!(settle(&mut io, 5000, &files), Advance::Again));
            let step = files.infos()[0].alignment as usize;
            assert_eq!(io.progress, (8192 + 5000) / step * step);
            let rest = (16_384 - io.progress) as i32;
            assert!(matches!(settle(&mut io, rest, &files), Advance::Finished(Ok(()))));
        }
        for mut io in transfers().map(active) {
            assert!(
                matches!(settle(&mut io, 0, &files), Advance::Finished(Err(_))),
                "no progress is an error"
            );
        }
    }

    #[test]
    fn a_lost_ring_fails_what_is_asked_of_it_and_hangs_nobody() {
        let dir = TempDir::new();
        let config = DeviceConfig { path: dir.path().join("flash"), size: 1 << 20 };
        let files = Arc::new(Files::open(&[config], false, &[]).expect("opened"));
        let Ok(mut disk) = UringDisk::new(files) else {
            return eprintln!("io_uring is refused here, not tested");
        };
        let read = |id| Io { id, device: DeviceId(0), offset: 0, kind: IoKind::Read { len: 4096 } };
        let mut done = Vec::new();
        disk.submit(read(1));
        disk.wait(1, &mut done);
        assert!(done.pop().is_some_and(|done| done.result.is_ok()));

        // Something else takes the place of the ring's descriptor.
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        // SAFETY: the descriptor is open, and never closed through this second owner.
        let mut ring = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(disk.ring.as_raw_fd()) });
        rustix::io::dup2(&null, &mut ring).expect("replaced");

        disk.submit(read(2));
        disk.submit(read(3));
        assert_eq!(disk.in_flight(), 2);
        disk.wait(2, &mut done);
        let ids: Vec<u64> =
            done.iter().filter(|done| done.result.is_err()).map(|done| done.id).collect();
        assert_eq!((ids, disk.in_flight()), (vec![2, 3], 0));
        disk.wait(1, &mut done);
        drop(disk);
    }
}
