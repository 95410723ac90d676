//! What an operator is told of the leases of all members, of who owns which tokens, and of shards
//! that move.

use std::collections::BTreeMap;

use afterglow_ring::{Map, MemberId, MoveStep, PeerLease, ShardMove, Time};
use serde::{Deserialize, Serialize};

/// What an instance knows of a member's lease, in milliseconds. Of its own it knows it all; of
/// another's what promises and answers show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// For how long it may last; 0: it has none. Another's lasts no longer than this instance has
    /// promised. None where this one is no active member, whose promise nobody needs.
    pub bound_ms: Option<u64>,
    /// How long ago a question was sent that it has answered. None for this instance.
    pub answered_ms: Option<u64>,
    /// For how long its promise counts without which this instance has no lease; 0: it gives none.
    /// None for this instance.
    pub promises_ms: Option<u64>,
    /// How long ago the database has last answered it, as it says itself.
    pub database_ms: Option<u64>,
}

/// Shards that move from one owner to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveStatus {
    /// The old owner; none where they were nobody's.
    pub from: Option<String>,
    /// The new owner.
    pub to: String,
    /// How many.
    pub shards: usize,
    /// `to come`: by the map, with all that are under way; `asked for`: by this instance; `handed
    /// over`: by this instance, and nobody answers for them; `pulled`: they are this instance's,
    /// and it asks the old owner for rows that it misses; `weak`: they are this instance's, and
    /// rows live a minute at most or are not cached: for what the old owner may have written, or
    /// for more holds than are remembered.
    pub step: String,
    /// How long this goes on for the last of them, where that is known.
    pub left_ms: Option<u64>,
}

/// Neighbouring shards of one owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeStatus {
    /// The first token, as a text: many readers of JSON round numbers of this size.
    pub first_token: String,
    /// The last token.
    pub last_token: String,
    /// The first shard.
    pub first_shard: usize,
    /// The last shard.
    pub last_shard: usize,
    /// Who owns them; none where nobody does.
    pub owner: Option<String>,
}

/// A member's id in hexadecimal digits.
pub fn id_text(id: MemberId) -> String {
    format!("{:016x}", id.0)
}

fn ms(time: Time) -> u64 {
    time / 1_000
}

impl LeaseStatus {
    /// Of another member.
    pub fn of(lease: &PeerLease) -> LeaseStatus {
        LeaseStatus {
            bound_ms: lease.bound.map(ms),
            answered_ms: lease.answered.map(ms),
            promises_ms: Some(ms(lease.promises)),
            database_ms: lease.read.map(ms),
        }
    }
}

impl MoveStatus {
    /// The same for an operator.
    pub fn of(moved: &ShardMove) -> MoveStatus {
        let step = match moved.step {
            MoveStep::ToCome => "to come",
            MoveStep::Asked => "asked for",
            MoveStep::Leaving => "handed over",
            MoveStep::Pulled => "pulled",
            MoveStep::Weak => "weak",
        };
        MoveStatus {
            from: moved.from.map(id_text),
            to: id_text(moved.to),
            shards: moved.shards,
            step: step.to_owned(),
            left_ms: moved.left.map(ms),
        }
    }
}

/// Who owns which tokens: the first and the last shard of each range, and its owner.
fn runs(map: &Map) -> Vec<(usize, usize, Option<MemberId>)> {
    let mut runs: Vec<(usize, usize, Option<MemberId>)> = Vec::new();
    for (number, shard) in map.shards.iter().enumerate() {
        match runs.last_mut() {
            Some((_, last, owner)) if *owner == shard.owner => *last = number,
            _ => runs.push((number, number, shard.owner)),
        }
    }
    runs
}

/// The same for an operator.
pub fn ranges(map: &Map) -> Vec<RangeStatus> {
    let range = |(first, last, owner): (usize, usize, Option<MemberId>)| RangeStatus {
        first_token: map.tokens_of(first).0.to_string(),
        last_token: map.tokens_of(last).1.to_string(),
        first_shard: first,
        last_shard: last,
        owner: owner.map(id_text),
    };
    runs(map).into_iter().map(range).collect()
}

/// In how many ranges the shards of each owner are.
pub fn counts(map: &Map) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for owner in runs(map).into_iter().filter_map(|(.., owner)| owner) {
        *counts.entry(id_text(owner)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_shards_of_one_owner_are_one_range_and_ranges_cover_all_tokens() {
        let mut map = Map::empty(8);
        for (shard, owner) in [(1, 1), (2, 1), (3, 2), (6, 1), (7, 1)] {
            map.give(shard, Some(MemberId(owner)));
        }
        let ranges = ranges(&map);
        let shown: Vec<_> = ranges
            .iter()
            .map(|range| (range.first_shard, range.last_shard, range.owner.as_deref()))
            .collect();
        let [one, two] = ["0000000000000001", "0000000000000002"];
        assert_eq!(
            shown,
            [(0, 0, None), (1, 2, Some(one)), (3, 3, Some(two)), (4, 5, None), (6, 7, Some(one))]
        );
        let tokens = |text: &str| text.parse::<i64>().unwrap();
        assert_eq!(tokens(&ranges[0].first_token), i64::MIN);
        assert_eq!(tokens(&ranges[4].last_token), i64::MAX);
        for two in ranges.windows(2) {
            assert_eq!(tokens(&two[0].last_token) + 1, tokens(&two[1].first_token));
        }
    }
}
