//! The simulated machine with a cache on it: opening, background steps, crashes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::coverage::{Path, reach, reach_times};
use super::plan::{Options, Setup, Size};
use crate::background::{Background, BalanceRules, CompactionRules};
use crate::cache::TIMEOUT;
use crate::clock::{Clock, ManualClock};
use crate::config::Config;
use crate::core::Core;
use crate::device::sim::{Crash, SimDisk, SimFaults, SimMachine, SimRandom, Spare};
use crate::device::{DeviceId, Disk};
use crate::error::OpenError;
use crate::format::block_lines::{BLOCK_LINES, set_block_lines};
use crate::format::record::{self, Meta};
use crate::format::state::STATE;
use crate::format::{UNIT, footer, journal};
use crate::namespace::Namespace;
use crate::namespace::open::open_namespace;
use crate::recovery::{self, Env};
use crate::segment::{NO_PLACE, SegmentState};

/// Unix time at the start.
pub const EPOCH: u64 = 1_000_000;
/// Bytes a shard of the DRAM tier needs before it can hold anything.
const DRAM_SLACK: u64 = 68 << 10;
/// Tries to open before faults are switched off.
const TRIES: u32 = 20;
/// Steps anything may take.
const BOUND: u32 = 20_000;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// One life of the cache.
pub struct Life {
    pub core: Arc<Core>,
    pub namespaces: Vec<Namespace>,
    pub background: Background,
    disk: SimDisk,
    /// When an I/O came back last, or none was in flight.
    answered: u64,
}

/// The machine.
pub struct World {
    pub machine: SimMachine,
    pub clock: Arc<ManualClock>,
    pub faults: SimFaults,
    pub random: SimRandom,
    /// The latest opening took more than one life.
    pub interrupted: bool,
    /// A device was exchanged, or a write went astray: devices may be refused.
    pub strange: bool,
    /// A device did not answer while the cache was opened.
    pub hung: bool,
    /// Options of the namespaces from the next opening on.
    pub options: Vec<Options>,
    /// The size from the next opening on.
    pub size: Size,
    /// Key of the hashes of a new cache has its top byte from here.
    tag_bits: u32,
    /// Whether flash takes what has not proven itself.
    admits_unproven: bool,
    /// Whether objects compete for the DRAM tier.
    contests: bool,
    spares: Vec<Spare>,
    journal: u64,
    pub config: Config,
}

impl World {
    pub fn new(setup: &Setup) -> Self {
        let mut config = Config::new("sim", Vec::new());
        config.segment_size = Some(setup.segment_kib << 10);
        config.reinsertion = setup.reinsertion;
        config.write_budget = setup.write_budget;
        config.fixed_lives = setup.fixed_lives;
        config.small_areas = setup.block_lines.is_some();
        set_block_lines(setup.block_lines.unwrap_or(BLOCK_LINES));
        // Every removal of a group that has nothing left to remove.
        config.forget_above = 0;
        let entries = (setup.journal_kib * 1024 - journal::HEADER) / journal::ENTRY;
        let far = Some(setup.compacts * entries);
        config.compaction = CompactionRules { far, passes: setup.passes };
        if let Some(lasts) = setup.relieves_after {
            let rules = BalanceRules::default();
            let plenty = if setup.moves_once { rules.plenty } else { 0 };
            config.balance = BalanceRules { busy: 20, lasts, plenty };
        }
        let sizes: Vec<u64> = setup
            .segments
            .iter()
            .map(|n| (setup.head_kib + u64::from(*n) * u64::from(setup.segment_kib)) << 10)
            .collect();
        Self {
            machine: SimMachine::new(setup.seed, SimFaults::none(), &sizes),
            clock: Arc::new(ManualClock::at(EPOCH)),
            faults: SimFaults::none(),
            random: SimRandom::new(setup.seed ^ 0x5eed),
            interrupted: false,
            strange: false,
            hung: false,
            options: setup.namespaces.clone(),
            size: setup.size,
            tag_bits: setup.tag_bits,
            admits_unproven: setup.admits_unproven,
            contests: setup.contests,
            spares: sizes.iter().map(|_| Spare::default()).collect(),
            journal: setup.journal_kib << 10,
            config,
        }
    }

