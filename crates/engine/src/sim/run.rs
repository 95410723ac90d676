//! Carries out a plan, one step after the other, and has the oracle check every result.

use std::sync::Arc;

use parking_lot::Mutex;

use super::coverage::{Coverage, Path, reach, reach_times};
use super::oracle::SimObject;
use super::parts::{Acking, Outstanding};
use super::plan::{Expiry, Fault, Key, Plan, Race, Step, What};
use super::state::{
    Ending, Outcome, Run, Tally, WAITING, WaitingLookup, costs_nothing, key_bytes, look_up,
    put_options, say,
};
use super::world::{EPOCH, Life, World};
use crate::api::{MissReason, PutOutcome, RefuseReason, Tier};
use crate::clock::Clock;
use crate::device::sim::{Crash, SimFaults};
use crate::durability::pending::Ack;
use crate::format::journal::Event;
use crate::format::mix;
use crate::namespace::Namespace;
use crate::ops::get::Lookup;

/// Carries out a plan; panics when the cache does what it must not.
pub fn run(plan: &Plan, trace: bool) -> Outcome {
    let mut world = World::new(&plan.setup);
    let mut life = world.open();
    let mut run = Run::new(world, &plan.setup, life.core.uuid, trace);
    run.forget_copies();
    for (n, step) in plan.steps.iter().enumerate() {
        if trace {
            println!("{n:>5} {:?}", step.what);
        }
        life = run.step(life, step);
        run.say_reached();
    }
    run.end_life(&life);
    run.world.machine.crash(Crash::Process);
    run.outcome
}

impl Run {
    /// Carries out a step; the life that goes on behind it.
    pub(super) fn step(&mut self, mut life: Life, step: &Step) -> Life {
        self.outcome.steps += 1;
        self.world.reseed(step.salt);
        if !step.salt.is_multiple_of(4) && life.namespaces[0].backpressure().is_some() {
            reach(Path::JournalWaited);
            for _ in 0..5 {
                self.world.clock.pass(10);
                self.turn(&mut life);
            }
        }
        match step.what {
            What::Close { removes, machine, check } => {
                return self.close(life, removes, kind(machine), check);
            }
            What::Crash { machine, check, again, exchange } => {
                let crash = Ending { kind: kind(machine), check, cut: false, again, exchange };
                return self.crash(life, crash);
            }
            what => self.within_life(&mut life, what),
        }
        if self.world.machine.is_down() {
            let machine = self.world.random.chance(0.35);
            let check = self.world.random.chance(0.7);
            let again = self.world.random.chance(0.1).then(|| self.world.random.below(12) as u8);
            return self.crash(
                life,
                Ending { kind: kind(machine), check, cut: true, again, exchange: None },
            );
        }
        let journal = &life.core.journal;
        let needed = journal.head() - journal.used();
        if needed != self.needed[0] {
            self.needed = [needed, self.needed[0]];
        }
        life
    }

    /// A step that ends no life.
    fn within_life(&mut self, life: &mut Life, what: What) {
        match what {
            What::Put { key, len, expiry, group, slot } => {
                let object = self.object(key, len, expiry, group, slot);
                self.put(life, key, object);
            }
            What::PutIf { key, len, expect, race } => self.put_if(life, key, len, expect, race),
            What::Modify { key, len, change, expiry } => {
                self.modify(life, key, len, change, expiry)
            }
            What::Get { key } => self.get(life, key),
            What::Finish { n } => self.finish(n),
            What::Read { key, race } => self.read(life, key, race),
            What::Remove { key } => self.remove(life, key),
            What::RemoveGroup { .. } | What::BumpEpoch { .. } | What::Clear { .. } => {
                self.kill_many(life, what)
            }
            What::Turn { ms } => {
                self.world.clock.pass(ms.into());
                self.turn(life);
            }
            What::Idle { turns } => {
                for _ in 0..turns {
                    self.world.clock.pass(100);
                    self.turn(life);
                }
                self.note_flashed(life);
            }
            What::Block { ms, operations, flush } => self.block(life, ms, operations, flush),
            What::Count { ns, counters, turns } => self.count_on(life, ns, counters, turns),
            What::Rest => self.rest(life),
            What::Sync => drop(life.core.journal.sync()),
            What::StartClose => {
                self.start_close(life, true);
                life.background.start_close();
            }
            What::Checkpoint => life.core.wait_lists.want(),
            What::Lap { ns, over } => self.lap(life, ns, over),
            what => self.change_world(life, what),
        }
    }

