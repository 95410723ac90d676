//! A link between two processes: in which version of the protocol they speak, and how much one may
//! ask of the other at once.
//!
//! ```text
//! Opened --HELLO of the other, a common version--> Speaking --CREDIT, messages--> Speaking
//!    |                                                |
//!    +--anything else, no common version: closed      +--more than its credit: closed
//! ```
//!
//! * Both send HELLO first. They speak the newest version that both know.
//! * Credit is counted in requests and in bytes, as totals since the link was opened, so that a
//!   CREDIT that is late takes nothing back. GET and PULL need it; whoever has none asks the
//!   database. It goes back once the answer has left the queue, so that it bounds what waits.
//! * Other messages are few and need none. Whoever carries a link sends what a lease waits for
//!   before rows, so that a lease never waits for a read.
//! * A link that fails is closed and opened anew. Nothing of the protocol rests on it.

use std::fmt;

use crate::identity::{Incarnation, MemberId};
use crate::malformed::Malformed;
use crate::packed::{Reader, put_varint};

/// An amount of work: requests and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit {
    /// GETs and PULLs.
    pub requests: u64,
    /// Of their messages.
    pub bytes: u64,
}

/// What a process says of itself when a link opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The instance.
    pub member: MemberId,
    /// Its process.
    pub life: Incarnation,
    /// The oldest and the newest version of the protocol that it speaks.
    pub versions: (u16, u16),
    /// How many shards its ring has.
    pub shards: u32,
    /// How much the other may ask at once.
    pub window: Credit,
}

/// What travels over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first of each side.
    Hello(Hello),
    /// How much the other may have asked since the link was opened.
    Credit(Credit),
    /// The bytes of an envelope.
    Message(Vec<u8>),
}

/// Why a link is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkError {
    /// The first frame is not HELLO, or a later one is.
    OutOfOrder,
    /// No version of the protocol is common: ours and theirs.
    Version((u16, u16), (u16, u16)),
    /// The other's ring has so many shards.
    Shards(u32),
    /// The other asks more than it may.
    Overdrawn,
}

/// One side of a link.
#[derive(Debug, Clone)]
pub struct Link {
    ours: Hello,
    theirs: Option<Hello>,
    /// What we have asked, and may have asked.
    asked: Credit,
    may_ask: Credit,
    /// What the other has asked, what of it is done, and what we have told it that it may ask.
    taken: Credit,
    done: Credit,
    told: Credit,
}

impl Link {
    /// A new link, and the frame to send first.
    #[must_use]
    pub fn open(ours: Hello) -> (Self, Frame) {
        let none = Credit::default();
        let (theirs, told) = (None, ours.window);
        let link = Self { ours, theirs, asked: none, may_ask: none, taken: none, done: none, told };
        (link, Frame::Hello(ours))
    }

    /// HELLO or CREDIT has come.
    ///
    /// # Errors
    ///
    /// Says why the link must be closed.
    pub fn receive(&mut self, frame: &Frame) -> Result<(), LinkError> {
        match (frame, self.theirs) {
            (Frame::Hello(theirs), None) => {
                let (ours, other) = (self.ours.versions, theirs.versions);
                if other.0.max(ours.0) > other.1.min(ours.1) {
                    return Err(LinkError::Version(ours, other));
                }
                if theirs.shards != self.ours.shards {
                    return Err(LinkError::Shards(theirs.shards));
                }
                (self.theirs, self.may_ask) = (Some(*theirs), theirs.window);
            }
            (Frame::Credit(total), Some(_)) => {
                self.may_ask.requests = self.may_ask.requests.max(total.requests);
                self.may_ask.bytes = self.may_ask.bytes.max(total.bytes);
            }
            (Frame::Message(_), Some(_)) => {}
            _ => return Err(LinkError::OutOfOrder),
        }
        Ok(())
    }

