//! What a fill or a refresh brought for those who wait for it.

use afterglow_rowcache::entry::{Row, Unit};
use futures_channel::oneshot;

/// How a read that waits for another's fill hears of it.
pub(super) type FillWaiter = oneshot::Sender<FillResult>;

/// What was brought. The read that led it may have been planned for another shape of the table than
/// those that wait: one that was planned before a change of the schema may lead after it. So each
/// asks for what is of the shape that it was planned for.
#[derive(Clone)]
pub(super) enum FillResult {
    /// Nothing that can be shared.
    Nothing,
    Row(Row),
    Unit(Unit),
}

impl FillResult {
    /// The row, if it is of this shape of the table.
    pub(super) fn row(self, fingerprint: u64) -> Option<Row> {
        let FillResult::Row(row) = self else { return None };
        Some(row).filter(|row| row.stored().fingerprint() == fingerprint)
    }

    /// The unit, if it is of this shape of the table.
    pub(super) fn unit(self, fingerprint: u64) -> Option<Unit> {
        let FillResult::Unit(unit) = self else { return None };
        Some(unit).filter(|unit| unit.stored().fingerprint() == fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::plan::{Column, RowKey, TableSchema, unit_key};
    use afterglow_rowcache::row::encode_absent;
    use afterglow_rowcache::unit::{UnitAsked, read_unit};

    use super::*;

    #[test]
    fn who_waits_takes_nothing_of_another_shape_of_the_table() {
        let (led_for, waits_for) = (1, 2);
        let mut absent = Vec::new();
        encode_absent(led_for, &mut absent);
        let row = Row::checked(absent.into(), led_for).unwrap();
        let brought = FillResult::Row(row);
        assert!(brought.clone().row(led_for).is_some());
        assert!(brought.clone().row(waits_for).is_none());
        assert!(brought.unit(led_for).is_none());
        let table = TableSchema {
            partition_key: vec![Column::new("k", "text")],
            clustering: vec![Column::new("c", "int")],
            ..TableSchema::new("ks".into(), "t".into(), Default::default())
        };
        let key = RowKey::from_engine_key(&unit_key(table.id, b"a"), 1, 0).unwrap();
        let asked = UnitAsked { reversed: false, rows: 9, bytes: 100 };
        let empty = read_unit(&table, led_for, &key, &[], asked, 7).unwrap();
        let brought = FillResult::Unit(Unit::checked(empty.bytes.into(), led_for).unwrap());
        assert!(brought.clone().unit(led_for).is_some());
        assert!(brought.clone().unit(waits_for).is_none());
        assert!(brought.row(led_for).is_none());
    }
}
