//! Records as rows: where each is, how it is inserted, and whether a row is one.

use afterglow_cql::{message::Consistency, response::Row};

use super::{Connection, CqlError, Template, table::TableSpec};
use crate::values::{self, KEY_LEN};

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The partition's number, from which its key follows.
    pub(super) partition: u64,
    /// The row within it, where partitions have several.
    pub(super) row: Option<u32>,
}

impl Place {
    /// Where record `number` of a table is.
    pub(super) fn of(table: &TableSpec, number: u64) -> Self {
        match u64::from(table.partition_rows) {
            0 => Self { partition: number, row: None },
            rows => Self { partition: number / rows, row: Some((number % rows) as u32) },
        }
    }

    /// What its values follow from: no other place has it.
    fn seed(self) -> u64 {
        self.row.map_or(self.partition, |row| self.partition << 32 | u64::from(row))
    }

    /// Whether the row's key and values are some that were written there.
    pub(super) fn holds(self, table: &TableSpec, row: &Row<'_>) -> bool {
        let mut cells = row.cells();
        let right_key = cells.next() == Some(Some(&key(self.partition)[..]));
        let right_row = self.row.is_none_or(|at| cells.next() == Some(Some(&at.to_be_bytes()[..])));
        let right_fields = (0..table.fields).zip(cells.by_ref()).filter(|(field, cell)| {
            cell.is_some_and(|c| {
                c.len() == table.field_size as usize
                    && values::verify(self.seed(), *field, table.zeros, c).is_some()
            })
        });
        let complete = right_fields.count() == table.fields as usize && cells.next().is_none();
        right_key && right_row && complete
    }
}

/// The key of a partition.
pub(super) fn key(partition: u64) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    values::write_key(partition, &mut key);
    key
}

/// The prepared statement that writes whole records.
pub(super) struct Insert(Template);

impl Insert {
    pub(super) fn prepare(
        connection: &mut Connection,
        table: &TableSpec,
        consistency: Consistency,
    ) -> Result<Self, CqlError> {
        let prepared = connection.prepare(&table.insert())?;
        let mut lengths = vec![KEY_LEN];
        lengths.extend((table.partition_rows > 0).then_some(size_of::<u32>()));
        lengths.extend(vec![table.field_size as usize; table.fields as usize]);
        Ok(Self(Template::of_write(connection.version(), &prepared, &lengths, consistency)))
    }

    /// Appends the request that writes the record at `place`.
    pub(super) fn append(&self, table: &TableSpec, place: Place, stream: u16, out: &mut Vec<u8>) {
        let Self(template) = self;
        let envelope = template.append(stream, out);
        envelope[template.place(0)].copy_from_slice(&key(place.partition));
        let mut first = 1;
        if let Some(row) = place.row {
            envelope[template.place(1)].copy_from_slice(&row.to_be_bytes());
            first = 2;
        }
        for field in 0..table.fields {
            let value = &mut envelope[template.place(first + field as usize)];
            values::fill(place.seed(), field, 0, table.zeros, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_fill_one_partition_after_the_other() {
        let mut table = TableSpec {
            keyspace: "k".into(),
            table: "t".into(),
            records: 10,
            fields: 1,
            field_size: 8,
            zeros: 0,
            partition_rows: 0,
            newest_first: false,
        };
        assert_eq!(Place::of(&table, 9), Place { partition: 9, row: None });
        table.partition_rows = 4;
        assert_eq!(Place::of(&table, 9), Place { partition: 2, row: Some(1) });
        let seeds = [Place::of(&table, 9).seed(), Place::of(&table, 6).seed()];
        assert_ne!(seeds[0], seeds[1]);
    }
}
