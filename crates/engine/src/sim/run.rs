//! One seed.

use super::acks::Acking;
use super::modify::Changing;
use super::oracle::{Key, Object, Oracle};
use super::world::{EPOCH, Life, NAMESPACES, World};
use crate::api::{Lookup, PutOptions, PutOutcome, Tier};
use crate::config::{Mutability, Survives};
use crate::disk::sim::{Crash, SimFaults, SimRandom};
use crate::namespace::epoch_slot;
use crate::pending::Ack;
use crate::read::FlashRead;
use crate::segment::SegmentState;

/// Operations of a run.
const OPERATIONS: u64 = 2_500;
/// Keys per namespace.
const KEYS: u64 = 90;
/// Gets that may wait for their read at once.
const WAITING: usize = 6;

/// What a run saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    pub gets: u64,
    pub hits: u64,
    pub flash_hits: u64,
    pub crashes: u64,
    pub closes: u64,
    pub checked_after_close: u64,
    pub checked_after_crash: u64,
    pub checkpoints: u64,
    pub reclaimed: u64,
    pub poisoned: u64,
    /// Read-modify-writes that found an object.
    pub modified: u64,
    /// Acknowledgements that had to be waited for.
    pub acked: u64,
    /// Puts acknowledged while they were the newest of their key, without faults, and those of them on flash then.
    pub acked_newest: u64,
    pub acked_on_flash: u64,
}

impl Outcome {
    pub fn and(self, o: Self) -> Self {
        Self {
            gets: self.gets + o.gets,
            hits: self.hits + o.hits,
            flash_hits: self.flash_hits + o.flash_hits,
            crashes: self.crashes + o.crashes,
            closes: self.closes + o.closes,
            checked_after_close: self.checked_after_close + o.checked_after_close,
            checked_after_crash: self.checked_after_crash + o.checked_after_crash,
            checkpoints: self.checkpoints + o.checkpoints,
            reclaimed: self.reclaimed + o.reclaimed,
            poisoned: self.poisoned + o.poisoned,
            modified: self.modified + o.modified,
            acked: self.acked + o.acked,
            acked_newest: self.acked_newest + o.acked_newest,
            acked_on_flash: self.acked_on_flash + o.acked_on_flash,
        }
    }
}

/// What goes wrong besides crashes, by seed.
fn faults(seed: u64) -> SimFaults {
    let devices = |p| SimFaults { media_error: 0.0, meta_error: 0.0, ..SimFaults::all(p) };
    match seed % 4 {
        0 | 1 => SimFaults::none(),
        2 => devices(0.01),
        _ => SimFaults { media_error: 0.002, meta_error: 0.05, ..devices(0.03) },
    }
}

/// A get whose read is in flight.
struct Waiting {
    key: Key,
    start: u64,
    read: FlashRead,
}

pub struct Run {
    pub(super) world: World,
    pub(super) random: SimRandom,
    pub(super) oracle: Oracle,
    waiting: Vec<Waiting>,
    pub(super) changing: Vec<Changing>,
    /// Operations whose acknowledgement waits for the device.
    pub(super) acking: Vec<Acking>,
    /// Those whose acknowledgement never came, since the last clean stop or power loss.
    pub(super) unheard: Vec<(Key, u64)>,
    /// Highest time the cache has certainly seen.
    pub(super) time: u64,
    pub(super) wall: u64,
    puts: u64,
    /// Lookups begun and puts made in this life.
    pub(super) begun: [u64; 4],
    pub(super) put: [u64; 4],
    /// The journal may have lost entries to a power loss that no checkpoint has covered since: openings of segments too.
    holes: bool,
    pub(super) outcome: Outcome,
    trace: bool,
    pub(super) seed: u64,
}

