//! `flush_all` with a delay: at a second to come everything that is there then is dropped, also if the server is down then.

use std::fs;
use std::io::{self, Write};
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
    /// Held while a flush is scheduled or carried out.
    turn: Mutex<()>,
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
                let why =
                    format!("{} does not hold a time: remove it, and flush if that is meant", path.display());
                io::Error::new(io::ErrorKind::InvalidData, why)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(FlushSchedule { path, due: AtomicU64::new(due), turn: Mutex::new(()) })
    }

    /// When the next flush is due.
    pub fn due(&self) -> Option<u64> {
        Some(self.due.load(Ordering::Acquire)).filter(|due| *due != 0)
    }

    /// Has everything flushed in second `due`, in the place of what was scheduled before. Holds after a restart too.
    ///
    /// # Errors
    /// When the file cannot be written: nothing is scheduled anew then.
    pub fn schedule(&self, due: u64) -> io::Result<()> {
        let _turn = self.turn.lock();
        self.write(due)?;
        self.due.store(due, Ordering::Release);
        Ok(())
    }

    /// Flushes now, and forgets what was scheduled.
    pub fn now(&self, flush: impl FnOnce()) {
        let _turn = self.turn.lock();
        self.carry_out(flush);
    }

    /// Flushes if one is due at second `now`.
    pub fn if_due(&self, now: u64, flush: impl FnOnce()) {
        let is_due = || self.due().is_some_and(|due| due <= now);
        if !is_due() {
            return;
        }
        let _turn = self.turn.lock();
        if is_due() {
            self.carry_out(flush);
        }
    }

    fn carry_out(&self, flush: impl FnOnce()) {
        flush();
        if self.due.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        // If this fails the next start flushes once more: hits are lost, nothing else.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, "the schedule of flush_all cannot be removed: the next start flushes again");
        }
    }

    fn write(&self, due: u64) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = fs::File::create(&new)?;
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
        assert_eq!(flushed(&first, 59), 0);
        let second = open();
        assert_eq!((second.due(), flushed(&second, 59)), (Some(60), 0));
        assert_eq!((flushed(&second, 60), flushed(&second, 61)), (1, 0));
        assert_eq!(open().due(), None);
        second.schedule(70).unwrap();
        second.now(|| ());
        assert_eq!(
            (second.due(), open().due()),
            (None, None),
            "a flush at once takes the place of a later one"
        );
        fs::write(dir.path().join(FILE), "soon").unwrap();
        assert!(FlushSchedule::open(dir.path()).is_err());
    }
}
