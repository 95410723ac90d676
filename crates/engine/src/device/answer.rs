//! Which devices answer, before a cache is opened on them.
//!
//! Opening reads its devices by calls that block, and no timeout ends such a call. So a device that
//! hangs would hold up the start for good. Each is asked for its first block before that, by a
//! thread of its own. The thread of one that hangs stays until the kernel gives the read up.
//!
//! A device that begins to hang later holds up nothing either: whatever is asked of it until the
//! cache is open has a limit ([`within`], [`PatientSet`](super::PatientSet)). But files are only
//! asked for their first block: to reserve the space of a long one may take longer than any limit.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::buf::AlignedBuf;
use super::disk::DeviceConfig;
use crate::format::BLOCK;

/// How long a device may take for its first block, in seconds. Disks that sleep take some.
pub(super) const ANSWER_WITHIN: u64 = 15;

/// The devices that do not answer, by their paths. One that cannot be opened or read has answered.
pub(crate) fn silent_among(devices: &[DeviceConfig]) -> Vec<PathBuf> {
    silent_within(devices, Duration::from_secs(ANSWER_WITHIN), Arc::new(ask))
}

/// Those whose `ask` has not returned by then.
fn silent_within(
    devices: &[DeviceConfig],
    limit: Duration,
    ask: Arc<dyn Fn(&Path) + Send + Sync>,
) -> Vec<PathBuf> {
    let (answered, answers) = channel();
    let paths = devices.iter().map(|device| device.path.clone());
    let mut silent: Vec<PathBuf> =
        paths.filter(|path| starts_asking(path, &ask, &answered)).collect();
    drop(answered);
    let until = Instant::now() + limit;
    while let Ok(path) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
        silent.retain(|other| *other != path);
    }
    silent
}

/// What a call brings that may hang, if it ends in time. It is made by a thread of its own, which
/// stays until it ends.
///
/// # Errors
/// The thread cannot be started: that says nothing of what was to be called.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (ended, outcome) = channel();
    let calling = start_thread("afterglow-ask", move || {
        // Nobody listens any more once the limit has passed.
        let _ = ended.send(call());
    });
    calling?;
    Ok(outcome.recv_timeout(limit).ok())
}

/// Starts a thread.
pub(super) fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(test)]
    tests::take_thread()?;
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// Whether a thread asks it. Where there is none the device is not known to hang: the opening finds
/// out.
fn starts_asking(
    path: &Path,
    ask: &Arc<dyn Fn(&Path) + Send + Sync>,
    answered: &Sender<PathBuf>,
) -> bool {
    let (path, ask, answered) = (path.to_path_buf(), ask.clone(), answered.clone());
    let asking = start_thread("afterglow-ask", move || {
        ask(&path);
        // Nobody listens any more once the limit has passed.
        let _ = answered.send(path);
    });
    asking.is_ok()
}

/// Reads the first block, past the page cache where that can be done.
fn ask(path: &Path) {
    let open = |flags: OFlags| {
        // Nothing that could be waited for is opened: a pipe has no other end.
        let flags = flags | OFlags::NONBLOCK;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
    };
    let Ok(file) = open(OFlags::DIRECT).or_else(|_| open(OFlags::empty())) else { return };
    let mut block = AlignedBuf::for_read(BLOCK as usize);
    let _ = file.read_at(&mut block, 0);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sync::Mutex;
    use rustix::io::Errno;
    use std::cell::Cell;

    thread_local! {
        /// Threads that this thread can still start.
        static THREADS: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    /// This thread can start so many threads from now on.
    pub(crate) fn limit_threads(threads: u32) {
        THREADS.set(threads);
    }

    pub(super) fn take_thread() -> io::Result<()> {
        let left = THREADS.get().checked_sub(1).ok_or(Errno::AGAIN)?;
        THREADS.set(left);
        Ok(())
    }

    #[test]
    fn a_call_that_no_thread_makes_is_none_that_hangs() {
        limit_threads(0);
        let called = within(Duration::from_secs(60), || ());
        limit_threads(u32::MAX);
        assert!(called.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    }

    fn device(path: &Path) -> DeviceConfig {
        DeviceConfig { path: path.to_path_buf(), size: 0 }
    }

    #[test]
    fn one_that_hangs_is_silent_and_the_others_are_not() {
        let hangs = Arc::new(Mutex::new(()));
        let held = hangs.lock();
        let until = hangs.clone();
        let ask = Arc::new(move |path: &Path| {
            if path == Path::new("second") {
                drop(until.lock());
            }
        });
        let devices = ["first", "second", "third"].map(|path| device(Path::new(path)));
        let silent = silent_within(&devices, Duration::from_millis(200), ask.clone());
        assert_eq!(silent, [Path::new("second")]);
        drop(held);
        assert!(silent_within(&devices, Duration::from_secs(60), ask).is_empty());
    }

    #[test]
    fn what_is_missing_empty_or_no_device_has_answered() {
        let dir = crate::testing::TempDir::new();
        let paths = ["missing", "empty", "full", "pipe"].map(|name| dir.path().join(name));
        std::fs::write(&paths[1], b"").expect("written");
        std::fs::write(&paths[2], vec![1; 8192]).expect("written");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &paths[3], rustix::fs::FileType::Fifo, mode, 0)
            .expect("made");
        assert!(silent_among(&paths.map(|path| device(&path))).is_empty());
    }
}
