//! Requests: views over the bodies that clients send, and the same types as builders.
//!
//! A view borrows everything from the body: `bytes::Bytes::slice_ref` makes a shared slice from any
//! part of it, and [`crate::frame::notation::range_of`] a range. Parsing checks everything, so
//! accessors never fail; it does not allocate, but for [`Batch`]'s iterators which do not either.
//!
//! Every type has `encode(version, &mut Vec<u8>)`, the inverse of `parse`, for the control
//! connection, load clients and tests.

mod batch;
mod params;
mod requests;

pub use batch::{Batch, BatchKind, BatchStatement, StatementRef, encode_batch};
pub use params::{Consistency, QueryFlags, QueryParams, Values, ValuesBuilder};
pub use requests::{AuthResponse, Execute, Prepare, Query, Register, Request, Startup};

use crate::error::ProtocolError;
use crate::frame::notation::{BytesMap, Reader, Result};
use crate::frame::{Flags, Header, Opcode, Version};

/// What precedes the message in a request's body.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestExtras<'a> {
    /// The custom payload, if the flag was set.
    pub custom_payload: Option<BytesMap<'a>>,
    /// The client asked for a trace.
    pub tracing: bool,
}

impl RequestExtras<'_> {
    /// Whether there is nothing out of the ordinary.
    pub fn is_plain(&self) -> bool {
        self.custom_payload.is_none() && !self.tracing
    }
}

/// Splits a request's body into what precedes the message, and the message.
pub fn split<'a>(header: &Header, body: &'a [u8]) -> Result<(RequestExtras<'a>, &'a [u8])> {
    let mut reader = Reader::new(body);
    let mut extras =
        RequestExtras { custom_payload: None, tracing: header.flags.contains(Flags::TRACING) };
    if header.flags.contains(Flags::CUSTOM_PAYLOAD) {
        if header.version < Version::V4 {
            return Err(ProtocolError::new(
                "Received frame with CUSTOM_PAYLOAD flag for native protocol version < 4",
            ));
        }
        extras.custom_payload = Some(reader.bytes_map()?);
    }
    Ok((extras, reader.rest()))
}

/// Parses a request of any kind.
pub fn parse<'a>(header: &Header, body: &'a [u8]) -> Result<(RequestExtras<'a>, Request<'a>)> {
    let (extras, message) = split(header, body)?;
    let version = header.version;
    let request = match header.opcode {
        Opcode::Startup => Request::Startup(Startup::parse(message)?),
        Opcode::Options => Request::Options,
        Opcode::Query => Request::Query(Query::parse(version, message)?),
        Opcode::Prepare => Request::Prepare(Prepare::parse(version, message)?),
        Opcode::Execute => Request::Execute(Execute::parse(version, message)?),
        Opcode::Batch => Request::Batch(Batch::parse(version, message)?),
        Opcode::Register => Request::Register(Register::parse(message)?),
        Opcode::AuthResponse => Request::AuthResponse(AuthResponse::parse(message)?),
        other => {
            return Err(crate::error::ProtocolError::new(format!("Unexpected message {other}")));
        }
    };
    Ok((extras, request))
}

#[cfg(test)]
mod tests;
