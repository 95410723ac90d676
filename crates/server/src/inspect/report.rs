//! What was found, as text and as JSON.

use std::{fmt, path::PathBuf};

use serde::Serialize;

/// Everything found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The directory.
    pub data_dir: PathBuf,
    /// The process that has it open; what follows may then be a moment old or in motion.
    pub open_in_process: Option<u32>,
    /// The state file.
    pub state: DirectoryState,
    /// The devices, in the order they were named.
    pub devices: Vec<Device>,
    /// The newest whole checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The journal; `None` when there is none of this cache.
    pub journal: Option<Journal>,
    /// Why the journal's file cannot be used; the next start is refused then.
    pub unusable: Option<String>,
    /// What the next start will make of it.
    pub next_start: NextStart,
}

/// The state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum DirectoryState {
    /// There is none.
    Missing,
    /// It cannot be read, or is not what it should be.
    Damaged {
        /// In what way.
        why: String,
    },
    /// It is not Afterglow's; Afterglow will not touch it.
    Foreign,
    /// Another version of Afterglow wrote it.
    OtherFormat {
        /// Its format.
        format: u32,
    },
    /// It is whole.
    Whole {
        /// Which cache.
        cache: String,
        /// Closed properly, and not opened since.
        clean: bool,
        /// How often it was opened.
        openings: u64,
        /// Opened since the machine was started.
        this_boot: bool,
        /// Highest Unix time seen, in seconds.
        time: u64,
        /// The same, for people.
        time_utc: String,
        /// Namespaces ever opened.
        namespaces: Vec<Namespace>,
    },
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Keys may get other values.
    pub mutable: bool,
    /// Survives `kill -9`, not only a clean stop.
    pub survives_crash: bool,
}

/// A file or block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Where.
    pub path: PathBuf,
    /// What.
    #[serde(flatten)]
    pub state: DeviceState,
}

/// What a device holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum DeviceState {
    /// A part of a cache.
    Ours {
        /// Which cache.
        cache: String,
        /// Its place among the devices of the cache, from 0.
        position: u32,
        /// How many devices the cache has.
        devices: u32,
        /// Bytes used on it.
        bytes: u64,
        /// Segments on it.
        segments: u32,
        /// Bytes per segment.
        segment_bytes: u32,
    },
    /// Nothing but zeros.
    Blank,
    /// Something else; Afterglow will not touch it.
    Foreign,
    /// Another version of Afterglow wrote it.
    OtherFormat {
        /// Its format.
        format: u32,
    },
    /// It cannot be read.
    Unreadable {
        /// Why.
        why: String,
    },
}

/// The newest whole checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// Its number.
    pub sequence: u64,
    /// Unix time it was taken, in seconds.
    pub time: u64,
    /// The same, for people.
    pub time_utc: String,
    /// Slots of the index, each for one object.
    pub index_slots: u64,
    /// Segments that were sealed.
    pub segments_sealed: u64,
    /// Segments that were free.
    pub segments_free: u64,
    /// Segments out of use after write errors.
    pub segments_retired: u64,
    /// Records in sealed segments, dead ones included.
    pub records: u64,
    /// Bytes of these records.
    pub record_bytes: u64,
}

/// The journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Journal {
    /// Whole entries in it, those a checkpoint covers included.
    pub entries: u64,
    /// Entries it has room for.
    pub capacity: u64,
    /// It has lost an entry, so that a crash makes Mutable namespaces cold.
    pub poisoned: bool,
}

/// What the next start will make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NextStart {
    /// There is nothing yet.
    New,
    /// Everything is served again.
    Warm,
    /// As after a crash: what had reached flash is served, if the journal is whole.
    WarmAfterCrash,
    /// Nothing that can change is served: invalidations might have been lost.
    Cold,
    /// It will be refused.
    Refused,
    /// The flash was not looked at.
    Unknown,
}

