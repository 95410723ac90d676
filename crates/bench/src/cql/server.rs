//! `afterglow serve` as a child process on one core.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::super::{BenchError, pin::Pinned};

/// How long it may take to end in order.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One running server; ended in order by [`stop`](Self::stop), killed when dropped.
pub struct CqlServer {
    /// Where its CQL front end listens.
    pub address: String,
    /// Where its metrics are.
    pub admin: String,
    child: Child,
}

impl CqlServer {
    /// Starts `program serve` on one core, with ports that the system chooses; returns once it
    /// listens.
    pub fn start(program: &Path, core: usize, options: &[&str]) -> Result<Self, BenchError> {
        let pinned = Pinned::to(core).map_err(BenchError::io("stay on one core"))?;
        let mut child = Command::new(program)
            .args([
                "serve",
                "--cql",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--log-level",
                "warn",
            ])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::io(format!("start {}", program.display())))?;
        drop(pinned);
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("it was asked for"));
        said.read_line(&mut line).map_err(BenchError::io("read where the server listens"))?;
        let port = |name: &str| {
            line.split_whitespace().find_map(|w| w.strip_prefix(name).map(str::to_owned))
        };
        let (Some(address), Some(admin)) = (port("cql="), port("admin=")) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(BenchError::Void("afterglow did not start: it said why just above".into()));
        };
        Ok(Self { address, admin, child })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM, and a clean end: it gives its lease back.
    pub fn stop(mut self) -> Result<(), BenchError> {
        let started = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .map_err(|e| BenchError::io("end the server")(e.into()))?;
        while started.elapsed() < TIMEOUT {
            if self.child.try_wait().map_err(BenchError::io("wait for the server"))?.is_some() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(BenchError::Void(format!("the server did not end within {} s", TIMEOUT.as_secs())))
    }
}

impl Drop for CqlServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