/// Runs a seed; panics when the cache does what it must not.
pub fn run(seed: u64, trace: bool) -> Outcome {
    let mut run = Run {
        world: World::new(seed, faults(seed)),
        random: SimRandom::new(seed),
        oracle: Oracle::default(),
        waiting: Vec::new(),
        changing: Vec::new(),
        acking: Vec::new(),
        unheard: Vec::new(),
        time: EPOCH,
        wall: EPOCH,
        puts: 0,
        begun: [0; 4],
        put: [0; 4],
        holes: false,
        outcome: Outcome::default(),
        trace,
        seed,
    };
    let mut next = run.world.open();
    for n in 0..OPERATIONS {
        let Some(life) = next else { return run.outcome };
        next = run.operation(life);
        if run.world.machine.is_down() {
            next = next.and_then(|life| run.crash(life, None));
        }
        if trace && n % 100 == 0 {
            println!("-- {n} operations");
        }
    }
    if let Some(life) = next {
        run.end_life(&life);
    }
    run.outcome
}

macro_rules! say {
    ($run:expr, $($arg:tt)*) => { if $run.trace { println!($($arg)*) } };
}

impl Run {
    fn operation(&mut self, mut life: Life) -> Option<Life> {
        match self.random.below(2000) {
            0..640 => self.put(&life),
            640..700 => self.modify(&life),
            700..1240 => self.get(&life),
            1240..1380 => self.finish(),
            1380..1400 => self.finish_change(),
            1400..1460 => self.remove(&life),
            1460..1470 => self.kill(&life),
            1470..1700 => self.turn(&mut life),
            1700..1980 => {
                let millis = self.random.below(1500);
                self.world.clock.pass(millis);
                self.turn(&mut life);
            }
            1980..1987 => self.step_wall_clock(),
            1987..1990 => return self.close(life),
            1990..1994 => {
                let kind = if self.random.chance(0.7) { Crash::Process } else { Crash::Machine };
                return self.crash(life, Some(kind));
            }
            1994..1997 => self.world.machine.crash_after(self.random.below(60)),
            _ => self.turns(&mut life),
        }
        Some(life)
    }

    fn turn(&mut self, life: &mut Life) {
        self.world.turn(life);
        self.take_acks(life);
        if !self.world.machine.is_down() {
            // A step looks at the clock and remembers.
            self.time = self.time.max(self.wall);
        }
    }

    /// A while without operations: background work catches up.
    fn turns(&mut self, life: &mut Life) {
        for _ in 0..100 {
            self.world.clock.pass(100);
            self.turn(life);
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{}", what());
        }
    }

    pub(super) fn key(&mut self) -> Key {
        let ns = [0, 0, 0, 1, 1, 2, 3][self.random.below(7) as usize];
        // Half of the operations go to a tenth of the keys.
        let range = if self.random.chance(0.5) { KEYS / 10 } else { KEYS };
        (ns, format!("key-{}", self.random.below(range)).into_bytes())
    }

    /// A fresh value; in an Immutable namespace the one value of the key.
    pub(super) fn object(&mut self, key: &Key) -> Object {
        if NAMESPACES[key.0].1.mutability == Mutability::Immutable {
            return immutable(key);
        }
        self.puts += 1;
        let len = match self.random.below(20) {
            0 => 17_000, // too large
            1..4 => 4_000 + self.random.below(8_000),
            _ => self.random.below(2_500),
        };
        let mut value = self.puts.to_le_bytes().to_vec();
        value.extend((0..len).map(|i| (i as u8).wrapping_mul(31) ^ self.puts as u8));
        let expiry = match self.random.below(12) {
            0 => (self.wall + self.random.below(40)) as u32,
            1 => (self.wall + 5_000) as u32,
            _ => 0,
        };
        Object { value, expiry, group: self.random.below(4) as u32, slot: self.random.below(8) as u32 }
    }

