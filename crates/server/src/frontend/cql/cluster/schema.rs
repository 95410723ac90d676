//! The database's schema as the front end sees it, made of what the database's own tables show.

use std::collections::HashMap;

use afterglow_cql::graces::Graces;
use afterglow_cql::plan::{Column, TableSchema};
use afterglow_cql::schema::{ChangeTime, Schema};
use uuid::Uuid;

use crate::frontend::cql::cluster::rows::{Fetched, FetchedRow, text_map, text_set};

/// The queries whose answers make a snapshot, in the order of [`Sources`].
pub const QUERIES: [&str; 8] = [
    "SELECT keyspace_name, replication FROM system_schema.keyspaces",
    "SELECT keyspace_name, table_name, id, flags, default_time_to_live, gc_grace_seconds, extensions FROM system_schema.tables",
    "SELECT keyspace_name, view_name, id FROM system_schema.views",
    "SELECT keyspace_name, table_name, column_name, kind, position, type, clustering_order FROM system_schema.columns",
    "SELECT keyspace_name, table_name FROM system_schema.indexes",
    "SELECT keyspace_name, table_name FROM system_schema.triggers",
    "SELECT keyspace_name, table_name, column_name, dropped_time FROM system_schema.dropped_columns",
    // Cassandra 5.0 only; refused by others.
    "SELECT keyspace_name, table_name, column_name FROM system_schema.column_masks",
];

/// The queries that tell when tables, views and keyspaces were last changed. They are sent before
/// [`QUERIES`] and after. What changes in between has two times, and the snapshot may show it or
/// not, or one change of several. So it gets no time, and counts as changed.
pub const TIMES: [&str; 3] = [
    "SELECT id, writetime(id) FROM system_schema.tables",
    "SELECT id, writetime(id) FROM system_schema.views",
    "SELECT keyspace_name, writetime(replication) FROM system_schema.keyspaces",
];

/// The answers to [`QUERIES`] and [`TIMES`].
pub struct Sources {
    /// Of each of [`TIMES`], before the others; none where the database does not tell.
    pub times: [Option<Fetched>; 3],
    /// Of each of [`TIMES`], after the others.
    pub times_after: [Option<Fetched>; 3],
    /// `keyspaces`
    pub keyspaces: Fetched,
    /// `tables`
    pub tables: Fetched,
    /// `views`
    pub views: Fetched,
    /// `columns`
    pub columns: Fetched,
    /// `indexes`
    pub indexes: Fetched,
    /// `triggers`
    pub triggers: Fetched,
    /// `dropped_columns`
    pub dropped: Fetched,
    /// `column_masks`; `None` where there is no such table.
    pub masks: Option<Fetched>,
}

impl Sources {
    /// Nothing has changed from the first of them to the last, as far as times tell. Every change
    /// of a table, of its columns, indexes, triggers and masks sets its time.
    pub fn are_of_one_moment(&self) -> bool {
        let are_told = |read: &[Option<Fetched>; 3]| {
            let [tables, views, keyspaces] =
                read.each_ref().map(|one| one.as_ref().map(Fetched::rows));
            let is_told = |row: FetchedRow<'_>| table_time(&row).is_some();
            tables.is_some_and(|mut rows| rows.all(is_told))
                && views.is_some_and(|mut rows| rows.all(is_told))
                && keyspaces.is_some_and(|mut rows| rows.all(|row| keyspace_time(&row).is_some()))
        };
        are_told(&self.times)
            && are_told(&self.times_after)
            && times(&self.times) == times(&self.times_after)
    }

    /// The times to read everything again with. What has changed since the first of them, maybe
    /// twice, has no time then.
    pub fn first_times(self) -> [Option<Fetched>; 3] {
        self.times
    }
}

