//! The running server as an operator meets it: start, signals, and what it says when it cannot start.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
};

/// A running `afterglow serve`; killed when dropped, whatever the test made of it.
struct Server {
    child: Child,
    log: BufReader<ChildStderr>,
    said: String,
    cql: SocketAddr,
    admin: SocketAddr,
}

fn command(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AFTERGLOW_"))
    {
        command.env_remove(name);
    }
    // Port 9 of this machine: nobody is there, so the database is down for these tests.
    command.args(["serve", "--cql", "127.0.0.1:0", "--backend", "127.0.0.1:9", "--admin", "127.0.0.1:0"]);
    command.args(["--memory", "64MiB", "--flash-size", "64MiB", "--reactors", "1"]);
    command.arg("--data-dir").arg(data_dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Server {
    fn start(data_dir: &Path, more: &[&str]) -> Server {
        let mut child = command(data_dir).args(more).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut ports = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ports).unwrap();
        let port = |name: &str| {
            let word = ports.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
            word.and_then(|address| address.parse().ok())
        };
        let (Some(cql), Some(admin)) = (port("cql"), port("admin")) else {
            let _ = child.kill();
            let mut said = String::new();
            let _ = log.read_to_string(&mut said);
            panic!("no ports in `{ports}`:\n{said}");
        };
        Server { child, log, said: String::new(), cql, admin }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Reads the log until a line holds `wanted`.
    fn until(&mut self, wanted: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.log.read_line(&mut line).unwrap(),
                0,
                "the log ended before `{wanted}`:\n{}",
                self.said
            );
            self.said.push_str(&line);
            if line.contains(wanted) {
                return line;
            }
        }
    }

    /// Waits for the end; the whole log and the status.
    fn end(mut self) -> (ExitStatus, String) {
        self.log.read_to_string(&mut self.said).unwrap();
        let status = self.child.wait().unwrap();
        (status, std::mem::take(&mut self.said))
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TERM: rustix::process::Signal = rustix::process::Signal::TERM;

/// Runs a server that cannot start; its exit status and what it said.
fn refused(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn it_says_where_it_listens_serves_its_pages_and_ends_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data, &["--table-policy", "shop.*=exclusive"]);
    TcpStream::connect(server.cql).unwrap();
    assert_eq!(server.get("/healthz").0, 200);
    let (status, body) = server.get("/readyz");
    assert!(status == 503 && body.contains("database was not reached"), "{body}");
    let (_, metrics) = server.get("/metrics");
    for name in [
        "afterglow_hits_total{door=\"cql\",tier=\"flash\"} 0",
        "afterglow_engine_flash_bytes ",
        "afterglow_build_info{",
    ] {
        assert!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
    assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in std::fs::read_dir(&data).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
    let (cql, admin) = (server.cql, server.admin);
    server.signal(TERM);
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for said in [
        env!("CARGO_PKG_VERSION"),
        "64MiB",
        "shop.*: exclusive",
        "every writer comes through Afterglow",
        &cql.to_string(),
        &admin.to_string(),
    ] {
        assert!(log.contains(said), "{said} is missing in\n{log}");
    }
    assert!(TcpStream::connect(cql).is_err(), "nobody listens any more");
}

#[test]
fn it_says_whether_it_starts_warm_and_why() {
    use rustix::process::Signal;
    let dir = tempfile::tempdir().unwrap();
    for (found, end, status) in [
        ("cold: it is new", TERM, Some(0)),
        ("warm: it was closed properly", Signal::KILL, None),
        ("warm: the last process ended without closing it", Signal::INT, Some(0)),
        ("warm: it was closed properly", TERM, Some(0)),
    ] {
        let server = Server::start(dir.path(), &[]);
        server.signal(end);
        let (ended, log) = server.end();
        assert_eq!(ended.code(), status, "{log}");
        assert!(log.contains(found), "{found} is missing in\n{log}");
    }
}

#[test]
fn hangup_puts_policies_in_force_and_names_what_needs_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.toml");
    std::fs::write(&file, "table-policy = [\"a.*=off\"]\n").unwrap();
    let mut server = Server::start(&dir.path().join("data"), &["--config", file.to_str().unwrap()]);
    std::fs::write(&file, "table-policy = [\"a.*=exclusive\"]\nrestart-grace = \"5m\"\n").unwrap();
    server.signal(rustix::process::Signal::HUP);
    server.until("table-policy is now a.*=exclusive (was a.*=off)");
    server.until("restart-grace stays 60s until a restart");
    std::fs::write(&file, "table-policy = [\"a.*=exclusif\"]\n").unwrap();
    server.signal(rustix::process::Signal::HUP);
    server.until("the configuration stays as it was");
    server.until("a.toml:1:17: table-policy: `exclusif` is not a policy");
    server.signal(TERM);
    assert!(server.end().0.success());
}

#[test]
fn a_second_process_on_the_same_directory_is_told_who_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let (status, said) = refused(command(dir.path()));
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("in use by another process") && said.contains(&server.child.id().to_string()),
        "{said}"
    );
    assert_eq!(server.get("/healthz").0, 200, "the first one lives on");
}

