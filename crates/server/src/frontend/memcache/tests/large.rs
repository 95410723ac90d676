//! Values in parts, over real files: every command, parts that go, clients that go, and a random
//! run with restarts against a model.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;

use afterglow_engine::{Namespace, PutOptions, PutOutcome};
use uuid::Uuid;

use super::super::head::Head;
use super::super::parts::{self, PARTS_NAMESPACE};
use super::*;
use crate::tls::ServerTls;

/// A front end of one reactor whose values of more than 32 KiB are in parts of 4 KiB.
pub(super) struct Large {
    dir: TempDir,
    durability: Durability,
    /// Bytes of a segment, of an object and of a part.
    pub(super) segment: u32,
    pub(super) max_item: usize,
    pub(super) part: usize,
    /// Objects that count more have their value in parts.
    pub(super) above: usize,
    pub(super) idle: Option<Duration>,
    /// Bytes per second that may be written to flash.
    write_budget: Option<u64>,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) open: Option<(Arc<Cache>, MemcacheFrontEnd, Reactors)>,
}

impl Large {
    pub(super) fn new(durability: Durability) -> Self {
        let mut large = Self::unopened(durability);
        large.start();
        large
    }

    pub(super) fn unopened(durability: Durability) -> Self {
        let (dir, open) = (tempfile::tempdir().unwrap(), None);
        let (segment, max_item, part) = (256 << 10, 1 << 20, 4096);
        let (above, idle, write_budget, tls) = (1 << 15, None, None, None);
        Large { dir, durability, segment, max_item, part, above, idle, write_budget, tls, open }
    }

    pub(super) fn start(&mut self) {
        let device = DeviceConfig { path: self.dir.path().join("flash"), size: 64 << 20 };
        let mut engine = Config::new(self.dir.path(), vec![device]);
        (engine.memory, engine.journal_size) = (32 << 20, 1 << 20);
        (engine.segment_size, engine.write_budget) = (Some(self.segment), self.write_budget);
        let cache = Arc::new(Cache::open(engine).unwrap());
        while cache.stats().loading {
            std::thread::yield_now();
        }
        let reactors =
            Reactors::start(&ReactorsConfig { threads: Some(1), driver: Driver::Auto }).unwrap();
        let config = MemcacheFrontEndConfig {
            max_item: self.max_item,
            parting: Parting { above: self.above, part: self.part },
            limits: MemcacheLimits { idle_timeout: self.idle, ..config(&self.dir).limits },
            durability: self.durability,
            tls: self.tls.clone(),
            ..config(&self.dir)
        };
        let front_end = MemcacheFrontEnd::start(config, &cache, &reactors).unwrap();
        self.open = Some((cache, front_end, reactors));
    }

    /// Ends it, as the process does that is asked to, or as one that dies.
    pub(super) fn stop(&mut self, clean: bool) {
        let Some((cache, front_end, reactors)) = self.open.take() else { return };
        assert!(front_end.drain(TIMEOUT));
        if clean {
            cache.close();
        }
        reactors.shutdown();
        drop((front_end, cache));
    }

    pub(super) fn connect(&self) -> Client {
        connect(&self.open.as_ref().unwrap().1)
    }

