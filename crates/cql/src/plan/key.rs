//! Keys of rows and partitions: templates made once a statement, filled with bound values once a
//! request.
//!
//! Engine key of a row: `table id (16) | partition key length u16 | partition key | per clustering
//! column: length u16 | value`, big endian. The partition key is as Cassandra serialises it: the
//! bare value, or for several columns each as `length u16 | value | 0`. Lengths come first, so two
//! different rows of a table never share a key, and the number of columns is fixed by the table id.
//!
//! The key of a partition's unit is the same without clustering columns ([`unit_key`]). Only tables
//! with clustering columns have units, so it is the key of no row.

use std::sync::Arc;

use thiserror::Error;
use uuid::Uuid;

use super::types::{KeyClass, is_canonical};
use crate::frame::notation::Value;
use crate::statement::Marker;

/// Longest engine key. Rows with longer ones are not cached.
pub const MAX_KEY: usize = 1024;

/// Where a key column's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueSource {
    /// A bound value.
    Bind(Marker),
    /// A literal, in the bytes of the column's type. One plan may name it in many keys, which share
    /// them.
    Literal(Arc<[u8]>),
}

impl ValueSource {
    /// The bytes of a number of this width. `value` gives what is bound to a marker, none if
    /// nothing is. `None` if it is null, unset or of another width.
    pub fn number<'v, const N: usize>(
        &self,
        value: &impl Fn(&Marker) -> Option<Value<'v>>,
    ) -> Option<[u8; N]> {
        match self {
            ValueSource::Literal(bytes) => bytes[..].try_into().ok(),
            ValueSource::Bind(marker) => value(marker)?.bytes()?.try_into().ok(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) slot: ValueSource,
    pub(crate) class: KeyClass,
}

/// Why a template gives no key for the bound values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// A partition key column is null, unset, missing, empty (the server refuses these) or longer
    /// than 65535 bytes.
    #[error("a partition key column has no usable value")]
    NoPartition,
    /// A clustering column is null, unset or missing: the partition is known, the row is not.
    #[error("a clustering column has no value")]
    NoRow,
    /// A clustering value may name the same row as other bytes do.
    #[error("a clustering value is not in its one canonical form")]
    NotCanonical,
    /// The key is longer than [`MAX_KEY`].
    #[error("the key is longer than {MAX_KEY} bytes")]
    TooLong,
}

/// How to make the key of a partition from bound values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartitionTemplate {
    pub(crate) table: Uuid,
    pub(crate) parts: Vec<Part>,
}

impl PartitionTemplate {
    /// The table's id.
    pub fn table(&self) -> Uuid {
        self.table
    }

    /// Writes the partition key as Cassandra serialises it (what the token is computed from) to the
    /// end of `out`. `value` gives the bytes bound to a marker, `None` when null, unset or missing.
    /// Only [`KeyError::NoPartition`] can come back; `out` is then unchanged.
    pub fn partition_key<'v>(
        &self,
        value: impl Fn(&Marker) -> Option<&'v [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), KeyError> {
        let start = out.len();
        let written = self.write(&value, out);
        if written.is_err() || out.len() - start > usize::from(u16::MAX) || out.len() == start {
            out.truncate(start);
            return Err(KeyError::NoPartition);
        }
        Ok(())
    }

    fn write<'v>(
        &self,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), KeyError> {
        let composite = self.parts.len() > 1;
        for part in &self.parts {
            let bytes = part.resolve(value).ok_or(KeyError::NoPartition)?;
            if composite {
                let length = u16::try_from(bytes.len()).map_err(|_| KeyError::NoPartition)?;
                out.extend_from_slice(&length.to_be_bytes());
            }
            out.extend_from_slice(bytes);
            if composite {
                out.push(0);
            }
        }
        Ok(())
    }
}

impl Part {
    fn resolve<'a, 'v: 'a>(
        &'a self,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) -> Option<&'a [u8]> {
        match &self.slot {
            ValueSource::Bind(marker) => value(marker),
            ValueSource::Literal(bytes) => Some(bytes),
        }
    }
}

/// How to make the key of a row from bound values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyTemplate {
    pub(crate) partition: PartitionTemplate,
    pub(crate) clustering: Vec<Part>,
}

impl KeyTemplate {
    /// The table's id.
    pub fn table(&self) -> Uuid {
        self.partition.table
    }

    /// The row's partition, for writes whose row turns out not to be nameable ([`KeyError::NoRow`],
    /// [`KeyError::NotCanonical`], [`KeyError::TooLong`]): they count as writes to the partition.
    pub fn partition(&self) -> &PartitionTemplate {
        &self.partition
    }

