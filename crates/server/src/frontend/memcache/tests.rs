//! The front end over devices that take as long for a read as a test wants.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use afterglow_engine::device::{AlignedBuf, DeviceConfig, DeviceId, DeviceInfo, DeviceSet};
use afterglow_engine::{Cache, Config, Durability};
use afterglow_memcache::{Decoded, Decoder, Parting, Reply, Request};
use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut};
use compio::io::{AsyncRead, AsyncWrite};
use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;

use super::connection::{self, Ends};
use super::outgoing::Outgoing;
use super::reactor_state::{Info, MemcacheReactorState};
use super::session::{MemcacheSession, Performed};
use super::shared::MemcacheShared;
use super::*;
use crate::reactor::{Driver, Reactors, ReactorsConfig};

mod again;
mod ahead;
mod changes;
mod clocks;
mod dumps;
mod hanging;
mod hold_ups;
mod large;
mod one_write;
mod rejoin;
mod removals;
mod room;
mod watches;

/// Only so that a fault ends a test instead of hanging it.
const TIMEOUT: Duration = Duration::from_secs(60);

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
    /// So many that have come may be given back meanwhile.
    may_end: usize,
    /// Every read fails.
    broken: bool,
}

impl Slow {
    /// Waits until so many reads have come, of which none has been given back.
    fn holds(&self, reads: usize) {
        let mut state = self.state.lock();
        let few = |state: &mut Held| state.begun < reads;
        let timed_out = self.changed.wait_while_for(&mut state, few, TIMEOUT).timed_out();
        assert!(!timed_out && !state.open, "{} of {reads} reads are under way", state.begun);
    }

    /// Reads come back at once, as errors or as they are.
    fn fail(&self, broken: bool) {
        *self.state.lock() = Held { open: true, broken, ..Held::default() };
        self.changed.notify_all();
    }

    /// One of the reads that have come is given back.
    fn release_one(&self) {
        self.state.lock().may_end += 1;
        self.changed.notify_all();
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
        self.changed.wait_while(&mut state, |state| !state.open && state.may_end == 0);
        state.may_end = state.may_end.saturating_sub(1);
        let broken = state.broken;
        drop(state);
        if broken {
            return Err(ErrorKind::Other.into());
        }
        self.devices.read_at(device, offset, len)
    }

    fn raw_fd(&self, _: DeviceId) -> Option<RawFd> {
        None
    }
}

/// A front end of one reactor, whose objects `cold0`, `cold1`, ... are on flash alone and `warm` is
/// in DRAM.
struct Opened {
    front_end: MemcacheFrontEnd,
    slow: Arc<Slow>,
    cache: Arc<Cache>,
    reactors: Reactors,
    dir: TempDir,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.slow.release();
        // A thread that panics must not wake a task: what failed would not be shown.
        if !std::thread::panicking() {
            self.front_end.drain(TIMEOUT);
            self.reactors.shutdown();
        }
    }
}

fn config(dir: &TempDir) -> MemcacheFrontEndConfig {
    MemcacheFrontEndConfig {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        unix: None,
        tls: None,
        users: None,
        limits: MemcacheLimits { connections: 64, idle_timeout: None, memory: 32 << 20 },
        max_item: 1 << 15,
        parting: Parting { above: 1 << 15, part: 4096 },
        buffers: 1 << 20,
        flush_enabled: true,
        dump_enabled: true,
        watch_enabled: true,
        rejoin_grace: None,
        durability: Durability::WriteBack,
        data_dir: dir.path().to_owned(),
        metrics: Arc::default(),
    }
}

impl Opened {
    fn new(cold: usize) -> Opened {
        Opened::with_buffers(cold, 1 << 20)
    }

