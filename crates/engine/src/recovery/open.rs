//! The steps of opening.

use crate::sync::atomic::{AtomicBool, Ordering};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use super::exact::{self, SegmentReader};
use super::{LoadPlan, Opening, Origin, kills};
use crate::background::{Background, Checkpoints};
use crate::clock::Clock;
use crate::config::{Config, Durability, Mutability, NamespaceOptions, Survives};
use crate::core::Core;
use crate::device::area::{Media, MetaStore};
use crate::device::{AlignedBuf, BlockingReads, DeviceId, DeviceSet, Disk, Io, IoKind};
use crate::durability::rooms::Rooms;
use crate::durability::state_store::StateStore;
use crate::durability::waiters::Waiters;
use crate::error::OpenError;
use crate::format::checkpoint::{Header, NamespaceKills, Tables};
use crate::format::journal::Event;
use crate::format::state::{NO_CHECKPOINT, NamespaceRecord, STATE, StateError, StateFile};
use crate::format::superblock::{Found, RESERVED, Superblock};
use crate::format::{BLOCK, FORMAT_VERSION, round_up};
use crate::geometry;
use crate::journal::{Journal, Scan};
use crate::namespace::Namespaces;
use crate::namespace::state::NamespaceState;
use crate::progress::Progress;
use crate::segment::{SegmentLocation, SegmentTable, Streams, StreamsConfig};
use crate::shard::ShardSlot;
use crate::stats::EngineCounters;
use crate::tier::admission::AdmissionRules;
use crate::tier::budget::WriteBudget;
use crate::tier::victims::VictimPopularity;
use crate::time::CacheTime;
use crate::version::{self, Versions};
/// Seconds that the highest time seen may be ahead of the wall clock.
const MAX_AHEAD: u64 = 86_400;
/// Epoch of the journal that a cache is created with: the generation of its first life.
const FIRST_EPOCH: u64 = 1;
/// Of so many entries of the journal, one may be torn.
const TORN: u64 = 16;
/// Versions skipped when some may have been used beyond the limit.
const DOUBT: u64 = 1 << 30;

/// Everything outside the engine that a cache is opened over.
pub struct Env {
    /// Reads of the devices.
    pub set: Arc<dyn DeviceSet>,
    /// Metadata files.
    pub meta: Arc<dyn MetaStore>,
    /// The journal's area.
    pub journal: Arc<dyn Media>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The kernel's boot id, if it could be read.
    pub boot_id: Option<[u8; 16]>,
    /// Random bits for a new cache: its uuid and its hash seed.
    pub entropy: [u64; 3],
}

/// An open cache: shared state, and the state machine that somebody has to drive.
pub struct Opened {
    /// Operations.
    pub core: Arc<Core>,
    /// Background work.
    pub background: Background,
    /// What was found and kept. The caller knows what happened to the devices.
    pub opening: Opening,
}

/// How the last life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    New,
    Clean,
    Process,
    Machine,
}

/// What was found and what may be believed of it.
struct Past {
    state: StateFile,
    blocks: Vec<Superblock>,
    end: End,
    /// Why an empty cache took the place of the one that was there.
    replaced: Option<&'static str>,
    scan: Option<Scan>,
    checkpoint: Option<(Header, u32, Tables)>,
    /// The journal tells every kill since the checkpoint.
    journal_ok: bool,
    /// Journal and checkpoint together tell all removals from Immutable namespaces.
    removals_ok: bool,
    /// What it knew of time was forgotten, and with it every object.
    timeless: bool,
}

impl Past {
    /// Highest Unix time seen.
    fn time(&self) -> u64 {
        let of_this_journal = |header: &&Header| header.journal_epoch == self.state.journal_epoch;
        let times = [
            self.scan.as_ref().map_or(0, |s| s.time),
            self.checkpoint.as_ref().map(|c| &c.0).filter(of_this_journal).map_or(0, |header| header.time),
        ];
        times.into_iter().fold(self.state.time, u64::max)
    }
}

/// Removals that go from the old journal into a new one.
#[derive(Default)]
struct Carried {
    entries: Vec<(Event, u64)>,
    /// Position of the first.
    head: u64,
}

