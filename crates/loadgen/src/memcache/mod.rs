//! A native load client of the memcached text protocol: one thread, many connections, every answer
//! verified.
//!
//! [`Objects`] makes keys and values. [`wire`] encodes requests and decodes answers. [`Client`]
//! keeps so many requests outstanding on each connection. It also prints its own CPU: a client near
//! its core's limit measures itself.

mod client;
mod objects;
pub mod wire;

pub use client::{Client, ClientError, Load, Outcome, RequestKind};
pub use objects::{KEY_LEN, Objects};
