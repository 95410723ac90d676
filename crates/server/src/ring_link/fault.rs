//! Why a link did not come to be, or ended, and what to do about it.

use afterglow_ring::{LinkError, MemberId};

use crate::metrics::{LinkEnd, LinkHandshakeFailure};

/// Why there is no link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    /// Nobody listens, no route, no such name.
    #[error(
        "it cannot be reached: {0}; if it runs, its --ring-advertise must lead to it from here, through every firewall"
    )]
    Unreachable(String),
    /// The handshake took too long.
    #[error("it did not finish the handshake in time: is something else listening there?")]
    Late,
    /// The first bytes are not of a link.
    #[error("what it says is not of a ring: something else uses this address")]
    Garbage,
    /// Another format of links.
    #[error("it speaks format {0} of links and this instance format {1}: upgrade the older one")]
    Format(u8, u8),
    /// Our own bytes came back.
    #[error("it sends back what this instance says: the address leads to something that mirrors")]
    Reflected,
    /// It has another secret.
    #[error("it has another --ring-secret: give all members of the ring the same file")]
    Secret,
    /// It is of another ring: theirs and ours.
    #[error("it is of the ring `{0}` and this instance of `{1}`: name the same ring at both")]
    Ring(String, String),
    /// What the ring's own rules of a link say.
    #[error("{0}")]
    Rules(LinkError),
    /// It is this process.
    #[error(
        "it is this instance itself: its address {0} is in the map under another member's name"
    )]
    Itself(String),
    /// Another process has our id.
    #[error(
        "it is another process with this instance's id, {:016x}: two run with a copy of one data directory; stop one",
        .0.0
    )]
    Twin(MemberId),
    /// Another member than was looked for: found, wanted.
    #[error(
        "it is {:016x} in place of {:016x}: one of their addresses is wrong, or its data directory \
         was emptied; then the ring puts the latter out by itself",
        .0.0, .1.0
    )]
    Other(MemberId, MemberId),
    /// A frame that is longer than any may be.
    #[error("it sends a frame of {length} bytes where at most {limit} may come")]
    TooLong {
        /// What it says.
        length: usize,
        /// What may be.
        limit: usize,
    },
    /// It opened and cannot be read.
    #[error("it sends what this version does not know ({0}): upgrade the older one")]
    Malformed(String),
    /// A frame that does not open.
    #[error("a frame was changed, repeated or left out on its way")]
    Forged,
    /// It was closed by the other side or the network.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// Nothing came for too long.
    #[error("nothing has come from it for too long: it stands still, or the network is cut")]
    Silent,
    /// It takes nothing.
    #[error("it has taken nothing for too long: it stands still, or the network is cut")]
    Stalled,
    /// The member has newer links, as many as it may.
    #[error("the member has newer links")]
    Replaced,
    /// The member is no longer in the map, or has another address.
    #[error("the map no longer has the member at this address")]
    Unwanted,
    /// We end.
    #[error("this instance ends its links")]
    Stopped,
    /// Too many connections have proven nothing.
    #[error(
        "{0} connections have not shown the secret yet and further ones are refused: let only members reach the ring's port"
    )]
    Crowded(usize),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

impl LinkFault {
    /// What it counts as where the link was not open yet.
    pub(super) fn handshake_label(&self) -> LinkHandshakeFailure {
        match self {
            Self::Unreachable(_) => LinkHandshakeFailure::Unreachable,
            Self::Late => LinkHandshakeFailure::Timeout,
            Self::Garbage => LinkHandshakeFailure::Garbage,
            Self::Format(..) | Self::Rules(_) => LinkHandshakeFailure::Version,
            Self::Reflected => LinkHandshakeFailure::Reflected,
            Self::Secret => LinkHandshakeFailure::Secret,
            Self::Ring(..) => LinkHandshakeFailure::Ring,
            Self::Itself(_) | Self::Twin(_) | Self::Other(..) => LinkHandshakeFailure::Member,
            Self::TooLong { .. } | Self::Malformed(_) | Self::Forged => {
                LinkHandshakeFailure::Malformed
            }
            Self::Crowded(_) => LinkHandshakeFailure::Crowded,
            Self::Unwanted | Self::Stopped => LinkHandshakeFailure::GivenUp,
            Self::Lost(_) | Self::Silent | Self::Stalled | Self::Replaced | Self::Random => {
                LinkHandshakeFailure::Lost
            }
        }
    }

    /// What it counts as where the link was open.
    pub(super) fn end_label(&self) -> LinkEnd {
        match self {
            Self::Silent | Self::Late => LinkEnd::Silent,
            Self::Stalled => LinkEnd::Stalled,
            Self::Rules(LinkError::Overdrawn) => LinkEnd::Overdrawn,
            Self::Forged | Self::Reflected => LinkEnd::Forged,
            Self::TooLong { .. } | Self::Malformed(_) | Self::Rules(_) => LinkEnd::Malformed,
            Self::Replaced => LinkEnd::Replaced,
            Self::Unwanted => LinkEnd::Unwanted,
            Self::Stopped => LinkEnd::Stopped,
            _ => LinkEnd::Lost,
        }
    }

    /// Whether somebody must act: it does not pass by itself, or nobody wanted it.
    pub(super) fn is_noteworthy(&self) -> bool {
        !matches!(self, Self::Replaced | Self::Unwanted | Self::Stopped)
    }
}
