//! One instance of the ring: composes the state machines and passes inputs to them.
//!
//! | input | where |
//! |---|---|
//! | time, answers about the map | [`clock`] |
//! | messages of other members | [`receive`] |
//! | reads and writes of clients, rows of the database | [`serve`] |
//!
//! [`judge`] decides which transaction to begin, [`adopt`] what a newer map changes. [`hand_over`]
//! gives shards to other members. [`report`] is what an operator sees of leases and moves.
//! [`Lease`](crate::lease) decides whether it may serve.

mod adopt;
#[cfg(test)]
mod alone;
mod clock;
mod hand_over;
mod judge;
mod receive;
mod report;
mod serve;
#[cfg(test)]
mod settings_tests;

pub use self::report::{MoveStep, PeerLease, RingReport, ShardMove};

use std::collections::VecDeque;
use std::sync::Arc;

use crate::config::{Config, Time};
use crate::custody::{Custody, Durable};
use crate::drift::Drifts;
use crate::handover::Handover;
#[cfg(test)]
use crate::identity::PermitKey;
use crate::identity::{Identity, Incarnation, MemberId, RingId};
use crate::io::{Action, Io};
use crate::join::{Founding, Join};
use crate::lease::Lease;
use crate::lookup::Lookups;
use crate::map::{Map, Profile, Setting};
use crate::message::{Envelope, Message};
use crate::parting::Parting;
use crate::patience::Patience;
use crate::promise::Promises;
use crate::schema::SchemaVersion;
use crate::settings::{Agreement, agreement};
use crate::sight::Sight;
use crate::takeover::{Suspicion, Takeover};
use crate::transaction::Transactions;
use crate::write::Writes;

/// The most writes of one question for their ends.
const MOST_ENDS: usize = 1_000;
/// So many times as long as a transaction may take, a move waits for what it may bring.
const PATIENCE: Time = 6;

/// One instance.
#[derive(Debug, Clone)]
pub struct Member {
    id: MemberId,
    /// This process.
    life: Incarnation,
    profile: Profile,
    /// Up to where it has heard of changes of the schema.
    schema: SchemaVersion,
    config: Arc<Config>,
    /// The adopted map, `None` before the first was seen.
    map: Option<Arc<Map>>,
    hash: u64,
    /// When it was adopted.
    adopted: Time,
    /// Since when its members have not changed.
    stable_since: Time,
    /// Whether this member had no shards when its members were the same for a while.
    fills_up: bool,
    /// Who we are in it.
    me: Option<Identity>,
    /// The incarnations that this process has tried to become, the last of them.
    tried: Vec<Incarnation>,
    /// Of which version a map was last asked for, and when.
    map_wanted: (u64, Time),
    /// Whether this process has been a member.
    had_place: bool,
    leaving: bool,
    /// Whether the process before this one was leaving when it ended.
    was_leaving: bool,
    /// Since when it wants to go from the map that it has, as it owns nothing.
    going_since: Option<Time>,
    /// When a member was last put out of the map.
    bereft: Option<Time>,
    /// Since when there is somebody to accuse.
    suspecting: Option<Time>,
    /// Whom this member has accused since there last was nobody to accuse.
    accusations: Vec<Accusation>,
    /// When shards were last handed over.
    handed: Time,
    /// Shards that others wait for.
    parting: Vec<Parting>,
    /// Others wait for shards of ours, while we do not know what their rows are worth.
    giving: Patience,
    /// We wait to ask for shards, for the same.
    asking: Patience,
    /// Reads of the map.
    reads: MapReads,
    next_ping: Time,
    lease: Lease,
    promises: Promises,
    takeover: Takeover,
    sight: Sight,
    drifts: Drifts,
    join: Join,
    transactions: Transactions,
    handover: Handover,
    custody: Custody,
    writes: Writes,
    lookups: Lookups,
    /// Messages of this member to itself.
    local: VecDeque<Envelope>,
}

/// Whom this member has accused, for the log.
#[derive(Debug, Clone)]
struct Accusation {
    who: MemberId,
    why: Suspicion,
    told: bool,
}

/// The reads of the map at SERIAL.
#[derive(Debug, Default, Clone)]
struct MapReads {
    next: u64,
    under_way: Option<(u64, Time)>,
    /// The last one that was sent before rows of earlier epochs were distrusted.
    before_distrust: u64,
    /// Since when moves bring no rows, until one that was sent later is answered.
    distrusting: Option<Time>,
    /// When the last was sent while they brought none.
    for_moves: Option<Time>,
    /// By the map there are moves to come.
    moves_to_come: bool,
    /// When to read again.
    due: Time,
    /// None is sent before, whatever is due.
    not_before: Time,
    /// The last one was refused.
    failed: bool,
    /// When the last was sent that was answered.
    answered: Option<Time>,
    /// What is wrong with the map that the last one found. What this member would change is not its
    /// ring's any more.
    loss: Option<MapLoss>,
    /// Since when something is.
    lost_since: Option<Time>,
}