    /// A removal of many objects.
    fn kill_many(&mut self, life: &Life, what: What) {
        match what {
            What::RemoveGroup { ns, group } => {
                let version = kill(life, ns, |id| Event::Group { ns: id, group: group.into() });
                self.killed(ns, version, |o| o.group == u32::from(group));
            }
            What::BumpEpoch { ns, slot } => {
                let version = kill(life, ns, |id| Event::Epoch { ns: id, slot: slot.into() });
                self.killed(ns, version, |o| o.slot == u32::from(slot));
            }
            What::Clear { ns } => {
                let version = kill(life, ns, |id| Event::Clear { ns: id });
                self.killed(ns, version, |_| true);
            }
            other => unreachable!("{other:?} removes no group of objects"),
        }
    }

    /// A step of the world about the cache: clock, faults, power, and what the next opening finds.
    fn change_world(&mut self, life: &Life, what: What) {
        match what {
            What::SetClock { by } => self.set_clock(life, by),
            What::Fault { fault, permille } => self.fault(fault, permille),
            What::Heal => self.heal(),
            What::CutAfter { effects } => self.world.machine.crash_after(effects.into()),
            What::HoldUp { io, after, turns } => {
                self.world.machine.hold_up(io.real(), after.into(), turns.into());
            }
            What::CutBehindHeader { effects } => {
                let [first, second, _] = life.core.areas;
                self.world.machine.crash_behind_write(vec![first, second], effects.into());
            }
            What::CopyDirectory => self.copies.is_due = true,
            What::OlderDirectory => self.copies.comes_back = true,
            What::Resize { size } => self.world.size = size,
            What::SetOptions { ns, options } => self.world.options[usize::from(ns)] = options,
            what => self.change_device(what),
        }
    }

    pub(super) fn turn(&mut self, life: &mut Life) {
        let began = self.world.clock.millis();
        let at_stake = self.copies_at_stake(life);
        self.world.turn(life);
        self.forget_given_up(life, &at_stake);
        self.tell_happened();
        self.within_write_budget(life);
        self.nobody_waits_too_long(began);
        self.take_acks(life);
        self.watch_copies(life);
        if !self.world.machine.is_down() && !life.background.is_closed() {
            // A step looks at the clock and remembers; a closed cache has nobody left to do so.
            self.lead = self.lead.max(self.wall() - self.slept());
            self.time = self.present();
        }
    }

    /// What the wall clock shows.
    fn wall(&self) -> u64 {
        self.world.clock.unix()
    }

    /// Seconds on the clock that nobody can set.
    fn slept(&self) -> u64 {
        self.world.clock.boot_millis() / 1_000
    }

    /// The least that the cache's time can be.
    pub(super) fn present(&self) -> u64 {
        self.time.max(self.wall()).max(self.lead + self.slept())
    }

    fn say_reached(&self) {
        if self.trace {
            Coverage::take().coverage_mark().for_each(|path| println!("      - {path}"));
        }
    }

    /// Takes note of what came back.
    pub(super) fn note(&mut self, what: u64) {
        self.outcome.trace = mix(self.outcome.trace ^ what);
    }

    /// Takes note of a new version: it must be larger than any before, also of earlier lives.
    pub(super) fn new_version(&mut self, version: u64) {
        assert!(version > self.version, "version {version} was handed out after {}", self.version);
        // Nobody has heard of one that the machine died under: it may come again.
        if self.certain() {
            self.version = version;
        }
        self.note(version);
    }

    /// Whether what was just done is certain to have happened.
    pub(super) fn certain(&self) -> bool {
        !self.world.machine.is_down()
    }

    /// A fresh value; in an Immutable namespace the one value of the key.
    pub(super) fn object(
        &mut self,
        key: Key,
        len: u32,
        expiry: Expiry,
        group: u8,
        slot: u8,
    ) -> SimObject {
        if self.options[usize::from(key.ns)].immutable {
            let n = mix(u64::from(key.n) << 8 | u64::from(key.ns)) >> 8;
            let expiry =
                if n.is_multiple_of(5) { EPOCH as u32 + 300 + (n % 600) as u32 } else { 0 };
            let (group, slot) = ((n % 4) as u32, (n % 8) as u32);
            return SimObject {
                serial: n | 1 << 60,
                len: 8 + (n % 1500) as u32,
                expiry,
                group,
                slot,
            };
        }
        self.serial += 1;
        let expiry = match expiry {
            Expiry::Never => 0,
            Expiry::In(seconds) => self.wall() as u32 + seconds,
        };
        SimObject { serial: self.serial, len, expiry, group: group.into(), slot: slot.into() }
    }

