//! The member of the ring, behind one lock. Every input reads the clock under the lock, after it
//! has come; what the member decides is carried out when the lock is free.
//!
//! Invariants:
//! - What the cache may serve ([`Shards`](afterglow_rowcache::shards::Shards), then the lease) is
//!   set under the lock, before any message leaves that tells others of it.
//! - Nothing is cached under policies that are not known to be those of the ring's other members.
//! - A write whose client has gone before its permits came is reported as refused.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use afterglow_ring::{
    Action, Agreement, Carried, Config, Durable, Envelope, Incarnation, Io, Kept, Map, MapLoss,
    Member, MemberId, Message, OlderRow, Profile, RingId, RingReport, Setting, Time, WriteResult,
};
use futures_channel::mpsc;
use parking_lot::{Mutex, MutexGuard, RwLock};
use uuid::Uuid;

use super::notes::{Note, Notes};
use super::questions::{Gets, PeerAnswer};
use super::rows::{Newer, RingRows};
use super::silent_owners::SilentOwners;
use super::source::{now, random};
use crate::frontend::cql::cached::RowCache;
use crate::ring_link::Transport;

/// What is wrong where two processes have one member's id.
pub const TWIN: &str = "another process is in the ring with this instance's id, and they put each other out: two run with a copy of one data directory; stop one and start it with an empty data directory";

/// What the keeper does for the member, with its connection to the database.
pub enum DatabaseJob {
    /// Read the ring's row at SERIAL.
    ReadMap {
        /// Comes back with the answer.
        id: u64,
    },
    /// Put this map in, if the version is the one before.
    Transact {
        /// Comes back with the answer.
        id: u64,
        /// The map.
        map: Arc<Map>,
    },
}

/// Whether clients may write. They may not while an instance without this ring can have the written
/// rows cached: it would not hear of the write, and go on serving what was before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Admission {
    /// Nobody has said yet who else caches.
    Unknown,
    /// They may.
    Open,
    /// An instance without a ring has the lease.
    HeldByInstance,
    /// Another ring has it.
    HeldByRing,
}

/// What a client's write hears.
pub enum WriteEvent {
    /// Every owner has granted it: it may be sent, under this number.
    Permitted(u64),
    /// It may be acknowledged.
    Acknowledged,
    /// It has failed.
    Failed,
}

/// One instance in its ring.
pub struct Ring {
    me: MemberId,
    config: Arc<Config>,
    pub(super) cache: Arc<RowCache>,
    /// This process.
    life: Incarnation,
    inner: Mutex<Locked>,
    transport: OnceLock<Transport>,
    /// The network of a simulation, which takes the place of the links.
    #[cfg(test)]
    pub(super) network: OnceLock<mpsc::UnboundedSender<(MemberId, Vec<u8>)>>,
    jobs: mpsc::UnboundedSender<DatabaseJob>,
    /// The adopted map, for reads.
    map: RwLock<Option<Arc<Map>>>,
    pub(super) gets: Mutex<Gets>,
    pub(super) silent_owners: SilentOwners,
    /// See [`Ring::close`].
    closed: AtomicBool,
    /// An [`Admission`].
    admission: AtomicU8,
    notes: Notes,
}

struct Locked {
    member: Member,
    rows: RingRows,
    /// Who waits for what becomes of a write.
    clients: HashMap<u64, mpsc::UnboundedSender<WriteEvent>>,
    next_client: u64,
    /// What the shards that the cache serves were last made of.
    served: (u64, usize, bool),
    /// Generation of the policies that the member's settings are of.
    generation: u64,
    /// Of which map, and of which generation, the settings were last compared.
    compared: (u64, u64),
}

/// The instance in the map: the first half of its identity.
pub fn member_id(instance: Uuid) -> MemberId {
    MemberId(instance.as_u64_pair().0)
}

