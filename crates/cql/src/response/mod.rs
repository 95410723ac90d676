//! Responses: views over the bodies that servers send, and builders for our own.
//!
//! A session that relays looks at [`split`] and [`Response::parse`]; the hot path of hits only
//! builds, see [`encode_rows_start`]. Views borrow everything from the body and do not allocate.
//! They keep type options as raw bytes, so that what was received can be sent again verbatim.

mod error;
mod event;
mod kind;
mod metadata;
mod prepared;
mod rows;
mod types;

pub use error::{ErrorBody, ErrorDetail, Failures};
pub use event::{Event, SchemaChange, SchemaTarget};
pub use kind::ResultKind;
pub use metadata::{ColumnSpec, Columns, MetadataFlags, MetadataOut, ResultMetadata};
pub use prepared::{Prepared, encode_prepared};
pub use rows::{Row, RowCells, RowIter, Rows, encode_rows_start};
pub use types::{CqlType, MAX_TYPE_DEPTH, scalar_code};

use uuid::Uuid;

use crate::error::ProtocolError;
use crate::frame::notation::{BytesMap, Put, Reader, Result, StringList, StringMultimap, Value};
use crate::frame::{Flags, Header, Opcode, Version};

/// What precedes the message in a response's body.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResponseExtras<'a> {
    /// Id of the trace, if one was asked for.
    pub tracing_id: Option<Uuid>,
    /// Warnings.
    pub warnings: Option<StringList<'a>>,
    /// The custom payload.
    pub custom_payload: Option<BytesMap<'a>>,
}

impl ResponseExtras<'_> {
    /// Whether there are none.
    pub fn is_plain(&self) -> bool {
        self.tracing_id.is_none() && self.warnings.is_none() && self.custom_payload.is_none()
    }
}

/// Appends what precedes the message, which the caller appends next; gives the flags its header
/// needs.
pub fn encode_extras(
    tracing_id: Option<Uuid>,
    warnings: &[&str],
    custom_payload: &[(&str, Option<&[u8]>)],
    out: &mut Vec<u8>,
) -> Flags {
    let mut flags = Flags::NONE;
    if let Some(id) = tracing_id {
        flags = flags.with(Flags::TRACING);
        out.put_raw(id.as_bytes());
    }
    if !warnings.is_empty() {
        flags = flags.with(Flags::WARNING);
        out.put_string_list(warnings);
    }
    if !custom_payload.is_empty() {
        flags = flags.with(Flags::CUSTOM_PAYLOAD);
        out.put_bytes_map(custom_payload);
    }
    flags
}

/// Splits a response's body into what precedes the message, and the message.
pub fn split<'a>(header: &Header, body: &'a [u8]) -> Result<(ResponseExtras<'a>, &'a [u8])> {
    let mut reader = Reader::new(body);
    let mut extras = ResponseExtras::default();
    if header.flags.contains(Flags::TRACING) {
        extras.tracing_id = Some(reader.uuid()?);
    }
    if header.flags.contains(Flags::WARNING) {
        extras.warnings = Some(reader.string_list()?);
    }
    if header.flags.contains(Flags::CUSTOM_PAYLOAD) {
        extras.custom_payload = Some(reader.bytes_map()?);
    }
    Ok((extras, reader.rest()))
}

/// A response.
#[derive(Debug, Clone)]
pub enum Response<'a> {
    /// ERROR
    Error(ErrorBody<'a>),
    /// READY
    Ready,
    /// AUTHENTICATE, with the class name of the authenticator.
    Authenticate(&'a str),
    /// SUPPORTED
    Supported(StringMultimap<'a>),
    /// RESULT
    Result(ResultBody<'a>),
    /// EVENT
    Event(Event<'a>),
    /// AUTH_CHALLENGE
    AuthChallenge(Option<&'a [u8]>),
    /// AUTH_SUCCESS
    AuthSuccess(Option<&'a [u8]>),
}

/// The message of a RESULT.
#[derive(Debug, Clone)]
pub enum ResultBody<'a> {
    /// Nothing to say.
    Void,
    /// Rows.
    Rows(Rows<'a>),
    /// USE was executed.
    SetKeyspace(&'a str),
    /// A statement was prepared.
    Prepared(Prepared<'a>),
    /// The schema was altered.
    SchemaChange(SchemaChange<'a>),
}

impl<'a> Response<'a> {
    /// Parses a message: a body without what precedes it, see [`split`].
    pub fn parse(header: &Header, message: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(message);
        let version = header.version;
        Ok(match header.opcode {
            Opcode::Error => Response::Error(ErrorBody::parse(version, message)?),
            Opcode::Ready => Response::Ready,
            Opcode::Authenticate => Response::Authenticate(reader.string()?),
            Opcode::Supported => Response::Supported(reader.string_multimap()?),
            Opcode::Result => Response::Result(ResultBody::parse(version, message)?),
            Opcode::Event => Response::Event(Event::parse(message)?),
            Opcode::AuthChallenge => Response::AuthChallenge(reader.bytes()?),
            Opcode::AuthSuccess => Response::AuthSuccess(reader.bytes()?),
            other => return Err(ProtocolError::new(format!("Unexpected message {other}"))),
        })
    }
}

impl<'a> ResultBody<'a> {
    /// Parses the message of a RESULT.
    pub fn parse(version: Version, message: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(message);
        Ok(match ResultKind::read(&mut reader)? {
            ResultKind::Void => ResultBody::Void,
            ResultKind::Rows => ResultBody::Rows(Rows::read(&mut reader)?),
            ResultKind::SetKeyspace => ResultBody::SetKeyspace(reader.string()?),
            ResultKind::Prepared => ResultBody::Prepared(Prepared::read(version, &mut reader)?),
            ResultKind::SchemaChange => ResultBody::SchemaChange(SchemaChange::read(&mut reader)?),
        })
    }
}

/// Appends the message of RESULT Void.
pub fn encode_void(out: &mut Vec<u8>) {
    out.put_int(ResultKind::Void as i32);
}

/// Appends the message of RESULT Set_keyspace.
pub fn encode_set_keyspace(keyspace: &str, out: &mut Vec<u8>) {
    out.put_int(ResultKind::SetKeyspace as i32);
    out.put_string(keyspace);
}

/// Appends the message of RESULT Schema_change.
pub fn encode_schema_change(change: &SchemaChange<'_>, out: &mut Vec<u8>) {
    out.put_int(ResultKind::SchemaChange as i32);
    change.write(out);
}

/// Appends the message of SUPPORTED.
pub fn encode_supported(options: &[(&str, &[&str])], out: &mut Vec<u8>) {
    out.put_short_len(options.len());
    for (name, values) in options {
        out.put_string(name);
        out.put_string_list(values);
    }
}

/// Appends the message of AUTHENTICATE.
pub fn encode_authenticate(authenticator: &str, out: &mut Vec<u8>) {
    out.put_string(authenticator);
}

/// Appends the message of AUTH_CHALLENGE or AUTH_SUCCESS.
pub fn encode_auth_token(token: Option<&[u8]>, out: &mut Vec<u8>) {
    out.put_value(Value::from(token));
}

#[cfg(test)]
mod captured_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
