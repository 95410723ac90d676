//! What an operator is told of the ring.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use afterglow_ring::{Agreement, Difference, MemberEntry, Standing, differences};
use serde::{Deserialize, Serialize};

use super::clocks;
use super::core::Ring;
use super::notes::Note;
use super::report::{self, LeaseStatus, MoveStatus, RangeStatus, id_text};
use super::setup::OpenRing;
use super::source::now;
use crate::metrics::{RingFigures, RingMemberFigures};

/// The ring as one instance sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RingStatus {
    /// The ring's name.
    pub name: String,
    /// This instance, as in `members`.
    pub me: String,
    /// Version of the map that it has adopted; 0 before the first.
    pub version: u64,
    /// Milliseconds for which it may serve its shards, if nothing more is heard; 0: it may not.
    pub lease_ms: u64,
    /// How many milliseconds ago the database last showed this instance as a member: `None` for
    /// never. At 60 s its lease ends.
    #[serde(default)]
    pub confirmed_ms: Option<u64>,
    /// Whether its operator has had it leave. Once it owns nothing it is no member.
    #[serde(default)]
    pub leaving: bool,
    /// Whether it was leaving when it was started again: it is a member like others, until it is
    /// told to leave again.
    #[serde(default)]
    pub gave_up_leaving: bool,
    /// What was wrong when the database was last asked for the ring's map.
    #[serde(default)]
    pub trouble: Option<String>,
    /// Why the database refuses to change the map, if it does: nobody joins or leaves then, and
    /// nobody gets the rows of who dies.
    #[serde(default)]
    pub refusal: Option<String>,
    /// What the keyspace `afterglow` lacks of replicas in this data centre, and what mends it.
    #[serde(default)]
    pub lack: Option<String>,
    /// Why the ring has not the lease that `exclusive` tables need, if it has not.
    #[serde(default)]
    pub lease_trouble: Option<String>,
    /// What the database's transactions promise less than the ring needs, and what mends it.
    #[serde(default)]
    pub transactions: Option<String>,
    /// What is wrong with the clock of this instance.
    #[serde(default)]
    pub own_clock: Option<String>,
    /// Shards of the ring.
    pub shards: usize,
    /// Shards that nobody owns.
    pub unowned: usize,
    /// In what this instance differs from the ring's eldest member. While it does, reads through it
    /// pass the cache by.
    #[serde(default)]
    pub differs: Vec<DifferenceStatus>,
    /// All members.
    pub members: Vec<MemberStatus>,
    /// Shards that move or have moved a while ago, as far as this instance knows.
    #[serde(default)]
    pub moves: Vec<MoveStatus>,
    /// Who owns which tokens, in their order; empty where it was not asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangeStatus>,
}

/// A setting of this instance that is not the ring's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferenceStatus {
    /// Which.
    pub setting: String,
    /// What it is here.
    pub here: String,
    /// What it is in the ring.
    pub ring: String,
}

impl DifferenceStatus {
    fn of(difference: Difference) -> DifferenceStatus {
        let said = |value: Option<String>| value.unwrap_or_else(|| "not said".to_owned());
        let Difference { name, ours, theirs } = difference;
        DifferenceStatus { setting: name, here: said(ours), ring: said(theirs) }
    }
}

impl fmt::Display for DifferenceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is `{}` here and `{}` there", self.setting, self.here, self.ring)
    }
}

/// One member of the ring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its id, in hexadecimal digits.
    pub id: String,
    /// Where other instances reach it.
    pub address: String,
    /// Its failure domain.
    pub zone: String,
    /// Its part of the shards.
    pub weight: u32,
    /// `active`; `leaving`: its operator has it leave; or `accused`: it was silent, and its shards
    /// go to others.
    pub state: String,
    /// Shards that it owns.
    pub shards: usize,
    /// In how many ranges of tokens these are.
    #[serde(default)]
    pub ranges: usize,
    /// What this instance knows of its lease.
    #[serde(default)]
    pub lease: LeaseStatus,
    /// Whether there is a link to it. None for this instance.
    pub linked: Option<bool>,
    /// Why no link could be made to its address when that was last tried, where there is none.
    #[serde(default)]
    pub link_error: Option<String>,
    /// Settings in which it differs from the ring's eldest member.
    #[serde(default)]
    pub differs: Vec<String>,
    /// Whether its clock does not run like those of others, as far as this instance can tell.
    #[serde(default)]
    pub clock_drifts: bool,
}

/// The ring of a running instance, for its operator.
#[derive(Clone)]
pub struct RingHandle {
    ring: Arc<Ring>,
    name: String,
}

impl RingHandle {
    /// Of a ring that has been put together.
    pub(in crate::frontend::cql::cached) fn new(open: &OpenRing) -> RingHandle {
        RingHandle { ring: open.ring.clone(), name: open.config.name.clone() }
    }

    /// The ring as this instance sees it.
    pub fn status(&self) -> RingStatus {
        let mut status = self.ring.status(&self.name);
        self.ring.add_report(&mut status);
        status
    }

    /// The same, with all ranges of tokens.
    pub fn status_with_ranges(&self) -> RingStatus {
        let map = self.ring.map();
        RingStatus {
            ranges: map.map_or_else(Vec::new, |map| report::ranges(&map)),
            ..self.status()
        }
    }

    /// The same for pages and metrics: none once the ring has ended. It does not keep the ring.
    pub fn figures(&self) -> impl Fn() -> Option<RingFigures> + Send + Sync + use<> {
        let (ring, name) = (Arc::downgrade(&self.ring), self.name.clone());
        move || Some(ring.upgrade()?.status(&name).figures())
    }