impl Ring {
    /// An instance that starts, with what its last process left. What it asks of the database goes
    /// to `jobs`. `generation`: of the policies that the settings in its profile are of.
    pub fn new(
        me: MemberId,
        profile: Profile,
        config: Arc<Config>,
        durable: Durable,
        (cache, newer): (Arc<RowCache>, Newer),
        jobs: mpsc::UnboundedSender<DatabaseJob>,
        generation: u64,
    ) -> Arc<Ring> {
        cache.share(config.shards);
        let mut rows = RingRows::new(cache.clone(), newer);
        let mut random = random;
        let mut io = Io { now: now(), rows: &mut rows, random: &mut random, actions: Vec::new() };
        let member = Member::start(me, profile, config.clone(), durable, &mut io);
        let life = member.life();
        let inner = Locked {
            member,
            rows,
            clients: HashMap::new(),
            next_client: 0,
            served: (0, 0, false),
            generation,
            compared: (0, generation),
        };
        Arc::new(Ring {
            me,
            life,
            config,
            cache,
            inner: Mutex::new(inner),
            transport: OnceLock::new(),
            #[cfg(test)]
            network: OnceLock::new(),
            jobs,
            map: RwLock::default(),
            gets: Mutex::default(),
            silent_owners: SilentOwners::default(),
            closed: AtomicBool::new(false),
            admission: AtomicU8::new(Admission::Unknown as u8),
            notes: Notes::default(),
        })
    }

    /// The links, once they are open.
    pub fn set_transport(&self, transport: Transport) {
        // Set once, at the start.
        let _ = self.transport.set(transport);
    }

    /// The links.
    pub fn transport(&self) -> Option<&Transport> {
        self.transport.get()
    }

    /// This instance.
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// This process.
    pub fn life(&self) -> Incarnation {
        self.life
    }

    /// When the lease ends, on the clock of [`now`]; 0 for none.
    pub fn lease_end(&self) -> Time {
        self.inner.lock().member.lease_end()
    }

    /// What a restart needs to know, unless it knows that.
    pub fn kept_unless(&self, known: Option<&Kept>) -> Option<Kept> {
        let inner = self.inner.lock();
        let is_known = known.is_some_and(|known| inner.member.keeps_still(known));
        (!is_known).then(|| inner.member.kept())
    }

    /// The policies are of this generation now, and so are the settings. Nothing is cached until
    /// the ring's are known to be the same.
    pub fn set_settings(&self, generation: u64, settings: impl FnOnce() -> Vec<Setting>) {
        let mut inner = self.inner.lock();
        if inner.generation != generation {
            inner.generation = generation;
            self.with_locked(inner, |member, _| member.set_settings(settings()));
        }
    }

    /// Whether clients may write from now on.
    pub fn admit(&self, admission: Admission) {
        self.admission.store(admission as u8, Ordering::Release);
    }

    /// Whether clients may write.
    pub fn admission(&self) -> Admission {
        let now = self.admission.load(Ordering::Acquire);
        let all = [Admission::Open, Admission::HeldByInstance, Admission::HeldByRing];
        all.into_iter().find(|one| *one as u8 == now).unwrap_or(Admission::Unknown)
    }

    /// Whether the settings are those of the ring; and the settings.
    pub fn agreement(&self) -> (Agreement, Vec<Setting>) {
        let inner = self.inner.lock();
        (inner.member.agreement(), inner.member.settings().to_vec())
    }

    /// How many microseconds ago the database last showed this instance as a member.
    pub fn since_confirmed(&self) -> Option<Time> {
        let confirmed = self.inner.lock().member.confirmed()?;
        Some(now().saturating_sub(confirmed))
    }

    /// What is wrong with the ring, as far as the keeper knows.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// What was wrong with the last read of the map.
    pub fn trouble(&self) -> Option<String> {
        if self.has_twin() {
            return Some(TWIN.to_owned());
        }
        self.notes.get(Note::Trouble)
    }

    /// See [`Member::has_twin`].
    pub fn has_twin(&self) -> bool {
        self.inner.lock().member.has_twin()
    }

    /// A member refuses our links because of the secret.
    pub fn refused(&self) {
        self.with(|member, io| member.refused(io));
    }

    /// Whether it has left, or is about to.
    pub fn is_leaving(&self) -> bool {
        self.inner.lock().member.is_leaving()
    }

    /// See [`Member::has_given_up_leaving`].
    pub fn has_given_up_leaving(&self) -> bool {
        self.inner.lock().member.has_given_up_leaving()
    }

    /// See [`Member::report`].
    pub fn report(&self) -> RingReport {
        let inner = self.inner.lock();
        inner.member.report(now())
    }

    /// See [`Member::drifting`].
    pub fn drifting(&self) -> (Vec<MemberId>, bool) {
        let inner = self.inner.lock();
        inner.member.drifting(now())
    }

