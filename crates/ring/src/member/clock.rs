//! What a member does as time passes, and when the map is read or changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{MOST_ENDS, MapLoss, Member, PATIENCE};
use crate::config::Time;
use crate::identity::Identity;
use crate::io::{Action, Io, TransactionResult};
use crate::lookup::Asker;
use crate::map::Map;
use crate::message::Message;

impl Member {
    /// Time has passed. To be called some twenty times a second.
    pub fn tick(&mut self, io: &mut Io<'_>) {
        self.takeover.tick(io.now);
        self.custody.tick(io.now, &self.config, io.rows);
        let after = self.config.transaction;
        if let Some(map) = self.transactions.overdue(io.now, after) {
            self.transactions.unknown(&map);
            self.reads.due = io.now;
        }
        self.read_map(io);
        self.ping(io);
        self.judge(io);
        self.ask_for_shards(io);
        self.ask_for_ends(io);
        self.give_up_writes(io);
        self.advance_writes(io);
        self.lookups.pulls_overdue(&self.config, io);
        for (key, clients) in self.lookups.overdue(io.now, &self.config) {
            let readers = clients.into_iter().map(Asker::Client).collect();
            self.lookups.read(key, None, readers, io);
        }
        self.settle(io);
    }

    /// Reads the map if that is due, and no read is under way.
    pub(super) fn read_map(&mut self, io: &mut Io<'_>) {
        let late = |sent| io.now >= sent + self.config.transaction;
        if self.reads.under_way.is_some_and(|(_, sent)| late(sent)) {
            self.reads.under_way = None;
            self.sight.failed();
        }
        let rank = self.map.as_ref().zip(self.active_me()).map(|(map, me)| map.rank(me));
        let wanted = rank
            .zip(self.reads.answered)
            .and_then(|(rank, last)| self.sight.next_read(rank, last, io.now, &self.config));
        let due = match wanted.into_iter().chain(self.read_for_moves(io.now)).min() {
            Some(wanted) if !self.reads.failed => self.reads.due.min(wanted),
            _ => self.reads.due,
        };
        if self.reads.under_way.is_some() || io.now < due.max(self.reads.not_before) {
            return;
        }
        if self.reads.distrusting.is_some() {
            self.reads.for_moves = Some(io.now);
        }
        self.reads.next += 1;
        self.reads.under_way = Some((self.reads.next, io.now));
        io.actions.push(Action::ReadMap { id: self.reads.next });
    }

    /// When to read the map so that moves bring rows again, after those of before were distrusted.
    /// Where it is distrusted again and again, the map is not read each time. Nor is it where there
    /// are no moves to come. What all members hear of has them read one after the other.
    fn read_for_moves(&mut self, now: Time) -> Option<Time> {
        if !self.custody.is_before_distrust() || !self.reads.moves_to_come {
            return None;
        }
        let since = *self.reads.distrusting.get_or_insert(now);
        let again = self.reads.for_moves.map(|sent| sent + self.config.transaction);
        let before = self.map.as_ref().zip(self.me).map(|(map, me)| map.before(me));
        let in_turn = since + before.unwrap_or_default() * self.config.rank_step / 8;
        Some(again.map_or(in_turn, |again| again.max(in_turn)))
    }

    /// The answer to a read of the map; `None` where the database had none to give.
    pub fn map_read(&mut self, id: u64, map: Option<Arc<Map>>, io: &mut Io<'_>) {
        let Some((_, sent)) = self.reads.under_way.take_if(|(i, _)| *i == id) else { return };
        let often = if self.is_active() { self.config.confirm / 3 } else { self.config.silence };
        self.reads.due = sent + if map.is_some() { often } else { self.config.retry };
        self.reads.failed = map.is_none();
        let Some(map) = map else { return self.sight.failed() };
        self.reads.answered = Some(sent);
        self.sight.read(sent, io.now, &self.config);
        let read = map.version;
        self.join.read(read == 0, io.now);
        self.adopt(map.clone(), io);
        if id > self.reads.before_distrust {
            self.custody.saw_all_moves();
            self.reads.distrusting = None;
        }
        self.compare(&map, sent);
        let is_ours = self.version() == read && self.reads.loss.is_none();
        if self.active_me().is_some() && is_ours {
            self.lease.confirm(sent);
            self.reckon();
        } else if self.version() > read {
            // The map went on while the answer was on its way, which confirms nothing then.
            self.reads.due = io.now + if self.reads.loss.is_some() { self.config.retry } else { 0 };
        }
        self.judge(io);
        self.settle(io);
    }