    /// Changes the first keys of a namespace again and again, as counters are.
    fn count_on(&mut self, life: &mut Life, ns: u8, counters: u8, turns: u32) {
        for _ in 0..turns {
            for n in 0..u32::from(counters) {
                let key = Key { ns, n };
                let object = self.object(key, 8, Expiry::Never, 0, 0);
                self.put(life, key, object);
            }
            let waits = if life.namespaces[0].backpressure().is_some() { 5 } else { 1 };
            for _ in 0..waits {
                self.world.clock.pass(100 / waits);
                self.turn(life);
            }
            if self.world.machine.is_down() {
                return;
            }
        }
        reach(Path::CountedOn);
    }

    pub(super) fn put(&mut self, life: &Life, key: Key, object: SimObject) {
        self.outcome.operations += 1;
        let handle = &life.namespaces[usize::from(key.ns)];
        let ack = handle.submit_put(&key_bytes(key), &object.value(), put_options(object));
        self.put_acked(key, object, ack, self.certain());
    }

    /// Notes what a put has come to; the moment of the key's new state, if it has one.
    pub(super) fn put_done(
        &mut self,
        key: Key,
        object: SimObject,
        outcome: PutOutcome,
        certain: bool,
    ) -> Option<u64> {
        say!(self, "put {key:?} {object:?}: {outcome:?}, certain {certain}");
        match outcome {
            PutOutcome::Stored { version } => {
                self.new_version(version);
                Some(self.oracle.set(key, version, Some(object), certain))
            }
            PutOutcome::Refused(RefuseReason::Closed) if self.closing => None,
            PutOutcome::Refused(RefuseReason::Closed | RefuseReason::VersionMismatch) => {
                panic!("a put was refused: {outcome:?}")
            }
            // The older object is gone all the same.
            PutOutcome::Refused(_) => Some(self.oracle.set(key, 0, None, certain)),
        }
    }

    /// Has another thread change the key in the middle of what `operation` reads; the oracle hears
    /// of it before `operation` is judged.
    pub(super) fn while_racing<T>(
        &mut self,
        life: &Life,
        key: Key,
        race: Race,
        operation: impl FnOnce() -> T,
    ) -> T {
        let bytes = key_bytes(key);
        let (handle, machine) =
            (life.namespaces[usize::from(key.ns)].clone(), self.world.machine.clone());
        let raced: Arc<Mutex<Option<(Raced, bool)>>> = Arc::new(Mutex::new(None));
        let object = match race {
            Race::Put { len } => Some(self.object(key, len, Expiry::Never, 1, 1)),
            _ => None,
        };
        if race != Race::None {
            let raced = raced.clone();
            self.world.machine.interrupt_with(Some(Box::new(move || {
                let outcome = Raced::by(&handle, &bytes, object);
                *raced.lock() = Some((outcome, !machine.is_down()));
            })));
        }
        let result = operation();
        self.world.machine.interrupt_with(None);
        match raced.lock().take() {
            None => {}
            Some((Raced::Put(ack), certain)) => {
                self.put_acked(key, object.expect("it was put"), ack, certain);
            }
            Some((Raced::Removed(ack), certain)) => self.removed(key, ack, certain),
        }
        result
    }

    fn get(&mut self, life: &Life, key: Key) {
        self.outcome.operations += 1;
        let start = self.oracle.now();
        self.done[usize::from(key.ns)].gets += 1;
        let handle = &life.namespaces[usize::from(key.ns)];
        let lookup = costs_nothing(&life.core, key, || handle.get(&key_bytes(key)));
        self.settle(key, start, lookup);
        if self.waiting.len() > WAITING {
            self.finish(0);
        }
    }

    /// Finishes one of the lookups and read-modify-writes that wait.
    pub(super) fn finish(&mut self, n: u8) {
        let count = self.waiting.len() + self.changing.len();
        if count == 0 {
            return;
        }
        let n = usize::from(n) % count;
        if n >= self.waiting.len() {
            return self.finish_change(n - self.waiting.len());
        }
        let WaitingLookup { key, start, read } = self.waiting.swap_remove(n);
        let bytes =
            self.world.machine.device_set().read_at(read.device(), read.offset(), read.len());
        let core = read.core().clone();
        let lookup = costs_nothing(&core, key, || read.finish(bytes));
        self.settle(key, start, lookup);
    }