/// How the database has lost the map of a member's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapLoss {
    /// It has none, or one of another ring: somebody has emptied the row.
    Emptied,
    /// It has an older one than ours, or another one of the same version: it has forgotten changes
    /// that it had confirmed, as after a restore. Those that follow may give epochs anew that rows
    /// were cached under. So the next map that is adopted is taken for another ring's.
    Older,
}

impl Member {
    /// An instance that starts, with what an earlier process of it left.
    #[must_use]
    pub fn start(
        id: MemberId,
        profile: Profile,
        config: Arc<Config>,
        durable: Durable,
        io: &mut Io<'_>,
    ) -> Self {
        let custody = Custody::restore(durable, io.now, &config, io.rows);
        Self {
            id,
            life: io.incarnation(),
            profile,
            schema: SchemaVersion::default(),
            config,
            map: None,
            hash: 0,
            adopted: io.now,
            stable_since: io.now,
            fills_up: false,
            me: None,
            tried: Vec::new(),
            map_wanted: (0, 0),
            had_place: false,
            leaving: false,
            was_leaving: false,
            going_since: None,
            bereft: None,
            suspecting: None,
            accusations: Vec::new(),
            handed: 0,
            parting: Vec::new(),
            giving: Patience::default(),
            asking: Patience::default(),
            reads: MapReads::default(),
            next_ping: io.now,
            lease: Lease::default(),
            promises: Promises::default(),
            takeover: Takeover::begin(io.now),
            sight: Sight::default(),
            drifts: Drifts::default(),
            join: Join::default(),
            transactions: Transactions::default(),
            handover: Handover::default(),
            custody,
            writes: Writes::default(),
            lookups: Lookups::default(),
            local: VecDeque::new(),
        }
    }

    /// What the process leaves behind when it ends, however it ends.
    #[must_use]
    pub fn into_durable(self) -> Durable {
        Durable::of(self.custody)
    }

    /// Hands all shards over and leaves the ring.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// For how long the database has answered no read of the map to this member, or has lost the
    /// map for it. Not for how long none has confirmed it: maps that follow each other fast confirm
    /// nothing.
    fn blind(&self, now: Time) -> Time {
        let answered = self.reads.lost_since.or(self.reads.answered);
        let since = answered.max(self.takeover.joined_at());
        match (self.active_me(), since) {
            (Some(_), Some(since)) => now.saturating_sub(since),
            _ => 0,
        }
    }

    /// How the database has lost the map of our ring, if it has. There is no lease any more then.
    #[must_use]
    pub fn map_loss(&self) -> Option<MapLoss> {
        self.reads.loss
    }

    /// A member refuses our links, because we have another secret. So it is not dead: an instance
    /// that joins beside it would only cost everybody their leases.
    pub fn refused(&mut self, io: &mut Io<'_>) {
        self.join.refused(io.now);
    }

    /// Whether another process is in the map with our id, after this one was. Two run with a copy
    /// of one data directory.
    #[must_use]
    pub fn has_twin(&self) -> bool {
        let entry = self.map.as_ref().and_then(|map| map.entry(self.id));
        self.had_place
            && entry.is_some_and(|entry| !self.tried.contains(&entry.identity.incarnation))
    }

    /// Whom it has accused since this was last asked, and why, for the log. What the map overtakes,
    /// or the database refuses, is tried again and told once.
    pub fn accusations(&mut self) -> Vec<(MemberId, Suspicion)> {
        let untold = self.accusations.iter_mut().filter(|accusation| !accusation.told);
        untold
            .map(|accusation| {
                accusation.told = true;
                (accusation.who, accusation.why)
            })
            .collect()
    }

    /// Whether the process before this one was told to leave, and ended before it had. That is
    /// undone: this process is a member like others, until it is told itself.
    #[must_use]
    pub fn has_given_up_leaving(&self) -> bool {
        self.was_leaving && !self.leaving
    }

    /// Whether it has been told to leave.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// What its operator says now of the settings that all members share. Under the old or the new
    /// ones others may write what nobody asks us for: rows of earlier epochs do not count any more,
    /// and no fill is installed that is under way.
    pub fn set_settings(&mut self, settings: Vec<Setting>) {
        self.profile.settings = settings;
        self.distrust_older();
        self.custody.overtake_fills();
    }

    /// When it may found a ring, if the database has no map of one.
    pub fn set_founding(&mut self, founding: Founding) {
        self.join.founding = founding;
    }

    /// It has heard of every change of the schema up to this version. Of those that make fills miss
    /// writes it has been told before ([`Member::weaken`]).
    pub fn set_schema(&mut self, schema: SchemaVersion) {
        if std::mem::replace(&mut self.schema, schema) != schema {
            self.custody.heard_more();
        }
    }

    /// Whether it has heard of a change of the schema whose version it does not know.
    fn lacks_schema(&self) -> bool {
        self.schema == SchemaVersion::default()
    }

