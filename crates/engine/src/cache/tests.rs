//! Waits and stops of an open cache whose background thread or device fails.

use std::cell::Cell;

use super::*;
use crate::api::{PutOptions, Tier};
use crate::clock::{Clock, ManualClock};
use crate::config::Durability;
use crate::device::sim::{SimDisk, SimFaults, SimMachine, SimMedia};
use crate::device::{DeviceConfig, DeviceError, DeviceInfo, Done, Io};
use crate::durability::backpressure::Backpressure;
use crate::durability::pending::{Ack, Pending};
use crate::testing::TempDir;

/// A device that never answers, once it is opened.
struct Silent(Box<dyn Disk>);

impl Disk for Silent {
    fn devices(&self) -> &[DeviceInfo] {
        self.0.devices()
    }

    fn submit(&mut self, io: Io) {
        self.0.submit(io);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn wait(&mut self, _: usize, _: &mut Vec<Done>) {
        unreachable!("nobody may wait without a limit once the cache is open")
    }

    fn wait_for(&mut self, _: Duration, _: &mut Vec<Done>) {}
}

fn small(dir: &TempDir) -> Config {
    let mut config = Config::new(dir.path(), Vec::new());
    (config.memory, config.shards, config.segment_size) = (2 << 20, 2, Some(64 << 10));
    config
}

fn env(machine: &SimMachine, clock: Arc<dyn Clock>) -> Env {
    Env {
        set: machine.device_set(),
        patient: machine.device_set(),
        meta: Arc::new(machine.meta()),
        journal: Arc::new(
            machine
                .open_media("journal")
                .unwrap_or_else(|| machine.create_media("journal", 64 << 10)),
        ),
        clock,
        boot_id: Some([1; 16]),
        entropy: [1, 2, 3],
    }
}

/// Starts a cache on the machine's disk, or on what is made of that.
fn start<D: Disk + 'static>(
    (dir, machine): (&TempDir, &SimMachine),
    clock: Arc<dyn Clock>,
    timeout: Duration,
    over: impl FnOnce(SimDisk) -> D,
) -> Cache {
    let mut disk = machine.disk();
    let opened = recovery::open(&small(dir), env(machine, clock), &mut disk).expect("opens");
    let lock = DirLock::acquire(dir.path()).expect("free");
    Cache::start(opened, Box::new(over(disk)), lock, timeout).expect("starts")
}

/// What a device does to the thread that submits to it or waits for it, from when it is told on.
enum Strike {
    /// The thread does not come back before it is told.
    Blocks,
    Panics,
}

struct Striking {
    disk: SimDisk,
    strike: Strike,
    begun: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Striking {
    fn strike(&self) {
        if !self.begun.load(Ordering::SeqCst) {
            return;
        }
        match self.strike {
            Strike::Panics => std::panic::panic_any("as a bug would"),
            Strike::Blocks => {
                while !self.ended.load(Ordering::SeqCst) {
                    thread::park_timeout(JOIN);
                }
            }
        }
    }
}

impl Disk for Striking {
    fn devices(&self) -> &[DeviceInfo] {
        self.disk.devices()
    }

    fn submit(&mut self, io: Io) {
        self.strike();
        self.disk.submit(io);
    }

    fn in_flight(&self) -> usize {
        self.strike();
        self.disk.in_flight()
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) {
        self.disk.wait(at_least, done);
    }

