//! Why opening devices fails: each error names the device, the cause and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::answer::ANSWER_WITHIN;
use super::disk::memlock_hint;

/// Why a device could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The file system is full.
    #[error(
        "no space for {needed} bytes of flash cache at {path}: free some, or configure a smaller size"
    )]
    NoSpace {
        /// The cache file.
        path: PathBuf,
        /// Its configured size.
        needed: u64,
    },
    /// The file system or device is read-only.
    #[error(
        "{path} is on a read-only file system or device: remount it writable, or configure another path"
    )]
    ReadOnly {
        /// The cache file or device.
        path: PathBuf,
    },
    /// The user may not open it.
    #[error(
        "no permission for {path}: let this user read and write it (cache files have mode 0600), or run as their owner"
    )]
    NoPermission {
        /// The cache file or device.
        path: PathBuf,
    },
    /// Another process has it.
    #[error(
        "{path} is in use by another process (another cache, or a mounted file system): stop that, or configure another path"
    )]
    InUse {
        /// The cache file or device.
        path: PathBuf,
    },
    /// The directory does not exist.
    #[error("the directory of {path} does not exist: create it, or configure another path")]
    NoDirectory {
        /// The cache file.
        path: PathBuf,
    },
    /// It hangs.
    #[error(
        "{path} has not answered a read for {} s: look at the device and at the kernel's log; wait until it answers, or configure \
         another path",
        ANSWER_WITHIN
    )]
    Silent {
        /// The cache file or device.
        path: PathBuf,
    },
    /// A block device of no bytes.
    #[error(
        "{path} is a block device without a medium (0 bytes): attach it, or configure another path"
    )]
    NoMedium {
        /// The block device.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{path} is neither a file nor a block device: configure another path")]
    NotAFile {
        /// The offending path.
        path: PathBuf,
    },
    /// A file would have to be made where only devices belong.
    #[error(
        "there is no block device {path}, and no file is made there (it would be in memory, or behind a link to nothing): name an \
         existing device, or a file elsewhere"
    )]
    NoDevice {
        /// The path.
        path: PathBuf,
    },
    /// The file holds something else; it was not touched.
    #[error(
        "{path} holds data that is not Afterglow's: choose another place, or clear this one if nobody needs it (delete the file; \
         `blkdiscard --zeroout` the device)"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The size cannot be used.
    #[error(
        "size {size} of {path} cannot be used: it must be a multiple of 4096, above 0 (which stands for all of an existing block \
         device), and within the device"
    )]
    BadSize {
        /// The cache file or device.
        path: PathBuf,
        /// Its configured size.
        size: u64,
    },
    /// The device wants a coarser alignment than the buffers have.
    #[error(
        "{path} wants I/O in steps of {alignment} bytes, more than the 4096 supported: configure another device"
    )]
    Alignment {
        /// The device.
        path: PathBuf,
        /// What it wants.
        alignment: u32,
    },
    /// io_uring was asked for and is refused.
    #[error(
        "io_uring is refused here ({source}): set the I/O engine to auto or pread, or allow io_uring in the container profile{}",
        memlock_hint(.source).unwrap_or_default()
    )]
    UringRefused {
        /// What the kernel said.
        source: io::Error,
    },
    /// No threads for I/O.
    #[error(
        "cannot start I/O threads ({source}): raise the limit on threads of this service, container or user (TasksMax=, pids.max, \
         ulimit -u), then start again; nothing of the cache was changed"
    )]
    Threads {
        /// What the kernel said.
        source: io::Error,
    },
    /// This process, or the machine, is short of what every device takes.
    #[error(
        "cannot {doing} {path}: {source}: the device is not to blame, this process is short of descriptors, threads or memory. Raise \
         its limits (LimitNOFILE= or ulimit -n, TasksMax=, pids.max, MemoryMax=), then start again; nothing of the cache was changed"
    )]
    ShortProcess {
        /// What was attempted.
        doing: &'static str,
        /// The cache file or device.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// The cache file or device.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Whether an error says that the process is short of something, or was interrupted. A device that
/// is asked by a start like that may be as good as ever: it must not be forgotten.
///
/// `EAGAIN` is what a thread that cannot be started says.
pub(crate) fn is_of_process(error: &io::Error) -> bool {
    let of_process = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|errno| of_process.contains(&errno))
}

impl DeviceError {
    /// Whether it may be the device that is missing or broken, not the configuration. One that is
    /// in use has not failed: a process that is about to end may have it, and to go on without it
    /// would cost what it holds.
    pub(super) fn is_of_device(&self) -> bool {
        matches!(
            self,
            Self::NoSpace { .. }
                | Self::ReadOnly { .. }
                | Self::NoDirectory { .. }
                | Self::NoDevice { .. }
                | Self::Silent { .. }
                | Self::NoMedium { .. }
                | Self::Io { .. }
        )
    }

    /// An error that [`is_of_process`].
    pub(crate) fn from_process(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::ShortProcess { doing, path: path.to_path_buf(), source }
    }

    /// Sorts an error of the kernel into a cause the user can act on.
    pub(super) fn from_io(
        doing: &'static str,
        path: &Path,
        needed: u64,
        source: io::Error,
    ) -> Self {
        let path = path.to_path_buf();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Self::NoSpace { path, needed },
            Some(Errno::ROFS) => Self::ReadOnly { path },
            Some(Errno::ACCESS | Errno::PERM) => Self::NoPermission { path },
            Some(Errno::BUSY | Errno::WOULDBLOCK) => Self::InUse { path },
            Some(Errno::NOENT) => Self::NoDirectory { path },
            Some(Errno::ISDIR) => Self::NotAFile { path },
            _ if is_of_process(&source) => Self::from_process(doing, &path, source),
            _ => Self::Io { doing, path, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_is_short_of_is_no_error_of_the_device() {
        let error =
            |errno: Errno| DeviceError::from_io("open", Path::new("flash"), 0, errno.into());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR] {
            let error = error(errno);
            assert!(!error.is_of_device(), "{error}");
            assert!(error.to_string().contains("LimitNOFILE"), "{error}");
        }
        // A lock that somebody has says the same as a thread that cannot be started.
        assert!(matches!(error(Errno::AGAIN), DeviceError::InUse { .. }));
        for errno in [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::ROFS] {
            assert!(error(errno).is_of_device(), "{errno}");
        }
    }
}
