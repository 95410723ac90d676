//! Puts a ring together at start.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use afterglow_engine::device::area::boot_id;
use afterglow_ring::{Config, Credit, Envelope, Hello, MemberId, Profile};
use afterglow_rowcache::write_scope::WriteScope;
use futures_channel::mpsc;
use uuid::Uuid;

use super::core::{DatabaseJob, Ring, member_id};
use super::foreigners::Foreigners;
use super::kept::KeptFile;
use super::late_fills::LateFills;
use super::rows::Newer;
use super::serve::{OwnLogin, Owner};
use super::settings::settings_of;
use crate::config::LivePolicies;
use crate::frontend::cql::CqlShared;
use crate::frontend::cql::cached::state::CachedState;
use crate::reactor::Bound;
use crate::ring_link::{
    OpenRequest, Receiver, Secrets, Transport, TransportConfig, TransportError,
};

/// The versions of the protocol that this build speaks.
const VERSIONS: (u16, u16) = (1, 1);
/// What another instance may ask at once.
const WINDOW: Credit = Credit { requests: 4_096, bytes: 8 << 20 };

/// What an instance needs to know of its ring.
#[derive(Clone)]
pub struct RingConfig {
    /// Where other instances reach it.
    pub listen: SocketAddr,
    /// The address that other instances are told, `HOST:PORT`.
    pub advertised: String,
    /// What all members know.
    pub secrets: Secrets,
    /// The ring's name: there is one for each data centre and name.
    pub name: String,
    /// Its part of the shards, beside the weights of others.
    pub weight: u32,
    /// Its failure domain.
    pub zone: String,
    /// The durations of the protocol; all members have the same.
    pub protocol: Config,
}

impl RingConfig {
    /// The protocol's durations, where a write of unknown outcome may still be applied for `hold`.
    pub fn protocol(hold: Duration) -> Config {
        Config { hold: hold.as_micros() as u64, weak_fills: true, ..Config::default() }
    }
}

/// A ring that is put together and not yet kept.
pub struct OpenRing {
    /// The member.
    pub ring: Arc<Ring>,
    /// What it asks of the database.
    pub jobs: mpsc::UnboundedReceiver<DatabaseJob>,
    /// What a restart needs to know.
    pub kept: KeptFile,
    /// Its name and links.
    pub config: RingConfig,
}

impl OpenRing {
    /// Starts the member. Its links are opened by [`OpenRing::connect`].
    pub fn start(
        config: RingConfig,
        data_dir: &Path,
        instance: Uuid,
        (policies, front_end): (&LivePolicies, &Arc<CqlShared>),
        shared: &Arc<CachedState>,
    ) -> OpenRing {
        // A boot that has no name is another one: nothing that was kept is believed.
        let boot = boot_id().map_or_else(|_| Uuid::new_v4(), |id| Uuid::from_bytes(id.0));
        let (kept, durable) = KeptFile::open(data_dir, boot);
        let (jobs, asked) = mpsc::unbounded();
        let (generation, policies) = policies.current();
        let hold = Duration::from_micros(config.protocol.hold);
        let profile = Profile {
            address: config.advertised.clone(),
            cql_address: front_end.advertised().to_string(),
            host_id: instance.as_u128(),
            protocol: VERSIONS,
            weight: config.weight,
            zone: config.zone.clone(),
            settings: settings_of(&policies, hold),
        };
        // Weak, for they hold the ring. A write that comes after their end drops everything.
        let of = (Arc::downgrade(front_end), Arc::downgrade(shared));
        let newer: Newer = Box::new(move |scope| match of.0.upgrade().zip(of.1.upgrade()) {
            Some((front_end, shared)) => scope.of_newer(&*shared.newest.of(&front_end.schema)),
            None => WriteScope::everything(),
        });
        let of_cache = (shared.cache.clone(), newer);
        let me = member_id(instance);
        let protocol = Arc::new(config.protocol.clone());
        let ring = Ring::new(me, profile, protocol, durable, of_cache, jobs, generation);
        OpenRing { ring, jobs: asked, kept, config }
    }

