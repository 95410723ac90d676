//! What a member knows of the leases of others and of shards that move, for its operator. Nothing
//! is decided by it.

use std::sync::Arc;

use super::Member;
use crate::config::Time;
use crate::identity::MemberId;
use crate::map::{Map, MemberEntry};
use crate::placement;

/// What is known of another member's lease. Only that member knows whether it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLease {
    /// Who.
    pub id: MemberId,
    /// For how long its lease may last, by what this member has promised it; 0: it has none. `None`
    /// while this one is not active in the map: then its promise is not needed.
    pub bound: Option<Time>,
    /// How long ago the newest PING of ours was sent that it has answered; `None` before the first.
    pub answered: Option<Time>,
    /// For how long its promise to this member counts still; 0: it does not, or there is none.
    pub promises: Time,
    /// How long ago it has last read the map, by its last answer.
    pub read: Option<Time>,
}

/// How far shards are on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveStep {
    /// They are to move, by the map. What is under way is among them.
    ToCome,
    /// This member has asked their owner for them.
    Asked,
    /// This member hands them over: nobody answers for them until the map has changed.
    Leaving,
    /// They have moved to this member, which asks the old owner for rows that it misses.
    Pulled,
    /// They are this member's, and what it fills of them may miss writes of the old owner.
    Weak,
}

/// Shards of one owner that move to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardMove {
    /// The old owner, if there is one.
    pub from: Option<MemberId>,
    /// The new owner.
    pub to: MemberId,
    /// How many shards.
    pub shards: usize,
    /// How far they are.
    pub step: MoveStep,
    /// How long this goes on for the last of them, where that is known.
    pub left: Option<Time>,
}

/// What a member knows of leases and moves.
#[derive(Debug, Clone, Default)]
pub struct RingReport {
    /// Of the other members of the map, in the order of their ids.
    pub leases: Vec<PeerLease>,
    /// By step; none where the map is not known.
    pub moves: Vec<ShardMove>,
}

impl RingReport {
    /// Adds what the map alone tells, which takes a while in a large ring.
    pub fn look_ahead(&mut self, map: &Map) {
        let to_come = placement::to_come(map).into_iter().map(|((from, to), shards)| ShardMove {
            from,
            to,
            shards,
            step: MoveStep::ToCome,
            left: None,
        });
        self.moves.splice(0..0, to_come);
    }
}

impl Member {
    /// What it knows of leases and moves. [`RingReport::look_ahead`] adds what is to come.
    #[must_use]
    pub fn report(&self, now: Time) -> RingReport {
        let Some(map) = self.map.clone() else { return RingReport::default() };
        let others = map.members.iter().filter(|entry| entry.identity.id != self.id);
        let leases = others.map(|entry| self.peer_lease(entry, now)).collect();
        RingReport { leases, moves: self.moves(&map, now) }
    }

    fn peer_lease(&self, entry: &MemberEntry, now: Time) -> PeerLease {
        let who = entry.identity;
        let promise = self.promises.end(who, &self.config);
        let promised = self.lease.promised(who.id).map_or(0, |sent| sent + self.config.lease);
        PeerLease {
            id: who.id,
            bound: self.active_me().map(|_| promise.saturating_sub(now)),
            answered: self.takeover.lived(who).map(|sent| now.saturating_sub(sent)),
            promises: promised.saturating_sub(now),
            read: self.sight.last_read(who).map(|read| now.saturating_sub(read)),
        }
    }

