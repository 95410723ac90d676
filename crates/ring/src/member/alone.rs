//! One member for tests. The database and the other members are what a test says.

use std::sync::Arc;

use super::Member;
use crate::config::{Config, Time};
use crate::custody::Durable;
use crate::identity::{Incarnation, MemberId, RingId};
use crate::io::{Action, Io, Rows, TransactionResult};
use crate::map::{Map, Profile, Setting};
use crate::message::{Envelope, Message, Outcome, ShardState};
use crate::schema::SchemaVersion;

pub const OTHER: MemberId = MemberId(1);
pub const ME: MemberId = MemberId(2);
pub const THIRD: MemberId = MemberId(3);
pub const TICK: Time = 100_000;
/// The version of the schema up to which it has heard of all changes.
pub const HEARD: SchemaVersion = SchemaVersion(9);

pub fn profile(policy: &str) -> Profile {
    let setting = Setting { name: "table-policy".into(), value: policy.into() };
    Profile { weight: 1, settings: vec![setting], ..Profile::default() }
}

/// A map in which the other has the policy `a`.
pub fn map(members: &[(MemberId, &str)]) -> Map {
    let mut map = Map::empty(1);
    for (id, policy) in members {
        map.version += 1;
        map.put(*id, Incarnation(id.0.into()), profile(policy));
    }
    map.give(0, Some(OTHER));
    map
}

/// An instance whose map in the database never changes by others.
pub struct Alone {
    pub member: Member,
    pub map: Arc<Map>,
    pub now: Time,
    /// Whether the others answer, and who does if not.
    pub answers: bool,
    pub answering: Vec<MemberId>,
    /// Whether the other's clock runs too fast.
    pub drifts: bool,
    /// When the database last answered the other, if it does not all the time.
    pub blind_since: Option<Time>,
    /// Whether the database answers the instance.
    pub sees: bool,
    /// Whether the database refuses to change the map, for a reason that stays.
    pub refuses: bool,
    /// What it has tried to put in.
    pub tried: Vec<Arc<Map>>,
    /// Its answers to PINGs.
    pub promised: Vec<bool>,
    /// How many writes of others it has granted.
    pub granted: usize,
    pub wanted: usize,
    /// How often it has asked for a newer map.
    pub maps_wanted: usize,
    /// What it has told of shards that it hands over.
    pub parted: Vec<Vec<ShardState>>,
    /// Whom it has told how a write ended that it had handed over.
    pub passed_on: Vec<(MemberId, Outcome)>,
    /// Which writes it has asked others for.
    pub asked_for: Vec<(MemberId, Vec<u64>)>,
    /// How it has told others that its writes have ended.
    pub told: Vec<(MemberId, u64, Outcome)>,
    random: u128,
    pub rows: Box<dyn Rows>,
}

impl Alone {
    pub fn new(policy: &str, map: Map) -> Self {
        Self::with(Durable::default(), policy, map)
    }

    pub fn with(durable: Durable, policy: &str, map: Map) -> Self {
        let (mut rows, mut random) = (crate::sim::rows(), || 100);
        let mut io = Io { now: 0, rows: &mut rows, random: &mut random, actions: Vec::new() };
        let config = Arc::new(Config { shards: 1, ..Config::default() });
        let mut member = Member::start(ME, profile(policy), config, durable, &mut io);
        member.set_schema(HEARD);
        let (map, tried, promised) = (Arc::new(map), Vec::new(), Vec::new());
        let (answers, drifts, granted, random) = (true, false, 0, 100);
        let (blind_since, sees, refuses) = (None, true, false);
        Self {
            member,
            map,
            now: 0,
            answers,
            answering: Vec::new(),
            drifts,
            blind_since,
            sees,
            refuses,
            tried,
            promised,
            granted,
            wanted: 0,
            maps_wanted: 0,
            parted: Vec::new(),
            passed_on: Vec::new(),
            asked_for: Vec::new(),
            told: Vec::new(),
            random,
            rows: Box::new(rows),
        }
    }

    pub fn act(&mut self, act: impl FnOnce(&mut Member, &mut Io<'_>)) {
        let mut next = self.random;
        let mut random = || {
            next += 1;
            next
        };
        let rows = &mut *self.rows;
        let mut io = Io { now: self.now, rows, random: &mut random, actions: Vec::new() };
        act(&mut self.member, &mut io);
        let actions = io.actions;
        self.random = next;
        actions.into_iter().for_each(|action| self.carry_out(action));
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::ReadMap { id } => {
                let map = Some(self.map.clone()).filter(|_| self.sees);
                self.act(|member, io| member.map_read(id, map, io));
            }
            Action::Transact { id, map } => {
                self.tried.push(map.clone());
                let result = match self.refuses {
                    true => TransactionResult::Unknown,
                    false => TransactionResult::Applied,
                };
                self.map = if self.refuses { self.map.clone() } else { map };
                self.act(|member, io| member.transacted(id, result, io));
            }
            Action::Send { to, envelope } => match envelope.message {
                Message::Ping { hash, sent } if self.answers || self.answering.contains(&to) => {
                    let (life, clock) = (envelope.life, self.clock_of(to));
                    let since = self.blind_since.filter(|_| to == OTHER);
                    let blind = since.map_or(0, |since| self.now - since);
                    let promise = true;
                    let pong = Message::Pong { hash, sent, to: life, promise, clock, blind };
                    self.say_in(envelope.ring, to, pong);
                }
                Message::Pong { promise, .. } => self.promised.push(promise),
                Message::Grant { .. } => self.granted += 1,
                Message::HandoverWanted { .. } => self.wanted += 1,
                Message::MapWanted => self.maps_wanted += 1,
                Message::Handover { states, .. } => self.parted.push(states),
                Message::Ended { outcome, .. } => self.passed_on.push((to, outcome)),
                Message::EndWanted { numbers, .. } => self.asked_for.push((to, numbers)),
                Message::End { number, outcome } => self.told.push((to, number, outcome)),
                _ => {}
            },
            _ => {}
        }
    }

    /// Another member says something.
    pub fn say(&mut self, from: MemberId, message: Message) {
        self.say_in(self.map.ring, from, message);
    }

    /// An instance says something that is a member of that ring.
    pub fn say_in(&mut self, ring: RingId, from: MemberId, message: Message) {
        let envelope = Envelope {
            from,
            life: Incarnation(50),
            incarnation: Incarnation(from.0.into()),
            ring,
            version: self.map.version,
            message,
        };
        self.act(|member, io| member.receive(envelope, io));
    }

    fn clock_of(&self, who: MemberId) -> Time {
        if self.drifts && who == OTHER { self.now + self.now / 100 } else { self.now }
    }

    pub fn run(&mut self, time: Time) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            self.act(|member, io| member.tick(io));
        }
    }
}
