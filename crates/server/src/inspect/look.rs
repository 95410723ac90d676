//! Reading the files, trusting nothing in them.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use afterglow_engine::{
    Mutability, Survives,
    device::area::{boot_id, look_at_area, unfit_to_map},
    format::{
        BLOCK,
        checkpoint::{Header, Tables},
        first_free::{first_free, opened},
        footer::decode_header,
        journal,
        kill_run::{self, KillRun, RunHead},
        state::{self, StateError},
        superblock::{Found, RESERVED, Superblock},
    },
};
use uuid::Uuid;

use super::report::{
    Checkpoint, Device, DeviceState, DirectoryState, Journal, Namespace, NextStart, Report,
};
use super::utc::utc;

/// Slots in a line of the index.
const SLOTS_PER_LINE: u64 = 8;
/// The epoch of a cache's first journal.
const FIRST_EPOCH: u64 = 1;
/// A time further ahead of the clock than this many seconds is not believed, nor anything with it.
const MAX_AHEAD: u64 = 86_400;
/// Entries of the journal read at once.
const JOURNAL_STEP: u64 = 32 * 1024;

/// Looks at a data directory and its devices. Opens files for reading only and takes no lock.
///
/// # Errors
/// When the directory cannot be entered; all else that is wrong is in the report.
pub fn inspect(data_dir: &Path, devices: &[PathBuf]) -> io::Result<Report> {
    let data_dir = data_dir.canonicalize()?;
    // A file would otherwise look like a directory with nothing in it.
    fs::read_dir(&data_dir)?;
    let (state, raw) = read_state(&data_dir.join("state"));
    let looked: Vec<_> = devices.iter().map(|path| (path.clone(), read_superblock(path))).collect();
    let homes = looked.iter().filter_map(|(path, found)| match found {
        Ok(Found::Ours(block)) if block.area > 0 => newest_checkpoint(path, block),
        _ => None,
    });
    let newest = homes.max_by_key(|((header, _), _)| header.sequence);
    let read = raw.as_ref().and_then(|raw| read_journal(&data_dir.join("journal"), raw).ok());
    let mapped = unfit_to_map(&data_dir).is_none();
    let unusable = look_at_area(&data_dir.join("journal"), mapped).err();
    let unusable = unusable.map(|error| error.to_string());
    let next_start = match unusable {
        Some(_) => NextStart::Refused,
        None => next_start(
            &data_dir,
            &state,
            raw.as_ref(),
            &looked,
            newest.as_ref().map(|(checkpoint, _)| checkpoint),
            read.as_ref(),
        ),
    };
    let (checkpoint, journal) = (newest.map(|(_, shown)| shown), read.map(|(journal, _)| journal));
    Ok(Report {
        open_in_process: holder(&data_dir.join("lock")),
        data_dir,
        state,
        devices: looked
            .into_iter()
            .map(|(path, found)| Device { path, state: device(found) })
            .collect(),
        checkpoint,
        journal,
        unusable,
        next_start,
    })
}

fn read_state(path: &Path) -> (DirectoryState, Option<state::StateFile>) {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return (DirectoryState::Missing, None),
        Err(e) => return (DirectoryState::Damaged { why: e.to_string() }, None),
    };
    match state::StateFile::decode(&bytes) {
        Err(StateError::OtherFormat(format)) => (DirectoryState::OtherFormat { format }, None),
        Err(StateError::Foreign) => (DirectoryState::Foreign, None),
        Err(StateError::Damaged) => {
            (DirectoryState::Damaged { why: "it is not whole".into() }, None)
        }
        Ok(raw) => {
            let namespace = |n: &state::NamespaceRecord| Namespace {
                name: n.name.clone(),
                mutable: n.options.mutability == Mutability::Mutable,
                survives_crash: n.options.survives == Survives::Crash,
            };
            let whole = DirectoryState::Whole {
                cache: Uuid::from_bytes(raw.uuid).to_string(),
                clean: raw.clean,
                openings: raw.generation,
                this_boot: boot_id().is_ok_and(|id| id.0 == raw.boot_id),
                time: raw.time,
                time_utc: utc(raw.time),
                namespaces: raw.namespaces.iter().map(namespace).collect(),
            };
            (whole, Some(raw))
        }
    }
}