    fn put(&mut self, life: &Life) {
        let key = self.key();
        let object = self.object(&key);
        let options =
            PutOptions { expiry: object.expiry, group: object.group, token: u64::from(object.slot) << 44 };
        assert_eq!(epoch_slot(options.token), object.slot);
        let ack = life.namespaces[key.0].submit_put(&key.1, &object.value, options);
        let certain = !self.world.machine.is_down();
        say!(
            self,
            "put {key:?} {} bytes #{} {options:?}: {ack:?}, certain {certain}",
            object.value.len(),
            self.puts
        );
        match ack {
            Ack::Done(outcome) => {
                self.put[key.0] += 1;
                self.put_done(&key, outcome, object, certain);
            }
            Ack::Later(pending) => {
                let outcome = *pending.preview();
                // What was stored is counted when it is acknowledged.
                self.put[key.0] += u64::from(matches!(outcome, PutOutcome::Refused(_)));
                let since = self.put_done(&key, outcome, object, certain);
                self.acking.push(Acking { key, since, pending: pending.into() });
            }
        }
    }

    fn get(&mut self, life: &Life) {
        let key = self.key();
        let start = self.oracle.now();
        self.begun[key.0] += 1;
        let lookup = life.namespaces[key.0].get(&key.1);
        self.settle(key, start, lookup);
        if self.waiting.len() > WAITING || self.random.chance(0.7) {
            self.finish();
        }
    }

    /// Finishes one of the gets that wait.
    fn finish(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let n = self.random.below(self.waiting.len() as u64) as usize;
        let Waiting { key, start, read } = self.waiting.swap_remove(n);
        let bytes = self.world.machine.device_set().read_at(read.device(), read.offset(), read.len());
        let lookup = read.finish(bytes);
        self.settle(key, start, lookup);
    }

    fn settle(&mut self, key: Key, start: u64, lookup: Lookup) {
        match lookup {
            Lookup::Flash(read) => self.waiting.push(Waiting { key, start, read }),
            Lookup::Miss(reason) => {
                say!(self, "get {key:?} from {start}: {reason:?}");
                self.outcome.gets += u64::from(self.oracle.current(&key).is_some());
            }
            Lookup::Hit(hit) => {
                let expired_at = self.time.max(self.wall);
                say!(
                    self,
                    "get {key:?} from {start}: {} bytes {:?} {:?}",
                    hit.value.len(),
                    hit.version,
                    hit.tier
                );
                if let Err(wrong) = self.oracle.check(&key, start, &hit.value, expired_at) {
                    panic!("seed {}: {wrong} ({:?})", self.seed, hit.tier);
                }
                self.outcome.gets += 1;
                self.outcome.hits += 1;
                self.outcome.flash_hits += u64::from(hit.tier == Tier::Flash);
            }
        }
    }

    fn remove(&mut self, life: &Life) {
        let key = self.key();
        let ack = life.namespaces[key.0].submit_remove(&key.1);
        let certain = !self.world.machine.is_down();
        say!(self, "remove {key:?}, certain {certain}: {ack:?}");
        let since = self.oracle.set(&key, None, certain);
        if let Ack::Later(pending) = ack {
            self.acking.push(Acking { key, since, pending: pending.into() });
        }
    }

    fn kill(&mut self, life: &Life) {
        let ns = self.random.below(4) as usize;
        let handle = &life.namespaces[ns];
        match self.random.below(8) {
            0 => {
                handle.clear();
                let certain = !self.world.machine.is_down();
                say!(self, "clear {ns}, certain {certain}");
                self.oracle.kill(ns, certain, |_| true);
            }
            1..4 => {
                let slot = self.random.below(8) as u32;
                handle.bump_epoch(u64::from(slot) << 44 | 77);
                let certain = !self.world.machine.is_down();
                say!(self, "bump {ns} {slot}, certain {certain}");
                self.oracle.kill(ns, certain, |o| o.slot == slot);
            }
            _ => {
                let group = 1 + self.random.below(3) as u32;
                handle.remove_group(group);
                let certain = !self.world.machine.is_down();
                say!(self, "remove group {ns} {group}, certain {certain}");
                self.oracle.kill(ns, certain, |o| o.group == group);
            }
        }
    }

