//! Keys that are known only when values are bound: of lists bound to `IN`, and of a document bound
//! to `INSERT JSON`.
//!
//! A list is taken apart only if no server could read another element into it: servers decode the
//! elements of such a list and encode them again. So a key may have other bytes than the list.

use uuid::Uuid;

use super::combinations::{combinations, rows};
use super::json_keys::JsonKeys;
use super::key::{MAX_KEY, PartitionTemplate, ValueSource};
use super::named_keys::NamedKeys;
use super::types::{Form, KeyClass};
use crate::statement::Marker;

/// Most keys that the bound lists of one statement may name before its scope is widened.
pub const MAX_BOUND_KEYS: usize = 512;

/// Where the keys of a write come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BoundKeys {
    pub(crate) table: Uuid,
    pub(crate) source: KeySource,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum KeySource {
    /// Columns of which one is `IN` a bound list.
    Lists(KeyLists),
    /// `JSON ?`
    Json(JsonKeys, Marker),
}

/// The values of each key column; every combination of them is a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KeyLists {
    pub(crate) partition: Vec<KeyColumn>,
    /// None where the write is of whole partitions, or its rows are not certain.
    pub(crate) clustering: Option<Vec<KeyColumn>>,
}

/// The values of one key column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KeyColumn {
    pub(crate) class: KeyClass,
    pub(crate) values: KeyValues,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum KeyValues {
    /// These.
    Listed(Vec<ValueSource>),
    /// The elements of a bound list, which are of this form.
    Elements(Marker, Form),
}

impl BoundKeys {
    /// The table's id.
    pub fn table(&self) -> Uuid {
        self.table
    }

    /// The keys for these bound values. `value` gives the bytes bound to a marker, `None` when
    /// null, unset or missing. The templates may take values from other markers.
    pub fn resolve<'v>(&self, value: &impl Fn(&Marker) -> Option<&'v [u8]>) -> NamedKeys {
        match &self.source {
            KeySource::Lists(lists) => lists.resolve(self.table, value),
            KeySource::Json(keys, marker) => {
                let text = value(marker).and_then(|bytes| std::str::from_utf8(bytes).ok());
                text.map_or(NamedKeys::Table, |text| keys.of(self.table, text))
            }
        }
    }
}

impl KeyLists {
    fn resolve<'v>(&self, table: Uuid, value: &impl Fn(&Marker) -> Option<&'v [u8]>) -> NamedKeys {
        let every = |columns: &[KeyColumn], most| {
            combinations(columns.iter().map(|column| column.values(most, value)), most)
        };
        let Some(partitions) = every(&self.partition, MAX_BOUND_KEYS) else {
            return NamedKeys::Table;
        };
        let most = MAX_BOUND_KEYS / partitions.len().max(1);
        let clusterings = self.clustering.as_ref().and_then(|columns| every(columns, most));
        let partitions = partitions.into_iter().map(|parts| PartitionTemplate { table, parts });
        match clusterings {
            Some(clusterings) => NamedKeys::Rows(rows(partitions, &clusterings)),
            None => NamedKeys::Partitions(partitions.collect()),
        }
    }
}

impl KeyColumn {
    /// As [`KeyColumn::values`], also `None` if the text lists more than `most`. Repeated ones
    /// count: a reader need not sort any number of them.
    pub(super) fn few_values<'v>(
        &self,
        most: usize,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) -> Option<(Vec<ValueSource>, KeyClass)> {
        match &self.values {
            KeyValues::Listed(values) if values.len() > most => None,
            _ => self.values(most, value),
        }
    }

    /// Its values and class; `None` if its list cannot be read or has more than `most`.
    fn values<'v>(
        &self,
        most: usize,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) -> Option<(Vec<ValueSource>, KeyClass)> {
        let values = match &self.values {
            KeyValues::Listed(values) => values.clone(),
            KeyValues::Elements(marker, form) => {
                let elements = elements(value(marker)?, *form, most)?;
                elements.into_iter().map(|bytes| ValueSource::Literal(bytes.into())).collect()
            }
        };
        Some((values, self.class))
    }
}

/// The elements of a bound list of CQL, if every server reads them as these bytes. From v3 on that
/// is a count, then each with its length. Null and unset elements are none. Elements that are
/// longer than keys of cached rows would be copied too often.
fn elements(list: &[u8], form: Form, most: usize) -> Option<Vec<&[u8]>> {
    let number = |bytes: &[u8; 4]| usize::try_from(i32::from_be_bytes(*bytes)).ok();
    let (count, mut rest) = list.split_first_chunk::<4>()?;
    let count = number(count).filter(|count| *count <= most)?;
    let mut elements = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (element, after) = after.split_at_checked(number(length)?)?;
        if element.len() > MAX_KEY || !form.is_kept(element) {
            return None;
        }
        elements.push(element);
        rest = after;
    }
    rest.is_empty().then_some(elements)
}