    /// Whether it has the ring's settings. Callers that cache must not while it has not.
    ///
    /// A change of its own may be in the database although no answer has come. Who looks there sees
    /// that this member does not cache, and may write past the ring. So what it knows of the map
    /// says nothing until it shows that change, or another one in its place.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        if self.transactions.may_say_others(&self.profile.settings) {
            coverage_mark!(OwnChangeUnsettled);
            return Agreement::Unknown;
        }
        agreement(self.map.as_deref(), self.id, &self.profile.settings)
    }

    /// What it said last, see [`Member::set_settings`].
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        &self.profile.settings
    }

    /// When the lease ends, on this instance's clock; 0 for none.
    #[must_use]
    pub fn lease_end(&self) -> Time {
        self.lease.end()
    }

    /// When the read of the map was sent that last showed this instance as active; `None` before
    /// the first. The lease ends [`Config::confirm`] later.
    #[must_use]
    pub fn confirmed(&self) -> Option<Time> {
        self.lease.confirmed()
    }

    /// The active members whose clocks do not run like ours, and whether ours is most likely the
    /// one at fault. Neither promises the other anything.
    #[must_use]
    pub fn drifting(&self, now: Time) -> (Vec<MemberId>, bool) {
        let Some(map) = &self.map else { return (Vec::new(), false) };
        (self.drifts.suspects(map, now), self.drifts.is_odd(map, self.id, now))
    }

    /// The adopted map.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<Map>> {
        self.map.as_ref()
    }

    /// Whether this instance is an active member by its own map.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.map.as_ref().zip(self.me).is_some_and(|(map, me)| map.is_active(me))
    }

    fn version(&self) -> u64 {
        self.map.as_ref().map_or(0, |m| m.version)
    }

    /// The ring of the adopted map; zero before one was founded.
    #[must_use]
    pub fn ring(&self) -> RingId {
        self.map.as_ref().map_or_else(RingId::default, |map| map.ring)
    }

    /// This process.
    #[must_use]
    pub fn life(&self) -> Incarnation {
        self.life
    }

    /// Who this instance is in its map, if it is an active member of it.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.active_me()
    }

    /// Changes whenever [`Member::shards`] may have changed: version of the map, shards that are
    /// being handed over, whether this instance is active.
    #[must_use]
    pub fn serves(&self) -> (u64, usize, bool) {
        (self.version(), self.custody.leaving_count(), self.is_active())
    }

    /// A message of this member, for callers that look rows up themselves.
    #[must_use]
    pub fn envelope(&self, message: Message) -> Envelope {
        Envelope {
            from: self.id,
            life: self.life,
            incarnation: self.me.map(|me| me.incarnation).unwrap_or_default(),
            ring: self.ring(),
            version: self.version(),
            message,
        }
    }

    /// Sends a message; one to this member itself is handled before the call returns.
    fn send(&mut self, to: MemberId, message: Message, io: &mut Io<'_>) {
        let envelope = self.envelope(message);
        if to == self.id {
            self.local.push_back(envelope);
        } else {
            io.actions.push(Action::Send { to, envelope });
        }
    }

    fn send_all(&mut self, messages: Vec<(MemberId, Message)>, io: &mut Io<'_>) {
        messages.into_iter().for_each(|(to, message)| self.send(to, message, io));
    }

    /// Handles what this member has told itself, and sends what waits. To be called at the end of
    /// each input.
    fn settle(&mut self, io: &mut Io<'_>) {
        loop {
            let gets = self.lookups.send(io.now);
            self.send_all(gets, io);
            let Some(envelope) = self.local.pop_front() else { break };
            self.handle(envelope, io);
        }
        self.part(io);
    }
}

#[cfg(test)]
impl Member {
    /// For the oracles.
    pub fn custody(&self) -> &Custody {
        &self.custody
    }

    /// Asks for a shard, whether or not it should be ours.
    pub fn want(&mut self, shard: usize, io: &mut Io<'_>) {
        let Some(map) = self.map.clone().filter(|_| self.active_me().is_some()) else { return };
        let owner = map.shards[shard].owner.filter(|owner| *owner != self.id);
        if let Some(owner) = owner.filter(|_| !self.leaving && !self.transactions.is_busy()) {
            let message = self.handover.ask_for(owner, vec![shard as u16], io.now);
            self.send(owner, message, io);
        }
        self.settle(io);
    }

    /// Moves the version on, as another member's change of the map does.
    pub fn move_on(&mut self, io: &mut Io<'_>) {
        let Some(map) = self.map.clone().filter(|_| self.active_me().is_some()) else { return };
        if !self.transactions.is_busy() && self.reads.loss.is_none() {
            self.transact(map.next(), io);
        }
    }

    /// For the oracles: the writes of this process that wait for their permits.
    pub fn asking(&self) -> Vec<PermitKey> {
        let process = Identity { id: self.id, incarnation: self.life };
        self.writes.asking().map(|number| PermitKey { process, number }).collect()
    }

    /// For the oracles: when shards were last handed over.
    pub fn handed(&self) -> Time {
        self.handed
    }
}
