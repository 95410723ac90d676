//! The door over devices that take as long for a read as a test wants, and over a connection whose writes are counted.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc;

use afterglow_engine::Config;
use afterglow_engine::disk::{AlignedBuf, DeviceConfig, DeviceId, DeviceInfo};
use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut};
use compio::io::{AsyncRead, AsyncWrite};
use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;

use super::connection::Ends;
use super::*;
use crate::reactor::{Driver, ReactorsConfig};

/// Only so that a fault ends a test instead of hanging it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Devices that give nothing back before a test lets them.
struct Slow {
    devices: Arc<dyn DeviceSet>,
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    /// Reads that have come.
    begun: usize,
    open: bool,
}

impl Slow {
    /// Waits until so many reads have come, of which none has been given back.
    fn holds(&self, reads: usize) {
        let mut state = self.state.lock();
        let few = |state: &mut Held| state.begun < reads;
        let timed_out = self.changed.wait_while_for(&mut state, few, PATIENCE).timed_out();
        assert!(!timed_out && !state.open, "{} of {reads} reads are under way", state.begun);
    }

    fn release(&self) {
        self.state.lock().open = true;
        self.changed.notify_all();
    }
}

impl DeviceSet for Slow {
    fn infos(&self) -> &[DeviceInfo] {
        self.devices.infos()
    }

    fn read_at(&self, device: DeviceId, offset: u64, len: u32) -> io::Result<AlignedBuf> {
        let mut state = self.state.lock();
        state.begun += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| !state.open);
        drop(state);
        self.devices.read_at(device, offset, len)
    }

    fn raw_fd(&self, _: DeviceId) -> Option<RawFd> {
        None
    }
}

/// A door of one reactor, whose objects `cold0`, `cold1`, ... are on flash alone and `warm` is in DRAM.
struct Opened {
    door: MemcacheDoor,
    slow: Arc<Slow>,
    reactors: Reactors,
    _dir: TempDir,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.slow.release();
        self.door.drain(PATIENCE);
        self.reactors.shutdown();
    }
}

fn config(dir: &TempDir) -> MemcacheDoorConfig {
    MemcacheDoorConfig {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        unix: None,
        tls: None,
        users: None,
        max_connections: 64,
        idle_timeout: None,
        max_item: 1 << 20,
        buffers: 1 << 20,
        durability: Durability::WriteBack,
        data_dir: dir.path().to_owned(),
        metrics: Arc::default(),
    }
}

impl Opened {
    fn new(cold: usize) -> Opened {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let device = DeviceConfig { path: dir.path().join("flash"), size: 32 << 20 };
            let mut config = Config::new(dir.path(), vec![device]);
            (config.memory, config.journal_size) = (32 << 20, 1 << 20);
            Arc::new(Cache::open(config).unwrap())
        };
        let start = || Reactors::start(&ReactorsConfig { threads: Some(1), driver: Driver::Auto }).unwrap();
        let (cache, reactors) = (open(), start());
        let door = MemcacheDoor::start(config(&dir), &cache, &reactors).unwrap();
        let mut client = connect(&door);
        for n in 0..cold {
            client.send(&format!("set cold{n} 0 0 1000\r\n{}\r\n", value(n)));
            assert_eq!(client.line(), "STORED");
        }
        drop(client);
        assert!(door.drain(PATIENCE));
        // What a clean stop has written out is on flash, and nowhere else.
        cache.close();
        reactors.shutdown();
        drop((door, cache));
        let (cache, reactors) = (open(), start());
        while cache.stats().loading {
            std::thread::yield_now();
        }
        let slow = Slow { devices: cache.devices(), state: Mutex::default(), changed: Condvar::default() };
        let slow = Arc::new(slow);
        let door = MemcacheDoor::start_over(slow.clone(), config(&dir), &cache, &reactors).unwrap();
        let mut client = connect(&door);
        client.send("set warm 0 0 2\r\nhi\r\n");
        assert_eq!(client.line(), "STORED");
        Opened { door, slow, reactors, _dir: dir }
    }
}

fn value(n: usize) -> String {
    format!("{n:04}").repeat(250)
}