/// Builds a snapshot. Rows that do not look as they should are left out: their tables are then
/// unknown and not cached.
pub fn build(sources: &Sources) -> Schema {
    let mut schema = Schema::default();
    for row in sources.keyspaces.rows() {
        if let Some(name) = row.text("keyspace_name") {
            let replication = row.bytes("replication").map(text_map).unwrap_or_default();
            schema.add_keyspace(name, replication);
        }
    }
    let mut tables: HashMap<(String, String), TableSchema> = HashMap::new();
    let mut graces: HashMap<Uuid, Graces> = HashMap::new();
    for row in sources.tables.rows() {
        let Some(mut table) = bare_table(&row, "table_name") else { continue };
        let flags = row.bytes("flags").map(text_set).unwrap_or_default();
        let has = |flag: &str| flags.iter().any(|f| f == flag);
        table.counter = has("counter");
        table.compact = !has("compound") || has("dense") || has("super");
        table.default_ttl =
            row.int("default_time_to_live").and_then(|ttl| u32::try_from(ttl).ok()).unwrap_or(0);
        let grace = row.int("gc_grace_seconds").and_then(|grace| u32::try_from(grace).ok());
        graces.insert(table.id, Graces::of(grace, row.bytes("extensions")));
        table.expiring_rows = has_expiring_rows(row.bytes("extensions"));
        // Both came with Cassandra 5.0.
        table.element_times = sources.masks.is_some();
        tables.insert((table.keyspace.clone(), table.name.clone()), table);
    }
    for row in sources.views.rows() {
        if let Some(mut view) = bare_table(&row, "view_name") {
            view.view = true;
            tables.insert((view.keyspace.clone(), view.name.clone()), view);
        }
    }
    add_columns(sources, &mut tables);
    for row in sources.indexes.rows() {
        if let Some(table) = row.table().and_then(|key| tables.get_mut(&key)) {
            table.indexed = true;
        }
    }
    for row in sources.triggers.rows() {
        if let Some(table) = row.table().and_then(|key| tables.get_mut(&key)) {
            table.triggers = true;
        }
    }
    for table in tables.into_values() {
        let graces = graces.get(&table.id).copied().unwrap_or_default();
        schema.add_table(table, graces);
    }
    add_times(sources, &mut schema);
    schema
}

/// Adds the times that were the same before and after everything else was read.
fn add_times(sources: &Sources, schema: &mut Schema) {
    let [tables, keyspaces] = times(&sources.times);
    let [tables_after, keyspaces_after] = times(&sources.times_after);
    for (id, time) in unchanged(tables, &tables_after) {
        if let Ok(id) = Uuid::from_slice(&id) {
            schema.set_table_time(id, time);
        }
    }
    for (name, time) in unchanged(keyspaces, &keyspaces_after) {
        if let Ok(name) = String::from_utf8(name) {
            schema.set_keyspace_time(name, time);
        }
    }
}

type ChangeTimes = HashMap<Vec<u8>, ChangeTime>;

fn unchanged(
    before: ChangeTimes,
    after: &ChangeTimes,
) -> impl Iterator<Item = (Vec<u8>, ChangeTime)> {
    before.into_iter().filter(|(of, time)| after.get(of) == Some(time))
}

/// What one reading of [`TIMES`] tells: of tables and views by their ids, of keyspaces by name.
fn times(read: &[Option<Fetched>; 3]) -> [ChangeTimes; 2] {
    let [tables, views, keyspaces] = read;
    let all = [tables, views].into_iter().flatten().flat_map(Fetched::rows);
    let keyspaces = keyspaces.iter().flat_map(Fetched::rows);
    [
        all.filter_map(|row| table_time(&row)).collect(),
        keyspaces.filter_map(|row| keyspace_time(&row)).collect(),
    ]
}

/// The id of a table or view, and its time. `None` if it has none.
fn table_time(row: &FetchedRow<'_>) -> Option<(Vec<u8>, ChangeTime)> {
    Some((row.bytes("id")?.to_vec(), row.bigint("writetime(id)")?))
}

fn keyspace_time(row: &FetchedRow<'_>) -> Option<(Vec<u8>, ChangeTime)> {
    Some((row.bytes("keyspace_name")?.to_vec(), row.bigint("writetime(replication)")?))
}

fn bare_table(row: &FetchedRow<'_>, name: &str) -> Option<TableSchema> {
    let keyspace = row.text("keyspace_name")?;
    let id = row.bytes("id").and_then(|id| Uuid::from_slice(id).ok())?;
    let system = is_system(&keyspace);
    Some(TableSchema {
        system,
        element_times: false,
        ..TableSchema::new(keyspace, row.text(name)?, id)
    })
}