/// Opens a cache, creating it when there is none.
///
/// # Errors
/// [`OpenError`].
pub fn open(config: &Config, env: Env, disk: &mut dyn Disk) -> Result<Opened, OpenError> {
    let past = doubt_time(find(config, &env, disk)?, env.clock.unix());
    match past.end {
        End::New => coverage_mark!(OpenedNew),
        End::Clean => coverage_mark!(OpenedClean),
        End::Process => coverage_mark!(OpenedProcess),
        End::Machine => coverage_mark!(OpenedMachine),
    }
    let flash = past.blocks.iter().map(|b| b.size).sum();
    let memory = geometry::memory(config, flash, past.blocks[0].segment_size)?;
    geometry::check_area(config, flash, &memory, &past.blocks)?;
    let mut warm = warm_namespaces(&past);
    let carried = carried_removals(&past, &env, &mut warm);
    let lasts = past.checkpoint.is_none() || flush_checkpoint(disk);
    let (state, journal, versions) = begin_life(&past, &env, &warm, &carried, lasts)?;
    let core = build(config, env, &past, &memory, state, journal, versions);
    let mut opening = opening(&past, &warm);
    // Also where nothing is warm: the journal goes on from this checkpoint, so the next one must not be written over it.
    let last = past.checkpoint.as_ref().map(|(header, which, _)| (header.sequence, *which));
    let plan = restore(&core, past, warm);
    opening.segments = u64::from(core.table.len() - core.table.free_count());
    let checkpoints = Checkpoints::new(core.areas, last);
    tracing::info!(segments = core.table.len(), warm = opening.warm, "cache opened");
    let background = Background::new(core.clone(), plan, config, checkpoints);
    Ok(Opened { core, background, opening })
}

/// What is to be told of it, before segments are looked at.
fn opening(past: &Past, warm: &[bool]) -> Opening {
    let origin = match (past.end, past.replaced) {
        (End::New, Some(why)) => Origin::Replaced(why),
        (End::New, None) => Origin::New,
        (End::Clean, _) => Origin::Closed,
        (End::Process, _) => Origin::Process,
        (End::Machine, _) => Origin::Machine,
    };
    Opening {
        origin,
        namespaces: warm.len(),
        warm: warm.iter().filter(|w| **w).count(),
        journal: past.journal_ok,
        timeless: past.timeless,
        segments: 0,
        truncated: Vec::new(),
    }
}

/// Refuses devices that are not this cache's, by a look at the files alone: nothing of them is changed.
///
/// # Errors
/// [`OpenError`].
pub fn refuse_others(config: &Config, meta: &dyn MetaStore) -> Result<(), OpenError> {
    let state = read_state(config, meta)?;
    for (n, device) in config.devices.iter().enumerate() {
        let path = device.path.clone();
        let fits = |block: &Superblock| {
            let size = block.size == device.size || device.size == 0;
            size && block.device == n as u32 && block.devices == config.devices.len() as u32
        };
        let Ok(mut file) = std::fs::File::open(&path) else { continue };
        let mut head = Vec::new();
        let read = Read::by_ref(&mut file).take(RESERVED).read_to_end(&mut head);
        if head.is_empty() || read.is_err() {
            continue;
        }
        head.resize(RESERVED as usize, 0);
        match (Superblock::decode(&head), &state) {
            (Found::Foreign, _) => return Err(OpenError::Foreign { path }),
            (Found::OtherFormat(found), _) => {
                return Err(OpenError::OtherFormat { path, found, supported: FORMAT_VERSION });
            }
            (Found::Ours(block), Some(state)) if block.uuid != state.uuid => {
                return Err(OpenError::OtherCache { path, data_dir: config.data_dir.clone() });
            }
            (Found::Ours(block), Some(_)) if !config.discard && !fits(&block) => {
                let Superblock { device, devices, size, .. } = block;
                return Err(OpenError::Mismatch { path, device, devices, size });
            }
            _ => {}
        }
    }
    Ok(())
}

fn read_superblock(set: &dyn DeviceSet, device: u16) -> Result<Found, OpenError> {
    let path = set.infos()[usize::from(device)].path.clone();
    let bytes = set
        .read_at(DeviceId(device), 0, RESERVED as u32)
        .map_err(OpenError::io(format!("reading the superblock of {}", path.display())))?;
    match Superblock::decode(&bytes) {
        Found::Foreign => Err(OpenError::Foreign { path }),
        Found::OtherFormat(found) => Err(OpenError::OtherFormat { path, found, supported: FORMAT_VERSION }),
        found => Ok(found),
    }
}