fn connect(door: &MemcacheDoor) -> Client {
    let stream = TcpStream::connect(door.address().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client(BufReader::new(stream))
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn lines<const N: usize>(&mut self) -> [String; N] {
        std::array::from_fn(|_| self.line())
    }

    /// A figure of `stats`.
    fn stat(&mut self, name: &str) -> u64 {
        self.send("stats\r\n");
        let mut found = None;
        loop {
            let line = self.line();
            if line == "END" {
                return found.unwrap_or_else(|| panic!("no `{name}`"));
            }
            if let Some(value) = line.strip_prefix("STAT ").and_then(|rest| rest.strip_prefix(name)) {
                found = value.trim().parse().ok().or(found);
            }
        }
    }

    fn has_nothing(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let nothing = matches!(self.0.fill_buf(), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.0.get_ref().set_nonblocking(false).unwrap();
        nothing
    }
}

#[test]
fn a_slow_read_of_flash_delays_no_hit_of_another_connection_and_keeps_the_order_of_its_own() {
    let opened = Opened::new(1);
    let (mut waits, mut other) = (connect(&opened.door), connect(&opened.door));
    waits.send("get cold0\r\nget warm\r\nset warm 0 0 3\r\nnew\r\nmn\r\n");
    opened.slow.holds(1);
    // What came behind the read is done, so that others see it; its answers wait for their turn.
    while {
        other.send("get warm\r\n");
        other.lines() != ["VALUE warm 0 3", "new", "END"]
    } {}
    assert!(waits.has_nothing(), "an answer before those of earlier requests");
    opened.slow.release();
    assert_eq!(waits.lines(), ["VALUE cold0 0 1000".into(), value(0), "END".into()]);
    assert_eq!(waits.lines(), ["VALUE warm 0 2", "hi", "END", "STORED", "MN"]);
}

#[test]
fn the_reads_of_a_multi_get_and_of_pipelined_gets_are_under_way_together() {
    let opened = Opened::new(40);
    let mut client = connect(&opened.door);
    let keys: Vec<String> = (0..20).map(|n| format!("cold{n}")).collect();
    let single: String = (20..40).map(|n| format!("get cold{n}\r\n")).collect();
    client.send(&format!("get {}\r\n{single}", keys.join(" ")));
    opened.slow.holds(40);
    let mut other = connect(&opened.door);
    assert_eq!(other.stat("extstore_io_queue"), 40);
    assert_eq!(other.stat("get_extstore"), 0);
    opened.slow.release();
    for n in 0..40 {
        assert_eq!(client.lines(), [format!("VALUE cold{n} 0 1000"), value(n)]);
        if n >= 19 {
            assert_eq!(client.line(), "END");
        }
    }
    assert_eq!((other.stat("extstore_io_queue"), other.stat("get_extstore")), (0, 40));
    assert!(other.stat("extstore_bytes_read") > 40 * 1000);
}

/// A connection that counts what it is asked to write.
#[derive(Clone)]
struct Counted {
    stream: compio::net::UnixStream,
    writes: Rc<Cell<usize>>,
}

impl AsFd for Counted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsyncRead for Counted {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.stream.read(buf).await
    }
}

impl AsyncWrite for Counted {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.writes.set(self.writes.get() + 1);
        self.stream.write(buf).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

#[test]
fn pipelined_requests_are_answered_with_one_write() {
    let opened = Opened::new(0);
    let (mut client, server) = UnixStream::pair().unwrap();
    // Little enough for one read, so that all of it is there at once.
    client.write_all("get warm\r\n".repeat(400).as_bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (door, (tell, told)) = (opened.door.door.clone(), mpsc::channel());
    opened.reactors.spawn_on(0, move || async move {
        let stream = compio::net::UnixStream::from_std(server).unwrap();
        let stream = Counted { stream, writes: Rc::default() };
        let writes = stream.writes.clone();
        let ends = Ends { peer: String::new(), listener: "unix".into(), tls: false };
        connection::serve(door, stream, ends, ()).await;
        tell.send(writes.get()).unwrap();
    });
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "VALUE warm 0 2\r\nhi\r\nEND\r\n".repeat(400));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(1), "writes for 400 answers");
}
