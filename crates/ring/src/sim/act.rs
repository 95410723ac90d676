//! Carries out the actions of the processes: network and database, with their faults.

use std::sync::Arc;

use super::database::Database;
use super::event::{Event, Input};
use super::node::stamp_of;
use super::plot::MS;
use super::traps::Sprung;
use super::world::World;
use crate::config::Time;
use crate::identity::MemberId;
use crate::io::{Action, ReadSource, TransactionResult, WriteResult};
use crate::map::Map;
use crate::message::{Envelope, Message};

impl World {
    pub fn unreliable(&self) -> bool {
        self.now < self.plan.heal
    }

    fn rate(&mut self, permille: u64) -> bool {
        self.unreliable() && self.random.permille(permille)
    }

    pub fn act(&mut self, at: usize, action: Action, sprung: Sprung) {
        if sprung.lost {
            self.lose(at, &action);
            return;
        }
        if self.trace
            && !matches!(&action, Action::Send { envelope, .. }
                if matches!(envelope.message, crate::message::Message::Ping { .. }
                    | crate::message::Message::Pong { .. }))
        {
            self.say(|| format!("m{at} -> {action:?}"));
        }
        let life = self.nodes[at].life;
        match action {
            Action::Send { to, envelope } => self.send(at, to, envelope, sprung),
            Action::ReadMap { id } => {
                let delay = self.delay_to_database(at);
                if let Some(delay) = delay {
                    self.queue.push(self.now + delay + sprung.late, Event::ReadMap(at, life, id));
                }
            }
            Action::Transact { id, map } => {
                self.send_transaction(at, life, (id, map), sprung.late);
            }
            Action::ReadRow { id, key } => {
                let row = self.row_of(&key);
                let slow = self.plan.rates.row;
                let mut delay = self.random.between(300, 2_000);
                if self.rate(slow) {
                    delay += self.random.below(900) * MS;
                }
                let times = [0, 1].map(|_| self.now + self.random.below(delay));
                let replicas = Database::two(&mut self.random);
                let of = [(replicas[0], times[0]), (replicas[1], times[1])];
                let at_least = times[0].max(times[1]);
                let end = at_least.max(self.now + delay);
                self.queue.push(end, Event::ReadRow(at, (life, id), row, of, sprung.late));
            }
            Action::SendWrite { number, client } => {
                self.send_write(at, life, (number, client), sprung.late);
            }
            Action::Answer { client, row, source } => {
                let stamp = stamp_of(row.as_ref());
                let cached = source == ReadSource::Cache;
                if let Err(wrong) = self.oracle.answered(client, stamp, cached) {
                    self.wrong = Some(format!("{wrong}, at m{at}"));
                }
                self.nodes[at].clients.retain(|c| *c != client);
            }
            Action::Acknowledge { client } => {
                self.nodes[at].clients.retain(|c| *c != client);
                match self.oracle.acknowledged(client) {
                    Ok(rows) => self.acknowledged(&rows),
                    Err(wrong) => self.wrong = Some(wrong),
                }
            }
            Action::Fail { client, .. } => {
                self.nodes[at].clients.retain(|c| *c != client);
                self.oracle.failed(client);
            }
        }
    }

    /// An action that does not reach its destination. Drivers of the database give up some time.
    fn lose(&mut self, at: usize, action: &Action) {
        let life = Some(self.nodes[at].life);
        let input = match action {
            Action::ReadRow { id, .. } => Input::RowRead(*id, Err(())),
            Action::SendWrite { number, client } => {
                self.stamp += 1;
                self.oracle.sent(*client, self.stamp, self.now + self.plan.latest);
                Input::Written(*number, WriteResult::Unknown)
            }
            _ => return,
        };
        self.queue.push(self.now + 800 * MS, Event::Input(at, life, input));
    }

    fn send(&mut self, from: usize, to: MemberId, envelope: Envelope, sprung: Sprung) {
        let to = to.0 as usize;
        let now = self.now;
        let cut = self.cuts.iter().any(|(f, t, until)| (*f, *t) == (from, to) && *until > now);
        let rates = self.plan.rates;
        let is_end = matches!(envelope.message, Message::End { .. } | Message::Ended { .. });
        if cut || is_end && now < self.lost_ends || self.rate(rates.lost) {
            return;
        }
        let mut envelope = envelope;
        if self.plan.wire {
            envelope = Envelope::decode(&envelope.encode()).expect("it was just written");
        }
        if sprung.again.is_some() || self.rate(rates.doubled) {
            let delay = sprung.again.unwrap_or_else(|| self.random.below(1_500) * MS);
            let again = Input::Message(envelope.clone());
            self.queue.push(self.now + delay, Event::Input(to, None, again));
        }
        let mut delay = self.random.between(100, 900) + sprung.late;
        let map = matches!(envelope.message, Message::MapIs(_));
        if map && self.nodes.get(to).is_some_and(|node| node.late_news > now) {
            delay += self.random.between(700, 2_000) * MS;
        }
        if self.rate(rates.late) {
            delay += self.random.below(1_500) * MS;
        }
        self.queue.push(self.now + delay, Event::Input(to, None, Input::Message(envelope)));
    }