fn read_superblock(path: &Path) -> io::Result<Found> {
    let mut bytes = Vec::new();
    File::open(path)?.take(RESERVED).read_to_end(&mut bytes)?;
    // Opening makes a file that is too short as long as it should be.
    bytes.resize(RESERVED as usize, 0);
    Ok(Superblock::decode(&bytes))
}

fn device(found: io::Result<Found>) -> DeviceState {
    match found {
        Ok(Found::Ours(block)) => DeviceState::Ours {
            cache: Uuid::from_bytes(block.uuid).to_string(),
            position: block.device,
            devices: block.devices,
            bytes: block.size,
            segments: block.segments,
            segment_bytes: block.segment_size,
        },
        Ok(Found::Blank) => DeviceState::Blank,
        Ok(Found::OtherFormat(format)) => DeviceState::OtherFormat { format },
        Ok(Found::Foreign) => DeviceState::Foreign,
        Err(e) => DeviceState::Unreadable { why: e.to_string() },
    }
}

fn newest_checkpoint(path: &Path, block: &Superblock) -> Option<((Header, Tables), Checkpoint)> {
    let file = File::open(path).ok()?;
    let whole = |which| {
        let at = block.area_at(which);
        let header = read_header(&file, block, which)?;
        // Its own checksum held, and still it may not make us reserve more memory than an area has
        // bytes.
        if header.tables_at().checked_add(header.tables_len)? > block.area {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(header.tables_len).ok()?];
        file.read_exact_at(&mut bytes, at + header.tables_at()).ok()?;
        if Tables::sum(&bytes, &block.uuid, header.sequence) != header.tables_checksum {
            return None;
        }
        Some((header, Tables::decode(&bytes, header.segments)?))
    };
    let (header, tables) =
        [0, 1].into_iter().filter_map(whole).max_by_key(|(header, _)| header.sequence)?;
    let count = |state| tables.segments.iter().filter(|s| s.state == state).count() as u64;
    let sealed = || tables.segments.iter().filter(|s| s.state == 2);
    let shown = Checkpoint {
        sequence: header.sequence,
        time: header.time,
        time_utc: utc(header.time),
        index_slots: u64::from(header.shards) * header.lines * SLOTS_PER_LINE,
        segments_sealed: count(2),
        segments_free: count(0),
        segments_retired: count(3),
        records: sealed().map(|s| u64::from(s.records)).sum(),
        record_bytes: sealed().map(|s| u64::from(s.bytes)).sum(),
    };
    Some(((header, tables), shown))
}

/// What a journal's header says, beside what is shown of it.
struct Marks {
    time: u64,
    /// Entries before this one may be missing.
    sound_from: u64,
    /// Position behind the last whole entry.
    head: u64,
    /// Entries that open a segment.
    opens: Vec<journal::JournalEntry>,
}

fn read_journal(path: &Path, state: &state::StateFile) -> io::Result<(Journal, Marks)> {
    let file = File::open(path)?;
    let capacity = file.metadata()?.len().saturating_sub(journal::HEADER) / journal::ENTRY;
    let mut header = [0; 40];
    file.read_exact_at(&mut header, 0)?;
    if !journal::is_header(&header, &state.uuid) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not the journal of this cache"));
    }
    let word = |at| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).map(|()| u64::from_le_bytes(word))
    };
    let (poison, time, sound_from) =
        (word(journal::POISON_AT)?, word(journal::TIME_AT)?, word(journal::SOUND_FROM_AT)?);
    let seed = journal::seed(&state.uuid, state.journal_epoch);
    let (mut entries, mut slot, mut head) = (0, 0, 0);
    let mut opens = Vec::new();
    let mut buffer = vec![0; (JOURNAL_STEP * journal::ENTRY) as usize];
    while slot < capacity {
        let count = JOURNAL_STEP.min(capacity - slot);
        let bytes = &mut buffer[..(count * journal::ENTRY) as usize];
        file.read_exact_at(bytes, journal::HEADER + slot * journal::ENTRY)?;
        for (n, raw) in (slot..).zip(bytes.chunks_exact(journal::ENTRY as usize)) {
            let Some(entry) = journal::JournalEntry::decode(raw, seed) else { continue };
            entries += 1;
            opens.extend(opened(&entry, 0).map(|_| entry));
            head = head.max(u64::from(entry.lap) * capacity + n + 1);
        }
        slot += count;
    }
    let marks = Marks { time, sound_from, head, opens };
    Ok((Journal { entries, capacity, poisoned: poison != 0 }, marks))
}

