//! The writer's side of a write: permits from every owner, the write itself, the acknowledgement.
//!
//! ```text
//! Asking --every permit valid--> Sent --answer within every permit--> acknowledged
//!    ^                            |
//!    +--run out, or one refuses   +--answer too late--> Dropping --every DROP done--> acknowledged
//! ```
//!
//! * A permit counts from the sending of the BEGIN that it answers.
//! * The client is acknowledged if the database's answer came within every permit.
//! * If it came later, the present owners drop the rows first. If they cannot be reached, the
//!   client hears that the outcome is unknown.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, Time};
use crate::identity::MemberId;
use crate::io::{Action, FailReason, Io, WriteResult};
use crate::map::Map;
use crate::message::{Detail, Message, Outcome, Scope};

#[derive(Debug, Default, Clone)]
pub struct Writes {
    next: u64,
    open: BTreeMap<u64, Write>,
    /// Those of the last of which nobody knows whether they may still be applied, and those that
    /// were weak. A number that is neither here nor open has settled, or nothing of it was sent: so
    /// the many that do cost nothing.
    unknown: BTreeSet<u64>,
    decided: BTreeSet<u64>,
    weak: BTreeSet<u64>,
    /// How writes have ended is not known any more, up to the first number. Up to the second,
    /// whether they were weak is not.
    forgotten: (u64, u64),
}

#[derive(Debug, Clone)]
struct Write {
    client: u64,
    scopes: Vec<Scope>,
    detail: Detail,
    /// When it began to ask its owners: for permits, or to drop.
    began: Time,
    phase: Phase,
    /// The version of the map under which it began.
    begun: u64,
    /// The version of the map that the owners are of.
    version: u64,
    /// What is asked of each owner.
    asks: BTreeMap<MemberId, Ask>,
    /// All whom a BEGIN was sent to.
    told: Vec<MemberId>,
    attempts: u32,
    /// Nobody is asked before, unless the map changes.
    resumes: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asking,
    Sent,
    Dropping { weak: bool },
}

#[derive(Debug, Clone)]
struct Ask {
    scopes: Vec<Scope>,
    attempt: u32,
    sent: Time,
    /// The end of the permit; for a DROP any number.
    granted: Option<Time>,
}

/// So many writes are remembered of each kind that has not settled.
const MOST_REMEMBERED: usize = 65_536;

/// A message of this module to a member.
pub type Outgoing = (MemberId, Message);

impl Writes {
    /// A client wants to write.
    pub fn begin(
        &mut self,
        client: u64,
        (scopes, detail): (Vec<Scope>, Detail),
        map: &Map,
        io: &mut Io<'_>,
    ) -> u64 {
        self.next += 1;
        let write = Write {
            client,
            scopes,
            detail,
            began: io.now,
            phase: Phase::Asking,
            begun: map.version,
            version: map.version,
            asks: BTreeMap::new(),
            told: Vec::new(),
            attempts: 0,
            resumes: 0,
        };
        self.open.insert(self.next, write);
        self.next
    }

    /// Asks owners that have not been asked, have not answered in time, or whose permit has run
    /// out. Sends the write when every permit is valid. Returns what to send, and who was silent.
    pub fn advance(
        &mut self,
        number: u64,
        map: &Map,
        config: &Config,
        io: &mut Io<'_>,
    ) -> (Vec<Outgoing>, Vec<MemberId>) {
        let (mut out, mut silent) = (Vec::new(), Vec::new());
        let Some(write) = self.open.get_mut(&number) else { return (out, silent) };
        let waits = write.version == map.version && io.now < write.resumes;
        if write.phase == Phase::Sent || waits {
            return (out, silent);
        }
        write.resumes = 0;
        write.route(map);
        write.ask(number, config, io.now, &mut out, &mut silent);
        if write.asks.is_empty()
            || !write.asks.values().all(|ask| ask.counts(write.is_dropping(), io.now))
        {
            return (out, silent);
        }
        match write.phase {
            Phase::Asking => {
                write.phase = Phase::Sent;
                io.actions.push(Action::SendWrite { number, client: write.client });
            }
            Phase::Dropping { .. } => {
                coverage_mark!(AcknowledgedAfterDrop);
                io.actions.push(Action::Acknowledge { client: write.client });
                out.extend(self.finish(number, Outcome::Settled, map));
            }
            Phase::Sent => {}
        }
        (out, silent)
    }

    /// An owner's permit, or its word that it has dropped, for one attempt.
    pub fn answered(&mut self, number: u64, from: MemberId, attempt: u32, duration: Time) {
        let ask = self.open.get_mut(&number).and_then(|w| w.asks.get_mut(&from));
        if let Some(ask) = ask.filter(|ask| ask.attempt == attempt) {
            ask.granted = Some(ask.sent + duration);
        }
    }