    /// Flips a bit of these bytes where they lie on flash, with the cache closed.
    fn damage(&mut self, bytes: &[u8]) {
        self.stop(true);
        let path = self.dir.path().join("flash");
        let flash = std::fs::read(&path).unwrap();
        let place = flash.windows(bytes.len()).position(|found| found == bytes);
        let place = place.expect("all of it is on flash");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[flash[place] ^ 1], place as u64).unwrap();
        drop(file);
        self.start();
    }

    /// Has it go on with another limit of what may be written.
    fn may_write(&mut self, budget: Option<u64>) {
        self.stop(true);
        self.write_budget = budget;
        self.start();
    }

    /// Bytes that its connections hold.
    fn held(&self) -> usize {
        let (_, front_end, reactors) = self.open.as_ref().unwrap();
        let front_end = front_end.front_end.clone();
        let used = move || async move { MemcacheReactorState::of(&front_end).budget.used() };
        reactors.block_on(0, used).expect("the reactor runs")
    }

    /// Takes a part of each value, as if its segment had been reclaimed.
    fn evict_a_part(&self) {
        for key in self.keys_of_parts(1) {
            self.parts().remove(&key);
        }
    }

    /// The keys of all parts of this number.
    fn keys_of_parts(&self, number: u32) -> Vec<Vec<u8>> {
        let (mut keys, mut found) = (self.parts().keys(), Vec::new());
        loop {
            while let Some(key) = keys.pop() {
                if key[16..] == number.to_le_bytes() {
                    found.push(key);
                }
            }
            match keys.advance() {
                Some(looked) => looked.unwrap(),
                None => return found,
            }
        }
    }

    /// The namespace of the parts.
    fn parts(&self) -> Namespace {
        let options = parts::options(self.durability);
        self.open.as_ref().unwrap().0.namespace(PARTS_NAMESPACE, options).unwrap()
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop(true);
        }
    }
}

/// A value that says in each of its parts which it is.
fn value_of(generation: u64, len: usize) -> Vec<u8> {
    format!("{generation:016x}").into_bytes().into_iter().cycle().take(len).collect()
}

impl Client {
    pub(super) fn set(&mut self, command: &str, value: &[u8]) -> String {
        self.send(&format!("{command}\r\n"));
        self.0.get_mut().write_all(value).unwrap();
        self.send("\r\n");
        self.line()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes.split_off(len), b"\r\n");
        bytes
    }

    /// What `get` finds.
    pub(super) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(&format!("get {key}\r\n"));
        let line = self.line();
        if line == "END" {
            return None;
        }
        let len = line.rsplit(' ').next().unwrap().parse().unwrap();
        let value = self.bytes(len);
        assert_eq!(self.line(), "END");
        Some(value)
    }

    pub(super) fn ask(&mut self, line: &str) -> String {
        self.send(&format!("{line}\r\n"));
        self.line()
    }
}

#[test]
fn every_command_takes_a_value_in_parts_as_any_other() {
    for durability in [Durability::WriteBack, Durability::WriteThrough, Durability::Synced] {
        let large = Large::new(durability);
        let mut client = large.connect();
        let (old, new) = (value_of(1, 300_001), value_of(2, 200_000));
        assert_eq!(client.set("set k 7 0 300001", &old), "STORED");
        assert_eq!(client.get("k"), Some(old.clone()));
        assert_eq!(client.ask("mg k s f t"), "HD s300001 f7 t-1");
        assert_eq!(client.ask("mg k v s"), "VA 300001 s300001");
        assert_eq!(client.bytes(300_001), old);
        assert!(client.ask("me k").contains("size=300065"));
        assert_eq!(client.ask("touch k 1000"), "TOUCHED");
        client.send("gat 2000 k\r\n");
        assert_eq!(client.line(), "VALUE k 7 300001");
        assert_eq!(client.bytes(300_001), old);
        assert_eq!(client.line(), "END");
        assert_eq!(client.ask("mg k T3000"), "HD");
        assert!(matches!(&*client.ask("mg k t"), "HD t3000" | "HD t2999"));
        assert_eq!(
            client.ask("incr k 1"),
            "CLIENT_ERROR cannot increment or decrement non-numeric value"
        );
        assert_eq!(client.set("add k 0 0 200000", &new), "NOT_STORED");
        assert_eq!(client.get("k"), Some(old.clone()));
        // Short to long, long and short, long and long, each way round.
        for (name, text) in [("append", &b"!"[..]), ("prepend", b"?"), ("append", &new)] {
            assert_eq!(client.set(&format!("{name} k 0 0 {}", text.len()), text), "STORED");
        }
        let joined = [b"?", &old[..], b"!", &new].concat();
        assert_eq!(client.get("k"), Some(joined.clone()));
        assert_eq!(client.ask("mg k f"), "HD f7");
        assert_eq!(client.set("append k 0 0 700000", &vec![1; 700_000]), "NOT_STORED");
        assert_eq!(client.set("set s 0 0 5", b"start"), "STORED");
        assert_eq!(client.set("append s 0 0 200000", &new), "STORED");
        assert_eq!(client.get("s"), Some([b"start", &new[..]].concat()));
        assert_eq!(client.set("set w 0 0 30000", &new[..30_000]), "STORED");
        assert_eq!(client.set("prepend w 0 0 30000", &old[..30_000]), "STORED");
        assert_eq!(client.get("w"), Some([&old[..30_000], &new[..30_000]].concat()));
        // Tokens, and values that are stale.
        let token = client.ask("mg k c").replace("HD c", "");
        assert_eq!(client.set("cas k 0 0 200000 1", &new), "EXISTS");
        assert_eq!(client.set(&format!("cas k 0 0 200000 {token}"), &new), "STORED");
        assert_eq!(client.ask("md k I"), "HD");
        assert_eq!(client.get("k"), Some(new.clone()), "a plain get reads what is stale");
        assert_eq!(client.ask("mg k v"), "VA 200000 X W");
        assert_eq!(client.bytes(200_000), new);
        assert_eq!(client.ask("mg k s"), "HD s200000 Z X");
        assert_eq!(client.ask("md k x"), "HD");
        assert_eq!(client.get("k"), Some(Vec::new()));
        assert_eq!(client.set("ms k 300001", &old), "HD");
        assert_eq!(client.set("replace k 0 0 200000", &new), "STORED");
        in_a_row(&mut client, &old, &new);
    }
}

