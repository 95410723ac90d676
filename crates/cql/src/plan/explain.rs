//! Explains a plan in words, for people.

use std::fmt::Write;

use super::bound_keys::{BoundKeys, KeyColumn, KeySource, KeyValues, MAX_BOUND_KEYS};
use super::key::{KeyTemplate, PartitionTemplate};
use super::{
    Column, MAX_ROWS, Plan, Projected, ReadPlan, RowsPlan, SchemaView, SlicePlan, Target,
    ValueSource, WriteKind, WritePlan,
};
use crate::statement::Marker;

impl Plan {
    /// A few lines: whether it is cached and why not, or what it drops. `schema` is the one it was
    /// made with.
    pub fn explain(&self, schema: &dyn SchemaView) -> String {
        match self {
            Plan::CachedRead(read) => read.explain(),
            Plan::CachedSlice(slice) => slice.explain(),
            Plan::CachedRows(rows) => rows.explain(),
            Plan::Read(reason, _) => reason.explain(),
            Plan::SystemRead(_) => {
                "answered by Afterglow, with its own address in the place of the nodes'\n".into()
            }
            Plan::Use(keyspace) => {
                format!("sets the connection's keyspace to {keyspace}, if the database has one\n")
            }
            Plan::OddUse => {
                "refused: USE is taken with the name of a keyspace and nothing else\n".into()
            }
            Plan::Write(write) => write.explain(schema),
        }
    }
}

impl ReadPlan {
    fn explain(&self) -> String {
        let table = &self.table;
        let columns =
            |columns: &mut dyn Iterator<Item = &str>| columns.collect::<Vec<_>>().join(", ");
        let keys = columns(&mut table.keys().map(|column| column.name.as_str()));
        let read = columns(&mut self.projection.iter().filter_map(|column| table.name_of(*column)));
        let mut out = format!(
            "cached: one row of {}.{} by its primary key ({keys})\n",
            table.keyspace, table.name
        );
        let _ = writeln!(out, "  columns: {read}");
        let _ = writeln!(
            out,
            "  a fill reads the whole row at LOCAL_QUORUM, so other columns of it are hits too\n  \
             levels: ONE, LOCAL_ONE, LOCAL_QUORUM; QUORUM and TWO where all replicas are in one \
             data centre; QUORUM also beside few replicas elsewhere, under exclusive"
        );
        if !self.limits.is_empty() {
            let _ = writeln!(out, "  a bound limit that is not positive passes through");
        }
        if table.regulars.is_empty() {
            let _ = writeln!(
                out,
                "  a row has nothing besides its key, and no SELECT shows when it expires: kept under max-staleness only"
            );
        }
        let shared = |column: &Projected| match column {
            Projected::Value(at) => usize::from(*at) < table.statics.len(),
            _ => false,
        };
        if self.projection.iter().any(shared) {
            let _ = writeln!(out, "  a write of a static column drops all rows of its partition");
        }
        if table.default_ttl > 0 {
            let _ = writeln!(
                out,
                "  a row written without a TTL of its own is kept at most {} s, the table's \
                 default_time_to_live",
                table.default_ttl
            );
        }
        out
    }
}

impl RowsPlan {
    fn explain(&self) -> String {
        let table = &self.read.table;
        let listed = self.listed().map(|column| &*column.name).collect::<Vec<_>>().join(", ");
        let mut out = format!(
            "cached: rows of {}.{} of several partitions by their primary keys\n",
            table.keyspace, table.name
        );
        let _ = writeln!(
            out,
            "  one row for each value of ({listed}), each cached as if it were read alone\n  \
             answered if all of them are cached or few are not; more than {MAX_ROWS} pass through"
        );
        out
    }
}