    fn wait_for(&mut self, limit: Duration, done: &mut Vec<Done>) {
        self.strike();
        self.disk.wait_for(limit, done);
    }
}

/// Wakes the thread that waits for a task.
struct Woken(std::sync::mpsc::Sender<()>);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Polls a task when it is woken, and at no other time, until it is ready.
fn ends(mut backpressure: Backpressure) -> bool {
    let (wake, woken) = std::sync::mpsc::channel();
    let waker = Arc::new(Woken(wake)).into();
    let mut context = std::task::Context::from_waker(&waker);
    while std::pin::Pin::new(&mut backpressure).poll(&mut context).is_pending() {
        if woken.recv_timeout(Duration::from_secs(20)).is_err() {
            return false;
        }
    }
    true
}

#[test]
fn who_waits_for_room_goes_on_although_the_background_thread_is_blocked_or_dead() {
    for (strike, full_journal) in [
        (Strike::Blocks, true),
        (Strike::Blocks, false),
        (Strike::Panics, true),
        (Strike::Panics, false),
    ] {
        let dir = TempDir::new();
        let machine = SimMachine::new(1, SimFaults::none(), &[4 << 20]);
        let (begun, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let clock = Arc::new(SystemClock::default());
        let cache = start((&dir, &machine), clock, TIMEOUT, |disk| Striking {
            disk,
            strike,
            begun,
            ended: ended.clone(),
        });
        let ns = cache.namespace("test", NamespaceOptions::default()).expect("opens");
        let backpressure = (0..2_000u32).find_map(|n| {
            let backpressure = if full_journal { ns.backpressure() } else { ns.put_backpressure() };
            if backpressure.is_none() {
                let len = if full_journal { 1 } else { 10_000 };
                let _ = ns.submit_put(&n.to_le_bytes(), &vec![7; len], PutOptions::default());
            }
            backpressure
        });
        // Nobody waits for a thread that is known to be dead.
        assert!(backpressure.is_none_or(ends), "a task waits for ever (journal: {full_journal})");
        ended.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_device_that_never_answers_does_not_hold_up_the_end() {
    let dir = TempDir::new();
    let machine = SimMachine::new(1, SimFaults::none(), &[4 << 20]);
    for close in [true, false] {
        let (clock, timeout) = (Arc::new(ManualClock::at(1_000_000)), Duration::from_millis(20));
        let cache = start((&dir, &machine), clock, timeout, |disk| Silent(Box::new(disk)));
        let ns = cache.namespace("test", NamespaceOptions::default()).expect("opens");
        for n in 0..2000u32 {
            let _ = ns.submit_put(&n.to_le_bytes(), &[7; 1000], PutOptions::default());
        }
        if close {
            assert!(!cache.close() && !cache.close(), "it is not known to be clean");
        }
        drop(cache);
        let state =
            crate::device::area::MetaStore::read(&machine.meta(), crate::format::state::STATE)
                .expect("read")
                .expect("there");
        let state = crate::format::state::StateFile::decode(&state).expect("whole");
        assert!(!state.clean, "what is not written is not clean");
    }
}

#[test]
fn the_end_of_a_cache_says_whether_the_next_start_believes_it() {
    let no_writes = SimFaults { write_error: 1.0, ..SimFaults::none() };
    let no_meta = SimFaults { meta_error: 1.0, ..SimFaults::none() };
    for (name, faults, clean) in [
        ("nothing fails", SimFaults::none(), true),
        ("no checkpoint can be written", no_writes, false),
        ("no marker can be written", no_meta, false),
    ] {
        let dir = TempDir::new();
        let machine = SimMachine::new(1, SimFaults::none(), &[4 << 20]);
        let clock = Arc::new(SystemClock::default());
        let cache = start((&dir, &machine), clock, TIMEOUT, |disk| disk);
        machine.set_faults(faults);
        assert_eq!((cache.close(), cache.close()), (clean, clean), "{name}");
    }
}

/// A disk whose first device answers and whose second does not, on a clock that goes on by a tenth
/// of a second with each wait.
struct Hung {
    disk: SimDisk,
    clock: Arc<ManualClock>,
    /// Waits for an answer, and looks whether there is one.
    waits: Arc<[AtomicU64; 2]>,
}

impl Disk for Hung {
    fn devices(&self) -> &[DeviceInfo] {
        self.disk.devices()
    }

    fn submit(&mut self, io: Io) {
        self.disk.submit(io);
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) {
        self.disk.wait(at_least, done);
    }

    fn wait_for(&mut self, limit: Duration, done: &mut Vec<Done>) {
        self.clock.pass(100);
        self.waits[usize::from(limit < POLL_INTERVAL)].fetch_add(1, Ordering::SeqCst);
        self.disk.wait_for(limit, done);
    }
}

#[test]
fn what_is_in_flight_to_a_device_that_does_not_answer_is_not_waited_for() {
    const MANY: u64 = 100_000;
    let dir = TempDir::new();
    let machine = SimMachine::new(1, SimFaults::none(), &[4 << 20; 2]);
    let (clock, waits) = (Arc::new(ManualClock::at(1_000_000)), Arc::<[AtomicU64; 2]>::default());
    let cache = start((&dir, &machine), clock.clone(), TIMEOUT, |disk| {
        machine.set_mute(DeviceId(1), true);
        Hung { disk, clock, waits: waits.clone() }
    });
    let ns = cache.namespace("test", NamespaceOptions::default()).expect("opens");
    let count = |n: usize| waits[n].load(Ordering::SeqCst);
    for n in 0u64.. {
        if cache.stats().totals.devices_silent > 0 {
            break;
        }
        assert!(count(0) < MANY, "no test: it is not left alone");
        let _ = ns.submit_put(&n.to_le_bytes(), &[7; 1000], PutOptions::default());
    }
    let before = count(0);
    while count(1) == 0 {
        assert!(count(0) < before + MANY, "it is waited for: a put would not wake the thread");
        thread::yield_now();
    }
    cache.close();
}

#[test]
fn memory_that_shrinks_does_so_by_steps_that_a_stop_ends() {
    let dir = TempDir::new();
    let machine = SimMachine::new(1, SimFaults::none(), &[4 << 20]);
    let clock = Arc::new(SystemClock::default());
    let cache = start((&dir, &machine), clock, TIMEOUT, |disk| disk);
    let ns = cache.namespace("test", NamespaceOptions::default()).expect("opens");
    for n in 0..2000u32 {
        let _ = ns.submit_put(&n.to_le_bytes(), &[7; 1000], PutOptions::default());
    }
    let held = || cache.stats().dram_bytes;
    let before = held();
    let least = (2 * LEAST_BYTES) as i64 - *cache.dram_at_opening.lock() as i64;
    let asked = Cell::new(0);
    let twice = || asked.replace(asked.get() + 1) < 2;
    assert_eq!(cache.resize_dram(least, &twice), Resized::Stopped);
    assert!(asked.get() == 3 && held() < before, "no step was taken");
    // Of 64 KiB each, and as far as it takes to empty a page.
    let two_steps = 2 * ((64 << 10) + (32 << 10));
    assert!(held() >= before - two_steps, "more than two steps: {}", held());
    assert_eq!(cache.resize_dram(least, &|| true), Resized::Done);
    assert!(held() < before / 3, "it was not done: {} of {before}", held());
    assert_eq!(cache.resize_dram(least - 1, &|| true), Resized::TooSmall);
    cache.close();
    assert_eq!(cache.resize_dram(0, &|| true), Resized::Stopped, "it was closed");
}

/// Options of a namespace whose acknowledged objects are on flash.
fn written() -> NamespaceOptions {
    NamespaceOptions { durability: Durability::WriteThrough, ..NamespaceOptions::default() }
}

/// How many of 600 objects a cache has, once its index is loaded.
fn kept(cache: &Cache) -> usize {
    while cache.stats().loading {
        thread::yield_now();
    }
    let ns = cache.namespace("test", written()).expect("opens");
    let is_there = |n: &u32| ns.get_blocking(&n.to_le_bytes()).is_some();
    (0..600u32).filter(is_there).count()
}

/// A cache on two devices, closed; how it is opened, and how many of its objects are kept.
fn filled_on_two(dir: &TempDir) -> (Config, usize) {
    let mut config = small(dir);
    let device = |name| DeviceConfig { path: dir.path().join(name), size: 4 << 20 };
    config.devices = ["first", "second"].map(device).to_vec();
    let cache = Cache::open(config.clone()).expect("opens");
    let ns = cache.namespace("test", written()).expect("opens");
    for n in 0..600u32 {
        let _ = ns.put(&n.to_le_bytes(), &[7; 1000], PutOptions::default());
    }
    drop((ns, cache.close(), cache));
    let cache = Cache::open(config.clone()).expect("opens");
    let all = kept(&cache);
    drop((cache.close(), cache));
    (config, all)
}

#[test]
fn a_device_that_hangs_before_the_start_costs_its_share_and_holds_nobody_up() {
    for silent in [0, 1] {
        let dir = TempDir::new();
        let (config, all) = filled_on_two(&dir);
        let paths: Vec<PathBuf> = config.devices.iter().map(|device| device.path.clone()).collect();
        let none = Cache::open_without(&config, &paths).map(drop);
        let is_silent = |e: &OpenError| matches!(e, OpenError::Device(DeviceError::Silent { .. }));
        assert!(none.as_ref().is_err_and(is_silent), "{none:?}");
        let cache = Cache::open_without(&config, &paths[silent..=silent]).expect("opens");
        let left = kept(&cache);
        assert!((all / 4..all / 4 * 3).contains(&left), "{silent}: {left} of {all}");
        cache.close();
    }
}

#[test]
fn what_is_kept_off_dram_is_read_from_flash_and_costs_no_memory() {
    let dir = TempDir::new();
    let mut config = small(&dir);
    config.devices = vec![DeviceConfig { path: dir.path().join("flash"), size: 4 << 20 }];
    let cache = Cache::open(config).expect("opens");
    for durability in [Durability::WriteBack, Durability::WriteThrough] {
        let options = NamespaceOptions { durability, ..NamespaceOptions::default() };
        let ns = cache.namespace(&format!("{durability:?}"), options).expect("opens");
        ns.keep_off_dram();
        // It is refused while the queue is full, as its only place is there.
        let put = |n: u32, value: &[u8]| {
            while ns.put(&n.to_le_bytes(), value, PutOptions::default()).version().is_none() {
                thread::yield_now();
            }
        };
        for n in 0..200u32 {
            put(n, &[n as u8; 1000]);
        }
        put(1, b"new");
        ns.remove(&[2, 0, 0, 0]);
        // Of two keys with one tag and one place in the index, the later one has the slot. In one
        // run of some hundred there are such keys.
        let mut lost = 0;
        for _ in 0..3 {
            for n in 0..200u32 {
                let found = ns.get_blocking(&n.to_le_bytes());
                let value = found.as_ref().map(|hit| hit.value.to_vec());
                assert!(found.is_none_or(|hit| hit.tier != Tier::Dram), "{n} is in DRAM");
                match (n, value) {
                    (2, value) => assert_eq!(value, None),
                    (_, None) => lost += 1,
                    (1, value) => assert_eq!(value, Some(b"new".to_vec())),
                    (_, value) => assert_eq!(value, Some(vec![n as u8; 1000])),
                }
            }
        }
        assert!(lost <= 6, "{lost} lookups have found nothing");
        assert_eq!(cache.stats().dram_objects, 0);
    }
    cache.close();
}

/// A journal that counts how often it is flushed, and whose next flushes may fail.
struct Flushed {
    media: SimMedia,
    flushes: AtomicU64,
    fail: AtomicU64,
}

impl Media for Flushed {
    fn len(&self) -> u64 {
        self.media.len()
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.media.store(offset, bytes)
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.media.load(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        match self.fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        {
            Ok(_) => Err(io::Error::other("told to")),
            Err(_) => self.media.sync(),
        }
    }
}

/// Opens a cache whose journal is [`Flushed`]. The first flushes of it fail.
fn flushed(
    dir: &TempDir,
    machine: &SimMachine,
    clock: &Arc<ManualClock>,
    fail: u64,
) -> (recovery::Opened, Arc<Flushed>) {
    let mut env = env(machine, clock.clone());
    let media = machine.open_media("journal").expect("made with the rest");
    let journal = Arc::new(Flushed { media, flushes: 0.into(), fail: fail.into() });
    env.journal = journal.clone();
    let opened = recovery::open(&small(dir), env, &mut machine.disk()).expect("opens");
    (opened, journal)
}

#[test]
fn those_who_are_refused_together_share_a_flush() {
    let (dir, clock) = (TempDir::new(), Arc::new(ManualClock::at(1_000_000)));
    let machine = SimMachine::new(1, SimFaults::none(), &[4 << 20]);
    let (recovery::Opened { core, mut background, .. }, journal) =
        flushed(&dir, &machine, &clock, 0);
    let synced = NamespaceOptions { durability: Durability::Synced, ..Default::default() };
    let ns = open_namespace(&core, "test", synced).expect("opens");
    let submit = |n: u32| match ns.submit_put(&n.to_le_bytes(), b"value", PutOptions::default()) {
        Ack::Later(pending) => pending,
        Ack::Done(outcome) => panic!("it waits for a flush: {outcome:?}"),
    };
    let flushes = || journal.flushes.load(Ordering::SeqCst);
    // Overdue, as the device answers nothing; and those whom nobody looks after any more.
    for abandoned in [false, true] {
        let waiting: Vec<_> = (0..1_000).map(submit).collect();
        let before = flushes();
        clock.pass(60_000);
        match abandoned {
            false => background.step(&mut Vec::new()),
            true => background.abandon(),
        }
        assert!(waiting.iter().all(Pending::is_done), "no test: some wait on");
        assert!((1..=2).contains(&(flushes() - before)), "{} flushes", flushes() - before);
    }
}

#[test]
fn a_journal_that_the_last_life_could_not_write_is_not_believed() {
    for (fail, believed) in [(0, true), (1, false)] {
        let (dir, clock) = (TempDir::new(), Arc::new(ManualClock::at(1_000_000)));
        let machine = SimMachine::new(1, SimFaults::none(), &[4 << 20]);
        for life in 0..3 {
            // The kernel has an error for whoever flushes first.
            let fail = if life == 2 { fail } else { 0 };
            let (opened, _) = flushed(&dir, &machine, &clock, fail);
            let opening = &opened.opening;
            assert!(life == 0 || opening.journal == (believed || life == 1), "{fail}: {opening:?}");
            let options = NamespaceOptions::default();
            let ns = open_namespace(&opened.core, "test", options).expect("opens");
            let _ = ns.put(b"key", b"value", PutOptions::default());
        }
    }
}

#[test]
fn a_start_short_of_threads_is_refused_and_costs_no_device() {
    let dir = TempDir::new();
    let (config, all) = filled_on_two(&dir);
    let mut refused = 0;
    for threads in 0..8 {
        device::answer::tests::limit_threads(threads);
        let opened = Cache::open(config.clone());
        device::answer::tests::limit_threads(u32::MAX);
        match opened {
            Ok(cache) => assert!(cache.close()),
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("TasksMax"), "{threads}: {error}");
            }
        }
        let cache = Cache::open(config.clone()).expect("opens");
        assert_eq!(kept(&cache), all, "{threads}: a device was forgotten");
        cache.close();
    }
    assert!((1..8).contains(&refused), "no test: {refused} were refused");
}

#[test]
fn an_opening_that_is_refused_leaves_the_cache_as_it_was() {
    let dir = TempDir::new();
    let mut config = small(&dir);
    config.devices = vec![DeviceConfig { path: dir.path().join("flash"), size: 4 << 20 }];
    let cache = Cache::open(config.clone()).expect("opens");
    drop((cache.close(), cache));
    let state = || std::fs::read(dir.path().join("state")).ok();
    let before = state();
    // Other segments ask for a new cache: of these too few fit, and those need more memory.
    let few = Config { segment_size: Some(1 << 20), ..config.clone() };
    let poor = Config { segment_size: Some(128 << 10), memory: 256 << 10, ..config.clone() };
    for wrong in [few, poor] {
        let refused = Cache::open(wrong).map(drop);
        assert!(matches!(refused, Err(OpenError::Config(_))), "{refused:?}");
        assert!(before.is_some() && state() == before, "the cache is gone: {refused:?}");
    }
    let cache = Cache::open(config).expect("opens");
    assert_eq!(cache.opening().origin, recovery::Origin::Closed);
    cache.close();
}
