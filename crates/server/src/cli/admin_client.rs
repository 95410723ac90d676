//! One question to the admin address of a running server.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::{Arg, ArgMatches};
use serde::de::DeserializeOwned;

use super::output::Failure;
use crate::config::Config;

/// How long one step of a question may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Answers are no longer than this.
const LONGEST: u64 = 64 << 20;

/// The option that names the server.
pub(super) fn argument() -> Arg {
    Arg::new("admin")
        .long("admin")
        .value_name("ADDRESS")
        .env("AFTERGLOW_ADMIN")
        .hide_env_values(true)
        .help(format!("The server's admin address [default: {}]", default_address()))
}

fn default_address() -> String {
    Config::default().admin.map_or_else(|| "off".into(), |address| address.to_string())
}

/// A server's admin address.
#[derive(Debug, Clone)]
pub(super) struct AdminClient {
    address: String,
}

impl AdminClient {
    /// The one that the command line names.
    pub(super) fn new(arguments: &ArgMatches) -> Result<Self, Failure> {
        let given = arguments.get_one::<String>("admin").cloned();
        let address = given.unwrap_or_else(default_address);
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self { address })
            }
            _ => Err(Failure::usage(format!(
                "error: --admin: `{address}` is not an address: write host and port, as in \
                 127.0.0.1:9180"
            ))),
        }
    }

    /// What was named.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// What `GET path` answers.
    ///
    /// # Errors
    /// One line: there is no answer, it is no server of ours, or it refuses.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let address = &self.address;
        let (status, body) = self.ask(path).map_err(|error| {
            format!(
                "no answer from {address}: {error}. Is the server running, and is its --admin this \
                 address?"
            )
        })?;
        let no_server =
            || format!("{address} is no admin address of this version of afterglow ({path})");
        match status {
            200 => serde_json::from_slice(&body).map_err(|_| no_server()),
            403 => Err(format!("{address}: {}", String::from_utf8_lossy(&body).trim_end())),
            _ => Err(no_server()),
        }
    }

    fn ask(&self, path: &str) -> io::Result<(u16, Vec<u8>)> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        )?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer)?;
        parse(&answer).ok_or_else(|| io::Error::other("what came is not HTTP"))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut failed = io::Error::other("the name has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

/// Status and body of an answer that ends with its connection.
fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[end + 4..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}\n";
        assert_eq!(parse(answer), Some((200, b"{}\n".to_vec())));
        for other in [&b""[..], b"ERROR\r\n\r\n", b"HTTP/1.1 what\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]
        {
            assert_eq!(parse(other), None);
        }
    }
}
