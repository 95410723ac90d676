//! The small durable stores beside the devices:
//!
//! - byte-addressed areas that outlive the process, for the journal;
//! - small files that are replaced as a whole, for metadata;
//! - the lock on the data directory.

mod file_system;
mod files;
mod lock;

use std::io;

pub use file_system::unfit_to_map;
pub use files::{MediaError, MmapMedia, PwriteMedia, look_at_area};
pub use lock::{BootId, DirLock, FileMetaStore, LockError, boot_id, replace_file};

/// A byte-addressed area of fixed size. Its content survives the death of the process as soon as
/// [`Media::store`] has returned, and power loss once [`Media::sync`] has.
///
/// Offsets and lengths are multiples of 8 and within the area, otherwise `InvalidInput`. Stores of
/// several threads to disjoint ranges do not disturb each other. Where ranges overlap, each aligned
/// 8-byte word is of one store or the other.
pub trait Media: Send + Sync {
    /// Bytes in the area, a multiple of 4096.
    fn len(&self) -> u64;

    /// Whether the area has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// `InvalidInput` for a bad range; otherwise the medium failed, and what is in the range is
    /// unknown.
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// As [`Media::store`].
    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Says that a range will not be used for a while: what it takes of this process's memory may
    /// be given back. Its content stays.
    fn release(&self, _offset: u64, _len: u64) {}

    /// Says whether the kernel has given up any of what was stored, by whatever process, and has
    /// told nobody. It is told once. What is being written is waited for; what nobody has begun to
    /// write is not, for it is read as it was stored.
    ///
    /// # Errors
    /// It has, or cannot say.
    fn check_written(&self) -> io::Result<()> {
        self.sync()
    }

    /// Makes everything stored before the call survive power loss.
    ///
    /// # Errors
    /// What the kernel said; nothing is known to have become durable.
    fn sync(&self) -> io::Result<()>;
}

/// Small named files, each replaced as a whole: after a crash at any moment a name has its old or
/// its new content.
pub trait MetaStore: Send + Sync {
    /// The content, `None` when there is no such name.
    ///
    /// # Errors
    /// What the kernel said.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// `len` bytes of the content from `offset` on, fewer where it ends before. `None` when there
    /// is no such name.
    ///
    /// # Errors
    /// What the kernel said.
    fn read_part(&self, name: &str, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the content; durable, also against power loss, when it returns.
    ///
    /// # Errors
    /// What the kernel said; the old content stays, or in the worst case the new is there but not
    /// yet durable.
    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()>;

    /// Removes a name durably, and what an attempt to replace it has left; not an error when there
    /// is none.
    ///
    /// # Errors
    /// What the kernel said.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// Refuses ranges that are not whole words within `len`.
pub(crate) fn check(len: u64, offset: u64, bytes: usize) -> io::Result<()> {
    let bytes = bytes as u64;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= len);
    if fits && offset.is_multiple_of(8) && bytes.is_multiple_of(8) {
        return Ok(());
    }
    let why = format!("{bytes} bytes at {offset} are not whole 8-byte words within {len} bytes");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests;
