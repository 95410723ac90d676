//! Shards that have moved or are about to, for an operator.

use std::collections::BTreeMap;

use crate::config::Time;
use crate::custody::Custody;
use crate::identity::MemberId;
use crate::map::Map;

/// Of shards with the same other side: how many, and how long it goes on for the last of them.
pub type Shares = BTreeMap<Option<MemberId>, (usize, Time)>;

impl Custody {
    /// To whom shards are being handed over, and how many.
    pub fn leaving_to(&self) -> BTreeMap<MemberId, usize> {
        let mut shares = BTreeMap::new();
        for (_, to) in self.leaving.values() {
            *shares.entry(*to).or_default() += 1;
        }
        shares
    }

    /// Own shards whose missing rows are asked of their old owners, by these.
    pub fn pulled_from(&self, map: &Map, me: MemberId, now: Time) -> Shares {
        let from = |shard: u16| {
            let (first, _) = map.tokens_of(usize::from(shard));
            self.pull_from(map, me, first, now)
        };
        // Some may have gone on to others since.
        let owner = |shard: u16| map.shards.get(usize::from(shard)).and_then(|shard| shard.owner);
        let is_pulled = |shard: u16| owner(shard) == Some(me) && from(shard).is_some();
        let pulls = self.pulls.iter().filter(|(shard, _)| is_pulled(**shard));
        shares(pulls.map(|(shard, until)| (from(*shard), *until)), now)
    }

    /// Own shards whose rows are weak, by their old owners.
    pub fn weak_from(&self, map: &Map, now: Time) -> Shares {
        let from = |shard: u16| map.shards.get(usize::from(shard)).and_then(|shard| shard.previous);
        shares(self.weak.iter().map(|(shard, until)| (from(*shard), *until)), now)
    }
}

fn shares(all: impl Iterator<Item = (Option<MemberId>, Time)>, now: Time) -> Shares {
    let mut shares = Shares::new();
    for (from, until) in all.filter(|(_, until)| *until > now) {
        let (count, left) = shares.entry(from).or_default();
        (*count, *left) = (*count + 1, (until - now).max(*left));
    }
    shares
}
