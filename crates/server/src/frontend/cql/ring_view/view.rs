//! The nodes that drivers see, made of the map.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use afterglow_ring::{Map, MemberId, Standing};
use uuid::Uuid;

/// The rack of an instance of which no zone is known.
const RACK: &str = "rack1";

/// For so long drivers that never learn new tokens see a node that died. When it is back, what they
/// know of it is right again. No longer: who connects meanwhile tries to reach it too.
const REMEMBERED: Duration = Duration::from_secs(600);

/// An instance as drivers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingNode {
    /// Its host id.
    pub host_id: Uuid,
    /// Where drivers reach it.
    pub address: SocketAddr,
    /// It owns what lies between any token and the next one if that is one of these; ascending.
    pub tokens: Vec<i64>,
    /// The same, each as far before that as the shard's epoch says. Of an old token and the new
    /// owner's a driver that forgets neither finds the new one first. What is behind it falls to
    /// the next shard's owner, who forwards.
    pub newest_first: Vec<i64>,
    /// Its rack: its zone, or the same for all that have none.
    pub rack: String,
}

/// The ring as drivers see it, at one version of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingView {
    /// The map's version.
    pub version: u64,
    /// The host id of this instance, whether it is among the nodes or not.
    pub me: Uuid,
    /// Who owns shards.
    pub nodes: Vec<RingNode>,
    /// Host ids of members in good standing that own none: who leaves, or has just come.
    idle: Vec<Uuid>,
    /// Host ids of members whose operators have them leave.
    leaving: Vec<Uuid>,
    /// Nodes of before that died.
    absent: Vec<AbsentNode>,
}

/// A node that died, as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AbsentNode {
    node: RingNode,
    /// From when on this instance has not seen it.
    since: Instant,
}

impl AbsentNode {
    fn is_remembered(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < REMEMBERED
    }
}

impl RingView {
    /// The members of the map that own shards, accused ones too. A member that owns none is left
    /// out, because drivers take no node without tokens. So is one that clients of CQL do not
    /// reach: its tokens fall to the next node, which is not their owner and forwards.
    #[must_use]
    pub fn of(map: &Map, me: Uuid) -> Self {
        let mut tokens = tokens(map);
        let node = |entry: &afterglow_ring::MemberEntry| {
            let profile = &entry.profile;
            let address: SocketAddr = profile.cql_address.parse().ok()?;
            let (tokens, newest_first) = tokens.remove(&entry.identity.id)?;
            Some(RingNode {
                host_id: Uuid::from_u128(profile.host_id),
                address,
                tokens,
                newest_first,
                rack: if profile.zone.is_empty() { RACK } else { &profile.zone }.to_owned(),
            })
        };
        let nodes: Vec<RingNode> = map.members.iter().filter_map(node).collect();
        let idle = map.members.iter().filter(|entry| entry.standing == Standing::Active);
        let idle = idle.map(|entry| Uuid::from_u128(entry.profile.host_id));
        let idle = idle.filter(|id| nodes.iter().all(|node| node.host_id != *id)).collect();
        let leaving = map.members.iter().filter(|entry| entry.leaving);
        let leaving = leaving.map(|entry| Uuid::from_u128(entry.profile.host_id)).collect();
        Self { version: map.version, me, nodes, idle, leaving, absent: Vec::new() }
    }

    /// With the nodes of the view before that have died since, and those that had died before it.
    ///
    /// A node that gave its shards away is no absent one: it leaves. Nor is one that was about to,
    /// for this instance may not see the map in which it has none. Nor is one that is a node
    /// again, or whose address another has.
    #[must_use]
    pub fn after(mut self, before: &RingView, now: Instant) -> Self {
        let has_left = |id| self.idle.contains(id) || before.leaving.contains(id);
        let died = before.nodes.iter().filter(|node| !has_left(&node.host_id));
        let died = died.map(|node| AbsentNode { node: node.clone(), since: now });
        let absent = before.absent.iter().cloned().chain(died).filter(|absent| {
            let is_again = |node: &RingNode| {
                node.host_id == absent.node.host_id || node.address == absent.node.address
            };
            let is_other = absent.node.host_id != self.me && !self.nodes.iter().any(is_again);
            is_other && absent.is_remembered(now)
        });
        self.absent = absent.collect();
        self
    }

    /// Nodes that died within the last ten minutes.
    pub fn absent(&self, now: Instant) -> impl Iterator<Item = &RingNode> {
        let remembered = self.absent.iter().filter(move |absent| absent.is_remembered(now));
        remembered.map(|absent| &absent.node)
    }

    /// The node of that host id.
    #[must_use]
    pub fn node(&self, host_id: Uuid) -> Option<&RingNode> {
        self.nodes.iter().find(|node| node.host_id == host_id)
    }

    /// All nodes but this instance.
    pub fn others(&self) -> impl Iterator<Item = &RingNode> {
        self.nodes.iter().filter(|node| node.host_id != self.me)
    }
}