fn read_state(config: &Config, meta: &dyn MetaStore) -> Result<Option<StateFile>, OpenError> {
    let path = config.data_dir.join(STATE);
    let bytes = meta.read(STATE).map_err(OpenError::io(format!("reading {}", path.display())))?;
    match bytes.as_deref().map(StateFile::decode) {
        None => Ok(None),
        Some(Ok(state)) => Ok(Some(state)),
        Some(Err(StateError::OtherFormat(found))) => {
            Err(OpenError::OtherFormat { path, found, supported: FORMAT_VERSION })
        }
        Some(Err(StateError::Foreign)) => Err(OpenError::ForeignState { path }),
        Some(Err(StateError::Damaged)) => {
            tracing::warn!(path = %path.display(), "the state file is damaged: starting with an empty cache");
            Ok(None)
        }
    }
}

/// Finds what the last life left, or makes a new cache.
fn find(config: &Config, env: &Env, disk: &mut dyn Disk) -> Result<Past, OpenError> {
    let infos = env.set.infos().to_vec();
    if infos.is_empty() {
        return Err(OpenError::Config("no flash is configured: give at least one file or device".into()));
    }
    let found: Vec<Found> =
        (0..infos.len() as u16).map(|d| read_superblock(&*env.set, d)).collect::<Result<_, _>>()?;
    let Some(state) = read_state(config, &*env.meta)? else {
        let left = found.iter().any(|found| matches!(found, Found::Ours(_)));
        let why = left.then_some("its state file is missing or damaged, the cache begins anew");
        return create(config, env, disk, why);
    };
    let mut blocks = Vec::new();
    for (n, found) in found.iter().enumerate() {
        let Found::Ours(block) = found else { continue };
        if block.uuid != state.uuid {
            let path: PathBuf = infos[n].path.clone();
            return Err(OpenError::OtherCache { path, data_dir: config.data_dir.clone() });
        }
        blocks.push(*block);
    }
    let fits = |(n, b): (usize, &Superblock)| {
        b.size == infos[n].size
            && b.device == n as u32
            && b.devices == infos.len() as u32
            && b.set_epoch == state.set_epoch
            && config.segment_size.is_none_or(|s| s == b.segment_size)
    };
    if blocks.len() != infos.len() {
        let why = "a flash file or device is missing or empty, the cache begins anew";
        tracing::warn!("{why}: starting with an empty cache");
        return create(config, env, disk, Some(why));
    }
    if !blocks.iter().enumerate().all(fits) {
        let why = "the devices are not the ones it was made of, or have another size";
        tracing::warn!("{why}: starting with an empty cache");
        return create(config, env, disk, Some(why));
    }
    Ok(judge(env, state, blocks))
}

/// Decides how the last life ended and whether journal and checkpoint fit together.
fn judge(env: &Env, state: StateFile, blocks: Vec<Superblock>) -> Past {
    let checkpoint = newest_checkpoint(env, &state, &blocks[0]);
    let needed = checkpoint.as_ref().filter(|c| c.0.journal_epoch == state.journal_epoch);
    let needed = needed.map_or(0, |c| c.0.journal_position);
    let scan = Journal::scan(&*env.journal, &state.uuid, state.journal_epoch, needed).ok();
    let sequence = checkpoint.as_ref().map_or(0, |(h, ..)| h.sequence);
    // A poisoned journal misses something that came after the clean stop.
    let poisoned = scan.as_ref().is_some_and(|s| s.poisoned);
    let end = if state.clean && state.checkpoint == sequence && !poisoned {
        End::Clean
    } else if env.boot_id == Some(state.boot_id) && state.boot_id != [0; 16] {
        End::Process
    } else {
        End::Machine
    };
    let capacity =
        env.journal.len().saturating_sub(crate::format::journal::HEADER) / crate::format::journal::ENTRY;
    let journal_ok = scan.as_ref().is_some_and(|scan| {
        // Without a checkpoint only the cache's first journal tells all there is to tell.
        let (epoch, needed) =
            checkpoint.as_ref().map_or((FIRST_EPOCH, 0), |(h, ..)| (h.journal_epoch, h.journal_position));
        let reaches_back = epoch == state.journal_epoch && scan.head.saturating_sub(needed) <= capacity;
        !scan.poisoned && reaches_back && needed >= scan.sound_from
    });
    let beside = checkpoint.as_ref().map(|(header, ..)| header);
    let removals_ok =
        journal_ok || scan.as_ref().is_some_and(|scan| goes_on_from(scan, &state, beside, capacity));
    Past { state, blocks, end, replaced: None, scan, checkpoint, journal_ok, removals_ok, timeless: false }
}

