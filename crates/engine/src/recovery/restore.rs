//! Applies what the journal and the checkpoint say, and plans what is loaded in the background.

use crate::sync::atomic::Ordering;
use std::sync::Arc;

use super::exact::{self, SegmentReader};
use super::kills;
use super::load_plan::LoadPlan;
use super::past::Past;
use crate::checkpoint_areas::CheckpointAreas;
use crate::core::Core;
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
) -> Option<LoadPlan> {
    // Also where nothing is warm: the journal goes on from the checkpoint.
    if let Some((.., tables)) = &past.checkpoint {
        areas.restore(&core.table, &tables.areas);
    }
    if !warm.iter().any(|w| *w) {
        core.table.finish_restore();
        return None;
    }
    // Without a checkpoint that belongs to a whole journal, only footers are left (Immutable
    // namespaces).
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
