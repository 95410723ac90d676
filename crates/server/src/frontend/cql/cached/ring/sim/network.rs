//! Network and database, with their faults.

use std::collections::VecDeque;
use std::sync::Arc;

use afterglow_ring::{Envelope, Map, MemberId, Message, Time, TransactionResult, WriteResult};
use futures_channel::oneshot;

use super::super::core::DatabaseJob;
use super::database::{COPIES, SimDatabase};
use super::machine::Lost;
use super::plan::MS;
use super::process::Input;
use super::world::{RowRead, SimEvent, SimWorld};

/// For so long an old owner is waited for, as `Ring::pull` does.
const PULL: Time = 100 * MS;

impl SimWorld {
    /// A process sends messages. It may stand still or die between two of them.
    pub fn send_all(&mut self, at: usize, mut sent: VecDeque<(MemberId, Vec<u8>)>) {
        while let Some((to, bytes)) = sent.pop_front() {
            if self.nodes[at].process.is_none() {
                return;
            }
            if self.nodes[at].paused > self.now {
                sent.push_front((to, bytes));
                self.nodes[at].unsent.extend(sent);
                return;
            }
            let message = Envelope::decode(&bytes).expect("it was just written").message;
            let is_ping = matches!(message, Message::Ping { .. });
            let split = self.plan.rates.split;
            if !is_ping && self.fails(split) {
                sent.push_front((to, bytes));
                if self.random.permille(400) {
                    let back = self.random.pick(&[5, 500, 2_000]) * MS;
                    return self.kill(at, back, Lost::Nothing);
                }
                let time = self.random.between(10, 2_300) * MS;
                self.pause(at, time);
                self.nodes[at].unsent.extend(sent);
                return;
            }
            if !is_ping && !matches!(message, Message::Pong { .. }) {
                self.say(|| format!("m{at} -> m{}: {message:?}", to.0));
            }
            self.expect_answer(at, to, &message);
            self.send(at, to.0 as usize, &bytes);
        }
    }

