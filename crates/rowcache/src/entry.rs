//! A row as it is stored in the engine. A prefix says under what it was filled, when, and for how
//! long; the row itself follows.

use afterglow_cql::plan::{RowKey, TableSchema};
use bytes::Bytes;

use crate::row::StoredRow;
use crate::unit::{StoredUnit, Unanswered};

/// `claim u64 | filled_at u32 | max_age u32`, little endian, before the stored row. The highest bit
/// of a maximum age that is not [`ENDLESS`] says that the row is doubted.
const PREFIX: usize = 16;
/// The maximum age of rows without an end.
pub(crate) const ENDLESS: u32 = u32::MAX;
const DOUBTED: u32 = 1 << 31;
/// The longest maximum age that has an end: 68 years.
const LONGEST: u32 = DOUBTED - 1;

/// The prefix of a stored row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The claim that it was filled under. For rows that were not filled under `exclusive`, the
    /// boot of the machine.
    pub claim: u64,
    /// When the fill was sent, in seconds since boot.
    pub filled_at: u32,
    /// The age in seconds at which it is served no more, or [`ENDLESS`].
    pub max_age: u32,
    /// A gate of it was weak or held when it was filled, so that the fill may have missed a write.
    /// Such a row has an end. It never gets the values of a later write.
    pub doubted: bool,
}

impl Origin {
    /// The value to store.
    pub fn before(self, row: &[u8]) -> Vec<u8> {
        let max_age = match (self.max_age, self.doubted) {
            (ENDLESS, doubted) => {
                assert!(!doubted, "a doubted row has no end");
                ENDLESS
            }
            (max_age, false) => max_age.min(LONGEST),
            (max_age, true) => max_age.min(LONGEST) | DOUBTED,
        };
        let mut value = Vec::with_capacity(PREFIX + row.len());
        value.extend_from_slice(&self.claim.to_le_bytes());
        value.extend_from_slice(&self.filled_at.to_le_bytes());
        value.extend_from_slice(&max_age.to_le_bytes());
        value.extend_from_slice(row);
        value
    }

    /// Reads a stored value. `None` for one that is too short to have been stored here.
    pub fn split(value: &[u8]) -> Option<(Origin, &[u8])> {
        let (prefix, row) = value.split_first_chunk::<PREFIX>()?;
        let (claim, times) = prefix.split_first_chunk::<8>()?;
        let (filled_at, max_age) = times.split_first_chunk::<4>()?;
        let (max_age, doubted) = match u32::from_le_bytes(max_age.try_into().ok()?) {
            ENDLESS => (ENDLESS, false),
            max_age => (max_age & LONGEST, max_age & DOUBTED != 0),
        };
        let origin = Origin {
            claim: u64::from_le_bytes(*claim),
            filled_at: u32::from_le_bytes(*filled_at),
            max_age,
            doubted,
        };
        Some((origin, row))
    }
}

/// A cached row: its bytes are checked and belong to the table shape that was asked for.
#[derive(Debug, Clone)]
pub struct Row {
    bytes: Bytes,
    age: Option<u32>,
}

impl Row {
    /// The row itself.
    pub fn stored(&self) -> StoredRow<'_> {
        StoredRow::decode(&self.bytes).expect("checked when it was made")
    }

    /// Its bytes, for another instance: [`Row::checked`] takes them there.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Seconds since its fill was sent, when it was found. `None` if it was not found in this
    /// instance's cache.
    pub fn age(&self) -> Option<u32> {
        self.age
    }

    pub(crate) fn aged(self, age: u32) -> Row {
        Row { age: Some(age), ..self }
    }

    /// `None` for what is not a stored row of this shape of the table.
    pub fn checked(bytes: Bytes, fingerprint: u64) -> Option<Row> {
        StoredRow::decode(&bytes)
            .is_some_and(|row| row.fingerprint() == fingerprint)
            .then_some(Row { bytes, age: None })
    }
}

/// A cached unit of a partition, of the table shape that was asked for.
#[derive(Debug, Clone)]
pub struct Unit {
    bytes: Bytes,
    age: Option<u32>,
}

impl Unit {
    /// The unit itself.
    pub fn stored(&self) -> StoredUnit<'_> {
        StoredUnit::decode(&self.bytes).expect("checked when it was made")
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// As [`Row::age`].
    pub fn age(&self) -> Option<u32> {
        self.age
    }

    pub(crate) fn aged(self, age: u32) -> Unit {
        Unit { age: Some(age), ..self }
    }

    /// The row of `table` with this key, or that there is none. It is for an answer only.
    ///
    /// # Errors
    /// Why the unit does not tell.
    pub fn row(&self, table: &TableSchema, key: &RowKey) -> Result<Row, Unanswered> {
        Ok(Row { bytes: self.stored().row(table, key)?.into(), age: self.age })
    }

    /// `None` for what is not a unit of this shape of the table.
    pub fn checked(bytes: Bytes, fingerprint: u64) -> Option<Unit> {
        StoredUnit::decode(&bytes)
            .is_some_and(|unit| unit.fingerprint() == fingerprint)
            .then_some(Unit { bytes, age: None })
    }
}
