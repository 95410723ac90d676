//! Finds what the last life left: superblocks, state file, checkpoint and journal. Decides whether
//! they belong together.

use std::io::{self, Read};
use std::path::PathBuf;

use super::checkpoints::{FoundCheckpoints, find_checkpoints};
use super::create::create;
use super::device_io::read_superblock;
use super::env::Env;
use super::kill_log::{self, FoundKillLog};
use super::members::{Member, find_members, homes_of, in_a_row};
use super::older_copy::{WhatWasFree, go_beyond, unknown_version};
use super::past::{End, Past};
use crate::config::Config;
use crate::device::area::MetaStore;
use crate::device::{DeviceError, DeviceInfo, Disk, PATIENCE, is_of_process, within};
use crate::error::OpenError;
use crate::format::FORMAT_VERSION;
use crate::format::checkpoint::Header;
use crate::format::state::{
    DeviceRecord, NO_CHECKPOINT, STATE, StateError, StateFile, WITH_KILL_LOG,
};
use crate::format::superblock::{Found, RESERVED, Superblock};
use crate::journal::{Journal, Scan};

/// Epoch of the journal that a cache is created with: the generation of its first life.
const FIRST_EPOCH: u64 = 1;
/// Of so many entries of the journal, one may be torn.
const TORN: u64 = 16;