impl SlicePlan {
    fn explain(&self) -> String {
        let table = &self.read.table;
        let names = |columns: &[Column]| {
            columns.iter().map(|column| &*column.name).collect::<Vec<_>>().join(", ")
        };
        let (keyspace, name) = (&table.keyspace, &table.name);
        let keys = names(&table.partition_key);
        let mut out =
            format!("cached: a slice of one partition of {keyspace}.{name} by ({keys})\n");
        if self.counts() {
            let _ = writeln!(
                out,
                "  count(*): the rows that the unit has of it are counted; before Cassandra 4.0 it passes through"
            );
        }
        let bounded = &table.clustering[..self.bounded_columns()];
        let end = if self.reversed { "last" } else { "first" };
        let _ = match bounded.is_empty() {
            true => writeln!(out, "  its rows from the {end} one on"),
            false => writeln!(out, "  a range of its rows by ({})", names(bounded)),
        };
        let _ = writeln!(
            out,
            "  a fill reads rows from the {end} one on at LOCAL_QUORUM, as far as \
             --partition-unit-size allows\n  \
             a write to the partition drops them before it is sent. After one of a single row they \
             mostly come back with that row, under exclusive and without a ring; after any other \
             the next read fills them"
        );
        if self.has_lists() {
            let _ = writeln!(
                out,
                "  IN: answered if the unit has all of the rows that it names; a fill for it reads few rows"
            );
        }
        if !bounded.is_empty() {
            let _ = writeln!(out, "  what lies behind these rows passes through");
        }
        if table.regulars.is_empty() {
            let _ = writeln!(
                out,
                "  a row has nothing besides its key, and no SELECT shows when it expires: kept under max-staleness only"
            );
        }
        out
    }
}

/// What becomes of a write of whole tables.
const TOUCHES_TABLES: &str = "\
a write. Nothing of what it touches is served from the cache until it is answered. It drops \
nothing if the database refuses it, or has no schema to change, and otherwise:
";

/// What becomes of a text that is not understood. What it drops is known when it has been answered.
const NOT_UNDERSTOOD: &str = "\
passed through as a write, because it is not understood. The database is asked to prepare it \
first. Nothing is served from the cache from then on until it is answered. It drops
nothing if the database refuses it, a keyspace if the answer is a change of that keyspace's \
schema, and otherwise:
";

impl WritePlan {
    fn explain(&self, schema: &dyn SchemaView) -> String {
        let mut out = match self.kind {
            _ if self.targets.is_empty() => return "passed through: touches no rows\n".into(),
            WriteKind::Unknown => NOT_UNDERSTOOD.into(),
            _ if self.targets.iter().all(Target::is_wide) => TOUCHES_TABLES.into(),
            _ => String::from("a write; before it is sent it drops from the cache:\n"),
        };
        for target in &self.targets {
            let line = match target {
                Target::Row(key) => format!("the row {}", row(key)),
                Target::Partition(key) => format!("all rows of the partition {}", partition(key)),
                Target::Bound(keys) => bound(keys),
                Target::NewRow(key) => format!(
                    "no row: it is new. Slices of its partition {} go, and nothing of it is filled until it is answered",
                    partition(key)
                ),
                Target::NewPartition(_) => {
                    "nothing: the partition is new. Rows of its table are not filled until it is answered".into()
                }
                Target::Table { keyspace, table, .. } => {
                    let known = schema.table(keyspace, table);
                    let uncached = known.and_then(|table| table.cacheable().err());
                    let note = uncached.map_or(String::new(), |why| {
                        format!(" (not cached anyway: {})", why.why())
                    });
                    format!("all rows of {keyspace}.{table}{note}")
                }
                Target::Keyspace(keyspace) => format!("all rows of keyspace {keyspace}"),
                Target::Everything => "everything".into(),
            };
            let _ = writeln!(out, "  {line}");
        }
        if self.update.is_some() {
            let _ = writeln!(
                out,
                "  the row is put back with the new values once the database has acknowledged the write, if its timestamp is known and newer"
            );
        }
        if !self.plain.is_empty() {
            let _ = writeln!(
                out,
                "  should its outcome stay unknown, it is sent again until it is there, if its timestamp is near the clock, it has no TTL, and it is of one partition of an `exclusive` table that keeps tombstones for some minutes at least"
            );
        }
        if self.conditional {
            let _ = writeln!(
                out,
                "  a lightweight transaction: should its outcome stay unknown, its partition is not cached until it is known"
            );
        }
        out
    }
}