    /// A machine with one device of this size, and a cache as [`Config::new`] has it but for its
    /// segments, memory and journal; for [`World::open_as_configured`].
    pub fn sized(flash: u64, segment: u32, memory: u64, journal: u64) -> Self {
        let mut world = Self::new(&Setup::plain(1));
        world.machine = SimMachine::new(1, SimFaults::none(), &[flash]);
        world.journal = journal;
        world.config =
            Config { memory, segment_size: Some(segment), ..Config::new("sim", Vec::new()) };
        world
    }

    /// Opens the cache as `config` says.
    pub fn open_as_configured(&mut self) -> Result<Life, OpenError> {
        self.try_open()
    }

    /// Everything random from here on follows from this number.
    pub fn reseed(&mut self, salt: u64) {
        self.machine.reseed(salt);
        self.random = SimRandom::new(salt ^ 0x5eed);
    }

    /// Sets the faults, now and after the next opening.
    pub fn set_faults(&mut self, faults: SimFaults) {
        self.faults = faults;
        self.machine.set_faults(faults);
    }

    /// Divides memory so that the DRAM tier gets what was asked for, about.
    fn apply_size(&mut self) {
        let Size { shards, lines, dram } = self.size;
        let chunk = u64::from(self.config.segment_size.expect("set above") / 4);
        let index = u64::from(lines) * 64 * u64::from(shards);
        let tier = (u64::from(dram) + DRAM_SLACK) * u64::from(shards);
        // Chunks are a sixteenth of the memory, at least six.
        let memory = (tier + index + 11 * chunk) * 16 / 15;
        (self.config.shards, self.config.memory) = (shards, memory + memory / 32);
        self.config.index_memory = Some(index);
        // Of the smallest ones most grow.
        self.config.index_growth = lines <= 5 && dram >= 8 << 10;
    }

    /// Bytes per second that may be written.
    pub fn write_budget(&self) -> Option<u64> {
        self.config.write_budget
    }

    /// Opens the cache; while faults are on, as often as it takes. A device that is refused is
    /// emptied, as the message says.
    pub fn open(&mut self) -> Life {
        self.apply_size();
        self.interrupted = false;
        reach_times(Path::MuteOverCrash, u64::from(self.machine.any_mute()));
        for attempt in 0.. {
            if attempt == TRIES {
                self.machine.set_faults(SimFaults::none());
                self.all_back();
            }
            let had_state = self.machine.has_meta(STATE);
            match self.try_open() {
                Ok(life) => {
                    self.machine.set_faults(self.faults);
                    return life;
                }
                // The power went while opening: the next life tries again.
                Err(_) if self.machine.is_down() => {
                    reach(Path::CrashOpening);
                    self.machine.crash(Crash::Process);
                    self.interrupted = true;
                }
                Err(OpenError::Foreign { path } | OpenError::OtherCache { path, .. })
                    if self.strange && attempt < 2 * TRIES =>
                {
                    self.wipe(&path);
                }
                Err(error) => {
                    assert!(self.is_foul(), "cannot open without faults: {error}");
                    // A device that is away may be back at the next start.
                    let kept = !had_state || self.machine.has_meta(STATE);
                    assert!(kept || !self.is_only_away(), "the cache was given up: {error}");
                    assert!(attempt < 2 * TRIES, "cannot open after faults have ended: {error}");
                }
            }
        }
        unreachable!("the loop ends")
    }

    fn wipe(&self, path: &std::path::Path) {
        let set = self.machine.device_set();
        let n = set.infos().iter().position(|i| i.path == path).expect("one of the devices");
        self.machine.wipe(DeviceId(n as u16));
    }

    /// Every device answers again.
    pub fn all_back(&self) {
        for n in 0..self.spares.len() as u16 {
            self.machine.set_away(DeviceId(n), false);
            self.machine.set_mute(DeviceId(n), false);
        }
    }

    /// Exchanges a device for its spare one.
    pub fn exchange(&mut self, device: u8) {
        reach(Path::DeviceExchanged);
        self.strange = true;
        self.machine.exchange(DeviceId(device.into()), &mut self.spares[usize::from(device)]);
    }

