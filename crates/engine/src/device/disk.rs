//! What a device is, and the queue to it: requests, completions, and the two views of a device.

use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use super::buf::{AlignedBuf, WriteBuf};

/// Position of a device in the list the cache was opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

/// A file or block device the cache may use, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// A regular file (created when missing) or a block device.
    pub path: PathBuf,
    /// Bytes to use, a multiple of 4096. For a block device 0 means all of it.
    pub size: u64,
}

/// What is known about an open device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Usable bytes, a multiple of `alignment`.
    pub size: u64,
    /// Offsets and lengths of every I/O are multiples of this power of two (512 to 4096), read from
    /// the device.
    pub alignment: u32,
    /// Where it lives, for messages.
    pub path: PathBuf,
}

/// Which interface to the kernel to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoEngine {
    /// io_uring, or with one warning in the log `pread`/`pwrite` where the kernel or the container
    /// refuses it.
    #[default]
    Auto,
    /// io_uring; opening fails where it is refused.
    Uring,
    /// `pread`/`pwrite` on a few threads.
    Pread,
}

/// What an I/O does. Lengths are multiples of the device's alignment.
#[derive(Debug)]
pub enum IoKind {
    /// Read `len` bytes.
    Read {
        /// Bytes to read.
        len: u32,
    },
    /// Write all of `data`.
    Write {
        /// Bytes to write; shared, so that readers may go on using the chunk meanwhile.
        data: WriteBuf,
    },
    /// Make every write whose [`Done`] was handed out before this was submitted survive power loss.
    Sync,
}

/// One request to a device.
#[derive(Debug)]
pub struct Io {
    /// Chosen by the submitter, handed back in [`Done`]; need not be unique.
    pub id: u64,
    /// The device it goes to.
    pub device: DeviceId,
    /// First byte, a multiple of the device's alignment. Ignored for [`IoKind::Sync`].
    pub offset: u64,
    /// What to do there.
    pub kind: IoKind,
}

/// What a finished I/O brought.
#[derive(Debug)]
pub enum IoOutput {
    /// The bytes, exactly as many as were asked for.
    Read(AlignedBuf),
    /// Every byte was handed to the device.
    Written,
    /// The device confirmed the flush.
    Synced,
}

/// A finished [`Io`].
#[derive(Debug)]
pub struct Done {
    /// The submitter's id.
    pub id: u64,
    /// Never a partial success: a transfer cut short is continued or reported as an error.
    pub result: io::Result<IoOutput>,
}

/// One submission queue, owned by one driving thread.
///
/// Order between I/Os in flight is not defined, not even for a [`IoKind::Sync`] behind a write:
/// wait for the write first. Invalid requests (unknown device, misaligned or outside the device)
/// come back as `InvalidInput`.
pub trait Disk: Send {
    /// The devices, indexed by [`DeviceId`].
    fn devices(&self) -> &[DeviceInfo];

    /// Starts an I/O. Does not block, and keeps what the device cannot take yet in a backlog: the
    /// caller bounds it by looking at [`Disk::in_flight`].
    fn submit(&mut self, io: Io);

    /// I/Os submitted whose [`Done`] was not handed out yet, the backlog included.
    fn in_flight(&self) -> usize;

    /// Appends finished I/Os to `out`; blocks, without spinning, until at least `at_least` were
    /// appended or nothing is in flight. 0 only polls.
    fn wait(&mut self, at_least: usize, out: &mut Vec<Done>);

    /// Like `wait(1, out)`, but for no longer than `limit`: a device may never answer.
    fn wait_for(&mut self, limit: Duration, out: &mut Vec<Done>);
}

/// The devices shared between threads: blocking reads on the caller's thread (one `pread`, no
/// hand-off), and descriptors for reactors that read on their own ring.
pub trait DeviceSet: Send + Sync {
    /// The devices, indexed by [`DeviceId`].
    fn infos(&self) -> &[DeviceInfo];

    /// Reads exactly `len` bytes at `offset`, both multiples of the device's alignment.
    ///
    /// # Errors
    /// `InvalidInput` for a request outside the device or misaligned, `UnexpectedEof` when the
    /// device ends early, otherwise what the kernel said.
    fn read_at(&self, device: DeviceId, offset: u64, len: u32) -> io::Result<AlignedBuf>;

    /// The descriptor (opened with `O_DIRECT`), valid as long as this set lives; `None` for
    /// simulated devices.
    fn raw_fd(&self, device: DeviceId) -> Option<RawFd>;
}

/// A device that was shorter than the cache on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// The file.
    pub path: PathBuf,
    /// Bytes that were left of it.
    pub left: u64,
    /// Bytes it has again; those it had lost read as zeros, which are misses.
    pub size: u64,
}

/// Why a request cannot be carried out on a device, if it cannot.
pub(crate) fn check(
    infos: &[DeviceInfo],
    device: DeviceId,
    offset: u64,
    len: u64,
) -> io::Result<()> {
    let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let Some(info) = infos.get(usize::from(device.0)) else {
        return invalid(format!("no device {}", device.0));
    };
    let alignment = u64::from(info.alignment);
    if !offset.is_multiple_of(alignment) || !len.is_multiple_of(alignment) || len == 0 {
        return invalid(format!(
            "{len} bytes at {offset} are not in steps of {alignment} on {}",
            info.path.display()
        ));
    }
    if offset.checked_add(len).is_none_or(|end| end > info.size) {
        return invalid(format!(
            "{len} bytes at {offset} end outside {} ({} bytes)",
            info.path.display(),
            info.size
        ));
    }
    Ok(())
}

/// [`check`] for a whole request.
pub(crate) fn check_io(infos: &[DeviceInfo], io: &Io) -> io::Result<()> {
    match &io.kind {
        IoKind::Read { len } => check(infos, io.device, io.offset, u64::from(*len)),
        IoKind::Write { data } => check(infos, io.device, io.offset, data.len() as u64),
        IoKind::Sync => {
            let info = infos.get(usize::from(io.device.0));
            let has_bytes = info.is_some_and(|info| info.size > 0);
            if has_bytes { Ok(()) } else { check(infos, io.device, 0, 0) }
        }
    }
}

/// What to do where the kernel refuses io_uring for want of locked memory: up to Linux 5.11 rings
/// count as such.
#[must_use]
pub fn memlock_hint(refused: &io::Error) -> Option<String> {
    if rustix::io::Errno::from_io_error(refused) != Some(rustix::io::Errno::NOMEM) {
        return None;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or_else(|| "unlimited".into(), |bytes| format!("{bytes} bytes"));
    Some(format!(
        "; the limit on locked memory is {limit}; raise RLIMIT_MEMLOCK (ulimit -l), with systemd LimitMEMLOCK"
    ))
}
