//! The real binary as a child process.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::error::KillError;
use afterglow_loadgen::cql::{ConnectOptions, Connection};

/// How `afterglow serve` is started, always the same way so that it finds its cache again.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) binary: PathBuf,
    pub(super) backend: String,
    pub(super) data_dir: PathBuf,
    pub(super) log: PathBuf,
    pub(super) cql: String,
    pub(super) admin: String,
    pub(super) memory: String,
    /// Where the flash is.
    pub(super) flash_options: Vec<String>,
    /// Everything else.
    pub(super) options: Vec<String>,
    pub(super) environment: Vec<(String, PathBuf)>,
}

/// One life of the server. Killed when dropped.
pub(super) struct Life {
    child: Child,
}

impl Server {
    /// Starts it, without waiting for anything.
    pub(super) fn spawn(&self) -> Result<Life, KillError> {
        let log = |e: io::Error| KillError::Files { path: self.log.clone(), source: e };
        let out = OpenOptions::new().create(true).append(true).open(&self.log).map_err(log)?;
        let child = Command::new(&self.binary)
            .args(["serve", "--cql", &self.cql, "--backend", &self.backend, "--admin", &self.admin])
            .args(["--memory", &self.memory])
            .args(&self.flash_options)
            .args(&self.options)
            .arg("--data-dir")
            .arg(&self.data_dir)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(log)?)
            .stderr(out)
            .spawn()
            .map_err(|source| KillError::Start { binary: self.binary.clone(), source })?;
        Ok(Life { child })
    }

    /// Starts it and waits until its CQL front end answers.
    pub(super) fn start(&self, limit: Duration) -> Result<Life, KillError> {
        let started = Instant::now();
        let mut life = self.spawn()?;
        let options =
            ConnectOptions { timeout: Duration::from_secs(1), ..ConnectOptions::default() };
        loop {
            if let Ok(mut connection) = Connection::open(&self.cql, &options)
                && connection.ping().is_ok()
            {
                return Ok(life);
            }
            if let Ok(Some(status)) = life.child.try_wait() {
                return Err(KillError::Ended { status, log: self.tail() });
            }
            if started.elapsed() > limit {
                return Err(KillError::Silent { seconds: limit.as_secs(), log: self.tail() });
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The last lines of its log.
    pub(super) fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(1 << 16)..]);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Life {
    pub(super) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// kill -9.
    pub(super) fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    fn signal(&self, signal: Signal) {
        // An error means that it has ended already, which the next look finds out.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// SIGSTOP, or SIGCONT.
    pub(super) fn pause(&self, stopped: bool) {
        self.signal(if stopped { Signal::STOP } else { Signal::CONT });
    }

    /// SIGTERM.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGTERM, and wait until it has ended.
    pub(super) fn stop(mut self, limit: Duration) -> Result<(), KillError> {
        self.terminate();
        let started = Instant::now();
        loop {
            match self.has_ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(KillError::Unclean(status)),
                None if started.elapsed() > limit => {
                    return Err(KillError::Undying(limit.as_secs()));
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes `directory` and an empty log in it.
pub(super) fn prepare(directory: &Path, log: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    File::create(log).map(drop)
}
