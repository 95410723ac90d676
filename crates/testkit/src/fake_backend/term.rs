//! Types, literals and their bytes.

use afterglow_cql::response::CqlType;

use super::refusal::Refusal;

/// A value in a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    /// The bind marker with this number.
    Marker(usize),
    /// `null`
    Null,
    /// `'text'`
    Text(String),
    /// `0xCAFE`
    Blob(Vec<u8>),
    /// A number, as written.
    Number(String),
    /// A UUID.
    Uuid([u8; 16]),
    /// `true` or `false`
    Boolean(bool),
    /// `uuid()` or `now()`
    Made,
    /// `IN (...)`: each of these
    Each(Vec<Term>),
    /// `IN ?`: each element of the list bound to the marker with this number
    Elements(usize),
    /// Bytes of whatever type is wanted.
    Raw(Vec<u8>),
}

/// A bound value: bytes, null, or left alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// Bytes as the client sent them.
    Bytes(Vec<u8>),
    /// Null.
    Null,
    /// Not set.
    Unset,
}

impl Term {
    /// The bytes of this term as a value of `cql`; `values` are the bound ones.
    pub fn bytes(&self, cql: &CqlType, values: &[Bound]) -> Result<Bound, Refusal> {
        let wrong = || Refusal::invalid(format!("Invalid constant {self:?} for type {cql:?}"));
        let bytes = match (self, cql) {
            (Term::Marker(i), _) => {
                return values
                    .get(*i)
                    .cloned()
                    .ok_or_else(|| Refusal::invalid("Invalid amount of bind variables"));
            }
            (Term::Null, _) => return Ok(Bound::Null),
            (Term::Raw(bytes), _) => bytes.clone(),
            (Term::Made, CqlType::Uuid | CqlType::Timeuuid) => {
                let mut bytes = uuid::Uuid::new_v4().as_bytes().to_vec();
                if *cql == CqlType::Timeuuid {
                    bytes[6] = bytes[6] & 0x0f | 0x10; // version 1
                }
                bytes
            }
            (Term::Text(s), CqlType::Ascii | CqlType::Text | CqlType::Varchar) => {
                s.clone().into_bytes()
            }
            (Term::Blob(b), CqlType::Blob) => b.clone(),
            (Term::Uuid(u), CqlType::Uuid | CqlType::Timeuuid) => u.to_vec(),
            (Term::Boolean(b), CqlType::Boolean) => vec![u8::from(*b)],
            (Term::Number(n), _) => number(n, cql).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        Ok(Bound::Bytes(bytes))
    }
}

/// The elements of a list as drivers bind it.
pub fn elements(list: &[u8]) -> Option<Vec<Term>> {
    let (count, mut rest) = list.split_first_chunk::<4>()?;
    let mut elements = Vec::new();
    for _ in 0..i32::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        let (element, after) = after.split_at_checked(length)?;
        elements.push(Term::Raw(element.to_vec()));
        rest = after;
    }
    rest.is_empty().then_some(elements)
}

fn number(text: &str, cql: &CqlType) -> Option<Vec<u8>> {
    Some(match cql {
        CqlType::Tinyint => text.parse::<i8>().ok()?.to_be_bytes().to_vec(),
        CqlType::Smallint => text.parse::<i16>().ok()?.to_be_bytes().to_vec(),
        CqlType::Int => text.parse::<i32>().ok()?.to_be_bytes().to_vec(),
        CqlType::Bigint | CqlType::Timestamp | CqlType::Time => {
            text.parse::<i64>().ok()?.to_be_bytes().to_vec()
        }
        CqlType::Float => text.parse::<f32>().ok()?.to_be_bytes().to_vec(),
        CqlType::Double => text.parse::<f64>().ok()?.to_be_bytes().to_vec(),
        _ => return None,
    })
}

/// The type with this name (`text`, `frozen<map<text, text>>`, ...), as the schema tables write it.
pub fn type_named(name: &str) -> Option<CqlType> {
    if let Some((outer, inner)) = name.strip_suffix('>').and_then(|n| n.split_once('<')) {
        return match outer {
            "frozen" => type_named(inner),
            "list" => Some(CqlType::List(Box::new(type_named(inner)?))),
            "set" => Some(CqlType::Set(Box::new(type_named(inner)?))),
            "map" => {
                let (key, value) = inner.split_once(',')?;
                Some(CqlType::Map(
                    Box::new(type_named(key.trim())?),
                    Box::new(type_named(value.trim())?),
                ))
            }
            _ => None,
        };
    }
    Some(match name {
        "ascii" => CqlType::Ascii,
        "bigint" => CqlType::Bigint,
        "blob" => CqlType::Blob,
        "boolean" => CqlType::Boolean,
        "date" => CqlType::Date,
        "decimal" => CqlType::Decimal,
        "double" => CqlType::Double,
        "float" => CqlType::Float,
        "inet" => CqlType::Inet,
        "int" => CqlType::Int,
        "smallint" => CqlType::Smallint,
        "text" | "varchar" => CqlType::Varchar,
        "time" => CqlType::Time,
        "timestamp" => CqlType::Timestamp,
        "timeuuid" => CqlType::Timeuuid,
        "tinyint" => CqlType::Tinyint,
        "uuid" => CqlType::Uuid,
        "varint" => CqlType::Varint,
        _ => return None,
    })
}

/// The option bytes of a type in result metadata.
pub fn type_bytes(cql: &CqlType) -> Vec<u8> {
    let mut out = Vec::new();
    cql.encode(&mut out);
    out
}
