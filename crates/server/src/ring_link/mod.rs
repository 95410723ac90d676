//! Links between the instances of a ring: sockets, sealed with a secret that all members share.
//! It knows neither CQL nor the protocol of the ring. Whoever drives that gives it messages, and
//! is given those of others.
//!
//! ```text
//! initiator                                  responder
//!   magic, nonce I                ->
//!                                 <-           magic, nonce R
//!   proof I: its ring's name      ->           not ours: an empty frame, closed
//!                                 <-           proof R: its ring's name
//!                                 <-           HELLO
//!   HELLO                         ->
//!   messages, CREDIT, signs of life in both directions
//! ```
//!
//! # What protects a link
//!
//! * Keys come from the secret by HKDF-SHA256 (RFC 5869). Its salt is fixed, since nothing that
//!   an attacker chooses may be one (section 3.4). Its info has what a key is for, whose it is,
//!   both nonces, and for all that follows the proofs the ring's name.
//! * Proofs and frames are sealed with ChaCha20-Poly1305 (RFC 8439), an AEAD of RFC 5116. Each
//!   direction of each link has a key of its own, and counts: the nonce is that count, so it is
//!   never used twice (RFC 5116, section 3.1). A frame's length is its associated data.
//! * What is replayed on another link, sent back to its sender, left out, reordered, cut or changed
//!   has another key or another nonce. It does not open, and the link is closed.
//! * The initiator proves first. Who does not have the secret learns that a member of a ring
//!   listens, and nothing of it: name, id and versions are sealed, and a proof has always the same
//!   length.
//!
//! What it does not give:
//!
//! * Forward secrecy. Whoever records links and later gets the secret can read them.
//! * Guessing. Whoever sees a handshake, or answers at a member's address, can try secrets at
//!   leisure. So a secret must be random: `head -c 32 /dev/urandom | base64`.
//! * Persons. Members trust each other: whoever has the secret can be any member.
//! * Hiding of lengths and times.
//!
//! # Who does what
//!
//! | question | where |
//! |---|---|
//! | What may callers do? | `transport.rs` |
//! | What must be set? | `config.rs`, `secret.rs` |
//! | Who is there, which link does a message take? | `registry.rs`, `peer.rs`, `nearness.rs` |
//! | What waits to be sent, who may ask? | `live.rs`, `lanes.rs`, `request.rs` |
//! | How does a link begin? | `handshake.rs` (sans-io), `seal.rs` |
//! | How does it live and end? | `session.rs`, `write.rs`, `read.rs` |
//! | Who makes links? | `listen.rs`, `dial.rs`, `crowd.rs` |
//! | What are the bytes? | `inbox.rs`, `payload.rs` |
//! | Why is there no link? | `fault.rs`, `complaints.rs` |
//!
//! # Invariants
//!
//! 1. Messages of one lane of one link arrive in the order in which they were sent, each once, or
//!    the link is closed and what waited is counted as lost.
//! 2. What waits for a peer costs at most the limit of each lane, on all its links together. A link
//!    costs one batch, one frame that comes in, and one read besides, whatever the other side does.
//! 3. Messages of several links, and of the two lanes of one, come in any order. The ring needs
//!    none: its simulation delays each message by itself.
//! 4. What a lease or a write waits for waits for no read that waits: only for what is being
//!    written already, and for what the kernel holds. Each write takes from both lanes, so what
//!    reads wait for goes on too.
//! 5. Credit that a peer has used comes back to it once, when the answer has left the queue or
//!    there will be none. So no more answers wait than it has credit.
//! 6. A receiver hears that a peer is up before its first message, and that it is down after the
//!    last link to it has ended.

mod complaints;
mod config;
mod crowd;
mod dial;
mod fault;
mod handshake;
mod inbox;
mod lanes;
mod listen;
mod live;
mod nearness;
mod payload;
mod peer;
mod read;
mod registry;
mod request;
mod seal;
mod secret;
pub mod seldom;
mod session;
#[cfg(test)]
mod tests;
mod transport;
mod write;

pub use config::{MAX_PAYLOAD, Receiver, TransportConfig, TransportError, Tuning};
pub use fault::LinkFault;
pub use handshake::Handshake;
pub use inbox::Inbox;
pub use lanes::MessageKind;
pub use payload::Payload;
pub use peer::PeerState;
pub use request::OpenRequest;
pub use seal::{NONCE, Opener, Role, Sealed, Sealer};
pub use secret::{Secret, SecretError, Secrets};
pub use transport::Transport;
