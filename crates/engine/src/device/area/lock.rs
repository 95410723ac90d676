//! The data directory: its lock, small files in it, and the identity of the running kernel.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::MetaStore;

/// Why the data directory could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process holds it.
    #[error("{dir} is in use by another process{}: stop it, or give this one another data directory", holder(*.pid))]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// The holder, when the lock file says so.
        pid: Option<u32>,
    },
    /// The directory is on a read-only file system.
    #[error(
        "{dir} is on a read-only file system: remount it writable, or choose another data directory"
    )]
    ReadOnly {
        /// The data directory.
        dir: PathBuf,
    },
    /// This user may not use the directory.
    #[error(
        "no permission for {dir}: let this user read, write and enter it, or choose another data directory"
    )]
    NoPermission {
        /// The data directory.
        dir: PathBuf,
    },
    /// Anything else.
    #[error("cannot lock {dir}: {source}")]
    Io {
        /// The data directory.
        dir: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

/// Exclusive use of a data directory, as long as this value lives; a dead process holds nothing.
#[derive(Debug)]
pub struct DirLock {
    dir: PathBuf,
    _file: File,
}

impl DirLock {
    /// Creates the directory when it is missing (mode 0700) and takes its lock. Comes before
    /// anything else in it is read.
    ///
    /// # Errors
    /// [`LockError`] names the cause and what to do.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let fail = |e| LockError::from_io(dir, e);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("lock"))
            .map_err(fail)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Only to name the holder: without it the message is still right.
                let pid =
                    file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(LockError::InUse { dir: dir.to_path_buf(), pid });
            }
            Err(e) => return Err(fail(e.into())),
        }
        // Over what is there: on a full disk a block given back may not be had again.
        let pid = format!("{}\n", std::process::id());
        file.write_all_at(pid.as_bytes(), 0)
            .and_then(|()| file.set_len(pid.len() as u64))
            .map_err(fail)?;
        Ok(Self { dir: dir.to_path_buf(), _file: file })
    }

    /// The directory held.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl LockError {
    fn from_io(dir: &Path, source: io::Error) -> Self {
        let dir = dir.to_path_buf();
        match Errno::from_io_error(&source) {
            Some(Errno::ROFS) => Self::ReadOnly { dir },
            Some(Errno::ACCESS | Errno::PERM) => Self::NoPermission { dir },
            _ => Self::Io { dir, source },
        }
    }
}

/// Identity of one boot of one kernel: differs after every restart of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

/// The running kernel's boot id.
///
/// # Errors
/// When the kernel does not tell, for example without `/proc`: then nobody knows whether unsynced
/// data survived.
pub fn boot_id() -> io::Result<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let id = uuid::Uuid::try_parse(text.trim())
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(BootId(id.into_bytes()))
}

/// Metadata files in a directory, each replaced durably by [`replace_file`].
#[derive(Debug)]
pub struct FileMetaStore {
    dir: PathBuf,
}

impl FileMetaStore {
    /// A store in `dir`, which must exist and be locked by the caller.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf() }
    }
}

/// Replaces a file as a whole, in two steps of which the second is atomic: written beside it as
/// `NAME.new`, then renamed. With `durable`, also against power loss.
///
/// The old file is kept as the next `NAME.new`, with its blocks. Once a file has been written
/// twice, replacing it by about as many bytes needs no space. So a full disk does not prevent it,
/// except on file systems that never write in place.
///
/// # Errors
/// What the kernel said; the old content stays, or in the worst case the new is there but not yet
/// durable.
pub fn replace_file(path: &Path, content: &[u8], durable: bool) -> io::Result<()> {
    let mut spare = path.as_os_str().to_owned();
    spare.push(".new");
    let spare = PathBuf::from(spare);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(false).mode(0o600).open(&spare)?;
    file.write_all(content)?;
    file.set_len(content.len() as u64)?;
    if durable {
        file.sync_all()?;
    }
    match renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        // There is no old file yet, or the file system cannot exchange.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::rename(&spare, path)?
        }
        Err(e) => return Err(e.into()),
    }
    match path.parent().filter(|_| durable) {
        Some(dir) => sync_dir(dir),
        None => Ok(()),
    }
}

/// Makes names created, renamed or removed in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

impl MetaStore for FileMetaStore {
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.dir.join(name)) {
            Ok(content) => Ok(Some(content)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn read_part(&self, name: &str, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
        let mut file = match File::open(self.dir.join(name)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        // Not as long as is asked for: a damaged header may ask for anything.
        let mut content = Vec::new();
        file.seek(SeekFrom::Start(offset))?;
        file.take(len as u64).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        replace_file(&self.dir.join(name), content, true)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        // With what `replace_file` has kept beside it, or could not finish.
        for name in [name, &format!("{name}.new")] {
            match std::fs::remove_file(self.dir.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        sync_dir(&self.dir)
    }
}
