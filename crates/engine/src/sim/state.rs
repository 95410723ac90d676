//! The state of a run between two steps, and how its keys and objects are given to the engine.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

use super::oracle::{Oracle, SimObject};
use super::parts::{Acking, Changing, DirectoryCopies, Happened, Lateness, Snapshots};
use super::plan::{Key, Options, Setup};
use super::world::{EPOCH, Life, World};
use crate::api::{DropReason, PutOptions};
use crate::core::Core;
use crate::device::sim::Crash;
use crate::namespace::Namespace;
use crate::namespace::state::{NamespaceState, epoch_slot};
use crate::ops::get::{FlashRead, Lookup};
use crate::stats::Stats;

/// Lookups that may wait for their read at once.
pub(super) const WAITING: usize = 6;

/// What a run saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    pub operations: u64,
    pub steps: u64,
    pub lives: u64,
    /// Lookups of what a cache that forgets nothing would have.
    pub gets: u64,
    pub hits: u64,
    pub flash_hits: u64,
    /// Objects that had to be there, and were.
    pub warm: u64,
    /// Everything that came back, in one number: equal for equal runs.
    pub trace: u64,
}

impl Outcome {
    pub fn and(self, o: Self) -> Self {
        Self {
            operations: self.operations + o.operations,
            steps: self.steps + o.steps,
            lives: self.lives + o.lives,
            gets: self.gets + o.gets,
            hits: self.hits + o.hits,
            flash_hits: self.flash_hits + o.flash_hits,
            warm: self.warm + o.warm,
            trace: self.trace.wrapping_add(o.trace),
        }
    }
}

/// A lookup whose read is in flight.
pub(super) struct WaitingLookup {
    pub key: Key,
    pub start: u64,
    pub read: FlashRead,
}

/// Operations of a life by namespace, to compare its counters with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub gets: u64,
    pub puts: u64,
    pub removes: u64,
    pub kills: u64,
    /// Opened with options under which it starts empty: the engine cleared it.
    pub cleared: bool,
}

pub(super) struct Run {
    pub world: World,
    pub oracle: Oracle,
    pub waiting: Vec<WaitingLookup>,
    pub changing: Vec<Changing>,
    pub acking: Vec<Acking>,
    /// Operations, and the moments of their states, that nobody was told the outcome of since the
    /// last clean stop.
    pub unheard: Vec<(Key, u64)>,
    pub outcome: Outcome,
    pub done: [Tally; 4],
    /// Options of this life.
    pub options: Vec<Options>,
    /// Something but crashes and slowness has gone wrong in this run.
    pub foul: bool,
    /// The index has another shape than the newest checkpoint, perhaps.
    pub reshaped: bool,
    /// Something has in this life, before everything was well again.
    pub fouled: bool,
    /// Something stored is wrong, and stays so when faults have ended.
    pub stained: bool,
    /// The journal may have lost entries to a power loss that no checkpoint has covered since:
    /// openings of segments too.
    pub holes: bool,
    /// Segments, and which use of them, that keys had their copies in when the life before ended.
    pub homes: HashMap<Key, (u32, u64)>,
    /// Versions that were seen on flash in this life, and whose copy was not given up since with a
    /// device that does not answer.
    pub flashed: HashMap<Key, u64>,
    /// How often devices have fallen silent in this life, and whether one has in the latest turn.
    pub silences: u64,
    pub fell_silent: bool,
    /// Namespaces and keys of which a power loss may have taken an older copy, since the last
    /// checkpoint of a whole life, and the highest version that may hide. What names the copy may
    /// be read at any opening until then.
    pub at_risk: HashMap<(u16, Vec<u8>), u64>,
    pub lateness: Lateness,
    /// What came back while the background thread was blocked.
    pub happened: Arc<Mutex<Vec<Happened>>>,
    pub copies: DirectoryCopies,
    pub snapshots: Snapshots,
    /// The clean stop has begun.
    pub closing: bool,
    /// What was to be kept when it began, and the counters then.
    pub to_keep: Option<(Vec<Key>, Stats)>,
    /// Positions that the newest checkpoint and the one before need the journal from.
    pub needed: [u64; 2],
    /// The monotonic clock when this life began.
    pub began: u64,
    /// All bytes written in this life and those of records, when last looked at.
    pub written: (u64, u64),
    /// Highest time the cache has certainly seen.
    pub time: u64,
    /// Seconds that the wall clock was ahead of the clock that nobody can set, the most that the
    /// cache has certainly seen.
    pub lead: u64,
    pub serial: u64,
    /// Highest version handed out so far.
    pub version: u64,
    pub uuid: [u8; 16],
    pub trace: bool,
}

