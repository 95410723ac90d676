//! Type options: how a column's type is written in result metadata ("\[option\]" of section
//! 4.2.5.2).

use crate::error::ProtocolError;
use crate::frame::notation::{Put, Reader, Result};

/// How deep types may nest: far more than a database allows, little enough for any stack.
pub const MAX_TYPE_DEPTH: usize = 64;

/// A column's type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of CQL")]
pub enum CqlType {
    /// A class of the server: vectors (Cassandra 5), `duration` in v4, and whatever users put
    /// there.
    Custom(String),
    Ascii,
    Bigint,
    Blob,
    Boolean,
    Counter,
    Decimal,
    Double,
    Float,
    Int,
    /// `text` under its number of v1 and v2.
    Text,
    Timestamp,
    Uuid,
    Varchar,
    Varint,
    Timeuuid,
    Inet,
    Date,
    Time,
    Smallint,
    Tinyint,
    Duration,
    List(Box<CqlType>),
    Map(Box<CqlType>, Box<CqlType>),
    Set(Box<CqlType>),
    /// A user-defined type with its fields.
    Udt {
        keyspace: String,
        name: String,
        fields: Vec<(String, CqlType)>,
    },
    Tuple(Vec<CqlType>),
}

/// Types without parameters.
const SCALARS: [(u16, CqlType); 20] = [
    (0x01, CqlType::Ascii),
    (0x02, CqlType::Bigint),
    (0x03, CqlType::Blob),
    (0x04, CqlType::Boolean),
    (0x05, CqlType::Counter),
    (0x06, CqlType::Decimal),
    (0x07, CqlType::Double),
    (0x08, CqlType::Float),
    (0x09, CqlType::Int),
    (0x0A, CqlType::Text),
    (0x0B, CqlType::Timestamp),
    (0x0C, CqlType::Uuid),
    (0x0D, CqlType::Varchar),
    (0x0E, CqlType::Varint),
    (0x0F, CqlType::Timeuuid),
    (0x10, CqlType::Inet),
    (0x11, CqlType::Date),
    (0x12, CqlType::Time),
    (0x13, CqlType::Smallint),
    (0x14, CqlType::Tinyint),
];
const CUSTOM: u16 = 0x00;
const DURATION: u16 = 0x15;
const LIST: u16 = 0x20;
const MAP: u16 = 0x21;
const SET: u16 = 0x22;
const UDT: u16 = 0x30;
const TUPLE: u16 = 0x31;

const DURATION_CLASS: &str = "org.apache.cassandra.db.marshal.DurationType";
const VECTOR_CLASS: &str = "org.apache.cassandra.db.marshal.VectorType";

/// The number of a native type in metadata, by its name in the schema's tables; its option is that
/// number alone. `None` for all others, and for those that servers write in several ways.
pub fn scalar_code(name: &str) -> Option<u16> {
    Some(match name {
        "ascii" => 0x01,
        "bigint" => 0x02,
        "blob" => 0x03,
        "boolean" => 0x04,
        "decimal" => 0x06,
        "double" => 0x07,
        "float" => 0x08,
        "int" => 0x09,
        "timestamp" => 0x0B,
        "uuid" => 0x0C,
        "text" => 0x0D,
        "varint" => 0x0E,
        "timeuuid" => 0x0F,
        "inet" => 0x10,
        "date" => 0x11,
        "time" => 0x12,
        "smallint" => 0x13,
        "tinyint" => 0x14,
        _ => return None,
    })
}

impl CqlType {
    /// Parses the bytes of one option, as [`super::ColumnSpec::type_bytes`] has them.
    pub fn parse(option: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(option);
        let parsed = Self::read(&mut reader, MAX_TYPE_DEPTH)?;
        if reader.is_empty() {
            Ok(parsed)
        } else {
            Err(ProtocolError::new("Type option is followed by more bytes"))
        }
    }

