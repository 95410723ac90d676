//! Messages of other members: which handler each goes to.

use std::sync::Arc;

use super::{MOST_ENDS, Member};
use crate::identity::{Incarnation, MemberId, PermitKey};
use crate::io::{Io, WriteBody};
use crate::map::Map;
use crate::message::{Envelope, Message, ShardState};
use crate::schema::SchemaVersion;

impl Member {
    /// A message has come. Those of another ring are not for us: its sender was started with our
    /// member's identity or address in another data centre, or somebody has emptied the ring's
    /// table. Their versions, epochs and permits are of another map. Which ring is ours the
    /// database alone says.
    pub fn receive(&mut self, envelope: Envelope, io: &mut Io<'_>) {
        if envelope.ring != self.ring() {
            return;
        }
        self.takeover.named(envelope.sender(), envelope.version, io.now);
        self.handle(envelope, io);
        self.settle(io);
    }

    pub(super) fn handle(&mut self, envelope: Envelope, io: &mut Io<'_>) {
        let (from, life) = (envelope.from, envelope.life);
        let key = |number| PermitKey { process: envelope.process(), number };
        match envelope.message {
            Message::Ping { .. } => self.pinged(&envelope, io),
            Message::Pong { .. } => self.ponged(&envelope, io),
            Message::MapWanted => {
                if let Some(map) = self.map.clone() {
                    self.send(from, Message::MapIs(map), io);
                }
            }
            Message::MapIs(map) => self.told_map(from, map, io),
            Message::Begin { number, attempt, ref scopes, ref detail } => {
                let body = WriteBody { scopes, detail };
                self.begun(&envelope, (key(number), attempt, body), io);
            }
            Message::Drop { number, attempt, ref scopes, ref detail, weak } => {
                let body = WriteBody { scopes, detail };
                self.drop_wanted(&envelope, (number, attempt, body, weak), io);
            }
            Message::End { number, outcome } => {
                self.ended(key(number), outcome, io);
            }
            Message::Ended { write, outcome } => self.ended(write, outcome, io),
            Message::Get { wanted } => {
                for (number, row) in wanted {
                    self.asked((from, life, number), row, io);
                }
            }
            Message::Pull { number, key } => {
                let cached = io.rows.get(&key);
                self.send(from, Message::Pulled { to: life, number, cached }, io);
            }
            Message::HandoverWanted { ref shards } => self.hand_over(&envelope, shards, io),
            _ => self.handle_answer(envelope, io),
        }
    }

    /// A map from another instance. A stranger may have it from another database, a copy of ours:
    /// then ours says what the map is.
    fn told_map(&mut self, from: MemberId, map: Arc<Map>, io: &mut Io<'_>) {
        if map.shards.len() != self.config.shards || map.version <= self.version() {
            return;
        }
        match self.map.as_ref().is_some_and(|ours| ours.entry(from).is_some()) {
            true => self.adopt(map, io),
            false => self.reads.due = io.now,
        }
    }

    /// Answers to what this process has asked, and questions for its writes. Those to an earlier
    /// process of it say nothing.
    fn handle_answer(&mut self, envelope: Envelope, io: &mut Io<'_>) {
        let from = envelope.from;
        let sender = envelope.sender();
        let ours = |to: Incarnation| to == self.life;
        match envelope.message {
            Message::Grant { to, number, attempt, duration } if ours(to) => {
                self.takeover.granted(sender);
                let duration = duration.min(self.config.lease);
                self.writes.answered(number, from, attempt, duration);
                self.advance_write(number, io);
            }
            Message::EndWanted { to, numbers } if ours(to) => {
                for number in numbers.into_iter().take(MOST_ENDS) {
                    if let Some(outcome) = self.writes.ended(number) {
                        coverage_mark!(EndSaidAgain);
                        self.send(from, Message::End { number, outcome }, io);
                    }
                }
            }
            Message::Dropped { to, number, attempt } if ours(to) => {
                self.writes.answered(number, from, attempt, 0);
                self.advance_write(number, io);
            }
            Message::Refused { to, number, attempt } if ours(to) => {
                // Asked again when the time for it has come, or the map has changed.
                self.takeover.granted(sender);
                let of = (number, from, attempt);
                if let Some(map) = &self.map {
                    let ends = self.writes.refused(of, (map, &self.config), io.now);
                    self.send_all(ends, io);
                }
                self.compare_versions(from, envelope.version, io);
            }
            Message::Pulled { to, number, cached } if ours(to) => {
                self.pulled((from, number), cached, io);
            }
            Message::Found { to, number, answer } if ours(to) => {
                self.found(from, number, answer, io);
            }
            Message::Handover { to, version, schema, states } if ours(to) => {
                self.handed_over(from, (version, schema), states, io);
            }
            _ => {}
        }
    }