impl Run {
    /// A run in its first life.
    pub fn new(world: World, setup: &Setup, uuid: [u8; 16], trace: bool) -> Self {
        let mut run = Self {
            world,
            oracle: Oracle::new(setup.namespaces.len(), setup.keys),
            waiting: Vec::new(),
            changing: Vec::new(),
            acking: Vec::new(),
            unheard: Vec::new(),
            outcome: Outcome::default(),
            done: [Tally::default(); 4],
            options: setup.namespaces.clone(),
            foul: false,
            reshaped: false,
            fouled: false,
            stained: false,
            holes: false,
            homes: HashMap::new(),
            flashed: HashMap::new(),
            silences: 0,
            fell_silent: false,
            at_risk: HashMap::default(),
            lateness: Lateness::default(),
            happened: Arc::default(),
            copies: DirectoryCopies::default(),
            snapshots: Snapshots::default(),
            closing: false,
            to_keep: None,
            needed: [0; 2],
            began: 0,
            written: (0, 0),
            time: EPOCH,
            lead: EPOCH,
            serial: 0,
            version: 0,
            uuid,
            trace,
        };
        for (n, options) in (0..).zip(&setup.namespaces) {
            run.oracle.start(n, options.immutable);
        }
        run
    }
}

/// How a life ends.
pub(super) struct Ending {
    pub kind: Crash,
    /// What must be warm is looked for.
    pub check: bool,
    /// The machine is dead already.
    pub cut: bool,
    pub again: Option<u8>,
    pub exchange: Option<u8>,
}

macro_rules! say {
    ($run:expr, $($arg:tt)*) => { if $run.trace { println!("      {}", format_args!($($arg)*)) } };
}
pub(super) use say;

pub(super) fn key_bytes(key: Key) -> Vec<u8> {
    // One key is empty, some are long.
    let mut bytes = Vec::with_capacity(if key.n % 11 == 3 { 200 } else { 16 });
    if key.n > 0 {
        write!(bytes, "key-{}", key.n).expect("a vector takes it");
    }
    if key.n % 11 == 3 {
        bytes.resize(200, b'.');
    }
    bytes
}

/// A lookup with all its reads.
pub(super) fn look_up(life: &Life, handle: &Namespace, key: &[u8]) -> Lookup {
    let mut lookup = handle.get(key);
    while let Lookup::Flash(read) = lookup {
        let bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
        lookup = read.finish(bytes);
    }
    lookup
}

/// Carries out a lookup, and asserts that the copy it takes costs no object that only DRAM has.
pub(super) fn costs_nothing<T>(core: &Core, key: Key, lookup: impl FnOnce() -> T) -> T {
    let shard = core.shard(core.hash(key.ns.into(), &key_bytes(key)));
    // What else is evicted has lost its slot: flash had forgotten it before.
    let has_dirty = shard.lock().dram.dirty_len() > 0;
    let before = lost_on_the_way(core);
    let result = lookup();
    let lost = lost_on_the_way(core) - before;
    assert!(!has_dirty || lost == 0, "a lookup of {key:?} cost {lost} objects");
    result
}

/// Objects that left DRAM and that flash could not take.
fn lost_on_the_way(core: &Core) -> u64 {
    const REASONS: [DropReason; 3] =
        [DropReason::QueueFull, DropReason::NoFreeSegment, DropReason::WriteFailed];
    let namespaces = core.namespaces.list.read();
    let lost =
        |ns: &NamespaceState| REASONS.map(|reason| ns.counters.dropped[reason as usize].get());
    namespaces.iter().flat_map(|ns| lost(ns)).sum()
}

pub(super) fn put_options(object: SimObject) -> PutOptions {
    let options = PutOptions {
        expiry: object.expiry,
        group: object.group,
        token: u64::from(object.slot) << 44,
        // Some of what is written back is to be on flash at once.
        through: object.serial % 8 == 3,
        or_refused: object.serial % 16 == 3,
    };
    debug_assert_eq!(epoch_slot(options.token), object.slot);
    options
}