    fn step_wall_clock(&mut self) {
        let step = self.random.below(60);
        self.wall = if self.random.chance(0.3) { self.wall.saturating_sub(step) } else { self.wall + step };
        self.world.clock.set_unix(self.wall);
    }

    fn close(&mut self, mut life: Life) -> Option<Life> {
        say!(self, "close");
        self.world.turn(&mut life);
        while !self.waiting.is_empty() || !self.changing.is_empty() {
            self.finish();
            self.finish_change();
        }
        let mut known: Vec<Key> = self.live(&life, |life, key| life.is_known(key.0, &key.1));
        let before = life.core.stats().totals;
        if !self.world.close(&mut life) {
            return self.crash(life, None);
        }
        self.take_acks(&life);
        assert!(self.acking.is_empty(), "seed {}: somebody waits after a clean stop", self.seed);
        self.unheard.clear();
        // Puts that waited may have been refused meanwhile.
        known.retain(|key| self.oracle.current(key).is_some());
        let after = life.core.stats().totals;
        let dropped = life.core.stats().namespaces.iter().map(|n| n.dropped.iter().sum::<u64>()).sum::<u64>();
        self.end_life(&life);
        self.holes = false;
        self.outcome.closes += 1;
        let lossless = !self.world.faulty()
            && after.segments_reclaimed == before.segments_reclaimed
            && after.dropped == before.dropped
            && dropped == 0;
        drop(life);
        if self.world.faults.media_error > 0.0 {
            // The last checkpoint may have failed, and the journal too.
            self.oracle.doubt_removals(2, immutable);
        }
        let mut life = self.open()?;
        if lossless && !self.world.interrupted {
            self.world.load(&mut life);
            let checked = self.must_hit(&life, &known, "after a clean stop");
            self.outcome.checked_after_close += checked;
        }
        Some(life)
    }

    /// Crashes now, or (`None`) where the machine has died already.
    fn crash(&mut self, mut life: Life, kind: Option<Crash>) -> Option<Life> {
        let random = if self.random.chance(0.7) { Crash::Process } else { Crash::Machine };
        let planned = kind.is_some();
        let kind = kind.unwrap_or(random);
        say!(self, "crash {kind:?}, planned {planned}, {:?}", life.core.stats().totals);
        if planned {
            self.world.turn(&mut life);
        }
        self.take_acks(&life);
        let survivors: Vec<Key> = self.live(&life, |life, key| {
            NAMESPACES[key.0].1.survives == Survives::Crash && life.is_on_flash(key.0, &key.1)
        });
        // Without a checkpoint of its own a journal begun in doubt does not make Mutable namespaces warm.
        let poisoned = life.core.journal.is_poisoned() || life.core.journal.is_bare();
        self.holes &= life.core.stats().totals.checkpoints == 0;
        let holes = self.holes;
        self.holes |= kind == Crash::Machine;
        self.waiting.clear();
        self.changing.clear();
        self.end_life(&life);
        self.outcome.crashes += 1;
        self.outcome.poisoned += u64::from(poisoned);
        self.drop_acks(kind);
        if kind == Crash::Machine || self.world.faults.media_error > 0.0 {
            // The highest time seen may be lost, and so may removals in Immutable namespaces (the bytes are right).
            self.time = self.wall;
            self.oracle.doubt_removals(2, immutable);
        }
        self.world.crash(life, kind);
        let mut life = self.open()?;
        let exact = planned && kind == Crash::Process && !self.world.faulty() && !poisoned && !holes;
        if exact {
            self.world.load(&mut life);
            let checked = self.must_hit(&life, &survivors, "after a crash");
            self.outcome.checked_after_crash += checked;
        } else if self.random.chance(0.3) {
            self.world.load(&mut life);
        }
        Some(life)
    }

