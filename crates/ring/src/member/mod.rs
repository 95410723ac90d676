//! One instance of the ring: composes the state machines and passes inputs to them.
//!
//! [`clock`] has what happens by itself as time passes, [`judge`] which transaction to begin,
//! [`adopt`] what a newer map changes, [`receive`] what messages do, [`serve`] what clients and the
//! database's rows do.

mod adopt;
mod clock;
mod judge;
mod receive;
mod serve;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::config::{Config, Time};
use crate::custody::{Custody, Durable};
use crate::handover::Handover;
use crate::identity::{Identity, Incarnation, MemberId};
use crate::io::{Action, Io};
use crate::join::Join;
use crate::lease::Lease;
use crate::lookup::Lookups;
use crate::map::{Map, Profile};
use crate::message::{Envelope, Message};
use crate::promise::Promises;
use crate::takeover::Takeover;
use crate::transaction::Transactions;
use crate::write::Writes;

/// One instance.
#[derive(Debug, Clone)]
pub struct Member {
    id: MemberId,
    /// This process.
    life: Incarnation,
    profile: Profile,
    config: Arc<Config>,
    /// The adopted map, `None` before the first was seen.
    map: Option<Arc<Map>>,
    hash: u64,
    /// Since when its members are the same.
    stable_since: Time,
    /// Who we are in it.
    me: Option<Identity>,
    /// The incarnations that this process has tried to become.
    tried: Vec<Incarnation>,
    leaving: bool,
    /// When shards were last handed over.
    handed: Time,
    /// Reads of the map.
    reads: MapReads,
    next_ping: Time,
    lease: Lease,
    promises: Promises,
    takeover: Takeover,
    join: Join,
    transactions: Transactions,
    handover: Handover,
    custody: Custody,
    writes: Writes,
    lookups: Lookups,
    /// Messages of this member to itself.
    local: VecDeque<Envelope>,
}

/// The reads of the map at SERIAL.
#[derive(Debug, Default, Clone)]
struct MapReads {
    next: u64,
    under_way: Option<(u64, Time)>,
    /// When to read again.
    due: Time,
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
            config,
            map: None,
            hash: 0,
            stable_since: io.now,
            me: None,
            tried: Vec::new(),
            leaving: false,
            handed: 0,
            reads: MapReads::default(),
            next_ping: io.now,
            lease: Lease::default(),
            promises: Promises::default(),
            takeover: Takeover::default(),
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

    /// When the lease ends, on this instance's clock; 0 for none.
    #[must_use]
    pub fn lease_end(&self) -> Time {
        self.lease.end()
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

    fn envelope(&self, message: Message) -> Envelope {
        Envelope {
            from: self.id,
            life: self.life,
            incarnation: self.me.map(|me| me.incarnation).unwrap_or_default(),
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

    /// Handles what this member has told itself, and sends what waits.
    fn settle(&mut self, io: &mut Io<'_>) {
        loop {
            let gets = self.lookups.send(io.now);
            self.send_all(gets, io);
            let Some(envelope) = self.local.pop_front() else { return };
            self.handle(envelope, io);
        }
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

    /// Moves the version on, as somebody else's change of the map does.
    pub fn move_on(&mut self, io: &mut Io<'_>) {
        let Some(map) = self.map.clone().filter(|_| self.active_me().is_some()) else { return };
        if !self.transactions.is_busy() {
            let next = Arc::new(map.next());
            let id = self.transactions.begin(next.clone(), io.now);
            io.actions.push(Action::Transact { id, map: next });
        }
    }

    /// For the oracles: when shards were last handed over.
    pub fn handed(&self) -> Time {
        self.handed
    }
}