/// Many at once, and what is not told; `s`, `k` and `w` are there.
fn in_a_row(client: &mut Client, old: &[u8], new: &[u8]) {
    client.send("get s k missing w\r\n");
    for (key, len) in [("s", 200_005), ("k", 200_000), ("w", 60_000)] {
        assert_eq!(client.line(), format!("VALUE {key} 0 {len}"));
        client.bytes(len);
    }
    assert_eq!(client.line(), "END");
    client.send("delete s noreply\r\nset q 0 0 200000 noreply\r\n");
    client.0.get_mut().write_all(new).unwrap();
    client.send("\r\n");
    assert_eq!((client.get("s"), client.get("q")), (None, Some(new.to_vec())));
    assert_eq!(client.set("set q 0 0 1", b"1"), "STORED");
    assert_eq!(client.get("q"), Some(b"1".to_vec()));
    assert_eq!(client.set("set q 0 0 300001", old), "STORED");
    assert_eq!(client.ask("delete q"), "DELETED");
    client.send("set b 0 0 200000\r\n");
    client.0.get_mut().write_all(new).unwrap();
    client.send("xx");
    assert_eq!(client.line(), "CLIENT_ERROR bad data chunk");
    assert_eq!((client.get("b"), client.get("q")), (None, None));
    assert_eq!(client.set("set k 0 0 1048576", &[1]), "SERVER_ERROR object too large for cache");
    client.0.get_mut().write_all(&vec![1; 1_048_575]).unwrap();
    assert_eq!(client.get("w").map(|value| value.len()), Some(60_000));
    assert_eq!(client.ask("flush_all"), "OK");
    assert_eq!(client.get("w"), None);
}

