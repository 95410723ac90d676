//! The flag `--data-dir` of commands that ask a running instance over the socket in it.

use std::path::PathBuf;

use clap::{Arg, ArgMatches};

const NAME: &str = "data-dir";

pub(super) fn argument() -> Arg {
    Arg::new(NAME)
        .long(NAME)
        .value_name("DIR")
        .env("AFTERGLOW_DATA_DIR")
        .hide_env_values(true)
        .default_value("afterglow-data")
        .help("The instance's data directory")
}

pub(super) fn of(arguments: &ArgMatches) -> PathBuf {
    PathBuf::from(arguments.get_one::<String>(NAME).expect("it has a default"))
}
