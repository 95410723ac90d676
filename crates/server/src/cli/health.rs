//! `afterglow health`: one question to the admin address of a running server, for the health checks
//! of containers and for scripts.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::admin_client::{self, AdminClient};
use super::output::{Failure, print};
use crate::config::Span;

const HELP: &str = "\
Exit status: 0 the server takes clients (with --live: the process answers), 1 it does not, 2 wrong \
flags.

Examples:
  afterglow health
  afterglow health --admin 10.0.0.5:9180 --live";

pub(super) fn command() -> Command {
    Command::new("health")
        .about("Ask a running server whether it takes clients")
        .after_help(HELP)
        .arg(admin_client::argument())
        .arg(
            Arg::new("live").long("live").action(ArgAction::SetTrue).help(
                "Ask whether the process lives (/healthz), not whether it is ready (/readyz)",
            ),
        )
        .arg(
            Arg::new("timeout")
                .long("timeout")
                .value_name("DURATION")
                .default_value("5s")
                .help("How long to wait for the whole answer"),
        )
}

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let admin = AdminClient::new(arguments)?;
    let timeout = arguments.get_one::<String>("timeout").cloned().unwrap_or_default();
    let timeout: Span =
        timeout.parse().map_err(|error| Failure::usage(format!("error: --timeout: {error}")))?;
    let page = if arguments.get_flag("live") { "/healthz" } else { "/readyz" };
    let failed = |error: String| Failure::failed(format!("error: {error}"));
    let (status, body) = admin.ask(page, timeout.get()).map_err(failed)?;
    let body = String::from_utf8_lossy(&body);
    match status {
        200 => print(&body),
        404 => Err(failed(format!("{} is no admin address of afterglow", admin.address()))),
        _ => Err(Failure::failed(body.trim_end())),
    }
}
