//! A plan of a run: the cache's set-up and its steps. It is made from a seed. When a seed has
//! failed it is written out, so that it can be shortened and kept.
//!
//! Every step carries its own random number for all that is random in it. So leaving out other
//! steps changes little.

use serde::{Deserialize, Serialize};

use crate::config::{Durability, Mutability, NamespaceOptions, Survives};
use crate::device::sim::{SimFaults, SimIo};

/// The cache and its keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    pub seed: u64,
    pub segment_kib: u32,
    /// Segments of each device.
    pub segments: Vec<u32>,
    pub journal_kib: u64,
    pub size: Size,
    /// Bits that a tag has of its 16.
    pub tag_bits: u32,
    pub reinsertion: f64,
    pub write_budget: Option<u64>,
    pub namespaces: Vec<Options>,
    /// Keys of each namespace.
    pub keys: u32,
    /// Lives, from the first on, that write records as format 1 did. Runs that were kept before
    /// there was another format do so always.
    #[serde(default = "always")]
    pub fixed_lives: u64,
    /// Whether trying has shown in every life that flash should take what has not proven itself.
    /// Without it few objects are written, and few segments are reclaimed. So it was in runs that
    /// were kept before admission tried anything.
    #[serde(default = "yes")]
    pub admits_unproven: bool,
    /// Whether objects compete for the DRAM tier, which is too small here to find out whether that
    /// pays.
    #[serde(default)]
    pub contests: bool,
    /// Milliseconds after which a device that has a little more to do than another is relieved of
    /// what is read most; `None` as a cache has it in production, which no run is long enough for.
    #[serde(default)]
    pub relieves_after: Option<u64>,
    /// Whether what is read once moves too, to a device that has plenty of space. In runs that were
    /// kept before it did not.
    #[serde(default)]
    pub moves_once: bool,
    /// Changes between two checkpoints, in lengths of the journal, for which the journal is
    /// compacted. With none it never is, as in runs that were kept before there was a kill log.
    #[serde(default)]
    pub compacts: u64,
    /// Parts in which the index is loaded, at most.
    #[serde(default)]
    pub passes: Option<u32>,
    /// KiB of each device besides segments. The least leaves no room for a second home of
    /// checkpoints, as in runs that were kept before there was one.
    #[serde(default = "least_head")]
    pub head_kib: u64,
    /// Index lines in a block of a checkpoint, where its areas are small; `None` as on real disks.
    #[serde(default)]
    pub block_lines: Option<u64>,
}

/// What a superblock and the areas of the smallest index need.
pub fn least_head() -> u64 {
    192
}

fn always() -> u64 {
    u64::MAX
}

fn yes() -> bool {
    true
}

/// What may change between two lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub shards: u32,
    /// Index lines per shard.
    pub lines: u32,
    /// Bytes of objects in DRAM per shard, about.
    pub dram: u32,
}

/// Options of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    pub immutable: bool,
    pub clean_stop: bool,
    /// 0 write-back, 1 write-through, 2 synced.
    pub durability: u8,
}

impl Options {
    pub fn real(self) -> NamespaceOptions {
        NamespaceOptions {
            mutability: if self.immutable { Mutability::Immutable } else { Mutability::Mutable },
            survives: if self.clean_stop { Survives::CleanStop } else { Survives::Crash },
            durability: [Durability::WriteBack, Durability::WriteThrough, Durability::Synced]
                [usize::from(self.durability)],
            partition_epochs: true,
        }
    }
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub salt: u64,
    pub what: What,
}

/// Of so many stores to the journal at most, one finds a page given up.
const MOST_GIVEN_UP: f64 = 0.002;

/// A fault that can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    Read,
    Write,
    Sync,
    NoSpace,
    ShortRead,
    FlipOnRead,
    FlipOnWrite,
    Misdirected,
    Lost,
    Slow,
    Media,
    Meta,
    /// All of the devices'.
    Any,
}

