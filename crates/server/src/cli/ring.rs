//! `afterglow ring`: the ring as a running instance sees it, and leaving it.

use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::data_dir;
use super::output::{Failure, print};
use super::ring_text::{confirmed, ranges, text};
use crate::frontend::cql::cached::RingStatus;
use crate::operator::ask;

const HELP: &str = "\
Asks the instance whose data directory is named, over a socket in it. Run it as the server's user.

Exit status: 0 done, 1 it cannot be asked or not be done, 2 wrong flags.";

const LEAVE_HELP: &str = "\
The instance hands its rows over to the others and leaves. It goes on answering clients, from the
database and the other instances. Restart it to have it join again. A restart before it has left
undoes the order: it stays a member.

Exit status: 0 it has left, 1 it cannot be asked or has not left in time, 2 wrong flags.";

/// Pause between two looks at an instance that leaves.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn command() -> Command {
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print it as JSON");
    let shards = Arg::new("shards")
        .long("shards")
        .action(ArgAction::SetTrue)
        .help("List all ranges of tokens with their owners");
    let status = Command::new("status")
        .about("Show members, leases, links, owners and moves as one instance sees them")
        .after_help(HELP)
        .arg(data_dir::argument())
        .arg(shards)
        .arg(json);
    let timeout = Arg::new("timeout")
        .long("timeout")
        .value_name("SECONDS")
        .default_value("120")
        .value_parser(clap::value_parser!(u64))
        .help("How long to wait until it has left");
    let leave = Command::new("leave")
        .about("Have an instance hand its rows over and leave the ring")
        .after_help(LEAVE_HELP)
        .arg(data_dir::argument())
        .arg(timeout);
    Command::new("ring")
        .about("Show the ring of a running instance, or have it leave")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(status)
        .subcommand(leave)
}

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    match arguments.subcommand() {
        Some(("status", arguments)) => status(arguments),
        Some(("leave", arguments)) => leave(arguments),
        _ => unreachable!("clap requires one of the subcommands above"),
    }
}

fn failed(why: String) -> Failure {
    Failure::failed(format!("error: {why}"))
}

fn status(arguments: &ArgMatches) -> Result<(), Failure> {
    let command = if arguments.get_flag("shards") { "ring shards" } else { "ring status" };
    let status: RingStatus = ask(&data_dir::of(arguments), command).map_err(failed)?;
    match arguments.get_flag("json") {
        true => {
            let json = serde_json::to_string_pretty(&status).map_err(|e| failed(e.to_string()))?;
            print(&format!("{json}\n"))
        }
        false => print(&(text(&status) + &ranges(&status.ranges))),
    }
}

fn leave(arguments: &ArgMatches) -> Result<(), Failure> {
    let directory = data_dir::of(arguments);
    let seconds = *arguments.get_one::<u64>("timeout").expect("it has a default");
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let before: RingStatus = ask(&directory, "ring status").map_err(failed)?;
    let mut status: RingStatus = ask(&directory, "ring leave").map_err(failed)?;
    while !has_left(&status).map_err(failed)? {
        if Instant::now() >= deadline {
            return Err(failed(format!(
                "it has not left after {seconds} s and goes on leaving; {}: see `afterglow ring status` and the logs of the members",
                progress(&status)
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
        status = ask(&directory, "ring status").map_err(|why| {
            failed(format!("{why}; it was told to leave: if it still runs, it goes on leaving"))
        })?;
    }
    print(match before.version > 0 && before.owned().is_none() && !before.leaving {
        true => "it was no member of the ring, and does not join it\n",
        false => "it has left the ring\n",
    })
}

/// Whether an instance has left that was told to.
///
/// # Errors
/// It leaves no more.
fn has_left(status: &RingStatus) -> Result<bool, String> {
    match status.leaving {
        true => Ok(status.has_left()),
        false => Err("it was started again before it had left, and is a member of the ring: run `afterglow ring leave` again".to_owned()),
    }
}

/// How far an instance is that leaves.
fn progress(status: &RingStatus) -> String {
    let database = confirmed(status);
    match status.owned() {
        None => format!("it has not read the ring's map; {database}"),
        Some(shards) => format!("it still owns {shards} shards; {database}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ring_text::fixtures;
    use crate::frontend::cql::cached::{DifferenceStatus, MemberStatus};

    #[test]
    fn members_are_listed_and_what_is_wrong_stands_out() {
        let member =
            |id: &str, linked| MemberStatus { id: id.into(), linked, ..fixtures::member() };
        let members =
            vec![member("0000000000000001", None), member("0000000000000002", Some(false))];
        let mut status = RingStatus { members, ..fixtures::status() };
        let shown = text(&status);
        assert!(shown.starts_with("ring shop, map version 7, lease for 1200 ms\n"), "{shown}");
        assert!(shown.contains("this instance") && shown.contains("DOWN"), "{shown}");
        assert_eq!(status.owned(), Some(2_048));
        assert!(!shown.contains("CONFIRMED"), "{shown}");
        status.confirmed_ms = Some(41_999);
        assert!(
            text(&status).contains("NOT CONFIRMED: the database showed it as a member 41 s ago")
        );
        status.trouble = Some("no node answers".to_owned());
        assert!(text(&status).contains("  WHY: no node answers\n"));
        status.refusal = Some("no MODIFY permission".to_owned());
        let shown = text(&status);
        assert!(shown.contains("  NOTHING CHANGES: the database refuses"), "{shown}");
        assert!(shown.contains("no MODIFY permission\n"), "{shown}");
        status.lack = Some("replicas on 1 of 3 nodes".to_owned());
        assert!(text(&status).contains("  REPLICAS: replicas on 1 of 3 nodes\n"));
        status.lease_trouble = Some("another ring has it".to_owned());
        status.transactions = Some("its release is too old".to_owned());
        status.own_clock = Some("it is fast".to_owned());
        let shown = text(&status);
        for line in [
            "  NO LEASE FOR EXCLUSIVE TABLES: another ring has it\n",
            "  TRANSACTIONS: its release is too old\n",
            "  CLOCK: it is fast\n",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        status.lease_ms = 0;
        status.unowned = 3;
        let shown = text(&status);
        assert!(shown.contains("reads pass through") && shown.contains("3 of 4096"), "{shown}");
        let (setting, here, ring) = ("table-policy".into(), "a".into(), "b".into());
        status.differs = vec![DifferenceStatus { setting, here, ring }];
        status.members[1].differs = vec!["table-policy".into()];
        let shown = text(&status);
        assert!(shown.contains("THROUGH: table-policy is `a` here and `b` there"), "{shown}");
        assert!(shown.contains("DOWN  other table-policy\n"), "{shown}");
        status.members[1].clock_drifts = true;
        assert!(text(&status).contains("table-policy  ITS CLOCK DRIFTS\n"), "{shown}");
        status.gave_up_leaving = true;
        assert!(text(&status).contains("  STAYS: it was leaving when it was started again"));
        status.gave_up_leaving = false;
        assert!(has_left(&status).unwrap_err().contains("run `afterglow ring leave` again"));
        status.leaving = true;
        assert_eq!(has_left(&status), Ok(false));
        assert!(text(&status).contains("  LEAVES THE RING: 2048 shards are still its own\n"));
        status.members.remove(0);
        assert_eq!((status.owned(), has_left(&status)), (None, Ok(true)));
        let shown = text(&status);
        assert!(shown.contains("  LEFT THE RING: stop it, or restart it"), "{shown}");
        assert!(!shown.contains("LEAVES") && !shown.contains("CONFIRMED"), "{shown}");
    }
}
