//! The ring's row in the database: `afterglow.ring`, one row for each data centre and ring name. It
//! is read at LOCAL_SERIAL and changed by compare-and-set of its version.

use std::rc::Rc;
use std::sync::Arc;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode};
use afterglow_cql::message::{Consistency, Query, QueryParams, ValuesBuilder};
use afterglow_ring::{Map, TransactionResult};

use crate::frontend::cql::cached::own_query::remedy;
use crate::frontend::cql::{Backend, Fetched, refusal};

/// Creates the table; the keyspace is the lease's.
pub const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS afterglow.ring \
     (data_center text, name text, version bigint, map blob, PRIMARY KEY (data_center, name))";

/// Which ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingName {
    /// The data centre of its database nodes.
    pub data_center: String,
    /// Its name there.
    pub name: String,
}

/// Why the row says nothing.
#[derive(Debug, thiserror::Error)]
pub enum MapRowError {
    /// The database did not answer.
    #[error("no node of the database has answered")]
    NoAnswer,
    /// The database refused.
    #[error("the database refuses to read the ring's map: {1}")]
    Refused(ErrorCode, String),
    /// The row cannot be read.
    #[error(
        "the ring's map cannot be read ({0}): another version of Afterglow may have written it"
    )]
    Malformed(afterglow_ring::Malformed),
    /// The map has another number of shards.
    #[error("the ring has {0} shards, this version of Afterglow {1}")]
    Shards(usize, usize),
}

impl MapRowError {
    /// What to do about it, if there is anything.
    fn remedy(&self) -> Option<&'static str> {
        use afterglow_ring::Malformed::{Unknown, Version};
        match self {
            Self::NoAnswer => None,
            Self::Refused(code, _) => Some(remedy(Some(*code))),
            Self::Malformed(Version | Unknown) | Self::Shards(..) => Some(
                "Upgrade this instance, or give the ring of this release another name with --ring-name. If no instance of another release has this name the row is damaged: stop all members of all rings over this database, run `TRUNCATE afterglow.ring` and start them again",
            ),
            Self::Malformed(_) => Some(
                "If no instance of another release has this --ring-name the row is damaged: stop all members of all rings over this database, run `TRUNCATE afterglow.ring` and start them again",
            ),
        }
    }

    /// The error, and what to do about it.
    pub fn with_remedy(&self) -> String {
        let remedy = self.remedy().map_or_else(String::new, |remedy| format!(". {remedy}"));
        format!("{self}{remedy}")
    }
}

/// Reads the map at LOCAL_SERIAL; an empty one where there is no row.
///
/// # Errors
/// [`MapRowError`].
pub async fn read(
    backend: &Rc<Backend>,
    name: &RingName,
    shards: usize,
) -> Result<Map, MapRowError> {
    let text = "SELECT version, map FROM afterglow.ring WHERE data_center = ? AND name = ?";
    let mut values = ValuesBuilder::positional();
    values.push(Value::Bytes(name.data_center.as_bytes()));
    values.push(Value::Bytes(name.name.as_bytes()));
    let fetched = query(backend, text, &values, Consistency::LocalSerial).await?;
    let Some(row) = fetched.rows().next() else { return Ok(Map::empty(shards)) };
    let map = row.bytes("map").unwrap_or_default();
    let map = Map::decode(map).map_err(MapRowError::Malformed)?;
    match map.shards.len() {
        count if count == shards => Ok(map),
        count => Err(MapRowError::Shards(count, shards)),
    }
}

/// Puts a map in the place of the version before it.
///
/// # Errors
/// Why the database did not do it. It may yet do it: the outcome is unknown.
pub async fn transact(
    backend: &Rc<Backend>,
    name: &RingName,
    map: &Arc<Map>,
) -> Result<TransactionResult, MapRowError> {
    let (version, before, bytes) =
        ((map.version as i64).to_be_bytes(), (map.version as i64 - 1).to_be_bytes(), map.encode());
    let (center, ring) = (name.data_center.as_bytes(), name.name.as_bytes());
    let mut values = ValuesBuilder::positional();
    let text = if map.version == 1 {
        for value in [center, ring, &version, &bytes] {
            values.push(Value::Bytes(value));
        }
        "INSERT INTO afterglow.ring (data_center, name, version, map) VALUES (?, ?, ?, ?) \
         IF NOT EXISTS"
    } else {
        for value in [&version[..], &bytes, center, ring, &before] {
            values.push(Value::Bytes(value));
        }
        "UPDATE afterglow.ring SET version = ?, map = ? WHERE data_center = ? AND name = ? \
         IF version = ?"
    };
    let fetched = query(backend, text, &values, Consistency::LocalQuorum).await?;
    Ok(match fetched.applied() {
        Some(true) => TransactionResult::Applied,
        // What is there now is read apart: the answer has the version alone.
        Some(false) => match read(backend, name, map.shards.len()).await {
            Ok(now) => TransactionResult::Refused(Arc::new(now)),
            Err(_) => TransactionResult::Unknown,
        },
        None => TransactionResult::Unknown,
    })
}

async fn query(
    backend: &Rc<Backend>,
    text: &str,
    values: &ValuesBuilder,
    consistency: Consistency,
) -> Result<Fetched, MapRowError> {
    let mut params = QueryParams::new(consistency);
    params.serial_consistency = Some(Consistency::LocalSerial);
    params.values = values.view();
    let mut body = Vec::new();
    Query { text, params }.encode(backend.version(), &mut body);
    let answer = backend.call(Opcode::Query, Flags::NONE, body.into()).await;
    let answer = answer.map_err(|_| MapRowError::NoAnswer)?;
    Fetched::new(&answer).ok_or_else(|| match refusal(&answer) {
        Some((code, words)) => MapRowError::Refused(code, words),
        None => MapRowError::NoAnswer,
    })
}
