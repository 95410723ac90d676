//! `flush_all` with a delay: at that second everything in the cache is dropped, even if the server
//! is down then.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The file in the data directory.
const FILE: &str = "memcache-flush";

/// When the next flush is due.
pub struct FlushSchedule {
    path: PathBuf,
    /// The second; 0 for none.
    due: AtomicU64,
    /// Held while a flush is carried out, so that nobody goes on before it is.
    turn: Mutex<()>,
    /// Held while the file is changed, for as long as the disk takes.
    file: Mutex<()>,
}

/// A flush that is carried out.
pub struct Flushed<T> {
    /// What carrying it out gave.
    pub outcome: T,
    /// It, or one in whose place it came, was scheduled: [`FlushSchedule::forget`] is still to be
    /// called.
    pub scheduled: bool,
}

impl FlushSchedule {
    /// What the last run left.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold what it should.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(FILE);
        let due = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| {
                let why = format!(
                    "{} does not hold a time: remove it, and flush if that is meant",
                    path.display()
                );
                io::Error::new(io::ErrorKind::InvalidData, why)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(FlushSchedule {
            path,
            due: AtomicU64::new(due),
            turn: Mutex::default(),
            file: Mutex::default(),
        })
    }

    /// When the next flush is due.
    pub fn due(&self) -> Option<u64> {
        Some(self.due.load(Ordering::Acquire)).filter(|due| *due != 0)
    }

    /// Has everything flushed in second `due`, in the place of what was scheduled before. Holds
    /// after a restart too. Blocks for the disk.
    ///
    /// # Errors
    /// When the file cannot be written: nothing is scheduled anew then.
    pub fn schedule(&self, due: u64) -> io::Result<()> {
        let _file = self.file.lock();
        self.write(due)?;
        self.due.store(due, Ordering::Release);
        Ok(())
    }

    /// Flushes now, in the place of what was scheduled.
    pub fn now<T>(&self, flush: impl FnOnce() -> T) -> Flushed<T> {
        let _turn = self.turn.lock();
        let outcome = flush();
        Flushed { outcome, scheduled: self.due.swap(0, Ordering::AcqRel) != 0 }
    }

    /// Flushes if one is due at second `now`.
    pub fn if_due<T>(&self, now: u64, flush: impl FnOnce() -> T) -> Option<Flushed<T>> {
        let due = || self.due().filter(|due| *due <= now);
        due()?;
        let _turn = self.turn.lock();
        let due = due()?;
        let outcome = flush();
        // Only after it: others look no further than this. What was scheduled meanwhile stays.
        let _ = self.due.compare_exchange(due, 0, Ordering::AcqRel, Ordering::Relaxed);
        Some(Flushed { outcome, scheduled: true })
    }

    /// Takes a flush that lasts from the file, unless another is scheduled by now. Blocks for the
    /// disk. Before the flush lasts this would be too early: after a loss of power nothing would
    /// say that there was one.
    pub fn forget(&self) {
        let _file = self.file.lock();
        if self.due().is_some() {
            return;
        }
        // If this fails the next start flushes once more: hits are lost, nothing else.
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the schedule of flush_all cannot be removed: the next start flushes again");
            }
            _ => {}
        }
    }

    /// Has everybody wait who changes the file, as a disk that does not answer has.
    #[cfg(test)]
    pub fn hold(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.file.lock()
    }

    fn write(&self, due: u64) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        writeln!(file, "{due}")?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        match self.path.parent() {
            Some(dir) => fs::File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_flush_comes_once_at_its_second_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let open = || FlushSchedule::open(dir.path()).unwrap();
        let flushed = |schedule: &FlushSchedule, now| {
            let mut count = 0;
            schedule.if_due(now, || count += 1);
            count
        };
        let first = open();
        assert_eq!(flushed(&first, u64::MAX), 0);
        first.schedule(50).unwrap();
        first.schedule(60).unwrap();
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "as all files of the data directory");
        assert_eq!(flushed(&first, 59), 0);
        let second = open();
        assert_eq!((second.due(), flushed(&second, 59)), (Some(60), 0));
        assert_eq!((flushed(&second, 60), flushed(&second, 61)), (1, 0));
        assert_eq!((second.due(), open().due()), (None, Some(60)), "it may not last yet");
        second.forget();
        assert_eq!(open().due(), None);
        second.schedule(70).unwrap();
        assert!(second.now(|| ()).scheduled && !second.now(|| ()).scheduled);
        second.forget();
        assert_eq!(
            (second.due(), open().due()),
            (None, None),
            "a flush at once takes the place of a later one"
        );
        second.schedule(80).unwrap();
        assert!(second.now(|| ()).scheduled);
        second.schedule(90).unwrap();
        second.forget();
        assert_eq!(open().due(), Some(90), "scheduled after the one that is forgotten");
        fs::write(dir.path().join(FILE), "soon").unwrap();
        assert!(FlushSchedule::open(dir.path()).is_err());
    }
}
