//! Every order of deliveries in one history, within bounds. It has three members, two writes to one
//! row, reads at the heir, and one takeover. During the takeover the old owner hears of nobody.
//!
//! Explored are the orders of arrival of messages, writes, reads of the database, and their
//! answers. Steps of time, turns of clients and the partition come anywhere between. PING, PONG and
//! maps arrive at once where there is a link, and transactions apply at once. The bound is how
//! often an event overtakes the one that has waited longest (Emmi, Qadeer, Rakamaric: delay-bounded
//! scheduling, 2011). Equal states are visited once.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use super::node::{SimRows, stamp_of};
use super::plot::MS;
use crate::config::{Config, Time};
use crate::custody::Durable;
use crate::identity::MemberId;
use crate::io::{Action, Io, TransactionResult, WriteResult};
use crate::map::{Map, Profile};
use crate::member::Member;
use crate::message::{Detail, Envelope, Message, RowKey, Scope};
use crate::terms::OlderRow;

const TOKEN: i64 = 5;
/// One step of time.
const STEP: Time = 360 * MS;

/// What bounds the search.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Steps of time.
    steps: usize,
    /// How often an event may overtake the one that has waited longest. An event is an arrival, a
    /// turn of a client or of the network, or a step of time.
    overtakings: usize,
}

/// What is on its way.
#[derive(Debug, Clone)]
enum Transit {
    Message(usize, Envelope),
    /// A write on its way to the database: of whom, its number, client.
    Write(usize, u64, u64),
    Written(usize, u64),
    Read(usize, u64),
    RowRead(usize, u64, u64),
}

/// What clients and the network do, each list in its order.
const SCRIPTS: [&[Turn]; 4] =
    [&[Turn::Write(1)], &[Turn::Write(2)], &[Turn::Read(2)], &[Turn::Part]];

#[derive(Debug, Clone, Copy)]
enum Turn {
    Write(usize),
    Read(usize),
    /// The owner hears of nobody any more.
    Part,
}

#[derive(Debug, Clone)]
struct State {
    now: Time,
    members: Vec<(Member, SimRows)>,
    map: Arc<Map>,
    /// The newest write that the database has.
    row: u64,
    /// The newest write that was acknowledged.
    floor: u64,
    transit: Vec<Transit>,
    parted: bool,
    turns: [usize; SCRIPTS.len()],
    steps: usize,
    overtakings: usize,
    random: u64,
    taken: bool,
}

struct Search {
    bounds: Bounds,
    seen: HashSet<u64>,
    acknowledged: u64,
    taken: u64,
}

struct Digest(DefaultHasher);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn config() -> Config {
    Config {
        confirm: 1_000_000 * MS,
        lease: 1_000 * MS,
        rho: 1_000,
        ping: 200 * MS,
        silence: 500 * MS,
        rank_step: MS,
        hold: MS,
        probe: 1,
        retry: 500 * MS,
        write: 100_000 * MS,
        get: 100_000 * MS,
        stable: 1_000_000 * MS,
        pull: 0,
        shards: 1,
        ..Config::default()
    }
}

impl State {
    /// Three members that serve; the first owns the only shard.
    fn begin() -> Self {
        let mut state = Self {
            now: 1_000 * MS,
            members: Vec::new(),
            map: Arc::new(Map::empty(1)),
            row: 0,
            floor: 0,
            transit: Vec::new(),
            parted: false,
            turns: [0; SCRIPTS.len()],
            steps: 0,
            overtakings: 0,
            random: 0,
            taken: false,
        };
        let config = Arc::new(config());
        for id in 0..3 {
            let (mut rows, mut next) = (SimRows::default(), u128::from(id) << 64);
            let mut random = || {
                next += 1;
                next
            };
            let (now, actions) = (state.now, Vec::new());
            let mut io = Io { now, rows: &mut rows, random: &mut random, actions };
            let profile = Profile { weight: 1, ..Profile::default() };
            let durable = Durable::default();
            let member = Member::start(MemberId(id), profile, config.clone(), durable, &mut io);
            state.members.push((member, rows));
            (0..8).for_each(|_| state.pass(200 * MS));
        }
        (0..8).for_each(|_| state.pass(200 * MS));
        assert!(state.members.iter().all(|(m, _)| m.lease_end() > state.now), "{:?}", state.map);
        assert_eq!(state.map.owner_of(TOKEN), Some(MemberId(0)));
        state
    }