    /// Hands all shards over to other members and leaves the ring; [`RingHandle::status`] says how
    /// far that is.
    pub fn leave(&self) {
        self.ring.with(|member, _| member.leave());
    }
}

impl RingStatus {
    /// How many shards this instance owns; `None` when it is no member.
    pub fn owned(&self) -> Option<usize> {
        self.members.iter().find(|member| member.id == self.me).map(|member| member.shards)
    }

    /// Whether its operator had it leave, and it is no member any more. Before it has read the map
    /// it may be one still.
    pub fn has_left(&self) -> bool {
        self.leaving && self.version > 0 && self.owned().is_none()
    }

    fn figures(self) -> RingFigures {
        let member = |member: MemberStatus| RingMemberFigures {
            id: member.id,
            address: member.address,
            zone: member.zone,
            state: member.state,
            shards: member.shards as u64,
            linked: member.linked,
            clock_drifts: member.clock_drifts,
        };
        RingFigures {
            left: self.has_left(),
            name: self.name,
            me: self.me,
            version: self.version,
            lease_seconds: self.lease_ms as f64 / 1e3,
            confirmed_seconds: self.confirmed_ms.map(|ms| ms as f64 / 1e3),
            shards: self.shards as u64,
            unowned: self.unowned as u64,
            settings_differ: !self.differs.is_empty(),
            own_clock_drifts: self.own_clock.is_some(),
            changes_refused: self.refusal.is_some(),
            members: self.members.into_iter().map(member).collect(),
        }
    }
}

impl Ring {
    /// The eldest member, where this instance has other settings than it; with all that differ.
    pub fn differences(&self) -> Option<(MemberEntry, Vec<DifferenceStatus>)> {
        let (agreement, ours) = self.agreement();
        let Agreement::Differs(eldest) = agreement else { return None };
        let eldest = self.map()?.entry(eldest)?.clone();
        let found = differences(&ours, &eldest.profile.settings);
        Some((eldest, found.into_iter().map(DifferenceStatus::of).collect()))
    }

    /// What is known now.
    fn status(&self, name: &str) -> RingStatus {
        let map = self.map();
        let links = self.transport().map(|transport| transport.peers()).unwrap_or_default();
        let of_ring = map.as_ref().and_then(|map| map.eldest());
        let of_ring = of_ring.map_or(&[][..], |eldest| &eldest.profile.settings);
        let (drifting, is_odd) = self.drifting();
        // Of two nobody can tell whose clock it is.
        let blames_itself = is_odd && drifting.len() > 1;
        let member = |entry: &MemberEntry| {
            let id = entry.identity.id;
            let link = links.iter().find(|link| link.id == id);
            let linked = link.is_some_and(|link| link.links > 0);
            let link_error = link.filter(|_| !linked).and_then(|link| link.last_error.clone());
            MemberStatus {
                id: id_text(id),
                address: entry.profile.address.clone(),
                zone: entry.profile.zone.clone(),
                weight: entry.profile.weight,
                state: match entry.standing {
                    Standing::Active if entry.leaving => "leaving".to_owned(),
                    Standing::Active => "active".to_owned(),
                    Standing::Accused => "accused".to_owned(),
                },
                shards: map.as_ref().map_or(0, |map| map.owned_by(id).count()),
                ranges: 0,
                lease: LeaseStatus::default(),
                linked: (id != self.me()).then_some(linked),
                link_error,
                clock_drifts: if blames_itself { id == self.me() } else { drifting.contains(&id) },
                differs: differences(&entry.profile.settings, of_ring)
                    .into_iter()
                    .map(|difference| difference.name)
                    .collect(),
            }
        };
        let members = map.iter().flat_map(|map| map.members.iter().map(member)).collect();
        let unowned = |map: &afterglow_ring::Map| {
            map.shards.iter().filter(|shard| shard.owner.is_none()).count()
        };
        let noted = |note| self.notes().get(note);
        RingStatus {
            name: name.to_owned(),
            me: id_text(self.me()),
            version: map.as_ref().map_or(0, |map| map.version),
            lease_ms: self.lease_end().saturating_sub(now()) / 1_000,
            confirmed_ms: self.since_confirmed().map(|time| time / 1_000),
            leaving: self.is_leaving(),
            gave_up_leaving: self.has_given_up_leaving(),
            trouble: self.trouble(),
            refusal: noted(Note::Refusal),
            lack: noted(Note::Lack),
            lease_trouble: noted(Note::Lease),
            transactions: noted(Note::Transactions),
            own_clock: is_odd.then(|| clocks::fault(&drifting, is_odd)).flatten(),
            shards: self.config().shards,
            unowned: map.as_ref().map_or(self.config().shards, |map| unowned(map)),
            differs: self.differences().map(|(_, all)| all).unwrap_or_default(),
            members,
            moves: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Adds leases, numbers of ranges and moves to what is known of the members.
    fn add_report(&self, status: &mut RingStatus) {
        let mut report = self.report();
        let mut counts = BTreeMap::new();
        if let Some(map) = self.map() {
            report.look_ahead(&map);
            counts = report::counts(&map);
        }
        status.moves = report.moves.iter().map(MoveStatus::of).collect();
        let leases: BTreeMap<_, _> =
            report.leases.iter().map(|lease| (id_text(lease.id), lease)).collect();
        let own = LeaseStatus {
            bound_ms: Some(status.lease_ms),
            database_ms: status.confirmed_ms,
            ..LeaseStatus::default()
        };
        for member in &mut status.members {
            member.ranges = counts.get(&member.id).copied().unwrap_or(0);
            member.lease = match leases.get(&member.id) {
                Some(lease) => LeaseStatus::of(lease),
                None if member.id == status.me => own.clone(),
                None => LeaseStatus::default(),
            };
        }
    }
}
