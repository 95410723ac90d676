//! `afterglow health`: one question to the admin address of a running server, for the health checks
//! of containers and for scripts.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::output::{Failure, print};
use crate::config::{Config, Span, parse_listen};

/// Bytes of an answer that are read at most.
const LONGEST: usize = 64 << 10;

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
        .arg(
            Arg::new("admin")
                .long("admin")
                .value_name("ADDRESS")
                .env("AFTERGLOW_ADMIN")
                .hide_env_values(true)
                .help(format!("The server's admin address [default: {}]", default_admin())),
        )
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
    let text = |name| arguments.get_one::<String>(name).cloned();
    let admin = text("admin").unwrap_or_else(default_admin);
    if admin == "off" {
        return Err(Failure::usage(
            "error: --admin: the admin address is off, so nobody can be asked: name one",
        ));
    }
    let address =
        parse_listen(&admin).map_err(|error| Failure::usage(format!("error: --admin: {error}")))?;
    let timeout: Span = text("timeout")
        .unwrap_or_default()
        .parse()
        .map_err(|error| Failure::usage(format!("error: --timeout: {error}")))?;
    let page = if arguments.get_flag("live") { "/healthz" } else { "/readyz" };
    let unreachable = |error: io::Error| {
        Failure::failed(format!(
            "error: no answer from {address}: {error}. Is the server running, and is its --admin \
             this address?"
        ))
    };
    let (status, body) = ask(address, page, timeout.get()).map_err(unreachable)?;
    match status {
        200 => print(&body),
        404 => Err(Failure::failed(format!("error: {address} is no admin address of afterglow"))),
        _ => Err(Failure::failed(body.trim_end())),
    }
}

fn default_admin() -> String {
    Config::default().admin.map_or_else(|| "off".into(), |address| address.to_string())
}

/// Status and body of a page.
fn ask(address: SocketAddr, page: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let deadline = Instant::now() + timeout;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    write!(stream, "GET {page} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut part)? {
            0 => break,
            len => answer.extend_from_slice(&part[..len]),
        }
        if answer.len() > LONGEST {
            return Err(io::Error::other("the answer is too long for a page of afterglow"));
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    let whole = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    });
    whole.ok_or_else(|| io::Error::other("the answer is not HTTP"))
}
