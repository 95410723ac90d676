//! Statements and what is planned for them. Plans are written out as text so that a table stays
//! readable: `cached <key> -> <projection>`, `pass <reason>`, `system <table>`, `use <keyspace>`,
//! and for writes their targets.

use std::sync::Arc;

use uuid::Uuid;

use super::bound_keys::{KeyColumn, KeySource, KeyValues};
use super::*;
use crate::statement::{Marker, parse};

mod bound;
mod long;
mod plain;
mod properties;
mod statements;
mod updates;

struct Fixture;

fn columns(list: &str) -> Vec<Column> {
    list.split(';')
        .filter(|item| !item.is_empty())
        .map(|item| {
            let (name, kind) = item.split_once(' ').unwrap();
            Column::new(name, kind)
        })
        .collect()
}

fn table(
    name: &str,
    id: u128,
    partition: &str,
    clustering: &str,
    statics: &str,
    regulars: &str,
) -> TableSchema {
    TableSchema {
        partition_key: columns(partition),
        clustering: columns(clustering),
        statics: columns(statics),
        regulars: columns(regulars),
        ..TableSchema::new("ks".into(), name.into(), Uuid::from_u128(id))
    }
}

impl SchemaView for Fixture {
    fn table(&self, keyspace: &str, name: &str) -> Option<Arc<TableSchema>> {
        if keyspace != "ks" {
            return None;
        }
        let table = match name {
            "t" => table("t", 1, "k int", "c text", "", "v int;w text"),
            "one" => table("one", 2, "k text", "", "", "v blob"),
            "multi" => table("multi", 3, "a int;b text", "c int;d timeuuid", "", "v int"),
            "stat" => table("stat", 4, "k int", "c int", "s text", "v int"),
            "coll" => table("coll", 5, "k int", "", "", "l list<int>;m map<text, int>;u address"),
            "old" => TableSchema {
                element_times: false,
                ..table("old", 16, "k int", "", "", "s set<int>")
            },
            "custom" => table("custom", 17, "k int", "", "", "v 'org.example.Type'"),
            "frozen" => {
                table("frozen", 6, "k int", "", "", "f frozen<list<int>>;p tuple<int, int>")
            }
            "cnt" => TableSchema { counter: true, ..table("cnt", 7, "k int", "", "", "n counter") },
            "mv" => TableSchema { view: true, ..table("mv", 8, "v int", "k int", "", "w text") },
            "dec" => table("dec", 9, "k int", "c decimal", "", "v int"),
            "Quoted" => table("Quoted", 10, "K int", "", "", "from int;a\"b int"),
            "blobs" => table("blobs", 11, "k blob", "c uuid", "", "v int"),
            "ids" => table("ids", 18, "a int;b uuid", "c timeuuid;d int", "", "v int"),
            "feed" => table("feed", 19, "k int", "c timeuuid", "s text", "v int"),
            "sets" => table("sets", 14, "k frozen<set<int>>", "", "", "v int"),
            "nested" => table("nested", 15, "k int", "c frozen<set<int>>", "", "v int"),
            "masked" => {
                let mut masked = table("masked", 12, "k int", "", "", "v int");
                masked.regulars[0].masked = true;
                masked
            }
            "triggered" => {
                TableSchema { triggers: true, ..table("triggered", 20, "k int", "", "", "v int") }
            }
            "words" => table(
                "words",
                13,
                "key int",
                "",
                "",
                "json int;distinct int;count int;ttl int;token int",
            ),
            _ => return None,
        };
        Some(Arc::new(table))
    }
}

fn planned(text: &str) -> Plan {
    analyse(&parse(text), &Fixture, Some("ks"))
}

