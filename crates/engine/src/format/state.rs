//! The state file of the data directory: replaced atomically as a whole (write, fsync, rename,
//! fsync of the directory).
//!
//! ```text
//! magic 8 | format u32 | flags u32 (1 = clean) | uuid 16 | generation u64 | boot id 16 |
//! version limit u64 | time u64 | hash seed u64 | set epoch u64 | checkpoint sequence u64 |
//! journal epoch u64 | namespaces u32 | { id u16, options u16, kill version u64, name len u16, name } ... |
//! devices u32 | { id u32, epoch u64, first segment u32, segments u32, home u32, path len u16, path } ... |
//! appended u64 | slots u32 | runs u32 | { slot u32, from u64, to u64, kills u32, checksum u64 } ... | checksum u64
//! ```
//! Where there is a kill log the format is 3, and 2 without the last line of fields otherwise: an
//! earlier release refuses just what it would not understand.
//!
//! `generation` counts openings: it is raised and made durable before an opened cache changes
//! anything. Earlier builds wrote no devices. No version at or above `version limit` has ever been
//! used.

use super::kill_run::KillRun;
use super::{FORMAT_VERSION, checksum, is_read};
use crate::config::{Durability, Mutability, NamespaceOptions, Survives};
use crate::index::MAX_SEGMENTS;

const MAGIC: [u8; 8] = *b"aglowSTA";

/// Format of a state file that has a kill log.
pub const WITH_KILL_LOG: u32 = FORMAT_VERSION + 1;

/// Name of the state file.
pub const STATE: &str = "state";

/// The journal's epoch began with no checkpoint that could be read.
pub const NO_CHECKPOINT: u64 = u64::MAX;

/// A namespace, as remembered between openings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceRecord {
    /// Its id in records.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its options.
    pub options: NamespaceOptions,
    /// Everything below this version in it is dead: it started cold then. It is here, and not in
    /// the journal, because it must become durable in one step with the boot id. The boot id says
    /// that a machine crash has been dealt with.
    pub kill: u64,
    /// A power loss may have left records of it without their journal entries. Not all of these
    /// were read before it was opened with other options. False after a clean stop.
    pub journal_gaps: bool,
}

/// A device of the cache, as remembered between openings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRecord {
    /// Its number. No other member has it; a member of the past may have had it, with another
    /// epoch.
    pub id: u32,
    /// Version at which it joined: nothing on it with a lower generation counts.
    pub epoch: u64,
    /// First of its logical segments.
    pub base: u32,
    /// Segments on it.
    pub segments: u32,
    /// 1 and 2 for the homes of checkpoints, 0 for others.
    pub home: u32,
    /// Where it was found, for messages.
    pub path: String,
}

/// The kill log: parts of the journal, since the newest checkpoint, that were moved out of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KillLog {
    /// Records written to segments since that checkpoint, about: recovery reads their footers.
    pub appended: u64,
    /// Slots below this one may have files of runs, also of such as count no more.
    pub slots: u32,
    /// The runs, in the order of their positions: each begins where the one before ends, or behind
    /// it where a checkpoint has made up for what is between them.
    pub runs: Vec<KillRun>,
}

impl KillLog {
    /// Whether there is nothing to be said of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// One past the last of the journal's positions that runs stand for; 0 without any.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.to)
    }

    /// The runs that stand for the journal's positions from `needed` on, without a gap.
    pub fn chain(&self, needed: u64) -> impl Iterator<Item = &KillRun> {
        let mut end = needed;
        self.runs.iter().filter(move |run| run.to > needed).take_while(move |run| {
            let goes_on = run.from <= end;
            end = run.to;
            goes_on
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.appended.to_le_bytes());
        out.extend_from_slice(&self.slots.to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&run.slot.to_le_bytes());
            out.extend_from_slice(&run.from.to_le_bytes());
            out.extend_from_slice(&run.to.to_le_bytes());
            out.extend_from_slice(&run.kills.to_le_bytes());
            out.extend_from_slice(&run.checksum.to_le_bytes());
        }
    }

    fn decode(r: &mut FieldReader<'_>) -> Option<Self> {
        let mut log = Self { appended: r.u64()?, slots: r.u32()?, runs: Vec::new() };
        for _ in 0..r.u32()? {
            let (slot, from, to) = (r.u32()?, r.u64()?, r.u64()?);
            let run = KillRun { slot, from, to, kills: r.u32()?, checksum: r.u64()? };
            if slot >= log.slots || from < log.end() || from >= to {
                return None;
            }
            log.runs.push(run);
        }
        Some(log)
    }
}

