//! Errors of the native protocol: the codes an ERROR response carries, and the error type of this
//! crate's decoders.
//!
//! Source: the "Error codes" section of `native_protocol_v4.spec` and `native_protocol_v5.spec`.

use std::borrow::Cow;

/// A request or response that cannot be decoded, or a request that a server refuses before it looks
/// at its content.
///
/// `code` and `message` are what the client gets in an ERROR response, see
/// [`crate::response::ErrorBody::from`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProtocolError {
    /// [`ErrorCode::Protocol`] almost always; [`ErrorCode::Invalid`] for an envelope over the size
    /// limit.
    pub code: ErrorCode,
    /// Text for the client.
    pub message: Cow<'static, str>,
}

impl ProtocolError {
    /// An error of code 0x000A.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: ErrorCode::Protocol, message: message.into() }
    }

    /// An error of code 0x1001.
    pub fn overloaded(message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: ErrorCode::Overloaded, message: message.into() }
    }

    /// An error of code 0x2200.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: ErrorCode::Invalid, message: message.into() }
    }
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The code of an ERROR response.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
            /// A code the specifications do not name (ScyllaDB's rate limit error has a dynamic
            /// one).
            Other(i32),
        }

        impl ErrorCode {
            /// Every code that has a name.
            pub const NAMED: &[ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The code for a number on the wire.
            pub fn from_i32(code: i32) -> Self {
                match code {
                    $($code => ErrorCode::$name,)*
                    other => ErrorCode::Other(other),
                }
            }

            /// The number on the wire.
            pub fn as_i32(self) -> i32 {
                match self {
                    $(ErrorCode::$name => $code,)*
                    ErrorCode::Other(code) => code,
                }
            }
        }
    };
}

error_codes! {
    /// Something unexpected happened on the server.
    Server = 0x0000,
    /// The message violates the protocol.
    Protocol = 0x000A,
    /// Authentication failed.
    BadCredentials = 0x0100,
    /// Too few replicas are alive for the consistency level; nothing was executed.
    Unavailable = 0x1000,
    /// The coordinator is overloaded.
    Overloaded = 0x1001,
    /// The coordinator is still bootstrapping.
    IsBootstrapping = 0x1002,
    /// A TRUNCATE failed.
    Truncate = 0x1003,
    /// Too few replicas acknowledged a write in time; its outcome is unknown.
    WriteTimeout = 0x1100,
    /// Too few replicas answered a read in time.
    ReadTimeout = 0x1200,
    /// A replica failed to execute a read.
    ReadFailure = 0x1300,
    /// A user-defined function failed.
    FunctionFailure = 0x1400,
    /// A replica failed to execute a write; its outcome is unknown.
    WriteFailure = 0x1500,
    /// The change data capture space is exhausted on a replica.
    CdcWriteFailure = 0x1600,
    /// The outcome of a compare-and-set write is unknown.
    CasWriteUnknown = 0x1700,
    /// The statement has a syntax error.
    Syntax = 0x2000,
    /// The role lacks a permission.
    Unauthorized = 0x2100,
    /// The statement is syntactically correct but invalid.
    Invalid = 0x2200,
    /// The statement is invalid because of a configuration issue.
    Config = 0x2300,
    /// The keyspace or table to create exists already.
    AlreadyExists = 0x2400,
    /// The prepared statement id is not known to this server.
    Unprepared = 0x2500,
}
