//! `--memcache-rejoin-grace`: measures how long the server was down, also after `kill -9` and power
//! loss.
//!
//! While the server runs, a thread writes the time to a file again and again. The next start reads
//! the last sign of life. In doubt the server was down for longer:
//!
//! - The time since the last sign counts. That is up to [`MOST_APART`] more than the server was
//!   down.
//! - Within one boot of the machine the clock that nobody can set decides, or the wall clock if
//!   that says longer.
//! - After a reboot the wall clock decides, or the time since the boot if that says longer.
//! - If the file is missing or damaged, or a clock is behind the last sign, the server counts as
//!   down for too long.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// The file, in the data directory.
const FILE: &str = "memcache-alive";
/// What it begins with: a name and a version.
const FORM: &str = "afterglow-alive 1";
/// Signs are so far apart, or a fourth of the grace where that is less.
const MOST_APART: Duration = Duration::from_secs(5);
/// But no closer than this.
const LEAST_APART: Duration = Duration::from_millis(50);

/// A moment, by the clocks of one boot of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sign {
    /// Names the boot.
    boot: String,
    /// Milliseconds since the boot, those in which the machine slept included.
    up: u64,
    /// Milliseconds since 1970.
    unix: u64,
}

impl Sign {
    fn now() -> io::Result<Sign> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let up = clock_gettime(ClockId::Boottime);
        let up = Duration::new(up.tv_sec as u64, up.tv_nsec as u32);
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Sign { boot, up: up.as_millis() as u64, unix: unix.as_millis() as u64 })
    }

    /// Of one length, so that it can be written over the one before.
    fn text(&self) -> String {
        format!("{FORM} boot={} up={:020} unix={:020}\n", self.boot, self.up, self.unix)
    }

    fn parse(text: &str) -> Option<Sign> {
        let rest = text.strip_prefix(FORM)?.strip_suffix('\n')?;
        let mut words = rest.strip_prefix(' ')?.split(' ');
        let mut word = |name: &str| words.next()?.strip_prefix(name);
        let (boot, up, unix) = (word("boot=")?, word("up=")?, word("unix=")?);
        let (up, unix) = (up.parse().ok()?, unix.parse().ok()?);
        words.next().is_none().then(|| Sign { boot: boot.to_owned(), up, unix })
    }

    /// How long before this one `last` was, at most; `None` when nobody can say.
    fn since(&self, last: &Sign) -> Option<Duration> {
        let millis = match self.boot == last.boot {
            true => self.up.checked_sub(last.up)?.max(self.unix.saturating_sub(last.unix)),
            false => self.unix.checked_sub(last.unix)?.max(self.up),
        };
        Some(Duration::from_millis(millis))
    }
}

/// How long the server was down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downtime {
    /// So long at most.
    For(Duration),
    /// Nobody can say.
    Unknown,
}

impl Downtime {
    /// Whether that is within `grace`.
    pub fn is_within(self, grace: Duration) -> bool {
        matches!(self, Downtime::For(away) if away <= grace)
    }
}

/// How long the server was down before this start.
///
/// # Errors
/// When clocks or file cannot be read.
pub fn away(data_dir: &Path) -> io::Result<Downtime> {
    let text = match std::fs::read(data_dir.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Downtime::Unknown),
        Err(error) => return Err(error),
    };
    let last = std::str::from_utf8(&text).ok().and_then(Sign::parse);
    let now = Sign::now()?;
    Ok(last.and_then(|last| now.since(&last)).map_or(Downtime::Unknown, Downtime::For))
}

/// Gives signs of life until it is dropped, and a last one then.
#[derive(Debug)]
pub struct SignsOfLife {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SignsOfLife {
    /// Gives a first sign, and then one again and again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn start(data_dir: &Path, grace: Duration) -> io::Result<Self> {
        let path = data_dir.join(FILE);
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(false).mode(0o600);
        let file = options.open(&path)?;
        give(&file)?;
        file.set_len(Sign::now()?.text().len() as u64)?;
        file.sync_all()?;
        File::open(data_dir)?.sync_all()?;
        let (stop, stopped) = mpsc::channel::<()>();
        let apart = (grace / 4).clamp(LEAST_APART, MOST_APART);
        let thread = std::thread::Builder::new()
            .name("signs-of-life".into())
            .spawn(move || repeat(&file, &path, apart, &stopped))?;
        Ok(SignsOfLife { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for SignsOfLife {
    fn drop(&mut self) {
        self.stop = None;
        // One that panicked has given its last sign already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn repeat(file: &File, path: &Path, apart: Duration, stopped: &mpsc::Receiver<()>) {
    let mut failing = false;
    loop {
        let ended = stopped.recv_timeout(apart) != Err(RecvTimeoutError::Timeout);
        let given = give(file);
        if let (Err(error), false) = (&given, failing) {
            tracing::warn!(
                "cannot write to {}: {error}. The next start will take the server for down since now",
                path.display()
            );
        }
        failing = given.is_err();
        if ended {
            return;
        }
    }
}

/// Writes the time so that it survives the loss of power.
fn give(file: &File) -> io::Result<()> {
    file.write_all_at(Sign::now()?.text().as_bytes(), 0)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(boot: &str, up: u64, unix: u64) -> Sign {
        Sign { boot: boot.into(), up: up * 1000, unix: unix * 1000 }
    }

    #[test]
    fn doubts_count_as_longer() {
        let last = sign("a", 100, 1_000);
        let since = |now: Sign| now.since(&last).map(|away| away.as_secs());
        assert_eq!(since(sign("a", 130, 1_030)), Some(30));
        assert_eq!(since(sign("a", 130, 900)), Some(30), "the clock was set back");
        assert_eq!(
            since(sign("a", 130, 9_000)),
            Some(8_000),
            "it was set forth, or all was copied"
        );
        assert_eq!(since(sign("a", 99, 1_030)), None, "time goes back: it is another machine's");
        assert_eq!(since(sign("b", 10, 1_030)), Some(30));
        assert_eq!(since(sign("b", 90, 1_030)), Some(90), "it was down before this boot");
        assert_eq!(since(sign("b", 10, 999)), None, "the clock was set back, nobody knows how far");
        assert!(Downtime::For(Duration::from_secs(30)).is_within(Duration::from_secs(30)));
        assert!(!Downtime::For(Duration::from_secs(31)).is_within(Duration::from_secs(30)));
        assert!(!Downtime::Unknown.is_within(Duration::MAX));
    }

    #[test]
    fn signs_are_read_as_written_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(away(dir.path()).unwrap(), Downtime::Unknown, "there is no file");
        drop(SignsOfLife::start(dir.path(), Duration::from_secs(60)).unwrap());
        assert!(away(dir.path()).unwrap().is_within(Duration::from_secs(60)));
        let whole = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        let given = Sign::parse(&whole).unwrap();
        assert_eq!(given.text(), whole);
        for cut in 0..whole.len() {
            std::fs::write(dir.path().join(FILE), &whole[..cut]).unwrap();
            assert_eq!(away(dir.path()).unwrap(), Downtime::Unknown, "{cut} bytes");
        }
        for bad in [whole.replace("alive 1", "alive 2"), whole.replace("up=0", "up=x")] {
            assert_eq!(Sign::parse(&bad), None, "{bad}");
        }
        // What is longer than a sign is cut to its length.
        std::fs::write(dir.path().join(FILE), "x".repeat(500)).unwrap();
        drop(SignsOfLife::start(dir.path(), Duration::from_secs(60)).unwrap());
        assert!(away(dir.path()).unwrap().is_within(Duration::from_secs(60)));
    }
}
