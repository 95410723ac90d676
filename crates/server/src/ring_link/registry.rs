//! Who has links. All threads share it.
//!
//! Locks, in the order in which they are taken: `announcing`, `records`, `links`, a link's own.
//! The receiver is called under `announcing` alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use afterglow_ring::MemberId;
use parking_lot::{Condvar, Mutex, RwLock};

use super::complaints::Complaints;
use super::config::{MAX_PAYLOAD, Receiver, TransportConfig, Tuning};
use super::crowd::Crowd;
use super::fault::LinkFault;
use super::lanes::{MessageKind, Waiting};
use super::live::LiveLink;
use super::peer::{PeerRecord, PeerState};
use super::request::OpenRequest;
use crate::metrics::{LinkDrop, RingLinkMetrics};
use crate::reactor::wake_in_drop;

/// Links that one member may have, for each that a side dials; a further one replaces the oldest.
/// Two are usual, as both sides dial. A member that restarts has more until the old ones are seen
/// to be dead.
const LINKS_PER_DIALLED: usize = 4;

/// All links and peers.
pub struct Registry {
    /// What this instance is.
    pub config: TransportConfig,
    /// Limits and times.
    pub tuning: Tuning,
    /// Who is given messages.
    pub receiver: Arc<dyn Receiver>,
    /// Where to count.
    pub metrics: Arc<RingLinkMetrics>,
    complaints: Complaints,
    /// Of members, at the addresses that we dial. Strangers take no place of theirs.
    of_members: Complaints,
    announcing: Mutex<()>,
    records: Mutex<HashMap<MemberId, Arc<PeerRecord>>>,
    /// The links of each member, the newest last; no member has an empty list.
    links: RwLock<HashMap<MemberId, Vec<Arc<LiveLink>>>>,
    /// Somebody waits here for the last link to end.
    ended: (Mutex<()>, Condvar),
    stopped: AtomicBool,
    unproven: Crowd,
}

impl Registry {
    /// Without any link.
    pub fn new(
        config: TransportConfig,
        tuning: Tuning,
        receiver: Arc<dyn Receiver>,
        metrics: Arc<RingLinkMetrics>,
    ) -> Self {
        Self {
            config,
            tuning,
            receiver,
            metrics,
            complaints: Complaints::default(),
            of_members: Complaints::default(),
            announcing: Mutex::default(),
            records: Mutex::default(),
            links: RwLock::default(),
            ended: Default::default(),
            stopped: AtomicBool::new(false),
            unproven: Crowd::default(),
        }
    }

    /// Sends a message by the first link that takes it; see [`Registry::in_order`].
    ///
    /// # Errors
    /// None takes it. What it answers is not answered yet.
    pub fn send(&self, to: MemberId, message: Waiting) -> Result<(), Option<OpenRequest>> {
        let refused = match message.bytes.len() {
            0..=MAX_PAYLOAD => self.offer(to, message).err(),
            _ => Some((LinkDrop::TooLong, message)),
        };
        let Some((why, message)) = refused else { return Ok(()) };
        self.metrics.dropped.of(why).inc();
        Err(message.request)
    }

    fn offer(&self, to: MemberId, mut message: Waiting) -> Result<(), (LinkDrop, Waiting)> {
        let links = self.links.read();
        let Some((links, newest)) = links.get(&to).and_then(|links| Some((links, links.last()?)))
        else {
            return Err((LinkDrop::NoLink, message));
        };
        let order = match message.kind {
            MessageKind::Probe => self.probed(links, newest.record.probes.next()),
            _ => self.in_order(links, LiveLink::is_left).0,
        };
        let mut why = LinkDrop::NoLink;
        for link in order {
            match link.offer(message) {
                Ok(()) => return Ok(()),
                Err((reason, back)) => {
                    message = back;
                    if why == LinkDrop::NoLink {
                        why = reason;
                    }
                }
            }
        }
        if why != LinkDrop::NoLink {
            newest.record.refused.inc();
        }
        Err((why, message))
    }