/// Whether a journal that was begun in doubt still has everything since it was, and was begun beside just this checkpoint, or beside none:
/// it began with the removals that the one before had told of Immutable namespaces. Where another checkpoint can be read only, or
/// the journal has gone round since, a removed object could come back.
fn goes_on_from(scan: &Scan, state: &StateFile, beside: Option<&Header>, capacity: u64) -> bool {
    let earlier = beside.is_none_or(|header| header.journal_epoch != state.journal_epoch);
    let same = beside.map_or(NO_CHECKPOINT, |header| header.sequence) == state.checkpoint;
    // The oldest entries may be missing where a crash has torn some.
    let gone_round = scan.head.saturating_sub(scan.lowest) + capacity / TORN > capacity;
    earlier && same && !gone_round && !scan.poisoned && scan.sound_from == 0
}

fn newest_checkpoint(env: &Env, state: &StateFile, block: &Superblock) -> Option<(Header, u32, Tables)> {
    let mut headers: Vec<(Header, u32)> = Vec::new();
    for which in [0, 1] {
        let Ok(bytes) = env.set.read_at(DeviceId(0), block.area_at(which), BLOCK) else { continue };
        if let Some(header) = Header::decode(&bytes, &state.uuid, block.area) {
            headers.push((header, which));
        }
    }
    headers.sort_by_key(|(h, _)| std::cmp::Reverse(h.sequence));
    headers.into_iter().find_map(|(header, which)| {
        let len = round_up(header.tables_len, BLOCK.into()) as u32;
        let bytes = env.set.read_at(DeviceId(0), block.area_at(which) + header.tables_at(), len).ok()?;
        let bytes = &bytes[..header.tables_len as usize];
        if Tables::sum(bytes, &state.uuid, header.sequence) != header.tables_checksum {
            return None;
        }
        Some((header, which, Tables::decode(bytes, header.segments)?))
    })
}

/// Makes a new cache on the devices.
fn create(
    config: &Config,
    env: &Env,
    disk: &mut dyn Disk,
    replaced: Option<&'static str>,
) -> Result<Past, OpenError> {
    // Without a state file, devices of ours are nobody's: a crash on the way leaves something to be made anew.
    env.meta.remove(STATE).map_err(OpenError::io("removing the old state file"))?;
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.entropy[0].to_le_bytes());
    uuid[8..].copy_from_slice(&env.entropy[1].to_le_bytes());
    let (hash_seed, set_epoch) = (env.entropy[2], 1);
    let blocks = geometry::format(config, env.set.infos(), uuid, hash_seed, set_epoch)?;
    for block in &blocks {
        let device = DeviceId(block.device as u16);
        let path = env.set.infos()[block.device as usize].path.display().to_string();
        let data = AlignedBuf::copy_of(&block.encode()).into();
        run(disk, Io { id: 0, device, offset: 0, kind: IoKind::Write { data } })
            .map_err(OpenError::io(format!("writing the superblock of {path}")))?;
        run(disk, Io { id: 0, device, offset: 0, kind: IoKind::Sync })
            .map_err(OpenError::io(format!("flushing {path}")))?;
        // The state file will name this uuid: a device that has not taken it would look like another cache's.
        if read_superblock(&*env.set, device.0)? != Found::Ours(*block) {
            let lost = io::Error::other("it reads back differently");
            return Err(OpenError::Io { what: format!("writing the superblock of {path}"), source: lost });
        }
    }
    let state = StateFile {
        clean: false,
        uuid,
        generation: 0,
        boot_id: [0; 16],
        version_limit: 1,
        time: 0,
        hash_seed,
        set_epoch,
        checkpoint: 0,
        journal_epoch: 0,
        namespaces: Vec::new(),
    };
    let (end, scan, checkpoint) = (End::New, None, None);
    let (journal_ok, removals_ok, timeless) = (false, false, false);
    Ok(Past { state, blocks, end, replaced, scan, checkpoint, journal_ok, removals_ok, timeless })
}

