//! Areas in files: mapped into memory, or through `pread` and `pwrite`.

#![allow(unsafe_code)]

use std::fs::{File, Metadata, OpenOptions};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mm::Advice;

use super::lock::sync_dir;
use super::{Media, check};

/// Step in which new files are filled.
const FILL: usize = 1 << 20;
/// Areas are whole pages.
const PAGE: u64 = 4096;

/// Why an area could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The file system is full.
    #[error("no space for {len} bytes at {path}: free some, or choose another data directory")]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its size.
        len: u64,
    },
    /// Another process has the file.
    #[error("{path} is in use by another process: stop it, or choose another data directory")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be an area: its size is wrong, or it is to be mapped and parts of it have no
    /// blocks.
    #[error("{path} is damaged ({why}): remove it and start cold")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// Anything else.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl MediaError {
    fn from_io(doing: &'static str, path: &Path, len: u64, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Self::NoSpace { path, len },
            Some(Errno::WOULDBLOCK) => Self::InUse { path },
            _ => Self::Io { doing, path, source },
        }
    }
}

/// Makes a file of `len` zero bytes with every block written. It gets its final name only once it
/// is whole, so an existing file is never half made.
fn create(path: &Path, len: u64) -> Result<File, MediaError> {
    let fail = |doing| move |e| MediaError::from_io(doing, path, len, e);
    if len == 0 || !len.is_multiple_of(PAGE) {
        let why = io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{len} bytes are not whole pages of {PAGE}"),
        );
        return Err(fail("create")(why));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let made = fill(&temporary, len).and_then(|file| {
        std::fs::rename(&temporary, path)?;
        sync_dir(parent(path))?;
        Ok(file)
    });
    if made.is_err() {
        // Gives a full disk its space back; the error reported is the one that matters.
        let _ = std::fs::remove_file(&temporary);
    }
    made.map_err(fail("create"))
}

/// The directory a file is in.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn fill(path: &Path, len: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let zeros = vec![0; FILL];
    let mut at = 0;
    while at < len {
        let step = (FILL as u64).min(len - at);
        file.write_all_at(&zeros[..step as usize], at)?;
        at += step;
    }
    file.sync_all()?;
    Ok(file)
}

/// Opens a file made by [`create`], which may be mapped then; `None` when there is none.
fn open(path: &Path, mapped: bool) -> Result<Option<(File, u64)>, MediaError> {
    let fail = |doing| move |e| MediaError::from_io(doing, path, 0, e);
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail("open")(e)),
    };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|e| fail("lock")(e.into()))?;
    let found = file.metadata().map_err(fail("inspect"))?;
    check_whole(path, &found, mapped)?;
    Ok(Some((file, found.len())))
}

/// Refuses what opening an area would refuse, `mapped` or not, by a look alone; nothing there is
/// fine.
///
/// # Errors
/// [`MediaError`] names the cause and what to do.
pub fn look_at_area(path: &Path, mapped: bool) -> Result<(), MediaError> {
    match std::fs::metadata(path) {
        Ok(found) => check_whole(path, &found, mapped),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(MediaError::from_io("inspect", path, 0, e)),
    }
}

fn check_whole(path: &Path, found: &Metadata, mapped: bool) -> Result<(), MediaError> {
    let damaged = |why| Err(MediaError::Damaged { path: path.to_path_buf(), why });
    if !found.is_file() {
        return damaged("it is no file");
    }
    if found.len() == 0 || !found.len().is_multiple_of(PAGE) {
        return damaged("its size is not whole pages");
    }
    // A store into a hole of a mapped file kills the process when the disk is full. Where it is
    // written with `pwrite` that is an error. Many of the file systems for which that is done
    // compress, or keep no zeros: a new area has hardly any blocks there.
    if mapped && found.blocks() * 512 < found.len() {
        return damaged("it has holes");
    }
    Ok(())
}

/// A file mapped into memory: a store is a copy, and the kernel keeps it when the process dies.
///
/// The file is written in full before it is mapped. So no store needs a new block, which would be a
/// `SIGBUS` on a full disk.
pub struct MmapMedia {
    map: MmapRaw,
    /// Holds the lock.
    file: File,
}

impl MmapMedia {
    /// Makes a new area of `len` zero bytes (whole pages of 4096), replacing the file if there is
    /// one.
    ///
    /// # Errors
    /// [`MediaError`] names the cause and what to do.
    pub fn create(path: &Path, len: u64) -> Result<Self, MediaError> {
        Self::map(path, create(path, len)?, len)
    }

