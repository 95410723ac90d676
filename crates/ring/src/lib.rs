//! Several instances as one cache. Each row is cached by one owner. After an acknowledged write no
//! read through any instance is stale. `docs/internals/ring.md` has the protocol and its argument.
//!
//! [`Member`] is one instance. Messages, answers of the database and the clock go in. Messages,
//! transactions and decisions come out as [`Action`]s. It has no sockets, no threads, and no clock
//! of its own.
//!
//! | question | where |
//! |---|---|
//! | Who is a member, who owns which shard? | `map.rs`; packed in `packed.rs` |
//! | Which shards go to whom? | `placement.rs` |
//! | May this instance serve now? | `lease.rs`; who lets it: `promise.rs` |
//! | Who accuses a silent member, who takes its shards? | `takeover.rs` |
//! | Do the clocks of the members run alike? | `drift.rs` |
//! | How does an instance become a member? | `join.rs`, `member/judge.rs` |
//! | What does a transaction of unknown outcome mean? | `transaction.rs` |
//! | Which settings must all members share? | `settings.rs` |
//! | What does an owner do for a write, what does the writer? | `custody.rs`, `write.rs` |
//! | Does a cached row count, may a fill be installed? | `custody.rs`, `gates.rs`, `dirty.rs` |
//! | What is filled weakly, or not at all? | `unseen.rs`, `terms.rs` |
//! | Has the old owner heard of the same changes of the schema? | `schema.rs` |
//! | How does a read find its owner? | `lookup.rs` |
//! | How does a shard move? | `handover.rs` |
//! | In which version, and how much at once? | `link.rs` |
//! | What travels between instances? | `message.rs`, on the wire `wire.rs` |

#[macro_use]
mod coverage;
mod config;
mod custody;
mod dirty;
mod drift;
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
mod parting;
mod patience;
mod permit;
mod placement;
mod promise;
mod schema;
mod settings;
mod sight;
#[cfg(test)]
mod sim;
mod takeover;
mod terms;
mod transaction;
mod unseen;
mod wire;
mod write;

pub use config::{Config, Time};
pub use custody::{Durable, Kept, KeptShards};
pub use identity::{Identity, Incarnation, MemberId, PermitKey, RingId};
pub use io::{Action, FailReason, Io, ReadSource, Rows, TransactionResult, WriteBody, WriteResult};
pub use join::Founding;
pub use link::{Credit, Frame, Hello, Link, LinkError};
pub use malformed::Malformed;
pub use map::{Map, MemberEntry, Profile, SHARDS, Setting, Shard, Standing};
pub use member::{MapLoss, Member, MoveStep, PeerLease, RingReport, ShardMove};
pub use message::{Answer, Detail, Envelope, Message, Outcome, RowKey, Scope};
pub use schema::SchemaVersion;
pub use settings::{Agreement, Difference, differences};
pub use takeover::Suspicion;
pub use terms::{Carried, FillTerms, OlderRow};
