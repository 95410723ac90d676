//! Why a request has no answer, or none that was hoped for.

use std::{io, path::PathBuf};

use afterglow_cql::{error::ProtocolError, frame::FrameError};

/// An ERROR answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server error 0x{code:04X}: {message}")]
pub struct ServerError {
    /// The protocol's error code.
    pub code: i32,
    /// The server's text.
    pub message: String,
}

impl ServerError {
    /// The server knows the prepared statement no more.
    pub const UNPREPARED: i32 = 0x2500;

    /// Too much load or a replica too slow or absent: an idempotent request may well succeed a
    /// little later.
    pub fn is_transient(&self) -> bool {
        matches!(self.code, 0x0000 | 0x1000..=0x1003 | 0x1100 | 0x1200 | 0x1300 | 0x1500)
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CqlError {
    /// The address does not resolve or nobody accepts there.
    #[error("cannot connect to {address}: {source}; is the server up, and is this its CQL port?")]
    Connect {
        /// The address as given.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// What should be the certificates of a CA is not.
    #[error(
        "{path} cannot be used as a CA: {why}; name a PEM file with the CA's certificate",
        path = .path.display()
    )]
    Ca {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no TLS with the server.
    #[error("no TLS with {address}: {why}")]
    Tls {
        /// The address as given.
        address: String,
        /// What is wrong, and what to do about it.
        why: String,
    },
    /// The connection broke, or no answer came in time.
    #[error("connection to {address} lost: {source}")]
    Lost {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The server refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server wants a user and a password.
    #[error("the server requires authentication ({0}); give --user and --password")]
    Authentication(String),
    /// The bytes are not CQL.
    #[error("not a valid answer: {0}")]
    Frame(#[from] FrameError),
    /// An answer's body is not as the protocol has it.
    #[error("not a valid answer: {0}")]
    Body(#[from] ProtocolError),
    /// A valid answer that fits no request of ours.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
}
