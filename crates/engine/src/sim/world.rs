//! The simulated machine with a cache on it: opening, turning the crank, crashing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cache::{Namespace, open_namespace};
use crate::clock::ManualClock;
use crate::config::{Config, Durability, Mutability, NamespaceOptions, Survives};
use crate::core::{Core, meta_of};
use crate::disk::Disk;
use crate::disk::sim::{Crash, SimDisk, SimFaults, SimMachine, SimRandom};
use crate::driver::Driver;
use crate::error::OpenError;
use crate::format::record;
use crate::recovery::{self, Env};
use crate::segment::SegmentState;

/// Bytes of flash: some 16 segments.
const FLASH: u64 = 1280 << 10;
/// Bytes of journal.
const JOURNAL: u64 = 16 << 10;
/// Unix time at the start.
pub const EPOCH: u64 = 1_000_000;

/// The namespaces of every run.
pub const NAMESPACES: [(&str, NamespaceOptions); 4] = [
    ("mutable", options(Mutability::Mutable, Survives::Crash, Durability::WriteBack)),
    ("synced", options(Mutability::Mutable, Survives::Crash, Durability::Synced)),
    ("immutable", options(Mutability::Immutable, Survives::Crash, Durability::WriteThrough)),
    ("clean-stop", options(Mutability::Mutable, Survives::CleanStop, Durability::WriteBack)),
];

const fn options(mutability: Mutability, survives: Survives, durability: Durability) -> NamespaceOptions {
    NamespaceOptions { mutability, survives, durability, partition_epochs: true }
}

/// One life of the cache.
pub struct Life {
    pub core: Arc<Core>,
    pub namespaces: Vec<Namespace>,
    driver: Driver,
    disk: SimDisk,
}

/// The machine.
pub struct World {
    pub machine: SimMachine,
    pub clock: Arc<ManualClock>,
    pub faults: SimFaults,
    pub random: SimRandom,
    /// The latest opening took more than one life.
    pub interrupted: bool,
    /// Namespaces to open.
    pub namespaces: Vec<(&'static str, NamespaceOptions)>,
    config: Config,
}

impl World {
    pub fn new(seed: u64, faults: SimFaults) -> Self {
        let mut config = Config::new("sim", Vec::new());
        config.segment_size = Some(64 << 10);
        config.shards = 2;
        let mut random = SimRandom::new(seed ^ 0x5eed);
        config.memory = (400 + 100 * random.below(5)) << 10;
        let machine = SimMachine::new(seed, faults, &[FLASH]);
        let (clock, namespaces) = (Arc::new(ManualClock::at(EPOCH)), NAMESPACES.to_vec());
        Self { machine, clock, faults, random, interrupted: false, namespaces, config }
    }

    /// Opens the cache; while faults are on, as often as it takes.
    ///
    /// `None` when a misdirected write has destroyed the superblocks: then somebody has to delete the file.
    pub fn open(&mut self) -> Option<Life> {
        // Sometimes with another size of memory: the index is rebuilt.
        self.config.index_memory = Some(if self.random.chance(0.1) { 24 << 10 } else { 32 << 10 });
        self.interrupted = false;
        for attempt in 0.. {
            if attempt == 20 {
                self.machine.set_faults(SimFaults::none());
            }
            match self.try_open() {
                Ok(life) => {
                    self.machine.set_faults(self.faults);
                    return Some(life);
                }
                // The power went while opening: the next life tries again.
                Err(_) if self.machine.is_down() => {
                    self.machine.crash(Crash::Process);
                    self.interrupted = true;
                }
                Err(OpenError::Foreign { .. }) if self.faulty() && attempt > 20 => return None,
                Err(error) => {
                    assert!(self.faulty(), "cannot open without faults: {error}");
                    assert!(attempt < 22, "cannot open after faults have ended: {error}");
                }
            }
        }
        unreachable!("the loop ends")
    }

