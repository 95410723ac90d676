//! The old owner's side of a move.
//!
//! 1. Another member wants shards, under the version of the map that this one has too. From then on
//!    this one does not answer for them.
//! 2. Writes of them that are under way have a moment to end.
//! 3. The snapshot is sent, with the writes that have not ended. The new owner keeps their permits.
//! 4. When such a write ends the new owner hears of it from this one. Else its row would be
//!    uncached for a hold, each time its shard moves: the row that is written most.
//!
//! If the version moves on meanwhile nothing is sent, and the shards are answered for again. Who
//! asks under a version that this member has not seen yet is asked for it, and has not asked in
//! vain. While this member has heard of a change of the schema and does not know its version, it
//! gives nothing for a while: `patience.rs`.

use super::{Member, PATIENCE};
use crate::identity::PermitKey;
use crate::io::Io;
use crate::message::{Envelope, Message, Outcome};
use crate::parting::Parting;

impl Member {
    /// HANDOVER is wanted: only under the version that the asker has. It may be newer than ours.
    pub(super) fn hand_over(&mut self, envelope: &Envelope, shards: &[u16], io: &mut Io<'_>) {
        let (to, version) = ((envelope.from, envelope.life), envelope.version);
        self.compare_versions(envelope.from, version, io);
        self.parting.retain(|other| other.to != to);
        // Before the asker asks again.
        let until = io.now + self.config.retry / 2;
        let (shards, stopped) = (shards.to_vec(), false);
        self.parting.push(Parting { to, version, shards, stopped, until });
    }

    /// Hands over what is asked for and not written any more.
    pub(super) fn part(&mut self, io: &mut Io<'_>) {
        if self.parting.is_empty() {
            return;
        }
        let Some(map) = self.map.clone() else { return };
        for mut parting in std::mem::take(&mut self.parting) {
            if parting.version > map.version && io.now < parting.until {
                coverage_mark!(PartingTooEarly);
                self.parting.push(parting);
                continue;
            }
            if parting.version != map.version || self.active_me().is_none() {
                coverage_mark!(PartingTooLate);
                continue;
            }
            let most = PATIENCE * self.config.transaction;
            let doubts = self.lacks_schema();
            if !parting.stopped && self.giving.waits(doubts, io.now, most) {
                coverage_mark!(PartingInDoubt);
                continue;
            }
            if !std::mem::replace(&mut parting.stopped, true) {
                // Not anew for who asks again: if it makes no move this member moves on.
                let of = (&*parting.shards, parting.to.0);
                if self.custody.stop_answering(&map, self.id, of) {
                    self.handed = io.now;
                }
                parting.until = io.now + self.config.retry / 2;
            }
            let (shards, at) = (&parting.shards, (io.now, &*self.config));
            if io.now < parting.until && self.custody.are_written(&map, shards, at.0, at.1) {
                coverage_mark!(PartingWaits);
                self.parting.push(parting);
                continue;
            }
            let states = self.custody.snapshot(&map, self.id, shards, io.now);
            let (version, schema, (who, to)) = (map.version, self.schema, parting.to);
            self.send(who, Message::Handover { to, version, schema, states }, io);
        }
    }

