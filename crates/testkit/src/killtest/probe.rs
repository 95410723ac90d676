//! Whether the disk takes writes: small ones beside the cache, again and again, each waited for.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(200);
const SIZE: usize = 4096;

/// Writes at work, until it is dropped.
pub(super) struct Probe {
    path: PathBuf,
    timing: Arc<Mutex<Timing>>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How long writes took.
#[derive(Default)]
struct Timing {
    slowest: Duration,
    /// When the one that is under way began.
    began: Option<Instant>,
}

impl Timing {
    /// The slowest, the one under way included.
    fn slowest(&self, now: Instant) -> Duration {
        self.slowest
            .max(self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began)))
    }

    fn end(&mut self, now: Instant) {
        (self.slowest, self.began) = (self.slowest(now), None);
    }
}

impl Probe {
    /// Begins to write to a file in `directory`.
    pub(super) fn start(directory: &Path) -> io::Result<Probe> {
        let path = directory.join("probe");
        let file = File::create(&path)?;
        let timing = Arc::new(Mutex::new(Timing::default()));
        let (stop, stopped) = mpsc::channel::<()>();
        let noted = timing.clone();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                lock(&noted).began = Some(Instant::now());
                // One that fails at once tells nothing of how long writes take; the server counts
                // its own.
                let _ = file.write_all_at(&[0; SIZE], 0).and_then(|()| file.sync_data());
                lock(&noted).end(Instant::now());
            }
        });
        Ok(Probe { path, timing, stop: Some(stop), thread: Some(thread) })
    }

    /// How long the slowest write has taken so far.
    pub(super) fn slowest(&self) -> Duration {
        lock(&self.timing).slowest(Instant::now())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(timing: &Mutex<Timing>) -> std::sync::MutexGuard<'_, Timing> {
    timing.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_has_not_come_back_counts_for_as_long_as_it_takes() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut timing = Timing { slowest: Duration::ZERO, began: Some(start) };
        assert_eq!(timing.slowest(start + 3 * second), 3 * second);
        timing.end(start + 4 * second);
        timing.began = Some(start + 5 * second);
        assert_eq!(timing.slowest(start + 6 * second), 4 * second);
    }

    #[test]
    fn nothing_of_it_is_left() {
        let directory = tempfile::tempdir().unwrap();
        drop(Probe::start(directory.path()).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
