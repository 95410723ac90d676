//! EVENT, and the schema change it shares with RESULT.

use std::net::IpAddr;

use crate::error::ProtocolError;
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result, StringList};

/// The message of an EVENT.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// A node joined, left or moved: NEW_NODE, REMOVED_NODE, MOVED_NODE.
    Topology {
        /// What happened.
        change: &'a str,
        /// Address of the node.
        address: IpAddr,
        /// Its port.
        port: i32,
    },
    /// A node went UP or DOWN.
    Status {
        /// What happened.
        change: &'a str,
        /// Address of the node.
        address: IpAddr,
        /// Its port.
        port: i32,
    },
    /// The schema was altered.
    Schema(SchemaChange<'a>),
    /// Another kind.
    Other {
        /// Its name.
        kind: &'a str,
        /// What follows.
        rest: &'a [u8],
    },
}

impl<'a> Event<'a> {
    /// Parses a message.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(message);
        let kind = reader.string()?;
        Ok(match kind {
            "TOPOLOGY_CHANGE" => {
                let change = reader.string()?;
                let (address, port) = reader.inet()?;
                Event::Topology { change, address, port }
            }
            "STATUS_CHANGE" => {
                let change = reader.string()?;
                let (address, port) = reader.inet()?;
                Event::Status { change, address, port }
            }
            "SCHEMA_CHANGE" => Event::Schema(SchemaChange::read(&mut reader)?),
            kind => Event::Other { kind, rest: reader.rest() },
        })
    }

    /// The name a client registers for.
    pub fn kind(&self) -> &'a str {
        match self {
            Event::Topology { .. } => "TOPOLOGY_CHANGE",
            Event::Status { .. } => "STATUS_CHANGE",
            Event::Schema(_) => "SCHEMA_CHANGE",
            Event::Other { kind, .. } => kind,
        }
    }

    /// The event as clients of that version know it: v3 has neither functions nor aggregates, its
    /// clients hear that the keyspace was updated.
    pub fn for_version(self, version: Version) -> Self {
        match self {
            Event::Schema(SchemaChange {
                keyspace,
                target: SchemaTarget::Function(..) | SchemaTarget::Aggregate(..),
                ..
            }) if version < Version::V4 => Event::Schema(SchemaChange {
                change: "UPDATED",
                keyspace,
                target: SchemaTarget::Keyspace,
            }),
            other => other,
        }
    }

    /// Appends the message. Its envelope has stream -1.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_string(self.kind());
        match self {
            Event::Topology { change, address, port } | Event::Status { change, address, port } => {
                out.put_string(change);
                out.put_inet(*address, *port);
            }
            Event::Schema(change) => change.write(out),
            Event::Other { rest, .. } => out.put_raw(rest),
        }
    }
}

/// What was altered in the schema.
#[derive(Debug, Clone)]
pub struct SchemaChange<'a> {
    /// CREATED, UPDATED or DROPPED.
    pub change: &'a str,
    /// The keyspace.
    pub keyspace: &'a str,
    /// What in it.
    pub target: SchemaTarget<'a>,
}

/// What in a keyspace was altered.
#[derive(Debug, Clone)]
pub enum SchemaTarget<'a> {
    /// The keyspace itself.
    Keyspace,
    /// A table or view.
    Table(&'a str),
    /// A user-defined type.
    Type(&'a str),
    /// A function, with the types of its arguments.
    Function(&'a str, StringList<'a>),
    /// An aggregate, with the types of its arguments.
    Aggregate(&'a str, StringList<'a>),
}

impl<'a> SchemaChange<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let change = reader.string()?;
        let target = reader.string()?;
        let keyspace = reader.string()?;
        let target = match target {
            "KEYSPACE" => SchemaTarget::Keyspace,
            "TABLE" => SchemaTarget::Table(reader.string()?),
            "TYPE" => SchemaTarget::Type(reader.string()?),
            "FUNCTION" => SchemaTarget::Function(reader.string()?, reader.string_list()?),
            "AGGREGATE" => SchemaTarget::Aggregate(reader.string()?, reader.string_list()?),
            other => {
                return Err(ProtocolError::new(format!(
                    "Unknown target {other} of a schema change"
                )));
            }
        };
        Ok(Self { change, keyspace, target })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (target, name, arguments) = match &self.target {
            SchemaTarget::Keyspace => ("KEYSPACE", None, None),
            SchemaTarget::Table(name) => ("TABLE", Some(name), None),
            SchemaTarget::Type(name) => ("TYPE", Some(name), None),
            SchemaTarget::Function(name, arguments) => ("FUNCTION", Some(name), Some(arguments)),
            SchemaTarget::Aggregate(name, arguments) => ("AGGREGATE", Some(name), Some(arguments)),
        };
        out.put_string(self.change);
        out.put_string(target);
        out.put_string(self.keyspace);
        name.into_iter().for_each(|name| out.put_string(name));
        if let Some(arguments) = arguments {
            out.put_string_list(&arguments.iter().collect::<Vec<_>>());
        }
    }
}