    /// With so much memory for what is under way.
    fn with_buffers(cold: usize, buffers: usize) -> Opened {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let device = DeviceConfig { path: dir.path().join("flash"), size: 32 << 20 };
            let mut config = Config::new(dir.path(), vec![device]);
            (config.memory, config.journal_size) = (32 << 20, 1 << 20);
            Arc::new(Cache::open(config).unwrap())
        };
        let start =
            || Reactors::start(&ReactorsConfig { threads: Some(1), driver: Driver::Auto }).unwrap();
        let (cache, reactors) = (open(), start());
        let front_end = MemcacheFrontEnd::start(config(&dir), &cache, &reactors).unwrap();
        let mut client = connect(&front_end);
        for n in 0..cold {
            client.send(&format!("set cold{n} 0 0 1000\r\n{}\r\n", value(n)));
            assert_eq!(client.line(), "STORED");
        }
        drop(client);
        assert!(front_end.drain(TIMEOUT));
        // What a clean stop has written out is on flash, and nowhere else.
        cache.close();
        reactors.shutdown();
        drop((front_end, cache));
        let (cache, reactors) = (open(), start());
        while cache.stats().loading {
            std::thread::yield_now();
        }
        let slow =
            Slow { devices: cache.devices(), state: Mutex::default(), changed: Condvar::default() };
        let slow = Arc::new(slow);
        let config = MemcacheFrontEndConfig { buffers, ..config(&dir) };
        let front_end =
            MemcacheFrontEnd::start_over(slow.clone(), config, &cache, &reactors).unwrap();
        let mut client = connect(&front_end);
        client.send("set warm 0 0 2\r\nhi\r\n");
        assert_eq!(client.line(), "STORED");
        Opened { front_end, slow, cache, reactors, dir }
    }
}

fn value(n: usize) -> String {
    format!("{n:04}").repeat(250)
}

fn connect(front_end: &MemcacheFrontEnd) -> Client {
    let stream = TcpStream::connect(front_end.address().unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
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
            if let Some(value) = line.strip_prefix("STAT ").and_then(|rest| rest.strip_prefix(name))
            {
                found = value.trim().parse().ok().or(found);
            }
        }
    }

    fn has_nothing(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let nothing =
            matches!(self.0.fill_buf(), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.0.get_ref().set_nonblocking(false).unwrap();
        nothing
    }
}

