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

use super::checkpoints::FoundCheckpoint;
use super::members::Member;
use crate::device::DeviceSet;
use crate::format::BLOCK;
use crate::format::first_free::{first_free, opened};
use crate::format::footer::decode_header;
use crate::format::state::StateFile;
use crate::journal::Scan;

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
    let entries = known.scan.iter().flat_map(|scan| &scan.others);
    let opened = entries.filter_map(|entry| opened(entry, floor)).collect();
    let tables = known.checkpoint.map(|checkpoint| &checkpoint.tables);
    let segments = member.base..member.base + member.segments;
    let first = first_free(tables, &opened, member.block.set_epoch, segments);
    let generation = |segment: u32| {
        let from = u64::from(segment - member.base) * u64::from(member.block.segment_size);
        let header = set.read_at(member.device, member.block.first_segment() + from, BLOCK).ok()?;
        decode_header(&header, &state.uuid, segment).map(|(generation, _)| generation)
    };
    first.into_iter().filter_map(generation).collect()
}
