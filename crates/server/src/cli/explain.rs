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
use crate::config::{Config, HostPort, keys};
use crate::frontend::cql::read_schema_of;
use crate::serve::towards_database;

/// Settings of `serve` that say how the database is reached, and what they are here.
pub(super) const TOWARDS_DATABASE: [(&str, &str); 5] = [
    ("backend-credentials", "File with `username` and `password`, as `afterglow serve` takes it"),
    ("backend-tls-ca", "Speak TLS to the database, which must have a certificate of this CA (PEM)"),
    ("backend-tls-cert", "The certificate chain (PEM) to show a database that asks for one"),
    (
        "backend-tls-key",
        "The key of --backend-tls-cert (PEM). Only its owner may read it (mode 0600)",
    ),
    (
        "backend-tls-verify-host-name",
        "Whether the certificate must name the host that is connected to [default: true]",
    ),
];

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let text = |name| arguments.get_one::<String>(name).map(String::as_str);
    let statement = text("STATEMENT").ok_or_else(|| Failure::usage("error: no STATEMENT"))?;
    let schema = match (text("schema"), text("backend")) {
        (Some(file), _) => of_file(Path::new(file), text("keyspace"))?,
        (None, Some(backend)) => of_database(backend, arguments)?,
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

fn of_database(backend: &str, arguments: &ArgMatches) -> Result<Schema, Failure> {
    let target: HostPort =
        backend.parse().map_err(|error| Failure::usage(format!("error: --backend: {error}")))?;
    let mut config = Config::default();
    for (name, _) in TOWARDS_DATABASE {
        let (key, value) = (keys::find(name), arguments.get_one::<String>(name));
        let Some((key, value)) = key.zip(value) else { continue };
        (key.set)(&mut config, std::slice::from_ref(value))
            .map_err(|refused| Failure::usage(format!("error: --{name}: {}", refused.why)))?;
    }
    let tls =
        towards_database(&config).map_err(|error| Failure::usage(format!("error: {error}")))?;
    read_schema_of(&target, config.backend_credentials.as_deref(), tls)
        .map_err(|error| Failure::failed(format!("error: {backend}: {error}")))
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