    fn try_open(&mut self) -> Result<Life, OpenError> {
        let journal = self.machine.open_media("journal");
        let env = Env {
            set: self.machine.device_set(),
            meta: Arc::new(self.machine.meta()),
            journal: Arc::new(journal.unwrap_or_else(|| self.machine.create_media("journal", JOURNAL))),
            clock: self.clock.clone(),
            boot_id: Some(self.machine.boot_id().0),
            entropy: std::array::from_fn(|_| self.random.next_u64()),
        };
        let mut disk = self.machine.disk();
        let recovery::Opened { core, driver } = recovery::open(&self.config, env, &mut disk)?;
        let open = |(name, options): &(&str, NamespaceOptions)| open_namespace(&core, name, *options);
        let namespaces = self.namespaces.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Life { core, namespaces, driver, disk })
    }

    /// Whether anything but crashes goes wrong.
    pub fn faulty(&self) -> bool {
        self.faults != SimFaults::none()
    }

    /// Lets the background work go on by one step.
    pub fn turn(&mut self, life: &mut Life) {
        let mut ios = Vec::new();
        life.driver.step(&mut ios);
        for io in ios {
            life.disk.submit(io);
        }
        let mut done = Vec::new();
        life.disk.wait(self.random.below(2) as usize, &mut done);
        for d in done {
            life.driver.complete(d);
        }
    }

    /// Lets the background work go on by one step while no device answers.
    pub fn turn_without_answers(&mut self, life: &mut Life) {
        let mut ios = Vec::new();
        life.driver.step(&mut ios);
        for io in ios {
            life.disk.submit(io);
        }
    }

    /// Turns until the index is loaded.
    pub fn load(&mut self, life: &mut Life) {
        for _ in 0..10_000 {
            if !life.core.loading.load(Ordering::Acquire) || self.machine.is_down() {
                return;
            }
            self.turn(life);
        }
        panic!("the index does not get loaded");
    }

    /// The clean stop. False when the machine died on the way.
    pub fn close(&mut self, life: &mut Life) -> bool {
        life.driver.start_close();
        for _ in 0..100_000 {
            if life.driver.is_closed() {
                return !self.machine.is_down();
            }
            if self.machine.is_down() {
                return false;
            }
            self.clock.pass(self.random.below(20));
            self.turn(life);
        }
        panic!("the clean stop does not end");
    }

    /// Ends a life and what it had in flight.
    pub fn crash(&mut self, life: Life, kind: Crash) {
        self.machine.crash(kind);
        drop(life);
    }
}

impl Life {
    /// Whether the index points at a copy of the key that is whole and alive on the device, in a segment that is not about
    /// to be reused.
    pub fn is_on_flash(&self, ns: usize, key: &[u8]) -> bool {
        let (core, hash) = (&self.core, self.core.hash(ns as u16, key));
        let Some(slot) = core.shard(hash).index.peek(hash) else { return false };
        let at = slot.location();
        if matches!(
            core.table.state(at.segment),
            SegmentState::Reclaiming | SegmentState::Retired | SegmentState::Free
        ) {
            return false;
        }
        // What is in memory still is not acknowledged by the device.
        if core.streams.read(at.segment, at.offset(), 1).is_some() {
            return false;
        }
        let place = core.table.place(at.segment);
        let size = core.table.segment_size();
        let Ok(bytes) = core.set.read_at(place.device, place.offset, size) else { return false };
        let seed = record::seed(core.hash_seed, core.table.generation(at.segment), at.offset());
        let Some(found) = record::decode(&bytes[at.offset() as usize..], seed) else { return false };
        let shard = core.shard(hash).lock();
        let namespaces = core.namespaces.read();
        found.key == key
            && usize::from(found.meta.ns) == ns
            && !namespaces[ns].is_killed(&found.meta)
            && !shard.is_superseded(hash, found.meta.version)
    }

    /// Whether the key is in the DRAM tier or on flash. DRAM may hold what was killed without being looked at since.
    pub fn is_known(&self, ns: usize, key: &[u8]) -> bool {
        let hash = self.core.hash(ns as u16, key);
        let shard = self.core.shard(hash).lock();
        let in_dram = shard.dram.peek(hash, ns as u16, key).map(meta_of);
        drop(shard);
        let alive = in_dram.is_some_and(|meta| !self.core.namespaces.read()[ns].is_killed(&meta));
        alive || self.is_on_flash(ns, key)
    }
}
