//! Ports for servers that a test or a benchmark starts.

use std::{io, net::TcpListener};

use crate::rng::Rng;

/// An address on loopback whose port nobody used a moment ago, below the range that the system
/// gives to clients. A client that retries a port of that range while the server is away may get
/// that port as its own, and connect to itself.
///
/// # Errors
/// None of a hundred ports can be bound.
pub fn free_port(rng: &mut Rng) -> io::Result<String> {
    let mut last = io::Error::other("no port tried");
    for _ in 0..100 {
        match TcpListener::bind(("127.0.0.1", 10_000 + rng.below(20_000) as u16)) {
            Ok(listener) => return Ok(listener.local_addr()?.to_string()),
            Err(error) => last = error,
        }
    }
    Err(last)
}