#[test]
fn a_value_one_of_whose_parts_is_gone_is_a_miss_and_its_head_goes() {
    let large = Large::new(Durability::WriteBack);
    let mut client = large.connect();
    let value = value_of(1, 100_000);
    for (ask, answer) in [
        ("get k", "END"),
        ("mg k s", "EN"),
        ("mg k v", "EN"),
        ("touch k 100", "NOT_FOUND"),
        ("gat 100 k", "END"),
        ("incr k 1", "NOT_FOUND"),
    ] {
        assert_eq!(client.set("set k 0 0 100000", &value), "STORED");
        large.evict_a_part();
        assert_eq!(client.ask(ask), answer, "{ask}");
        assert_eq!(client.ask("me k"), "EN", "{ask} leaves the head");
    }
    for (name, answer) in [("add", "STORED"), ("append", "NOT_STORED"), ("append", "NOT_STORED")] {
        assert_eq!(client.set("set k 0 0 100000", &value), "STORED");
        large.evict_a_part();
        assert_eq!(client.set(&format!("{name} k 0 0 1"), b"1"), answer);
    }
}

/// A value in which no line comes twice.
pub(super) fn lines(count: usize) -> Vec<u8> {
    (0..count).flat_map(|line| format!("{line:016}").into_bytes()).collect()
}

#[test]
fn a_part_that_cannot_be_read_ends_the_connection_before_a_wrong_byte() {
    let mut large = Large::new(Durability::WriteBack);
    let value = lines(25_000);
    assert_eq!(large.connect().set("set k 0 0 400000", &value), "STORED");
    large.stop(true);
    large.start();
    assert_eq!(large.connect().get("k"), Some(value.clone()));
    large.damage(&value[50 * 4096..50 * 4096 + 32]);
    let mut client = large.connect();
    client.send("get k\r\n");
    assert_eq!(client.line(), "VALUE k 0 400000");
    let mut came = Vec::new();
    client.0.read_to_end(&mut came).unwrap();
    assert!(came.len() == 50 * 4096 && value.starts_with(&came), "{} bytes came", came.len());
    assert_eq!(large.connect().get("k"), None, "the head goes with it");
}

#[test]
fn a_part_that_cannot_be_read_for_a_moment_ends_the_connection_and_costs_no_value() {
    let mut large = Large::new(Durability::WriteBack);
    let value = lines(25_000);
    assert_eq!(large.connect().set("set k 0 0 400000", &value), "STORED");
    large.stop(true);
    large.start();
    // Its head is in DRAM from now on, its parts are not.
    assert_eq!(large.connect().get("k"), Some(value.clone()));
    let path = large.dir.path().join("flash");
    let whole = std::fs::read(&path).unwrap();
    let part = &value[50 * 4096..50 * 4096 + 32];
    let place = whole.windows(part.len()).position(|found| found == part).unwrap();
    let end = place / 4096 * 4096;
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(end as u64).unwrap();
    let mut client = large.connect();
    client.send("get k\r\n");
    assert_eq!(client.line(), "VALUE k 0 400000");
    let mut came = Vec::new();
    client.0.read_to_end(&mut came).unwrap();
    assert!(came.len() <= 50 * 4096 && value.starts_with(&came), "{} bytes came", came.len());
    file.write_all_at(&whole[end..], end as u64).unwrap();
    let again = large.connect().get("k");
    assert!(again == Some(value), "a device that failed once took it for good");
}

/// The engine finds nothing wrong with it: it is a record, and its checksum holds.
#[test]
fn a_part_of_another_length_is_not_served() {
    let large = Large::new(Durability::WriteBack);
    let value = value_of(1, 100_000);
    for (number, len) in [(0, 4095), (1, 4095), (1, 5000), (24, 4096)] {
        assert_eq!(large.connect().set("set k 0 0 100000", &value), "STORED");
        let other = PutOptions::default();
        for key in large.keys_of_parts(number) {
            let put = large.parts().put(&key, &vec![b'x'; len], other);
            assert!(matches!(put, PutOutcome::Stored { .. }));
        }
        let mut client = large.connect();
        client.send("get k\r\n");
        let mut came = String::new();
        // The first is looked at before the answer begins: it is a miss. The others end it.
        match number {
            0 => came = client.line(),
            _ => drop(client.0.read_to_string(&mut came).unwrap()),
        }
        assert!(number > 0 || came == "END", "{came}");
        assert!(!came.contains('x') && came.len() < 100_000, "part {number} of {len} bytes");
        large.connect().ask("delete k");
        for key in large.keys_of_parts(number) {
            large.parts().remove(&key);
        }
    }
}