/// A kind of I/O that can be held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldIo {
    Read,
    Write,
    Sync,
}

impl HeldIo {
    pub fn real(self) -> SimIo {
        match self {
            Self::Read => SimIo::Read,
            Self::Write => SimIo::Write,
            Self::Sync => SimIo::Sync,
        }
    }
}

/// When a key is to expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expiry {
    Never,
    /// Seconds from now, perhaps 0.
    In(u32),
}

/// What another thread does while a read is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Race {
    None,
    Put { len: u32 },
    Remove,
}

/// What a read-modify-write makes of what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModifyKind {
    /// A new object, if there is none.
    Add,
    /// A new object.
    Put,
    /// Another value.
    Value,
    /// Another expiry.
    Touch,
    Remove,
}

/// What a compare-and-put expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    Current,
    Nothing,
    Wrong,
}

/// A namespace and a key's number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    pub ns: u8,
    pub n: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum What {
    Put {
        key: Key,
        len: u32,
        expiry: Expiry,
        group: u8,
        slot: u8,
    },
    PutIf {
        key: Key,
        len: u32,
        expect: Expect,
        race: Race,
    },
    /// A submitted read-modify-write; its read waits.
    Modify {
        key: Key,
        len: u32,
        change: ModifyKind,
        expiry: Expiry,
    },
    /// A submitted lookup; its read waits.
    Get {
        key: Key,
    },
    /// Ends one of the lookups that wait.
    Finish {
        n: u8,
    },
    /// A blocking lookup.
    Read {
        key: Key,
        race: Race,
    },
    Remove {
        key: Key,
    },
    RemoveGroup {
        ns: u8,
        group: u8,
    },
    BumpEpoch {
        ns: u8,
        slot: u8,
    },
    Clear {
        ns: u8,
    },
    /// The background work goes on by one step, so many milliseconds later.
    Turn {
        ms: u32,
    },
    /// A while without operations.
    Idle {
        turns: u32,
    },
    /// Some keys are changed ten times a second, for so many turns.
    Count {
        ns: u8,
        counters: u8,
        turns: u32,
    },
    /// The background thread makes no step for so long, in a flush or anywhere, while so many
    /// operations are done.
    Block {
        ms: u32,
        operations: u8,
        flush: bool,
    },
    /// Faults end, and everything must come to rest.
    Rest,
    /// Somebody finds the journal nearly full: a checkpoint is made at once.
    Checkpoint,
    /// One I/O takes so many turns, the first of its kind behind so many others.
    HoldUp {
        io: HeldIo,
        after: u8,
        turns: u32,
    },
    /// The power goes so many effects behind the next write of a checkpoint's header.
    CutBehindHeader {
        effects: u8,
    },
    /// Removals until the journal has gone so many entries over what the checkpoint before the
    /// newest needs.
    Lap {
        ns: u8,
        over: u8,
    },
    SetClock {
        by: i32,
    },
    Sync,
    Fault {
        fault: Fault,
        permille: u32,
    },
    Heal,
    Away {
        device: u8,
        away: bool,
    },
    /// A device falls mute in the middle of the next opening, once it was asked so often.
    HangOpening {
        device: u8,
        after: u32,
    },
    /// What is asked of a device stays in flight, or ends as ever.
    Mute {
        device: u8,
        mute: bool,
    },
    /// A device is mute from now on, and over so many crashes.
    MuteOver {
        device: u8,
        crashes: u32,
    },
    /// The power goes in the middle of the n-th effect from now on.
    CutAfter {
        effects: u32,
    },
    /// The clean stop begins, operations go on.
    StartClose,
    /// The clean stop ends; so many keys are removed behind it, then the process or the machine
    /// goes.
    Close {
        removes: u8,
        machine: bool,
        check: bool,
    },
    /// `again`: the opening behind it is cut short, too. `exchange`: a device is exchanged for its
    /// spare one meanwhile.
    Crash {
        machine: bool,
        check: bool,
        again: Option<u8>,
        exchange: Option<u8>,
    },
    /// The data directory is copied when this life has ended.
    CopyDirectory,
    /// The next opening finds the data directory as it was copied, if devices show that they have
    /// gone on since.
    OlderDirectory,
    /// A snapshot of a device is taken.
    CopyDevice {
        device: u8,
    },
    /// The next opening finds a device as it was in its latest snapshot of this cache.
    OlderDevice {
        device: u8,
    },
    /// The next opening finds each of two devices in the place of the other.
    SwapDevices {
        one: u8,
        other: u8,
    },
    /// The next opening finds an empty device in the place of one, which has so many segments more
    /// or fewer.
    NewDevice {
        device: u8,
        more: i32,
    },
    /// Sizes from the next opening on.
    Resize {
        size: Size,
    },
    /// Options from the next opening on.
    SetOptions {
        ns: u8,
        options: Options,
    },
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub setup: Setup,
    pub steps: Vec<Step>,
}