    /// Opens the links.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn connect(
        &self,
        bound: Bound,
        front_end: &Arc<CqlShared>,
        shared: &Arc<CachedState>,
    ) -> Result<(), TransportError> {
        let RingConfig { listen, advertised, secrets, name, .. } = self.config.clone();
        let hello = Hello {
            member: self.ring.me(),
            life: self.ring.life(),
            versions: VERSIONS,
            shards: self.ring.config().shards as u32,
            window: WINDOW,
        };
        let config = TransportConfig { listen, secrets, hello, address: advertised, ring: name };
        let receiver = Arc::new(Messages {
            front_end: Arc::downgrade(front_end),
            shared: Arc::downgrade(shared),
            ring: Arc::downgrade(&self.ring),
            login: Arc::default(),
            late_fills: Arc::default(),
            foreigners: Foreigners::default(),
        });
        let metrics = &front_end.config.metrics;
        let transport = Transport::start_on(bound, config, &front_end.reactors, receiver, metrics)?;
        self.ring.set_transport(transport);
        Ok(())
    }
}

/// What comes over the links. Weak, for the ring holds the links, and they this.
struct Messages {
    front_end: Weak<CqlShared>,
    shared: Weak<CachedState>,
    ring: Weak<Ring>,
    login: Arc<OwnLogin>,
    late_fills: Arc<LateFills>,
    foreigners: Foreigners,
}

impl Receiver for Messages {
    /// What ends early drops the request, and the asker has its credit back.
    fn message(&self, from: MemberId, bytes: &[u8], request: Option<OpenRequest>) {
        let Some(owner) = self.owner() else { return };
        let envelope = match Envelope::decode(bytes) {
            Ok(envelope) if envelope.from == from => envelope,
            Ok(_) => return tracing::warn!(?from, "a message in another member's name is ignored"),
            // A kind that a newer version knows, or a fault: what it was for is asked again.
            Err(error) => return tracing::debug!(?from, %error, "a message is not understood"),
        };
        // The member does not hear them either.
        let is_from_us = owner.ring.is_from_us(&envelope);
        if !is_from_us && owner.ring.is_of_another_ring(&envelope) {
            self.foreigners.note(&owner.ring, from);
        }
        match envelope.message {
            afterglow_ring::Message::Get { .. } | afterglow_ring::Message::Pull { .. }
                if !is_from_us =>
            {
                // The asker asks the database.
            }
            afterglow_ring::Message::Get { wanted } => {
                asked(owner, (from, envelope.life), wanted, request);
            }
            afterglow_ring::Message::Pull { number, key } => {
                pulled(owner, (from, envelope.life, number), key, request);
            }
            _ => receive(&owner, envelope),
        }
    }

    fn link(&self, peer: MemberId, up: bool) {
        let state = if up { "up" } else { "down" };
        tracing::info!(peer = format_args!("{:016x}", peer.0), "a link of the ring is {state}");
    }

    fn refused(&self, _peer: MemberId) {
        if let Some(ring) = self.ring.upgrade() {
            ring.refused();
        }
    }
}

impl Messages {
    fn owner(&self) -> Option<Owner> {
        Some(Owner {
            front_end: self.front_end.upgrade()?,
            shared: self.shared.upgrade()?,
            ring: self.ring.upgrade()?,
            login: self.login.clone(),
            late_fills: self.late_fills.clone(),
        })
    }
}

/// A message for the member. A write waits while the journal has no room, as clients' do.
fn receive(owner: &Owner, envelope: Envelope) {
    use afterglow_ring::Message::{Begin, Drop};
    let full = matches!(envelope.message, Begin { .. } | Drop { .. })
        .then(|| owner.shared.cache.backpressure())
        .flatten();
    let Some(backpressure) = full else { return owner.ring.receive(envelope) };
    let ring = owner.ring.clone();
    compio::runtime::spawn(async move {
        backpressure.await;
        ring.receive(envelope);
    })
    .detach();
}

/// The new owner of a shard wants a row that we may have of it.
fn pulled(
    owner: Owner,
    (from, life, number): (MemberId, afterglow_ring::Incarnation, u64),
    key: afterglow_ring::RowKey,
    request: Option<OpenRequest>,
) {
    compio::runtime::spawn(async move {
        let cached = owner.pulled(&key).await;
        let pulled = afterglow_ring::Message::Pulled { to: life, number, cached };
        owner.ring.answer(from, pulled, request);
    })
    .detach();
}

/// Another instance wants rows.
fn asked(
    owner: Owner,
    (from, life): (MemberId, afterglow_ring::Incarnation),
    wanted: Vec<(u64, afterglow_ring::RowKey)>,
    mut request: Option<OpenRequest>,
) {
    compio::runtime::spawn(async move {
        let mut left = wanted.len();
        for (number, key) in wanted {
            let answer = owner.answer(&key).await;
            let found = afterglow_ring::Message::Found { to: life, number, answer };
            left -= 1;
            // The last answer gives the credit back.
            let request = request.take_if(|_| left == 0);
            owner.ring.answer(from, found, request);
        }
    })
    .detach();
}