/// What is read in vain gives its room back: the command is made again, and what comes next on the
/// same connection is answered.
#[test]
fn a_first_part_that_cannot_be_read_is_a_miss_of_every_command() {
    let value = lines(25_000);
    for ask in ["get k", "gat 100 k", "gats 100 k", "get k k k", "mg k v", "mg k v T100"] {
        let mut large = Large::new(Durability::WriteBack);
        assert_eq!(large.connect().set("set k 0 0 400000", &value), "STORED");
        large.damage(&value[100..132]);
        let mut client = large.connect();
        let none = if ask.starts_with("mg") { "EN" } else { "END" };
        assert_eq!(client.ask(ask), none, "{ask}");
        assert_eq!(client.ask("mn"), "MN", "{ask}");
        assert_eq!(client.set("set k 0 0 400000", &value), "STORED");
        assert_eq!(client.get("k"), Some(value.clone()));
    }
    // An append reads it as well.
    let mut large = Large::new(Durability::WriteBack);
    assert_eq!(large.connect().set("set k 0 0 400000", &value), "STORED");
    large.damage(&value[100..132]);
    let mut client = large.connect();
    assert_eq!(client.set("append k 0 0 1", b"1"), "NOT_STORED");
    assert_eq!(client.get("k"), None);
}

/// It may be read: only its new head is refused, and the old one goes with that.
#[test]
fn a_value_in_parts_whose_change_is_refused_is_answered_as_any_other() {
    const FAILED: &str = "SERVER_ERROR out of memory storing object";
    let value = lines(25_000);
    for durability in [Durability::WriteThrough, Durability::Synced] {
        for ask in ["gat 100 k", "gats 100 k", "mg k v T100", "mg k s T100", "touch k 100"] {
            let mut large = Large::new(durability);
            assert_eq!(large.connect().set("set k 0 0 400000", &value), "STORED");
            large.may_write(Some(0));
            let mut client = large.connect();
            let answer = if ask.starts_with("gat") { "END" } else { FAILED };
            assert_eq!(client.ask(ask), answer, "{ask}");
            assert_eq!((client.ask("mn"), client.get("k")), ("MN".into(), None), "{ask}");
        }
        // The first who reads what is stale is to renew it.
        let mut large = Large::new(durability);
        assert_eq!(large.connect().set("set k 0 0 400000", &value), "STORED");
        assert_eq!(large.connect().ask("md k I"), "HD");
        large.may_write(Some(0));
        let mut client = large.connect();
        assert_eq!((&*client.ask("mg k v"), &*client.ask("mn")), (FAILED, "MN"));
        assert_eq!((client.get("k"), large.held()), (None, 0));
    }
}

/// Nothing was closed, so what is not on flash yet is gone.
#[test]
fn what_was_acknowledged_is_there_after_the_death_of_the_process() {
    for durability in [Durability::WriteBack, Durability::WriteThrough] {
        let mut large = Large::new(durability);
        let mut client = large.connect();
        let (old, new) = (value_of(1, 300_001), value_of(2, 200_000));
        assert_eq!(client.set("set set 7 0 300001", &old), "STORED");
        assert_eq!(client.set("add add 0 0 200000", &new), "STORED");
        assert_eq!(client.set("set short 0 3000 200000", &new), "STORED");
        for key in ["touched", "got", "meta", "stale", "joined", "again"] {
            assert_eq!(client.set(&format!("set {key} 0 0 300001"), &old), "STORED");
        }
        assert_eq!(client.ask("touch touched 1000"), "TOUCHED");
        assert_eq!(client.ask("gat 1000 got"), "VALUE got 0 300001");
        assert_eq!((client.bytes(300_001).len(), &*client.line()), (300_001, "END"));
        assert_eq!(client.ask("mg meta T1000"), "HD");
        assert_eq!(client.ask("md stale I"), "HD");
        assert_eq!(client.set("append joined 0 0 200000", &new), "STORED");
        assert_eq!(client.set("ms again 200000", &new), "HD");
        drop(client);
        large.stop(false);
        large.start();
        let mut client = large.connect();
        for key in ["set", "touched", "got", "meta", "stale"] {
            assert_eq!(client.get(key), Some(old.clone()), "{key} {durability:?}");
        }
        for key in ["add", "short", "again"] {
            assert_eq!(client.get(key), Some(new.clone()), "{key} {durability:?}");
        }
        assert_eq!(client.get("joined"), Some([&old[..], &new].concat()), "{durability:?}");
    }
}