    /// The old owner's snapshot. While it has other settings than we have, others may write what
    /// nobody asks it for: its dirty bits say nothing. While it has not heard of the same changes
    /// of the schema, fills may miss writes, and neither may know of it (`schema.rs`).
    fn handed_over(
        &mut self,
        from: MemberId,
        (version, schema): (u64, SchemaVersion),
        mut states: Vec<ShardState>,
        io: &mut Io<'_>,
    ) {
        let Some(map) = self.map.clone() else { return };
        if !self.handover.received(&map, from, version, &states) {
            return;
        }
        let theirs = map.entry(from).map(|entry| &entry.profile.settings);
        if theirs != Some(&self.profile.settings) {
            coverage_mark!(OldOwnerDiffers);
            states.iter_mut().for_each(|state| state.dirty.clear());
        }
        let heard = schema.is_that_of(self.schema);
        if !heard {
            coverage_mark!(OldOwnerIsDeaf);
            states.iter_mut().for_each(|state| state.weak = self.config.hold.max(state.weak));
        }
        self.custody.receive(version, states, (io.now, heard));
        self.judge(io);
    }

    /// Whoever has the older map fetches the newer: once in a while, since each message of a busy
    /// member says that it is newer.
    pub(super) fn compare_versions(&mut self, from: MemberId, version: u64, io: &mut Io<'_>) {
        if version <= self.version() || self.map.is_none() {
            return;
        }
        let (asked_for, at) = self.map_wanted;
        if asked_for < version || io.now >= at + self.config.retry {
            self.map_wanted = (version, io.now);
            self.send(from, Message::MapWanted, io);
        }
    }

    /// PING is answered only while time passes here, or the lease has not ended. A member whose
    /// keeper hangs has no lease soon and grants nothing; if it answered, nobody would take its
    /// shards. While it has the lease it serves them, however late its keeper is.
    fn pinged(&mut self, envelope: &Envelope, io: &mut Io<'_>) {
        let Message::Ping { hash, sent } = envelope.message else { return };
        if self.takeover.stands_still(io.now) && io.now >= self.lease.end() {
            coverage_mark!(StandsStill);
            return;
        }
        self.compare_versions(envelope.from, envelope.version, io);
        let whom = envelope.sender();
        // Two maps of one version are of two rings: somebody has made the row anew.
        let strange = envelope.version == self.version() && hash != self.hash;
        let promise = match &self.map {
            Some(map)
                if !strange
                    && self.me.is_some_and(|me| map.is_active(me))
                    && !self.drifts.is_suspect(whom.id, io.now) =>
            {
                self.promises.give(map, whom, io.now)
            }
            _ => false,
        };
        let (hash, to, clock) = (self.hash, envelope.life, io.now);
        let blind = self.blind(io.now);
        let pong = Message::Pong { hash, sent, to, promise, clock, blind };
        self.send(envelope.from, pong, io);
    }

    fn ponged(&mut self, envelope: &Envelope, io: &mut Io<'_>) {
        let Message::Pong { sent, to, promise, clock, blind, .. } = envelope.message else {
            return;
        };
        if to != self.life {
            return;
        }
        let of = (envelope.from, envelope.life);
        self.drifts.answered(of, (sent, io.now, clock), self.config.rho);
        self.takeover.answered(envelope.sender(), sent, io.now);
        self.sight.answered(envelope.sender(), (blind, clock), io.now, &self.config);
        self.join.answered(envelope.sender(), io.now);
        self.compare_versions(envelope.from, envelope.version, io);
        if promise {
            self.lease.promise(envelope.from, sent);
            self.reckon();
        }
    }

