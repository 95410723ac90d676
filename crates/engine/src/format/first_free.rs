//! Which segments of a device an opening would write to first, by what is on flash and in the
//! journal. A life that took its turn with the same files has begun with the same ones.

use std::collections::HashSet;
use std::ops::Range;

use super::checkpoint::Tables;
use super::journal::{Event, JournalEntry};

/// Free segments of each device that are looked at: a life begins as many streams.
const FIRST: usize = 3;

/// The segment that an entry of the journal opens, unless the checkpoint with that `version_floor`
/// knows of it.
#[must_use]
pub fn opened(entry: &JournalEntry, version_floor: u64) -> Option<u32> {
    match entry.event {
        Event::Open { segment } if entry.version >= version_floor => Some(segment),
        _ => None,
    }
}

/// The first free ones of these segments of a device that joined at `set_epoch`, at most three:
/// neither `opened` since the checkpoint with these tables, nor used in it.
#[must_use]
pub fn first_free(
    tables: Option<&Tables>,
    opened: &HashSet<u32>,
    set_epoch: u64,
    segments: Range<u32>,
) -> Vec<u32> {
    let areas = tables.iter().flat_map(|t| t.areas.iter().chain(&t.second).flatten().copied());
    let areas: HashSet<u32> = areas.collect();
    let is_free = |segment: &u32| {
        let entry = tables.and_then(|tables| tables.segments.get(*segment as usize));
        // What was there before the device joined does not count.
        let is_used = entry
            .is_some_and(|entry| matches!(entry.state, 1 | 2) && entry.generation >= set_epoch);
        !is_used && !opened.contains(segment) && !areas.contains(segment)
    };
    segments.filter(is_free).take(FIRST).collect()
}
