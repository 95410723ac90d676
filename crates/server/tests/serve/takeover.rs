//! `--take-over`: a process takes the sockets of one that serves.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::{ConnectOptions, Connection, CqlError};
use afterglow_testkit::fake_backend::{FakeBackend, Faults, StatementKind};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::command;

/// Nothing here takes so long unless it never comes.
const GIVE_UP: Duration = Duration::from_secs(120);
/// What a statement may wait while the cache is small and nothing else is slow.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const READ: &str = "SELECT v FROM ks.t WHERE k = 'a'";

/// One process after the other on one data directory. All write to one log, so that its lines are
/// in the order in which they were said.
struct Line {
    database: Arc<FakeBackend>,
    directory: TempDir,
    processes: Vec<Child>,
    cql: SocketAddr,
}

impl Line {
    /// With the first process.
    fn start(more: &[&str]) -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        let database = Arc::new(FakeBackend::start(address, Faults::default()).unwrap());
        for text in [
            "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
            "CREATE TABLE ks.t (k text PRIMARY KEY, v text)",
            "INSERT INTO ks.t (k, v) VALUES ('a', 'v')",
        ] {
            database.run(text);
        }
        let directory = tempfile::tempdir().unwrap();
        let mut line = Self { database, directory, processes: Vec::new(), cql: address };
        let mut serves = line.start_next(more);
        line.cql = serves.cql().unwrap_or_else(|| panic!("{}", line.log()));
        line
    }

    /// Starts one more.
    fn start_next(&mut self, more: &[&str]) -> Ports {
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut child = command(&self.directory.path().join("data"))
            .args(["--backend", &self.database.address().to_string()])
            .args(["--table-policy", "ks.*=exclusive"])
            .args(more)
            .stderr(log)
            .spawn()
            .unwrap();
        let ports = Ports(BufReader::new(child.stdout.take().unwrap()));
        self.processes.push(child);
        ports
    }

    fn signal(&self, process: usize, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.processes[process]);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap()
    }

    fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + GIVE_UP;
        while !done() {
            assert!(Instant::now() < deadline, "waited in vain until {what}:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The lines about the last take-over, in their order; none before it is said.
    fn steps(&self) -> Vec<&'static str> {
        let log = self.log();
        let said = |line: &str| STEPS.into_iter().find(|step| line.contains(step));
        let steps: Vec<_> = log.lines().filter_map(said).collect();
        let from = steps.iter().rposition(|step| *step == STEPS[0]).unwrap_or(steps.len());
        steps[from..].to_vec()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What is said of a take-over: by the old process of its end, by the new one of its beginning.
const STEPS: [&str; 5] = [
    "another process takes over: finishing requests in flight",
    "writing the cache out",
    " ended dropped=",
    "warm: it was closed properly",
    " serving cql=",
];

/// The line that a process writes once it serves.
struct Ports(BufReader<ChildStdout>);

impl Ports {
    /// The port; none where the process has ended.
    fn cql(&mut self) -> Option<SocketAddr> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let port = line.split_whitespace().find_map(|word| word.strip_prefix("cql="));
        port.map(|port| port.parse().unwrap())
    }
}

fn client(cql: SocketAddr) -> Result<Connection, CqlError> {
    let options = ConnectOptions { timeout: GIVE_UP, ..ConnectOptions::default() };
    Connection::open(&cql.to_string(), &options)
}

/// A client that asks one statement after the other, and connects anew when it must.
struct Asking {
    answered: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Asking {
    fn start(cql: SocketAddr) -> Self {
        let (answered, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counts, ends) = (answered.clone(), over.clone());
        let thread = thread::spawn(move || {
            let (mut longest, mut connection) = (Duration::ZERO, None);
            while !ends.load(Ordering::SeqCst) {
                let began = Instant::now();
                ask(cql, &mut connection);
                longest = longest.max(began.elapsed());
                counts.fetch_add(1, Ordering::SeqCst);
            }
            longest
        });
        Self { answered, over, thread }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// The longest that a statement has waited, a new connection for it included.
    fn end(self) -> Duration {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().expect("every statement is answered")
    }
}

/// Asks until there is the answer. A connection may end, as at any stop. Nobody is refused.
fn ask(cql: SocketAddr, connection: &mut Option<Connection>) {
    let began = Instant::now();
    while began.elapsed() < GIVE_UP {
        let mut open = match connection.take().map_or_else(|| client(cql), Ok) {
            Ok(open) => open,
            Err(error @ CqlError::Connect { .. }) => panic!("a connection was refused: {error}"),
            Err(error @ CqlError::Server(_)) => panic!("a client was refused: {error}"),
            Err(_) => continue,
        };
        match open.query(READ, Consistency::One) {
            Ok(rows) => {
                assert_eq!(rows, [[Some(b"v".to_vec())]]);
                *connection = Some(open);
                return;
            }
            Err(error @ CqlError::Server(_)) => panic!("a statement was refused: {error}"),
            Err(_) => {}
        }
    }
    panic!("no answer");
}

#[test]
fn statements_that_are_sent_meanwhile_are_answered_and_wait_two_seconds_at_most() {
    let mut line = Line::start(&[]);
    let mut longest = Vec::new();
    // A machine that is busy with other things may take longer, and is given several goes.
    for _ in 0..5 {
        let asking = Asking::start(line.cql);
        line.wait_until("statements are answered", || asking.answered() > 20);
        let mut new = line.start_next(&["--take-over"]);
        assert_eq!(new.cql(), Some(line.cql), "{}", line.log());
        let old = line.processes.len() - 2;
        let ended = line.processes[old].wait().unwrap();
        assert!(ended.success(), "{}", line.log());
        let since = asking.answered();
        line.wait_until("statements are answered", || asking.answered() > since + 20);
        longest.push(asking.end());
        assert_eq!(line.steps(), STEPS, "{}", line.log());
        if longest.last() <= Some(&LONGEST_WAIT) {
            return;
        }
    }
    panic!("the longest waits of several goes: {longest:?}");
}

/// An OPTIONS of protocol version 4.
const OPTIONS: &[u8] = b"\x04\x00\x00\x00\x05\x00\x00\x00\x00";

/// A connection that neither process has accepted, with a request. Until the old one has heard that
/// it is to stop, it accepts some.
fn knocking(cql: SocketAddr) -> TcpStream {
    loop {
        let mut client = TcpStream::connect(cql).expect("nobody is refused");
        client.write_all(OPTIONS).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        if client.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        {
            return client;
        }
    }
}

#[test]
fn the_successor_accepts_nothing_before_the_old_one_has_closed_its_cache_and_intents() {
    let mut line = Line::start(&["--drain-timeout", "1h"]);
    let mut writer = client(line.cql).unwrap();
    let database = line.database.clone();
    let held = database.hold(StatementKind::Write);
    let write = thread::spawn(move || {
        writer.query("INSERT INTO ks.t (k, v) VALUES ('a', 'new')", Consistency::One)
    });
    held.wait_for(1);
    let mut new = line.start_next(&["--take-over"]);
    line.wait_until("it has the sockets", || line.log().contains("taking over: 1 listening"));
    line.wait_until("the old one stops", || !line.steps().is_empty());
    let mut knocking = knocking(line.cql);
    // The old process has an answer to give, and nothing of the next one is there but its sockets.
    assert_eq!(line.steps(), STEPS[..1], "{}", line.log());
    drop(held);
    write.join().unwrap().expect("what is under way is answered");
    assert_eq!(new.cql(), Some(line.cql), "{}", line.log());
    let mut answer = [0];
    knocking.set_read_timeout(Some(GIVE_UP)).unwrap();
    knocking.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 0x84, "it is answered in that version");
    assert_eq!(line.steps(), STEPS, "{}", line.log());
    let rows = client(line.cql).unwrap().query(READ, Consistency::One).unwrap();
    assert_eq!(rows, [[Some(b"new".to_vec())]]);
}

/// As a terminal does it, or a container that is paused.
#[test]
fn a_process_that_is_stopped_for_a_moment_takes_over_all_the_same() {
    let mut line = Line::start(&[]);
    // Who is asked does not answer yet.
    line.signal(0, Signal::STOP);
    let mut new = line.start_next(&["--take-over"]);
    for _ in 0..40 {
        line.signal(1, Signal::STOP);
        line.signal(1, Signal::CONT);
        thread::sleep(Duration::from_millis(50));
    }
    line.signal(0, Signal::CONT);
    assert_eq!(new.cql(), Some(line.cql), "{}", line.log());
    assert_eq!(line.steps(), STEPS, "{}", line.log());
}