fn row(key: &KeyTemplate) -> String {
    match key.clustering.is_empty() {
        true => partition(&key.partition),
        false => {
            format!(
                "{}, {}",
                partition(&key.partition),
                slots(key.clustering.iter().map(|part| &part.slot))
            )
        }
    }
}

fn bound(keys: &BoundKeys) -> String {
    let lists = match &keys.source {
        KeySource::Json(_, marker) => {
            return format!(
                "the rows of the partition that the JSON bound to {} names; all rows of the table if its key is not certain",
                marker_name(marker)
            );
        }
        KeySource::Lists(lists) => lists,
    };
    let column = |column: &KeyColumn| match &column.values {
        KeyValues::Listed(values) if values.len() == 1 => slots(values.iter()),
        KeyValues::Listed(values) => format!("each of ({})", slots(values.iter())),
        KeyValues::Elements(marker, _) => format!("each element of {}", marker_name(marker)),
    };
    let columns = |columns: &[KeyColumn]| columns.iter().map(column).collect::<Vec<_>>().join(", ");
    let all = match &lists.clustering {
        Some(clustering) => {
            let columns = columns(&[&lists.partition[..], &clustering[..]].concat());
            format!("the rows {columns}")
        }
        None => format!("all rows of the partitions {}", columns(&lists.partition)),
    };
    format!(
        "{all}; all rows of these partitions or of the table if a list cannot be read or names more than {MAX_BOUND_KEYS} keys"
    )
}

fn partition(key: &PartitionTemplate) -> String {
    slots(key.parts.iter().map(|part| &part.slot))
}

/// Bound values as markers, literals in the bytes that the database stores.
fn slots<'a>(slots: impl Iterator<Item = &'a ValueSource>) -> String {
    let written = slots.map(|slot| match slot {
        ValueSource::Bind(marker) => marker_name(marker),
        ValueSource::Literal(bytes) => {
            bytes.iter().fold(String::from("0x"), |out, byte| out + &format!("{byte:02x}"))
        }
    });
    written.collect::<Vec<_>>().join(", ")
}

fn marker_name(marker: &Marker) -> String {
    marker.name.as_ref().map_or_else(|| "?".into(), |name| format!(":{name}"))
}

#[cfg(test)]
mod tests {
    use crate::plan::{SchemaView, TableSchema, analyse, defined_tables};
    use crate::statement::parse;
    use std::sync::Arc;

    struct Defined(Vec<TableSchema>);

    impl SchemaView for Defined {
        fn table(&self, keyspace: &str, table: &str) -> Option<Arc<TableSchema>> {
            let found = self.0.iter().find(|of| of.keyspace == keyspace && of.name == table);
            found.cloned().map(Arc::new)
        }
    }

    #[test]
    fn a_count_is_explained_as_a_slice_or_passed_through() {
        let script = "CREATE TABLE s.f (k int, c int, v int, PRIMARY KEY (k, c));";
        let schema = Defined(defined_tables(script, None).unwrap());
        let explained = |text: &str| analyse(&parse(text), &schema, Some("s")).explain(&schema);
        let words = explained("SELECT count(*) FROM f WHERE k = 1 AND c > ?");
        for part in ["a slice of one partition", "count(*): the rows", "a range of its rows by (c)"]
        {
            assert!(words.contains(part), "{words}");
        }
        let words = explained("SELECT count(*) FROM f WHERE k = 1 LIMIT 5");
        assert!(words.contains("passed through"), "{words}");
    }

