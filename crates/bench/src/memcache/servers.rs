//! The servers that are compared, as child processes on one core.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::super::{BenchError, pin::Pinned, progress};
use afterglow_loadgen::{cpu, metrics, port::free_port, rng::Rng};

/// How long a server may take to start, to stop, and to write what it holds to flash.
const TIMEOUT: Duration = Duration::from_secs(300);
const NAP: Duration = Duration::from_millis(5);
/// Between two looks at a server's metrics: they cost it CPU that is measured.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Attempts to read a server's metrics, of two seconds each.
const TRIES: u32 = 15;
/// Connections a server must take: the largest of a sweep and some.
const CONNECTIONS: usize = 2048;
/// What the names of Afterglow's threads begin with that answer clients.
const REACTORS: &str = "reactor-";
/// What an object may count, where segments are large enough.
const ITEM: &str = "4MiB";

/// A memcached that can be run.
#[derive(Clone, Debug)]
pub struct Memcached(PathBuf);

/// Finds memcached: the project's own in `.tools`, else the one in the search path; says how to get
/// one otherwise.
pub fn find_memcached() -> Result<Memcached, BenchError> {
    for program in [".tools/memcached/memcached", "memcached"].map(PathBuf::from) {
        if Command::new(&program).arg("-V").output().is_ok_and(|o| o.status.success()) {
            return Ok(Memcached(program));
        }
    }
    Err(BenchError::Void(
        "memcached is missing: `apt install memcached`, or `make bench`, which fetches it into .tools".into(),
    ))
}

/// A memcached's flash.
#[derive(Clone, Debug)]
pub struct Extstore {
    /// Its file.
    pub path: PathBuf,
    /// Its size in MiB.
    pub mebibytes: u64,
    /// Threads that read it.
    pub threads: usize,
}

/// A running server, killed when dropped.
pub struct Server {
    /// What it is called in tables.
    pub name: String,
    /// Where it listens.
    pub address: String,
    child: Child,
    admin: Option<String>,
    cgroup: Option<Cgroup>,
    /// Why its page cache is not bounded although it should be.
    pub unbounded: Option<String>,
}

/// Starts a child on the first core, which is the servers'.
fn spawn(command: &mut Command, log: &Path) -> Result<Child, BenchError> {
    let fail = |what: &Path| BenchError::io(format!("start {}", what.display()));
    let program = PathBuf::from(command.get_program());
    let out = File::create(log).map_err(fail(&program))?;
    let again = out.try_clone().map_err(fail(&program))?;
    // A child may run where the thread that makes it may.
    let _pinned = Pinned::to(0).map_err(BenchError::io("keep a server on one core"))?;
    command.stdin(Stdio::null()).stdout(out).stderr(again).spawn().map_err(fail(&program))
}

impl Server {
    /// Afterglow's memcached front end over `flash` bytes in `dir`, one reactor.
    pub fn afterglow(
        program: &Path,
        dir: &Path,
        flash: u64,
        memory: u64,
    ) -> Result<Self, BenchError> {
        let mut rng = Rng::new(u64::from(std::process::id()));
        let port = |rng: &mut Rng| free_port(rng).map_err(BenchError::io("find a free port"));
        let (address, admin) = (port(&mut rng)?, port(&mut rng)?);
        let mut command = Command::new(program);
        command
            .args(["serve", "--reactors", "1", "--memcache", &address, "--admin", &admin])
            .args(["--flash-size", &format!("{flash}B"), "--memory", &format!("{memory}B")])
            .args([
                "--memcache-connections",
                &CONNECTIONS.to_string(),
                "--memcache-item-size",
                ITEM,
            ])
            .args(["--log-level", "warn", "--data-dir"])
            .arg(dir);
        let child = spawn(&mut command, &dir.with_extension("log"))?;
        let name = "afterglow".to_owned();
        let mut server =
            Self { name, address, child, admin: Some(admin), cgroup: None, unbounded: None };
        server.wait_until_open(&dir.with_extension("log"))?;
        server.wait_for("loading its index", |page| {
            metrics::sum(page, "afterglow_engine_loading") == 0
        })?;
        Ok(server)
    }

    /// memcached with one thread; with `extstore`, its page cache in a memory cgroup of `memory`
    /// and half as much again.
    pub fn memcached(
        program: &Memcached,
        name: &str,
        memory: u64,
        extstore: Option<&Extstore>,
        log: &Path,
    ) -> Result<Self, BenchError> {
        let address = free_port(&mut Rng::new(u64::from(std::process::id()) + 7))
            .map_err(BenchError::io("find a port"))?;
        let (host, port) = address.split_once(':').unwrap_or((&address, "11211"));
        let mut command = Command::new(&program.0);
        command
            .args(["-u", "root", "-l", host, "-p", port, "-U", "0", "-t", "1"])
            .args(["-m", &(memory >> 20).to_string(), "-c", &CONNECTIONS.to_string()])
            // Over flash no item may be larger than its write buffer.
            .args(["-I", if extstore.is_some() { "4m" } else { "8m" }]);
        if let Some(Extstore { path, mebibytes, threads }) = extstore {
            let options = format!(
                "ext_path={}:{mebibytes}m,ext_threads={threads},ext_item_age=0",
                path.display()
            );
            command.args(["-o", &options]);
        }
        let child = spawn(&mut command, log)?;
        let mut server = Self {
            name: name.to_owned(),
            address,
            child,
            admin: None,
            cgroup: None,
            unbounded: None,
        };
        if extstore.is_some() {
            match Cgroup::around(&server.child, memory + memory / 2) {
                Ok(cgroup) => server.cgroup = Some(cgroup),
                Err(error) => server.unbounded = Some(error.to_string()),
            }
        }
        server.wait_until_open(log)?;
        Ok(server)
    }