    /// Something with a member; what it wants done is on its way, or done.
    fn with(&mut self, at: usize, what: impl FnOnce(&mut Member, &mut Io<'_>)) {
        let seed = &mut self.random;
        let mut random = || {
            *seed += 1;
            (u128::from(*seed) << 8) | 0xff
        };
        let (member, rows) = &mut self.members[at];
        let mut io = Io { now: self.now, rows, random: &mut random, actions: Vec::new() };
        what(member, &mut io);
        let actions = io.actions;
        actions.into_iter().for_each(|action| self.act(at, action));
    }

    fn linked(&self, a: usize, b: usize) -> bool {
        !self.parted || a != 0 && b != 0
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::Send { to, envelope } => {
                let to = to.0 as usize;
                let at_once = matches!(
                    envelope.message,
                    Message::Ping { .. }
                        | Message::Pong { .. }
                        | Message::MapWanted
                        | Message::MapIs(_)
                );
                if at_once && to < self.members.len() && self.linked(at, to) {
                    self.with(to, |m, io| m.receive(envelope, io));
                } else if !at_once {
                    self.transit.push(Transit::Message(to, envelope));
                }
            }
            Action::ReadMap { id } if !self.parted || at != 0 => {
                let map = self.map.clone();
                self.with(at, |m, io| m.map_read(id, Some(map), io));
            }
            Action::Transact { id, map } if !self.parted || at != 0 => {
                let applies = map.version == self.map.version + 1;
                if applies {
                    self.map = map;
                    self.taken |= self.map.owner_of(TOKEN) != Some(MemberId(0));
                }
                let result = if applies {
                    TransactionResult::Applied
                } else {
                    TransactionResult::Refused(self.map.clone())
                };
                self.with(at, |m, io| m.transacted(id, result, io));
            }
            Action::ReadRow { id, .. } => self.transit.push(Transit::Read(at, id)),
            Action::SendWrite { number, client } => {
                self.transit.push(Transit::Write(at, number, client));
            }
            Action::Acknowledge { client } => self.floor = self.floor.max(client),
            _ => {}
        }
    }

    /// Time passes.
    fn pass(&mut self, time: Time) {
        self.now += time;
        (0..self.members.len()).for_each(|at| self.with(at, |m, io| m.tick(io)));
    }

    fn arrive(&mut self, at: usize) {
        match self.transit.remove(at) {
            Transit::Message(to, envelope) => {
                if self.linked(envelope.from.0 as usize, to) {
                    self.with(to, |m, io| m.receive(envelope, io));
                }
            }
            Transit::Write(by, number, client) => {
                self.row = self.row.max(client);
                self.transit.push(Transit::Written(by, number));
            }
            Transit::Written(by, number) => {
                self.with(by, |m, io| m.written(number, WriteResult::Done, io));
            }
            Transit::Read(by, id) => self.transit.push(Transit::RowRead(by, id, self.row)),
            Transit::RowRead(by, id, row) => {
                let row = Ok(Some(row.to_le_bytes().to_vec()));
                self.with(by, |m, io| m.row_read(id, row, io));
            }
        }
    }

    fn turn(&mut self, script: usize) {
        let turn = SCRIPTS[script][self.turns[script]];
        self.turns[script] += 1;
        let key = RowKey { token: TOKEN, bytes: Vec::new() };
        match turn {
            Turn::Write(at) => {
                let scopes = vec![Scope::Token(TOKEN)];
                self.with(at, |m, io| m.write(at as u64, scopes, Detail::from([]), io));
            }
            Turn::Read(at) => self.with(at, |m, io| m.read(9, key, io)),
            Turn::Part => self.parted = true,
        }
    }

