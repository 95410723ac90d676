//! The running server as an operator meets it: start, signals, and what it says when it cannot start.

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
        assert!(!log.contains("did not say that its writes were settled"), "it had none, or said so: {log}");
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
fn a_foreign_state_file_is_refused_and_left_alone_and_errors_are_json_too() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::write(&state, "somebody's state").unwrap();
    let error = refused_by_both(command(dir.path()));
    assert!(error.contains("state is not Afterglow's") && error.contains("data directory"), "{error}");
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
    let error =
        said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error in {said}"));
    assert_eq!(
        (checked.0, checked.1.trim_end()),
        (Some(2), error),
        "check-config says something else than serve"
    );
    error.to_string()
}

#[test]
fn check_config_refuses_what_serve_refuses_and_in_the_same_words() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    std::fs::write(at("letters"), vec![b'x'; 64 << 20]).unwrap();
    std::fs::write(at("users"), "no colon").unwrap();
    std::fs::write(at("cert"), "no certificate").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let front_end = ["--memcache", "127.0.0.1:0"];
    let (users, cert, letters) = (at("users"), at("cert"), at("letters"));
    let flash = |path: &str, size: &str| format!("{path}:{size}");
    let (folder, missing) = (flash(&at("folder"), "64MiB"), at("missing"));
    let (foreign, large) = (flash(&letters, "64MiB"), flash(&missing, "1000TiB"));
    let (nowhere, all) = (flash(&at("no/where"), "64MiB"), flash(&missing, "all"));
    let table: &[(&[&str], &str)] = &[
        (&["--memcache-auth-file", &missing], "name:password"),
        (&["--memcache-auth-file", &users], "name:password"),
        (&["--memcache-tls-cert", &missing, "--memcache-tls-key", &missing], "cannot read certificates"),
        (&["--memcache-tls-cert", &cert, "--memcache-tls-key", &cert], "cert"),
        (&["--memcache-tls-cert", &cert], "memcache-tls-key"),
        (&["--memcache", &taken], "choose a free address"),
        (&["--cql", &taken], "choose a free address"),
        (&["--admin", &taken], "--admin off"),
        (&["--memcache-unix", &letters], "letters"),
        (&["--flash", &folder], "neither a file nor a block device"),
        (&["--flash", &foreign], "not Afterglow's"),
        (&["--flash", &large], "no space"),
        (&["--flash", &nowhere], "does not exist"),
        (&["--flash", &all], "block device"),
        (&["--flash", "/dev/afterglow-no-such-device:64MiB"], "no block device"),
        (&["--flash", "/dev/null:64MiB"], "neither a file nor a block device"),
        (&["--data-dir", "/proc/afterglow"], "--data-dir"),
        (&["--data-dir", &letters], "--data-dir"),
        (&["--memory", "4096TiB"], "--memory"),
        (&["--memory", "1MiB"], "too little memory"),
        (&["--cql", "0.0.0.0:0"], "--advertise"),
    ];
    for (bad, hint) in table {
        // A flag that is given twice is an error of its own.
        let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow"));
        let data = at("data");
        let usual = [
            ("--cql", "127.0.0.1:0"),
            ("--backend", "127.0.0.1:9"),
            ("--admin", "127.0.0.1:0"),
            ("--memory", "64MiB"),
            ("--flash-size", "64MiB"),
            ("--reactors", "1"),
            ("--data-dir", &data),
        ];
        let front_end = if bad.contains(&"--memcache") { &[][..] } else { &front_end[..] };
        command.arg("serve").args(*bad).args(front_end);
        usual.iter().filter(|(flag, _)| !bad.contains(flag)).for_each(|(flag, value)| {
            command.args([flag, value]);
        });
        let error = refused_by_both(command);
        assert!(error.contains(hint), "{bad:?}: {error}");
    }
    assert!(!Path::new(&at("data")).exists(), "what was refused left something behind");
    assert!(!Path::new(&missing).exists());
}

#[test]
fn another_size_of_flash_empties_no_cache_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let end = |server: Server| {
        server.signal(TERM);
        server.end()
    };
    assert!(end(Server::start(dir.path(), &[])).0.success());
    let state = || std::fs::read(dir.path().join("state")).unwrap();
    let (clean, flash) = (state(), dir.path().join("flash"));
    for size in ["96MiB", "68MiB"] {
        let named = format!("{}:{size}", flash.display());
        let mut command = command(dir.path());
        command.args(["--flash", &named]);
        let error = refused_by_both(command);
        assert!(error.contains("--discard-cache") && error.contains("67108864"), "{error}");
        assert!(state() == clean && std::fs::metadata(&flash).unwrap().len() == 64 << 20);
    }
    let named = format!("{}:96MiB", flash.display());
    let (status, log) = end(Server::start(dir.path(), &["--flash", &named, "--discard-cache"]));
    assert!(status.success() && log.contains("starting with an empty cache"), "{log}");
}

#[test]
fn a_start_that_fails_costs_no_warmth() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data, &[]);
    server.signal(TERM);
    assert!(server.end().0.success());
    let state = || std::fs::read(data.join("state")).unwrap();
    let clean = state();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let missing = dir.path().join("missing").display().to_string();
    for bad in [
        &["--memcache", &taken][..],
        &["--memcache", "127.0.0.1:0", "--memcache-auth-file", &missing],
        &["--memcache", "127.0.0.1:0", "--memcache-tls-cert", &missing, "--memcache-tls-key", &missing],
    ] {
        let mut command = command(&data);
        command.args(bad);
        let (status, said) = refused(command);
        assert_eq!(status, Some(1), "{said}");
        assert!(state() == clean, "{bad:?} opened the cache");
    }
    // What the front ends keep there is looked at before, too.
    let (flush, spare, intents) =
        (data.join("memcache-flush"), data.join("instance.toml.new"), data.join("intents"));
    let refused_with = |said: &str| {
        let mut command = command(&data);
        command.args(["--memcache", "127.0.0.1:0"]);
        let error = refused_by_both(command);
        assert!(error.contains(said), "{error}");
        assert!(state() == clean, "{said}: it opened the cache");
    };
    std::fs::write(&flush, "nonsense").unwrap();
    refused_with("flush_all");
    std::fs::remove_file(flush).unwrap();
    let _ = std::fs::remove_file(&spare);
    std::fs::create_dir(&spare).unwrap();
    refused_with("instance file");
    std::fs::remove_dir(&spare).unwrap();
    std::fs::remove_file(&intents).unwrap();
    std::fs::create_dir(&intents).unwrap();
    refused_with("intents");
    std::fs::remove_dir(&intents).unwrap();
    // What fails once it is open: the cache is closed as it should be.
    let blocked = data.join("intents.new");
    std::fs::create_dir(&blocked).unwrap();
    let (status, said) = refused(command(&data));
    assert!(status == Some(1) && said.contains("intents"), "{said}");
    std::fs::remove_dir(blocked).unwrap();
    // A damaged table is no reason not to start, and said before.
    std::fs::write(&intents, "nonsense").unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_afterglow"));
    let (_file, path) = tempfile::NamedTempFile::new().unwrap().into_parts();
    let output =
        check.arg("check-config").arg(&path).args(command(&data).get_args().skip(1)).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("the table of intents cannot be used"), "{said}");
    let server = Server::start(&data, &[]);
    server.signal(TERM);
    let (_, log) = server.end();
    assert!(log.contains("warm: it was closed properly"), "{log}");
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
