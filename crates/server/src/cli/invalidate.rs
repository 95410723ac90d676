//! `afterglow invalidate`: drops cached rows of a running instance, or of its ring.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::data_dir;
use super::output::{Failure, print};
use crate::frontend::cql::cached::Named;
use crate::operator::ask;

const HELP: &str = "\
For rows that were written past Afterglow: the next read asks the database. When the command has \
ended, no dropped row is served any more. In a ring one instance drops the rows of `exclusive` \
tables at every member; of tables under max-staleness each instance drops its own. Asks over a \
socket in the data directory; run it as the server's user.

Examples:
  afterglow invalidate shop.items
  afterglow invalidate shop.items --where 'id = 42'
  afterglow invalidate shop
  afterglow invalidate --all

Exit status: 0 done, 1 it cannot be asked or not be done, 2 wrong flags.";

pub(super) fn command() -> Command {
    Command::new("invalidate")
        .about("Drop cached rows of a table, a partition, a keyspace, or all")
        .after_help(HELP)
        .arg(
            Arg::new("NAME")
                .required_unless_present("all")
                .conflicts_with("all")
                .help("keyspace.table or keyspace, quoted as in CQL where it has capitals"),
        )
        .arg(
            Arg::new("where").long("where").value_name("CONDITION").requires("NAME").conflicts_with("all").help(
                "Only partitions or rows of the table, by their keys: what follows WHERE in CQL",
            ),
        )
        .arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .help("All that the CQL front end has cached"),
        )
        .arg(data_dir::argument())
}

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let named = named(arguments);
    if let Named::Rows(name, _) = &named
        && !name.contains('.')
    {
        let usage = format!("error: --where needs a table: name it as keyspace.table, not {name}");
        return Err(Failure::usage(usage));
    }
    let failed = |why: String| Failure::failed(format!("error: {why}"));
    let command = serde_json::to_string(&named).map_err(|error| failed(error.to_string()))?;
    let directory = data_dir::of(arguments);
    let done: String = ask(&directory, &format!("invalidate {command}")).map_err(failed)?;
    print(&format!("dropped {done}\n"))
}

fn named(arguments: &ArgMatches) -> Named {
    let text = |name| arguments.get_one::<String>(name).cloned();
    match (text("NAME"), text("where")) {
        (None, _) => Named::Everything,
        (Some(name), Some(condition)) => Named::Rows(name, condition),
        (Some(name), None) if name.contains('.') => Named::Table(name),
        (Some(name), None) => Named::Keyspace(name),
    }
}
