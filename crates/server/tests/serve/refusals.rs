//! Starts that are refused: each says what is wrong, and leaves the cache as it was.

use super::*;

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

/// `check-config` and `serve` refuse these flags beside those of a usual start.
fn refuses(dir: &Path, bad: &[&str], hint: &str) {
    // A flag that is given twice is an error of its own.
    let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow"));
    let data = dir.join("data").display().to_string();
    let usual = [
        ("--cql", "127.0.0.1:0"),
        ("--backend", "127.0.0.1:9"),
        ("--admin", "127.0.0.1:0"),
        ("--memory", "64MiB"),
        ("--flash-size", "64MiB"),
        ("--reactors", "1"),
        ("--data-dir", &data),
    ];
    let front_end = ["--memcache", "127.0.0.1:0"];
    let front_end = if bad.contains(&"--memcache") { &[][..] } else { &front_end[..] };
    command.arg("serve").args(bad).args(front_end);
    usual.iter().filter(|(flag, _)| !bad.contains(flag)).for_each(|(flag, value)| {
        command.args([flag, value]);
    });
    let error = refused_by_both(command);
    assert!(error.contains(hint), "{bad:?}: {error}");
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
    let (users, cert, letters) = (at("users"), at("cert"), at("letters"));
    let flash = |path: &str, size: &str| format!("{path}:{size}");
    let (folder, missing) = (flash(&at("folder"), "64MiB"), at("missing"));
    let (foreign, large) = (flash(&letters, "64MiB"), flash(&missing, "1000TiB"));
    let (nowhere, all) = (flash(&at("no/where"), "64MiB"), flash(&missing, "all"));
    let table: &[(&[&str], &str)] = &[
        (&["--memcache-auth-file", &missing], "name:password"),
        (&["--memcache-auth-file", &users], "name:password"),
        (
            &["--memcache-tls-cert", &missing, "--memcache-tls-key", &missing],
            "cannot read certificates",
        ),
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
        (&["--flash", "/dev/afterglow-no-such-device:all"], "no block device"),
        (&["--flash", "/dev/null:64MiB"], "neither a file nor a block device"),
        (&["--data-dir", "/proc/afterglow"], "--data-dir"),
        (&["--data-dir", &letters], "--data-dir"),
        (&["--memory", "4096TiB"], "--memory"),
        (&["--memory", "1MiB"], "too little memory"),
        (&["--memcache-idle-timeout", "0s"], "`off` for no limit"),
        (&["--cql", "0.0.0.0:0"], "--advertise"),
    ];
    table.iter().for_each(|(bad, hint)| refuses(dir.path(), bad, hint));
    assert!(!Path::new(&at("data")).exists(), "what was refused left something behind");
    assert!(!Path::new(&missing).exists());
    assert!(!Path::new("/dev/afterglow-no-such-device").exists());
}

#[test]
fn certificates_that_cannot_be_used_are_refused_by_both() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let made = |name: &str| format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    for (name, mode) in [("server.key", 0o600), ("client.key", 0o600), ("second.key", 0o604)] {
        std::fs::copy(made(name), at(name)).unwrap();
        std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let (pem, key, ca) = (made("server.pem"), at("server.key"), made("ca.pem"));
    let (other_key, open_key) = (at("client.key"), at("second.key"));
    std::fs::write(at("cert"), "no certificate").unwrap();
    let (cert, missing) = (at("cert"), at("missing"));
    let table: &[(&[&str], &str)] = &[
        (&["--cql-tls-cert", &missing, "--cql-tls-key", &key], "cannot read certificates"),
        (&["--cql-tls-cert", &pem, "--cql-tls-key", &missing], "cannot be read"),
        (&["--cql-tls-cert", &pem, "--cql-tls-key", &other_key], "does not fit"),
        (&["--cql-tls-cert", &pem, "--cql-tls-key", &open_key], "chmod 600"),
        (&["--cql-tls-cert", &pem], "--cql-tls-key"),
        (
            &["--cql-tls-cert", &pem, "--cql-tls-key", &key, "--cql-tls-client-ca", &cert],
            "cannot be used as a CA",
        ),
        (&["--backend-tls-ca", &missing], "cannot be used as a CA"),
        (
            &["--backend-tls-ca", &ca, "--backend-tls-cert", &pem, "--backend-tls-key", &open_key],
            "chmod 600",
        ),
        (&["--backend-tls-verify-host-name=false"], "--backend-tls-ca"),
    ];
    table.iter().for_each(|(bad, hint)| refuses(dir.path(), bad, hint));
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
    run_once(&data);
    let state = || std::fs::read(data.join("state")).unwrap();
    let clean = state();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let missing = dir.path().join("missing").display().to_string();
    for bad in [
        &["--memcache", &taken][..],
        &["--memcache", "127.0.0.1:0", "--memcache-auth-file", &missing],
        &[
            "--memcache",
            "127.0.0.1:0",
            "--memcache-tls-cert",
            &missing,
            "--memcache-tls-key",
            &missing,
        ],
    ] {
        let mut command = command(&data);
        command.args(bad);
        let (status, said) = refused(command);
        assert_eq!(status, Some(1), "{said}");
        assert!(state() == clean, "{bad:?} opened the cache");
    }
    let log = run_once(&data);
    assert!(log.contains("warm: it was closed properly"), "{log}");
}

#[test]
fn files_of_the_front_ends_that_cannot_be_used_cost_no_warmth() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    run_once(&data);
    let state = || std::fs::read(data.join("state")).unwrap();
    let clean = state();
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
    let output = check
        .arg("check-config")
        .arg(&path)
        .args(command(&data).get_args().skip(1))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && said.contains("the table of intents cannot be used"),
        "{said}"
    );
    let log = run_once(&data);
    assert!(log.contains("warm: it was closed properly"), "{log}");
}

/// What notes the tables of the last run is believed by the very next opening of the cache only.
#[test]
fn a_front_end_that_cannot_start_beside_it_costs_no_rows() {
    let database = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let address = database.address().to_string();
    let dir = tempfile::tempdir().unwrap();
    let run = || {
        let server = Server::start(dir.path(), &["--backend", &address]);
        while !dir.path().join("tables").exists() {
            std::thread::yield_now();
        }
        server.signal(TERM);
        server.end().1
    };
    run();
    let alive = dir.path().join("memcache-alive");
    std::fs::create_dir(&alive).unwrap();
    let mut command = command(dir.path());
    command.args(["--memcache", "127.0.0.1:0", "--memcache-rejoin-grace", "1m"]);
    let (status, said) = refused(command);
    assert!(status == Some(1) && said.contains("when the server last ran"), "{said}");
    std::fs::remove_dir(alive).unwrap();
    let log = run();
    assert!(!log.contains("all rows that it cached are dropped"), "{log}");
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
    assert!(
        status == Some(1) && said.contains("letters.txt") && said.contains("not Afterglow's"),
        "{said}"
    );
    assert!(std::fs::read(&flash).unwrap() == letters, "it was changed");
}
