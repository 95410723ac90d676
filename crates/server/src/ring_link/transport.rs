//! What callers see of the links.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_ring::MemberId;
use parking_lot::Mutex;

use super::config::{Receiver, TransportConfig, TransportError, Tuning};
use super::dial::{self, Dialer};
use super::handshake::MAX_RING;
use super::lanes::{MessageKind, Waiting};
use super::listen;
use super::peer::PeerState;
use super::registry::Registry;
use super::request::OpenRequest;
use crate::metrics::{Metrics, RingLinkMetrics};
use crate::reactor::{Bound, Listener, Reactors};

/// The links of this instance. Any thread may use it; nothing of it blocks but
/// [`Transport::start`] and [`Transport::wait_stopped`].
pub struct Transport {
    registry: Arc<Registry>,
    listener: Listener,
    reactors: Reactors,
    dialers: Mutex<Dialers>,
}

#[derive(Default)]
struct Dialers {
    of: HashMap<MemberId, Dialer>,
    /// The reactor of the next one.
    next: usize,
}

impl Transport {
    /// Listens. Messages may come before this has returned.
    ///
    /// # Errors
    /// When the address cannot be bound, or the ring has no good name.
    pub fn start(
        config: TransportConfig,
        reactors: &Reactors,
        receiver: Arc<dyn Receiver>,
        metrics: &Metrics,
    ) -> Result<Self, TransportError> {
        Self::start_with(config, Tuning::default(), reactors, receiver, metrics)
    }

    /// As [`Transport::start`], with other limits.
    ///
    /// # Errors
    /// As [`Transport::start`].
    pub fn start_with(
        config: TransportConfig,
        tuning: Tuning,
        reactors: &Reactors,
        receiver: Arc<dyn Receiver>,
        metrics: &Metrics,
    ) -> Result<Self, TransportError> {
        let bound = Bound::tcp(config.listen)?;
        Self::open(bound, config, tuning, reactors, receiver, metrics)
    }

    /// As [`Transport::start`], on an address that is bound already.
    ///
    /// # Errors
    /// As [`Transport::start`].
    pub fn start_on(
        bound: Bound,
        config: TransportConfig,
        reactors: &Reactors,
        receiver: Arc<dyn Receiver>,
        metrics: &Metrics,
    ) -> Result<Self, TransportError> {
        Self::open(bound, config, Tuning::default(), reactors, receiver, metrics)
    }

    fn open(
        bound: Bound,
        config: TransportConfig,
        tuning: Tuning,
        reactors: &Reactors,
        receiver: Arc<dyn Receiver>,
        metrics: &Metrics,
    ) -> Result<Self, TransportError> {
        let length = config.ring.len();
        if !(1..=MAX_RING).contains(&length) {
            return Err(TransportError::Name(length));
        }
        let counts = Arc::<RingLinkMetrics>::default();
        let registry = Arc::new(Registry::new(config, tuning, receiver, counts.clone()));
        metrics.add_source(move |out| counts.expose(out));
        let served = registry.clone();
        let listener = Listener::start_on(reactors, bound, move |stream, peer, guard| {
            listen::serve(served.clone(), stream, peer, guard)
        });
        let advertised = &registry.config.address;
        tracing::info!(address = %listener.address(), advertised, ring = registry.config.ring, "other instances of the ring may connect");
        Ok(Self { registry, listener, reactors: reactors.clone(), dialers: Mutex::default() })
    }

    /// Where it listens: the address asked for, with the port that the system chose in place of 0.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Whom to keep links to, and where: `host:port`. A peer that is new or has another address is
    /// dialled at once. Links that were dialled to others are closed; those that others have
    /// dialled stay. This instance itself is left out.
    pub fn set_peers(&self, peers: Vec<(MemberId, String)>) {
        let ours = self.registry.config.hello.member;
        let peers: HashMap<_, _> = peers.into_iter().filter(|(peer, _)| *peer != ours).collect();
        let mut dialers = self.dialers.lock();
        if self.registry.is_stopped() {
            return;
        }
        self.registry.want(&peers);
        dialers.of.retain(|peer, dialer| peers.get(peer) == Some(&dialer.address));
        for (peer, address) in peers {
            if dialers.of.contains_key(&peer) {
                continue;
            }
            let links = self.reactors.count().min(self.registry.tuning.dialled);
            let (dialer, dropped) = Dialer::new(address.clone(), links);
            dialers.of.insert(peer, dialer);
            for dropped in dropped {
                let (registry, address) = (self.registry.clone(), address.clone());
                let keep = move || dial::keep(registry, peer, address, dropped);
                self.reactors.spawn_on(dialers.next, keep);
                dialers.next = (dialers.next + 1) % self.reactors.count();
            }
        }
    }

    /// Queues a message, from any thread. False: there is no link to that member, too much waits
    /// for it, the message has more than 8 MiB, or it is a [`MessageKind::Request`] and there is no
    /// credit; it is dropped then and counted. True: it is sent unless the link ends before.
    pub fn send(&self, to: MemberId, kind: MessageKind, bytes: Vec<u8>) -> bool {
        self.registry.send(to, Waiting::new(kind, bytes)).is_ok()
    }

    /// As [`Transport::send`], for what answers a request. The credit of that goes back once the
    /// answer has left the queue, or its link has ended.
    ///
    /// # Errors
    /// The answer is dropped, and the request may be answered in another way.
    pub fn answer(
        &self,
        to: MemberId,
        kind: MessageKind,
        bytes: Vec<u8>,
        request: Option<OpenRequest>,
    ) -> Result<(), Option<OpenRequest>> {
        self.registry.send(to, Waiting { kind, bytes, request })
    }

    /// A peer has answered a [`MessageKind::Probe`].
    pub fn probe_answered(&self, by: MemberId) {
        self.registry.probe_answered(by);
    }

    /// All peers that are dialled or have a link, by their ids.
    pub fn peers(&self) -> Vec<PeerState> {
        self.registry.peers()
    }

    /// Links that are open now.
    pub fn open_links(&self) -> usize {
        self.registry.open_links()
    }

    #[cfg(test)]
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Listens and dials no more. Links end once what waits on them is written.
    pub fn stop(&self) {
        self.listener.stop();
        self.registry.stop();
    }

    /// After [`Transport::stop`]: waits for the last link to end. Blocks; not to be called on a
    /// reactor. False when the timeout came first.
    pub fn wait_stopped(&self, timeout: Duration) -> bool {
        self.registry.wait_for_none(Instant::now() + timeout)
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stop();
    }
}
