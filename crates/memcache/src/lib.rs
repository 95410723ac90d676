//! memcached's protocols, sans-io: classic text, meta and binary, as memcached 1.6 speaks them.
//!
//! Three steps, each pure: a [`Decoder`] finds [`Request`]s in bytes, [`decide`] says what an [`Action`] does to the object
//! it names and what comes of it, and a [`Reply`] writes that [`Outcome`] the way its client expects. Sockets, storage and
//! clocks are the caller's.

pub mod auth;
mod base64;
mod binary;
mod decide;
mod decoder;
mod dump;
mod expiry;
mod meta;
mod number;
mod reply;
mod request;
mod text;
mod tokens;

#[cfg(test)]
mod tests;

pub use decide::{Change, Decision, Item, NewCas, NewItem, NewValue, Outcome, decide};
pub use decoder::{Decoded, Decoder};
pub use dump::{Dump, Form};
pub use expiry::{NEVER, PAST, absolute};
pub use reply::{Binary, Meta, Reply, Stat};
pub use request::{Action, Arithmetic, Delete, Get, Keys, Mode, Operation, Request, Store};

/// Longest key, in bytes.
pub const MAX_KEY: usize = 250;
/// Longest command line, but for those that name many keys.
pub const MAX_LINE: usize = 2048;
/// Longest line of `get`, `gets`, `gat` and `gats`. memcached has no bound here; 1 MiB is four thousand of the longest keys.
pub const MAX_GET_LINE: usize = 1 << 20;
/// The one slab class that all objects are said to be in.
pub const CLASS: u32 = 1;
/// What an object counts beside its key and value against the largest item size.
pub const ITEM_OVERHEAD: usize = 64;