/// Refuses devices that are not this cache's, by a look at the files alone: nothing of them is
/// changed. Those that are `silent` are not read.
///
/// Says whether the cache can go on without devices that are missing, as long as a member is there.
/// So it is from when its state file lists its members. One that was forgotten while it was missing
/// may still be missing at the next start.
///
/// # Errors
/// [`OpenError`].
pub fn refuse_others(
    config: &Config,
    meta: &dyn MetaStore,
    silent: &[PathBuf],
) -> Result<bool, OpenError> {
    let state = read_state(config, meta)?;
    for (n, device) in config.devices.iter().enumerate() {
        let path = device.path.clone();
        if silent.contains(&path) {
            continue;
        }
        let listed = state.as_ref().is_some_and(|state| !state.devices.is_empty());
        let is_member = |block: &Superblock| {
            let records = state.iter().flat_map(|state| &state.devices);
            let ids = |r: &DeviceRecord| (r.id, r.epoch) == (block.device, block.set_epoch);
            records.into_iter().any(ids)
        };
        let fits = |block: &Superblock| {
            let size = block.size == device.size || device.size == 0;
            let in_a_row = block.device == n as u32 && block.devices == config.devices.len() as u32;
            // One that is no member joins, with the size that is configured.
            if listed { size || !is_member(block) } else { size && in_a_row }
        };
        let read = within(PATIENCE, head_of(path.clone()));
        let head = match read.map_err(|source| DeviceError::Threads { source })? {
            Some(Ok(head)) => head,
            Some(Err(error)) if is_of_process(&error) => {
                return Err(DeviceError::from_process("read", &path, error).into());
            }
            _ => continue,
        };
        if head.is_empty() {
            continue;
        }
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
    Ok(state.is_some_and(|state| !state.devices.is_empty()))
}

/// Reads the first bytes of a device; none of an empty file.
fn head_of(path: PathBuf) -> impl FnOnce() -> io::Result<Vec<u8>> {
    move || {
        let mut head = Vec::new();
        std::fs::File::open(&path)?.take(RESERVED).read_to_end(&mut head)?;
        if !head.is_empty() {
            head.resize(RESERVED as usize, 0);
        }
        Ok(head)
    }
}

fn read_state(config: &Config, meta: &dyn MetaStore) -> Result<Option<StateFile>, OpenError> {
    let path = config.data_dir.join(STATE);
    let bytes = meta.read(STATE).map_err(OpenError::io(format!("reading {}", path.display())))?;
    match bytes.as_deref().map(StateFile::decode) {
        None => Ok(None),
        Some(Ok(state)) => Ok(Some(state)),
        Some(Err(StateError::OtherFormat(found))) => {
            Err(OpenError::OtherFormat { path, found, supported: WITH_KILL_LOG })
        }
        Some(Err(StateError::Foreign)) => Err(OpenError::ForeignState { path }),
        Some(Err(StateError::Damaged)) => {
            tracing::warn!(path = %path.display(), "the state file is damaged: starting with an empty cache");
            Ok(None)
        }
    }
}

/// Finds what the last life left, or makes a new cache.
pub(super) fn find(config: &Config, env: &Env, disk: &mut dyn Disk) -> Result<Past, OpenError> {
    let infos = env.set.infos().to_vec();
    if infos.is_empty() {
        return Err(OpenError::Config(
            "no flash is configured: give at least one file or device".into(),
        ));
    }
    let state = read_state(config, &*env.meta)?;
    let listed = state.as_ref().is_some_and(|state| !state.devices.is_empty());
    let known = state.as_ref().map_or(0, |state| state.kill_log.slots);
    let slots = kill_log::slots(&*env.meta, known);
    let found: Vec<Option<Found>> = (0..infos.len() as u16)
        .map(|d| match read_superblock(&*env.patient, d) {
            // Only what it held is lost.
            Err(OpenError::Io { .. }) if listed => Ok(None),
            found => found.map(Some),
        })
        .collect::<Result<_, _>>()?;
    // A cache is made with all its devices. One that cannot be read may be what another cannot do
    // without: nothing is given up as long as it may come back.
    let create_instead = |disk: &mut dyn Disk, why| match found.iter().position(Option::is_none) {
        Some(n) => Err(OpenError::Unreadable { path: infos[n].path.clone() }),
        None => {
            tracing::warn!("{why}: starting with an empty cache");
            create(config, env, disk, Some(why), slots)
        }
    };
    let Some(state) = state else {
        let left = found.iter().any(|found| matches!(found, Some(Found::Ours(_))));
        let why = left.then_some("its state file is missing or damaged, the cache begins anew");
        return create(config, env, disk, why, slots);
    };
    for (n, found) in found.iter().enumerate() {
        if let Some(Found::Ours(block)) = found
            && block.uuid != state.uuid
        {
            let path: PathBuf = infos[n].path.clone();
            return Err(OpenError::OtherCache { path, data_dir: config.data_dir.clone() });
        }
    }
    let members = match listed {
        true => find_members(&state, &infos, &found),
        false => all_in_a_row(&state, &infos, &found),
    };
    let Some(members) = members else {
        let why = "a flash file or device is missing or empty, the cache begins anew";
        return create_instead(disk, why);
    };
    let fits = |m: &Member| {
        m.block.size == infos[usize::from(m.device.0)].size
            && config.segment_size.is_none_or(|s| s == m.block.segment_size)
    };
    if !members.iter().all(fits) {
        let why = "the devices are not the ones it was made of, or have another size";
        return create_instead(disk, why);
    }
    judge(env, state, members)
}

/// The devices of a cache whose state file does not list them: all of them, in their order.
fn all_in_a_row(
    state: &StateFile,
    infos: &[DeviceInfo],
    found: &[Option<Found>],
) -> Option<Vec<Member>> {
    let ours = |(n, found): (usize, &Option<Found>)| match found {
        Some(Found::Ours(block))
            if block.device == n as u32
                && block.devices == infos.len() as u32
                && block.set_epoch == state.set_epoch =>
        {
            Some(*block)
        }
        _ => None,
    };
    let blocks: Option<Vec<Superblock>> = found.iter().enumerate().map(ours).collect();
    blocks.map(|blocks| in_a_row(&blocks))
}

/// Decides how the last life ended and whether journal and checkpoint fit together.
fn judge(env: &Env, mut state: StateFile, members: Vec<Member>) -> Result<Past, OpenError> {
    let homes = homes_of(&members);
    let FoundCheckpoints { newest: checkpoint, highest, unread } =
        find_checkpoints(&*env.patient, &state.uuid, &homes)?;
    let needed = checkpoint.as_ref().filter(|c| c.header.journal_epoch == state.journal_epoch);
    let needed = needed.map_or(0, |c| c.header.journal_position);
    let mut kill_log = FoundKillLog::find(&*env.meta, &state, needed);
    let elsewhere = kill_log.end;
    let mut scan = Journal::scan(&*env.journal, &state.uuid, state.journal_epoch, elsewhere).ok();
    if let Some(scan) = &mut scan {
        scan.others.extend(kill_log.runs.iter_mut().flat_map(|run| run.others.drain(..)));
    }
    let sequence = checkpoint.as_ref().map_or(0, |c| c.header.sequence);
    let known =
        WhatWasFree { members: &members, checkpoint: checkpoint.as_ref(), scan: scan.as_ref() };
    let unknown = unknown_version(&*env.patient, &state, highest, &known);
    // A poisoned journal misses something that came after the clean stop.
    let poisoned = scan.as_ref().is_some_and(|s| s.poisoned) || unknown.is_some();
    let end = if state.clean && state.checkpoint == sequence && !poisoned {
        End::Clean
    } else if env.boot_id == Some(state.boot_id) && state.boot_id != [0; 16] {
        End::Process
    } else {
        End::Machine
    };
    let capacity = env.journal.len().saturating_sub(crate::format::journal::HEADER)
        / crate::format::journal::ENTRY;
    let journal_ok = scan.as_ref().is_some_and(|scan| {
        // Without a checkpoint only the cache's first journal tells all there is to tell.
        let (epoch, needed) = checkpoint
            .as_ref()
            .map_or((FIRST_EPOCH, 0), |c| (c.header.journal_epoch, c.header.journal_position));
        // What is below the end of the kill log is there.
        let reaches_back =
            epoch == state.journal_epoch && scan.head.saturating_sub(elsewhere) <= capacity;
        !poisoned && reaches_back && needed >= scan.sound_from
    });
    let beside = checkpoint.as_ref().map(|c| &c.header);
    // What has gone to the kill log would have no room in a journal begun anew.
    let all_in_journal = || kill_log.runs.is_empty();
    let removals_ok = journal_ok
        || unknown.is_none()
            && all_in_journal()
            && scan.as_ref().is_some_and(|scan| goes_on_from(scan, &state, beside, capacity));
    if let Some(version) = unknown {
        go_beyond(&mut state, version);
    }
    Ok(Past {
        state,
        segment_size: members[0].block.segment_size,
        members,
        end,
        replaced: None,
        scan,
        kill_log,
        checkpoint,
        homes,
        unread,
        journal_ok,
        removals_ok,
        timeless: false,
    })
}

/// Whether a journal that was begun in doubt has everything since then, and was begun with just
/// this checkpoint, or with none. Such a journal begins with the removals of Immutable namespaces
/// from the journal before. If only another checkpoint can be read, or the journal has wrapped
/// around since, a removed object could come back.
fn goes_on_from(scan: &Scan, state: &StateFile, beside: Option<&Header>, capacity: u64) -> bool {
    let earlier = beside.is_none_or(|header| header.journal_epoch != state.journal_epoch);
    let same = beside.map_or(NO_CHECKPOINT, |header| header.sequence) == state.checkpoint;
    // The oldest entries may be missing: a crash may have torn some.
    let gone_round = scan.head.saturating_sub(scan.lowest) + capacity / TORN > capacity;
    earlier && same && !gone_round && !scan.poisoned && scan.sound_from == 0
}