    /// BEGIN: granted only under a lease, for no longer than it lasts.
    fn begun(
        &mut self,
        envelope: &Envelope,
        (key, attempt, body): (PermitKey, u32, WriteBody<'_>),
        io: &mut Io<'_>,
    ) {
        let Some(map) = self.map.clone() else { return };
        let (to, number) = (envelope.life, key.number);
        let duration = self.lease.end().saturating_sub(io.now).min(self.config.lease);
        let until = io.now + self.config.intent();
        let granted = duration > 0
            && self.custody.begin(&map, self.id, envelope.version, (key, body), until, io.rows);
        let answer = if granted {
            Message::Grant { to, number, attempt, duration }
        } else {
            coverage_mark!(BeginRefused);
            Message::Refused { to, number, attempt }
        };
        self.compare_versions(envelope.from, envelope.version, io);
        self.send(envelope.from, answer, io);
    }

    /// DROP: executed only under a lease.
    fn drop_wanted(
        &mut self,
        envelope: &Envelope,
        (number, attempt, body, weak): (u64, u32, WriteBody<'_>, bool),
        io: &mut Io<'_>,
    ) {
        let Some(map) = self.map.clone() else { return };
        let to = envelope.life;
        let version = envelope.version;
        let at = (io.now, &*self.config);
        let dropped = io.now < self.lease.end()
            && self.custody.forget(&map, self.id, version, (body, weak), at, io.rows);
        let answer = if dropped {
            Message::Dropped { to, number, attempt }
        } else {
            coverage_mark!(DropRefused);
            Message::Refused { to, number, attempt }
        };
        self.compare_versions(envelope.from, version, io);
        self.send(envelope.from, answer, io);
    }
}

#[cfg(test)]
mod tests {
    use super::super::alone::{Alone, ME, OTHER, TICK, map};
    use super::*;

    /// Somebody has put another map there: who owns what is not the same for both.
    #[test]
    fn whoever_has_another_map_of_the_same_version_is_promised_nothing() {
        let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
        member.run(4 * TICK);
        let (hash, sent) = (member.map.fingerprint(), member.now);
        for hash in [hash, hash + 1] {
            member.say(OTHER, Message::Ping { hash, sent });
        }
        assert_eq!(member.promised, [true, false]);
    }

    #[test]
    fn whoever_is_no_member_promises_nothing() {
        let mut outside = map(&[(OTHER, "a")]);
        outside.version += 1;
        let mut member = Alone::new("b", outside);
        member.run(4 * TICK);
        let (hash, sent) = (member.map.fingerprint(), member.now);
        member.say(OTHER, Message::Ping { hash, sent });
        assert_eq!((member.member.is_active(), &member.promised[..]), (false, &[false][..]));
    }

    /// Its thread hangs in a call of the system. Others bring it messages. If it answered, nobody
    /// would take its shards, though it has no lease and grants nothing.
    #[test]
    fn a_member_for_which_no_time_passes_answers_no_ping() {
        let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
        ours.run(4 * TICK);
        let ping = |ours: &Alone| Message::Ping { hash: ours.map.fingerprint(), sent: ours.now };
        ours.say(OTHER, ping(&ours));
        assert_eq!(ours.promised, [true]);
        ours.now = ours.member.lease_end() - 1;
        ours.say(OTHER, ping(&ours));
        assert_eq!(ours.promised, [true, true], "it serves still");
        ours.now += 1;
        ours.say(OTHER, ping(&ours));
        assert_eq!(ours.promised, [true, true]);
        ours.run(TICK);
        ours.say(OTHER, ping(&ours));
        assert_eq!(ours.promised, [true, true, true]);
    }

    /// Each message of a busy member says that its map is newer. A map has tens of kilobytes.
    #[test]
    fn a_newer_map_is_asked_for_once_in_a_while() {
        let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
        ours.run(4 * TICK);
        // The database does not answer, so it cannot be read there.
        (ours.sees, ours.answers) = (false, false);
        let end = |ours: &mut Alone, version| {
            let mut map = Map::clone(&ours.map);
            map.version = version;
            ours.map = Arc::new(map);
            ours.say(OTHER, Message::Refused { to: ours.member.life(), number: 1, attempt: 1 });
        };
        let version = ours.map.version;
        (0..100).for_each(|_| end(&mut ours, version + 1));
        assert_eq!(ours.maps_wanted, 1);
        end(&mut ours, version + 2);
        assert_eq!(ours.maps_wanted, 2, "a newer one still");
        ours.run(5 * TICK);
        end(&mut ours, version + 2);
        assert_eq!(ours.maps_wanted, 3, "the answer may be lost");
    }
}