    /// See [`Member::map_loss`].
    pub fn map_loss(&self) -> Option<MapLoss> {
        self.inner.lock().member.map_loss()
    }

    /// Takes no messages any more: the process ends.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(transport) = self.transport.get() {
            transport.stop();
        }
        self.cache.lease().end();
    }

    /// The protocol's durations.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The adopted map.
    pub fn map(&self) -> Option<Arc<Map>> {
        self.map.read().clone()
    }

    /// Whether a message comes from a member of our ring, see [`Member::receive`].
    pub fn is_from_us(&self, envelope: &Envelope) -> bool {
        let map = self.map.read();
        envelope.ring == map.as_ref().map_or_else(RingId::default, |map| map.ring)
    }

    /// Whether a message comes from a member of another ring. Who joins or founds has none yet.
    pub fn is_of_another_ring(&self, envelope: &Envelope) -> bool {
        let ours = self.map.read().as_ref().map_or_else(RingId::default, |map| map.ring);
        let are_rings = ours != RingId::default() && envelope.ring != RingId::default();
        are_rings && envelope.ring != ours
    }

    /// The other instance that owns a token.
    pub fn owner(&self, token: i64) -> Option<MemberId> {
        let map = self.map.read();
        map.as_ref()?.owner_of(token).filter(|owner| *owner != self.me)
    }

    /// Whether a write need not wait for the ring: all rows have owners, and this instance is a
    /// member, or has a link to each owner. One with another secret has neither.
    pub fn is_within(&self) -> bool {
        let Some(map) = self.map() else { return false };
        let is_owned = map.shards.iter().all(|shard| shard.owner.is_some());
        let links = self.transport().map(Transport::peers).unwrap_or_default();
        let is_linked = |owner| links.iter().any(|link| link.id == owner && link.links > 0);
        let reaches = || map.owners().into_iter().all(|owner| owner == self.me || is_linked(owner));
        is_owned && (self.inner.lock().member.is_active() || reaches())
    }

    /// Gives the member an input, and carries out what it decides.
    pub fn with<T>(&self, act: impl FnOnce(&mut Member, &mut Io<'_>) -> T) -> T {
        self.with_locked(self.inner.lock(), act)
    }

    fn with_locked<T>(
        &self,
        mut inner: MutexGuard<'_, Locked>,
        act: impl FnOnce(&mut Member, &mut Io<'_>) -> T,
    ) -> T {
        let (done, mut actions) = inner.input(act);
        self.publish(&mut inner);
        let mut abandoned = Vec::new();
        let mut outside = Vec::new();
        loop {
            for action in actions.drain(..) {
                match action {
                    Action::SendWrite { number, client } => {
                        if !inner.tell(client, WriteEvent::Permitted(number)) {
                            abandoned.push(number);
                        }
                    }
                    Action::Acknowledge { client } => {
                        inner.tell(client, WriteEvent::Acknowledged);
                    }
                    Action::Fail { client, .. } => {
                        inner.tell(client, WriteEvent::Failed);
                    }
                    other => outside.push(other),
                }
            }
            let Some(number) = abandoned.pop() else { break };
            let refused = |member: &mut Member, io: &mut Io<'_>| {
                member.written(number, WriteResult::Refused, io);
            };
            actions = inner.input(refused).1;
            self.publish(&mut inner);
        }
        drop(inner);
        outside.into_iter().for_each(|action| self.carry_out(action));
        done
    }

    fn carry_out(&self, action: Action) {
        match action {
            Action::Send { to, envelope } => self.send(to, &envelope),
            // The keeper has ended with the process if these fail.
            Action::ReadMap { id } => drop(self.jobs.unbounded_send(DatabaseJob::ReadMap { id })),
            Action::Transact { id, map } => {
                drop(self.jobs.unbounded_send(DatabaseJob::Transact { id, map }));
            }
            Action::ReadRow { .. } | Action::Answer { .. } => {
                unreachable!("rows are read beside the member")
            }
            Action::SendWrite { .. } | Action::Acknowledge { .. } | Action::Fail { .. } => {
                unreachable!("told under the lock")
            }
        }
    }

    /// A message that changes nothing here, with what every message says of its sender.
    pub(super) fn envelope(&self, message: Message) -> Envelope {
        self.inner.lock().member.envelope(message)
    }

    /// Puts in force what the member may serve now.
    fn publish(&self, inner: &mut Locked) {
        let member = &inner.member;
        let serves = member.serves();
        if inner.compared != (serves.0, inner.generation) {
            inner.compared = (serves.0, inner.generation);
            let agrees = member.agreement() == Agreement::Same;
            self.cache.agree(agrees.then_some(inner.generation));
        }
        if inner.served != serves {
            inner.served = serves;
            self.cache.share(self.config.shards).set(&member.shards());
            *self.map.write() = member.map().cloned();
        }
        // After the shards: a lease that comes back with a newer map must not vouch for what the
        // map has taken.
        if !self.closed.load(Ordering::Acquire) {
            self.cache.lease().set(member.lease_end() / 1_000);
        }
    }

    /// A message of another instance.
    pub fn receive(&self, envelope: Envelope) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        match envelope.message {
            Message::Found { to, number, answer } => {
                self.heard(envelope.from, (to, number), PeerAnswer::Found(answer));
            }
            Message::Pulled { to, number, cached } => {
                self.heard(envelope.from, (to, number), PeerAnswer::Pulled(cached));
            }
            _ => {
                let is_to_us = |to: Incarnation| to == self.life;
                if matches!(envelope.message, Message::Pong { to, .. } if is_to_us(to))
                    && let Some(transport) = self.transport()
                {
                    transport.probe_answered(envelope.from);
                }
                self.with(|member, io| member.receive(envelope, io));
            }
        }
    }

    /// Whether a row of this token that is missed may be filled now, and whether weakly: it may
    /// miss writes of the shard's last owner. `None`: it may not.
    pub fn may_fill(&self, token: i64) -> Option<bool> {
        let inner = self.inner.lock();
        inner.member.fill_terms(token, now()).map(|terms| terms.weak)
    }

    /// Whether a row of this token may be found without the database; see [`Member::carried`].
    pub fn carried(&self, token: i64) -> Option<Carried> {
        let inner = self.inner.lock();
        inner.member.carried(token, now())
    }

    /// Whether a row of an earlier epoch counts still; see [`Member::counts_still`].
    pub fn counts_still(&self, row: OlderRow) -> bool {
        self.inner.lock().member.counts_still(row)
    }

    /// Rows were forgotten, and not for a write that went through the ring.
    pub fn distrust_older(&self) {
        self.inner.lock().member.distrust_older();
    }

    /// See [`Member::doubt_map`].
    pub fn doubt_map(&self, is_gone: bool) {
        self.with(|member, io| member.doubt_map(is_gone, io));
    }

    /// Fills may miss writes for a while, and not for a write that went through the ring.
    pub fn weaken(&self) {
        self.inner.lock().member.weaken(now());
    }

    /// A client wants to write; what becomes of it comes through the receiver.
    pub(super) fn begin_write(
        &self,
        scopes: Vec<afterglow_ring::Scope>,
        detail: afterglow_ring::Detail,
    ) -> (u64, mpsc::UnboundedReceiver<WriteEvent>) {
        let (events, heard) = mpsc::unbounded();
        let mut inner = self.inner.lock();
        inner.next_client += 1;
        let client = inner.next_client;
        inner.clients.insert(client, events);
        self.with_locked(inner, |member, io| member.write(client, scopes, detail, io));
        (client, heard)
    }

    /// Refuses the writes that have waited for their permits for so long. Whom they have asked
    /// hears of it.
    pub fn refuse_waiting(&self, longer_than: Time) {
        self.with(|member, io| member.refuse_waiting(longer_than, io));
    }

    /// Nobody waits for that write any more.
    pub(super) fn forget_write(&self, client: u64) {
        self.inner.lock().clients.remove(&client);
    }
}

impl Locked {
    fn input<T>(&mut self, act: impl FnOnce(&mut Member, &mut Io<'_>) -> T) -> (T, Vec<Action>) {
        let mut random = random;
        let mut io =
            Io { now: now(), rows: &mut self.rows, random: &mut random, actions: Vec::new() };
        let done = act(&mut self.member, &mut io);
        let actions = io.actions;
        // Before anybody hears that the write is granted.
        if self.rows.has_dropped_more() {
            self.member.distrust_older();
        }
        (done, actions)
    }

    fn tell(&mut self, client: u64, event: WriteEvent) -> bool {
        self.clients.get(&client).is_some_and(|events| events.unbounded_send(event).is_ok())
    }
}
