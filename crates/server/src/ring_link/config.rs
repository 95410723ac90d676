//! What a transport needs to know, and its limits.

use std::net::SocketAddr;
use std::time::Duration;

use afterglow_ring::{Hello, MemberId};

use super::request::OpenRequest;
use super::secret::Secrets;
use crate::reactor::ListenError;

/// What a transport needs to know.
#[derive(Debug, Clone)]
pub struct TransportConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// What all members share.
    pub secrets: Secrets,
    /// What this instance says of itself to members.
    pub hello: Hello,
    /// Where others reach this instance, as the map has it.
    pub address: String,
    /// The ring's name.
    pub ring: String,
}

/// Who is given what comes.
pub trait Receiver: Send + Sync + 'static {
    /// A message of a peer, on the reactor that owns its link. Must not block. A
    /// [`MessageKind::Request`](super::MessageKind::Request) has its request, for
    /// [`Transport::answer`](super::Transport::answer). Where that is dropped its credit goes back
    /// without an answer.
    fn message(&self, from: MemberId, bytes: &[u8], request: Option<OpenRequest>);

    /// The first link to that peer has come up, or the last has gone down. On any thread; calls
    /// come one after the other. Must neither block nor stop the transport.
    fn link(&self, peer: MemberId, up: bool);

    /// A peer that was dialled has another secret. On any thread; must not block.
    fn refused(&self, peer: MemberId);
}

/// Why a transport cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address cannot be bound.
    #[error("the ring's links: {0}")]
    Listen(#[from] ListenError),
    /// The ring's name.
    #[error("the ring's name has {0} bytes: give it one of 1 to 255 bytes")]
    Name(usize),
}

/// Limits and times of links. The default is what instances use.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// How long the system may take to connect, and each side to finish the handshake.
    pub handshake: Duration,
    /// A link on which nothing comes for so long is closed.
    pub silence: Duration,
    /// A link that takes nothing of what waits for so long is closed.
    pub stall: Duration,
    /// A link on which nothing is sent for so long sends a sign of life.
    pub alive: Duration,
    /// The wait after a first failed attempt to connect, doubled with every further one.
    pub first_backoff: Duration,
    /// The longest.
    pub last_backoff: Duration,
    /// Links that this instance dials to each peer, from different reactors; at most one from each.
    pub dialled: usize,
    /// Messages that may wait in each lane of one link.
    pub queue_messages: usize,
    /// What may wait for one peer in each lane, in bytes, on all its links together.
    pub queue_bytes: usize,
    /// Connections that may be there without having proven the secret.
    pub unproven: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            silence: Duration::from_secs(5),
            stall: Duration::from_secs(5),
            alive: Duration::from_millis(500),
            first_backoff: Duration::from_millis(50),
            last_backoff: Duration::from_secs(1),
            dialled: 4,
            queue_messages: 64 * 1024,
            queue_bytes: 32 << 20,
            unproven: 64,
        }
    }
}

/// Longest payload of a frame once both sides have proven the secret.
pub const MAX_PAYLOAD: usize = 8 << 20;