    fn try_open(&mut self) -> Result<Life, OpenError> {
        let journal = self.machine.open_media("journal");
        let mut entropy: [u64; 3] = std::array::from_fn(|_| self.random.next_u64());
        entropy[2] = crate::format::weak_hash_seed(entropy[2], self.tag_bits);
        let env = Env {
            set: self.machine.device_set(),
            patient: self.machine.patient_set(),
            meta: Arc::new(self.machine.meta()),
            journal: Arc::new(
                journal.unwrap_or_else(|| self.machine.create_media("journal", self.journal)),
            ),
            clock: self.clock.clone(),
            boot_id: Some(self.machine.boot_id().0),
            entropy,
        };
        let mut disk = self.machine.disk();
        self.machine.set_opening(true);
        let opened = recovery::open(&self.config, env, &mut disk);
        if self.machine.set_opening(false) {
            reach(Path::HungOpening);
            self.hung = true;
        }
        let recovery::Opened { core, background, .. } = opened?;
        if self.admits_unproven {
            core.admission.duel.let_everything_win();
        }
        if self.contests {
            core.shards.iter().for_each(|shard| shard.lock().hold_contest());
        }
        let names = NAMES.iter().zip(&self.options);
        let namespaces = names
            .map(|(name, o)| open_namespace(&core, name, o.real()))
            .collect::<Result<_, _>>()?;
        let answered = self.clock.millis();
        Ok(Life { core, namespaces, background, disk, answered })
    }

    /// Whether nothing goes wrong but that devices are away.
    fn is_only_away(&self) -> bool {
        let faults = SimFaults { slow: 0.0, ..self.machine.lock().faults };
        !self.strange && faults == SimFaults::none()
    }

    /// Whether anything but crashes and slowness goes wrong.
    pub fn is_foul(&self) -> bool {
        self.strange
            || self.hung
            || SimFaults { slow: 0.0, ..self.faults } != SimFaults::none()
            || self.machine.any_away()
            || self.machine.any_mute()
    }

    /// Lets the background work go on by one step, until the clean stop is over.
    pub fn turn(&mut self, life: &mut Life) {
        let mut ios = Vec::new();
        self.machine.set_in_background(true);
        if life.background.is_closed() {
            life.background.abandon();
        } else {
            life.background.step(&mut ios);
        }
        self.machine.set_in_background(false);
        for io in ios {
            life.disk.submit(io);
        }
        let mut done = Vec::new();
        // Who waits for an I/O that is held up would see nothing overtake it.
        let at_least = if self.machine.is_held_up() { 0 } else { self.random.below(2) };
        life.disk.wait(at_least as usize, &mut done);
        if !done.is_empty() || life.disk.in_flight() == 0 {
            life.answered = self.clock.millis();
        }
        self.machine.set_in_background(true);
        for d in done {
            life.background.complete(d);
        }
        self.machine.set_in_background(false);
    }

    /// Lets the background work go on by one step while no device answers.
    pub fn turn_without_answers(&mut self, life: &mut Life) {
        let mut ios = Vec::new();
        life.background.step(&mut ios);
        for io in ios {
            life.disk.submit(io);
        }
    }

    /// Turns until the index is loaded.
    pub fn load(&mut self, life: &mut Life) {
        for _ in 0..BOUND {
            if !life.core.progress.loading.load(Ordering::Acquire) || self.machine.is_down() {
                return;
            }
            self.turn(life);
        }
        panic!("the index does not get loaded");
    }

    /// Ends the clean stop. False when the machine died on the way, or when no device answers: it
    /// is given up then, as [`Cache::close`](crate::Cache::close) does.
    pub fn close(&mut self, life: &mut Life) -> bool {
        life.background.start_close();
        for _ in 0..BOUND {
            if life.background.is_closed() {
                life.background.abandon();
                return !self.machine.is_down();
            }
            if self.machine.is_down() {
                return false;
            }
            if u128::from(self.clock.millis() - life.answered) > TIMEOUT.as_millis() {
                reach(Path::StopGivenUp);
                life.background.abandon();
                return false;
            }
            self.clock.pass(self.random.below(20));
            self.turn(life);
        }
        panic!("the clean stop does not end: {:?}", life.core.stats());
    }

    /// Ends a life and what it had in flight.
    pub fn crash(&mut self, life: Life, kind: Crash) {
        self.machine.crash(kind);
        drop(life);
    }
}

/// A copy of an object on flash.
#[derive(Debug, Clone, Copy)]
pub struct Copied {
    pub version: u64,
    pub device: DeviceId,
    pub offset: u64,
    pub len: u64,
}