fn written(plan: &Plan) -> String {
    match plan {
        Plan::CachedRead(read) => {
            let limit = |marker: &Marker| format!(" limit {}", marker_name(marker));
            let limits: String = read.limits.iter().map(limit).collect();
            format!("cached {} -> {}{limits}", row(&read.key), projection(&read.projection))
        }
        Plan::CachedSlice(slice) => {
            let read = &slice.read;
            let way = if slice.reversed { " reversed" } else { "" };
            let limits: String =
                read.limits.iter().map(|limit| format!(" limit {}", marker_name(limit))).collect();
            let (key, columns) = (partition(&read.key.partition), projection(&read.projection));
            format!("slice {key}{} -> {columns}{way}{limits}", slice_bounds(slice))
        }
        Plan::CachedRows(rows) => {
            let listed: Vec<&str> = rows.listed().map(|column| &*column.name).collect();
            let columns = projection(&rows.read.projection);
            format!("rows {}:{} -> {columns}", rows.read.table.id.as_u128(), listed.join(","))
        }
        Plan::SystemRead(query) => format!("system {}", query.table().name()),
        Plan::Read(reason, _) => format!("pass {}", reason.label()),
        Plan::Use(keyspace) => format!("use {keyspace}"),
        Plan::OddUse => "odd use".to_owned(),
        Plan::Write(write) => {
            let mut parts: Vec<String> = write.targets.iter().map(target).collect();
            parts.extend(write.conditional.then(|| "if".to_owned()));
            parts.extend(write.counter.then(|| "counter".to_owned()));
            if parts.is_empty() { "nothing".to_owned() } else { parts.join(" + ") }
        }
    }
}

/// `/=2 >3 <=?0` where clustering columns are bounded.
fn slice_bounds(slice: &SlicePlan) -> String {
    let bounds: Vec<String> = slice
        .bounds()
        .map(|(op, value)| {
            let part = key::Part { slot: value.clone(), class: types::KeyClass::Bytes };
            format!("{op}{}", slots(&[part]))
        })
        .collect();
    if bounds.is_empty() { String::new() } else { format!("/{}", bounds.join(" ")) }
}

fn target(target: &Target) -> String {
    match target {
        Target::Row(key) => format!("row {}", row(key)),
        Target::Partition(key) => format!("partition {}", partition(key)),
        Target::Bound(keys) => bound(keys),
        Target::NewRow(key) => format!("new row of {}", partition(key)),
        Target::NewPartition(table) => format!("new partition of {}", table.as_u128()),
        Target::Table { keyspace, table, .. } => format!("table {keyspace}.{table}"),
        Target::Keyspace(keyspace) => format!("keyspace {keyspace}"),
        Target::Everything => "everything".to_owned(),
    }
}

fn row(key: &KeyTemplate) -> String {
    format!("{}/{}", partition(&key.partition), slots(&key.clustering))
}

fn partition(key: &PartitionTemplate) -> String {
    format!("{}:{}", key.table.as_u128(), slots(&key.parts))
}

fn slots(parts: &[key::Part]) -> String {
    let slot = |part: &key::Part| match &part.slot {
        ValueSource::Bind(marker) => marker_name(marker),
        ValueSource::Literal(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    parts.iter().map(slot).collect::<Vec<_>>().join(",")
}

fn marker_name(marker: &Marker) -> String {
    match &marker.name {
        Some(name) => format!(":{name}"),
        None => format!("?{}", marker.index),
    }
}

fn bound(keys: &BoundKeys) -> String {
    let lists = match &keys.source {
        KeySource::Json(_, marker) => {
            return format!("json {}:?{}", keys.table.as_u128(), marker.index);
        }
        KeySource::Lists(lists) => lists,
    };
    let column = |column: &KeyColumn| match &column.values {
        KeyValues::Listed(values) => {
            let part = |slot: &ValueSource| key::Part { slot: slot.clone(), class: column.class };
            slots(&values.iter().map(part).collect::<Vec<_>>()).replace(',', "|")
        }
        KeyValues::Elements(marker, _) => format!("each of ?{}", marker.index),
    };
    let columns = |columns: &[KeyColumn]| columns.iter().map(column).collect::<Vec<_>>().join(",");
    let partition = format!("{}:{}", keys.table.as_u128(), columns(&lists.partition));
    match &lists.clustering {
        Some(clustering) => format!("rows {partition}/{}", columns(clustering)),
        None => format!("partitions {partition}"),
    }
}

fn projection(columns: &[Projected]) -> String {
    let column = |column: &Projected| match column {
        Projected::Key(at) => format!("k{at}"),
        Projected::Value(at) => format!("r{at}"),
        Projected::Count => "count".to_owned(),
    };
    columns.iter().map(column).collect::<Vec<_>>().join(",")
}