/// One I/O, waited for.
fn run(disk: &mut dyn Disk, io: Io) -> io::Result<()> {
    disk.submit(io);
    let mut done = Vec::new();
    while done.is_empty() {
        disk.wait(1, &mut done);
    }
    done.remove(0).result.map(|_| ())
}

/// A time far beyond the wall clock was a mistake of the clock's: it is forgotten, and with it everything that may have been
/// judged by it or may have expired since.
fn doubt_time(mut past: Past, wall: u64) -> Past {
    let ahead = past.time().saturating_sub(wall);
    if ahead > MAX_AHEAD {
        tracing::warn!(
            seconds = ahead,
            "the clock was ahead of what it shows now by more than a day: the cache starts cold, with the time as it is now"
        );
        past.state.time = 0;
        (past.scan, past.checkpoint, past.timeless) = (None, None, true);
        (past.journal_ok, past.removals_ok) = (false, false);
    }
    past
}

/// A new journal is begun, but namespaces that are warm all the same have removals in the old one: these, and the position to
/// write them at. Namespaces whose removals find no room there are not warm.
fn carried_removals(past: &Past, env: &Env, warm: &mut [bool]) -> Carried {
    let Some(scan) = past.scan.as_ref().filter(|_| !past.journal_ok) else { return Carried::default() };
    let is_warm = |ns: u16| warm.get(usize::from(ns)).is_some_and(|w| *w);
    let kills = scan.kills().map(|kill| (Event::Kill { hash: kill.hash, ns: kill.ns }, kill.version));
    let others = scan.others.iter().map(|entry| (entry.event, entry.version));
    let entries: Vec<_> =
        kills.chain(others).filter(|(event, _)| event.namespace().is_some_and(is_warm)).collect();
    // Entries of the old journal must stay until the new one is named: beyond its head is what was never written.
    let room = Journal::capacity(&*env.journal).saturating_sub(scan.head);
    if entries.len() as u64 <= room {
        return Carried { entries, head: scan.head };
    }
    for ns in entries.iter().filter_map(|(event, _)| event.namespace()) {
        warm[usize::from(ns)] = false;
    }
    Carried::default()
}

/// The last life may have died between the write of its checkpoint's header and the flush. Whether the checkpoint will last,
/// also should the power go now: only then the journal below it may be used again.
fn flush_checkpoint(disk: &mut dyn Disk) -> bool {
    let flushed = run(disk, Io { id: 0, device: DeviceId(0), offset: 0, kind: IoKind::Sync });
    if let Err(error) = &flushed {
        tracing::warn!(%error, "the checkpoint could not be flushed: the journal is kept until the next one");
    }
    flushed.is_ok()
}

/// Starts a new life: durable before anything else changes. What starts cold is killed in the same step: should this life
/// end at once, the next one must not take it for the crash of a process in which nothing was in doubt.
fn begin_life(
    past: &Past,
    env: &Env,
    warm: &[bool],
    carried: &Carried,
    checkpoint_lasts: bool,
) -> Result<(StateFile, Journal, Versions), OpenError> {
    let mut state = past.state.clone();
    let doubt = past.end != End::New && past.end != End::Clean && !past.journal_ok;
    let kill = state.version_limit + if doubt { DOUBT } else { 0 };
    let next = kill + 1;
    for (ns, warm) in state.namespaces.iter_mut().zip(warm) {
        if !warm {
            ns.kill = kill;
            tracing::info!(namespace = %ns.name, "starts cold: it could hold stale objects otherwise");
        }
    }
    state.clean = false;
    state.generation += 1;
    state.boot_id = env.boot_id.unwrap_or([0; 16]);
    state.version_limit = next + version::BLOCK;
    state.time = past.time().max(env.clock.unix());
    let media = env.journal.clone();
    let next_position = carried.head + carried.entries.len() as u64;
    if !past.journal_ok {
        state.journal_epoch = state.generation;
        state.checkpoint = past.checkpoint.as_ref().map_or(NO_CHECKPOINT, |(header, ..)| header.sequence);
        // Before the state file names the new journal: a crash in between finds the old one as it was.
        write_carried(carried, media.clone(), &state)?;
    }
    env.meta.replace(STATE, &state.encode()).map_err(OpenError::io("writing the state file"))?;
    let journal = match &past.scan {
        Some(scan) if past.journal_ok => {
            let needed = past.checkpoint.as_ref().map_or(0, |c| c.0.journal_position);
            let head = scan.head.max(needed);
            let tail = if checkpoint_lasts { needed } else { 0 };
            Journal::resume(media, &state.uuid, state.journal_epoch, head, tail)
        }
        _ => {
            let positions = carried.head..next_position;
            Journal::create(media, &state.uuid, state.journal_epoch, positions, state.time)
                .map_err(OpenError::io("writing the journal"))?
        }
    };
    if past.end != End::New && !past.journal_ok {
        journal.set_bare();
    }
    let versions = Versions::new(next, state.version_limit);
    Ok((state, journal, versions))
}