    /// The map's table was dropped or made anew, by what the database tells its clients. An
    /// instance that comes now may found a ring at once, and write. So no read counts that was
    /// sent before. Where it `is_gone`, nodes that lag behind may show it for a moment still: it is
    /// read somewhat later.
    pub fn doubt_map(&mut self, is_gone: bool, io: &Io<'_>) {
        self.lease.refute();
        self.reckon();
        self.reads.under_way = None;
        // It may be made anew at once: that shortens no wait.
        let wait = if is_gone { self.config.retry } else { 0 };
        self.reads.not_before = self.reads.not_before.max(io.now + wait);
        self.reads.due = self.reads.not_before;
    }

    /// Compares ours, the newest that we know, with what a read found that was sent then. Whoever
    /// has emptied the row may have founded another ring since, and its map comes to the version of
    /// ours. That confirms nothing, and what was confirmed before counts no more.
    fn compare(&mut self, read: &Map, sent: Time) {
        let ours = self.version();
        // Ours was in the database before we adopted it, and each read shows what was there before.
        let is_overtaken = read.version < ours && sent <= self.adopted;
        let loss = match () {
            () if ours == 0 || is_overtaken => None,
            () if read.ring != self.ring() => Some(MapLoss::Emptied),
            () if read.version < ours || read.fingerprint() != self.hash => {
                coverage_mark!(OlderMapFound);
                Some(MapLoss::Older)
            }
            () => None,
        };
        self.reads.loss = loss;
        self.reads.lost_since = loss.map(|_| self.reads.lost_since.unwrap_or(sent));
        if loss.is_some() {
            self.lease.refute();
            self.reckon();
        }
    }

    /// The outcome of a transaction.
    pub fn transacted(&mut self, id: u64, result: TransactionResult, io: &mut Io<'_>) {
        let Some(ours) = self.transactions.answered(id) else { return };
        if !matches!(result, TransactionResult::Unknown) {
            self.transactions.known();
        }
        match result {
            TransactionResult::Applied => {
                self.adopt(ours, io);
                self.reads.due = io.now;
            }
            TransactionResult::Refused(map) => {
                let before = self.version();
                self.adopt(map, io);
                if self.version() == before {
                    // It is not tried again before the map is read.
                    self.reads.due = io.now;
                }
            }
            TransactionResult::Unknown => {
                self.transactions.unknown(&ours);
                self.reads.due = io.now;
            }
        }
        self.judge(io);
        self.settle(io);
    }

    /// Pings all active members, and those whom we would join.
    fn ping(&mut self, io: &mut Io<'_>) {
        if io.now < self.next_ping {
            return;
        }
        self.next_ping = io.now + self.config.ping;
        let Some(map) = self.map.clone() else { return };
        let me = self.id;
        for member in map.active().filter(|m| m.identity.id != me) {
            let message = Message::Ping { hash: self.hash, sent: io.now };
            self.send(member.identity.id, message, io);
        }
    }