    /// A write is over. Whoever has its permit from this member hears of it from here. Each passes
    /// on what it has once only, so this ends.
    pub(super) fn ended(&mut self, write: PermitKey, outcome: Outcome, io: &mut Io<'_>) {
        let map = self.map.as_ref();
        let heirs = map.map_or_else(Vec::new, |map| self.custody.heirs(map, self.id, write));
        for heir in heirs {
            coverage_mark!(EndPassedOn);
            self.send(heir, Message::Ended { write, outcome }, io);
        }
        self.custody.end(write, outcome, (io.now, &self.config), io.rows);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::alone::{Alone, HEARD, ME, OTHER, TICK, map};
    use super::*;
    use crate::identity::Incarnation;
    use crate::message::{Detail, Outcome, Scope, ShardState};
    use crate::schema::SchemaVersion;

    const TOKEN: i64 = 7;

    /// An owner that has granted the other's write 1, and is then asked for its only shard.
    fn asked() -> Alone {
        let mut map = map(&[(OTHER, "a"), (ME, "a")]);
        map.give(0, Some(ME));
        let mut owner = Alone::new("a", map);
        owner.run(70_000_000);
        begin(&mut owner, 1);
        assert_eq!(owner.granted, 1);
        owner.say(OTHER, Message::HandoverWanted { shards: vec![0] });
        owner
    }

    fn begin(owner: &mut Alone, number: u64) {
        let (scopes, detail) = (vec![Scope::Token(TOKEN)], Detail::default());
        owner.say(OTHER, Message::Begin { number, attempt: 1, scopes, detail });
    }

    /// How many writes each snapshot has that may still be applied.
    fn written(owner: &Alone) -> Vec<usize> {
        let of = |state: &ShardState| state.holds.len() + state.writes.len();
        let all = |states: &Vec<ShardState>| states.iter().map(of).sum();
        owner.parted.iter().map(all).collect()
    }

    #[test]
    fn a_write_that_ends_in_time_leaves_no_hold_at_the_new_owner() {
        let mut owner = asked();
        owner.act(Member::tick);
        assert_eq!(written(&owner), [0; 0], "it waits");
        begin(&mut owner, 2);
        assert_eq!(owner.granted, 1, "no other write makes it wait for longer");
        owner.say(OTHER, Message::End { number: 1, outcome: Outcome::Settled });
        assert_eq!(written(&owner), [0]);
    }

    /// Its shards would be weak for a hold.
    #[test]
    fn who_has_heard_of_a_change_of_unknown_version_gives_nothing_for_a_while() {
        let (mut owner, lacks) = (asked(), SchemaVersion::default());
        owner.say(OTHER, Message::End { number: 1, outcome: Outcome::Settled });
        let given = owner.parted.len();
        for knows in [HEARD, lacks] {
            owner.member.set_schema(lacks);
            let ask = |owner: &mut Alone| {
                owner.say(OTHER, Message::HandoverWanted { shards: vec![0] });
                owner.run(3 * TICK);
                owner.parted.len() - given
            };
            assert_eq!(ask(&mut owner), usize::from(knows == lacks));
            let wait = PATIENCE * owner.member.config.transaction;
            owner.run(if knows == lacks { wait } else { 0 });
            owner.member.set_schema(knows);
            assert_eq!(ask(&mut owner), 1 + usize::from(knows == lacks));
        }
    }

    #[test]
    fn a_write_that_does_not_end_is_a_hold_and_does_not_stop_the_move() {
        let mut owner = asked();
        owner.run(2 * TICK);
        assert_eq!(written(&owner), [1]);
        let mut doubtful = asked();
        doubtful.say(OTHER, Message::End { number: 1, outcome: Outcome::Unknown });
        assert_eq!(written(&doubtful), [1]);
    }

    #[test]
    fn the_new_owner_hears_once_how_a_write_has_ended_that_was_under_way() {
        let mut owner = asked();
        owner.run(2 * TICK);
        for _ in 0..2 {
            owner.say(OTHER, Message::End { number: 1, outcome: Outcome::Settled });
            assert_eq!(owner.passed_on, [(OTHER, Outcome::Settled)], "its map is old still");
        }
    }

    /// The link may have ended that its END was sent on.
    #[test]
    fn a_writer_is_asked_for_an_end_that_does_not_come_and_says_it_again() {
        let mut owner = asked();
        owner.run(2 * owner.member.config.lease);
        assert_eq!(owner.asked_for, [(OTHER, vec![1])]);

        let mut map = map(&[(OTHER, "a"), (ME, "a")]);
        map.give(0, Some(OTHER));
        let mut writer = Alone::new("a", map);
        writer.run(70_000_000);
        let refuse = |member: &mut Member, io: &mut Io<'_>| {
            member.write(7, vec![Scope::Token(TOKEN)], Detail::default(), io);
            member.refuse_waiting(0, io);
        };
        writer.act(refuse);
        let said = (OTHER, 1, Outcome::Refused);
        assert_eq!(writer.told, [said]);
        let life = writer.member.life();
        // Nothing is in flight, as of a write that has settled.
        let again = (OTHER, 1, Outcome::Settled);
        for (to, numbers) in [(life, vec![1, 2]), (Incarnation(77), vec![1])] {
            writer.say(OTHER, Message::EndWanted { to, numbers });
            assert_eq!(writer.told, [said, again], "once, and not of another process");
        }
    }

    #[test]
    fn a_write_whose_permit_has_ended_makes_no_move_wait() {
        let mut owner = asked();
        owner.run(20 * TICK);
        let before = owner.parted.len();
        owner.say(OTHER, Message::HandoverWanted { shards: vec![0] });
        assert_eq!(owner.parted.len(), before + 1, "its writer may be dead");
        assert_eq!(written(&owner).last(), Some(&1));
    }

    #[test]
    fn an_asker_that_makes_no_move_keeps_no_shard_unanswered_for_long() {
        let mut owner = asked();
        owner.say(OTHER, Message::End { number: 1, outcome: Outcome::Settled });
        let before = owner.map.version;
        for _ in 0..25 {
            owner.run(2 * TICK);
            owner.say(OTHER, Message::HandoverWanted { shards: vec![0] });
        }
        assert_eq!(owner.map.version, before + 1);
    }

    #[test]
    fn who_asks_under_a_newer_map_is_answered_once_it_is_known() {
        let mut owner = asked();
        owner.say(OTHER, Message::End { number: 1, outcome: Outcome::Settled });
        let next = Arc::new(owner.map.next());
        owner.map = next.clone();
        owner.say(OTHER, Message::HandoverWanted { shards: vec![0] });
        assert_eq!(owner.parted.len(), 1, "it has another map");
        owner.say(OTHER, Message::MapIs(next));
        assert_eq!(owner.parted.len(), 2);
    }

    #[test]
    fn nothing_is_handed_over_once_the_version_has_moved_on() {
        let mut owner = asked();
        let mut next = owner.map.next();
        next.version += 1;
        owner.map = next.into();
        owner.say(OTHER, Message::MapIs(owner.map.clone()));
        owner.run(4 * TICK);
        assert_eq!(written(&owner), [0; 0]);
        begin(&mut owner, 2);
        assert_eq!(owner.granted, 2, "it answers again");
    }
}