/// Writes what is carried over into the journal that is about to be named by the state file.
fn write_carried(carried: &Carried, media: Arc<dyn Media>, state: &StateFile) -> Result<(), OpenError> {
    if carried.entries.is_empty() {
        return Ok(());
    }
    let journal = Journal::resume(media, &state.uuid, state.journal_epoch, carried.head, carried.head);
    for &(event, version) in &carried.entries {
        coverage_mark!(CarriedOver);
        journal.append(event, version);
    }
    let lost = if journal.is_poisoned() { Err(io::Error::other("an entry was lost")) } else { Ok(()) };
    lost.and_then(|()| journal.sync()).map_err(OpenError::io("writing the journal"))
}

fn places(blocks: &[Superblock]) -> Vec<SegmentLocation> {
    let mut places = Vec::new();
    for block in blocks {
        let device = DeviceId(block.device as u16);
        let place =
            |n| SegmentLocation { device, offset: block.first_segment() + n * u64::from(block.segment_size) };
        places.extend((0..u64::from(block.segments)).map(place));
    }
    places
}

fn build(
    config: &Config,
    env: Env,
    past: &Past,
    memory: &geometry::Memory,
    state: StateFile,
    journal: Journal,
    versions: Versions,
) -> Arc<Core> {
    let table = Arc::new(SegmentTable::new(places(&past.blocks), past.blocks[0].segment_size));
    let (journal, versions) = (Arc::new(journal), Arc::new(versions));
    let totals = Arc::new(EngineCounters::default());
    let streams =
        StreamsConfig { uuid: state.uuid, hash_seed: state.hash_seed, max_outstanding: memory.chunks };
    let shard = |_| ShardSlot::new(memory.lines, memory.dram, memory.sketch, table.clone());
    let namespace = |n: &NamespaceRecord| {
        let ns = NamespaceState::new(n.id, n.name.clone(), n.options);
        ns.kill_all(n.kill);
        Arc::new(ns)
    };
    let namespaces = state.namespaces.iter().map(namespace).collect();
    let admission = AdmissionRules {
        free_target: geometry::free_target(table.len()),
        victims: VictimPopularity::default(),
        budget: config.write_budget.map(|rate| WriteBudget::new(rate, env.clock.millis())),
    };
    Arc::new(Core {
        uuid: state.uuid,
        hash_seed: state.hash_seed,
        shards: (0..config.shards).map(shard).collect(),
        streams: Streams::new(&streams, table.clone(), versions.clone(), journal.clone(), totals.clone()),
        set: env.set,
        areas: [past.blocks[0].area_at(0), past.blocks[0].area_at(1), past.blocks[0].area],
        reads: BlockingReads::new(config.max_blocking_reads),
        time: CacheTime::new(env.clock, journal.clone(), state.time),
        namespaces: Namespaces::new(namespaces),
        state: StateStore::new(env.meta, state),
        admission,
        waiters: Waiters::default(),
        rooms: Rooms::default(),
        progress: Progress::default(),
        closed: AtomicBool::new(false),
        table,
        journal,
        versions,
        totals,
    })
}

/// Which namespaces (by id) may be believed; the others start cold.
fn warm_namespaces(past: &Past) -> Vec<bool> {
    let warm = |o: &NamespaceOptions| match past.end {
        _ if past.timeless => false,
        End::New => false,
        End::Clean => true,
        _ if o.survives == Survives::CleanStop => false,
        // A key may have been removed.
        _ if o.mutability == Mutability::Immutable => past.removals_ok,
        End::Process => past.journal_ok,
        End::Machine => past.journal_ok && o.durability == Durability::Synced,
    };
    past.state.namespaces.iter().map(|n| warm(&n.options)).collect()
}

