//! Finds out that the data directory is an older copy: the devices have gone on without it.
//!
//! Each life takes its versions from above the limit that it finds in the state file, and never
//! from above the one that it has written there ([`crate::version`]). So a version at or above the
//! limit is one of a life that this state file knows nothing of. Its journal does not have the
//! changes of that life.
//!
//! Two places show such a version:
//! - the header of a checkpoint, whose sequence is a version;
//! - the header of a segment, whose generation is one.
//!
//! To look at all segments takes too long. But a life takes free segments in their order, and the
//! same copy finds the same ones free. So what has gone on without it has begun with those that
//! this opening would begin with.
//!
//! A life that died before it had written a chunk of a segment leaves nothing on a device. Its
//! changes cannot be missed by what is looked at here.

use std::collections::HashSet;

use super::checkpoints::FoundCheckpoint;
use super::members::Member;
use crate::device::DeviceSet;
use crate::format::BLOCK;
use crate::format::footer::decode_header;
use crate::format::journal::Event;
use crate::format::state::StateFile;
use crate::journal::Scan;

/// Free segments of each device that are looked at: a life begins as many streams.
const FIRST: usize = 3;

/// Openings that a life which was never heard of may have been followed by.
const OPENINGS: u64 = 1 << 20;

/// What tells which segments were free.
pub(super) struct WhatWasFree<'a> {
    pub(super) members: &'a [Member],
    pub(super) checkpoint: Option<&'a FoundCheckpoint>,
    pub(super) scan: Option<&'a Scan>,
}

/// The highest version that this state file cannot know of, if one is found.
pub(super) fn unknown_version(
    set: &dyn DeviceSet,
    state: &StateFile,
    newest_sequence: u64,
    known: &WhatWasFree<'_>,
) -> Option<u64> {
    let generations =
        known.members.iter().flat_map(|member| generations(set, state, member, known));
    let highest = generations.fold(newest_sequence, u64::max);
    (highest >= state.version_limit).then_some(highest)
}

/// Has the next life begin above what an unknown one has used: its versions, and the numbers of its
/// openings, which name journals.
pub(super) fn go_beyond(state: &mut StateFile, version: u64) {
    coverage_mark!(OlderCopy);
    tracing::warn!(
        "the data directory is an older copy: the devices have been used without it since, and what changed then is not known. The \
         cache starts cold. Do not bring a data directory back without its devices"
    );
    state.version_limit = version + 1;
    state.generation += OPENINGS;
}

/// Generations of the segments of a member that this opening would begin with.
fn generations(
    set: &dyn DeviceSet,
    state: &StateFile,
    member: &Member,
    known: &WhatWasFree<'_>,
) -> Vec<u64> {
    let floor = known.checkpoint.map_or(0, |checkpoint| checkpoint.header.version_floor);
    let opened = known.scan.iter().flat_map(|scan| &scan.others).filter_map(|entry| {
        let Event::Open { segment } = entry.event else { return None };
        (entry.version >= floor).then_some(segment)
    });
    let tables = known.checkpoint.map(|checkpoint| &checkpoint.tables);
    let of_areas = tables.iter().flat_map(|t| t.areas.iter().chain(&t.second).flatten().copied());
    let taken: HashSet<u32> = opened.chain(of_areas).collect();
    let is_free = |segment: &u32| {
        let entry = tables.and_then(|tables| tables.segments.get(*segment as usize));
        // What was there before the device joined does not count.
        let is_used = entry.is_some_and(|entry| {
            matches!(entry.state, 1 | 2) && entry.generation >= member.block.set_epoch
        });
        !is_used && !taken.contains(segment)
    };
    let generation = |segment: u32| {
        let from = u64::from(segment - member.base) * u64::from(member.block.segment_size);
        let header = set.read_at(member.device, member.block.first_segment() + from, BLOCK).ok()?;
        decode_header(&header, &state.uuid, segment).map(|(generation, _)| generation)
    };
    let segments = member.base..member.base + member.segments;
    segments.filter(is_free).take(FIRST).filter_map(generation).collect()
}
