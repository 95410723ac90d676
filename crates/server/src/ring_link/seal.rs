//! Keys of a link, and frames sealed with them.
//!
//! ```text
//! length u32, of what follows | payload, sealed | tag, 16 bytes
//! ```
//!
//! The length is the associated data of the seal. The nonce is the count of the direction's frames
//! before this one.

use ring_crypto::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};

use super::fault::LinkFault;
use super::secret::Secret;

/// The bytes of a length.
pub const LENGTH: usize = 4;
/// What a seal adds to a payload.
pub const TAG: usize = 16;

/// Bytes of a nonce of a handshake.
pub const NONCE: usize = 32;

/// Who a side of a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It has dialled.
    Initiator,
    /// It was dialled.
    Responder,
}

impl Role {
    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

static ALGORITHM: &aead::Algorithm = &aead::CHACHA20_POLY1305;

/// Both directions of a link.
#[derive(Debug)]
pub struct Sealed {
    /// Ours.
    pub sealer: Sealer,
    /// The other's.
    pub opener: Opener,
}

/// What the keys of a link are made from.
#[derive(Clone, Copy)]
pub(super) struct KeySource<'a> {
    pub(super) secret: &'a Secret,
    /// Of the initiator and of the responder.
    pub(super) nonces: (&'a [u8; NONCE], &'a [u8; NONCE]),
}

impl KeySource<'_> {
    /// The keys of one purpose. Every part of the info but the last has one length.
    pub(super) fn derive(&self, purpose: &[u8; 6], ring: &str, ours: Role) -> Sealed {
        let key = |role: Role| {
            let role: &[u8] = match role {
                Role::Initiator => b"I",
                Role::Responder => b"R",
            };
            let info = [purpose, role, self.nonces.0, self.nonces.1, ring.as_bytes()];
            let okm = self.secret.prk().expand(&info, ALGORITHM);
            LessSafeKey::new(UnboundKey::from(okm.expect("a key is shorter than 255 hashes")))
        };
        Sealed {
            sealer: Sealer { key: key(ours), next: 0 },
            opener: Opener { key: key(ours.other()), next: 0 },
        }
    }
}

/// Seals what goes out.
#[derive(Debug)]
pub struct Sealer {
    key: LessSafeKey,
    next: u64,
}

impl Sealer {
    /// Appends a frame whose payload `write` appends.
    pub fn seal(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend([0; LENGTH]);
        write(out);
        let length = u32::try_from(out.len() - start - LENGTH + TAG)
            .expect("a payload is far below 4 GiB")
            .to_le_bytes();
        out[start..start + LENGTH].copy_from_slice(&length);
        let (nonce, payload) = (count(&mut self.next), &mut out[start + LENGTH..]);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(length), payload)
            .expect("a payload is far below the limit of the cipher");
        out.extend(tag.as_ref());
    }
}

/// Opens what comes in.
#[derive(Debug)]
pub struct Opener {
    key: LessSafeKey,
    next: u64,
}

impl Opener {
    /// The payload of a frame, that is of `sealed` behind its length.
    ///
    /// # Errors
    /// [`LinkFault::Forged`]: it is not what the other side sent as its next frame.
    pub fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<&'a mut [u8], LinkFault> {
        let length = u32::try_from(sealed.len()).map_err(|_| LinkFault::Forged)?.to_le_bytes();
        let nonce = count(&mut self.next);
        self.key.open_in_place(nonce, Aad::from(length), sealed).map_err(|_| LinkFault::Forged)
    }
}

/// The next nonce. A link of a million frames a second lives for 500,000 years.
fn count(next: &mut u64) -> Nonce {
    let mut nonce = [0; aead::NONCE_LEN];
    nonce[aead::NONCE_LEN - 8..].copy_from_slice(&next.to_le_bytes());
    *next = next.checked_add(1).expect("fewer than 2^64 frames");
    Nonce::assume_unique_for_key(nonce)
}