    /// A lookup that waits for its reads.
    fn read(&mut self, life: &Life, key: Key, race: Race) {
        self.outcome.operations += 1;
        let start = self.oracle.now();
        self.done[usize::from(key.ns)].gets += 1;
        let handle = &life.namespaces[usize::from(key.ns)];
        let bytes = key_bytes(key);
        let lookup = self.while_racing(life, key, race, || look_up(life, handle, &bytes));
        self.settle(key, start, lookup);
    }

    pub(super) fn settle(&mut self, key: Key, start: u64, lookup: Lookup) {
        match lookup {
            Lookup::Flash(read) => self.waiting.push(WaitingLookup { key, start, read }),
            Lookup::Miss(reason) => {
                say!(self, "get {key:?} from {start}: {reason:?}");
                reach_miss(reason);
                self.outcome.gets += u64::from(self.oracle.current(key).is_some());
                self.note(reason as u64 | 1 << 40);
            }
            Lookup::Hit(hit) => {
                say!(self, "get {key:?} from {start}: version {} {:?}", hit.version, hit.tier);
                let time = self.present();
                if let Err(wrong) = self.oracle.check(key, start, hit.version, &hit.value, time) {
                    panic!("{wrong} ({:?})", hit.tier);
                }
                self.outcome.gets += 1;
                self.outcome.hits += 1;
                self.outcome.flash_hits += u64::from(hit.tier == Tier::Flash);
                if hit.tier == Tier::Flash {
                    self.flashed.insert(key, hit.version);
                }
                self.note(hit.version ^ (hit.tier as u64) << 50);
            }
        }
    }

    pub(super) fn remove(&mut self, life: &Life, key: Key) {
        self.outcome.operations += 1;
        let handle = &life.namespaces[usize::from(key.ns)];
        let ack = if self.world.random.chance(0.5) {
            handle.submit_remove(&key_bytes(key))
        } else {
            let ns = life.core.namespaces.by_id(key.ns.into()).expect("it is open");
            Ack::Done(life.core.remove(&ns, &key_bytes(key)))
        };
        self.removed(key, ack, self.certain());
    }

    /// Notes a removal, which may have to be waited for.
    pub(super) fn removed(&mut self, key: Key, ack: Ack<u64>, certain: bool) {
        self.done[usize::from(key.ns)].removes += 1;
        let (version, pending) = match ack {
            Ack::Done(version) => (version, None),
            Ack::Later(pending) => (*pending.preview(), Some(pending)),
        };
        say!(self, "remove {key:?}: {version}, certain {certain}, waits {}", pending.is_some());
        self.new_version(version);
        let since = self.oracle.set(key, version, None, certain);
        if let Some(pending) = pending {
            self.acking.push(Acking { key, since, pending: Outstanding::Removed(pending) });
        }
    }

    /// Removes until the journal has gone `over` entries over what the checkpoint before the newest
    /// needs.
    fn lap(&mut self, life: &Life, ns: u8, over: u8) {
        let journal = &life.core.journal;
        let end = self.needed[1] + journal.entries() + u64::from(over);
        for n in 0..journal.entries() as u32 {
            if journal.head() >= end || journal.used() >= journal.entries() || !self.certain() {
                return;
            }
            let key = Key { ns, n: n % self.oracle.keys() };
            let ack = life.namespaces[usize::from(ns)].submit_remove(&key_bytes(key));
            self.outcome.operations += 1;
            self.removed(key, ack, self.certain());
        }
    }

    fn killed(&mut self, ns: u8, version: u64, dead: impl Fn(&SimObject) -> bool) {
        self.outcome.operations += 1;
        self.done[usize::from(ns)].kills += 1;
        let certain = self.certain();
        say!(self, "version {version}, certain {certain}");
        self.new_version(version);
        self.oracle.kill(ns, version, certain, dead);
    }

    /// The wall clock is set, or the machine sleeps for so long.
    fn set_clock(&mut self, life: &Life, by: i32) {
        // The cache looks at the clock more often than that happens. Only a clock that is set back
        // to the very second of the last look, after a sleep, passes for one that stood still.
        let behind = life.core.time.behind();
        if by > 0 && self.world.random.below(2) == 0 {
            if behind > 0 {
                reach(Path::SleptBehind);
            }
            return self.world.clock.sleep(by as u64 * 1_000);
        }
        if by < 0 {
            reach(Path::ClockBack);
        }
        self.world.clock.set_unix(self.wall().saturating_add_signed(by.into()));
    }

