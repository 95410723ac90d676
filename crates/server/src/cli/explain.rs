//! `afterglow explain STATEMENT`.

use std::path::Path;

use afterglow_cql::plan::{analyse, defined_tables};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement;
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
    let plan = analyse(&parsed, &schema, text("keyspace"));
    let mut out = plan.explain(&schema);
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