    fn moves(&self, map: &Arc<Map>, now: Time) -> Vec<ShardMove> {
        let me = self.id;
        let asked = self.handover.asked().map(|(from, shards)| ShardMove {
            from: Some(from),
            to: me,
            shards,
            step: MoveStep::Asked,
            left: None,
        });
        let leaving = self.custody.leaving_to().into_iter().map(|(to, shards)| ShardMove {
            from: Some(me),
            to,
            shards,
            step: MoveStep::Leaving,
            left: None,
        });
        let pulled = (MoveStep::Pulled, self.custody.pulled_from(map, me, now));
        let weak = (MoveStep::Weak, self.custody.weak_from(map, now));
        let have_moved = [pulled, weak].into_iter().flat_map(|(step, shares)| {
            shares.into_iter().map(move |(from, (shards, left))| ShardMove {
                from,
                to: me,
                shards,
                step,
                left: Some(left),
            })
        });
        asked.into_iter().chain(leaving).chain(have_moved).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::alone::{Alone, ME, OTHER, THIRD, TICK, map};
    use super::*;
    use crate::config::Config;
    use crate::identity::Incarnation;
    use crate::map::Profile;
    use crate::message::{Message, ShardState};
    use crate::schema::SchemaVersion;

    const SECOND: Time = 1_000_000;

    /// A member of a ring of two, whose other owns the only shard.
    fn member() -> Alone {
        let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
        member.run(10 * SECOND);
        member
    }

    fn steps(member: &Alone) -> Vec<(MoveStep, Option<MemberId>, MemberId, usize)> {
        let moves = member.member.report(member.now).moves;
        moves.iter().map(|moved| (moved.step, moved.from, moved.to, moved.shards)).collect()
    }

    #[test]
    fn a_lease_is_known_by_promises_both_ways_and_what_answers_say_of_the_database() {
        let mut member = member();
        let lease = |member: &Alone| member.member.report(member.now).leases[0];
        let PeerLease { id, bound, answered, promises, read } = lease(&member);
        assert_eq!((id, bound), (OTHER, Some(0)), "it was promised nothing");
        assert!(answered.is_some_and(|ago| ago <= 3 * TICK), "{answered:?}");
        assert!(read.is_some_and(|ago| ago <= 3 * TICK), "{read:?}");
        let longest = Config::default().lease;
        assert!((longest - 3 * TICK..=longest).contains(&promises), "{promises}");
        let hash = member.map.fingerprint();
        member.say(OTHER, Message::Ping { hash, sent: 0 });
        assert!(lease(&member).bound >= Some(longest));
        member.answers = false;
        member.run(4 * TICK);
        let later = lease(&member);
        assert!(later.answered.is_some_and(|ago| ago >= 4 * TICK), "{later:?}");
        let most = longest - 3 * TICK;
        assert!(later.promises <= most && later.bound <= Some(most), "{later:?}");
        (member.answers, member.blind_since) = (true, Some(0));
        member.run(3 * TICK);
        let blind = lease(&member);
        assert!(blind.read.is_some_and(|ago| ago >= member.now - 3 * TICK), "{blind:?}");
        member.answers = false;
        member.run(2 * SECOND);
        assert_eq!((lease(&member).promises, lease(&member).bound), (0, Some(0)));
        let mut outside = Map::clone(&member.map);
        (outside.version, outside.members) =
            (outside.version + 1, vec![outside.members[0].clone()]);
        member.map = Arc::new(outside);
        let map = member.map.clone();
        member.act(|member, io| member.adopt(map, io));
        assert_eq!(lease(&member).bound, None, "its promise counts for nobody");
    }

    #[test]
    fn shards_are_seen_when_they_are_asked_for_and_handed_over() {
        let mut member = member();
        assert_eq!(steps(&member), []);
        member.act(|member, io| member.want(0, io));
        assert_eq!(steps(&member), [(MoveStep::Asked, Some(OTHER), ME, 1)]);
        let version = member.map.version;
        let states = vec![ShardState {
            epoch: member.map.shards[0].epoch,
            weak: SECOND,
            ..ShardState::default()
        }];
        let (to, schema) = (member.member.life(), SchemaVersion(7));
        member.member.set_schema(schema);
        member.say(OTHER, Message::Handover { to, version, schema, states });
        assert_eq!(member.map.version, version + 1, "it has moved");
        let moved = |step| (step, Some(OTHER), ME, 1);
        assert_eq!(steps(&member), [moved(MoveStep::Pulled), moved(MoveStep::Weak)]);
        let left: Vec<_> = member.member.report(member.now).moves.iter().map(|m| m.left).collect();
        assert_eq!(left[0], Some(Config::default().pull));
        member.run(2 * SECOND);
        assert_eq!(steps(&member), [moved(MoveStep::Pulled)], "its holds have ended");
        member.say(OTHER, Message::HandoverWanted { shards: vec![0] });
        member.run(2 * TICK);
        assert!(steps(&member).contains(&(MoveStep::Leaving, Some(ME), OTHER, 1)));
    }

    #[test]
    fn what_is_to_come_is_told_by_the_map() {
        let mut map = Map::empty(16);
        for id in [OTHER, ME, THIRD] {
            map.put(id, Incarnation(id.0.into()), Profile { weight: 1, ..Profile::default() });
        }
        (0..10).for_each(|shard| map.give(shard, Some(OTHER)));
        (10..15).for_each(|shard| map.give(shard, Some(THIRD)));
        let to_come = |map: &Map| {
            let mut report = RingReport::default();
            report.look_ahead(map);
            let told = report.moves.into_iter();
            told.map(|moved| (moved.from, moved.to, moved.shards)).collect::<Vec<_>>()
        };
        // One of nobody's; then five of each, and the first has one more.
        assert_eq!(to_come(&map), [(None, ME, 1), (Some(OTHER), ME, 4)]);
        map.accuse(map.members[0].identity);
        assert_eq!(
            to_come(&map),
            [(None, THIRD, 1), (Some(OTHER), ME, 8), (Some(OTHER), THIRD, 2)]
        );
        assert_eq!(to_come(&Map::empty(4)), []);
    }
}