    #[test]
    fn a_statement_is_explained_with_what_it_reads_or_drops() {
        let script = "CREATE TABLE s.t (k int, c text, x text static, v int, PRIMARY KEY (k, c)) WITH default_time_to_live = 9;
            CREATE TABLE s.n (k int PRIMARY KEY, n counter);
            CREATE TABLE s.e (k uuid, c timeuuid, PRIMARY KEY (k, c));
            CREATE TABLE s.f (k int, c int, v int, PRIMARY KEY (k, c))
                WITH CLUSTERING ORDER BY (c DESC);";
        let schema = Defined(defined_tables(script, None).unwrap());
        let explained = |text: &str| analyse(&parse(text), &schema, Some("s")).explain(&schema);
        let has = |text: &str, parts: &[&str]| {
            let words = explained(text);
            assert!(parts.iter().all(|part| words.contains(part)), "{text}: {words}");
        };
        has(
            "SELECT v, x FROM t WHERE k = 1 AND c = ?",
            &["cached: one row of s.t", "(k, c)", "v, x", "static", "9 s"],
        );
        has("SELECT v FROM t WHERE c = 'a'", &["passed through", "one `=` for each"]);
        has("SELECT v FROM t WHERE k = 1", &["passed through", "static columns"]);
        has(
            "SELECT * FROM f WHERE k = 1 LIMIT 5",
            &["cached: a slice of one partition of s.f by (k)", "from the first one on"],
        );
        has(
            "SELECT * FROM f WHERE k = 1 AND c > ? ORDER BY c ASC",
            &["a range of its rows by (c)", "from the last one on", "passes through"],
        );
        has(
            "SELECT * FROM f WHERE k = 1 AND c IN ?",
            &["a slice of one partition", "a range of its rows by (c)", "IN: answered if"],
        );
        has(
            "SELECT v FROM f WHERE k IN (1, 2) AND c = ?",
            &["cached: rows of s.f of several partitions", "each value of (k)"],
        );
        has("SELECT v FROM f WHERE k IN (1, 2)", &["passed through", "rows of several partitions"]);
        has("SELECT * FROM f WHERE k = 1 ORDER BY v", &["passed through", "ORDER BY other than"]);
        has("SELECT n FROM n WHERE k = 1", &["passed through", "counters"]);
        has("INSERT INTO t (k, c, v) VALUES (1, :c, 2)", &["a write", "the row 0x00000001, :c"]);
        has("DELETE FROM t WHERE k = ? IF EXISTS", &["the partition ?", "lightweight transaction"]);
        has(
            "SELECT v FROM t WHERE k = 1 AND c = ? LIMIT ?",
            &["cached: one row", "a bound limit that is not positive passes through"],
        );
        has("SELECT v FROM t WHERE k = 1 AND c = ? LIMIT 0", &["passed through", "not positive"]);
        has(
            "DELETE FROM t WHERE k IN :ks AND c IN ('a', ?)",
            &[
                "the rows each element of :ks, each of (0x61, ?);",
                "or of the table if a list cannot be read or names more than 512 keys",
            ],
        );
        has("DELETE FROM t WHERE k IN ?", &["all rows of the partitions each element of ?;"]);
        has(
            "INSERT INTO n JSON ?",
            &["the partition that the JSON bound to ? names", "not certain"],
        );
        has("INSERT INTO n JSON '{\"k\": 5}'", &["the row 0x00000005"]);
        has(
            "INSERT INTO e (k, c) VALUES (uuid(), 1)",
            &["nothing: the partition is new", "its table are not filled"],
        );
        has("INSERT INTO e (k, c) VALUES (?, now())", &["no row: it is new", "its partition ? go"]);
        has("TRUNCATE n", &["all rows of s.n (not cached anyway"]);
        has("FROBNICATE", &["not understood", "nothing if the database refuses it", "everything"]);
        has("SELECT * FROM system.local", &["answered by Afterglow"]);
        has("GRANT SELECT ON t TO x", &["no rows"]);
        has("USE s", &["keyspace to s"]);
    }

