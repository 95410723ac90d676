//! memcached's protocols, sans-io: classic text, meta and binary, as memcached 1.6 speaks them.
//!
//! There are three steps, each pure:
//!
//! 1. A [`Decoder`] finds [`Request`]s in bytes.
//! 2. [`decide`](fn@decide) says what an [`Action`] does to the object it names, and its
//!    [`Outcome`].
//! 3. A [`Reply`] writes that outcome the way its client expects.
//!
//! Sockets, storage and clocks are the caller's.

mod action;
mod ahead;
pub mod auth;
mod base64;
mod binary;
mod crawl;
mod decide;
mod decoder;
mod dump;
mod limits;
mod line;
mod log;
mod meta;
mod number;
mod packet;
mod reply;
mod request;
mod sink;
mod text;
mod tokens;
mod topics;
mod ttl;
mod uri;
mod value;
mod watch;

#[cfg(test)]
mod tests;

pub use action::{Action, Arithmetic, Delete, Get, Mode, Store};
pub use ahead::keys_ahead;
pub use decide::{Change, Decision, Item, NewCas, NewItem, Outcome, decide};
pub use decoder::{Decoded, Decoder, Parting, bad_chunk};
pub use dump::{Dump, Form};
pub use limits::{CLASS, ITEM_OVERHEAD, MAX_GET_LINE, MAX_KEY, MAX_LINE};
pub use log::{CloseReason, Fetched, LogEntry, store_status};
pub use packet::Binary;
pub use reply::{Meta, Reply, Stat};
pub use request::{Keys, Operation, Request};
pub use sink::Sink;
pub use topics::Topics;
pub use ttl::{NEVER, PAST, expiry_of};
pub use value::NewValue;
