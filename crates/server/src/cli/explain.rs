//! `afterglow explain STATEMENT`.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use afterglow_cql::message::Consistency;
use afterglow_cql::plan::{Plan, analyse, defined_tables};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement;
use afterglow_rowcache::tables::{Answers, Index};
use clap::ArgMatches;

use super::{
    inputs,
    output::{Failure, print},
};
use crate::config::HostPort;
use crate::frontend::cql::read_schema_of;

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let text = |name| arguments.get_one::<String>(name).map(String::as_str);
    let statement = text("STATEMENT").ok_or_else(|| Failure::usage("error: no STATEMENT"))?;
    let schema = match (text("schema"), text("backend")) {
        (Some(file), _) => of_file(Path::new(file), text("keyspace"))?,
        (None, Some(backend)) => of_database(backend)?,
        (None, None) => Schema::default(),
    };
    let parsed = statement::parse(statement);
    let schema = Arc::new(schema);
    let plan = analyse(&parsed, &*schema, text("keyspace"));
    let mut out = plan.explain(&*schema);
    out += &quorum(&plan, &schema);
    if schema.is_unknown() {
        out += "  (no tables are known here: give them with --schema or --backend)\n";
    }
    print(&out)
}

fn of_file(path: &Path, keyspace: Option<&str>) -> Result<Schema, Failure> {
    let (_, script) = inputs::read(path)?;
    let tables = defined_tables(&script, keyspace)
        .map_err(|error| Failure::usage(format!("error: {}: {error}", path.display())))?;
    Ok(Schema::of_tables(tables))
}

fn of_database(backend: &str) -> Result<Schema, Failure> {
    let target: HostPort =
        backend.parse().map_err(|error| Failure::usage(format!("error: --backend: {error}")))?;
    read_schema_of(&target).map_err(|error| Failure::failed(format!("error: {backend}: {error}")))
}

/// What becomes of a read at QUORUM where there are replicas in several data centres, and what
/// would change that.
fn quorum(plan: &Plan, schema: &Arc<Schema>) -> String {
    let mut out = String::new();
    let Some(read) = plan.read() else { return out };
    let Some(replication) = schema.replication(&read.table.keyspace) else { return out };
    let centers: Vec<_> = replication.iter().filter(|(name, _)| *name != "class").collect();
    if centers.len() < 2 {
        return out;
    }
    let index = Index::of(schema.clone());
    let replicas: Vec<_> = centers.iter().map(|(name, n)| format!("{name}: {n}")).collect();
    let _ =
        writeln!(out, "  QUORUM, with replicas {{{}}}, through an instance", replicas.join(", "));
    for (name, _) in centers {
        let said = match index.answers(read.table.id, Consistency::Quorum, Some(name)) {
            Answers::Always | Answers::Undoubted => {
                "answered under exclusive without a ring, if no write at a low level came lately"
            }
            Answers::Never => {
                "passed through, because a fill reads a quorum of this data centre, which may miss a write at QUORUM. Read and write at LOCAL_QUORUM, or have at most 1 replica elsewhere (2, if their number here is even)"
            }
        };
        let _ = writeln!(out, "    in {name}: {said}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(text: &str, replication: &[(&str, &str)]) -> String {
        let script = "CREATE TABLE ks.t (k int, c int, v int, PRIMARY KEY (k, c));";
        let mut schema = Schema::of_tables(defined_tables(script, None).unwrap());
        let class = ("class", "org.apache.cassandra.locator.NetworkTopologyStrategy");
        let options = replication.iter().copied().chain([class]);
        let options = options.map(|(name, value)| (name.to_string(), value.to_string()));
        schema.add_keyspace("ks".into(), options.collect());
        quorum(&analyse(&statement::parse(text), &schema, None), &Arc::new(schema))
    }

    #[test]
    fn why_a_read_at_quorum_passes_through_is_said_for_each_data_centre() {
        let reads = [
            "SELECT v FROM ks.t WHERE k = 1 AND c = 2",
            "SELECT v FROM ks.t WHERE k = 1",
            "SELECT v FROM ks.t WHERE k IN (1, 2) AND c = 2",
        ];
        for text in reads {
            let said = explained(text, &[("east", "3"), ("west", "1")]);
            assert!(said.contains("{east: 3, west: 1}"), "{said}");
            assert!(said.contains("in east: answered under exclusive"), "{said}");
            assert!(said.contains("in west: passed through"), "{said}");
            assert!(said.contains("Read and write at LOCAL_QUORUM"), "{said}");
            assert_eq!(explained(text, &[("east", "3")]), "");
        }
        let write = "INSERT INTO ks.t (k, c) VALUES (1, 2)";
        assert_eq!(explained(write, &[("east", "3"), ("west", "1")]), "");
    }
}