    /// The table of which tables and columns are cached, in docs/guide/cql.md.
    #[test]
    fn each_kind_of_table_is_cached_or_it_is_said_why_not() {
        let cached = "cached: one row of s.t";
        for (columns, options, words) in [
            ("v int", "", cached),
            (
                "v frozen<list<int>>, w tuple<int, text>, x vector<float, 3>, y frozen<address>",
                "",
                cached,
            ),
            ("v map<text, int>, w set<int>, x list<int>, y address", "", cached),
            ("v decimal, w duration, x inet, y counter_of_mine", "", cached),
            ("v int", "WITH default_time_to_live = 60", "kept at most 60 s"),
            ("v counter", "", "counters are written more than read"),
            ("v int MASKED WITH DEFAULT", "", "it has a masked column"),
            ("v 'org.example.Own'", "", "a class of the server"),
            ("v int", "WITH COMPACT STORAGE", "compact storage"),
        ] {
            let script = format!("CREATE TABLE s.t (k int PRIMARY KEY, {columns}) {options};");
            explained(&script, "SELECT * FROM t WHERE k = 1", words);
        }
        for (key, words) in [
            ("a decimal, b int, PRIMARY KEY (a, b)", cached),
            ("a int, b decimal, PRIMARY KEY (a, b)", "equal values can have different bytes"),
            (
                "a frozen<set<int>>, b int, PRIMARY KEY (a, b)",
                "equal values can have different bytes",
            ),
            (
                "a int, b frozen<address>, PRIMARY KEY (a, b)",
                "equal values can have different bytes",
            ),
            (
                "a int, b vector<float, 2>, PRIMARY KEY (a, b)",
                "equal values can have different bytes",
            ),
            ("a int, b duration, PRIMARY KEY (a, b)", "equal values can have different bytes"),
        ] {
            let script = format!("CREATE TABLE s.t ({key});");
            explained(&script, "SELECT * FROM t WHERE a = ? AND b = ?", words);
        }
        let views = "CREATE TABLE s.u (k int PRIMARY KEY, v int); CREATE INDEX ON s.u (v);
            CREATE MATERIALIZED VIEW s.t AS SELECT * FROM s.u WHERE k IS NOT NULL AND v IS NOT NULL PRIMARY KEY (v, k);";
        explained(
            views,
            "SELECT * FROM t WHERE v = 1 AND k = 2",
            "materialized view changes some time after",
        );
        explained(views, "SELECT * FROM u WHERE k = 1", "cached: one row of s.u");
        explained(views, "SELECT * FROM u WHERE v = 1", "only reads of one row");
        explained("", "SELECT * FROM system_views.clients", "passed through");
    }

    #[test]
    fn a_write_that_a_row_can_follow_says_so() {
        let script = "CREATE TABLE s.t (k int PRIMARY KEY, v int, l list<int>);";
        explained(script, "UPDATE t SET v = ? WHERE k = 1", "put back with the new values");
        let schema = Defined(defined_tables(script, None).unwrap());
        for text in ["UPDATE t SET v = null WHERE k = 1", "UPDATE t SET l = ? WHERE k = 1"] {
            let said = analyse(&parse(text), &schema, Some("s")).explain(&schema);
            assert!(!said.contains("put back"), "{text}: {said}");
        }
    }

    #[test]
    fn what_would_change_it_and_what_becomes_of_a_slice_is_said() {
        let script = "CREATE TABLE s.t (k int, c int, x int static, v int, PRIMARY KEY (k, c));
            CREATE TABLE s.n (k int PRIMARY KEY, n counter);
            CREATE TABLE s.f (k int, c int, v int, PRIMARY KEY (k, c));";
        for (statement, words) in [
            ("SELECT v FROM t WHERE k = 1", "to have it cached: read single rows"),
            ("SELECT n FROM n WHERE k = 1", "nothing would change that: the database alone"),
            ("SELECT v FROM f WHERE k = 1", "they mostly come back with that row, under exclusive"),
        ] {
            explained(script, statement, words);
        }
    }

    fn explained(script: &str, statement: &str, words: &str) {
        let schema =
            Defined(defined_tables(script, None).unwrap_or_else(|e| panic!("{script}: {e}")));
        let said = analyse(&parse(statement), &schema, Some("s")).explain(&schema);
        assert!(said.contains(words), "{script} {statement}: {said}");
    }
}