    /// Asks for shards that are to be ours, once the map has been the same for long enough.
    fn ask_for_shards(&mut self, io: &mut Io<'_>) {
        let Some(map) = self.map.clone().filter(|_| self.active_me().is_some()) else { return };
        // Whoever leaves is not kept waiting.
        let leaves = map
            .active()
            .any(|member| member.leaving && map.owned_by(member.identity.id).next().is_some());
        // Nor is whoever has none yet: drivers do not know of an instance without shards. It goes
        // on until it has its part.
        let stable = |wait| io.now >= self.stable_since + wait;
        if map.owned_by(self.id).next().is_none() && stable(self.config.stable / 10) {
            self.fills_up = true;
        }
        let is_stable = leaves || self.fills_up || stable(self.config.stable);
        // Where all leave, the last of them takes what the others have, and they go.
        let leaves_last = map.entry(self.id).is_some_and(|entry| entry.leaving);
        if self.leaving && !leaves_last || self.transactions.is_busy() || !is_stable {
            return;
        }
        // The old owner stops to answer for what it hands over, and no move would follow at once.
        let is_blind =
            self.transactions.is_unsettled() || self.reads.failed || self.reads.loss.is_some();
        if is_blind || self.transactions.backs_off(io.now, &self.config) {
            return;
        }
        let most = PATIENCE * self.config.transaction;
        let doubts = self.lacks_schema() || self.custody.is_before_distrust();
        if self.reads.moves_to_come && self.asking.waits(doubts, io.now, most) {
            coverage_mark!(AskingInDoubt);
            return;
        }
        if let Some((from, message)) = self.handover.ask(&map, self.id, io.now, &self.config) {
            self.send(from, message, io);
        }
    }

    /// Asks the writers of permits that stay open how their writes have ended.
    fn ask_for_ends(&mut self, io: &mut Io<'_>) {
        let mut of: BTreeMap<Identity, Vec<u64>> = BTreeMap::new();
        for write in self.custody.overdue(io.now, &self.config) {
            of.entry(write.process).or_default().push(write.number);
        }
        for (process, all) in of {
            for numbers in all.chunks(MOST_ENDS) {
                let (to, numbers) = (process.incarnation, numbers.to_vec());
                self.send(process.id, Message::EndWanted { to, numbers }, io);
            }
        }
    }

    fn give_up_writes(&mut self, io: &mut Io<'_>) {
        let Some(map) = self.map.clone() else { return };
        for number in self.writes.numbers() {
            let ends = self.writes.give_up(number, (&map, &self.config), io);
            self.send_all(ends, io);
        }
    }

    /// Brings every write on as far as it goes.
    pub(super) fn advance_writes(&mut self, io: &mut Io<'_>) {
        for number in self.writes.numbers() {
            self.advance_write(number, io);
        }
    }

    pub(super) fn advance_write(&mut self, number: u64, io: &mut Io<'_>) {
        let Some(map) = self.map.clone() else { return };
        let (out, silent) = self.writes.advance(number, &map, &self.config, io);
        for id in silent {
            if let Some(entry) = map.entry(id).filter(|_| id != self.id) {
                self.takeover.not_granted(entry.identity, io.now);
            }
        }
        self.send_all(out, io);
    }
}

#[cfg(test)]
mod tests {
    use super::super::alone::{Alone, ME, OTHER, TICK, map};
    use super::*;
    use crate::config::Config;

    /// It confirms nothing, and a joiner has no lease before a read does.
    #[test]
    fn a_read_that_a_newer_map_overtakes_is_repeated_at_once() {
        let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
        member.run(4 * TICK);
        let old = member.map.clone();
        member.map = Arc::new(old.next());
        let newer = member.map.clone();
        member.act(|member, io| {
            (member.reads.due, member.reads.under_way) = (io.now, None);
            member.read_map(io);
            let sent = member.reads.next;
            member.adopt(newer, io);
            io.actions.clear();
            member.map_read(sent, Some(old), io);
            assert_eq!(member.map_loss(), None);
        });
        let before = member.now;
        member.run(TICK);
        assert!(member.member.confirmed() > Some(before), "{:?}", member.member.confirmed());
    }

    #[test]
    fn an_instance_asks_for_shards_once_the_members_have_been_the_same_for_a_while() {
        let mut before = map(&[(OTHER, "a"), (ME, "a")]);
        before.members[0].profile.weight = 0;
        let mut member = Alone::new("a", before);
        let wait = Config::default().stable / 10;
        member.run(wait - 10 * TICK);
        assert!(member.member.is_active());
        assert_eq!(member.wanted, 0, "others may come");
        // Others have moved shards meanwhile.
        member.map = Arc::new(member.map.next());
        let moved = member.map.clone();
        member.say(OTHER, Message::MapIs(moved));
        member.run(20 * TICK);
        assert_ne!(member.wanted, 0, "its members are the same");
    }
}
