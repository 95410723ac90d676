//! One question to the admin address of a running server.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches};
use serde::de::DeserializeOwned;

use super::output::Failure;
use crate::config::Config;

/// How long a question for JSON may take, answer and all.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer in bytes, of which the segments of a large cache are the longest.
const LONGEST: usize = 64 << 20;

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
        if address == "off" {
            return Err(Failure::usage(
                "error: --admin: the admin address is off, so nobody can be asked: name one",
            ));
        }
        // An address of IPv6 without brackets may end with a port or not; a URL has a scheme.
        let is_host =
            |host: &str| !host.is_empty() && (!host.contains(':') || host.starts_with('['));
        match address.rsplit_once(':') {
            Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => {
                Ok(Self { address })
            }
            _ => Err(Failure::usage(format!(
                "error: --admin: `{address}` is not an address: write host and port, as in \
                 127.0.0.1:9180 or [::1]:9180"
            ))),
        }
    }

    /// What was named.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The JSON that `GET path` answers.
    ///
    /// # Errors
    /// One line: there is no answer, it is no server of ours, or it refuses.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let address = &self.address;
        let (status, body) = self.ask(path, TIMEOUT)?;
        let no_server =
            || format!("{address} is no admin address of this version of afterglow ({path})");
        match status {
            200 => serde_json::from_slice(&body).map_err(|_| no_server()),
            403 => Err(format!("{address}: {}", String::from_utf8_lossy(&body).trim_end())),
            _ => Err(no_server()),
        }
    }

    /// Status and body of what `GET path` answers, whole within `timeout`.
    ///
    /// # Errors
    /// One line: there is no such answer.
    pub(super) fn ask(&self, path: &str, timeout: Duration) -> Result<(u16, Vec<u8>), String> {
        self.exchange(path, Deadline(Instant::now() + timeout)).map_err(|error| {
            format!(
                "no answer from {}: {error}. Is the server running, and is its --admin this \
                 address?",
                self.address
            )
        })
    }

    fn exchange(&self, path: &str, deadline: Deadline) -> io::Result<(u16, Vec<u8>)> {
        let mut stream = self.connect(deadline)?;
        stream.set_write_timeout(Some(deadline.left()?))?;
        let host = &self.address;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let (mut answer, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            stream.set_read_timeout(Some(deadline.left()?))?;
            match stream.read(&mut part).map_err(timed_out)? {
                0 => break,
                len => answer.extend_from_slice(&part[..len]),
            }
            if answer.len() > LONGEST {
                return Err(io::Error::other("the answer is too long for one of afterglow"));
            }
        }
        parse(&answer).ok_or_else(|| io::Error::other("what came is not HTTP"))
    }

    fn connect(&self, deadline: Deadline) -> io::Result<TcpStream> {
        let mut failed = io::Error::other("the name has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, deadline.left()?) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

/// When an exchange must be over: a server that sends a byte now and then does not put it off.
#[derive(Debug, Clone, Copy)]
struct Deadline(Instant);

impl Deadline {
    fn left(self) -> io::Result<Duration> {
        match self.0.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(timed_out(io::ErrorKind::TimedOut.into())),
            left => Ok(left),
        }
    }
}

/// A socket whose timeout is over says that it "would block".
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "it took too long")
        }
        _ => error,
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
    use std::net::TcpListener;
    use std::thread;

    use clap::Command;

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

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let given = |address: &str| {
            let command = Command::new("x").arg(argument());
            let arguments = command.try_get_matches_from(["x", "--admin", address]).unwrap();
            AdminClient::new(&arguments).map(|client| client.address).map_err(|f| f.message)
        };
        for address in ["127.0.0.1:9180", "[::1]:9180", "cache-1.example:80"] {
            assert_eq!(given(address), Ok(address.to_owned()));
        }
        for address in ["::1:9180", "http://127.0.0.1:9180", "9180", ":9180", "x:99999"] {
            let said = given(address).unwrap_err();
            assert!(said.contains("127.0.0.1:9180 or [::1]:9180"), "{address}: {said}");
        }
        assert!(given("off").unwrap_err().contains("is off"));
    }

    /// A server that goes on sending for as long as it is listened to.
    fn endless(part: &'static [u8]) -> AdminClient {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(part).is_ok() {
                thread::sleep(Duration::from_millis(if part.len() > 1 { 0 } else { 5 }));
            }
        });
        AdminClient { address }
    }

    #[test]
    fn a_server_that_sends_a_byte_now_and_then_does_not_hold_anybody_up() {
        let said = endless(b"H").ask("/", Duration::from_millis(100)).unwrap_err();
        assert!(said.contains("it took too long") && said.contains("Is the server running"));
    }

    #[test]
    fn an_answer_without_an_end_is_refused() {
        let said = endless(&[b'x'; 1 << 20]).ask("/", Duration::from_secs(60)).unwrap_err();
        assert!(said.contains("too long for one of afterglow"), "{said}");
    }
}