/// A client with requests that are in flight for minutes: each STARTUP waits seconds for the database, which is down.
fn stuck_client(server: &Server) -> TcpStream {
    const STARTUP: &[u8] = b"\x04\x00\x00\x00\x01\x00\x00\x00\x16\x00\x01\x00\x0bCQL_VERSION\x00\x053.4.7";
    let mut stream = TcpStream::connect(server.cql).unwrap();
    stream.write_all(&STARTUP.repeat(200)).unwrap();
    let begun =
        |metrics: String| !metrics.contains("afterglow_requests_total{door=\"cql\",request=\"session\"} 0");
    while !begun(server.get("/metrics").1) {
        std::thread::yield_now();
    }
    stream
}

#[test]
fn requests_in_flight_get_the_drain_timeout_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--drain-timeout", "1ms"]);
    let client = stuck_client(&server);
    server.signal(TERM);
    let (status, log) = server.end();
    assert!(status.success() && log.contains("still in flight after 1ms"), "{log}");
    drop(client);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &["--drain-timeout", "1d"]);
    let client = stuck_client(&server);
    server.signal(TERM);
    server.until("SIGTERM: finishing what is in flight");
    server.signal(TERM);
    let (status, log) = server.end();
    assert!(status.code() == Some(1) && log.contains("SIGTERM again: ending at once"), "{log}");
    drop(client);
}

#[test]
fn a_port_in_use_is_said_with_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, name) in [("--cql", "cql"), ("--admin", "admin")] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow"));
        command.args([
            "serve",
            "--backend",
            "127.0.0.1:9",
            "--flash-size",
            "64MiB",
            "--memory",
            "64MiB",
            flag,
            &address,
        ]);
        command.args(if name == "cql" { ["--admin", "off"] } else { ["--cql", "127.0.0.1:0"] });
        let (status, said) = refused({
            command.arg("--data-dir").arg(dir.path());
            command
        });
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(&address), "{name}: {said}");
    }
}

#[test]
fn a_data_directory_that_is_a_file_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("file");
    std::fs::write(&path, "").unwrap();
    let (status, said) = refused(command(&path));
    assert!(status == Some(1) && said.contains("--data-dir") && said.contains("file"), "{said}");
}

#[test]
fn more_flash_than_there_is_disk_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(dir.path());
    command.arg("--flash").arg(format!("{}:1000TiB", dir.path().join("flash").display()));
    let (status, said) = refused(command);
    assert!(status == Some(1) && said.contains("flash"), "{said}");
    assert!(said.contains("no space") || said.contains("too large"), "{said}");
}

#[test]
fn a_file_that_is_not_afterglows_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let flash = dir.path().join("letters.txt");
    let letters = vec![b'x'; 64 << 20];
    std::fs::write(&flash, &letters).unwrap();
    let mut command = command(&dir.path().join("data"));
    command.arg("--flash").arg(format!("{}:64MiB", flash.display()));
    let (status, said) = refused(command);
    assert!(status == Some(1) && said.contains("letters.txt") && said.contains("not Afterglow's"), "{said}");
    assert!(std::fs::read(&flash).unwrap() == letters, "it was changed");
}