    /// How long a request takes to the database, or back; `None` where it is lost.
    fn delay_to_database(&mut self, at: usize) -> Option<Time> {
        let down = self.nodes[at].no_database.max(self.database_down) > self.now;
        let rate = self.plan.rates.transaction;
        if down || self.rate(rate / 5) {
            return None;
        }
        let mut delay = self.random.between(500, 4_000);
        if self.rate(rate) {
            delay += self.random.below(1_500) * MS;
        }
        Some(delay)
    }

    fn send_transaction(&mut self, at: usize, life: u64, (id, map): (u64, Arc<Map>), late: Time) {
        let Some(mut delay) = self.delay_to_database(at) else { return };
        delay += late;
        if self.nodes[at].queued > self.now && self.random.permille(700) {
            delay += self.random.between(300, 6_000) * MS;
        }
        self.queue.push(self.now + delay, Event::Transact(at, life, id, map));
    }

    pub fn read_map(&mut self, at: usize, life: u64, id: u64) {
        let Some(mut delay) = self.delay_to_database(at) else { return };
        if self.nodes[at].slow_map > self.now {
            delay += self.random.between(800, 2_400) * MS;
        }
        let map = self.database.read_map(self.now, &mut self.random);
        let answer = Input::MapRead(id, Some(map));
        self.queue.push(self.now + delay, Event::Input(at, Some(life), answer));
    }

    pub fn transact(&mut self, at: usize, life: u64, id: u64, map: &Arc<Map>) {
        let before = self.database.map.clone();
        let refused = self.refuses(at, life);
        let applied = !refused && self.database.transact(map);
        if applied {
            self.changed = self.now;
            let wrong = self.oracle.applied(&before, map).err();
            self.wrong = self.wrong.take().or(wrong);
            self.say(|| format!("applied: {}", shown(map)));
        }
        let Some(delay) = self.delay_to_database(at) else { return };
        let rate = self.plan.rates.transaction;
        let result = if self.rate(rate / 3) || refused {
            TransactionResult::Unknown
        } else if applied {
            TransactionResult::Applied
        } else {
            TransactionResult::Refused(self.database.map.clone())
        };
        let answer = Input::Transacted(id, result);
        self.queue.push(self.now + delay, Event::Input(at, Some(life), answer));
    }

    pub fn read_row(
        &mut self,
        at: usize,
        (life, id): (u64, u64),
        row: usize,
        of: [(usize, Time); 2],
        late: Time,
    ) {
        let stamp = self.database.read(row, of, self.now);
        let slow = self.plan.rates.row;
        let mut delay = self.random.between(200, 1_500) + late;
        if self.rate(slow) {
            delay += self.random.below(1_500) * MS;
        }
        let result = if self.rate(slow / 5) {
            Err(())
        } else {
            Ok((stamp > 0).then(|| stamp.to_le_bytes().to_vec()))
        };
        let answer = Input::RowRead(id, result);
        self.queue.push(self.now + delay, Event::Input(at, Some(life), answer));
    }

    fn send_write(&mut self, at: usize, life: u64, (number, client): (u64, u64), late: Time) {
        self.check_permits(at, client);
        let latest = self.plan.latest;
        // What is late comes late to the replicas, or its answer does.
        let arrives = late > 0 && self.random.permille(500);
        let extra = if arrives { late.min(latest - 5 * MS) } else { 0 };
        self.stamp += 1;
        let slow = self.plan.rates.row;
        if self.rate(slow / 4) {
            // The database refuses, or loses it.
            let result = self.random.pick(&[WriteResult::Refused, WriteResult::Unknown]);
            let answer = Input::Written(number, result);
            let delay = self.random.between(1, 900) * MS;
            self.queue.push(self.now + delay, Event::Input(at, Some(life), answer));
            return;
        }
        let (rows, weak) = self.oracle.sent(client, self.stamp, self.now + latest);
        let mut answered = self.now;
        for row in rows {
            let times = [0; 3].map(|_| {
                let mut delay = self.random.between(300, 3_000);
                if self.rate(slow * 2) || !arrives && weak && self.random.permille(700) {
                    delay += self.random.below((latest - 3_000) / MS) * MS;
                }
                self.now + delay.max(extra)
            });
            answered = answered.max(self.database.write(row, self.stamp, times, weak));
        }
        let delay = answered - self.now + self.random.between(100, 900);
        let mut late = if arrives { 0 } else { late } + std::mem::take(&mut self.slow_write);
        if self.rate(slow) {
            late += self.random.below(1_800) * MS;
        }
        let result = if self.rate(slow / 4) {
            let decided = number.is_multiple_of(4);
            if decided { WriteResult::Decided } else { WriteResult::Unknown }
        } else if weak {
            WriteResult::DoneWeakly
        } else {
            WriteResult::Done
        };
        let answer = Input::Written(number, result);
        self.queue.push(self.now + delay + late, Event::Input(at, Some(life), answer));
    }
}

/// A map in one line.
pub fn shown(map: &Map) -> String {
    let members: Vec<_> = map
        .members
        .iter()
        .map(|m| format!("{:?}{}", m.identity, if map.is_active(m.identity) { "" } else { "!" }))
        .collect();
    let shards: Vec<_> = map
        .shards
        .iter()
        .map(|s| format!("{}e{}", s.owner.map_or("-".to_owned(), |o| o.0.to_string()), s.epoch))
        .collect();
    format!("v{} {} [{}]", map.version, members.join(" "), shards.join(" "))
}