    /// The database has answered a write.
    pub fn written(
        &mut self,
        number: u64,
        result: WriteResult,
        map: &Map,
        io: &mut Io<'_>,
    ) -> Vec<Outgoing> {
        let Some(write) = self.open.get_mut(&number).filter(|w| w.phase == Phase::Sent) else {
            return Vec::new();
        };
        let client = write.client;
        let in_time = write.asks.values().all(|ask| ask.granted.is_some_and(|end| io.now < end));
        match result {
            WriteResult::Done | WriteResult::DoneWeakly if in_time => {
                io.actions.push(Action::Acknowledge { client });
                let weak = result == WriteResult::DoneWeakly;
                self.finish(number, if weak { Outcome::Weak } else { Outcome::Settled }, map)
            }
            WriteResult::Done | WriteResult::DoneWeakly => {
                coverage_mark!(AnsweredTooLate);
                write.phase = Phase::Dropping { weak: result == WriteResult::DoneWeakly };
                write.asks.clear();
                // The owners have their time anew: the database has taken all of the first.
                write.began = io.now;
                Vec::new()
            }
            WriteResult::Refused => {
                io.actions.push(Action::Fail { client, reason: FailReason::NotSent });
                self.finish(number, Outcome::Refused, map)
            }
            WriteResult::Unknown | WriteResult::Decided => {
                io.actions.push(Action::Fail { client, reason: FailReason::Unknown });
                let decided = result == WriteResult::Decided;
                let outcome = if decided { Outcome::Decided } else { Outcome::Unknown };
                self.finish(number, outcome, map)
            }
        }
    }

    /// The writes that are under way, for a tick.
    pub fn numbers(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// Gives up a write whose permits or drops could not be had in time.
    pub fn give_up(
        &mut self,
        number: u64,
        (map, config): (&Map, &Config),
        io: &mut Io<'_>,
    ) -> Vec<Outgoing> {
        let late = |write: &&Write| io.now >= write.began + config.write;
        match self.open.get(&number).filter(late).map(|write| (write.client, write.phase)) {
            None | Some((_, Phase::Sent)) => Vec::new(),
            Some((_, Phase::Asking)) => self.refuse(number, 0, map, io),
            Some((client, Phase::Dropping { .. })) => {
                io.actions.push(Action::Fail { client, reason: FailReason::Unknown });
                self.finish(number, Outcome::Unknown, map)
            }
        }
    }

    /// Refuses a write that has waited for its permits for so long. Nothing of it was sent: owners
    /// that have granted it, or read its BEGIN later, hear that their gates may open.
    pub fn refuse(
        &mut self,
        number: u64,
        longer_than: Time,
        map: &Map,
        io: &mut Io<'_>,
    ) -> Vec<Outgoing> {
        let waits = |write: &&Write| write.is_asking() && io.now >= write.began + longer_than;
        let Some(write) = self.open.get(&number).filter(waits) else { return Vec::new() };
        io.actions.push(Action::Fail { client: write.client, reason: FailReason::NotSent });
        self.finish(number, Outcome::Refused, map)
    }

    /// An owner has refused. It may refuse until its shards have moved, so permits of others go
    /// back meanwhile: for a shard that moves they would be holds, or make it weak. All are asked
    /// anew later, under another number: an owner grants nothing for one that has ended.
    pub fn refused(
        &mut self,
        (number, from, attempt): (u64, MemberId, u32),
        (map, config): (&Map, &Config),
        now: Time,
    ) -> Vec<Outgoing> {
        let is_one_of_several = |write: &&mut Write| {
            let ask = write.asks.get(&from);
            write.is_asking() && write.asks.len() > 1 && ask.is_some_and(|a| a.attempt == attempt)
        };
        let Some(write) = self.open.get_mut(&number).filter(is_one_of_several) else {
            return Vec::new();
        };
        coverage_mark!(PermitsGoBack);
        write.asks.clear();
        write.resumes = now + config.retry;
        let anew = Write { told: Vec::new(), ..write.clone() };
        self.next += 1;
        self.open.insert(self.next, anew);
        self.finish(number, Outcome::Refused, map)
    }

    /// How a write has ended, for an owner that has not heard of it. `None`: it has not, or it is
    /// not known any more. What is not known to be better is [`Outcome::Weak`].
    pub fn ended(&self, number: u64) -> Option<Outcome> {
        let (unknown, weak) = self.forgotten;
        if number > self.next || number <= unknown || self.open.contains_key(&number) {
            return None;
        }
        Some(match number {
            _ if self.unknown.contains(&number) => Outcome::Unknown,
            _ if self.decided.contains(&number) => Outcome::Decided,
            _ if number <= weak || self.weak.contains(&number) => Outcome::Weak,
            _ => Outcome::Settled,
        })
    }

    fn remember(&mut self, number: u64, outcome: Outcome) {
        let (numbers, forgotten) = match outcome {
            Outcome::Unknown => (&mut self.unknown, &mut self.forgotten.0),
            Outcome::Decided => (&mut self.decided, &mut self.forgotten.0),
            Outcome::Weak => (&mut self.weak, &mut self.forgotten.1),
            Outcome::Settled | Outcome::Refused => return,
        };
        numbers.insert(number);
        if numbers.len() > MOST_REMEMBERED {
            *forgotten = numbers.pop_first().unwrap_or(0).max(*forgotten);
        }
    }

    /// All hear of the end whom a BEGIN was sent to, and who has come by their permits since.
    fn finish(&mut self, number: u64, outcome: Outcome, map: &Map) -> Vec<Outgoing> {
        let Some(mut write) = self.open.remove(&number) else { return Vec::new() };
        self.remember(number, outcome);
        if map.version != write.begun {
            let owners: Vec<_> = write.scopes.iter().filter_map(|scope| scope.owner(map)).collect();
            owners.into_iter().for_each(|owner| tell(&mut write.told, owner));
        }
        write.told.into_iter().map(|to| (to, Message::End { number, outcome })).collect()
    }
}

impl Ask {
    /// Whether an owner's word still counts: a permit to its end, that it has dropped for good.
    fn counts(&self, dropping: bool, now: Time) -> bool {
        self.granted.is_some_and(|end| dropping || now < end)
    }
}

/// One more who hears of the end.
fn tell(told: &mut Vec<MemberId>, owner: MemberId) {
    if !told.contains(&owner) {
        told.push(owner);
    }
}

impl Write {
    fn is_asking(&self) -> bool {
        self.phase == Phase::Asking
    }