    /// Makes the row's key in `key`, whose buffer is reused. `value` gives the bytes bound to a
    /// marker, `None` when null, unset or missing. After an error `key` is empty.
    pub fn bind<'v>(
        &self,
        value: impl Fn(&Marker) -> Option<&'v [u8]>,
        key: &mut RowKey,
    ) -> Result<(), KeyError> {
        key.clear();
        let made = self.write(&value, key);
        if made.is_err() {
            key.clear();
        }
        made
    }

    fn write<'v>(
        &self,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
        key: &mut RowKey,
    ) -> Result<(), KeyError> {
        let bytes = &mut key.bytes;
        bytes.extend_from_slice(self.partition.table.as_bytes());
        bytes.extend_from_slice(&[0, 0]);
        self.partition.partition_key(value, bytes)?;
        let length = bytes.len() - PREFIX;
        bytes[16..PREFIX].copy_from_slice(&(length as u16).to_be_bytes());
        key.partition_columns = self.partition.parts.len() as u16;
        for part in &self.clustering {
            let value = part.resolve(value).ok_or(KeyError::NoRow)?;
            if !is_canonical(part.class, value) {
                return Err(KeyError::NotCanonical);
            }
            let length = u16::try_from(value.len()).map_err(|_| KeyError::TooLong)?;
            key.bytes.extend_from_slice(&length.to_be_bytes());
            key.bytes.extend_from_slice(value);
        }
        if key.bytes.len() > MAX_KEY { Err(KeyError::TooLong) } else { Ok(()) }
    }
}

const PREFIX: usize = 18;

/// The key of one row in the engine's form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RowKey {
    bytes: Vec<u8>,
    partition_columns: u16,
}

impl RowKey {
    /// An empty key, to be filled by [`KeyTemplate::bind`].
    pub fn new() -> RowKey {
        RowKey::default()
    }

    /// A key from its [`RowKey::engine_key`] and the number of its partition columns. `None` for
    /// bytes that are no such key, or have another number of key columns.
    pub fn from_engine_key(bytes: &[u8], partition: usize, clustering: usize) -> Option<RowKey> {
        let partition_columns = u16::try_from(partition).ok()?;
        let key = RowKey { bytes: bytes.to_vec(), partition_columns };
        let start = key.clustering_start();
        let fits = bytes.len() <= MAX_KEY && bytes.len() >= start && start > PREFIX;
        let whole = |fields: Fields<'_>, count: usize| {
            let (mut fields, mut read) = (fields, 0);
            while fields.next().is_some() {
                read += 1;
            }
            read == count && fields.rest.is_empty()
        };
        let parts = match partition {
            1 => true,
            _ => whole(Fields { rest: key.partition_key(), trailer: 1 }, partition),
        };
        let rest = bytes.get(start..)?;
        (fits && parts && whole(Fields { rest, trailer: 0 }, clustering)).then_some(key)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.partition_columns = 0;
    }

    /// The engine key; empty if the last bind failed.
    pub fn engine_key(&self) -> &[u8] {
        &self.bytes
    }

    /// The partition key as Cassandra serialises it: what the token is computed from.
    pub fn partition_key(&self) -> &[u8] {
        self.bytes.get(PREFIX..self.clustering_start()).unwrap_or_default()
    }

    /// The key of the unit of its partition.
    pub fn unit_key(&self) -> &[u8] {
        &self.bytes[..self.clustering_start()]
    }

    /// Whether it names a row of a table with clustering columns.
    pub fn has_clustering(&self) -> bool {
        self.bytes.len() > self.clustering_start()
    }

    fn clustering_start(&self) -> usize {
        clustering_start(&self.bytes)
    }

    /// Values of the clustering columns in table order.
    pub fn clustering(&self) -> impl Iterator<Item = &[u8]> {
        let clustering = self.bytes.get(self.clustering_start()..).unwrap_or_default();
        Fields { rest: clustering, trailer: 0 }
    }

    /// Values of the key columns in table order, partition key first.
    pub fn columns(&self) -> impl Iterator<Item = &[u8]> {
        partition_columns(self.partition_key(), self.partition_columns.into())
            .chain(self.clustering())
    }
}

/// The engine key of a partition's unit. `partition_key` is as Cassandra serialises it, so it is at
/// most 65535 bytes long.
pub fn unit_key(table: Uuid, partition_key: &[u8]) -> Vec<u8> {
    let length = (partition_key.len() as u16).to_be_bytes();
    [&table.as_bytes()[..], &length, partition_key].concat()
}

/// The engine key of the unit of the partition that a row or unit with this engine key belongs to.
/// All of it for bytes that are no engine key.
pub fn unit_part(engine_key: &[u8]) -> &[u8] {
    match clustering_start(engine_key) {
        0 => engine_key,
        start => engine_key.get(..start).unwrap_or(engine_key),
    }
}

/// Where the clustering values begin in an engine key; 0 for bytes that are too short.
fn clustering_start(engine_key: &[u8]) -> usize {
    match engine_key.get(16..PREFIX) {
        Some(length) => PREFIX + usize::from(u16::from_be_bytes([length[0], length[1]])),
        None => 0,
    }
}

/// The values of a partition key of so many columns, as Cassandra serialises it.
pub fn partition_columns(key: &[u8], columns: usize) -> impl Iterator<Item = &[u8]> {
    let single = (columns == 1).then_some(key);
    let composite = if columns > 1 { key } else { &[] };
    single.into_iter().chain(Fields { rest: composite, trailer: 1 })
}

/// Length-prefixed values, each followed by `trailer` bytes.
struct Fields<'a> {
    rest: &'a [u8],
    trailer: usize,
}

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.rest.split_first_chunk::<2>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        self.rest = rest.get(self.trailer..)?;
        Some(value)
    }
}