    fn read(reader: &mut Reader<'_>, depth: usize) -> Result<Self> {
        let depth = deeper(depth)?;
        Ok(match reader.short()? {
            CUSTOM => CqlType::Custom(reader.string()?.to_owned()),
            DURATION => CqlType::Duration,
            LIST => CqlType::List(Box::new(Self::read(reader, depth)?)),
            SET => CqlType::Set(Box::new(Self::read(reader, depth)?)),
            MAP => {
                let key = Box::new(Self::read(reader, depth)?);
                CqlType::Map(key, Box::new(Self::read(reader, depth)?))
            }
            UDT => {
                let (keyspace, name) = (reader.string()?.to_owned(), reader.string()?.to_owned());
                let count = reader.short()?;
                let field = |_| Ok((reader.string()?.to_owned(), Self::read(reader, depth)?));
                CqlType::Udt {
                    keyspace,
                    name,
                    fields: (0..count).map(field).collect::<Result<_>>()?,
                }
            }
            TUPLE => {
                let count = reader.short()?;
                CqlType::Tuple(
                    (0..count).map(|_| Self::read(reader, depth)).collect::<Result<_>>()?,
                )
            }
            code => match SCALARS.iter().find(|(c, _)| *c == code) {
                Some((_, scalar)) => scalar.clone(),
                None => return Err(unknown(code)),
            },
        })
    }

    /// Appends the option.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            CqlType::Custom(class) => {
                out.put_short(CUSTOM);
                out.put_string(class);
            }
            CqlType::Duration => out.put_short(DURATION),
            CqlType::List(element) => {
                out.put_short(LIST);
                element.encode(out);
            }
            CqlType::Set(element) => {
                out.put_short(SET);
                element.encode(out);
            }
            CqlType::Map(key, value) => {
                out.put_short(MAP);
                key.encode(out);
                value.encode(out);
            }
            CqlType::Udt { keyspace, name, fields } => {
                out.put_short(UDT);
                out.put_string(keyspace);
                out.put_string(name);
                out.put_short_len(fields.len());
                for (name, field) in fields {
                    out.put_string(name);
                    field.encode(out);
                }
            }
            CqlType::Tuple(elements) => {
                out.put_short(TUPLE);
                out.put_short_len(elements.len());
                elements.iter().for_each(|e| e.encode(out));
            }
            scalar => {
                let code = SCALARS.iter().find(|(_, t)| t == scalar).map(|(c, _)| *c);
                out.put_short(code.expect("every scalar has a code"));
            }
        }
    }

    /// Whether this is a list, set or map.
    pub fn is_collection(&self) -> bool {
        matches!(self, CqlType::List(_) | CqlType::Set(_) | CqlType::Map(..))
    }

    /// Whether this is `counter`.
    pub fn is_counter(&self) -> bool {
        *self == CqlType::Counter
    }

    /// Whether this is `duration`, which v4 writes as a class.
    pub fn is_duration(&self) -> bool {
        matches!(self, CqlType::Duration)
            || matches!(self, CqlType::Custom(class) if class == DURATION_CLASS)
    }

    /// Class of the elements and dimension of a vector, if this is one.
    pub fn as_vector(&self) -> Option<(&str, usize)> {
        let CqlType::Custom(class) = self else { return None };
        let parameters =
            class.strip_prefix(VECTOR_CLASS)?.trim().strip_prefix('(')?.strip_suffix(')')?;
        let (element, dimension) = parameters.rsplit_once(',')?;
        Some((element.trim(), dimension.trim().parse().ok()?))
    }
}

fn deeper(depth: usize) -> Result<usize> {
    depth.checked_sub(1).ok_or_else(|| ProtocolError::new("Types are nested too deep"))
}

fn unknown(code: u16) -> ProtocolError {
    ProtocolError::new(format!("Unknown type option {code:#06x}"))
}

/// Steps over one option without building anything.
pub(super) fn skip_type(reader: &mut Reader<'_>) -> Result<()> {
    skip(reader, MAX_TYPE_DEPTH)
}

fn skip(reader: &mut Reader<'_>, depth: usize) -> Result<()> {
    let depth = deeper(depth)?;
    match reader.short()? {
        CUSTOM => reader.string().map(drop),
        0x01..=DURATION => Ok(()),
        LIST | SET => skip(reader, depth),
        MAP => {
            skip(reader, depth)?;
            skip(reader, depth)
        }
        UDT => {
            reader.string()?;
            reader.string()?;
            for _ in 0..reader.short()? {
                reader.string()?;
                skip(reader, depth)?;
            }
            Ok(())
        }
        TUPLE => (0..reader.short()?).try_for_each(|_| skip(reader, depth)),
        code => Err(unknown(code)),
    }
}
