//! What is in a frame of a link that is open.
//!
//! ```text
//! kind u8 = 0 | HELLO or CREDIT, as `afterglow_ring::Frame` has them
//! kind u8 = 1 | message
//! kind u8 = 2 | message for which its sender has used credit
//! kind u8 = 3   a sign of life
//! ```

use afterglow_ring::Frame;

use super::fault::LinkFault;

/// What travels on an open link.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// HELLO or CREDIT.
    Control(Frame),
    /// A message.
    Message(&'a [u8]),
    /// A message that used credit.
    Request(&'a [u8]),
    /// Nothing but that the other side is there.
    Alive,
}

const CONTROL: u8 = 0;
const MESSAGE: u8 = 1;
const REQUEST: u8 = 2;
const ALIVE: u8 = 3;

impl<'a> Payload<'a> {
    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Control(frame) => {
                out.push(CONTROL);
                out.extend(frame.encode());
            }
            Self::Message(bytes) => {
                out.push(MESSAGE);
                out.extend_from_slice(bytes);
            }
            Self::Request(bytes) => {
                out.push(REQUEST);
                out.extend_from_slice(bytes);
            }
            Self::Alive => out.push(ALIVE),
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`LinkFault::Malformed`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, LinkFault> {
        let malformed = |what: &str| LinkFault::Malformed(what.to_owned());
        let (kind, rest) = bytes.split_first().ok_or_else(|| malformed("an empty frame"))?;
        Ok(match *kind {
            CONTROL => match Frame::decode(rest) {
                Ok(frame @ (Frame::Hello(_) | Frame::Credit(_))) => Self::Control(frame),
                Ok(Frame::Message(_)) => return Err(malformed("a message in place of HELLO")),
                Err(error) => return Err(malformed(&error.to_string())),
            },
            MESSAGE => Self::Message(rest),
            REQUEST => Self::Request(rest),
            ALIVE => Self::Alive,
            other => return Err(malformed(&format!("a frame of kind {other}"))),
        })
    }
}