    /// The version that both speak, once the other has said HELLO.
    #[must_use]
    pub fn version(&self) -> Option<u16> {
        self.theirs.map(|theirs| theirs.versions.1.min(self.ours.versions.1))
    }

    /// Asks for so many bytes' worth, if there is credit for one more request.
    pub fn ask(&mut self, bytes: u64) -> bool {
        let after = Credit {
            requests: self.asked.requests + 1,
            bytes: self.asked.bytes.saturating_add(bytes),
        };
        let may = after.requests <= self.may_ask.requests && after.bytes <= self.may_ask.bytes;
        if may {
            self.asked = after;
        }
        may
    }

    /// The other has asked for so many bytes' worth.
    ///
    /// # Errors
    ///
    /// It had no credit for that.
    pub fn take(&mut self, bytes: u64) -> Result<(), LinkError> {
        self.taken.requests += 1;
        self.taken.bytes = self.taken.bytes.saturating_add(bytes);
        let within =
            self.taken.requests <= self.told.requests && self.taken.bytes <= self.told.bytes;
        if within { Ok(()) } else { Err(LinkError::Overdrawn) }
    }

    /// A request of so many bytes is answered, and the answer waits no more: what to tell the
    /// other, once a quarter of the window can be given back.
    pub fn answered(&mut self, bytes: u64) -> Option<Frame> {
        self.done.requests += 1;
        self.done.bytes = self.done.bytes.saturating_add(bytes);
        let window = self.ours.window;
        let may = Credit {
            requests: self.done.requests.saturating_add(window.requests),
            bytes: self.done.bytes.saturating_add(window.bytes),
        };
        let more = (may.requests - self.told.requests) * 4 >= window.requests
            || (may.bytes - self.told.bytes).saturating_mul(4) >= window.bytes;
        more.then(|| {
            self.told = may;
            Frame::Credit(may)
        })
    }
}

const HELLO: u8 = 1;
const CREDIT: u8 = 2;
const MESSAGE: u8 = 3;

impl Frame {
    /// The bytes of a frame. A HELLO of any version reads as one of this.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Hello(hello) => {
                out.push(HELLO);
                out.extend(hello.member.0.to_le_bytes());
                out.extend(hello.life.0.to_le_bytes());
                out.extend(hello.versions.0.to_le_bytes());
                out.extend(hello.versions.1.to_le_bytes());
                out.extend(hello.shards.to_le_bytes());
                put_credit(&mut out, hello.window);
            }
            Self::Credit(total) => {
                out.push(CREDIT);
                put_credit(&mut out, *total);
            }
            Self::Message(bytes) => {
                out.push(MESSAGE);
                out.extend(bytes);
            }
        }
        out
    }

    /// Reads a frame; its length was before it. What a newer version adds to HELLO and CREDIT is
    /// skipped.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        Ok(match reader.u8()? {
            HELLO => Self::Hello(Hello {
                member: MemberId(reader.u64()?),
                life: reader.incarnation()?,
                versions: (reader.u16()?, reader.u16()?),
                shards: reader.u32()?,
                window: credit(&mut reader)?,
            }),
            CREDIT => Self::Credit(credit(&mut reader)?),
            MESSAGE => Self::Message(reader.0.to_vec()),
            _ => return Err(Malformed::Unknown),
        })
    }
}

fn put_credit(out: &mut Vec<u8>, credit: Credit) {
    put_varint(out, credit.requests);
    put_varint(out, credit.bytes);
}

fn credit(reader: &mut Reader<'_>) -> Result<Credit, Malformed> {
    Ok(Credit { requests: reader.varint()?, bytes: reader.varint()? })
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfOrder => f.write_str("HELLO must be the first frame and no other"),
            Self::Version(ours, theirs) => write!(
                f,
                "this instance speaks versions {} to {} of the ring's protocol and the other {} to \
                 {}: upgrade the older one",
                ours.0, ours.1, theirs.0, theirs.1
            ),
            Self::Shards(theirs) => {
                write!(f, "the other instance is of a ring with {theirs} shards")
            }
            Self::Overdrawn => f.write_str("the other instance asks more than it may"),
        }
    }
}