#[test]
fn a_slow_read_of_flash_delays_no_hit_of_another_connection_and_keeps_the_order_of_its_own() {
    let opened = Opened::new(1);
    let (mut waits, mut other) = (connect(&opened.front_end), connect(&opened.front_end));
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
    let mut client = connect(&opened.front_end);
    let keys: Vec<String> = (0..20).map(|n| format!("cold{n}")).collect();
    let single: String = (20..40).map(|n| format!("get cold{n}\r\n")).collect();
    client.send(&format!("get {}\r\n{single}", keys.join(" ")));
    opened.slow.holds(40);
    let mut other = connect(&opened.front_end);
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

#[test]
fn requests_are_counted_by_kind_and_timed_by_the_way_they_are_answered() {
    use crate::metrics::{Path, RequestKind};
    let opened = Opened::new(3);
    let front_end = opened.front_end.front_end.clone();
    let metrics = opened
        .reactors
        .block_on(0, move || async move { MemcacheReactorState::of(&front_end).metrics.clone() })
        .unwrap();
    let mut client = connect(&opened.front_end);
    opened.slow.release();
    let kinds =
        [RequestKind::Get, RequestKind::Store, RequestKind::Delete, RequestKind::Arithmetic];
    let ways = [Path::Dram, Path::Flash, Path::Miss, Path::Write, Path::Local];
    let figures = || {
        let kinds = kinds.map(|kind| metrics.requests.of(kind).get());
        (kinds, ways.map(|way| metrics.latency.of(way).count()))
    };
    let (kinds_before, ways_before) = figures();
    client.send("set a 0 0 1\r\n1\r\nget a none cold0\r\nget cold1\r\nincr a 1\r\ngat 9 none\r\ngat 9 a\r\n");
    client.send("mn\r\nnonsense\r\nflush_all\r\nget cold2\r\ndelete a\r\nversion\r\n");
    while !client.line().starts_with("VERSION") {}
    // What is before the last answer is counted once the next request is carried out.
    client.send("mn\r\n");
    client.line();
    let (kinds_after, ways_after) = figures();
    let grown = |after: &[u64], before: &[u64]| -> Vec<u64> {
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    };
    assert_eq!(
        grown(&kinds_after, &kinds_before),
        [5, 1, 1, 1],
        "gets, stores, deletes, arithmetic"
    );
    // Each key of a multi-get is timed; that of the last `mn` may not be known yet.
    assert_eq!(
        grown(&ways_after[..4], &ways_before[..4]),
        [1, 2, 3, 5],
        "memory, flash, misses, writes"
    );
    assert!(ways_after[4] - ways_before[4] >= 3);
}

#[test]
fn a_limit_of_memory_is_kept_within_what_the_cache_was_opened_with() {
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    let capacity = |client: &mut Client| client.stat("limit_maxbytes");
    let full = capacity(&mut client);
    let failed = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    for (limit, answer, less) in
        [(28, "OK", 4), (33, failed, 4), (8, "OK", 24), (31, "OK", 1), (32, "OK", 0)]
    {
        client.send(&format!("cache_memlimit {limit}\r\n"));
        assert_eq!(client.line(), answer, "{limit}");
        // A share of it may be lost to rounding.
        let now = capacity(&mut client) + (less << 20);
        assert!(now <= full && full - now < 4096, "{limit}: {now} of {full}");
    }
    client.send("cache_memlimit 20 noreply\r\nget warm\r\n");
    assert_eq!(client.lines(), ["VALUE warm 0 2", "hi", "END"]);
    // What no longer fits is evicted: most of it is on flash, and the rest is counted.
    opened.slow.release();
    for n in 0..8_000 {
        client.send(&format!("set o{n} 0 0 1000 noreply\r\n{}\r\n", value(n)));
    }
    client.send("cache_memlimit 8\r\n");
    assert_eq!(client.line(), "OK");
    let mut missing = 0;
    for n in 0..8_000 {
        client.send(&format!("get o{n}\r\n"));
        if client.line() == "END" {
            missing += 1;
            continue;
        }
        assert_eq!(client.lines(), [value(n), "END".into()]);
    }
    let (evicted, on_flash) = (client.stat("evictions"), client.stat("get_extstore"));
    // Of keys whose hashes agree in tag and place the later one wins, and nobody can count that:
    // one in some thousands.
    assert!(missing <= evicted + 8 && on_flash > 1_000, "{missing} {evicted} {on_flash}");
}

#[test]
fn a_connection_with_much_to_do_lets_others_have_their_turn() {
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    client.send(&"mn\r\n".repeat(16));
    assert_eq!(client.lines(), ["MN"; 16]);
    assert_eq!(client.stat("conn_yields"), 0, "a pipeline of few is done at once");
    client.send(&"mn\r\n".repeat(400));
    for _ in 0..400 {
        assert_eq!(client.line(), "MN");
    }
    assert!(client.stat("conn_yields") > 0);
}

#[test]
fn a_reset_takes_what_was_counted_out_of_stats_and_leaves_the_metrics() {
    let opened = Opened::new(1);
    let mut client = connect(&opened.front_end);
    opened.slow.release();
    client.send("get warm none cold0\r\nincr warm 1\r\ndelete none\r\nversion\r\n");
    while !client.line().starts_with("VERSION") {}
    let sum = |front_end: &MemcacheShared| front_end.config.metrics.memcache_total().cmd_get.get();
    let (before, open) = (sum(&opened.front_end.front_end), client.stat("curr_connections"));
    assert!(before == 3 && open >= 1);
    for name in
        ["cmd_get", "cmd_set", "get_extstore", "total_items", "total_connections", "bytes_written"]
    {
        assert!(client.stat(name) > 0, "{name}");
    }
    let kept =
        ["curr_items", "limit_maxbytes", "extstore_objects_read"].map(|name| client.stat(name));
    client.send("stats reset\r\n");
    assert_eq!(client.line(), "RESET");
    for name in [
        "cmd_get",
        "cmd_set",
        "get_hits",
        "get_misses",
        "get_extstore",
        "delete_misses",
        "total_items",
    ] {
        assert_eq!(client.stat(name), 0, "{name}");
    }
    assert_eq!(client.stat("total_connections"), 0);
    assert_eq!(client.stat("curr_connections"), open, "what is there now is not reset");
    assert_eq!(
        ["curr_items", "limit_maxbytes", "extstore_objects_read"].map(|name| client.stat(name)),
        kept
    );
    client.send("get warm\r\n");
    let _: [String; 3] = client.lines();
    assert_eq!((client.stat("cmd_get"), client.stat("get_hits")), (1, 1));
    assert_eq!(sum(&opened.front_end.front_end), before + 1, "the metrics only grow");
}

#[test]
fn a_get_that_waits_for_room_is_no_miss() {
    let opened = Opened::new(40);
    let mut client = connect(&opened.front_end);
    // The first waits for flash, and what is behind it fills the room there is before the others
    // are come to.
    let large = "x".repeat(8_000);
    client.send(&format!("set large 0 0 8000\r\n{large}\r\n"));
    assert_eq!(client.line(), "STORED");
    let cold: Vec<String> = (1..40).map(|n| format!("cold{n}")).collect();
    let keys = format!("cold0{} {}", " large".repeat(130), cold.join(" "));
    client.send(&format!("get {keys}\r\n"));
    opened.slow.holds(1);
    opened.slow.release();
    for key in keys.split(' ') {
        assert!(client.line().starts_with(&format!("VALUE {key} ")));
        client.line();
    }
    assert_eq!(client.line(), "END");
    assert_eq!((client.stat("get_oom_extstore"), client.stat("get_misses")), (0, 0));
}

#[test]
fn a_multi_get_beyond_the_memory_for_answers_waits_for_its_client() {
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    let large = "x".repeat(8_000);
    client.send(&format!("set large 0 0 8000\r\n{large}\r\n"));
    assert_eq!(client.line(), "STORED");
    client.send(&format!("get{}\r\n", " large".repeat(2_000)));
    for _ in 0..2_000 {
        assert_eq!(client.lines(), ["VALUE large 0 8000", large.as_str()]);
    }
    assert_eq!(client.line(), "END");
}

#[test]
fn a_removal_that_tells_nothing_reads_nothing() {
    let opened = Opened::new(2);
    let mut client = connect(&opened.front_end);
    // No read comes back, so that a removal that waits for one would hold up what is behind it.
    client.send("delete cold0 noreply\r\ndelete none noreply\r\nget cold0\r\nmn\r\n");
    assert_eq!(client.lines(), ["END", "MN"]);
    assert_eq!((client.stat("delete_hits"), client.stat("delete_misses")), (1, 1));
    assert_eq!(opened.slow.state.lock().begun, 0);
    client.send("delete cold1\r\n");
    opened.slow.holds(1);
    opened.slow.release();
    assert_eq!(client.line(), "DELETED");
}

/// As long as an object under a key of one byte may be in [`config`].
const LONGEST: usize = (1 << 15) - afterglow_memcache::ITEM_OVERHEAD - 1;

#[test]
fn what_would_grow_too_large_is_not_stored_and_stays() {
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    let (half, rest) = ("o".repeat(20_000), LONGEST - 20_000);
    client.send(&format!("set k 7 0 20000\r\n{half}\r\n"));
    assert_eq!(client.line(), "STORED");
    let (fits, beyond) = ("x".repeat(rest), "x".repeat(rest + 1));
    for (verb, answer) in
        [("append k 0 0", "NOT_STORED"), ("prepend k 0 0", "NOT_STORED"), ("ms k", "NS")]
    {
        let mode = if verb == "ms k" { " MA" } else { "" };
        client.send(&format!("{verb} {}{mode}\r\n{beyond}\r\nget k\r\n", rest + 1));
        assert_eq!(client.lines(), [answer, "VALUE k 7 20000", half.as_str(), "END"], "{verb}");
    }
    client.send(&format!("append k 0 0 {rest}\r\n{fits}\r\nget k\r\n"));
    let whole = format!("{half}{fits}");
    assert_eq!(client.lines(), ["STORED", &format!("VALUE k 7 {LONGEST}"), &whole, "END"]);
}

#[test]
fn a_list_of_connections_waits_for_room_as_any_answer() {
    let opened = Opened::new(0);
    let front_end = opened.front_end.front_end.clone();
    let performed = opened.reactors.block_on(0, move || async move {
        front_end.connections.fetch_add(10_000, Ordering::AcqRel);
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = answers::Answers::new(reactor_state.budget.share(), 0);
        let mut session = MemcacheSession::new(reactor_state, answers);
        let ask = || Request::Stats { argument: b"conns", reply: Reply::Text { quiet: false } };
        let performed = [session.perform(ask()), session.perform(ask())];
        front_end.connections.fetch_sub(10_000, Ordering::AcqRel);
        performed
    });
    let [first, second] = performed.expect("the reactor runs");
    assert!(matches!(first, Performed::Done));
    assert!(matches!(second, Performed::Blocked), "a second one of megabytes");
}

#[test]
fn a_connection_that_rests_keeps_no_memory_for_answers() {
    let opened = Opened::new(40);
    let mut client = connect(&opened.front_end);
    opened.slow.fail(false);
    let keys: Vec<String> = (0..40).map(|n| format!("cold{n}")).collect();
    client.send(&format!("get {}\r\n", keys.join(" ")));
    while client.line() != "END" {}
    let kept = || {
        let front_end = opened.front_end.front_end.clone();
        let kept = move || async move {
            let connections = MemcacheReactorState::of(&front_end).connections();
            connections.iter().map(|info| info.answers.capacity()).sum::<usize>()
        };
        opened.reactors.block_on(0, kept).expect("the reactor runs")
    };
    let until = Instant::now() + TIMEOUT;
    while kept() > 0 {
        assert!(Instant::now() < until, "{} bytes are kept", kept());
        std::thread::yield_now();
    }
    client.send("get warm\r\n");
    assert_eq!(client.lines(), ["VALUE warm 0 2", "hi", "END"]);
}
