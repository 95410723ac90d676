//! The memcached front end as clients see it. Acknowledged changes survive `kill -9`, and no client
//! takes the server's memory or time.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// The budget of every server here, in bytes.
const MEMORY: u64 = 64 << 20;
/// What the program itself may add: its code, stacks and the allocator's own.
const PROGRAM: u64 = 32 << 20;
/// Asks for figures.
const STATS: &[u8] = b"stats\r\n";

/// A running `afterglow serve`; killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    fn start(data_dir: &Path, more: &[&str]) -> Server {
        Server::start_with(data_dir, more, &[])
    }

    fn start_with(data_dir: &Path, more: &[&str], variables: &[(&str, &Path)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow"));
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AFTERGLOW_"))
        {
            command.env_remove(name);
        }
        command.args(["serve", "--memcache", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--reactors", "1"]);
        command.args(["--memory", "64MiB", "--flash-size", "512MiB", "--log-level", "warn"]);
        command.arg("--data-dir").arg(data_dir).args(more).stdout(Stdio::piped());
        command.envs(variables.iter().copied());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address_of = |name: &str| {
            let mut words = line.split_whitespace();
            let address = words.find_map(|word| word.strip_prefix(name)?.parse().ok());
            address.unwrap_or_else(|| panic!("no address of {name} in `{line}`"))
        };
        Server { child, address: address_of("memcache="), admin: address_of("admin=") }
    }

    /// Waits until the index is loaded. Until then some objects are misses.
    fn wait_loaded(&self) {
        let is_loaded = || {
            let mut stream = TcpStream::connect(self.admin).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).unwrap();
            let loading = page.lines().find_map(|l| l.strip_prefix("afterglow_engine_loading "));
            loading.unwrap_or_else(|| panic!("not on the page: {page}")) == "0"
        };
        while !is_loaded() {}
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        // Only so that a fault ends a test instead of hanging it.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client(BufReader::new(stream))
    }

    /// kill -9.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The most memory it ever had resident.
    fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Sends what the system takes; how much that was.
    fn send_some(&mut self, bytes: &[u8]) -> usize {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent < bytes.len() {
            match self.0.get_mut().write(&bytes[sent..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.0.get_ref().set_nonblocking(false).unwrap();
        sent
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Whether no answer has come.
    fn has_nothing(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let nothing =
            matches!(self.0.fill_buf(), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.0.get_ref().set_nonblocking(false).unwrap();
        nothing
    }

    /// What the server has read of all clients, and how many are connected.
    fn load(&mut self) -> (u64, u64) {
        self.send(STATS);
        let lines: Vec<String> =
            std::iter::repeat_with(|| self.line()).take_while(|line| line != "END").collect();
        let of = |name: &str| {
            let value = |line: &String| line.strip_prefix(name)?.parse().ok();
            lines.iter().find_map(value).expect("it is among them")
        };
        (of("STAT bytes_read "), of("STAT curr_connections "))
    }

    fn set(&mut self, key: &str, value: &[u8]) -> String {
        self.send(&set(key, value));
        self.line()
    }

    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        self.answer()
    }

    /// The answer to a `get` of one key.
    fn answer(&mut self) -> Option<Vec<u8>> {
        let head = self.line();
        if head == "END" {
            return None;
        }
        let len: usize = head.rsplit(' ').next().unwrap().parse().unwrap();
        let mut value = vec![0; len + 7];
        self.0.read_exact(&mut value).unwrap();
        assert!(value.ends_with(b"\r\nEND\r\n"));
        value.truncate(len);
        Some(value)
    }
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// A value that tells whose it is in every part.
fn value(n: usize, len: usize) -> Vec<u8> {
    format!("{n:07},").into_bytes().into_iter().cycle().take(len).collect()
}

#[test]
fn what_was_acknowledged_in_write_through_and_synced_survives_kill_9() {
    for durability in ["write-through", "synced"] {
        let dir = tempfile::tempdir().unwrap();
        let options = ["--memcache-durability", durability];
        let mut server = Server::start(dir.path(), &options);
        let mut client = server.connect();
        assert_eq!(client.set("older", b"old"), "STORED");
        // Many at once, of one connection: each waits for the device, and they share its writes.
        let keys: Vec<String> = (0..200).map(|n| format!("key{n}")).collect();
        let all: Vec<u8> =
            keys.iter().enumerate().flat_map(|(n, key)| set(key, &value(n, 3000))).collect();
        client.send(&all);
        keys.iter().for_each(|key| assert_eq!(client.line(), "STORED", "{durability}: {key}"));
        assert_eq!(client.set("older", b"new"), "STORED");
        client.send(
            b"append key0 0 0 1\r\n!\r\ndelete key1\r\nincr key2 1\r\nset n 0 0 1\r\n9\r\nincr n 1\r\n",
        );
        let answers: Vec<String> = (0..5).map(|_| client.line()).collect();
        assert_eq!(answers[..2], ["STORED", "DELETED"]);
        assert!(answers[2].starts_with("CLIENT_ERROR"), "{answers:?}");
        assert_eq!(answers[3..], ["STORED", "10"]);

        server.kill();
        let server = Server::start(dir.path(), &options);
        let mut client = server.connect();
        // A read of what is not loaded yet is a miss; a change waits until all of it is.
        client.send(b"touch nothing 0\r\n");
        assert_eq!(client.line(), "NOT_FOUND");
        assert_eq!(client.get("older").as_deref(), Some(&b"new"[..]), "{durability}");
        assert_eq!(client.get("key0"), Some([&value(0, 3000)[..], b"!"].concat()), "{durability}");
        assert_eq!(client.get("key1"), None, "{durability}: deleted");
        assert_eq!(client.get("n").as_deref(), Some(&b"10"[..]), "{durability}");
        for (n, key) in keys.iter().enumerate().skip(2) {
            assert_eq!(client.get(key), Some(value(n, 3000)), "{durability}: {key}");
        }
    }
}

#[test]
fn long_values_come_whole_in_every_form_from_memory_and_from_flash_while_others_change_them() {
    // Around the length from which values are not copied, and as long as this flash takes.
    const LENS: [usize; 6] = [16_383, 16_384, 16_385, 100_000, 300_001, 520_000];
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &["--memcache-buffers", "4MiB"]);
    let mut client = server.connect();
    for (n, len) in LENS.into_iter().enumerate() {
        assert_eq!(client.set(&format!("key{n}"), &value(n, len)), "STORED");
    }
    for tier in ["memory", "flash", "memory again"] {
        let mut client = server.connect();
        let asked: Vec<usize> = (0..LENS.len()).chain((0..LENS.len()).rev()).collect();
        for form in ["get key#\r\n", "mg key# v\r\n", "gat 0 key#\r\n", "mg key# T0 v\r\n"] {
            let named = |n: &usize| form.replace('#', &n.to_string());
            client.send(asked.iter().map(named).collect::<String>().as_bytes());
            for &n in &asked {
                let head = client.line();
                assert!(head.ends_with(&format!(" {}", LENS[n])), "{tier}, {form}: {head}");
                let end: &[u8] = if form.contains('v') { b"\r\n" } else { b"\r\nEND\r\n" };
                let mut rest = vec![0; LENS[n] + end.len()];
                client.0.read_exact(&mut rest).unwrap();
                assert!(rest == [&value(n, LENS[n]), end].concat(), "{tier}, {form}: key{n}");
            }
        }
        // Answers that wait for their client stay what they were when the value changes.
        client.send("get key5\r\n".repeat(40).as_bytes());
        let (old, new) = (value(5, LENS[5]), value(7, LENS[5]));
        assert_eq!(server.connect().set("key5", &new), "STORED");
        let answers: Vec<_> = (0..40).map(|_| client.answer().unwrap()).collect();
        let olds = answers.iter().take_while(|answer| **answer == old).count();
        assert!(answers[olds..].iter().all(|answer| *answer == new), "{tier}: {olds} of 40");
        assert_eq!(client.set("key5", &old), "STORED");
        if tier == "memory" {
            assert!(stop(&mut server).success());
            server = Server::start(dir.path(), &["--memcache-buffers", "4MiB"]);
            server.wait_loaded();
        }
    }
}

#[test]
fn clients_that_do_not_read_hold_up_nobody_and_cost_a_bounded_memory() {
    const LEN: usize = 256 << 10;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--memcache-buffers", "4MiB"]);
    let mut other = server.connect();
    (0..8).for_each(|n| assert_eq!(other.set(&format!("large{n}"), &value(n, LEN)), "STORED"));
    // 40 clients ask for 200 MiB and read none of it: one by one, or with a line that names all.
    let asked: Vec<usize> = (0..20).map(|n| n % 8).collect();
    let requests: String = asked.iter().map(|n| format!("get large{n}\r\n")).collect();
    let names: String = asked.iter().map(|n| format!(" large{n}")).collect();
    let forms = [
        (requests, "\r\nEND\r\n"),
        (format!("get{names}\r\n"), "\r\n"),
        (format!("gat 0{names}\r\n"), "\r\n"),
        (format!("gats 100{names}\r\n"), "\r\n"),
    ];
    let mut silent: Vec<Client> = (0..40).map(|_| server.connect()).collect();
    let each = silent.iter_mut().zip(forms.iter().cycle());
    each.for_each(|(client, (requests, _))| client.send(requests.as_bytes()));
    assert_eq!(other.set("small", b"1"), "STORED");
    assert_eq!(other.get("small").as_deref(), Some(&b"1"[..]));
    assert!(server.peak() < MEMORY + PROGRAM, "{} bytes resident", server.peak());
    // Whoever reads at last gets what was asked for, in order, unless the server has given up
    // waiting.
    for (client, (_, end)) in silent.iter_mut().zip(forms.iter().cycle()) {
        for &n in &asked {
            let mut head = String::new();
            if !matches!(client.0.read_line(&mut head), Ok(len) if len > 0) {
                break;
            }
            assert!(head.starts_with(&format!("VALUE large{n} 0 {LEN}")), "{head}");
            let mut rest = vec![0; LEN + end.len()];
            if client.0.read_exact(&mut rest).is_err() {
                break;
            }
            assert!(rest[..LEN] == value(n, LEN)[..] && rest.ends_with(end.as_bytes()), "large{n}");
        }
    }
    assert!(server.peak() < MEMORY + PROGRAM, "{} bytes resident", server.peak());
    assert_eq!(other.get("large3"), Some(value(3, LEN)));
}

#[test]
fn many_clients_that_do_not_read_cost_a_bounded_memory_whatever_they_ask_with() {
    const LEN: usize = 400 << 10;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--memcache-buffers", "4MiB"]);
    let mut other = server.connect();
    assert_eq!(other.set("large", &value(0, LEN)), "STORED");
    for request in ["get large", "gat 0 large", "gats 100 large", "mg large v T0", "mg large v R1"]
    {
        // More than the system takes for each, and 195 MiB if each had one answer besides.
        let requests = format!("{request}\r\n").repeat(40);
        let mut awaited = other.load().0 + (500 * requests.len()) as u64;
        let mut silent: Vec<Client> = (0..500).map(|_| server.connect()).collect();
        silent.iter_mut().for_each(|client| client.send(requests.as_bytes()));
        // What is read is carried out at once, as far as there is room. A slow server cuts some off
        // before it has read all, because they take nothing.
        loop {
            let (read, connections) = other.load();
            if read >= awaited + STATS.len() as u64 || connections <= 500 {
                break;
            }
            awaited += STATS.len() as u64;
        }
        assert!(server.peak() < MEMORY + PROGRAM, "{request}: {} bytes resident", server.peak());
        // Who had no room has it now, and the same answer, unless it was cut off.
        drop(silent.drain(..499));
        let (mut head, mut rest) = (String::new(), vec![0; LEN]);
        if matches!(silent[0].0.read_line(&mut head), Ok(length) if length > 0) {
            assert!(head.starts_with('V'), "{request}");
            if silent[0].0.read_exact(&mut rest).is_ok() {
                assert!(rest == value(0, LEN), "{request}");
            }
        }
    }
}

#[test]
fn clients_that_send_half_a_value_hold_up_nobody_and_cost_a_bounded_memory() {
    const LEN: usize = 256 << 10;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--memcache-buffers", "4MiB"]);
    // 400 clients begin 100 MiB and stop before the end.
    let wholes: Vec<Vec<u8>> = (0..400).map(|n| set(&format!("key{n}"), &value(n, LEN))).collect();
    let mut halves: Vec<(Client, usize)> = Vec::new();
    for whole in &wholes {
        let mut client = server.connect();
        let sent = client.send_some(&whole[..LEN - 1000]);
        halves.push((client, sent));
    }
    let mut other = server.connect();
    assert_eq!(other.set("small", b"1"), "STORED");
    assert_eq!(other.get("small").as_deref(), Some(&b"1"[..]));
    assert!(server.peak() < MEMORY + PROGRAM, "{} bytes resident", server.peak());
    // What the others leave behind is room for those that go on.
    drop(halves.split_off(8));
    for (n, ((client, sent), whole)) in halves.iter_mut().zip(&wholes).enumerate() {
        client.send(&whole[*sent..]);
        assert_eq!(client.line(), "STORED");
        assert_eq!(other.get(&format!("key{n}")), Some(value(n, LEN)));
    }
    assert_eq!(other.get("key8"), None, "it never came");
    assert!(server.peak() < MEMORY + PROGRAM, "{} bytes resident", server.peak());
}

/// Builds a library of `tests/preload` that is to be preloaded into a server.
fn preload(dir: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload").join(name);
    let library = dir.join(name).with_extension("so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    assert!(cc.status().expect("a C compiler").success());
    library
}

#[test]
fn sets_wait_for_a_slow_disk_and_cost_no_object() {
    // More than the memory holds, faster than the disk takes it. The objects are few and large: of
    // many small ones two may share a slot of the index.
    const LEN: usize = 128 << 10;
    const OBJECTS: usize = MEMORY as usize / LEN;
    let dir = tempfile::tempdir().unwrap();
    let slow = preload(dir.path(), "slow.c");
    let server = Server::start_with(
        &dir.path().join("data"),
        &["--io", "pread"],
        &[("LD_PRELOAD", slow.as_path())],
    );
    let mut client = server.connect();
    // `add` is carried out elsewhere than `set`; it finds the disk behind already.
    let parts = [("set", OBJECTS), ("add", OBJECTS / 3)];
    let keys = || parts.into_iter().flat_map(|(how, count)| (0..count).map(move |n| (how, n)));
    for (how, n) in keys() {
        let command = set(&format!("{how}{n}"), &value(n, LEN));
        client.send(&[how.as_bytes(), &command["set".len()..]].concat());
        assert_eq!(client.line(), "STORED");
    }
    for (how, n) in keys() {
        let found = client.get(&format!("{how}{n}"));
        assert!(found.is_some_and(|found| found == value(n, LEN)), "{how}{n}");
    }
}

/// A disk that takes as long for a flush as a test wants.
struct Disk {
    library: PathBuf,
    stalled: PathBuf,
}

impl Disk {
    fn new(dir: &Path) -> Disk {
        Disk { library: preload(dir, "stalled.c"), stalled: dir.join("stalled") }
    }

    /// While `act` runs no flush comes back.
    fn stall<T>(&self, act: impl FnOnce() -> T) -> T {
        std::fs::write(&self.stalled, "").unwrap();
        let result = act();
        std::fs::remove_file(&self.stalled).unwrap();
        result
    }
}

#[test]
fn a_flush_that_one_client_waits_for_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(dir.path());
    let options = ["--memcache-durability", "synced"];
    let preload = [("LD_PRELOAD", &*disk.library), ("STALLED", &*disk.stalled)];
    let server = Server::start_with(&dir.path().join("data"), &options, &preload);
    let (mut waits, mut other) = (server.connect(), server.connect());
    let too_large = format!("set gone 0 0 {}\r\n{}\r\n", 2 << 20, "x".repeat(2 << 20));
    for (removal, answer) in [
        ("delete gone\r\n", "DELETED"),
        (&too_large, "SERVER_ERROR object too large for cache"),
        ("flush_all\r\n", "OK"),
    ] {
        assert_eq!(waits.set("gone", b"1"), "STORED");
        assert_eq!(other.set("here", b"2"), "STORED");
        disk.stall(|| {
            waits.send(removal.as_bytes());
            while other.get("gone").is_some() {}
            if answer != "OK" {
                assert_eq!(other.get("here").as_deref(), Some(&b"2"[..]), "{answer}");
            }
            assert!(waits.has_nothing(), "{answer} before it is on disk");
        });
        assert_eq!(waits.line(), answer);
    }
    // Also the schedule of one to come.
    assert_eq!(other.set("here", b"3"), "STORED");
    disk.stall(|| {
        waits.send(b"get here\r\nflush_all 1000\r\nget here\r\n");
        assert_eq!((waits.line(), waits.line()), ("VALUE here 0 1".into(), "3".into()));
        assert_eq!(waits.line(), "END");
        assert_eq!(other.get("here").as_deref(), Some(&b"3"[..]));
        assert!(waits.has_nothing(), "scheduled before it is on disk");
    });
    assert_eq!(waits.line(), "OK");
    assert_eq!(waits.line(), "VALUE here 0 1");
}

#[test]
fn no_number_of_removals_that_wait_for_a_flush_holds_up_the_others() {
    // Together more than the engine keeps waiters for; each connection may have 256 answers
    // outstanding.
    const CONNECTIONS: usize = 260;
    const EACH: usize = 256;
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(dir.path());
    let preload = [("LD_PRELOAD", &*disk.library), ("STALLED", &*disk.stalled)];
    let options = ["--memcache-durability", "synced"];
    let server = Server::start_with(&dir.path().join("data"), &options, &preload);
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    let keys = |n: usize| (0..EACH).map(move |k| format!("{n}-{k}"));
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&keys(n).flat_map(|key| set(&key, b"1")).collect::<Vec<u8>>());
        // A set that waits for a slow disk for too long is refused: once more then.
        for key in keys(n).filter(|_| client.line() != "STORED").collect::<Vec<_>>() {
            while client.set(&key, b"1") != "STORED" {}
        }
    }
    let mut other = server.connect();
    assert_eq!(other.set("here", b"2"), "STORED");
    disk.stall(|| {
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(
                keys(n).map(|key| format!("delete {key}\r\n")).collect::<String>().as_bytes(),
            );
        }
        // They are carried out until too many wait; reads are answered as if there were none.
        while other.get("100-0").is_some() {}
        for _ in 0..100 {
            assert_eq!(other.get("here").as_deref(), Some(&b"2"[..]));
        }
    });
    for (n, client) in clients.iter_mut().enumerate() {
        (0..EACH).for_each(|k| assert_eq!(client.line(), "DELETED", "{n}-{k}"));
    }
}

/// A server over some flash files of which the last one hangs when a test wants.
struct Hanging {
    dir: tempfile::TempDir,
    disk: Disk,
    devices: Vec<PathBuf>,
}

impl Hanging {
    fn of(devices: usize) -> Hanging {
        let dir = tempfile::tempdir().unwrap();
        let library = preload(dir.path(), "hung.c");
        let disk = Disk { library, stalled: dir.path().join("stalled") };
        let devices = (0..devices).map(|n| dir.path().join(format!("flash{n}"))).collect();
        Hanging { dir, disk, devices }
    }

    fn start(&self) -> Server {
        let mut options =
            vec!["--io".into(), "pread".into(), "--drain-timeout".into(), "1s".into()];
        options.extend(["--memcache-durability".into(), "write-through".into()]);
        for device in &self.devices {
            options.extend(["--flash".into(), format!("{}:64MiB", device.display())]);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let hung = self.devices.last().expect("there is one");
        let variables =
            [("LD_PRELOAD", &*self.disk.library), ("STALLED", &*self.disk.stalled), ("HUNG", hung)];
        Server::start_with(&self.dir.path().join("data"), &options, &variables)
    }
}

/// Sets objects of which one segment holds few; those that were stored.
fn set_large(client: &mut Client, keys: std::ops::Range<usize>) -> Vec<usize> {
    keys.filter(|&n| client.set(&format!("key{n}"), &value(n, 50 << 10)) == "STORED").collect()
}

/// SIGTERM, and how it ends; a fault ends the test instead of hanging it.
fn stop(server: &mut Server) -> std::process::ExitStatus {
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    for _ in 0..1_200 {
        if let Some(status) = server.child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the stop does not end");
}

#[test]
fn a_device_that_hangs_costs_its_share_and_holds_up_neither_the_others_nor_the_stop() {
    for devices in [2, 1] {
        let hanging = Hanging::of(devices);
        let mut server = hanging.start();
        let before = set_large(&mut server.connect(), 0..400);
        assert!(before.len() > 390, "{} stored", before.len());
        assert!(stop(&mut server).success());
        // Nothing is in memory.
        let mut server = hanging.start();
        server.wait_loaded();
        let (mut client, mut waits) = (server.connect(), server.connect());
        let after = hanging.disk.stall(|| {
            // Lookups on their way to the device when it hangs.
            before.iter().for_each(|n| waits.send(format!("get key{n}\r\n").as_bytes()));
            let mut after = Vec::new();
            if devices > 1 {
                // Until it is left alone some wait for it, and are refused in the end.
                let mut next = 1_000;
                while after.len() < 20 {
                    after = set_large(&mut client, next..next + 20);
                    next += 20;
                }
                for n in &after {
                    assert_eq!(client.get(&format!("key{n}")), Some(value(*n, 50 << 10)));
                }
            } else {
                // Something is on its way to it.
                waits.send(&set("late", b"late"));
            }
            assert!(stop(&mut server).success(), "{devices} devices");
            after
        });
        let server = hanging.start();
        let mut client = server.connect();
        let found = |client: &mut Client, n: &usize| match client.get(&format!("key{n}")) {
            Some(found) => {
                assert!(found == value(*n, 50 << 10), "key{n} has another value");
                true
            }
            None => false,
        };
        server.wait_loaded();
        // Two keys may share a slot of the index.
        let kept = before.iter().filter(|n| found(&mut client, n)).count();
        assert!(kept + 2 >= before.len(), "{kept} of {} on {devices} devices", before.len());
        let kept = after.iter().filter(|n| found(&mut client, n)).count();
        assert!(kept + 1 >= after.len(), "{kept} of {} were set meanwhile", after.len());
    }
}
