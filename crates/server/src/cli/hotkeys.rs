//! `afterglow hotkeys`: the keys that are asked for most, of a running server.

use std::fmt::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::admin_client::{self, AdminClient};
use super::output::{Failure, print};
use super::units::short;
use crate::hotkeys::report::{HotEntry, HotKeys};

const HELP: &str = "\
Of the last minutes: counts are halved every minute. One request of 128 is looked at, so rare keys
are left out. Names of keys and prefixes are shown if the server runs with --show-keys.

Exit status: 0 done, 1 the server cannot be asked, 2 wrong flags.";

/// Where names are not given.
const HIDDEN: &str = "(hidden)";

pub(super) fn command() -> Command {
    Command::new("hotkeys")
        .about("Show the hottest keys, prefixes and tables of a running server")
        .after_help(HELP)
        .arg(admin_client::argument())
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print it as JSON"))
}

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let admin = AdminClient::new(arguments)?;
    let failed = |error: String| Failure::failed(format!("error: {error}"));
    let hot: HotKeys = admin.get("/api/v1/hotkeys").map_err(failed)?;
    match arguments.get_flag("json") {
        true => {
            let json = serde_json::to_string_pretty(&hot).map_err(|e| failed(e.to_string()))?;
            print(&format!("{json}\n"))
        }
        false => print(&text(&hot)),
    }
}

fn text(hot: &HotKeys) -> String {
    let mut out = String::new();
    for front_end in &hot.front_ends {
        let rate = short(front_end.per_second);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "{}: about {rate} keys/s, of {} samples (1 in {})",
            front_end.name, front_end.taken, hot.sampled
        );
        list(&mut out, "tables", &front_end.tables);
        list(&mut out, "prefixes", &front_end.prefixes);
        list(&mut out, "keys", &front_end.keys);
    }
    if hot.front_ends.is_empty() {
        out.push_str("no front end is open\n");
    }
    if !hot.keys_shown {
        out.push_str("names are hidden: start the server with --show-keys to see them\n");
    }
    out
}

fn list(out: &mut String, what: &str, entries: &[HotEntry]) {
    if entries.is_empty() {
        return;
    }
    let _ = writeln!(out, "  {what:<10} {:>8} {:>8} {:>10}", "part", "error", "per second");
    for entry in entries {
        let _ = writeln!(
            out,
            "  {:<10} {:>6.2} % {:>6.2} % {:>10}  {}",
            "",
            entry.part * 100.0,
            entry.error * 100.0,
            short(entry.per_second),
            entry.name.as_deref().unwrap_or(HIDDEN)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotkeys::report::HotFrontEnd;

    #[test]
    fn names_are_printed_and_their_absence_is_explained() {
        let entry = |name: Option<&str>| HotEntry {
            name: name.map(str::to_owned),
            part: 0.25,
            error: 0.01,
            per_second: 12_500.0,
        };
        let mut hot = HotKeys {
            sampled: 128,
            keys_shown: true,
            front_ends: vec![HotFrontEnd {
                name: "memcache".into(),
                taken: 400,
                per_second: 50_000.0,
                keys: vec![entry(Some("user:1"))],
                ..HotFrontEnd::default()
            }],
            ..HotKeys::default()
        };
        let shown = text(&hot);
        assert!(shown.starts_with("memcache: about 50.0k keys/s, of 400 samples (1 in 128)\n"));
        assert!(shown.contains(" 25.00 %   1.00 %      12.5k  user:1\n"), "{shown}");
        assert!(!shown.contains("tables") && !shown.contains("--show-keys"), "{shown}");
        hot.keys_shown = false;
        hot.front_ends[0].keys = vec![entry(None)];
        let hidden = text(&hot);
        assert!(hidden.contains("(hidden)") && hidden.contains("--show-keys"), "{hidden}");
    }
}