impl Life {
    /// Where on which device the index says that a key is, if there is a copy of it that is whole
    /// and alive there. Works on a machine that is down.
    pub fn on_flash(&self, machine: &SimMachine, ns: u8, key: &[u8]) -> Option<Copied> {
        let (core, hash) = (&self.core, self.core.hash(ns.into(), key));
        let slot = core.shard(hash).index.peek(hash)?;
        let at = slot.location();
        let given_up = [SegmentState::Retired, SegmentState::Free, SegmentState::Checkpoint];
        if given_up.contains(&core.table.state(at.segment)) {
            return None;
        }
        // What is in memory still is not acknowledged by the device.
        if core.streams.read(at.segment, at.offset(), 1).is_some() {
            return None;
        }
        let place = core.table.place(at.segment);
        let most = (core.table.segment_size() - at.offset()).min(slot.size_class().max_bytes());
        let mut bytes = vec![0; most as usize];
        machine.peek(place.device, place.offset + u64::from(at.offset()), &mut bytes);
        let generation = core.table.generation(at.segment);
        let context = core.record_context(at.segment, generation, at.offset());
        let found = record::decode(&bytes, &context)?;
        let shard = core.shard(hash).lock();
        let namespaces = core.namespaces.list.read();
        let alive = found.key == key
            && found.meta.ns == u16::from(ns)
            && !namespaces[usize::from(ns)].is_killed(&found.meta)
            && !shard.is_superseded(hash, found.meta.version);
        let len = found.len as u64;
        let (device, offset) = (place.device, place.offset + u64::from(at.offset()));
        alive.then_some(Copied { version: found.meta.version, device, offset, len })
    }

    /// Namespaces and keys of the records that power loss may still take from the devices.
    pub fn at_risk(&self, machine: &SimMachine) -> HashSet<(u16, Vec<u8>)> {
        let (core, table) = (&self.core, &self.core.table);
        let mut found = HashSet::new();
        let mut bytes = vec![0; table.segment_size() as usize];
        for segment in 0..table.len() {
            let (place, generation) = (table.place(segment), table.generation(segment));
            if place == NO_PLACE
                || machine.is_durable(place.device, place.offset, table.segment_size().into())
            {
                continue;
            }
            machine.peek(place.device, place.offset, &mut bytes);
            for at in (footer::HEADER as usize..bytes.len()).step_by(UNIT as usize) {
                let context = core.record_context(segment, generation, at as u32);
                let Some(record) = record::decode(&bytes[at..], &context) else { continue };
                let (from, to) = (at as u64 / 512 * 512, (at + record.len) as u64);
                if !machine.is_durable(place.device, place.offset + from, to - from) {
                    found.insert((record.meta.ns, record.key.to_vec()));
                }
            }
        }
        found
    }

    /// Whether a key's record is still in memory, to be written. The slot alone does not tell: a
    /// segment whose footer cannot be read leaves slots behind, and another record may be where
    /// they point.
    pub fn is_in_memory(&self, ns: u8, key: &[u8]) -> bool {
        let (core, hash) = (&self.core, self.core.hash(ns.into(), key));
        let Some(slot) = core.shard(hash).index.peek(hash) else { return false };
        let at = slot.location();
        let most = slot.size_class().max_bytes();
        let Some(bytes) = core.streams.read(at.segment, at.offset(), most) else { return false };
        let generation = core.table.generation(at.segment);
        let context = core.record_context(at.segment, generation, at.offset());
        record::decode(&bytes, &context).is_some_and(|r| r.key == key && r.meta.ns == u16::from(ns))
    }

    /// Whether this version of the key is in the DRAM tier or on flash, and stays there over a
    /// clean stop. DRAM may hold what was killed without being looked at since.
    pub fn is_known(&self, machine: &SimMachine, ns: u8, key: &[u8], version: u64) -> bool {
        let hash = self.core.hash(ns.into(), key);
        let shard = self.core.shard(hash).lock();
        let in_dram = shard.dram.peek(hash, ns.into(), key).map(|object| object.meta());
        drop(shard);
        let alive = |meta: Meta| {
            meta.version == version
                && !self.core.namespaces.list.read()[usize::from(ns)].is_killed(&meta)
        };
        in_dram.is_some_and(alive)
            || self.on_flash(machine, ns, key).is_some_and(|at| at.version == version)
    }
}
