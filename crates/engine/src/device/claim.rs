//! Opens and locks a file or block device that a process which is gone may still hold.
//!
//! After a cache was closed or killed, the kernel takes a moment to end its last io_uring requests.
//! For them it keeps the lock, and a block device's claim (`O_EXCL`). So a successor waits that
//! long.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

/// For how long what is held may be so by a process that is gone.
pub(super) const LETTING_GO: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Attempts something again as long as it is `held`, until so much time is over.
pub(super) fn attempt_while<T, E>(
    limit: Duration,
    held: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let until = Instant::now() + limit;
    loop {
        match attempt() {
            Err(error) if held(&error) && Instant::now() < until => thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// Takes the lock.
pub(super) fn lock(file: &File, limit: Duration) -> Result<(), Errno> {
    let held = |error: &Errno| *error == Errno::WOULDBLOCK;
    let locked = || rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    attempt_while(limit, held, locked)
}

/// Opens with `O_DIRECT`; a file system without it is said in the log, since the page cache then
/// holds everything twice.
pub(super) fn open_direct(path: &Path, is_block: bool, limit: Duration) -> io::Result<File> {
    let attempt = |direct: bool| {
        let mut flags = OFlags::empty();
        flags.set(OFlags::DIRECT, direct);
        // On a block device O_EXCL without O_CREAT refuses one that is mounted or in use.
        flags.set(OFlags::EXCL, is_block);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(!is_block)
            .mode(0o600)
            .custom_flags(flags.bits() as i32);
        options.open(path)
    };
    match attempt_while(limit, is_busy, || attempt(true)) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => {
            let file = attempt_while(limit, is_busy, || attempt(false))?;
            tracing::warn!(path = %path.display(), "no O_DIRECT on this file system: flash reads also fill the page cache");
            Ok(file)
        }
        other => other,
    }
}

/// Whether somebody has a block device: mounted, or opened as we do.
pub(super) fn is_busy(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::BUSY)
}
