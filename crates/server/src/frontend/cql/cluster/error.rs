//! Why there is no connection to the database, or no answer on one.

use std::rc::Rc;
use std::time::Duration;

use afterglow_cql::frame::{Envelope, Version};

use crate::metrics::ConnectFailure;

/// How long making a connection may take, handshake included.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A node that owes an answer and is silent for so long is the last choice.
pub(crate) const HESITATION: Duration = Duration::from_millis(500);

/// Why a request has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// It was not sent: nothing happened.
    #[error("the database cannot be reached: {0}")]
    NotSent(Rc<str>),
    /// It was sent and the connection broke: it may have happened.
    #[error("the connection to the database was lost before the answer came")]
    Lost,
}

/// Why a connection could not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens, no route, no such name.
    #[error("{address}: {reason}")]
    Unreachable {
        /// Where.
        address: Rc<str>,
        /// What the system said.
        reason: Rc<str>,
    },
    /// No answer in time.
    #[error("{0}: no answer within {CONNECT_TIMEOUT:?}")]
    Timeout(Rc<str>),
    /// There is no TLS with it.
    #[error("{address}: {reason}")]
    Tls {
        /// Where.
        address: Rc<str>,
        /// What is wrong, and what to do about it.
        reason: Rc<str>,
    },
    /// The server does not speak the version.
    #[error("the database does not speak protocol version {0}")]
    Version(Version),
    /// The server wants to know who we are, and we have nothing to say; this is the class of its
    /// authenticator.
    #[error("the database requires authentication")]
    Authentication(Rc<str>),
    /// Our own credentials cannot be read.
    #[error("{0}")]
    Credentials(Rc<str>),
    /// The server refused the handshake; this is its answer.
    #[error("the database refused the connection: {message}")]
    Refused {
        /// Its words.
        message: Rc<str>,
        /// Its ERROR.
        answer: Envelope,
    },
}

impl ConnectError {
    /// Whether the node said nothing at all.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, ConnectError::Unreachable { .. } | ConnectError::Timeout(_))
    }

    /// Whether all nodes say it: another version, or a login, is to be tried instead.
    pub(crate) fn is_of_all(&self) -> bool {
        matches!(self, ConnectError::Version(_) | ConnectError::Authentication(_))
    }

    /// Whether it says nothing of other nodes.
    pub(crate) fn leaves_others(&self) -> bool {
        self.is_silence() || matches!(self, ConnectError::Tls { .. })
    }

    /// What it counts as.
    pub(crate) fn label(&self) -> ConnectFailure {
        match self {
            ConnectError::Unreachable { .. } => ConnectFailure::Unreachable,
            ConnectError::Timeout(_) => ConnectFailure::Timeout,
            _ => ConnectFailure::Handshake,
        }
    }
}
