//! What travels between instances. `wire.rs` has the bytes.

use std::sync::Arc;

use crate::config::Time;
use crate::identity::{Identity, Incarnation, MemberId, PermitKey, RingId};
use crate::map::Map;
use crate::schema::SchemaVersion;

/// A row: the token of its partition and its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey {
    /// The partition's Murmur3 token.
    pub token: i64,
    /// Table and primary key, opaque here.
    pub bytes: Vec<u8>,
}

/// What a write may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The partitions with this token.
    Token(i64),
    /// Everything: TRUNCATE, DDL, text that is not understood.
    All,
}

/// What a write touches, for its owners: passed on to [`Rows`](crate::Rows), opaque here. It names
/// the same in other words as the scopes: which rows of which tables.
pub type Detail = Arc<[u8]>;

/// A message with what every message says of its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The instance.
    pub from: MemberId,
    /// Its process: random, drawn at its start.
    pub life: Incarnation,
    /// Its incarnation in the map, zero while it has none.
    pub incarnation: Incarnation,
    /// The ring of which its map is; zero while it has none. A member hears only its own ring's.
    pub ring: RingId,
    /// The version of the map that it has adopted; that map has its incarnation.
    pub version: u64,
    /// What it says.
    pub message: Message,
}

impl Scope {
    /// Who owns the partitions, if they have one owner.
    pub(crate) fn owner(&self, map: &Map) -> Option<MemberId> {
        match self {
            Self::Token(token) => map.owner_of(*token),
            Self::All => None,
        }
    }
}

impl Envelope {
    /// The sender as a member of the map.
    #[must_use]
    pub fn sender(&self) -> Identity {
        Identity { id: self.from, incarnation: self.incarnation }
    }

    /// The sender as a process.
    #[must_use]
    pub fn process(&self) -> Identity {
        Identity { id: self.from, incarnation: self.life }
    }
}

/// How a write ended, for the owners of what it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The database answered: nothing of it is in flight.
    Settled,
    /// It was acknowledged at a level that a quorum read may miss.
    Weak,
    /// It may still be applied.
    Unknown,
    /// The database refused it, or nothing was sent: nothing was written.
    Refused,
    /// A lightweight transaction that may still be applied, and only as a plain write may: a serial
    /// read has decided what its proposals were.
    Decided,
}

/// What is known of the writes to a shard that changes hands. Durations are as of the sender's
/// snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardState {
    /// Which shard.
    pub shard: u16,
    /// Its epoch at the old owner.
    pub epoch: u64,
    /// How long the whole shard is not to be filled.
    pub weak: Time,
    /// How long partitions are not to be filled because of writes that are over.
    pub holds: Vec<(i64, Time)>,
    /// Writes under way: the partition of each, and after how long it cannot be applied any more.
    pub writes: Vec<(PermitKey, i64, Time)>,
    /// The dirty bits of its epochs, as far as they are known.
    pub dirty: Vec<(u64, Vec<u64>)>,
}

/// What one instance says to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// PING: asks for an answer and a promise. `sent` is on the sender's clock and comes back.
    Ping {
        /// Fingerprint of the sender's map.
        hash: u64,
        /// When this was sent.
        sent: Time,
    },
    /// The answer to a PING. With `promise`, PROMISE: that incarnation is not accused before
    /// L(1+2ρ) from now.
    Pong {
        /// Fingerprint of the answerer's map.
        hash: u64,
        /// As in the PING.
        sent: Time,
        /// The process that had sent the PING.
        to: Incarnation,
        /// Whether it is a promise, to the incarnation that sent the PING.
        promise: bool,
        /// The answerer's clock.
        clock: Time,
        /// For how long the database has answered no read of the map to the answerer; 0 if it is no
        /// member.
        blind: Time,
    },
    /// Asks for the map.
    MapWanted,
    /// The sender's map.
    MapIs(Arc<Map>),
    /// BEGIN: asks for a permit to write these.
    Begin {
        /// The write's number.
        number: u64,
        /// Which attempt of the write this is.
        attempt: u32,
        /// What it touches, at this owner.
        scopes: Vec<Scope>,
        /// What it touches, at all owners.
        detail: Detail,
    },
    /// GRANT: the permit, until `duration` from the sending of that attempt.
    Grant {
        /// The process that asked.
        to: Incarnation,
        /// The write's number.
        number: u64,
        /// The attempt that this answers.
        attempt: u32,
        /// How long it lasts.
        duration: Time,
    },
    /// These may have been written: nothing that was read before now may be cached.
    Drop {
        /// The write's number.
        number: u64,
        /// Which attempt of the write this is.
        attempt: u32,
        /// What was written, at this owner.
        scopes: Vec<Scope>,
        /// What was written, at all owners.
        detail: Detail,
        /// Whether a quorum read may miss it.
        weak: bool,
    },
    /// The answer to a DROP.
    Dropped {
        /// The process that asked.
        to: Incarnation,
        /// The write's number.
        number: u64,
        /// The attempt that this answers.
        attempt: u32,
    },
    /// The answer to a BEGIN or DROP that cannot be granted now.
    Refused {
        /// The process that asked.
        to: Incarnation,
        /// The write's number.
        number: u64,
        /// The attempt that this answers.
        attempt: u32,
    },
    /// A write is over.
    End {
        /// The write's number.
        number: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// Asks how writes have ended whose END may have been lost.
    EndWanted {
        /// The process whose writes they are.
        to: Incarnation,
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// A write is over that the sender has handed over as one under way.
    Ended {
        /// Whose write it was, and its number.
        write: PermitKey,
        /// How it ended.
        outcome: Outcome,
    },
    /// Asks for rows.
    Get {
        /// A number for each and its key.
        wanted: Vec<(u64, RowKey)>,
    },
    /// The answer to one row of a GET.
    Found {
        /// The process that asked.
        to: Incarnation,
        /// The question's number.
        number: u64,
        /// What is known of the row.
        answer: Answer,
    },
    /// PULL: the new owner of a shard asks the old one for a cached row.
    Pull {
        /// The question's number.
        number: u64,
        /// Which row.
        key: RowKey,
    },
    /// The answer to a PULL.
    Pulled {
        /// The process that asked.
        to: Incarnation,
        /// The question's number.
        number: u64,
        /// The epoch under which the row was cached, and the row; `None` where it is not cached.
        cached: Option<(u64, Option<Vec<u8>>)>,
    },
    /// Asks for shards, at the sender's version of the map.
    HandoverWanted {
        /// Their numbers.
        shards: Vec<u16>,
    },
    /// The sender does not serve these until the map has passed `version` without their move.
    Handover {
        /// The process that asked.
        to: Incarnation,
        /// The sender's version of the map.
        version: u64,
        /// Up to where the sender has heard of changes of the schema.
        schema: SchemaVersion,
        /// What is known of the writes to each.
        states: Vec<ShardState>,
    },
}

/// What an owner says of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// ROW and ABSENT: the row as it is, `None` where there is none.
    Row(Option<Vec<u8>>),
    /// Ask the database.
    Pass,
    /// Ask the database; the shard is another's.
    NotOwner,
}