/// As recovery will judge, as far as that can be seen without opening the cache.
fn next_start(
    data_dir: &Path,
    state: &DirectoryState,
    raw: Option<&state::StateFile>,
    devices: &[(PathBuf, io::Result<Found>)],
    checkpoint: Option<&(Header, Tables)>,
    journal: Option<&(Journal, Marks)>,
) -> NextStart {
    let header = checkpoint.map(|(header, _)| header);
    let refused =
        |found: &io::Result<Found>| matches!(found, Ok(Found::Foreign | Found::OtherFormat(_)));
    if matches!(state, DirectoryState::OtherFormat { .. } | DirectoryState::Foreign)
        || devices.iter().any(|(_, found)| refused(found))
    {
        return NextStart::Refused;
    }
    let (DirectoryState::Whole { this_boot, .. }, Some(raw)) = (state, raw) else {
        return NextStart::New;
    };
    let others = |found: &io::Result<Found>| match found {
        Ok(Found::Ours(block)) => block.uuid != raw.uuid,
        _ => false,
    };
    if devices.iter().any(|(_, found)| others(found)) {
        return NextStart::Refused;
    }
    if devices.is_empty() {
        return NextStart::Unknown;
    }
    let as_made = |(n, (_, found)): (usize, &(PathBuf, io::Result<Found>))| match found {
        Ok(Found::Ours(block)) => {
            let place = (block.device as usize, block.devices as usize);
            place == (n, devices.len()) && block.set_epoch == raw.set_epoch
        }
        _ => false,
    };
    let is_member = |(_, found): &(PathBuf, io::Result<Found>)| match found {
        Ok(Found::Ours(block)) => {
            let (id, epoch) = (block.device, block.set_epoch);
            raw.devices.iter().any(|device| (device.id, device.epoch) == (id, epoch))
        }
        _ => false,
    };
    // What is missing costs its share. A state file of an earlier build lists no devices.
    let is_made_of_them = match raw.devices.is_empty() {
        true => devices.iter().enumerate().all(as_made),
        false => devices.iter().any(is_member),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if !is_made_of_them || latest(raw, header, journal).saturating_sub(now) > MAX_AHEAD {
        return NextStart::Cold;
    }
    if is_older_copy(raw, devices, checkpoint, journal) {
        return NextStart::Cold;
    }
    let poisoned = journal.is_some_and(|(journal, _)| journal.poisoned);
    // Of a clean stop the state file names the checkpoint.
    if raw.clean && !poisoned && raw.checkpoint == header.map_or(0, |header| header.sequence) {
        return NextStart::Warm;
    }
    let reaches_back = |journal| reaches_back(data_dir, raw, header, journal);
    let told = journal.is_some_and(|journal| !poisoned && reaches_back(journal));
    match told && *this_boot {
        true => NextStart::WarmAfterCrash,
        false => NextStart::Cold,
    }
}

/// Whether the devices have gone on without this data directory: they have a version that its
/// state file cannot know of.
fn is_older_copy(
    raw: &state::StateFile,
    devices: &[(PathBuf, io::Result<Found>)],
    checkpoint: Option<&(Header, Tables)>,
    journal: Option<&(Journal, Marks)>,
) -> bool {
    let floor = checkpoint.map_or(0, |(header, _)| header.version_floor);
    let opens = journal.iter().flat_map(|(_, marks)| &marks.opens);
    let opened = opens.filter_map(|entry| opened(entry, floor)).collect();
    let mut next_base = 0;
    devices.iter().any(|(path, found)| {
        let Ok(Found::Ours(block)) = found else { return false };
        let record = raw.devices.iter().find(|device| device.id == block.device);
        let (base, count) =
            record.map_or((next_base, block.segments), |device| (device.base, device.segments));
        next_base += block.segments;
        let is_listed = record.is_none_or(|device| device.epoch == block.set_epoch);
        if !is_listed || record.is_none() && !raw.devices.is_empty() {
            return false;
        }
        let tables = checkpoint.map(|(_, tables)| tables);
        let first = first_free(tables, &opened, block.set_epoch, base..base.saturating_add(count));
        let of_segments = first
            .into_iter()
            .filter_map(|segment| generation(path, block, u64::from(segment - base), segment));
        let highest = of_segments.chain(sequences(path, block)).max();
        highest.is_some_and(|version| version >= raw.version_limit)
    })
}

/// The generation of a segment, the `n`th on its device.
fn generation(path: &Path, block: &Superblock, n: u64, segment: u32) -> Option<u64> {
    let at = block.first_segment().checked_add(n.checked_mul(block.segment_size.into())?)?;
    let mut header = vec![0; BLOCK as usize];
    File::open(path).ok()?.read_exact_at(&mut header, at).ok()?;
    decode_header(&header, &block.uuid, segment).map(|(generation, _)| generation)
}

/// The sequences of a device's checkpoints, whole or not.
fn sequences(path: &Path, block: &Superblock) -> impl Iterator<Item = u64> {
    let file = File::open(path).ok().filter(|_| block.area > 0);
    let block = *block;
    [0, 1]
        .into_iter()
        .filter_map(move |which| Some(read_header(file.as_ref()?, &block, which)?.sequence))
}

/// The header of the checkpoint in one of a device's areas.
fn read_header(file: &File, block: &Superblock, which: u32) -> Option<Header> {
    let mut bytes = vec![0; BLOCK as usize];
    file.read_exact_at(&mut bytes, block.area_at(which)).ok()?;
    Header::decode(&bytes, &block.uuid, block.area)
}

/// The latest second that any of the files tells of.
fn latest(
    state: &state::StateFile,
    checkpoint: Option<&Header>,
    journal: Option<&(Journal, Marks)>,
) -> u64 {
    let of_this_journal = checkpoint.filter(|header| header.journal_epoch == state.journal_epoch);
    let times = [
        journal.map_or(0, |(_, marks)| marks.time),
        of_this_journal.map_or(0, |header| header.time),
    ];
    times.into_iter().fold(state.time, u64::max)
}

/// Whether the journal tells every removal since the checkpoint; without a checkpoint only the
/// cache's first journal does.
fn reaches_back(
    data_dir: &Path,
    state: &state::StateFile,
    checkpoint: Option<&Header>,
    (journal, marks): &(Journal, Marks),
) -> bool {
    let (epoch, needed) = checkpoint
        .map_or((FIRST_EPOCH, 0), |header| (header.journal_epoch, header.journal_position));
    // The kill log has what was moved out of the journal since.
    let is_whole = |run: &&KillRun| read_run(data_dir, state, run).is_some();
    let elsewhere =
        state.kill_log.chain(needed).take_while(is_whole).last().map_or(needed, |run| run.to);
    let has_all = marks.head.saturating_sub(elsewhere) <= journal.capacity;
    epoch == state.journal_epoch && has_all && needed >= marks.sound_from
}

/// The head of a run of the kill log.
fn read_run(data_dir: &Path, state: &state::StateFile, run: &KillRun) -> Option<RunHead> {
    let path = data_dir.join(kill_run::name(run.slot));
    let read = |len: usize| {
        let mut bytes = Vec::new();
        File::open(&path).ok()?.take(len as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    RunHead::read(run, &state.uuid, state.journal_epoch, read)
}

/// The process that holds the lock on a file. It is found without taking the lock: otherwise a
/// server that starts at this moment could find the directory in use.
pub fn holder(lock: &Path) -> Option<u32> {
    let inode = format!(":{}", fs::metadata(lock).ok()?.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        // `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`
        let words: Vec<_> = line.split_whitespace().collect();
        let held = words.get(1) == Some(&"FLOCK") && words.get(5)?.ends_with(&inode);
        held.then(|| words[4].parse().ok()).flatten()
    })
}