/// Puts what the journal says into force and tells the driver what to load; `None` when there is nothing to believe.
fn restore(core: &Arc<Core>, past: Past, warm: Vec<bool>) -> Option<LoadPlan> {
    if !warm.iter().any(|w| *w) {
        core.table.finish_restore();
        return None;
    }
    // Without a checkpoint that goes with a whole journal, footers alone must do (Immutable namespaces).
    let rebuild = past.checkpoint.is_none() && !past.journal_ok;
    let floor = past.checkpoint.as_ref().map_or(0, |(h, ..)| h.version_floor);
    let scan = past.scan.unwrap_or_default();
    kills::distribute(&scan, &core.shards);
    apply_kills_of_many(core, &scan);
    let (generations, checkpoint) = (vec![0; core.table.len() as usize], None);
    let mut plan = LoadPlan { checkpoint, generations, exact: Vec::new(), warm };
    if let Some((header, area, tables)) = past.checkpoint {
        for kills in &tables.namespaces {
            restore_kills(core, kills);
        }
        for (id, entry) in (0..).zip(&tables.segments).filter(|(id, _)| core.table.contains(*id)) {
            match entry.state {
                1 => plan.exact.push((id, entry.generation)),
                2 => {
                    core.table.restore(id, entry);
                    plan.generations[id as usize] = entry.generation;
                }
                _ => {}
            }
        }
        plan.checkpoint = Some((header, area));
    }
    if !past.journal_ok {
        coverage_mark!(OpenedDoubtful);
    }
    for entry in &scan.others {
        let Event::Open { segment } = entry.event else { continue };
        if entry.version >= floor && core.table.contains(segment) {
            plan.exact.push((segment, entry.version));
        }
    }
    if rebuild {
        rebuild_from_footers(core, &plan.warm);
        plan.exact.clear();
    }
    plan_exact(core, &mut plan);
    core.table.finish_restore();
    core.progress.unread.store(!plan.exact.is_empty(), Ordering::Release);
    core.progress.loading.store(true, Ordering::Release);
    for slot in &core.shards {
        slot.lock().collecting = true;
    }
    Some(plan)
}

/// The newest generation of each segment is the one to be read, in the order in which they were opened.
fn plan_exact(core: &Core, plan: &mut LoadPlan) {
    plan.exact.sort_unstable_by_key(|&(id, generation)| (id, std::cmp::Reverse(generation)));
    plan.exact.dedup_by_key(|(id, _)| *id);
    plan.exact.sort_unstable_by_key(|&(_, generation)| generation);
    for &(segment, generation) in &plan.exact {
        plan.generations[segment as usize] = 0;
        core.table.set_unread(segment, generation);
    }
}

/// Every footer there is.
fn rebuild_from_footers(core: &Core, warm: &[bool]) {
    coverage_mark!(OpenedFromFooters);
    let reader = SegmentReader::new(core, warm.len());
    let mut found: Vec<_> = (0..core.table.len()).filter_map(|s| reader.footer(s)).collect();
    found.sort_unstable_by_key(|exact| exact.generation);
    for exact in &found {
        exact::enter(core, exact, warm);
    }
}

fn restore_kills(core: &Core, kills: &NamespaceKills) {
    if let Some(ns) = core.namespaces.by_id(kills.id) {
        ns.restore(kills);
    }
}

/// Puts kills of many objects into force.
fn apply_kills_of_many(core: &Core, scan: &Scan) {
    for entry in &scan.others {
        let with = |id: u16, f: &dyn Fn(&NamespaceState)| {
            if let Some(ns) = core.namespaces.by_id(id) {
                f(&ns);
            }
        };
        match entry.event {
            Event::Group { ns, group } => with(ns, &|n| n.kill_group(group, entry.version)),
            Event::Epoch { ns, slot } => with(ns, &|n| n.kill_epoch(slot, entry.version)),
            Event::Clear { ns } => with(ns, &|n| n.kill_all(entry.version)),
            Event::Kill { .. } | Event::Open { .. } => {}
        }
    }
}
