//! A machine: its clock, its data directory, and the process that runs on it.
//!
//! A start does what [`Cached::open`](super::super::super::setup::Cached::open) and
//! [`OpenRing::start`](super::super::setup::OpenRing::start) do. What differs:
//!
//! - The engine stays open, since the engine has a simulation of its own. So a crash costs no rows,
//!   and none comes back.
//! - The claim is given, as if the instance file had it.
//!
//! The intents are as they were when the process died, whatever its parts do as they are dropped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afterglow_engine::device::DeviceConfig;
use afterglow_engine::{Cache, Config, NamespaceOptions};
use afterglow_ring::{MemberId, Profile, Setting, Time};
use afterglow_rowcache::clock::{Clock, Millis};
use afterglow_rowcache::intents::IntentTable;
use afterglow_rowcache::intents::words::ANYTHING;
use afterglow_rowcache::policy::{Policies, Policy};
use afterglow_rowcache::row_cache::{Parts, RowCache};
use afterglow_rowcache::unit::Units;
use afterglow_rowcache::write_scope::WriteScope;
use futures_channel::mpsc;
use tempfile::TempDir;
use uuid::Uuid;

use super::super::core::Ring;
use super::super::kept::KeptFile;
use super::super::source;
use super::catalog::Catalog;
use super::process::{Desk, Hands, Process};
use crate::config::FillHedge;
use crate::frontend::cql::cached::state::{CachedState, FillRules};
use crate::frontend::cql::cached::tables_of_last_run;

/// The boot of every machine: none starts again as a whole.
const BOOT: u64 = 7;
const INTENTS: &str = "intents";
const INTENT_SLOTS: u32 = 256;
/// What a weak row lives: longer than a write waits until its rows are dropped.
const WEAK: Duration = Duration::from_secs(4);
/// The wall clock at the begin.
const UNIX: u32 = 2_000_000_000;

/// The clock of the instance whose turn it is.
struct SimClock;

impl Clock for SimClock {
    fn now(&self) -> Millis {
        source::now() / 1_000
    }

    fn unix(&self) -> u32 {
        UNIX + self.seconds()
    }

    /// The engine's time is the real one, which a run must not depend on.
    fn slack(&self) -> u32 {
        1_000_000_000
    }
}

/// All writers come through the ring.
struct Exclusive;

impl Policies for Exclusive {
    fn generation(&self) -> u64 {
        0
    }

    fn policy(&self, _keyspace: &str, _table: &str) -> (u64, Policy) {
        (0, Policy::Exclusive)
    }
}

/// What a process that starts does not find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Nothing is lost.
    Nothing,
    /// The file of the ring.
    RingFile,
    /// The data directory.
    All,
}

/// A machine.
pub struct Machine {
    id: MemberId,
    weight: u32,
    /// Clock: an offset, and how many millionths it is too fast.
    offset: Time,
    fast: u64,
    dir: TempDir,
    engine: Cache,
    claim: u64,
    /// Whether a process has run in the data directory.
    used: bool,
}

impl Machine {
    /// A machine with an empty data directory.
    pub fn new(id: MemberId, weight: u32, (offset, fast): (Time, u64), claim: u64) -> Machine {
        let dir = tempfile::tempdir().expect("a folder");
        let device = DeviceConfig { path: dir.path().join("flash"), size: 32 << 20 };
        let mut config = Config::new(dir.path(), vec![device]);
        (config.memory, config.journal_size) = (16 << 20, 1 << 20);
        let engine = Cache::open(config).expect("an engine");
        Machine { id, weight, offset, fast, dir, engine, claim, used: false }
    }

    /// Its clock at a true time.
    pub fn clock(&self, now: Time) -> Time {
        self.offset + now + now * self.fast / 1_000_000
    }

    /// It is this machine's turn.
    pub fn takes_turn(&self, now: Time) {
        source::given::set_now(self.clock(now));
    }

    fn intents(&self) -> PathBuf {
        self.dir.path().join(INTENTS)
    }

    /// A process starts, after what its predecessor has left but for what was lost.
    pub fn start(
        &mut self,
        config: &Arc<afterglow_ring::Config>,
        catalog: &Arc<Catalog>,
        lost: Lost,
    ) -> Process {
        let dir = self.dir.path().to_owned();
        if lost != Lost::Nothing {
            // There is none before the first start.
            let _ = std::fs::remove_file(dir.join("ring"));
        }
        let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
        let rows = self.engine.namespace("cql", options).expect("a namespace");
        if lost == Lost::All {
            rows.clear();
            self.claim = self.claim.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let _ = std::fs::remove_file(self.intents());
            self.used = false;
        }
        let expected = std::mem::replace(&mut self.used, true);
        let (intents, unsettled) =
            IntentTable::open(&self.intents(), INTENT_SLOTS, ANYTHING, expected).expect("intents");
        let cache = RowCache::new(Parts {
            rows,
            intents,
            unsettled: unsettled.intents,
            policies: Arc::new(Exclusive),
            policies_since: (0, 0),
            hold: Duration::from_micros(config.hold),
            clock: Arc::new(SimClock),
            boot: BOOT,
            weak_max_age: WEAK,
        });
        let fills = FillRules { timeout: Duration::from_secs(6), hedge: FillHedge::Off };
        let shared = Arc::new(CachedState::new(
            (cache.clone(), tables_of_last_run(&self.engine, &dir)),
            &self.engine.devices(),
            Units::new(0),
            fills,
            true,
            Default::default(),
        ));
        let (kept, durable) = KeptFile::open(&dir, Uuid::from_u128(BOOT.into()));
        let (jobs, asked) = mpsc::unbounded();
        let of_cache = (cache.clone(), Box::new(|_: &WriteScope| WriteScope::default()) as _);
        let profile = self.profile();
        let ring = Ring::new(self.id, profile, config.clone(), durable, of_cache, jobs, 0);
        let (network, sent) = mpsc::unbounded();
        ring.network.set(network).expect("it is new");
        let _ = shared.ring.set(ring.clone());
        // The schema is known, and the row of instances without a ring is the ring's.
        cache.suspend(false);
        cache.set_claim(Some((self.claim, 0)));
        let hands = Hands::new(shared, ring, catalog.clone(), Desk::default());
        Process::new(hands, kept, asked, sent)
    }

    fn profile(&self) -> Profile {
        let settings = vec![Setting { name: "table-policy".into(), value: "exclusive".into() }];
        Profile { weight: self.weight, settings, ..Profile::default() }
    }

    /// The process dies.
    pub fn crash(&self, process: Process) {
        let intents = std::fs::read(self.intents()).expect("the process had them");
        drop(process);
        std::fs::write(self.intents(), intents).expect("nobody else has them");
    }
}
