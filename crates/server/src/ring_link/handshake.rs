//! How a link begins, sans-io: bytes go in, bytes come out, in the end both sides have keys.
//!
//! ```text
//! opening = magic "aglring", format u8 = 1, nonce of 32 bytes
//! proof   = a frame: length of the ring's name u8, the name, zeros up to 256 bytes
//! ```
//!
//! A responder says nothing before it has an opening, and nothing of itself before the proof of the
//! initiator has opened. A proof that does not open is answered with an empty frame, so that the
//! other side can say what is wrong.

use std::sync::Arc;

use super::fault::LinkFault;
use super::inbox::Inbox;
use super::seal::{KeySource, NONCE, Role, Sealed, TAG};
use super::secret::{Secret, Secrets};

const MAGIC: &[u8; 7] = b"aglring";
const FORMAT: u8 = 1;
const OPENING: usize = MAGIC.len() + 1 + NONCE;
/// The payload of a proof.
const PROOF: usize = 256;
/// Longest name of a ring.
pub const MAX_RING: usize = PROOF - 1;
/// Longest frame before the other side has proven the secret.
pub const MAX_UNPROVEN: usize = 1024;

/// One side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    /// The first is shown by an initiator; a responder finds out which one the other has.
    secrets: Arc<[Secret]>,
    shared: usize,
    ring: String,
    role: Role,
    ours: [u8; NONCE],
    theirs: Option<[u8; NONCE]>,
}

impl Handshake {
    /// Begins one; `nonce` must be random and is never used again. The name of a ring has at most
    /// 255 bytes.
    pub fn new(secrets: &Secrets, ring: &str, role: Role, nonce: [u8; NONCE]) -> Self {
        let (secrets, ring) = (secrets.all(), ring.to_owned());
        Self { secrets, shared: 0, ring, role, ours: nonce, theirs: None }
    }

    /// Appends what is to be sent before anything has come.
    pub fn begin(&self, out: &mut Vec<u8>) {
        if self.role == Role::Initiator {
            self.put_opening(out);
        }
    }

    /// Takes what has come and appends what is to be sent. Gives the keys once the other side has
    /// proven that it has the secret and is of this ring.
    ///
    /// # Errors
    /// Says why there is no link; what is in `out` is still to be sent.
    pub fn advance(
        &mut self,
        inbox: &mut Inbox,
        out: &mut Vec<u8>,
    ) -> Result<Option<Sealed>, LinkFault> {
        let theirs = match self.theirs {
            Some(theirs) => theirs,
            None => match self.read_opening(inbox)? {
                None => return Ok(None),
                Some(theirs) => {
                    self.theirs = Some(theirs);
                    match self.role {
                        Role::Initiator => self.put_proof(&theirs, out),
                        Role::Responder => self.put_opening(out),
                    }
                    theirs
                }
            },
        };
        let Some(frame) = inbox.frame(MAX_UNPROVEN)? else { return Ok(None) };
        let Some(proof) = self.open(&theirs, frame) else {
            if self.role == Role::Responder {
                out.extend(0u32.to_le_bytes());
            }
            return Err(LinkFault::Secret);
        };
        let name = name(&proof)?.to_owned();
        if self.role == Role::Responder {
            self.put_proof(&theirs, out);
        }
        if name != self.ring {
            return Err(LinkFault::Ring(name, self.ring.clone()));
        }
        Ok(Some(self.keys(&theirs).derive(b"frames", &self.ring, self.role)))
    }

    /// The proof of the other side, and which of our secrets it has.
    fn open(&mut self, theirs: &[u8; NONCE], frame: &[u8]) -> Option<Vec<u8>> {
        let tried = match self.role {
            Role::Initiator => 0..1,
            Role::Responder => 0..self.secrets.len(),
        };
        for secret in tried.filter(|_| !frame.is_empty()) {
            self.shared = secret;
            let mut sealed = frame.to_vec();
            let mut opener = self.keys(theirs).derive(b"proofs", "", self.role).opener;
            if let Ok(proof) = opener.open(&mut sealed) {
                return Some(proof.to_vec());
            }
        }
        None
    }

    fn put_opening(&self, out: &mut Vec<u8>) {
        out.extend(MAGIC);
        out.push(FORMAT);
        out.extend(self.ours);
    }

    fn read_opening(&self, inbox: &mut Inbox) -> Result<Option<[u8; NONCE]>, LinkFault> {
        let there = inbox.peek();
        let known = there.len().min(MAGIC.len());
        if there[..known] != MAGIC[..known] {
            return Err(LinkFault::Garbage);
        }
        match there.get(MAGIC.len()) {
            Some(&format) if format != FORMAT => return Err(LinkFault::Format(format, FORMAT)),
            _ => {}
        }
        let Some(opening) = inbox.take(OPENING) else { return Ok(None) };
        let nonce = opening.last_chunk::<NONCE>().copied().ok_or(LinkFault::Garbage)?;
        if nonce == self.ours { Err(LinkFault::Reflected) } else { Ok(Some(nonce)) }
    }

    fn put_proof(&self, theirs: &[u8; NONCE], out: &mut Vec<u8>) {
        let mut sealer = self.keys(theirs).derive(b"proofs", "", self.role).sealer;
        sealer.seal(out, |out| {
            let end = out.len() + PROOF;
            out.push(self.ring.len() as u8);
            out.extend_from_slice(self.ring.as_bytes());
            out.resize(end, 0);
        });
    }

    fn keys<'a>(&'a self, theirs: &'a [u8; NONCE]) -> KeySource<'a> {
        let nonces = match self.role {
            Role::Initiator => (&self.ours, theirs),
            Role::Responder => (theirs, &self.ours),
        };
        KeySource { secret: &self.secrets[self.shared], nonces }
    }
}

/// The ring's name in a proof that has opened.
fn name(proof: &[u8]) -> Result<&str, LinkFault> {
    let malformed = || LinkFault::Malformed("a proof without a name".to_owned());
    let (length, rest) = proof.split_first().ok_or_else(malformed)?;
    let name = rest.get(..usize::from(*length)).ok_or_else(malformed)?;
    str::from_utf8(name).map_err(|_| malformed())
}

/// Both fit into what an unproven side may send.
const _: () = assert!(PROOF + TAG <= MAX_UNPROVEN && OPENING <= MAX_UNPROVEN);
