//! Opening, step by step: find what the last life left, decide what of it is valid, begin a new
//! life, build the shared state, restore.

use std::sync::Arc;

use super::begin::{begin_life, carried_removals, flush_checkpoint, forget_unread};
use super::build::build;
use super::env::Env;
use super::find::find;
use super::members::all_homes_of;
use super::past::{End, Past, doubt_time, warm_namespaces};
use super::restore::restore;
use super::{Opening, Origin};
use crate::background::{Background, Checkpoints};
use crate::checkpoint_areas::{CheckpointAreas, Home};
use crate::config::Config;
use crate::core::Core;
use crate::device::{DeviceInfo, Disk};
use crate::error::OpenError;
use crate::format::state::StateFile;
use crate::geometry;

/// An open cache: shared state, and the state machine that somebody has to drive.
pub struct Opened {
    /// Operations.
    pub core: Arc<Core>,
    /// Background work.
    pub background: Background,
    /// What was found and kept. The caller knows what happened to the devices.
    pub opening: Opening,
}

/// Opens a cache, creating it when there is none.
///
/// # Errors
/// [`OpenError`].
pub fn open(config: &Config, env: Env, disk: &mut dyn Disk) -> Result<Opened, OpenError> {
    let past = doubt_time(find(config, &env, disk)?, env.clock.unix());
    let mut past = forget_unread(past, &env, disk)?;
    match past.end {
        End::New => coverage_mark!(OpenedNew),
        End::Clean => coverage_mark!(OpenedClean),
        End::Process => coverage_mark!(OpenedProcess),
        End::Machine => coverage_mark!(OpenedMachine),
    }
    let (flash, segment_size) = (past.flash(), past.segment_size);
    let memory = geometry::memory(config, flash, segment_size)?;
    let homes = all_homes_of(&past.members);
    tell_lone_home(&past, &homes, env.set.infos());
    let area = homes.iter().map(|home| home.len).min().unwrap_or(0);
    let (memory, tables) = geometry::check_area(config, flash, &memory, (segment_size, area))?;
    let grown = past.checkpoint.as_ref();
    let memory = grown.map_or(memory, |c| memory.grown_to(config.shards, &c.header));
    let mut warm = warm_namespaces(&past);
    let carried = carried_removals(&past, &env, &mut warm);
    let lasts = flush_checkpoint(&past, disk);
    let (state, journal, versions) = begin_life(&mut past, &env, disk, &warm, &carried, lasts)?;
    let mut opening = opening(&past, &warm, &state);
    let patient = env.patient.clone();
    let core = build(config, env, &past, &memory, state, journal, versions);
    // Also where nothing is warm: the journal goes on from this checkpoint, so the next one must
    // not be written over it.
    let last = past.checkpoint.as_ref().map(|c| (c.header.sequence, c.which));
    let of_this_journal = past.checkpoint.as_ref().filter(|_| past.journal_ok);
    let base = of_this_journal.map_or(0, |c| c.header.journal_position);
    let mut areas = CheckpointAreas::new(all_homes_of(&past.members), tables);
    if areas.homes().len() > 1 {
        coverage_mark!(TwoHomes);
    }
    let plan = restore(&core, past, warm, &mut areas, &patient);
    let others = core.table.free_count() as usize + areas.count();
    opening.segments = u64::from(core.table.len()) - others as u64;
    let appended = core.state.lock().kill_log.appended;
    let opened = plan.as_ref().map_or(0, |plan| plan.exact.len() as u64);
    let checkpoints = Checkpoints::new(areas, last, (base, appended, opened));
    tracing::info!(segments = core.table.len(), warm = opening.warm, "cache opened");
    let background = Background::new(core.clone(), plan, config, checkpoints);
    Ok(Opened { core, background, opening })
}

/// Says so where a cache of several devices has its checkpoints on one of them.
fn tell_lone_home(past: &Past, homes: &[Home], infos: &[DeviceInfo]) {
    if let [home] = homes
        && past.members.len() > 1
    {
        let path = infos[usize::from(home.device.0)].path.display();
        tracing::warn!(
            %path,
            "all checkpoints are on one of several devices, without which the cache cannot be opened: a device that joins will have \
             them too, if it is large enough"
        );
    }
}

/// What is to be told of it, before segments are looked at.
fn opening(past: &Past, warm: &[bool], state: &StateFile) -> Opening {
    let origin = match (past.end, past.replaced) {
        (End::New, Some(why)) => Origin::Replaced(why),
        (End::New, None) => Origin::New,
        (End::Clean, _) => Origin::Closed,
        (End::Process, _) => Origin::Process,
        (End::Machine, _) => Origin::Machine,
    };
    Opening {
        cache: state.uuid,
        number: state.generation,
        origin,
        namespaces: warm.len(),
        warm: warm.iter().filter(|w| **w).count(),
        journal: past.journal_ok,
        timeless: past.timeless,
        segments: 0,
        truncated: Vec::new(),
    }
}
