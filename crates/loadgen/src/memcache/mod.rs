//! A native load client of the memcached text protocol: one thread, many connections, every answer
//! verified.
//!
//! [`Objects`] says what keys and values there are, [`wire`] puts requests down and finds answers
//! in what came, [`Client`] keeps so many requests outstanding on each connection and prints what
//! it cost itself: a client near its core's limit measures itself.

mod client;
mod objects;
pub mod wire;

pub use client::{Client, ClientError, Load, Outcome, RequestKind};
pub use objects::{KEY_LEN, Objects};
