//! The running server as an operator meets it: start, signals, and what it says when it cannot
//! start.

mod refusals;
mod takeover;
mod weak_writes;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
};

use afterglow_testkit::fake_backend::{FakeBackend, Faults};

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
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AFTERGLOW_"))
    {
        command.env_remove(name);
    }
    // Port 9 of this machine: nobody is there, so the database is down for these tests.
    command.args([
        "serve",
        "--cql",
        "127.0.0.1:0",
        "--backend",
        "127.0.0.1:9",
        "--admin",
        "127.0.0.1:0",
    ]);
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
            let word =
                ports.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
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

/// Starts a server and ends it in order; its log.
fn run_once(data_dir: &Path) -> String {
    let server = Server::start(data_dir, &[]);
    server.signal(TERM);
    let (status, log) = server.end();
    assert!(status.success(), "{log}");
    log
}

/// Runs a server that cannot start; its exit status and what it said.
fn refused(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// `refused`, and what `check-config` makes of the same options.
fn refused_by_both(command: Command) -> String {
    let checked = {
        let mut check = Command::new(env!("CARGO_BIN_EXE_afterglow"));
        let (_file, path) = tempfile::NamedTempFile::new().unwrap().into_parts();
        check.arg("check-config").arg(&path).args(command.get_args().skip(1));
        let output = check.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = refused(command);
    assert!(matches!(status, Some(1 | 2)), "it did not refuse: {status:?} {said}");
    let error = said
        .lines()
        .find(|line| line.starts_with("error: "))
        .unwrap_or_else(|| panic!("no error in {said}"));
    assert_eq!(
        (checked.0, checked.1.trim_end()),
        (Some(2), error),
        "check-config says something else than serve"
    );
    error.to_string()
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
        "afterglow_hits_total{frontend=\"cql\",tier=\"flash\"} 0",
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
fn health_asks_the_server_whether_it_is_ready_or_only_whether_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let ask = |more: &[&str]| {
        let mut health = Command::new(env!("CARGO_BIN_EXE_afterglow"));
        let output = health
            .env("AFTERGLOW_ADMIN", server.admin.to_string())
            .arg("health")
            .args(more)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (status, said) = ask(&[]);
    assert!(status == Some(1) && said.contains("database was not reached"), "{status:?} {said}");
    assert_eq!(ask(&["--live"]), (Some(0), "alive\n".into()));
    // The CQL front end takes the connection and answers no HTTP.
    let (status, said) = ask(&["--live", "--timeout", "2s", "--admin", &server.cql.to_string()]);
    assert!(status == Some(1) && said.contains("no answer"), "{status:?} {said}");
}

#[test]
fn only_who_had_the_lease_before_is_told_of_another_instance() {
    let database = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let address = database.address().to_string();
    let policies = ["--backend", &address, "--table-policy", "*.*=exclusive"];
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let lease = |instance: usize| {
        let mut server = Server::start(dirs[instance].path(), &policies);
        server.until("the lease is ours: ");
        server.signal(TERM);
        server.end().1
    };
    let first_time = "holds the lease for the first time";
    let other = "another instance held the lease";
    for instance in [0, 1] {
        let log = lease(instance);
        assert!(log.contains(first_time) && !log.contains(other), "{log}");
        assert!(
            !log.contains("did not say that its writes were settled"),
            "it had none, or said so: {log}"
        );
    }
    let log = lease(0);
    assert!(log.contains(other) && !log.contains(first_time), "{log}");
    let log = lease(0);
    assert!(!log.contains(other) && !log.contains(first_time), "{log}");
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
fn it_says_cold_where_files_are_gone_and_what_a_truncated_one_lost() {
    use rustix::process::Signal;
    let dir = tempfile::tempdir().unwrap();
    let lifetime = |end, more: &[&str]| {
        let server = Server::start(dir.path(), more);
        server.signal(end);
        server.end().1
    };
    let (flash, journal) = (dir.path().join("flash"), dir.path().join("journal"));
    lifetime(TERM, &[]);
    let half = std::fs::File::options().write(true).open(&flash).unwrap();
    half.set_len(32 << 20).unwrap();
    let log = lifetime(TERM, &[]);
    assert!(log.contains("flash was truncated: 33554432 of its 67108864 bytes were left"), "{log}");
    assert!(log.contains("warm: it was closed properly"), "{log}");
    std::fs::remove_file(&flash).unwrap();
    let log = lifetime(Signal::KILL, &[]);
    assert!(log.contains(" cold: a flash file or device is missing"), "{log}");
    std::fs::remove_file(&journal).unwrap();
    let log = lifetime(TERM, &[]);
    assert!(log.contains(" cold: ") && log.contains("its journal is missing"), "{log}");
    let named = format!("{}:96MiB", flash.display());
    let log = lifetime(TERM, &["--flash", &named, "--discard-cache"]);
    assert!(log.contains(" cold: the devices are not the ones it was made of"), "{log}");
}

#[test]
fn an_index_too_small_for_the_flash_is_told_by_serve_and_by_check_config() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.toml");
    std::fs::write(&file, "").unwrap();
    let warning = "the index can grow to one slot for 4795 bytes of flash";
    // 3 GiB with 32 MiB of memory: a slot for 2.4 KB at most. 6 GiB: for 4.8 KB.
    for (size, told) in [("3GiB", false), ("6GiB", true)] {
        let mut check = Command::new(env!("CARGO_BIN_EXE_afterglow"));
        check.arg("check-config").arg(&file).args(["--memcache", "127.0.0.1:0"]);
        check.args(["--memory", "32MiB", "--flash-size", size, "--data-dir"]).arg(dir.path());
        let said = String::from_utf8(check.output().unwrap().stdout).unwrap();
        assert_eq!(said.contains(warning), told, "{said}");
        // `serve` says so before it makes the flash file. No file may grow beyond 1 MiB here, so
        // that the test takes no gigabytes of the disk.
        let mut serve = Command::new("sh");
        serve.args(["-c", "trap '' XFSZ; ulimit -f 2048; exec \"$@\"", "sh"]);
        serve.arg(env!("CARGO_BIN_EXE_afterglow"));
        serve.args(["serve", "--memcache", "127.0.0.1:0", "--admin", "off", "--reactors", "1"]);
        serve.args(["--memory", "32MiB", "--flash-size", size, "--data-dir"]).arg(dir.path());
        let (status, log) = refused(serve);
        assert_eq!(status, Some(1), "{log}");
        assert!(log.contains("no space for "), "{log}");
        assert_eq!(log.contains(warning) && log.contains("Raise --memory"), told, "{log}");
    }
}

#[test]
fn a_foreign_state_file_is_refused_and_left_alone_and_errors_are_json_too() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::write(&state, "somebody's state").unwrap();
    let error = refused_by_both(command(dir.path()));
    assert!(
        error.contains("state is not Afterglow's") && error.contains("data directory"),
        "{error}"
    );
    let mut json = command(dir.path());
    json.args(["--log-format", "json"]);
    let (status, said) = refused(json);
    assert_eq!(status, Some(1));
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["level"], "ERROR");
    assert!(last["message"].as_str().unwrap().contains("state is not Afterglow's"), "{said}");
    assert_eq!(std::fs::read_to_string(&state).unwrap(), "somebody's state");
    // Without log lines it is told all the same.
    let mut silent = command(dir.path());
    silent.args(["--log-format", "json", "--log-level", "off"]);
    assert!(refused(silent).1.contains("state is not Afterglow's"));
}

#[test]
fn the_line_of_json_that_says_where_it_listens_has_no_key_within_a_value() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &["--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_str(&server.until("\"serving")).unwrap();
    assert_eq!(line["message"], format!("serving cql={}", server.cql));
    assert_eq!(line["admin"], server.admin.to_string());
    assert!(line.get("cql").is_none() && line.get("ports").is_none(), "{line}");
    server.signal(TERM);
    assert!(server.end().0.success());
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
    server.until("the configuration is unchanged");
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

/// A client with requests that are in flight for minutes: each STARTUP waits seconds for the
/// database, which is down.
fn stuck_client(server: &Server) -> TcpStream {
    const STARTUP: &[u8] =
        b"\x04\x00\x00\x00\x01\x00\x00\x00\x16\x00\x01\x00\x0bCQL_VERSION\x00\x053.4.7";
    let mut stream = TcpStream::connect(server.cql).unwrap();
    stream.write_all(&STARTUP.repeat(200)).unwrap();
    let begun = |metrics: String| {
        !metrics.contains("afterglow_requests_total{frontend=\"cql\",request=\"session\"} 0")
    };
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
    server.until("SIGTERM: finishing requests in flight");
    server.signal(TERM);
    let (status, log) = server.end();
    assert!(status.code() == Some(1) && log.contains("SIGTERM again: ending at once"), "{log}");
    drop(client);
}
