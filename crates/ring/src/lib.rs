//! Several instances as one cache: each row is cached by one owner, and no acknowledged write is
//! followed by a stale read through any of them. `docs/internals/ring.md` has the protocol and its
//! argument.
//!
//! [`Member`] is one instance: messages, answers of the database and the clock go in; messages,
//! transactions and decisions come out as [`Action`]s. No sockets, no threads, no clock of its own.
//!
//! | question | where |
//! |---|---|
//! | Who is a member, who owns which shard? | `map.rs`; packed in `packed.rs` |
//! | Which shards go to whom? | `placement.rs` |
//! | May this instance serve now? | `lease.rs`; who lets it: `promise.rs` |
//! | When is a silent member given up? | `takeover.rs` |
//! | How does an instance become a member? | `join.rs`, `member/judge.rs` |
//! | What becomes of a transaction without an answer? | `transaction.rs` |
//! | What does an owner do for a write, what does the writer? | `custody.rs`, `write.rs` |
//! | Does a cached row count, may a fill be installed? | `custody.rs`, `gates.rs`, `dirty.rs` |
//! | How does a read find its owner? | `lookup.rs` |
//! | How does a shard move? | `handover.rs` |
//! | In which version, and how much at once? | `link.rs` |
//! | What travels between instances? | `message.rs`, on the wire `wire.rs` |

#[macro_use]
mod coverage;
mod config;
mod custody;
mod dirty;
mod gates;
mod handover;
mod identity;
mod io;
mod join;
mod lease;
mod link;
mod lookup;
mod malformed;
mod map;
mod member;
mod message;
mod packed;
mod permit;
mod placement;
mod promise;
#[cfg(test)]
mod sim;
mod takeover;
mod transaction;
mod wire;
mod write;

pub use config::{Config, Time};
pub use custody::Durable;
pub use identity::{Identity, Incarnation, MemberId};
pub use io::{Action, FailReason, Io, ReadSource, Rows, TransactionResult, WriteResult};
pub use link::{Credit, Frame, Hello, Link, LinkError};
pub use malformed::Malformed;
pub use map::{Map, MemberEntry, Profile, SHARDS, Shard, Standing};
pub use member::Member;
pub use message::{Envelope, Message, RowKey, Scope};