    fn fault(&mut self, fault: Fault, permille: u32) {
        let mut faults = self.world.faults;
        fault.set(&mut faults, f64::from(permille) / 1000.0);
        self.world.set_faults(faults);
        self.foul |= fault != Fault::Slow;
        let lasting = [Fault::FlipOnWrite, Fault::Misdirected, Fault::Lost, Fault::Any];
        self.stained |= lasting.contains(&fault);
        self.world.strange |= matches!(fault, Fault::Misdirected | Fault::Any);
    }

    pub(super) fn heal(&mut self) {
        self.world.set_faults(SimFaults::none());
        self.world.all_back();
    }

    /// Ends this life and begins the next one.
    pub(super) fn reopen(&mut self, life: Life, crash: &Ending) -> Life {
        self.waiting.clear();
        self.changing.clear();
        self.flashed.clear();
        (self.silences, self.fell_silent) = (0, false);
        self.end_life(&life);
        let shape = |life: &Life| (life.core.shards.len(), life.core.shards[0].index.base_lines());
        let (before, covered) = (shape(&life), life.core.stats().totals.checkpoints > 0);
        self.homes = self.homes(&life);
        self.note_risks(&life, crash.kind);
        self.drop_acks(crash.kind);
        self.world.crash(life, crash.kind);
        self.change_directory(covered);
        self.change_devices();
        if let Some(device) = crash.exchange {
            (self.foul, self.stained) = (true, true);
            self.world.exchange(device);
        }
        if let Some(effects) = crash.again {
            self.world.machine.crash_after(effects.into());
        }
        let life = self.world.open();
        self.outcome.lives += 1;
        self.reshaped = shape(&life) != before || (self.reshaped && !covered);
        self.closing = false;
        self.to_keep = None;
        self.fouled = false;
        self.done = [Tally::default(); 4];
        self.forget_copies();
        self.began = self.world.clock.millis();
        self.written = (0, 0);
        if life.core.uuid != self.uuid {
            // A new, empty cache.
            assert!(self.foul, "the cache was made anew");
            self.uuid = life.core.uuid;
            self.at_risk.clear();
            self.version = 0;
            for (n, options) in (0u8..).zip(&self.options) {
                self.oracle.start(n, options.immutable);
            }
        }
        for (n, new) in (0u8..).zip(self.world.options.clone()) {
            let old = std::mem::replace(&mut self.options[usize::from(n)], new);
            if (old.immutable, old.clean_stop) != (new.immutable, new.clean_stop) {
                self.oracle.start(n, new.immutable);
                self.done[usize::from(n)].cleared = true;
            }
        }
        // Opening looks at the clock. Faults can have cost the whole cache, and with it what it
        // remembered.
        if crash.kind == Crash::Machine && !self.closing {
            self.time = self.wall();
        }
        self.time = if self.foul { life.core.time.now() } else { self.time.max(self.wall()) };
        self.lead = self.time - self.slept();
        self.say_reached();
        self.note(life.core.time.highest());
        life
    }
}

/// What another thread did.
enum Raced {
    Put(Ack<PutOutcome>),
    Removed(Ack<u64>),
}

impl Raced {
    fn by(handle: &Namespace, key: &[u8], object: Option<SimObject>) -> Self {
        match object {
            Some(object) => Self::Put(handle.submit_put(key, &object.value(), put_options(object))),
            None => Self::Removed(handle.submit_remove(key)),
        }
    }
}

/// Removes many objects, without waiting for room in the journal.
fn kill(life: &Life, ns: u8, event: impl FnOnce(u16) -> Event) -> u64 {
    let state = life.core.namespaces.by_id(ns.into()).expect("it is open");
    life.core.kill(&state, event(state.id))
}

fn kind(machine: bool) -> Crash {
    if machine { Crash::Machine } else { Crash::Process }
}

fn reach_miss(reason: MissReason) {
    let path = match reason {
        MissReason::Expired => Path::ReadExpired,
        MissReason::Killed => Path::ReadKilled,
        MissReason::Superseded => Path::ReadSuperseded,
        MissReason::Collision => Path::TagCollision,
        MissReason::Corrupt => Path::ReadCorrupt,
        _ => return,
    };
    reach_times(path, 1);
}