impl std::error::Error for LinkError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(versions: (u16, u16), requests: u64) -> Hello {
        let window = Credit { requests, bytes: 100 * requests };
        Hello { member: MemberId(1), life: Incarnation(2), versions, shards: 8, window }
    }

    #[test]
    fn two_speak_the_newest_version_that_both_know_or_say_why_not() {
        let (mut link, first) = Link::open(hello((2, 5), 4));
        assert_eq!(link.version(), None);
        assert_eq!(link.receive(&Frame::Credit(Credit::default())), Err(LinkError::OutOfOrder));
        link.receive(&Frame::Hello(hello((1, 3), 4))).unwrap();
        assert_eq!(link.version(), Some(3));
        assert_eq!(link.receive(&first), Err(LinkError::OutOfOrder));
        let (mut link, _) = Link::open(hello((2, 5), 4));
        let error = link.receive(&Frame::Hello(hello((6, 7), 4))).unwrap_err();
        assert_eq!(error, LinkError::Version((2, 5), (6, 7)));
        assert!(error.to_string().contains("2 to 5") && error.to_string().contains("6 to 7"));
        let other = Hello { shards: 16, ..hello((2, 5), 4) };
        assert_eq!(link.receive(&Frame::Hello(other)), Err(LinkError::Shards(16)));
    }

    #[test]
    fn whoever_keeps_to_its_credit_is_never_refused_and_never_waits_for_ever() {
        let mut random = crate::sim::random();
        for _ in 0..200 {
            let window = 1 + random.below(9);
            let (mut asker, _) = Link::open(hello((1, 1), window));
            let (mut owner, first) = Link::open(hello((1, 1), window));
            asker.receive(&first).unwrap();
            let (mut sent, mut late, mut asked) = (Vec::new(), Vec::new(), 0);
            while asked < 300 {
                let bytes = random.below(100);
                if asker.ask(bytes) {
                    owner.take(bytes).unwrap();
                    sent.push(bytes);
                    asked += 1;
                } else if sent.is_empty() {
                    // All is answered: what is owed is on its way.
                    let frame: Frame = late.pop().expect("credit on its way");
                    asker.receive(&frame).unwrap();
                }
                if random.below(3) == 0 && !sent.is_empty() {
                    late.extend(owner.answered(sent.pop().expect("it is not empty")));
                }
            }
            assert!(owner.taken.requests <= owner.done.requests + window);
            while asker.ask(1) {}
            assert_eq!(owner.take(u64::MAX), Err(LinkError::Overdrawn));
        }
    }

    #[test]
    fn credit_ends_with_its_bytes_too_and_a_late_one_takes_nothing_back() {
        let (mut asker, _) = Link::open(hello((1, 1), 9));
        asker.receive(&Frame::Hello(hello((1, 1), 2))).unwrap();
        assert!(asker.ask(150) && !asker.ask(51), "two requests of 200 bytes together");
        for requests in [5, 3] {
            asker.receive(&Frame::Credit(Credit { requests, bytes: 100 * requests })).unwrap();
        }
        assert_eq!((0..9).filter(|_| asker.ask(1)).count(), 4, "five, and one has been asked");
    }

    #[test]
    fn frames_read_back_and_a_newer_hello_too() {
        let hello = Frame::Hello(hello((1, 9), 7));
        for frame in [hello.clone(), Frame::Credit(Credit { requests: 1 << 40, bytes: 0 })] {
            let mut bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Ok(frame.clone()));
            (0..bytes.len()).for_each(|end| assert!(Frame::decode(&bytes[..end]).is_err()));
            bytes.extend([1, 2, 3]);
            assert_eq!(Frame::decode(&bytes), Ok(frame));
        }
        let message = Frame::Message(vec![1, 2]);
        assert_eq!(Frame::decode(&message.encode()), Ok(message));
    }
}
