//! The map: who is a member and who owns which shard. One row of the database, changed only by
//! compare-and-set of its version.

use crate::identity::{Identity, Incarnation, MemberId, RingId};

/// How many shards a ring has in production: ranges of the token by its top bits.
pub const SHARDS: usize = 4_096;

/// A setting that all members must share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// What its operator calls it, at most 255 bytes.
    pub name: String,
    /// Its value, or a digest of a long one; at most 255 bytes.
    pub value: String,
}

/// What an operator says of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// Where other instances reach it, at most 255 bytes.
    pub address: String,
    /// Where clients of the CQL front end reach it, `IP:PORT`; empty: nowhere.
    pub cql_address: String,
    /// The host id that it shows these clients as its own.
    pub host_id: u128,
    /// The oldest and the newest version of the protocol that it speaks.
    pub protocol: (u16, u16),
    /// Its part of the shards, beside the weights of others; 0 owns none.
    pub weight: u32,
    /// Its failure domain, at most 255 bytes.
    pub zone: String,
    /// What must be the same on all members, at most 255.
    pub settings: Vec<Setting>,
}

/// What the map says of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It may serve, and its promise is needed.
    Active,
    /// It was silent: it may not serve, and its shards will be given to others.
    Accused,
}

/// A member of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberEntry {
    /// Who.
    pub identity: Identity,
    /// The version of the map in which this incarnation came.
    pub since: u64,
    /// Active or accused.
    pub standing: Standing,
    /// Its operator has it leave: it is to own nothing, whatever its weight.
    pub leaving: bool,
    /// What its operator says of it.
    pub profile: Profile,
}

impl MemberEntry {
    /// The lower, the earlier this incarnation came.
    pub(crate) fn age(&self) -> (u64, MemberId) {
        (self.since, self.identity.id)
    }
}

/// Who owns a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shard {
    /// Nobody, when the last member has left.
    pub owner: Option<MemberId>,
    /// One higher with every change of the owner.
    pub epoch: u64,
    /// The owner before.
    pub previous: Option<MemberId>,
}

/// Members and shards, at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// 1 for the first.
    pub version: u64,
    /// Which ring this is: as its founder has drawn it.
    pub ring: RingId,
    /// In the order of their ids, each id once.
    pub members: Vec<MemberEntry>,
    /// A power of two of them.
    pub shards: Vec<Shard>,
}

/// The shard of a token, of so many.
pub fn shard_of(token: i64, shards: usize) -> usize {
    let bits = shards.trailing_zeros();
    let from_least = (token as u64) ^ (1 << 63);
    if bits == 0 { 0 } else { (from_least >> (64 - bits)) as usize }
}

impl Map {
    /// The map that stands for a row that does not exist yet.
    #[must_use]
    pub fn empty(shards: usize) -> Self {
        let shards = vec![Shard::default(); shards];
        Self { version: 0, ring: RingId::default(), members: Vec::new(), shards }
    }

    /// The shard of a token: its top bits, counted from the smallest token.
    #[must_use]
    pub fn shard_of(&self, token: i64) -> usize {
        shard_of(token, self.shards.len())
    }

    /// The first and the last token of a shard.
    #[must_use]
    pub fn tokens_of(&self, shard: usize) -> (i64, i64) {
        let first = if shard == 0 { i64::MIN } else { self.last_token(shard - 1) + 1 };
        (first, self.last_token(shard))
    }

    /// The last token of a shard: a token at which a node of Cassandra's ring would own it.
    #[must_use]
    pub fn last_token(&self, shard: usize) -> i64 {
        let bits = self.shards.len().trailing_zeros();
        let from_least = ((shard as u128 + 1) << (64 - bits)) - 1;
        (from_least as u64 ^ (1 << 63)) as i64
    }

    /// The member of this id.
    #[must_use]
    pub fn entry(&self, id: MemberId) -> Option<&MemberEntry> {
        let at = self.members.binary_search_by_key(&id, |m| m.identity.id).ok()?;
        Some(&self.members[at])
    }

    /// Whether this incarnation is an active member.
    #[must_use]
    pub fn is_active(&self, who: Identity) -> bool {
        self.entry(who.id).is_some_and(|m| m.identity == who && m.standing == Standing::Active)
    }

    /// Whether this incarnation is accused.
    #[must_use]
    pub fn is_accused(&self, who: Identity) -> bool {
        self.entry(who.id).is_some_and(|m| m.identity == who && m.standing == Standing::Accused)
    }

    /// Whether this incarnation is a member, in whatever standing.
    #[must_use]
    pub fn has(&self, who: Identity) -> bool {
        self.entry(who.id).is_some_and(|m| m.identity == who)
    }

