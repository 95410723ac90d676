//! Events as lines, for clients that asked for them with `watch`.

use std::net::SocketAddr;
use std::time::Duration;

use crate::action::Mode;
use crate::decide::Outcome;
use crate::limits::CLASS;
use crate::topics::Topics;
use crate::uri;

/// How a look-up ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// Found, a value of so many bytes.
    Found(usize),
    /// There is no such object.
    Missing,
    /// It had expired.
    Expired,
    /// It had been flushed.
    Flushed,
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The client said so.
    Normal,
    /// It broke, or said what no client says.
    Error,
    /// Nothing came for too long.
    Idle,
}

/// Something that watchers are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEntry<'a> {
    /// An object was looked up.
    Fetch {
        /// Its key.
        key: &'a [u8],
        /// How it ended.
        fetched: Fetched,
        /// The connection's descriptor.
        cfd: i32,
    },
    /// An object was to be stored.
    Store {
        /// Its key.
        key: &'a [u8],
        /// How.
        mode: Mode,
        /// `stored`, or why not: see [`store_status`].
        status: &'static str,
        /// Seconds until it expires, 0 for never.
        ttl: u32,
        /// Bytes of its value.
        size: usize,
        /// The connection's descriptor.
        cfd: i32,
    },
    /// An object was evicted.
    Eviction {
        /// Its key.
        key: &'a [u8],
        /// It was read since it was stored.
        fetched: bool,
        /// Seconds until it would have expired, `None` for never.
        ttl: Option<u32>,
        /// Seconds since it was last used.
        idle: u32,
        /// Bytes of its value.
        size: usize,
    },
    /// A connection came from there; `None`: by a Unix socket.
    Opened(Option<SocketAddr>, i32),
    /// A connection from there ended.
    Closed(Option<SocketAddr>, i32, CloseReason),
}

/// What is said of a store that came to this.
#[must_use]
pub fn store_status(outcome: &Outcome<'_>) -> &'static str {
    match outcome {
        Outcome::Missing => "not_found",
        Outcome::NotStored => "not_stored",
        Outcome::Exists => "exists",
        Outcome::TooLarge => "too_large",
        Outcome::Failed | Outcome::NotANumber => "no_memory",
        Outcome::Stored { .. }
        | Outcome::Found { .. }
        | Outcome::Deleted
        | Outcome::Number { .. } => "stored",
    }
}

impl LogEntry<'_> {
    /// What a client has asked for that is told this.
    #[must_use]
    pub fn topic(&self) -> Topics {
        match self {
            LogEntry::Fetch { .. } => Topics::FETCHERS,
            LogEntry::Store { .. } => Topics::MUTATIONS,
            LogEntry::Eviction { .. } => Topics::EVICTIONS,
            LogEntry::Opened(..) | LogEntry::Closed(..) => Topics::CONNECTIONS,
        }
    }

    /// Appends its line: entry number `gid`, of the time `since` 1970.
    pub fn write(&self, gid: u64, since: Duration, out: &mut Vec<u8>) {
        // Microseconds without leading zeros, as memcached has them.
        let (seconds, micros) = (since.as_secs(), since.subsec_micros());
        text(out, format_args!("ts={seconds}.{micros} gid={gid} type="));
        match *self {
            LogEntry::Fetch { key, fetched, cfd } => {
                let (status, class, size) = match fetched {
                    Fetched::Found(size) => ("found", CLASS, size),
                    Fetched::Missing => ("not_found", 0, 0),
                    Fetched::Expired => ("expired", 0, 0),
                    Fetched::Flushed => ("flushed", 0, 0),
                };
                name("item_get", key, out);
                text(out, format_args!(" status={status} clsid={class} cfd={cfd} size={size}\n"));
            }
            LogEntry::Store { key, mode, status, ttl, size, cfd } => {
                name("item_store", key, out);
                let (cmd, class) = (command(mode), if status == "too_large" { 0 } else { CLASS });
                text(out, format_args!(" status={status} cmd={cmd} ttl={ttl}"));
                text(out, format_args!(" clsid={class} cfd={cfd} size={size}\n"));
            }
            LogEntry::Eviction { key, fetched, ttl, idle, size } => {
                name("eviction", key, out);
                let fetch = if fetched { "yes" } else { "no" };
                let ttl = ttl.map_or(-1, i64::from);
                text(out, format_args!(" fetch={fetch} ttl={ttl} la={idle}"));
                text(out, format_args!(" clsid={CLASS} size={size}\n"));
            }
            LogEntry::Opened(peer, cfd) => {
                out.extend_from_slice(b"conn_new");
                end_point(peer, out);
                text(out, format_args!(" cfd={cfd}\n"));
            }
            LogEntry::Closed(peer, cfd, reason) => {
                out.extend_from_slice(b"conn_close");
                end_point(peer, out);
                let reason = match reason {
                    CloseReason::Normal => "normal",
                    CloseReason::Error => "error",
                    CloseReason::Idle => "idle_timeout",
                };
                text(out, format_args!(" reason={reason} cfd={cfd}\n"));
            }
        }
    }
}

