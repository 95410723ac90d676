//! Devices through io_uring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::files::{Files, advance};
use super::{AlignedBuf, DeviceInfo, DeviceSet, Disk, Done, Io, IoKind, IoOutput, WriteBuf, check_io};

/// Entries of the submission queue, and the most I/Os the kernel has at once; the rest waits in a backlog.
const DEPTH: u32 = 256;
/// Times one I/O is started again after the kernel said "again".
const MAX_RETRIES: u8 = 64;

/// A queue over one io_uring.
pub struct UringDisk {
    ring: IoUring,
    files: Arc<Files>,
    /// I/Os the kernel knows, indexed by `user_data`. An entry, and with it the memory, stays until its completion.
    active: Vec<Option<Active>>,
    /// Free places of `active`.
    free: Vec<usize>,
    backlog: VecDeque<Active>,
    /// Finished without the kernel: refused requests.
    refused: Vec<Done>,
}

/// An I/O under way.
struct Active {
    id: u64,
    device: super::DeviceId,
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
        Ok(Self { ring, files, active, free, backlog: VecDeque::new(), refused: Vec::new() })
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
            // SAFETY: the memory the entry points to is owned by `active[slot]`, which is emptied only when the entry's
            // completion has been seen, and does not move with the `Active` (it is behind a pointer). The descriptor lives
            // in `files`, which outlives the ring's use of it because `drop` waits for every completion.
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
                opcode::Read::new(fd, buf.as_raw().wrapping_add(io.progress), left).offset(offset).build()
            }
            Transfer::Write(data) => {
                opcode::Write::new(fd, data.as_raw().wrapping_add(io.progress), left).offset(offset).build()
            }
            Transfer::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(slot as u64)
    }

    /// Takes every completion there is; returns how many I/Os finished.
    fn reap(&mut self, out: &mut Vec<Done>) -> usize {
        let mut finished = 0;
        while let Some(completion) = self.ring.completion().next() {
            let slot = completion.user_data() as usize;
            let mut io = self.active[slot].take().expect("a completion belongs to an active I/O");
            self.free.push(slot);
            match settle(&mut io, completion.result(), &self.files) {
                Step::Again => self.backlog.push_front(io),
                Step::Finished(Ok(())) => {
                    finished += 1;
                    out.push(Done { id: io.id, result: Ok(output(io.transfer)) });
                }
                Step::Finished(Err(e)) => {
                    finished += 1;
                    out.push(Done { id: io.id, result: Err(e) });
                }
            }
        }
        finished
    }

    /// Hands queued entries to the kernel and sleeps until `want` completions are there.
    fn enter(&self, want: usize) {
        match self.ring.submit_and_wait(want) {
            Ok(_) => {}
            // Interrupted, or completions must be taken first: the caller reaps and comes back.
            Err(e) if matches!(e.raw_os_error(), Some(code) if RETRY.contains(&code)) => {}
            // The ring is ours, set up and probed: any other refusal means that its memory or descriptor is gone, and the
            // kernel may still be writing to our buffers. Nothing can be done that is safe.
            Err(e) => panic!("io_uring stopped taking requests: {e}"),
        }
    }
}

/// `EINTR`, `EAGAIN`, `EBUSY`: the request was not wrong, the moment was.
const RETRY: [i32; 3] = [
    rustix::io::Errno::INTR.raw_os_error(),
    rustix::io::Errno::AGAIN.raw_os_error(),
    rustix::io::Errno::BUSY.raw_os_error(),
];

/// What a completion means for its I/O.
enum Step {
    Finished(io::Result<()>),
    Again,
}

/// Accounts a completion: errors, transfers cut short, the end.
fn settle(io: &mut Active, result: i32, files: &Files) -> Step {
    if result < 0 {
        let again = RETRY[..2].contains(&-result) && io.retries < MAX_RETRIES;
        io.retries += u8::from(again);
        return if again { Step::Again } else { Step::Finished(Err(io::Error::from_raw_os_error(-result))) };
    }
    let (total, stuck) = match &io.transfer {
        Transfer::Sync => return Step::Finished(Ok(())),
        Transfer::Read(buf) => (buf.len(), io::ErrorKind::UnexpectedEof),
        Transfer::Write(data) => (data.len(), io::ErrorKind::WriteZero),
    };
    let alignment = files.infos()[usize::from(io.device.0)].alignment;
    match advance(io.progress, result as usize, total, alignment, stuck) {
        Ok(reached) if reached == total => Step::Finished(Ok(())),
        Ok(reached) => {
            io.progress = reached;
            Step::Again
        }
        Err(e) => Step::Finished(Err(e)),
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
        if let Err(e) = check_io(self.files.infos(), &io) {
            self.refused.push(Done { id: io.id, result: Err(e) });
            return;
        }
        let transfer = match io.kind {
            IoKind::Read { len } => Transfer::Read(AlignedBuf::zeroed(len as usize)),
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
        let wanted = at_least.min(self.in_flight());
        let mut got = self.refused.len();
        out.append(&mut self.refused);
        got += self.reap(out);
        loop {
            self.fill();
            let missing = wanted.saturating_sub(got).min(self.in_kernel());
            let queued = !self.ring.submission().is_empty();
            if missing == 0 && !queued {
                return;
            }
            self.enter(missing.min(1));
            got += self.reap(out);
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