/// The tokens of every owner, and those by epoch. Neighbouring shards share none: for another owner
/// of a token that it knows a driver needs no other list of ranges.
fn tokens(map: &Map) -> HashMap<MemberId, (Vec<i64>, Vec<i64>)> {
    /// Fewer tokens than the smallest shard has.
    const MOST: u64 = 1 << 32;
    let mut tokens = HashMap::<MemberId, (Vec<i64>, Vec<i64>)>::new();
    for (shard, entry) in map.shards.iter().enumerate() {
        if let Some(owner) = entry.owner {
            let token = map.last_token(shard);
            let (plain, newest_first) = tokens.entry(owner).or_default();
            plain.push(token);
            newest_first.push(token - (entry.epoch % MOST) as i64);
        }
    }
    tokens
}

#[cfg(test)]
pub(super) mod tests {
    use afterglow_cql::ring::{Place, Ring};
    use afterglow_ring::{Incarnation, Profile, SHARDS};
    use proptest::prelude::*;

    use super::*;

    pub fn host(n: u64) -> Uuid {
        Uuid::from_u128(u128::from(n) << 64 | 5)
    }

    /// A map of these members, whose shards have the owners that `owner` says.
    pub fn map(members: &[u64], shards: usize, owner: impl Fn(usize) -> Option<u64>) -> Map {
        let mut map = Map::empty(shards);
        for n in members {
            let profile = Profile {
                cql_address: format!("10.0.0.{n}:9042"),
                host_id: host(*n).as_u128(),
                ..Profile::default()
            };
            map.put(MemberId(*n), Incarnation(u128::from(*n)), profile);
        }
        (0..shards).for_each(|shard| map.give(shard, owner(shard).map(MemberId)));
        map
    }

    /// Who owns a token by the rule of Cassandra and its drivers.
    fn owner(view: &RingView, tokens: fn(&RingNode) -> &Vec<i64>, token: i64) -> Uuid {
        let place = |node: &RingNode| Place {
            data_center: "dc".into(),
            rack: node.rack.clone(),
            tokens: tokens(node).clone(),
        };
        let settings = [("class", "SimpleStrategy"), ("replication_factor", "1")];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let replicas = Ring::new(view.nodes.iter().map(place).collect()).replicas(&settings, "dc");
        view.nodes[replicas.of(token)[0]].host_id
    }

    proptest! {
        #[test]
        fn every_token_has_the_owner_that_the_map_gives_it(
            owners in prop::collection::vec(1_u64..5, 64),
            tokens in prop::collection::vec(any::<i64>(), 100),
            bits in 0_u32..7,
        ) {
            let map = map(&[1, 2, 3, 4], 1 << bits, |shard| Some(owners[shard]));
            let view = RingView::of(&map, host(1));
            let ends = (0..map.shards.len()).map(|shard| map.last_token(shard));
            let ends = ends.flat_map(|end| [end, end.wrapping_add(1)]);
            for token in tokens.into_iter().chain(ends) {
                let expected = map.owner_of(token).map(|id| host(id.0));
                let owner = owner(&view, |node| &node.tokens, token);
                prop_assert_eq!(Some(owner), expected, "{}", token);
            }
        }

        #[test]
        fn a_driver_that_keeps_old_tokens_of_nodes_that_stay_finds_an_instance_that_comes(
            owners in prop::collection::vec(1_u64..4, 64),
            taken in prop::collection::vec(any::<bool>(), 64),
            tokens in prop::collection::vec(any::<i64>(), 100),
        ) {
            let mut map = map(&[1, 2, 3, 4], 64, |shard| Some(owners[shard]));
            let before = RingView::of(&map, host(1));
            for shard in (0..64).filter(|shard| taken[*shard]) {
                map.give(shard, Some(MemberId(4)));
            }
            let now = RingView::of(&map, host(1));
            let new = now.nodes.iter().filter(|node| node.host_id == host(4));
            let nodes = before.nodes.iter().chain(new).cloned().collect();
            let kept = RingView { nodes, ..before };
            for token in tokens {
                let expected = map.owner_of(token).map(|id| host(id.0));
                let owner = owner(&kept, |node| &node.newest_first, token);
                prop_assert_eq!(Some(owner), expected, "{}", token);
            }
        }
    }

    #[test]
    fn every_shard_has_a_token_and_this_instance_is_no_other() {
        let map = map(&[1, 2], SHARDS, |shard| Some(if shard < 1_024 { 1 } else { 2 }));
        let view = RingView::of(&map, host(2));
        let tokens: Vec<_> = view.nodes.iter().map(|node| node.tokens.len()).collect();
        assert_eq!(tokens, [1_024, 3_072]);
        assert!(view.nodes.iter().all(|node| node.tokens.is_sorted()));
        assert_eq!(view.nodes[1].tokens.last(), Some(&i64::MAX));
        assert_eq!(view.nodes[1].newest_first.last(), Some(&(i64::MAX - 1)));
        assert_eq!(view.others().map(|node| node.host_id).collect::<Vec<_>>(), [host(1)]);
    }