    fn open(&mut self) -> Option<Life> {
        let life = self.world.open()?;
        (self.begun, self.put) = ([0; 4], [0; 4]);
        // Opening looks at the clock. Faults can have cost the whole cache, and with it what it remembered.
        self.time = if self.world.faulty() { life.core.now() } else { self.time.max(self.wall) };
        Some(life)
    }

    /// Live, unexpired keys that `which` chooses.
    fn live(&self, life: &Life, which: impl Fn(&Life, &Key) -> bool) -> Vec<Key> {
        let now = life.core.now();
        let lives = |o: &Object| o.expiry == 0 || u64::from(o.expiry) > now;
        self.oracle
            .live()
            .filter(|(_, o)| lives(o))
            .map(|(k, _)| k.clone())
            .filter(|k| which(life, k))
            .collect()
    }

    /// Gets all of `keys`: all but one in a thousand (two keys may share a tag) must be there.
    /// Nothing is asked when segments were reclaimed meanwhile, or the machine died.
    fn must_hit(&mut self, life: &Life, keys: &[Key], when: &str) -> u64 {
        let reclaiming = life.core.table.in_state(SegmentState::Reclaiming).next().is_some();
        if reclaiming || life.core.stats().totals.segments_reclaimed > 0 || self.world.machine.is_down() {
            return 0;
        }
        let mut missing = Vec::new();
        for key in keys {
            self.begun[key.0] += 1;
            let mut lookup = life.namespaces[key.0].get(&key.1);
            while let Lookup::Flash(read) = lookup {
                let bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
                lookup = read.finish(bytes);
            }
            match (lookup, self.oracle.current(key)) {
                (Lookup::Hit(hit), Some(object)) => assert_eq!(hit.value, object.value, "seed {}", self.seed),
                (Lookup::Miss(reason), _) => {
                    missing.push((key.0, String::from_utf8_lossy(&key.1).into_owned(), reason))
                }
                (other, _) => panic!("seed {}: {other:?}", self.seed),
            }
        }
        let allowed = 1 + keys.len() / 1000;
        assert!(
            missing.len() <= allowed,
            "seed {}: {} of {} keys are missing {when}: {missing:?} {:?}",
            self.seed,
            missing.len(),
            keys.len(),
            life.core.stats().totals,
        );
        keys.len() as u64
    }

    /// Checks the accounts of a life.
    fn end_life(&mut self, life: &Life) {
        let stats = life.core.stats();
        for (n, ns) in stats.namespaces.iter().enumerate() {
            let keys = self.waiting.iter().map(|w| &w.key).chain(self.changing.iter().map(|c| &c.key));
            let waiting = keys.filter(|key| key.0 == n).count() as u64;
            assert_eq!(ns.lookups() + waiting, self.begun[n], "seed {}: lookups of {}", self.seed, ns.name);
            let puts = ns.stored + ns.refused.iter().sum::<u64>();
            assert_eq!(puts, self.put[n], "seed {}: puts of {}", self.seed, ns.name);
        }
        let budget: usize = life.core.shards.iter().map(|s| s.lock().dram.budget()).sum();
        assert!(stats.dram_bytes <= budget as u64 + 4096, "seed {}: DRAM beyond its budget", self.seed);
        if !self.world.faulty() && !self.world.machine.is_down() {
            assert_eq!(stats.totals.write_errors + stats.totals.read_errors, 0, "seed {}", self.seed);
        }
        self.outcome.checkpoints += stats.totals.checkpoints;
        self.outcome.reclaimed += stats.totals.segments_reclaimed;
    }
}

/// The one value of a key in the Immutable namespace.
fn immutable(key: &Key) -> Object {
    let n = key.1.iter().fold(7u64, |n, &b| n.wrapping_mul(31).wrapping_add(b.into()));
    let value = (0..200 + n % 1500).map(|i| (i ^ n) as u8).collect();
    Object { value, expiry: 0, group: (n % 4) as u32, slot: (n % 8) as u32 }
}