fn command(mode: Mode) -> &'static str {
    match mode {
        Mode::Set => "set",
        Mode::Add => "add",
        Mode::Replace => "replace",
        Mode::Append => "append",
        Mode::Prepend => "prepend",
        Mode::Cas => "cas",
    }
}

fn text(out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    use std::io::Write;
    out.write_fmt(arguments).expect("memory takes everything");
}

fn name(kind: &str, key: &[u8], out: &mut Vec<u8>) {
    text(out, format_args!("{kind} key="));
    uri::encode(key, out);
}

fn end_point(peer: Option<SocketAddr>, out: &mut Vec<u8>) {
    match peer {
        Some(peer) => {
            text(out, format_args!(" rip={} rport={} transport=tcp", peer.ip(), peer.port()));
        }
        None => out.extend_from_slice(b" rip=unix rport=0 transport=local"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(entry: LogEntry<'_>) -> String {
        let mut out = Vec::new();
        entry.write(7, Duration::from_micros(1_795_472_874_092_264), &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Each is what memcached 1.6.18 said of such an event, but for `too_large`, where it takes
    /// class and descriptor from the wrong place.
    #[test]
    fn lines_are_those_of_memcached() {
        let peer = Some("127.0.0.1:48480".parse().unwrap());
        let store = |status, size| {
            let (mode, ttl, cfd) = (Mode::Append, 99, 12);
            LogEntry::Store { key: b"m", mode, status, ttl, size, cfd }
        };
        for (entry, expected) in [
            (
                LogEntry::Fetch { key: b"x%y/\xe9", fetched: Fetched::Found(3), cfd: 12 },
                "type=item_get key=x%25y%2F%E9 status=found clsid=1 cfd=12 size=3",
            ),
            (
                LogEntry::Fetch { key: b"a", fetched: Fetched::Missing, cfd: 12 },
                "type=item_get key=a status=not_found clsid=0 cfd=12 size=0",
            ),
            (
                store("stored", 2),
                "type=item_store key=m status=stored cmd=append ttl=99 clsid=1 cfd=12 size=2",
            ),
            (
                store("too_large", 0),
                "type=item_store key=m status=too_large cmd=append ttl=99 clsid=0 cfd=12 size=0",
            ),
            (
                LogEntry::Eviction { key: b"k", fetched: false, ttl: None, idle: 4, size: 9 },
                "type=eviction key=k fetch=no ttl=-1 la=4 clsid=1 size=9",
            ),
            (
                LogEntry::Opened(peer, 12),
                "type=conn_new rip=127.0.0.1 rport=48480 transport=tcp cfd=12",
            ),
            (
                LogEntry::Closed(None, 9, CloseReason::Normal),
                "type=conn_close rip=unix rport=0 transport=local reason=normal cfd=9",
            ),
        ] {
            assert_eq!(line(entry), format!("ts=1795472874.92264 gid=7 {expected}\n"));
        }
    }
}
