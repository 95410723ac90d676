//! The command line's definition for clap: every setting of the table of keys becomes a flag.

use clap::{Arg, ArgAction, Command};

use super::{explain, generate, health, hotkeys, invalidate, ring, size, top};
use crate::{
    config::{
        Config,
        key::{SettingKey, Shape},
        keys::{self, KEYS},
    },
    version,
};

const ABOUT: &str = "A persistent flash cache: in front of Cassandra, or in the place of memcached";

const MAIN_HELP: &str = "\
Examples:
  afterglow serve
  afterglow serve --cql 127.0.0.1:9043 --backend 127.0.0.1:9042
  afterglow check-config /etc/afterglow/afterglow.toml
  afterglow inspect /var/lib/afterglow
  afterglow size --objects 1e9 --object-size 300
  afterglow explain --schema shop.cql 'SELECT name FROM shop.items WHERE id = ?'
  afterglow invalidate shop.items --where 'id = 42' --data-dir /var/lib/afterglow
  afterglow ring status --data-dir /var/lib/afterglow

Exit status: 0 done, 1 failed, 2 wrong flags or configuration.";

const SERVE_HELP: &str = "\
Every option is also a key of the file (flash-size = \"4GiB\", table-policy = \
[\"shop.*=exclusive\"]) and an environment variable (AFTERGLOW_FLASH_SIZE=4GiB, lists separated by \
commas). A flag takes precedence over the environment, and the environment over the file. Sizes \
have a unit (256MiB, 4GiB, 100GB), and so have durations (250ms, 60s, 3h). `afterglow check-config \
--example` prints a file with every key. `afterglow check-config FILE` explains a file.

SIGTERM and SIGINT finish the requests in flight, write the cache out and end. A second signal \
ends at once, with status 1. SIGHUP reads the file again and applies memory, \
memcache-connections, memcache-idle-timeout, table-policy and log-level. It also reads \
certificates, users and the secret of the ring again.

Without any option the memcached front end is open on 127.0.0.1:11211, with 1GiB of flash in \
./afterglow-data.

Once it listens, one line on standard output names the addresses, as in \
`ports memcache=127.0.0.1:11211 admin=127.0.0.1:9180`. The log goes to standard error.

Examples:
  A memcached that is still warm after a restart, on 400 GiB of a drive of its own:
    afterglow serve --memcache 10.0.0.5:11211 --data-dir /var/lib/afterglow \\
      --flash /mnt/nvme/afterglow:400GiB --memory 8GiB

  Try it beside a Cassandra on this machine, then point a driver at 127.0.0.1:9043:
    afterglow serve --cql 127.0.0.1:9043 --backend 127.0.0.1:9042

  Keep all of keyspace shop cached, on 400 GiB of a drive of its own:
    afterglow serve --cql 10.0.0.5:9042 --backend 10.0.0.1 --backend 10.0.0.2 \\
      --data-dir /var/lib/afterglow --flash /mnt/nvme/afterglow:400GiB \\
      --memory 8GiB --table-policy 'shop.*=exclusive'";

const CHECK_HELP: &str = "\
Takes every option of `afterglow serve` and reads the same environment, so it prints the \
configuration that would run. It does what serve does before it opens the cache, and undoes it. It \
reads every named file, binds the addresses, starts the reactors and checks flash. If a server has \
the data directory open, it does not bind the addresses.

Exit status: 0 a server could start with it, 2 it could not.";

const EXPLAIN_HELP: &str = "\
docs/guide/cql.md says which reads are cached and why others are not. The policy of the table also \
decides, and so do the options of each request (level, paging, tracing).

Examples:
  afterglow explain --backend 127.0.0.1:9042 'SELECT name FROM shop.items WHERE id = ?'
  afterglow explain --schema shop.cql --keyspace shop 'DELETE FROM items WHERE id = 7'";

/// The whole command line.
pub(super) fn command() -> Command {
    documented().subcommand(bench())
}