impl Plan {
    /// One line for the set-up and one for each step.
    pub fn to_text(&self) -> String {
        let line = |step: &Step| serde_json::to_string(step).expect("plain data") + "\n";
        let setup = serde_json::to_string(&self.setup).expect("plain data") + "\n";
        std::iter::once(setup).chain(self.steps.iter().map(line)).collect()
    }

    /// What [`Plan::to_text`] has written; lines that start with `#` say why it is kept.
    pub fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        let mut lines = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
        let setup = serde_json::from_str(lines.next().unwrap_or_default())?;
        let steps = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { setup, steps })
    }
}

impl Setup {
    /// What runs told step by step start from.
    pub fn plain(seed: u64) -> Self {
        let options =
            |immutable, clean_stop, durability| Options { immutable, clean_stop, durability };
        Self {
            seed,
            segment_kib: 64,
            segments: vec![17],
            journal_kib: 16,
            size: Size { shards: 2, lines: 256, dram: 60 << 10 },
            tag_bits: 16,
            reinsertion: 0.15,
            write_budget: None,
            namespaces: vec![
                options(false, false, 0),
                options(false, false, 2),
                options(true, false, 1),
                options(false, true, 0),
            ],
            keys: 90,
            fixed_lives: 0,
            admits_unproven: false,
            contests: false,
            relieves_after: None,
            moves_once: false,
            compacts: 0,
            passes: None,
            head_kib: least_head(),
            block_lines: None,
        }
    }

    /// Whether each device may be a home of checkpoints.
    pub fn has_room_for_homes(&self) -> bool {
        self.head_kib > least_head()
    }
}

impl Fault {
    /// Sets its probability.
    pub fn set(self, faults: &mut SimFaults, p: f64) {
        let place = match self {
            Self::Read => &mut faults.read_error,
            Self::Write => &mut faults.write_error,
            Self::Sync => &mut faults.sync_error,
            Self::NoSpace => &mut faults.no_space,
            Self::ShortRead => &mut faults.short_read,
            Self::FlipOnRead => &mut faults.flip_on_read,
            Self::FlipOnWrite => &mut faults.flip_on_write,
            Self::Misdirected => &mut faults.misdirected_write,
            Self::Lost => &mut faults.lost_write,
            Self::Slow => &mut faults.slow,
            Self::Media => {
                (faults.media_error, faults.media_sync_error) = (p, p);
                faults.writeback_error = p.min(MOST_GIVEN_UP);
                return;
            }
            Self::Meta => &mut faults.meta_error,
            Self::Any => {
                *faults = SimFaults {
                    media_error: faults.media_error,
                    media_sync_error: faults.media_sync_error,
                    writeback_error: faults.writeback_error,
                    meta_error: faults.meta_error,
                    ..SimFaults::all(p)
                };
                return;
            }
        };
        *place = p;
    }
}