    /// The active members, in the order of their ids.
    pub fn active(&self) -> impl Iterator<Item = &MemberEntry> {
        self.members.iter().filter(|m| m.standing == Standing::Active)
    }

    /// How many active members come before this one, 5 at most: so many steps later it acts on what
    /// all see, that not all do so at one time.
    #[must_use]
    pub fn rank(&self, who: Identity) -> u64 {
        self.before(who).min(5)
    }

    /// How many active members come before this one.
    #[must_use]
    pub fn before(&self, who: Identity) -> u64 {
        self.active().take_while(|member| member.identity != who).count() as u64
    }

    /// The active member whose incarnation came first: its settings are the ring's.
    #[must_use]
    pub fn eldest(&self) -> Option<&MemberEntry> {
        self.active().min_by_key(|member| member.age())
    }

    /// The accused members, in the order of their ids.
    pub fn accused(&self) -> impl Iterator<Item = Identity> {
        self.members.iter().filter(|m| m.standing == Standing::Accused).map(|m| m.identity)
    }

    /// Who owns the shard of a token.
    #[must_use]
    pub fn owner_of(&self, token: i64) -> Option<MemberId> {
        self.shards[self.shard_of(token)].owner
    }

    /// The shards that a member owns.
    pub fn owned_by(&self, id: MemberId) -> impl Iterator<Item = usize> {
        (0..self.shards.len()).filter(move |s| self.shards[*s].owner == Some(id))
    }

    /// All who own a shard, each once, in the order of their ids.
    #[must_use]
    pub fn owners(&self) -> Vec<MemberId> {
        let mut owners: Vec<_> = self.shards.iter().filter_map(|s| s.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// The same map with the next version, to be changed.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { version: self.version + 1, ..self.clone() }
    }

    /// Puts a member in under an incarnation of its own, active. It keeps the shards that its id
    /// has.
    pub fn put(&mut self, id: MemberId, incarnation: Incarnation, profile: Profile) {
        let entry = MemberEntry {
            identity: Identity { id, incarnation },
            since: self.version,
            standing: Standing::Active,
            leaving: false,
            profile,
        };
        match self.members.binary_search_by_key(&id, |m| m.identity.id) {
            Ok(at) => self.members[at] = entry,
            Err(at) => self.members.insert(at, entry),
        }
    }

    /// Accuses an active member.
    pub fn accuse(&mut self, who: Identity) {
        if let Some(entry) = self.members.iter_mut().find(|m| m.identity == who) {
            entry.standing = Standing::Accused;
        }
    }

    /// Gives a shard to somebody, or to nobody; its epoch rises.
    pub fn give(&mut self, shard: usize, to: Option<MemberId>) {
        let entry = &mut self.shards[shard];
        *entry = Shard { owner: to, epoch: entry.epoch + 1, previous: entry.owner };
    }

    /// Takes members out; their shards must have been given away.
    pub fn remove(&mut self, ids: &[MemberId]) {
        self.members.retain(|m| !ids.contains(&m.identity.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_ranges_of_the_token_from_the_smallest_on() {
        let map = Map::empty(4);
        let tokens = [i64::MIN, i64::MIN / 2, -1, 0, i64::MAX / 2 + 1, i64::MAX];
        assert_eq!(tokens.map(|t| map.shard_of(t)), [0, 1, 1, 2, 3, 3]);
        assert_eq!(Map::empty(1).shard_of(-5), 0);
        let last = [0, 1, 2, 3].map(|shard| map.last_token(shard));
        assert_eq!(last, [i64::MIN / 2 - 1, -1, i64::MAX / 2, i64::MAX]);
        assert_eq!(Map::empty(1).last_token(0), i64::MAX);
        let map = Map::empty(SHARDS);
        for shard in 0..SHARDS - 1 {
            let last = map.last_token(shard);
            assert_eq!([last, last + 1].map(|t| map.shard_of(t)), [shard, shard + 1]);
            assert_eq!((map.tokens_of(shard).1, map.tokens_of(shard + 1).0), (last, last + 1));
        }
    }

    #[test]
    fn every_change_of_an_owner_raises_the_epoch_and_keeps_the_one_before() {
        let mut map = Map::empty(2);
        map.give(0, Some(MemberId(1)));
        map.give(0, Some(MemberId(2)));
        let shard = map.shards[0];
        assert_eq!((shard.owner, shard.epoch), (Some(MemberId(2)), 2));
        assert_eq!((shard.previous, map.shards[1].epoch), (Some(MemberId(1)), 0));
    }
}