#[test]
fn a_client_that_goes_midway_leaves_what_was_there() {
    let large = Large::new(Durability::WriteBack);
    let mut client = large.connect();
    let (old, new) = (value_of(1, 100_000), value_of(2, 100_000));
    assert_eq!(client.set("set k 0 0 100000", &old), "STORED");
    let mut goes = large.connect();
    goes.send("set k 0 0 100000\r\n");
    goes.0.get_mut().write_all(&new[..60_000]).unwrap();
    drop(goes);
    assert_eq!(client.get("k"), Some(old));
    // One that does not read holds up nobody.
    let mut idle = large.connect();
    idle.send(&"get k\r\n".repeat(500));
    for _ in 0..20 {
        assert_eq!(client.get("k").map(|value| value.len()), Some(100_000));
    }
}

/// A generator of numbers that is the same each time.
fn next(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn a_random_run_with_restarts_reads_what_was_stored_last_or_nothing() {
    for seed in 0..4 {
        let mut state = seed;
        let mut large = Large::new(Durability::WriteBack);
        let mut client = large.connect();
        let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut hits = 0;
        for step in 0..600u64 {
            let key = next(&mut state, 6);
            let len = match next(&mut state, 2) {
                0 => next(&mut state, 30_000) as usize,
                _ => 33_000 + next(&mut state, 120_000) as usize,
            };
            match next(&mut state, 12) {
                0..=4 => {
                    let value = value_of(step, len);
                    assert_eq!(client.set(&format!("set k{key} 0 0 {len}"), &value), "STORED");
                    model.insert(key, value);
                }
                5 => {
                    let value = value_of(step, len);
                    match &*client.set(&format!("append k{key} 0 0 {len}"), &value) {
                        "STORED" => model.get_mut(&key).unwrap().extend(value),
                        // It was evicted before, so it does not come back.
                        "NOT_STORED" => drop(model.remove(&key)),
                        other => panic!("{other}"),
                    }
                }
                6 => {
                    client.ask(&format!("delete k{key}"));
                    model.remove(&key);
                }
                7 => large.evict_a_part(),
                8 if next(&mut state, 6) == 0 => {
                    drop(client);
                    large.stop(next(&mut state, 2) == 0);
                    large.start();
                    client = large.connect();
                }
                _ => match client.get(&format!("k{key}")) {
                    None => drop(model.remove(&key)),
                    Some(found) => {
                        assert!(model.get(&key) == Some(&found), "seed {seed}, step {step}");
                        hits += 1;
                    }
                },
            }
        }
        assert!(hits > 50, "seed {seed}: {hits} hits");
    }
}

#[test]
fn no_incarnation_comes_twice() {
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1000 {
        let bytes = Head::new(1, 4096).encode();
        assert!(seen.insert(Uuid::from_slice(&bytes[..16]).unwrap()));
    }
    // A count would begin anew after a crash.
    let bits = |uuid: &Uuid| uuid.as_u128();
    let (any, all) =
        seen.iter().map(bits).fold((0, u128::MAX), |(any, all), one| (any | one, all & one));
    assert_eq!((any.count_ones(), all.count_ones()), (124, 2), "all but version and variant");
}