impl NextStart {
    fn explain(self) -> &'static str {
        match self {
            NextStart::New => "a new cache is made",
            NextStart::Warm => "warm: it was closed properly, everything on flash is served",
            NextStart::WarmAfterCrash => {
                "warm: the process ended without closing it, what had reached flash is served"
            }
            NextStart::Cold => {
                "cold: what can change is not served, since invalidations might have been lost"
            }
            NextStart::Refused => {
                "refused: these files are not, or not only, of this cache and this version"
            }
            NextStart::Unknown => {
                "not known without --flash: the cache's flash is not in its data directory"
            }
        }
    }
}

pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{bytes} B"),
        _ if bytes < 1 << 30 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "data directory  {}", self.data_dir.display())?;
        if let Some(pid) = self.open_in_process {
            writeln!(f, "in use          by process {pid}: what follows may be in motion")?;
        }
        writeln!(f, "state           {}", self.state)?;
        if let DirectoryState::Whole { namespaces, .. } = &self.state {
            for n in namespaces {
                let kind = if n.mutable { "mutable" } else { "immutable" };
                let survives =
                    if n.survives_crash { "survives crashes" } else { "survives clean stops only" };
                writeln!(f, "namespace       {}: {kind}, {survives}", n.name)?;
            }
        }
        for device in &self.devices {
            writeln!(f, "device          {}: {}", device.path.display(), device.state)?;
        }
        match &self.checkpoint {
            None => writeln!(f, "checkpoint      none")?,
            Some(c) => {
                let Checkpoint { sequence, time, time_utc, .. } = c;
                writeln!(
                    f,
                    "checkpoint      number {sequence}, taken at {time_utc} (Unix time {time})"
                )?;
                writeln!(
                    f,
                    "                {} segments sealed, {} free, {} retired; {} records of {}; index of {} slots",
                    c.segments_sealed,
                    c.segments_free,
                    c.segments_retired,
                    c.records,
                    size(c.record_bytes),
                    c.index_slots
                )?;
            }
        }
        match &self.journal {
            None => writeln!(f, "journal         none of this cache")?,
            Some(j) => {
                let poisoned = if j.poisoned { ", poisoned: it has lost an entry" } else { "" };
                writeln!(
                    f,
                    "journal         {} entries, room for {}{poisoned}",
                    j.entries, j.capacity
                )?;
            }
        }
        match &self.unusable {
            Some(why) => writeln!(f, "next start      refused: {why}"),
            None => writeln!(f, "next start      {}", self.next_start.explain()),
        }
    }
}

impl fmt::Display for DirectoryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryState::Missing => f.write_str("no cache here yet"),
            DirectoryState::Damaged { why } => write!(f, "damaged: {why}"),
            DirectoryState::Foreign => f.write_str("not Afterglow's, or damaged at its start"),
            DirectoryState::OtherFormat { format } => {
                write!(f, "of format {format}, written by another version")
            }
            DirectoryState::Whole { cache, clean, openings, this_boot, time, time_utc, .. } => {
                let end = if *clean { "closed properly" } else { "not closed" };
                let boot = if *this_boot {
                    "since this machine was started"
                } else {
                    "before this machine was started"
                };
                write!(f, "cache {cache}, opened {openings} times, last {boot}, {end}; ")?;
                write!(f, "highest time seen {time_utc} (Unix time {time})")
            }
        }
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceState::Ours { cache, position, devices, bytes, segments, segment_bytes } => {
                write!(
                    f,
                    "{} of {devices} of cache {cache}, {} in {segments} segments of {}",
                    position + 1,
                    size(*bytes),
                    size((*segment_bytes).into())
                )
            }
            DeviceState::Blank => f.write_str("blank"),
            DeviceState::Foreign => f.write_str("not Afterglow's, or damaged at its start"),
            DeviceState::OtherFormat { format } => {
                write!(f, "of format {format}, written by another version")
            }
            DeviceState::Unreadable { why } => write!(f, "cannot be read: {why}"),
        }
    }
}