/// Keyspaces that the database keeps for itself, and ours, which instances write past their caches.
/// A user's keyspace that happens to start with `system` is taken for one: it is passed through,
/// which is never wrong.
fn is_system(keyspace: &str) -> bool {
    keyspace.starts_with("system") || keyspace.starts_with("dse_") || keyspace == "afterglow"
}

/// Whether the `extensions` of a table say that a column has the end of each row. ScyllaDB keeps
/// the column's name under this tag. Where the tag is in the map does not matter: to cache less is
/// never wrong.
fn has_expiring_rows(extensions: Option<&[u8]>) -> bool {
    const TAG: &[u8] = b"system:ttl_attribute";
    extensions.is_some_and(|bytes| bytes.windows(TAG.len()).any(|part| part == TAG))
}

fn add_columns(sources: &Sources, tables: &mut HashMap<(String, String), TableSchema>) {
    let masked: std::collections::HashSet<_> = sources
        .masks
        .iter()
        .flat_map(Fetched::rows)
        .filter_map(|row| Some((row.table()?, row.text("column_name")?)))
        .collect();
    let dropped: HashMap<_, _> = sources
        .dropped
        .rows()
        .filter_map(|row| {
            let time = row.bigint("dropped_time")?;
            Some(((row.table()?, row.text("column_name")?), time))
        })
        .collect();
    let mut columns: Vec<_> = sources
        .columns
        .rows()
        .filter_map(|row| {
            let table = row.table()?;
            let name = row.text("column_name")?;
            let mut column = Column::new(name.clone(), row.text("type")?);
            let named = (table.clone(), name);
            column.masked = masked.contains(&named);
            column.descending = row.text("clustering_order")? == "desc";
            // There again after it was dropped: what was cached before is of another column.
            column.dropped_at = dropped.get(&named).copied().unwrap_or(0);
            Some((table, row.text("kind")?, row.int("position")?, column))
        })
        .collect();
    // Key columns by their position; the others have none.
    columns.sort_by_key(|(_, _, position, _)| *position);
    for (table, kind, _, column) in columns {
        let Some(table) = tables.get_mut(&table) else { continue };
        match kind.as_str() {
            "partition_key" => table.partition_key.push(column),
            "clustering" => table.clustering.push(column),
            "static" => table.statics.push(column),
            _ => table.regulars.push(column),
        }
    }
    tables.values_mut().for_each(TableSchema::sort_values);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use afterglow_cql::plan::{NotCacheable, SchemaView};

    use super::*;

    type Row<'a> = &'a [&'a [u8]];

    fn fetched(columns: &[&str], rows: &[Row<'_>]) -> Fetched {
        Fetched::of(
            columns,
            rows.iter().map(|row| row.iter().map(|cell| Some(cell.to_vec())).collect()).collect(),
        )
    }

    fn text_collection(items: &[&str], entries: i32) -> Vec<u8> {
        let mut out = entries.to_be_bytes().to_vec();
        for item in items {
            out.extend((item.len() as i32).to_be_bytes());
            out.extend(item.as_bytes());
        }
        out
    }

    fn times_at(time: i64) -> [Option<Fetched>; 3] {
        let time = time.to_be_bytes();
        [
            Some(fetched(&["id", "writetime(id)"], &[&[&[7; 16], &time]])),
            None,
            Some(fetched(&["keyspace_name", "writetime(replication)"], &[&[b"ks", &time]])),
        ]
    }

    fn sources() -> Sources {
        let int = |n: i32| n.to_be_bytes();
        let plain = text_collection(&["compound"], 1);
        let dense = text_collection(&["compound", "dense"], 2);
        let counting = text_collection(&["compound", "counter"], 2);
        let replication =
            text_collection(&["class", "SimpleStrategy", "replication_factor", "3"], 2);
        // `none` is also an empty map.
        let (id, ttl, none, damaged) = ([7; 16], int(60), int(0), int(1));
        let tags = text_collection(&["scylla_tags", "..system:ttl_attribute..ends"], 1);
        let column = [
            "keyspace_name",
            "table_name",
            "column_name",
            "kind",
            "position",
            "type",
            "clustering_order",
        ];
        Sources {
            times: times_at(77),
            times_after: times_at(77),
            keyspaces: fetched(&["keyspace_name", "replication"], &[&[b"ks", &replication]]),
            tables: fetched(
                &[
                    "keyspace_name",
                    "table_name",
                    "id",
                    "flags",
                    "default_time_to_live",
                    "gc_grace_seconds",
                    "extensions",
                ],
                &[
                    &[b"ks", b"t", &id, &plain, &ttl, &int(99), &none],
                    &[b"ks", b"old", &[8; 16], &dense, &none, &int(5), &damaged],
                    &[b"ks", b"c", &[9; 16], &counting, &none, &none, &none],
                    &[b"ks", b"ending", &[2; 16], &plain, &none, &none, &tags],
                    &[b"ks", b"t_scylla_cdc_log", &[3; 16], &plain, &none, &none, &none],
                    &[b"audit", b"audit_log", &[4; 16], &plain, &none, &none, &none],
                    &[b"audit", b"plain", &[5; 16], &plain, &none, &none, &none],
                    &[b"afterglow", b"lease", &[6; 16], &plain, &none, &none, &none],
                    &[b"system_auth", b"roles", &[1; 16], &plain, &none, &none, &none],
                ],
            ),
            views: fetched(&["keyspace_name", "view_name", "id"], &[&[b"ks", b"v", &id]]),
            columns: fetched(
                &column,
                &[
                    &[b"ks", b"t", b"zz", b"regular", &int(-1), b"text", b"none"],
                    &[b"ks", b"t", b"b", b"partition_key", &int(1), b"int", b"none"],
                    &[b"ks", b"t", b"a", b"partition_key", &int(0), b"text", b"none"],
                    &[b"ks", b"t", b"aa", b"regular", &int(-1), b"blob", b"none"],
                    &[b"ks", b"t", b"ck", b"clustering", &int(0), b"uuid", b"desc"],
                    &[b"ks", b"t", b"s", b"static", &int(-1), b"int", b"none"],
                ],
            ),
            indexes: fetched(&["keyspace_name", "table_name"], &[&[b"ks", b"t"]]),
            triggers: fetched(&["keyspace_name", "table_name"], &[&[b"ks", b"t"]]),
            dropped: fetched(
                &["keyspace_name", "table_name", "column_name", "dropped_time"],
                &[
                    &[b"ks", b"t", b"aa", &77i64.to_be_bytes()],
                    &[b"ks", b"t", b"gone", &78i64.to_be_bytes()],
                ],
            ),
            masks: Some(fetched(&column[..3], &[&[b"ks", b"t", b"zz"]])),
        }
    }

    #[test]
    fn tables_have_their_columns_in_order_and_what_bars_them_from_the_cache() {
        let schema = build(&sources());
        let table = schema.table("ks", "t").unwrap();
        let names = |columns: &[Column]| columns.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&table.partition_key), ["a", "b"]);
        assert_eq!(names(&table.clustering), ["ck"]);
        assert!(table.clustering[0].descending && !table.partition_key[0].descending);
        assert_eq!(names(&table.statics), ["s"]);
        assert_eq!(names(&table.regulars), ["aa", "zz"]);
        assert_eq!(table.regulars.iter().map(|c| c.masked).collect::<Vec<_>>(), [false, true]);
        assert_eq!(table.regulars.iter().map(|c| c.dropped_at).collect::<Vec<_>>(), [77, 0]);
        assert!(table.indexed && table.triggers && !table.compact && !table.system && !table.view);
        assert_eq!((table.default_ttl, schema.graces(table.id)), (60, Graces::of(Some(99), None)));
        let old = schema.table("ks", "old").unwrap();
        assert!(old.compact);
        let unknown = Graces { gc_grace: Some(5), tombstones: Duration::ZERO };
        assert_eq!(schema.graces(old.id), unknown);
        let counting = schema.table("ks", "c").unwrap();
        assert!(counting.counter && !counting.triggers);
        assert!(schema.table("ks", "v").unwrap().view);
        assert!(schema.table("system_auth", "roles").unwrap().system);
        assert_eq!(schema.replication("ks").unwrap()["replication_factor"], "3");
        assert!(schema.table("ks", "nowhere").is_none());
    }

    #[test]
    fn what_changes_while_the_schema_is_read_counts_as_changed() {
        let read = |times, times_after| {
            let [times, times_after] = [times, times_after].map(times_at);
            build(&Sources { times, times_after, ..sources() })
        };
        let keeps_rows = |before: &Schema, now: &Schema| {
            let [then, now] = [before, now].map(|schema| schema.seen("ks", "t").unwrap());
            now.keeps_rows_since(&then)
        };
        let before = read(77, 77);
        for (times, times_after, kept) in [(78, 78, true), (78, 79, false), (77, 78, false)] {
            let now = read(times, times_after);
            let touched = now.touched_since(&before);
            assert_eq!(keeps_rows(&before, &now), kept);
            assert!(touched.keyspaces.contains(&"ks"));
            let next = read(times_after, times_after);
            assert_eq!(next.touched_since(&now).keyspaces.is_empty(), kept);
            let again = next.touched_since(&now);
            assert_eq!(again.tables.iter().any(|table| table.name == "t"), !kept);
        }
        // It is read again, and changed before that.
        let times = Sources { times_after: times_at(78), ..sources() }.first_times();
        let now = build(&Sources { times, times_after: times_at(78), ..sources() });
        assert_eq!(now.seen("ks", "t").unwrap().time, None);
        let silent = Sources { times_after: [None, None, None], ..sources() };
        assert!(!keeps_rows(&build(&silent), &read(78, 78)));
    }

    #[test]
    fn sources_are_of_one_moment_if_all_times_are_told_and_the_same() {
        let are =
            |times, times_after| Sources { times, times_after, ..sources() }.are_of_one_moment();
        let views = |time: i64| {
            let time = time.to_be_bytes();
            Some(fetched(&["id", "writetime(id)"], &[&[&[8; 16], &time]]))
        };
        let at = |time, of_view| {
            let [tables, _, keyspaces] = times_at(time);
            [tables, views(of_view), keyspaces]
        };
        assert!(are(at(77, 5), at(77, 5)));
        assert!(!are(at(77, 5), at(78, 5)));
        assert!(!are(at(77, 5), at(77, 6)));
        for one in 0..3 {
            let lacks = |lacks: bool| {
                let mut times = at(77, 5);
                if lacks {
                    times[one] = None;
                }
                times
            };
            assert!(!are(lacks(true), lacks(false)) && !are(lacks(false), lacks(true)));
            assert!(!are(lacks(true), lacks(true)), "what is not told may have changed");
            let gone = |gone: bool| {
                let mut times = at(77, 5);
                if gone {
                    times[one] = Some(fetched(&["id", "keyspace_name"], &[]));
                }
                times
            };
            assert!(!are(gone(false), gone(true)) && !are(gone(true), gone(false)));
            let timeless = || {
                let mut times = at(77, 5);
                let columns = ["id", "writetime(id)", "keyspace_name", "writetime(replication)"];
                times[one] = Some(fetched(&columns, &[&[&[9; 16], &[0; 4], b"ks", &[0; 4]]]));
                times
            };
            assert!(!are(timeless(), timeless()), "one row tells no time");
        }
    }

    #[test]
    fn what_others_write_than_clients_is_not_cached() {
        let schema = build(&sources());
        for (keyspace, table, reason) in [
            ("ks", "ending", Some(NotCacheable::WrittenByDatabase)),
            ("ks", "t_scylla_cdc_log", Some(NotCacheable::WrittenByDatabase)),
            ("audit", "audit_log", Some(NotCacheable::WrittenByDatabase)),
            ("audit", "plain", None),
            ("afterglow", "lease", Some(NotCacheable::SystemTable)),
        ] {
            let mut table = TableSchema::clone(&schema.table(keyspace, table).unwrap());
            table.partition_key = vec![Column::new("k", "blob")];
            assert_eq!(table.cacheable().err(), reason, "{keyspace}.{}", table.name);
        }
    }
}
