//! Applies what the journal and the checkpoint say, and plans what is loaded in the background.

use crate::sync::atomic::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::checkpoints::FoundCheckpoint;
use super::exact::{self, SegmentReader};
use super::kills;
use super::load_plan::LoadPlan;
use super::members::Member;
use super::past::Past;
use crate::checkpoint_areas::{AreaAt, CheckpointAreas};
use crate::core::Core;
use crate::device::DeviceSet;
use crate::format::checkpoint::NamespaceKills;
use crate::format::journal::Event;
use crate::journal::Scan;
use crate::namespace::state::NamespaceState;
use crate::segment::SegmentState;

/// Puts what the journal says into force and tells the driver what to load; `None` when there is
/// nothing to believe.
pub(super) fn restore(
    core: &Arc<Core>,
    past: Past,
    warm: Vec<bool>,
    areas: &mut CheckpointAreas,
    patient: &Arc<dyn DeviceSet>,
) -> Option<LoadPlan> {
    restore_areas(core, &past, areas);
    if !warm.iter().any(|w| *w) {
        core.table.finish_restore();
        return None;
    }
    // Without a checkpoint that belongs to a whole journal, only footers are left (Immutable
    // namespaces).
    let rebuild = past.checkpoint.is_none() && !past.journal_ok;
    let floor = past.checkpoint.as_ref().map_or(0, |c| c.header.version_floor);
    let scan = past.scan.unwrap_or_default();
    kills::distribute(&scan, &core.shards);
    apply_kills_of_many(core, &scan);
    // Nothing counts that lies on a device from before it joined, or on none.
    let epochs = epochs(core, &past.members);
    let counts =
        |id: u32, generation: u64| core.table.contains(id) && generation >= epochs[id as usize];
    let (generations, checkpoint) = (vec![0; core.table.len() as usize], None);
    // Without a whole journal they are of another one.
    let runs = if past.journal_ok { past.kill_log.runs } else { Vec::new() };
    let appended = core.state.lock().kill_log.appended;
    let mut plan = LoadPlan { checkpoint, generations, exact: Vec::new(), runs, appended, warm };
    if let Some(FoundCheckpoint { header, tables, which, homes }) = past.checkpoint {
        for kills in &tables.namespaces {
            restore_kills(core, kills);
        }
        for (id, entry) in (0..).zip(&tables.segments).filter(|(id, e)| counts(*id, e.generation)) {
            match entry.state {
                1 => plan.exact.push((id, entry.generation)),
                2 => {
                    core.table.restore(id, entry);
                    plan.generations[id as usize] = entry.generation;
                }
                _ => {}
            }
        }
        let at = |home| AreaAt { home, which };
        plan.checkpoint = Some((header, homes.into_iter().map(at).collect()));
    }
    if !past.journal_ok {
        coverage_mark!(OpenedDoubtful);
    }
    for entry in &scan.others {
        let Event::Open { segment } = entry.event else { continue };
        if entry.version >= floor && counts(segment, entry.version) {
            plan.exact.push((segment, entry.version));
        }
    }
    if rebuild {
        rebuild_from_footers(core, &plan.warm, patient, counts);
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

/// Takes the segments that hold blocks of checkpoints. Also where nothing is warm: the journal goes
/// on from the checkpoint.
fn restore_areas(core: &Core, past: &Past, areas: &mut CheckpointAreas) {
    let Some(FoundCheckpoint { header, tables, .. }) = &past.checkpoint else { return };
    // One that could not be written any more, and was replaced, may have been opened since.
    let others = past.scan.iter().flat_map(|scan| &scan.others);
    let opened = others.filter_map(|entry| match entry.event {
        Event::Open { segment } if entry.version >= header.version_floor => Some(segment),
        _ => None,
    });
    let opened: HashSet<u32> = opened.collect();
    for (number, segments) in [&tables.areas, &tables.second].into_iter().enumerate() {
        let named = (header.sequence, segments);
        areas.restore(&core.table, number, named, |segment| opened.contains(&segment));
    }
}

/// By segment, the lowest generation that counts.
fn epochs(core: &Core, members: &[Member]) -> Vec<u64> {
    let mut epochs = vec![u64::MAX; core.table.len() as usize];
    for member in members {
        let range = member.base as usize..(member.base + member.segments) as usize;
        epochs[range].fill(member.block.set_epoch);
    }
    epochs
}

/// The newest generation of each segment is the one to be read, in the order in which they were
/// opened.
fn plan_exact(core: &Core, plan: &mut LoadPlan) {
    plan.exact.sort_unstable_by_key(|&(id, generation)| (id, std::cmp::Reverse(generation)));
    plan.exact.dedup_by_key(|(id, _)| *id);
    plan.exact.sort_unstable_by_key(|&(_, generation)| generation);
    for &(segment, generation) in &plan.exact {
        debug_assert_ne!(core.table.state(segment), SegmentState::Checkpoint, "opened since");
        plan.generations[segment as usize] = 0;
        core.table.set_unread(segment, generation);
    }
}

/// Every footer there is.
fn rebuild_from_footers(
    core: &Core,
    warm: &[bool],
    patient: &Arc<dyn DeviceSet>,
    counts: impl Fn(u32, u64) -> bool,
) {
    coverage_mark!(OpenedFromFooters);
    let reader = SegmentReader { set: patient, ..SegmentReader::new(core, warm.len()) };
    let mut found: Vec<_> = (0..core.table.len()).filter_map(|s| reader.footer(s)).collect();
    found.retain(|exact| counts(exact.segment, exact.generation));
    found.sort_unstable_by_key(|exact| exact.generation);
    for exact in &found {
        exact::register(core, exact);
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
