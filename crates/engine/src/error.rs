//! Why a cache could not be opened, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::device;
use crate::device::area::{LockError, MediaError};

/// Why [`Cache::open`](crate::Cache::open) failed. Nothing has been changed then, but for files
/// newly created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The data directory could not be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] device::DeviceError),
    /// The journal file could not be used.
    #[error(transparent)]
    Journal(#[from] MediaError),
    /// A device holds something that is not Afterglow's.
    #[error(
        "{path} holds data that is not Afterglow's: choose another place, or clear this one if nobody needs it (delete the file; \
         `blkdiscard --zeroout` the device)"
    )]
    Foreign {
        /// The device.
        path: PathBuf,
    },
    /// A device or the data directory was written by another version.
    #[error(
        "{path} is of format {found}, this version reads format {supported}: use the version that wrote it, or delete it \
         to start with an empty cache"
    )]
    OtherFormat {
        /// The device or file.
        path: PathBuf,
        /// What it is.
        found: u32,
        /// What this version reads.
        supported: u32,
    },
    /// A device belongs to another data directory.
    #[error(
        "{path} belongs to another cache than {data_dir}: give each data directory its own devices, or delete the file \
         to start with an empty cache"
    )]
    OtherCache {
        /// The device.
        path: PathBuf,
        /// The data directory.
        data_dir: PathBuf,
    },
    /// Two of the devices are one: what is written to the one is read from the other.
    #[error(
        "{path} and {other} are two names of one device or file: take one of them out of the configuration, then open again \
         (nothing of the cache was changed)"
    )]
    SameDevice {
        /// A device.
        path: PathBuf,
        /// The same one.
        other: PathBuf,
    },
    /// A file where the state file belongs that is something else; it was not touched.
    #[error(
        "{path} is not Afterglow's, which keeps its state in a file of that name: choose another data directory, or move the file \
         away (if it was a damaged state file, the cache then starts empty)"
    )]
    ForeignState {
        /// The file.
        path: PathBuf,
    },
    /// The cache was made of other devices than configured, or of as many bytes of them.
    #[error(
        "{path} is device {} of {devices} of a cache, with {size} bytes, and configured otherwise: configure it as it was, or have the \
         cache discarded to start with an empty one", .device + 1
    )]
    Mismatch {
        /// The device.
        path: PathBuf,
        /// Its place in the cache, from 0.
        device: u32,
        /// Devices of the cache.
        devices: u32,
        /// Bytes of it that the cache uses.
        size: u64,
    },
    /// A device cannot be read that the cache cannot go on without: its checkpoints are there.
    #[error(
        "{path} cannot be opened or read, and the cache cannot go on without it: make it available again, then open again \
         (nothing is lost); or take it out of the configuration to start with an empty cache on the other devices"
    )]
    Unreadable {
        /// The device.
        path: PathBuf,
    },
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// Reading or writing failed while opening.
    #[error("{what} failed: {source}: check the device and the space on it, then open again")]
    Io {
        /// What was being done.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The background thread could not be started.
    #[error(
        "cannot start the background thread: {source}: raise the limit on threads of this process"
    )]
    Thread {
        /// What the kernel said.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
