//! Why a cache could not be opened, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::disk;
use crate::media::{LockError, MediaError};

/// Why [`Cache::open`](crate::Cache::open) failed. Nothing has been changed then, but for files newly created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The data directory could not be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] disk::OpenError),
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
    #[error("cannot start the background thread: {source}: raise the limit on threads of this process")]
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