    /// One lease holder, and no cached row that counts is older than what was acknowledged.
    fn check(&self) -> Result<(), String> {
        let mut serve = Vec::new();
        for (at, (member, rows)) in self.members.iter().enumerate() {
            let (Some(map), id) = (member.map(), MemberId(at as u64)) else { continue };
            if self.now >= member.lease_end() || !member.custody().serves(map, id, 0) {
                continue;
            }
            serve.push(at);
            let Some((epoch, row @ Some(_))) = rows.live(TOKEN) else { continue };
            let stamp = stamp_of(row.as_ref());
            let found = OlderRow { token: TOKEN, epoch: *epoch, absent: 0 };
            if stamp < self.floor && member.custody().row_counts(map, id, found) {
                return Err(format!("m{at} has write {stamp}, {} is acknowledged", self.floor));
            }
        }
        if serve.len() > 1 { Err(format!("{serve:?} serve one shard")) } else { Ok(()) }
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest(DefaultHasher::new());
        let mut transit: Vec<_> = self.transit.iter().map(|t| format!("{t:?}")).collect();
        transit.sort_unstable();
        let with = (&self.turns, self.parted, self.steps, self.overtakings, self.row, self.floor);
        write!(digest, "{:?} {transit:?} {with:?}", self.members).expect("a hash takes all");
        digest.0.finish()
    }
}

impl Search {
    /// Visits all that can follow; the way to the first state that is wrong.
    fn visit(&mut self, state: &State, way: &mut Vec<String>) {
        if !self.seen.insert(state.digest()) {
            return;
        }
        if let Err(wrong) = state.check() {
            panic!("{wrong}, after:\n{}", way.join("\n"));
        }
        self.acknowledged += u64::from(state.floor > 0);
        self.taken += u64::from(state.taken);
        for at in 0..state.transit.len() {
            self.follow(
                state,
                at > 0,
                way,
                || format!("arrives {:?}", state.transit[at]),
                |next| {
                    next.arrive(at);
                },
            );
        }
        let overtakes = !state.transit.is_empty();
        for (script, turns) in SCRIPTS.iter().enumerate() {
            if let Some(turn) = turns.get(state.turns[script]) {
                self.follow(
                    state,
                    overtakes,
                    way,
                    || format!("{turn:?}"),
                    |next| {
                        next.turn(script);
                    },
                );
            }
        }
        if state.steps < self.bounds.steps {
            self.follow(
                state,
                overtakes,
                way,
                || "time passes".to_owned(),
                |next| {
                    next.steps += 1;
                    next.pass(STEP / 2);
                    next.pass(STEP / 2);
                },
            );
        }
    }

    /// Visits what follows from one choice.
    fn follow(
        &mut self,
        state: &State,
        overtakes: bool,
        way: &mut Vec<String>,
        said: impl Fn() -> String,
        choice: impl Fn(&mut State),
    ) {
        let overtakings = state.overtakings + usize::from(overtakes);
        if overtakings <= self.bounds.overtakings {
            let mut next = State { overtakings, ..state.clone() };
            choice(&mut next);
            way.push(said());
            self.visit(&next, way);
            way.pop();
        }
    }
}

fn search(bounds: Bounds) -> BTreeMap<&'static str, u64> {
    let (seen, acknowledged, taken) = (HashSet::new(), 0, 0);
    let mut search = Search { bounds, seen, acknowledged, taken };
    search.visit(&State::begin(), &mut Vec::new());
    let states = search.seen.len() as u64;
    [("states", states), ("acknowledged", search.acknowledged), ("taken", search.taken)].into()
}

#[test]
fn no_order_of_deliveries_within_bounds_leaves_a_stale_row() {
    let steps = super::env("AFTERGLOW_ORDERS_STEPS").unwrap_or(6) as usize;
    let overtakings = super::env("AFTERGLOW_ORDERS_OVERTAKINGS").unwrap_or(1) as usize;
    let found = search(Bounds { steps, overtakings });
    println!("{steps} steps of time, {overtakings} overtakings: {found:?}");
    assert!(found["acknowledged"] > 0 && found["taken"] > 0, "{found:?}");
}