    fn is_dropping(&self) -> bool {
        matches!(self.phase, Phase::Dropping { .. })
    }

    /// Who is to be asked by this map. What was asked of others before counts no more.
    fn route(&mut self, map: &Map) {
        let mut wanted: BTreeMap<MemberId, Vec<Scope>> = BTreeMap::new();
        for scope in &self.scopes {
            let owners = match scope {
                Scope::Token(token) => map.owner_of(*token).into_iter().collect(),
                // Accused owners too: they may serve until their lease has ended.
                Scope::All => map.owners(),
            };
            if owners.is_empty() {
                self.asks.clear();
                return;
            }
            owners.into_iter().for_each(|owner| wanted.entry(owner).or_default().push(*scope));
        }
        let everything = self.scopes.contains(&Scope::All) && self.version != map.version;
        self.version = map.version;
        self.asks.retain(|owner, ask| !everything && wanted.get(owner) == Some(&ask.scopes));
        for (owner, scopes) in wanted {
            self.asks.entry(owner).or_insert(Ask { scopes, attempt: 0, sent: 0, granted: None });
        }
    }

    fn ask(
        &mut self,
        number: u64,
        config: &Config,
        now: Time,
        out: &mut Vec<Outgoing>,
        silent: &mut Vec<MemberId>,
    ) {
        let dropping = match self.phase {
            Phase::Dropping { weak } => Some(weak),
            _ => None,
        };
        for (owner, ask) in &mut self.asks {
            let has = ask.counts(dropping.is_some(), now);
            if has || (ask.attempt > 0 && ask.granted.is_none() && now < ask.sent + config.retry) {
                continue;
            }
            if ask.attempt > 0 && ask.granted.is_none() {
                silent.push(*owner);
            }
            self.attempts += 1;
            (ask.attempt, ask.sent, ask.granted) = (self.attempts, now, None);
            let (attempt, scopes) = (ask.attempt, ask.scopes.clone());
            let detail = self.detail.clone();
            out.push((
                *owner,
                match dropping {
                    Some(weak) => Message::Drop { number, attempt, scopes, detail, weak },
                    None => Message::Begin { number, attempt, scopes, detail },
                },
            ));
            if dropping.is_none() {
                tell(&mut self.told, *owner);
            }
        }
    }
}

#[cfg(test)]
impl Writes {
    /// The writes that wait for their permits.
    pub fn asking(&self) -> impl Iterator<Item = u64> {
        self.open.iter().filter(|(_, write)| write.is_asking()).map(|(number, _)| *number)
    }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
