//! Every request but BATCH.

use super::batch::Batch;
use super::params::{QueryParams, end_in};
use crate::error::ProtocolError;
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result, StringList, StringMap, Value};

/// A request.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// STARTUP
    Startup(Startup<'a>),
    /// OPTIONS
    Options,
    /// QUERY
    Query(Query<'a>),
    /// PREPARE
    Prepare(Prepare<'a>),
    /// EXECUTE
    Execute(Execute<'a>),
    /// BATCH
    Batch(Batch<'a>),
    /// REGISTER
    Register(Register<'a>),
    /// AUTH_RESPONSE
    AuthResponse(AuthResponse<'a>),
}

/// STARTUP
#[derive(Debug, Clone, Copy)]
pub struct Startup<'a> {
    options: StringMap<'a>,
}

impl<'a> Startup<'a> {
    /// Parses a body.
    pub fn parse(body: &'a [u8]) -> Result<Self> {
        Ok(Self { options: Reader::new(body).string_map()? })
    }

    /// The options. Cassandra takes their names in any case; [`option`](Self::option) does too.
    pub fn options(&self) -> StringMap<'a> {
        self.options
    }

    /// The value of an option, its name in any case; of the last, if there are several.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        self.options.iter().filter(|(k, _)| k.eq_ignore_ascii_case(name)).last().map(|(_, v)| v)
    }

    /// Appends the body with these options.
    pub fn encode(options: &[(&str, &str)], out: &mut Vec<u8>) {
        out.put_string_map(options);
    }
}

/// QUERY
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The statement.
    pub text: &'a str,
    /// Everything else.
    pub params: QueryParams<'a>,
}

impl<'a> Query<'a> {
    /// Parses a body.
    pub fn parse(version: Version, body: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(body);
        Ok(Self { text: reader.long_string()?, params: QueryParams::read(version, &mut reader)? })
    }

    /// Where the consistency level is in `body`, the whole body that this was parsed from.
    pub fn consistency_at(&self, body: &[u8]) -> usize {
        end_in(body, self.text.as_bytes())
    }

    /// Appends the body.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        out.put_long_string(self.text);
        self.params.encode(version, out);
    }
}

/// PREPARE
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepare<'a> {
    /// The statement.
    pub text: &'a str,
    /// Keyspace of unqualified names (v5).
    pub keyspace: Option<&'a str>,
}

impl<'a> Prepare<'a> {
    const WITH_KEYSPACE: i32 = 0x01;

    /// Parses a body.
    pub fn parse(version: Version, body: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(body);
        let text = reader.long_string()?;
        let with_keyspace = version >= Version::V5 && reader.int()? & Self::WITH_KEYSPACE != 0;
        let keyspace = if with_keyspace { Some(reader.string()?) } else { None };
        Ok(Self { text, keyspace })
    }

    /// Appends the body. In v4, which has none, the keyspace is left out.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        out.put_long_string(self.text);
        if version >= Version::V5 {
            out.put_int(if self.keyspace.is_some() { Self::WITH_KEYSPACE } else { 0 });
            if let Some(keyspace) = self.keyspace {
                out.put_string(keyspace);
            }
        }
    }
}

/// EXECUTE
#[derive(Debug, Clone, Copy)]
pub struct Execute<'a> {
    /// Which prepared statement.
    pub id: &'a [u8],
    /// Which result metadata the client has (v5; always there).
    pub result_metadata_id: Option<&'a [u8]>,
    /// Everything else.
    pub params: QueryParams<'a>,
}

impl<'a> Execute<'a> {
    /// Parses a body. Does not allocate.
    pub fn parse(version: Version, body: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(body);
        let id = reader.short_bytes()?;
        let result_metadata_id =
            if version >= Version::V5 { Some(reader.short_bytes()?) } else { None };
        Ok(Self { id, result_metadata_id, params: QueryParams::read(version, &mut reader)? })
    }

    /// Where the consistency level is in `body`, the whole body that this was parsed from.
    pub fn consistency_at(&self, body: &[u8]) -> usize {
        end_in(body, self.result_metadata_id.unwrap_or(self.id))
    }

    /// The bit of the flags that asks for rows without the columns' specification.
    pub const SKIP_METADATA: u8 = 0x02;

    /// Where the byte of the lowest flags is in `body`, the whole body that this was parsed from.
    pub fn flags_at(&self, body: &[u8]) -> usize {
        // In v5 the flags are an int.
        let int = if self.result_metadata_id.is_some() { 3 } else { 0 };
        self.consistency_at(body) + 2 + int
    }

    /// Appends the body.
    ///
    /// # Panics
    /// When a v5 request has no result metadata id.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        out.put_short_bytes(self.id);
        if version >= Version::V5 {
            out.put_short_bytes(
                self.result_metadata_id.expect("EXECUTE in v5 has a result metadata id"),
            );
        }
        self.params.encode(version, out);
    }
}

/// REGISTER
#[derive(Debug, Clone, Copy)]
pub struct Register<'a> {
    events: StringList<'a>,
}

impl<'a> Register<'a> {
    const KNOWN: [&'static str; 4] =
        ["TOPOLOGY_CHANGE", "STATUS_CHANGE", "SCHEMA_CHANGE", "TRACE_COMPLETE"];

    /// Parses a body; an unknown kind of event is an error.
    pub fn parse(body: &'a [u8]) -> Result<Self> {
        let events = Reader::new(body).string_list()?;
        match events.iter().find(|e| !Self::KNOWN.contains(&e.to_uppercase().as_str())) {
            Some(unknown) => Err(ProtocolError::new(format!("Invalid value '{unknown}' for Type"))),
            None => Ok(Self { events }),
        }
    }

    /// Whether the client asks for this kind of event.
    pub fn asks_for(&self, event: &str) -> bool {
        self.events.iter().any(|e| e.eq_ignore_ascii_case(event))
    }

    /// The kinds of events, as sent.
    pub fn events(&self) -> StringList<'a> {
        self.events
    }

    /// Appends the body for these kinds of events.
    pub fn encode(events: &[&str], out: &mut Vec<u8>) {
        out.put_string_list(events);
    }
}

/// AUTH_RESPONSE
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthResponse<'a> {
    /// The SASL token; null is allowed.
    pub token: Option<&'a [u8]>,
}

impl<'a> AuthResponse<'a> {
    /// Parses a body.
    pub fn parse(body: &'a [u8]) -> Result<Self> {
        Ok(Self { token: Reader::new(body).value()?.bytes() })
    }

    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_value(Value::from(self.token));
    }

    /// The token of SASL PLAIN, which PasswordAuthenticator understands.
    pub fn plain(user: &str, password: &str) -> Vec<u8> {
        [b"\0", user.as_bytes(), b"\0", password.as_bytes()].concat()
    }
}
