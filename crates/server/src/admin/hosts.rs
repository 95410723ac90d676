//! The host names under which the page and its JSON are served.
//!
//! A browser lets a web page read what comes from that page's own host name. An attacker who serves
//! a page can point its name at 127.0.0.1 a moment later (DNS rebinding). The page then reads what
//! the operator's browser can reach. The `Host` header still has the foreign name, so unknown names
//! are refused. An IP address cannot be pointed elsewhere.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::{StatusCode, header::HOST, uri::Authority};
use axum::response::{IntoResponse, Response};

use crate::config::HostName;

/// Longer than any name with its port: RFC 1035 allows names of 255 bytes.
const LONGEST: usize = 264;

/// Names that a request for the page may carry.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// Where the pages are listened for.
    listening: Option<IpAddr>,
    /// What the operator adds.
    names: Vec<HostName>,
}

impl Hosts {
    /// Loopback, the address that is listened on, and these names.
    pub fn new(listening: Option<SocketAddr>, names: Vec<HostName>) -> Self {
        Self { listening: listening.map(|address| address.ip()), names }
    }

    /// Whether a request for `host` (without port) is meant for this server.
    fn are_for(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        if self.names.iter().any(|name| name.is(host)) {
            return true;
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            return ip.to_canonical().is_loopback()
                || self.listening.is_some_and(|own| own.is_unspecified() || own == ip);
        }
        host.eq_ignore_ascii_case("localhost")
    }

    /// The answer to a request that carries another name or none; `None` for one that may go on.
    pub(super) fn refusal(&self, request: &Request) -> Option<Response> {
        let told = match named(request) {
            Some(all) => {
                let foreign = all.iter().map(Authority::host).find(|host| !self.are_for(host))?;
                format!(
                    "refused: `{foreign}` is not a name of this server. Ask for localhost or the \
                     address it listens on, or start it with --admin-host {foreign}\n"
                )
            }
            None => "refused: the request names no host, or more than one\n".to_owned(),
        };
        Some((StatusCode::FORBIDDEN, told).into_response())
    }
}

/// What a request names as its host: in its first line, if anything, and in its `Host` header.
/// `None` if it names none, or nothing that a browser would send.
fn named(request: &Request) -> Option<Vec<Authority>> {
    let headers = request.headers().get_all(HOST);
    if headers.iter().count() > 1 {
        return None;
    }
    let mut all: Vec<Authority> = request.uri().authority().cloned().into_iter().collect();
    for header in headers {
        all.push(header.to_str().ok()?.parse().ok()?);
    }
    let plain = |name: &Authority| name.as_str().len() <= LONGEST && !name.as_str().contains('@');
    (!all.is_empty() && all.iter().all(plain)).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_and_addresses_are_told_apart() {
        let names = vec!["cache-1.example".parse().unwrap()];
        let on = |address: &str| Hosts::new(address.parse().ok(), names.clone());
        let loopback = on("127.0.0.1:9180");
        for known in
            ["localhost", "LocalHost.", "127.0.0.1", "127.9.9.9", "[::1]", "CACHE-1.example"]
        {
            assert!(loopback.are_for(known), "{known}");
        }
        for foreign in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "xcache-1.example",
            "10.0.0.5",
            "0.0.0.0",
            "",
        ] {
            assert!(!loopback.are_for(foreign), "{foreign}");
        }
        assert!(on("10.0.0.5:9180").are_for("10.0.0.5"));
        assert!(!on("10.0.0.5:9180").are_for("10.0.0.6"));
        assert!(on("0.0.0.0:9180").are_for("10.0.0.6"), "any address of the machine may be meant");
        assert!(!on("0.0.0.0:9180").are_for("evil.example"));
    }
}