    /// In which order a message tries the links of a peer, and how many of the first are equal but
    /// for how near they are. Last come those on which signs of life are missing, before them those
    /// to another process of the peer than the newest link's, and before them those that `is_left`.
    /// Among the others the nearest to this thread comes first, then the newest.
    fn in_order<'a>(
        &self,
        links: &'a [Arc<LiveLink>],
        is_left: impl Fn(&LiveLink) -> bool,
    ) -> (Vec<&'a LiveLink>, usize) {
        let mut order: Vec<_> = links.iter().rev().map(|link| &**link).collect();
        let [newest, _, ..] = order[..] else { return (order, 1) };
        let doubtful = |link: &LiveLink| link.silence() > 3 * self.tuning.alive;
        let standing = |link: &LiveLink| (doubtful(link), link.life != newest.life, is_left(link));
        order.sort_by_cached_key(|link| (standing(link), link.home.distance()));
        let first = standing(order[0]);
        // Time goes on, and the first may be doubtful by now.
        let equal = order.iter().take_while(|link| standing(link) == first).count().max(1);
        (order, equal)
    }

    /// In which order a probe tries them: so many of those that are equal are tried after the
    /// others of them. A link whose probe was not answered is left by other messages too, until
    /// something comes by it: each permit asked for by a dead link would count as one that is not
    /// granted.
    fn probed<'a>(
        &self,
        links: &'a [Arc<LiveLink>],
        (turn, leaves): (usize, bool),
    ) -> Vec<&'a LiveLink> {
        let (mut order, equal) = self.in_order(links, |_| false);
        order[..equal].rotate_left(turn % equal);
        if leaves && equal > 1 {
            order[equal - 1].leave();
        }
        order
    }

    /// A peer has answered a probe.
    pub fn probe_answered(&self, by: MemberId) {
        let links = self.links.read();
        if let Some(link) = links.get(&by).and_then(|links| links.last()) {
            link.record.probes.answered();
        }
    }

    /// Where a peer is counted, at that address if none is known.
    pub fn record(&self, peer: MemberId, address: &str) -> Arc<PeerRecord> {
        let mut records = self.records.lock();
        let record = records.entry(peer).or_default().clone();
        let mut known = record.address.lock();
        if known.is_empty() {
            address.clone_into(&mut known);
        }
        drop(known);
        record
    }

    /// These are dialled from now on, and no others.
    pub fn want(&self, peers: &HashMap<MemberId, String>) {
        let mut records = self.records.lock();
        for (peer, address) in peers {
            let record = records.entry(*peer).or_default();
            record.wanted.store(true, Ordering::Relaxed);
            address.clone_into(&mut record.address.lock());
        }
        let links = self.links.read();
        records.retain(|peer, record| {
            let wanted = peers.contains_key(peer);
            record.wanted.store(wanted, Ordering::Relaxed);
            wanted || links.contains_key(peer)
        });
    }

    /// A link is open from now on, until the guard is dropped.
    ///
    /// # Errors
    /// [`LinkFault::Stopped`].
    pub fn register(self: &Arc<Self>, link: Arc<LiveLink>) -> Result<Registered, LinkFault> {
        let announcing = self.announcing.lock();
        if self.is_stopped() {
            return Err(LinkFault::Stopped);
        }
        let mut records = self.records.lock();
        // Another link of the peer may have ended since it was looked up.
        records.entry(link.peer).or_insert_with(|| link.record.clone());
        let mut links = self.links.write();
        let of_peer = links.entry(link.peer).or_default();
        let first = of_peer.is_empty();
        of_peer.push(link.clone());
        // A link that was replaced stays listed until its session has ended, so that the oldest may
        // have been told before: all but the newest are.
        let replaced = of_peer.len().saturating_sub(LINKS_PER_DIALLED * self.tuning.dialled);
        let replaced = of_peer[..replaced].to_vec();
        drop((links, records));
        replaced.iter().for_each(|link| link.end(LinkFault::Replaced));
        self.metrics.up.inc();
        self.metrics.opened.inc();
        let registered = Registered { registry: self.clone(), link, why: None };
        if first {
            self.receiver.link(registered.link.peer, true);
        }
        drop(announcing);
        Ok(registered)
    }

    fn unregister(&self, link: &Arc<LiveLink>, why: &LinkFault) {
        let lost = link.clear(why.clone());
        self.metrics.dropped.of(LinkDrop::LinkEnded).add(lost as u64);
        self.metrics.up.dec();
        self.metrics.ended.of(why.end_label()).inc();
        if why.is_noteworthy() {
            *link.record.last_error.lock() = Some(why.to_string());
        }
        let announcing = self.announcing.lock();
        let mut records = self.records.lock();
        let mut links = self.links.write();
        let Some(of_peer) = links.get_mut(&link.peer) else { return };
        of_peer.retain(|other| !Arc::ptr_eq(other, link));
        let last = of_peer.is_empty();
        if last {
            links.remove(&link.peer);
            if !link.record.wanted.load(Ordering::Relaxed) {
                records.remove(&link.peer);
            }
        }
        drop((links, records));
        if last {
            self.receiver.link(link.peer, false);
        }
        drop(announcing);
        let _waits = self.ended.0.lock();
        self.ended.1.notify_all();
    }

    /// Waits until no link is open; false when the deadline came first.
    pub fn wait_for_none(&self, deadline: Instant) -> bool {
        let mut waits = self.ended.0.lock();
        while self.open_links() > 0 {
            if self.ended.1.wait_until(&mut waits, deadline).timed_out() {
                return self.open_links() == 0;
            }
        }
        true
    }

    /// Ends all links once what waits is written, and lets no new ones come.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Whoever registers now either sees that or is seen.
        let announcing = self.announcing.lock();
        let links = self.links.read();
        links.values().flatten().for_each(|link| link.finish(LinkFault::Stopped));
        drop((links, announcing));
    }

    /// Whether [`Registry::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Links that are open.
    pub fn open_links(&self) -> usize {
        self.links.read().values().map(Vec::len).sum()
    }

    /// A link was not made; `wanted`: which member was dialled.
    pub fn failed(&self, wanted: Option<MemberId>, place: &str, fault: &LinkFault) {
        if let Some(record) = wanted.and_then(|peer| self.records.lock().get(&peer).cloned())
            && fault.is_noteworthy()
        {
            *record.last_error.lock() = Some(fault.to_string());
        }
        if let (Some(peer), LinkFault::Secret) = (wanted, fault) {
            self.receiver.refused(peer);
        }
        self.metrics.failed.of(fault.handshake_label()).inc();
        // Whoever looks whether the port is open is no fault.
        if wanted.is_some() || !matches!(fault, LinkFault::Lost(_)) {
            self.complain(wanted.is_some(), place, fault);
        }
    }

    /// Logs a fault, once a minute for each place. `is_member`: it is one that we have dialled.
    pub fn complain(&self, is_member: bool, place: &str, fault: &LinkFault) {
        let complaints = if is_member { &self.of_members } else { &self.complaints };
        if !self.is_stopped() {
            complaints.log(place, fault);
        }
    }

    /// A place for a connection whose other side has not proven the secret; `None`: there are too
    /// many, see [`Crowd`].
    pub fn admit(self: &Arc<Self>, place: &str) -> Option<Unproven> {
        if !self.unproven.enter(place, self.tuning.unproven) {
            let crowd = self.metrics.unproven.get().try_into().unwrap_or(0);
            self.failed(None, place, &LinkFault::Crowded(crowd));
            return None;
        }
        self.metrics.unproven.inc();
        Some(Unproven { registry: self.clone(), place: place.to_owned() })
    }

    /// All peers as operators see them.
    pub fn peers(&self) -> Vec<PeerState> {
        let records = self.records.lock();
        let links = self.links.read();
        let state = |(id, record): (&MemberId, &Arc<PeerRecord>)| {
            let of_peer = links.get(id).map_or(&[][..], |links| links);
            PeerState {
                id: *id,
                address: record.address.lock().clone(),
                links: of_peer.len(),
                up_since: of_peer.last().map(|link| link.since),
                version: of_peer.last().map(|link| link.version),
                last_error: record.last_error.lock().clone(),
                messages_in: record.messages_in.get(),
                messages_out: record.messages_out.get(),
                bytes_in: record.bytes_in.get(),
                bytes_out: record.bytes_out.get(),
                refused: record.refused.get(),
            }
        };
        let mut peers: Vec<_> = records.iter().map(state).collect();
        peers.sort_by_key(|peer| peer.id);
        peers
    }
}

/// A connection whose other side has not proven the secret, for as long as this lives.
pub struct Unproven {
    registry: Arc<Registry>,
    place: String,
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.registry.unproven.leave(&self.place);
        self.registry.metrics.unproven.dec();
    }
}

/// A link that is open for as long as this lives.
pub struct Registered {
    registry: Arc<Registry>,
    /// The link.
    pub link: Arc<LiveLink>,
    /// Why it ends, if it does by itself.
    pub why: Option<LinkFault>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (registry, link) = (self.registry.clone(), self.link.clone());
        let why = self.why.take().unwrap_or_else(|| match std::thread::panicking() {
            true => LinkFault::Lost("a bug of this instance".to_owned()),
            false if registry.is_stopped() => LinkFault::Stopped,
            false => LinkFault::Unwanted,
        });
        // Whoever hears of it may wake a task.
        wake_in_drop(move || registry.unregister(&link, &why));
    }
}
