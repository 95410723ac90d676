//! Threads on cores, and how much memory the process has.

use std::io;

use rustix::{
    io::Errno,
    process::{Pid, setpriority_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// Keeps the calling thread on one core as long as it lives, then gives it back the cores it had.
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// The `n`-th of the cores this thread may use.
    pub fn to(n: usize) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        one.set(core(&before, n)?);
        sched_setaffinity(None, &one)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed a moment ago; if no longer, the thread stays where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Keeps all present threads of another process on the `n`-th of the cores this thread may use, and
/// with them those they will make.
pub fn process(pid: u32, n: usize) -> io::Result<()> {
    let mut one = CpuSet::new();
    one.set(core(&sched_getaffinity(None)?, n)?);
    each_thread(pid, |thread| sched_setaffinity(thread, &one))
}

/// Lets all present threads of another process, and those they will make, run after whoever else
/// wants the core (nice 19).
pub fn last(pid: u32) -> io::Result<()> {
    each_thread(pid, |thread| setpriority_process(thread, 19))
}

fn each_thread(pid: u32, act: impl Fn(Option<Pid>) -> Result<(), Errno>) -> io::Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Some(thread) =
            thread?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw)
        else {
            continue;
        };
        match act(Some(thread)) {
            // It has ended meanwhile.
            Err(Errno::SRCH) | Ok(()) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn core(allowed: &CpuSet, n: usize) -> io::Result<usize> {
    let core = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).nth(n);
    core.ok_or_else(|| io::Error::other(format!("this process may not use {} cores", n + 1)))
}

/// Resident memory: all, and without pages that are only the cache of a mapped file (the journal),
/// in bytes.
pub fn resident() -> io::Result<Resident> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        let kib =
            line.and_then(|l| l.trim_start_matches(':').split_whitespace().next()?.parse().ok());
        kib.unwrap_or(0u64) * 1024
    };
    Ok(Resident { all: field("VmRSS"), anonymous: field("RssAnon"), peak: field("VmHWM") })
}

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    /// Everything.
    pub all: u64,
    /// Without mapped files.
    pub anonymous: u64,
    /// The most there ever was of everything.
    pub peak: u64,
}