    fn wait_until_open(&mut self, log: &Path) -> Result<(), BenchError> {
        let begin = Instant::now();
        while TcpStream::connect(&self.address).is_err() {
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || begin.elapsed() > TIMEOUT {
                let said = fs::read_to_string(log).unwrap_or_default();
                return Err(BenchError::Void(format!("{} did not start: {said}", self.name)));
            }
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// CPU it has used, in nanoseconds.
    pub fn cpu(&self) -> Result<u64, BenchError> {
        cpu::of_process(self.child.id())
            .map_err(BenchError::io(format!("ask for the CPU time of {}", self.name)))
    }

    /// Whether it is Afterglow, which writes to flash what it is given.
    pub fn has_flash(&self) -> bool {
        self.admin.is_some()
    }

    /// CPU of the threads that answer, without those that write to flash.
    pub fn answering_cpu(&self) -> Result<u64, BenchError> {
        cpu::of_threads(self.child.id(), REACTORS)
            .map_err(BenchError::io(format!("ask for the CPU time of {}", self.name)))
    }

    /// Resident memory now and at its highest, in bytes.
    pub fn resident(&self) -> (u64, u64) {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
        };
        (field("VmRSS").unwrap_or(0) << 10, field("VmHWM").unwrap_or(0) << 10)
    }

    /// Its page of metrics; `None` of a server that has none.
    pub fn metrics(&self) -> Result<Option<String>, BenchError> {
        let Some(admin) = &self.admin else { return Ok(None) };
        let mut tries = 0;
        loop {
            // A machine that is busy with more than this may let it wait.
            tries += 1;
            match metrics::get(admin, "/metrics") {
                Err(_) if tries < TRIES => thread::sleep(NAP),
                page => return page.map(Some).map_err(BenchError::io("read /metrics")),
            }
        }
    }

    /// Waits until its metrics say so; at once for a server without.
    pub fn wait_for(&self, what: &str, done: impl Fn(&str) -> bool) -> Result<(), BenchError> {
        let begin = Instant::now();
        while let Some(page) = self.metrics()? {
            if done(&page) {
                return Ok(());
            }
            if begin.elapsed() > TIMEOUT {
                return Err(BenchError::Void(format!(
                    "{} did not end {what} within {TIMEOUT:?}",
                    self.name
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until everything it was given is on flash.
    pub fn settle(&self) -> Result<(), BenchError> {
        self.wait_for("writing to flash", |page| {
            metrics::sum(page, "afterglow_engine_unsaved_bytes") == 0
                && metrics::sum(page, "afterglow_engine_chunks_waiting") == 0
        })
    }

    /// A figure of `stats`, summed over classes; 0 when there is none.
    pub fn stat(&self, name: &str) -> Result<u64, BenchError> {
        let ask = || -> io::Result<u64> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.write_all(b"stats\r\n")?;
            let mut found = 0;
            for line in BufReader::new(stream).lines() {
                let line = line?;
                if line == "END" {
                    break;
                }
                let mut words = line.split(' ').skip(1);
                if words.next() == Some(name) {
                    found += words.next().and_then(|v| v.parse().ok()).unwrap_or(0);
                }
            }
            Ok(found)
        };
        ask().map_err(BenchError::io(format!("ask {} for its stats", self.name)))
    }

    /// Stops it cleanly.
    pub fn stop(mut self) -> Result<(), BenchError> {
        progress(format_args!("stopping {}", self.name));
        // An error means that it has ended already.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begin = Instant::now();
        while self.child.try_wait().map_err(BenchError::io("wait for a server"))?.is_none() {
            if begin.elapsed() > TIMEOUT {
                return Err(BenchError::Void(format!("{} did not stop", self.name)));
            }
            thread::sleep(NAP);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A group can only be removed once nobody is in it.
        self.cgroup.take();
    }
}

/// A memory cgroup with one process in it, removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Puts `child` into a new group that may have `bytes` of memory, page cache included.
    fn around(child: &Child, bytes: u64) -> io::Result<Self> {
        let (parent, limit) = match Path::new("/sys/fs/cgroup/memory").is_dir() {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false => ("/sys/fs/cgroup", "memory.max"),
        };
        let path = Path::new(parent).join(format!("afterglow-bench-{}", child.id()));
        fs::create_dir(&path)?;
        let group = Self(path);
        fs::write(group.0.join(limit), bytes.to_string())?;
        fs::write(group.0.join("cgroup.procs"), child.id().to_string())?;
        Ok(group)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
