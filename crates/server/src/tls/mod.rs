//! TLS for front ends and for connections to the database.
//!
//! 1. [`ServerTls`] and [`ClientTls`] read certificates, keys and CAs from files, and again when
//!    they are told to. A connection keeps the ones that it began with.
//! 2. A [`TlsSession`] is one connection's TLS, sans-io: bytes in, bytes out.
//! 3. [`shake_hands`] makes the handshake over a socket. [`HandshakeTurns`] bounds how many of them
//!    a reactor works on at once.
//!
//! New files that cannot be used never take the place of those in use.

mod client;
mod fault;
mod handshake;
mod layer;
mod pem;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod turns;

pub use client::{ClientFiles, ClientTls};
pub use fault::TlsError;
pub use handshake::{HandshakeFault, shake_hands};
pub use layer::TlsOrPlain;
pub use server::{ServerFiles, ServerTls};
pub use session::TlsSession;
pub use turns::{HandshakeTurn, HandshakeTurns};
