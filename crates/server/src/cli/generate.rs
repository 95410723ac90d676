//! `afterglow completions SHELL` and `afterglow man-pages DIR`: files made from the definition of
//! the command line, so that they never differ from it.

use std::path::Path;

use clap::{Arg, ArgMatches, Command, builder::PossibleValuesParser};
use clap_complete::Shell;

use super::output::{Failure, print};

/// The shells there are completions for.
const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];

const COMPLETIONS_HELP: &str = "\
Examples:
  afterglow completions bash > /usr/share/bash-completion/completions/afterglow
  afterglow completions zsh > /usr/share/zsh/vendor-completions/_afterglow
  afterglow completions fish > /usr/share/fish/vendor_completions.d/afterglow.fish";

pub(super) fn completions_command() -> Command {
    let shell = Arg::new("SHELL").required(true).help("The shell");
    Command::new("completions")
        .about("Print the completions of a shell for afterglow")
        .after_help(COMPLETIONS_HELP)
        .arg(shell.value_parser(PossibleValuesParser::new(SHELLS)))
}

pub(super) fn man_pages_command() -> Command {
    Command::new("man-pages")
        .about("Write the manual pages of afterglow and its commands")
        .arg(Arg::new("DIR").required(true).help("An existing folder for the pages"))
}

/// Prints the completions of `whole`, the whole command line.
pub(super) fn completions(arguments: &ArgMatches, mut whole: Command) -> Result<(), Failure> {
    let name = arguments.get_one::<String>("SHELL").map(String::as_str).unwrap_or_default();
    let shell: Shell = name.parse().map_err(|e| Failure::usage(format!("error: {e}")))?;
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut whole, "afterglow", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Writes the manual pages of `whole`, the whole command line: one for it and one for each command.
pub(super) fn man_pages(arguments: &ArgMatches, whole: Command) -> Result<(), Failure> {
    let dir = arguments.get_one::<String>("DIR").map(Path::new).unwrap_or(Path::new("."));
    clap_mangen::generate_to(whole, dir).map_err(|e| {
        Failure::failed(format!(
            "error: cannot write the manual pages into {}: {e}. Name an existing folder",
            dir.display()
        ))
    })
}