/// The state file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateFile {
    /// The cache was closed properly and nothing has happened since.
    pub clean: bool,
    /// The cache.
    pub uuid: [u8; 16],
    /// How often it was opened.
    pub generation: u64,
    /// The kernel's boot id when it was opened; zeros when it could not be read.
    pub boot_id: [u8; 16],
    /// Versions from here on are unused.
    pub version_limit: u64,
    /// Highest Unix time seen.
    pub time: u64,
    /// Key of all hashes.
    pub hash_seed: u64,
    /// Incarnation of the set of devices.
    pub set_epoch: u64,
    /// Clean: the checkpoint of the clean stop. Otherwise the one that the journal's epoch began
    /// beside, [`NO_CHECKPOINT`] for none; or any other, of which nothing follows.
    pub checkpoint: u64,
    /// Incarnation of the journal; entries and checkpoints of another one are void.
    pub journal_epoch: u64,
    /// Namespaces ever opened.
    pub namespaces: Vec<NamespaceRecord>,
    /// Devices it has; none where an earlier build wrote it.
    pub devices: Vec<DeviceRecord>,
    /// What of the journal is elsewhere.
    pub kill_log: KillLog,
}

/// Why a state file was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateError {
    /// Written by another version.
    OtherFormat(u32),
    /// Not a state file.
    Foreign,
    /// Damaged.
    Damaged,
}

/// Bytes before what a state file says: its magic and format.
const BODY_AT: usize = 12;
/// Most bytes of a device's path that are kept.
const MOST_PATH: usize = 4096;
/// Bit of [`NamespaceRecord::journal_gaps`] beside the options.
const JOURNAL_GAPS: u16 = 32;

fn pack(o: &NamespaceOptions) -> u16 {
    u16::from(o.mutability == Mutability::Immutable)
        | u16::from(o.survives == Survives::CleanStop) << 1
        | (o.durability as u16) << 2
        | u16::from(o.partition_epochs) << 4
}

fn unpack(bits: u16) -> NamespaceOptions {
    NamespaceOptions {
        mutability: if bits & 1 == 0 { Mutability::Mutable } else { Mutability::Immutable },
        survives: if bits & 2 == 0 { Survives::Crash } else { Survives::CleanStop },
        durability: match (bits >> 2) & 3 {
            0 => Durability::WriteBack,
            1 => Durability::WriteThrough,
            _ => Durability::Synced,
        },
        partition_epochs: bits & 16 != 0,
    }
}

impl StateFile {
    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&MAGIC);
        let format = if self.kill_log.is_empty() { FORMAT_VERSION } else { WITH_KILL_LOG };
        out.extend_from_slice(&format.to_le_bytes());
        out.extend_from_slice(&u32::from(self.clean).to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.boot_id);
        for n in [
            self.version_limit,
            self.time,
            self.hash_seed,
            self.set_epoch,
            self.checkpoint,
            self.journal_epoch,
        ] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(self.namespaces.len() as u32).to_le_bytes());
        for ns in &self.namespaces {
            out.extend_from_slice(&ns.id.to_le_bytes());
            let gaps = if ns.journal_gaps { JOURNAL_GAPS } else { 0 };
            out.extend_from_slice(&(pack(&ns.options) | gaps).to_le_bytes());
            out.extend_from_slice(&ns.kill.to_le_bytes());
            out.extend_from_slice(&(ns.name.len() as u16).to_le_bytes());
            out.extend_from_slice(ns.name.as_bytes());
        }
        out.extend_from_slice(&(self.devices.len() as u32).to_le_bytes());
        for device in &self.devices {
            out.extend_from_slice(&device.id.to_le_bytes());
            out.extend_from_slice(&device.epoch.to_le_bytes());
            for n in [device.base, device.segments, device.home] {
                out.extend_from_slice(&n.to_le_bytes());
            }
            let path = &device.path.as_bytes()[..device.path.floor_char_boundary(MOST_PATH)];
            out.extend_from_slice(&(path.len() as u16).to_le_bytes());
            out.extend_from_slice(path);
        }
        if !self.kill_log.is_empty() {
            self.kill_log.encode(&mut out);
        }
        let sum = checksum(0, &out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// The state in `bytes`.
    ///
    /// # Errors
    /// [`StateError`] when it is of another format or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let mut r = FieldReader::new(bytes);
        // Nothing but zeros, or too little of it, is what a file system may leave of ours after
        // power loss.
        let torn = MAGIC.starts_with(bytes) || bytes.iter().all(|byte| *byte == 0);
        if r.array().is_none_or(|magic| magic != MAGIC) {
            return Err(if torn { StateError::Damaged } else { StateError::Foreign });
        }
        let format = r.u32().ok_or(StateError::Damaged)?;
        if !is_read(format) && format != WITH_KILL_LOG {
            return Err(StateError::OtherFormat(format));
        }
        let body = bytes.len().checked_sub(8).ok_or(StateError::Damaged)?;
        if checksum(0, &bytes[..body]).to_le_bytes() != bytes[body..] {
            return Err(StateError::Damaged);
        }
        let mut r = FieldReader::new(&bytes[BODY_AT.min(body)..body]);
        let mut state = Self::decode_body(&mut r).ok_or(StateError::Damaged)?;
        if format == WITH_KILL_LOG {
            state.kill_log = KillLog::decode(&mut r).ok_or(StateError::Damaged)?;
        }
        Ok(state)
    }

    fn decode_body(r: &mut FieldReader<'_>) -> Option<Self> {
        let mut state = Self {
            clean: r.u32()? & 1 != 0,
            uuid: r.array()?,
            generation: r.u64()?,
            boot_id: r.array()?,
            version_limit: r.u64()?,
            time: r.u64()?,
            hash_seed: r.u64()?,
            set_epoch: r.u64()?,
            checkpoint: r.u64()?,
            journal_epoch: r.u64()?,
            namespaces: Vec::new(),
            devices: Vec::new(),
            kill_log: KillLog::default(),
        };
        for _ in 0..r.u32()? {
            let (id, bits, kill, len) = (r.u16()?, r.u16()?, r.u64()?, r.u16()?);
            let (options, journal_gaps) = (unpack(bits), bits & JOURNAL_GAPS != 0);
            let name = String::from_utf8(r.bytes(usize::from(len))?.to_vec()).ok()?;
            // Records name their namespace by its place in this list.
            if usize::from(id) != state.namespaces.len() {
                return None;
            }
            state.namespaces.push(NamespaceRecord { id, name, options, kill, journal_gaps });
        }
        if r.is_empty() {
            return Some(state);
        }
        for _ in 0..r.u32()? {
            let (id, epoch, base, segments, home) =
                (r.u32()?, r.u64()?, r.u32()?, r.u32()?, r.u32()?);
            let len = r.u16()?;
            let path = String::from_utf8(r.bytes(usize::from(len))?.to_vec()).ok()?;
            if home > 2 || base.checked_add(segments).is_none_or(|end| end > MAX_SEGMENTS) {
                return None;
            }
            state.devices.push(DeviceRecord { id, epoch, base, segments, home, path });
        }
        Some(state)
    }
}