    #[test]
    fn accused_members_stay_until_their_shards_are_taken_and_who_owns_none_is_no_node() {
        let mut map = map(&[1, 2, 3], 4, |shard| Some([1, 2, 1, 1][shard]));
        map.accuse(map.members[1].identity);
        let hosts = |map: &Map| -> Vec<Uuid> {
            RingView::of(map, host(1)).nodes.iter().map(|node| node.host_id).collect()
        };
        assert_eq!(hosts(&map), [host(1), host(2)], "the third owns nothing yet");
        map.give(1, Some(MemberId(3)));
        assert_eq!(hosts(&map), [host(1), host(3)]);
        let zone = |map: &Map| RingView::of(map, host(1)).nodes[0].rack.clone();
        assert_eq!(zone(&map), RACK);
        map.members[0].profile.zone = "z1".into();
        assert_eq!(zone(&map), "z1");
        map.members[0].profile.cql_address.clear();
        assert_eq!(hosts(&map), [host(3)], "drivers do not reach the first");
    }

    #[test]
    fn who_died_is_absent_until_it_is_a_node_again_and_who_left_is_not() {
        const NOBODY: [Uuid; 0] = [];
        let of = |map: &Map| RingView::of(map, host(1));
        let absent = |view: &RingView| -> Vec<Uuid> {
            view.absent(Instant::now()).map(|node| node.host_id).collect()
        };
        let all = [1, 2, 3];
        let whole = of(&map(&all, 4, |shard| Some([1, 2, 3, 1][shard])));
        let now = Instant::now();
        // The third is accused, and its shards are taken.
        let mut accused = map(&all, 4, |shard| Some([1, 2, 1, 1][shard]));
        accused.accuse(accused.members[2].identity);
        let died = of(&accused).after(&whole, now);
        assert_eq!(absent(&died), [host(3)]);
        let later = now + REMEMBERED;
        assert_eq!(died.absent(later).count(), 0);
        assert_eq!(died.absent(later - Duration::from_secs(1)).count(), 1);
        assert_eq!(of(&accused).after(&died, later).absent.len(), 0, "nor is it kept");
        // It is no member any more, then one without shards, then a node.
        let gone = of(&map(&[1, 2], 4, |shard| Some([1, 2, 1, 1][shard]))).after(&died, now);
        assert_eq!(absent(&gone), [host(3)]);
        let back = of(&map(&all, 4, |shard| Some([1, 2, 1, 1][shard]))).after(&gone, now);
        assert_eq!(absent(&back), [host(3)]);
        assert_eq!(absent(&whole.clone().after(&back, now)), NOBODY);
        // Another has its address: it lost its state.
        let mut other = map(&[1, 2, 4], 4, |shard| Some([1, 2, 4, 1][shard]));
        other.members[2].profile.cql_address = "10.0.0.3:9042".into();
        assert_eq!(absent(&of(&other).after(&died, now)), NOBODY);
        // The third leaves. The map in which it has no shards came and went unseen.
        let mut leaving = map(&all, 4, |shard| Some([1, 2, 3, 1][shard]));
        leaving.members[2].leaving = true;
        let leaving = of(&leaving).after(&whole, now);
        assert_eq!(leaving.nodes.len(), 3);
        let left = of(&map(&[1, 2], 4, |shard| Some([1, 2, 1, 1][shard]))).after(&leaving, now);
        assert_eq!(absent(&left), NOBODY);
        // The second gives its shards away first, and is no member then.
        let empty = of(&map(&all, 4, |shard| Some([1, 3, 3, 1][shard]))).after(&whole, now);
        let left = of(&map(&[1, 3], 4, |shard| Some([1, 3, 3, 1][shard]))).after(&empty, now);
        assert_eq!([absent(&empty), absent(&left)], [NOBODY, NOBODY]);
        // This instance itself is no other.
        let without = of(&map(&[2, 3], 4, |shard| Some([2, 2, 3, 3][shard])));
        assert_eq!(absent(&without.after(&whole, now)), NOBODY);
    }

    #[test]
    fn shards_of_nobody_fall_to_the_next_node() {
        let map = map(&[1, 2], 4, |shard| [None, Some(1), None, Some(2)][shard]);
        let view = RingView::of(&map, host(1));
        let owner = |token| owner(&view, |node| &node.tokens, token);
        let owners = [i64::MIN, i64::MIN / 2, 0, i64::MAX].map(owner);
        assert_eq!(owners, [host(1), host(1), host(2), host(2)]);
        assert!(RingView::of(&Map::empty(4), host(1)).nodes.is_empty());
    }
}
