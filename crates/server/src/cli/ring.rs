//! `afterglow ring`: the ring as a running instance sees it, and leaving it.

use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::data_dir;
use super::output::{Failure, print};
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

/// The map is read every 20 s. Later than this the database does not answer.
const LATE_MS: u64 = 30_000;

/// Pause between two looks at an instance that leaves.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn command() -> Command {
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print it as JSON");
    let status = Command::new("status")
        .about("Show members, shards, leases and links as one instance sees them")
        .after_help(HELP)
        .arg(data_dir::argument())
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
    let status: RingStatus = ask(&data_dir::of(arguments), "ring status").map_err(failed)?;
    match arguments.get_flag("json") {
        true => {
            let json = serde_json::to_string_pretty(&status).map_err(|e| failed(e.to_string()))?;
            print(&format!("{json}\n"))
        }
        false => print(&text(&status)),
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

/// When the database was last heard of the ring.
fn confirmed(status: &RingStatus) -> String {
    match status.confirmed_ms {
        None => "the database has not shown it as a member yet".to_owned(),
        Some(ms) => format!("the database showed it as a member {} s ago", ms / 1_000),
    }
}

fn text(status: &RingStatus) -> String {
    let mut out = String::new();
    let lease = match status.lease_ms {
        _ if status.has_left() => "left: it answers from the database and the others".to_owned(),
        0 => "no lease: reads pass through".to_owned(),
        left => format!("lease for {left} ms"),
    };
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(out, "ring {}, map version {}, {lease}", status.name, status.version);
    if status.has_left() {
        out.push_str("  LEFT THE RING: stop it, or restart it to have it join again\n");
    } else if status.confirmed_ms.is_none_or(|ms| ms > LATE_MS) {
        let _ = writeln!(out, "  NOT CONFIRMED: {}; its lease ends at 60 s", confirmed(status));
        if let Some(why) = &status.trouble {
            let _ = writeln!(out, "  WHY: {why}");
        }
    }
    if let Some(why) = &status.refusal {
        let _ = writeln!(out, "  NOTHING CHANGES: the database refuses to change the map: {why}");
    }
    if let Some(shards) = status.owned().filter(|_| status.leaving) {
        let _ = writeln!(out, "  LEAVES THE RING: {shards} shards are still its own");
    }
    if status.gave_up_leaving {
        out.push_str("  STAYS: it was leaving when it was started again; to have it leave, run `afterglow ring leave` again\n");
    }
    for difference in &status.differs {
        let _ = writeln!(out, "  READS PASS THROUGH: {difference}");
    }
    if status.members.is_empty() {
        out.push_str("no members are known yet\n");
        return out;
    }
    let wide = |of: fn(&crate::frontend::cql::cached::MemberStatus) -> &str, least: usize| {
        status.members.iter().map(|member| of(member).len()).max().unwrap_or(0).max(least)
    };
    let (address, zone) = (wide(|m| &m.address, 7), wide(|m| &m.zone, 4));
    let _ = writeln!(
        out,
        "  {:<16}  {:<address$}  {:<zone$}  {:>7}  {:>6}  {:<7}  link",
        "member", "address", "zone", "shards", "weight", "state"
    );
    for member in &status.members {
        let link = match member.linked {
            None => "this instance",
            Some(true) => "up",
            Some(false) => "DOWN",
        };
        let differs = match member.differs.is_empty() {
            true => String::new(),
            false => format!("  other {}", member.differs.join(", ")),
        };
        let clock = if member.clock_drifts { "  ITS CLOCK DRIFTS" } else { "" };
        let _ = writeln!(
            out,
            "  {:<16}  {:<address$}  {:<zone$}  {:>7}  {:>6}  {:<7}  {link}{differs}{clock}",
            member.id, member.address, member.zone, member.shards, member.weight, member.state
        );
    }
    if status.unowned > 0 {
        let _ = writeln!(out, "  {} of {} shards have no owner", status.unowned, status.shards);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::cql::cached::{DifferenceStatus, MemberStatus};

    #[test]
    fn members_are_listed_and_what_is_wrong_stands_out() {
        let member = |id: &str, linked| MemberStatus {
            id: id.into(),
            address: "10.0.0.1:7946".into(),
            zone: "a".into(),
            weight: 100,
            state: "active".into(),
            shards: 2_048,
            linked,
            differs: Vec::new(),
            clock_drifts: false,
        };
        let mut status = RingStatus {
            name: "shop".into(),
            me: "0000000000000001".into(),
            version: 7,
            lease_ms: 1_200,
            confirmed_ms: Some(7_000),
            leaving: false,
            gave_up_leaving: false,
            shards: 4_096,
            unowned: 0,
            trouble: None,
            refusal: None,
            differs: Vec::new(),
            members: vec![
                member("0000000000000001", None),
                member("0000000000000002", Some(false)),
            ],
        };
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
