//! Builds the shared state of an open cache.

use crate::sync::atomic::AtomicBool;
use std::sync::Arc;

use super::env::Env;
use super::members::Member;
use super::past::Past;
use crate::config::Config;
use crate::core::Core;
use crate::device::BlockingReads;
use crate::durability::state_store::StateStore;
use crate::durability::wait_lists::WaitLists;
use crate::durability::waiters::Waiters;
use crate::format::record::RecordFormat;
use crate::format::state::{NamespaceRecord, StateFile};
use crate::geometry;
use crate::index::IndexWriter;
use crate::journal::Journal;
use crate::namespace::Namespaces;
use crate::namespace::state::NamespaceState;
use crate::progress::Progress;
use crate::segment::{NO_PLACE, SegmentLocation, SegmentTable, Streams, StreamsConfig};
use crate::shard::ShardSlot;
use crate::stats::EngineCounters;
use crate::tier::admission::AdmissionRules;
use crate::tier::budget::WriteBudget;
use crate::time::CacheTime;
use crate::version::Versions;

/// Where segments lie. Those of devices that are missing lie nowhere.
fn places(members: &[Member]) -> Vec<SegmentLocation> {
    let end = |member: &Member| (member.base + member.segments) as usize;
    let mut places = vec![NO_PLACE; members.iter().map(end).max().unwrap_or(0)];
    for member in members {
        if member.segments < member.block.segments {
            let (segments, named) = (member.block.segments, member.segments);
            tracing::warn!(
                segments,
                named,
                "a device has more segments than can be named: the others are not used"
            );
        }
        for n in 0..member.segments {
            let from = member.block.first_segment();
            let offset = from + u64::from(n) * u64::from(member.block.segment_size);
            let place = SegmentLocation { device: member.device, offset };
            places[(member.base + n) as usize] = place;
        }
    }
    places
}

/// How records are written.
#[cfg(not(test))]
fn record_format(_: &Config, _: &StateFile) -> RecordFormat {
    RecordFormat::default()
}

/// How records are written: caches of the simulation may have a past with format 1.
#[cfg(test)]
fn record_format(config: &Config, state: &StateFile) -> RecordFormat {
    match state.generation <= config.fixed_lives {
        true => RecordFormat::Fixed,
        false => RecordFormat::default(),
    }
}

pub(super) fn build(
    config: &Config,
    env: Env,
    past: &Past,
    memory: &geometry::Memory,
    state: StateFile,
    journal: Journal,
    versions: Versions,
) -> Arc<Core> {
    let table = Arc::new(SegmentTable::new(places(&past.members), past.segment_size));
    let (journal, versions) = (Arc::new(journal), Arc::new(versions));
    let totals = Arc::new(EngineCounters::default());
    let streams = StreamsConfig {
        uuid: state.uuid,
        hash_seed: state.hash_seed,
        format: record_format(config, &state),
        max_outstanding: memory.chunks,
    };
    let shard = |_| {
        let mut index = IndexWriter::growing(memory.lines, memory.most_lines);
        index.set_lines(memory.lines_now);
        ShardSlot::new(index, memory.dram, memory.sketch, table.clone())
    };
    let namespace = |n: &NamespaceRecord| {
        let mut ns = NamespaceState::new(n.id, n.name.clone(), n.options);
        ns.journal_gaps = n.journal_gaps;
        ns.kill_all(n.kill);
        Arc::new(ns)
    };
    let namespaces = state.namespaces.iter().map(namespace).collect();
    let budget = config.write_budget.map(|rate| WriteBudget::new(rate, env.clock.millis()));
    let flash = u64::from(table.len()) * u64::from(table.segment_size());
    let admission = AdmissionRules::new(geometry::free_target(table.len()), flash, budget);
    Arc::new(Core {
        uuid: state.uuid,
        hash_seed: state.hash_seed,
        shards: (0..config.shards).map(shard).collect(),
        streams: Streams::new(
            &streams,
            table.clone(),
            versions.clone(),
            journal.clone(),
            totals.clone(),
        ),
        set: env.set,
        #[cfg(test)]
        areas: {
            let home = past.members.iter().find(|m| m.home.is_some()).map(|m| m.block);
            home.map_or([0; 3], |block| [block.area_at(0), block.area_at(1), block.area])
        },
        reads: BlockingReads::new(config.max_blocking_reads),
        time: CacheTime::new(env.clock, journal.clone(), state.time),
        namespaces: Namespaces::new(namespaces),
        state: StateStore::new(env.meta, state),
        admission,
        waiters: Waiters::default(),
        wait_lists: WaitLists::default(),
        progress: Progress::default(),
        closed: AtomicBool::new(false),
        table,
        journal,
        versions,
        totals,
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::members::in_a_row;
    use super::*;
    use crate::device::DeviceId;
    use crate::format::superblock::Superblock;
    use crate::geometry::MOST_SEGMENTS;

    #[test]
    fn of_more_segments_than_a_slot_names_the_first_are_used() {
        let block = |device, segments| Superblock {
            uuid: [3; 16],
            device,
            devices: 2,
            set_epoch: 1,
            size: 1 << 40,
            segment_size: 1 << 16,
            segments,
            area: 0,
            hash_seed: 42,
        };
        assert_eq!(places(&in_a_row(&[block(0, 5), block(1, 6)])).len(), 11);
        let places = places(&in_a_row(&[block(0, MOST_SEGMENTS - 5), block(1, 1 << 20)]));
        assert_eq!(
            (places.len(), places.last().unwrap().device),
            (MOST_SEGMENTS as usize, DeviceId(1))
        );
    }
}