    /// A question waits so long, as `Ring::ask` and `Ring::pull` do.
    fn expect_answer(&mut self, at: usize, to: MemberId, message: &Message) {
        let life = Some(self.nodes[at].life);
        match message {
            Message::Get { wanted } => {
                for (number, _) in wanted {
                    let until = self.now + self.config.get;
                    self.push(until, SimEvent::Input(at, life, Input::GiveUp(*number, None)));
                }
            }
            Message::Pull { number, .. } => {
                let given_up = Input::GiveUp(*number, Some(to));
                self.push(self.now + PULL, SimEvent::Input(at, life, given_up));
            }
            _ => {}
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let (now, rates) = (self.now, self.plan.rates);
        let is_cut = self.cuts.iter().any(|(f, t, until)| (*f, *t) == (from, to) && *until > now);
        if is_cut || self.fails(rates.lost) {
            return;
        }
        let mut copies = 1;
        if self.fails(rates.doubled) {
            copies = 2;
        }
        for copy in 0..copies {
            let mut delay = self.random.between(100, 900);
            if copy > 0 || self.fails(rates.late) {
                delay += self.random.below(1_500) * MS;
            }
            let message = Input::Message(MemberId(from as u64), bytes.to_vec());
            self.push(now + delay, SimEvent::Input(to, None, message));
        }
    }

    /// How long it takes to the database for the map, or back; `None` where that is lost.
    fn delay_of_map(&mut self, at: usize) -> Option<Time> {
        let is_down = self.nodes[at].no_database.max(self.database_down) > self.now;
        let rate = self.plan.rates.transaction;
        if is_down || self.fails(rate / 5) {
            return None;
        }
        let mut delay = self.random.between(500, 4_000);
        if self.fails(rate) {
            delay += self.random.below(1_500) * MS;
        }
        Some(delay)
    }

    /// A process asks for the map, or to change it.
    pub fn ask_for_map(&mut self, at: usize, job: DatabaseJob) {
        let Some(delay) = self.delay_of_map(at) else { return };
        let (then, life) = (self.now + delay, self.nodes[at].life);
        let event = match job {
            DatabaseJob::ReadMap { id } => SimEvent::ReadMap(at, life, id),
            DatabaseJob::Transact { id, map } => SimEvent::Transact(at, life, id, map),
        };
        self.push(then, event);
    }

    /// The database reads the map.
    pub fn read_map(&mut self, at: usize, life: u64, id: u64) {
        let Some(delay) = self.delay_of_map(at) else { return };
        let answer = Input::MapRead(id, self.database.map.clone());
        self.push(self.now + delay, SimEvent::Input(at, Some(life), answer));
    }

    /// The database runs a transaction.
    pub fn transact(&mut self, at: usize, life: u64, id: u64, map: &Arc<Map>) {
        let is_applied = self.database.transact(map);
        if is_applied {
            self.say(|| shown(map));
        }
        let Some(delay) = self.delay_of_map(at) else { return };
        let rate = self.plan.rates.transaction;
        let result = match is_applied {
            _ if self.fails(rate / 3) => TransactionResult::Unknown,
            true => TransactionResult::Applied,
            false => TransactionResult::Refused(self.database.map.clone()),
        };
        let answer = Input::Transacted(id, result);
        self.push(self.now + delay, SimEvent::Input(at, Some(life), answer));
    }

    /// A process reads a row. Two replicas are read, each at its time. Whoever waits no longer than
    /// `within` hears nothing after that.
    pub fn ask_for_row(
        &mut self,
        at: usize,
        row: usize,
        within: Time,
        answer: oneshot::Sender<Option<i32>>,
    ) {
        let rates = self.plan.rates;
        let mut longest = self.random.between(300, 2_000);
        if self.fails(rates.row) {
            longest += self.random.below(900) * MS;
        }
        if self.fails(rates.slow) {
            longest += self.random.below(4_500) * MS;
        }
        let times = [0, 1].map(|_| self.now + self.random.below(longest));
        let replicas = SimDatabase::two(&mut self.random);
        let of = [(replicas[0], times[0]), (replicas[1], times[1])];
        let until = self.now.saturating_add(within);
        let life = self.nodes[at].life;
        let slow = if row == 0 { std::mem::take(&mut self.slow_fill) } else { 0 };
        let read = RowRead { row, of, slow, until, answer };
        self.push(times[0].max(times[1]), SimEvent::ReadRow(at, life, read));
    }

    /// The replicas have been read.
    pub fn read_row(&mut self, at: usize, life: u64, read: RowRead) {
        let stamp = self.database.read(read.row, read.of, self.now);
        let rates = self.plan.rates;
        let mut then = self.now + self.random.between(200, 1_500) + read.slow;
        if self.fails(rates.row) {
            then += self.random.below(1_500) * MS;
        }
        if self.fails(rates.slow) {
            then += self.random.below(4_500) * MS;
        }
        let is_answered = then < read.until && !self.fails(rates.row / 5);
        let stamp = is_answered.then_some(stamp);
        let answer = Input::RowRead(read.answer, stamp);
        self.push(then.min(read.until.max(self.now)), SimEvent::Input(at, Some(life), answer));
    }

    /// A process sends a client's write. It comes to each replica at its time, and may be answered
    /// late, in doubt, or be refused.
    pub fn send_write(
        &mut self,
        at: usize,
        client: u64,
        rows: &[usize],
        answer: oneshot::Sender<WriteResult>,
    ) {
        let (slow, latest) = (self.plan.rates.row, self.plan.latest);
        self.stamp += 1;
        let stamp = self.stamp;
        let weak = self.oracle.sent(client, stamp);
        self.say(|| format!("m{at} sends write {stamp} of {rows:?}"));
        if rows == [0] && self.unread == Time::MAX {
            self.unread = 0; // its key is made now, and clients may find it
        }
        let life = self.nodes[at].life;
        if self.fails(slow / 8) {
            let then = self.now + self.random.between(1, 900) * MS;
            let refused = Input::Written(answer, WriteResult::Refused);
            return self.push(then, SimEvent::Input(at, Some(life), refused));
        }
        let late = if rows == [0] { std::mem::take(&mut self.late_write) } else { 0 };
        let mut answered = self.now;
        for row in rows {
            let times = [0; COPIES].map(|_| {
                let mut delay = late + self.random.between(300, 3_000);
                let is_slow = self.fails(slow * 2) || weak && self.random.permille(700);
                if is_slow && late == 0 {
                    delay += self.random.below((latest - 3_000) / MS) * MS;
                }
                self.now + delay
            });
            answered = answered.max(self.database.write(*row, stamp, times, weak));
        }
        let mut then = answered + self.random.between(100, 900);
        if self.fails(slow) {
            then += self.random.below(1_800) * MS;
        }
        let result = match weak {
            _ if self.fails(slow / 4) => WriteResult::Unknown,
            true => WriteResult::DoneWeakly,
            false => WriteResult::Done,
        };
        self.push(then, SimEvent::Input(at, Some(life), Input::Written(answer, result)));
    }
}

/// A map in one line.
fn shown(map: &Map) -> String {
    let members: Vec<_> = map
        .members
        .iter()
        .map(|member| {
            let mark = if map.is_active(member.identity) { "" } else { "!" };
            format!("m{}{mark}", member.identity.id.0)
        })
        .collect();
    let owner = |owner: Option<MemberId>| owner.map_or("-".to_owned(), |owner| owner.0.to_string());
    let shards: Vec<_> =
        map.shards.iter().map(|shard| format!("{}e{}", owner(shard.owner), shard.epoch)).collect();
    format!("map {}: {} [{}]", map.version, members.join(" "), shards.join(" "))
}