/// The command line without what only says where a command of an earlier version went.
pub(super) fn documented() -> Command {
    Command::new("afterglow")
        .about(ABOUT)
        .version(version::LONG)
        .after_help(MAIN_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(120)
        .subcommand(serve())
        .subcommand(check_config())
        .subcommand(inspect())
        .subcommand(hotkeys::command())
        .subcommand(invalidate::command())
        .subcommand(ring::command())
        .subcommand(top::command())
        .subcommand(explain())
        .subcommand(size::command())
        .subcommand(health::command())
        .subcommand(generate::completions_command())
        .subcommand(generate::man_pages_command())
}

fn serve() -> Command {
    Command::new("serve")
        .about("Run the cache and its front ends")
        .after_help(SERVE_HELP)
        .arg(config_file())
        .args(KEYS.iter().map(argument))
}

fn check_config() -> Command {
    Command::new("check-config")
        .about(
            "Check and explain a configuration: errors with their place, values in force, cost of policies",
        )
        .after_help(CHECK_HELP)
        .arg(Arg::new("FILE").help("The TOML file to check").required_unless_present("example"))
        .arg(
            Arg::new("example")
                .long("example")
                .action(ArgAction::SetTrue)
                .help("Print a commented file with every key instead"),
        )
        .args(KEYS.iter().map(|key| argument(key).hide(true)))
}

fn inspect() -> Command {
    Command::new("inspect")
        .about("Show the content of a data directory, without changing it")
        .arg(Arg::new("DIR").required(true).help("The data directory"))
        .arg(
            Arg::new("flash").long("flash").value_name("PATH").action(ArgAction::Append).help(
                "The devices, if flash is not in the data directory. Repeatable, in any order unless an earlier build made the cache",
            ),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print it as JSON"))
}

fn explain() -> Command {
    Command::new("explain")
        .about("Explain a CQL statement: is it cached, why not, and what does a write invalidate")
        .after_help(EXPLAIN_HELP)
        .arg(
            Arg::new("STATEMENT")
                .required(true)
                .help("One CQL statement; it may have markers (?, :name)"),
        )
        .arg(
            Arg::new("schema")
                .long("schema")
                .value_name("FILE")
                .help("The tables, as CREATE statements: what `cqlsh -e 'DESCRIBE SCHEMA'` prints"),
        )
        .arg(
            Arg::new("backend")
                .long("backend")
                .value_name("HOST[:PORT]")
                .conflicts_with("schema")
                .help("The database to ask for its tables"),
        )
        .args(explain::TOWARDS_DATABASE.iter().filter_map(towards_database))
        .arg(Arg::new("keyspace").long("keyspace").value_name("NAME").help("The keyspace in use"))
}

/// A setting of `serve` among the options of `explain`, where it is of use with some others only.
fn towards_database((name, help): &(&'static str, &'static str)) -> Option<Arg> {
    let argument = argument(keys::find(name)?).help(*help).help_heading(None::<&str>);
    let needs: &[&str] = match *name {
        "backend-tls-cert" => &["backend-tls-ca", "backend-tls-key"],
        "backend-tls-key" => &["backend-tls-cert"],
        "backend-tls-verify-host-name" => &["backend-tls-ca"],
        _ => &["backend"],
    };
    Some(needs.iter().fold(argument, |argument, other| argument.requires(*other)))
}

/// Where the benchmarks of 0.1 are found.
pub(super) const BENCH_MOVED: &str = "\
error: the benchmarks are a program of their own, afterglow-bench: use `afterglow-bench engine` for `afterglow bench engine`";

/// Takes whatever 0.1 took, to say where it went.
fn bench() -> Command {
    Command::new("bench").hide(true).arg(
        Arg::new("anything")
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .hide(true),
    )
}

fn config_file() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .env("AFTERGLOW_CONFIG")
        .hide_env_values(true)
        .help("Read settings from this TOML file")
}

fn argument(key: &'static SettingKey) -> Arg {
    let argument = Arg::new(key.name)
        .long(key.name)
        .value_name(key.value_name)
        .help(help(key))
        .help_heading(key.group.heading());
    match key.shape {
        Shape::List => argument.action(ArgAction::Append),
        Shape::Switch => {
            argument.num_args(0..=1).default_missing_value("true").require_equals(true)
        }
        Shape::Text | Shape::Number => argument,
    }
}

fn help(key: &SettingKey) -> String {
    match (key.get)(&Config::default()).as_slice() {
        [] => key.help.to_string(),
        defaults => format!("{} [default: {}]", key.help, defaults.join(",")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn clap_finds_no_contradiction() {
        super::command().debug_assert();
    }
}