    /// Opens an area made before, as large as it is; `None` when there is none.
    ///
    /// # Errors
    /// [`MediaError`] names the cause and what to do.
    pub fn open(path: &Path) -> Result<Option<Self>, MediaError> {
        open(path, true)?.map(|(file, len)| Self::map(path, file, len)).transpose()
    }

    fn map(path: &Path, file: File, len: u64) -> Result<Self, MediaError> {
        let map = MmapOptions::new()
            .len(len as usize)
            .map_raw(&file)
            .map_err(|e| MediaError::from_io("map", path, len, e))?;
        Ok(Self { map, file })
    }

    /// The mapping as words, which all access goes through: threads may store and load at the same
    /// time.
    fn words(&self) -> &[AtomicU64] {
        let ptr = self.map.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is page aligned, readable and writable, lives as long as `self`, and
        // is accessed in this process through these atomics only. Another process cannot have it:
        // the file is locked.
        unsafe { std::slice::from_raw_parts(ptr, self.map.len() / 8) }
    }

    fn range(&self, offset: u64, len: usize) -> io::Result<&[AtomicU64]> {
        check(self.len(), offset, len)?;
        let first = offset as usize / 8;
        Ok(&self.words()[first..first + len / 8])
    }
}

impl Media for MmapMedia {
    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let words = self.range(offset, bytes.len())?;
        for (word, chunk) in words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        Ok(())
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let words = self.range(offset, bytes.len())?;
        for (word, chunk) in words.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    fn release(&self, offset: u64, len: u64) {
        let (from, to) =
            (offset.next_multiple_of(PAGE), (offset + len).min(self.len()) / PAGE * PAGE);
        if from < to {
            let start = self.map.as_mut_ptr().wrapping_add(from as usize);
            // SAFETY: the pages are within the mapping, which is shared with its file. The kernel
            // keeps their content in the page cache and maps them again at the next access. All
            // access goes through atomics, to which that is invisible.
            let released = unsafe {
                rustix::mm::madvise(start.cast(), (to - from) as usize, Advice::LinuxDontNeed)
            };
            // Refused, they stay resident, as they would without the advice.
            debug_assert!(released.is_ok(), "{released:?}");
        }
    }

    fn check_written(&self) -> io::Result<()> {
        wait_for_writeback(&self.file).unwrap_or_else(|| self.sync())
    }

    fn sync(&self) -> io::Result<()> {
        self.map.flush()
    }
}

/// Waits for what the kernel is writing of a file, and says whether it could not write some of it
/// since it was last asked. `None` where the kernel has no such call, or a filter refuses it.
///
/// `SYNC_FILE_RANGE_WAIT_BEFORE` begins no write. It waits for pages that are under writeback, and
/// then reports the file's error as a flush does (`file_fdatawait_range` in `mm/filemap.c`). An
/// error that nobody has been told of counts for a file opened later, too. It looks at the pages of
/// the file itself: right for those file systems whose files are mapped here, not for one that lies
/// over another.
#[cfg(target_os = "linux")]
fn wait_for_writeback(file: &File) -> Option<io::Result<()>> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and no memory is passed.
    let said =
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if said == 0 {
        return Some(Ok(()));
    }
    let error = io::Error::last_os_error();
    let refused = [Errno::NOSYS, Errno::SPIPE, Errno::INVAL, Errno::PERM];
    let is_refused = Errno::from_io_error(&error).is_some_and(|errno| refused.contains(&errno));
    (!is_refused).then_some(Err(error))
}

/// Elsewhere there is no such call.
#[cfg(not(target_os = "linux"))]
fn wait_for_writeback(_: &File) -> Option<io::Result<()>> {
    None
}

/// A file through `pread` and `pwrite`, for processes that must not be killed by a signal, such as
/// a JVM. Here a failing disk is an error.
pub struct PwriteMedia {
    file: File,
    len: u64,
}

impl PwriteMedia {
    /// As [`MmapMedia::create`].
    ///
    /// # Errors
    /// [`MediaError`] names the cause and what to do.
    pub fn create(path: &Path, len: u64) -> Result<Self, MediaError> {
        Ok(Self { file: create(path, len)?, len })
    }

    /// As [`MmapMedia::open`], also where parts of the file have no blocks.
    ///
    /// # Errors
    /// [`MediaError`] names the cause and what to do.
    pub fn open(path: &Path) -> Result<Option<Self>, MediaError> {
        Ok(open(path, false)?.map(|(file, len)| Self { file, len }))
    }
}

impl Media for PwriteMedia {
    fn len(&self) -> u64 {
        self.len
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check(self.len, offset, bytes.len())?;
        self.file.write_all_at(bytes, offset)
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        check(self.len, offset, bytes.len())?;
        self.file.read_exact_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