/// Reads little-endian integers off the front of a slice; `None` at its end.
pub struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all has been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next u16.
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.array()?))
    }

    /// The next u32.
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    /// The next u64.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(n: u32, at: u64) -> KillRun {
        let from = at + u64::from(n) * 10;
        KillRun { slot: n, from, to: from + 10 - u64::from(n), kills: n, checksum: at }
    }

    proptest! {
        #[test]
        fn a_state_reads_back_and_every_flipped_bit_is_noticed(
            clean: bool, generation: u64, version_limit: u64, options in 0u16..32, name in "[a-z.]{0,40}",
            journal_gaps: bool, runs in 0u32..4, appended in 0u64..2, flip: prop::sample::Index,
        ) {
            let options = unpack(if options & 12 == 12 { options & !4 } else { options });
            let state = StateFile {
                clean,
                uuid: [1; 16],
                generation,
                boot_id: [2; 16],
                version_limit,
                time: 5,
                hash_seed: 6,
                set_epoch: 7,
                checkpoint: 8,
                journal_epoch: 9,
                namespaces: vec![NamespaceRecord {
                    id: 0,
                    name: name.clone(),
                    options,
                    kill: 7,
                    journal_gaps,
                }],
                devices: vec![DeviceRecord {
                    id: 3,
                    epoch: generation,
                    base: 4,
                    segments: 5,
                    home: 2,
                    path: name,
                }],
                kill_log: KillLog {
                    appended,
                    slots: runs,
                    runs: (0..runs).map(|n| run(n, generation >> 8)).collect(),
                },
            };
            let mut bytes = state.encode();
            let is_of_2 = bytes[8..12] == FORMAT_VERSION.to_le_bytes();
            prop_assert_eq!(is_of_2, runs == 0 && appended == 0, "an earlier release reads it");
            prop_assert_eq!(StateFile::decode(&bytes), Ok(state));
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(StateFile::decode(&bytes).is_err());
        }

        #[test]
        fn a_piece_of_ours_is_damaged_and_what_never_was_ours_is_foreign(
            keep in 0_usize..60, zeros in 0_usize..200, other in "[b-z]{1,200}",
        ) {
            let mut bytes = [&MAGIC[..], &FORMAT_VERSION.to_le_bytes(), &[7; 100]].concat();
            bytes.truncate(keep);
            prop_assert_eq!(StateFile::decode(&bytes), Err(StateError::Damaged));
            prop_assert_eq!(StateFile::decode(&vec![0; zeros]), Err(StateError::Damaged));
            prop_assert_eq!(StateFile::decode(other.as_bytes()), Err(StateError::Foreign));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(StateFile::decode(&bytes).is_err());
        }
    }
}
