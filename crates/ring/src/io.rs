//! What goes into a member and what comes out of it.

use std::sync::Arc;

use crate::config::Time;
use crate::identity::{Incarnation, MemberId, PermitKey};
use crate::map::Map;
use crate::message::{Detail, Envelope, Outcome, RowKey, Scope};

/// What BEGIN and DROP say of a write: whose rows it may change.
#[derive(Debug, Clone, Copy)]
pub struct WriteBody<'a> {
    /// By token.
    pub scopes: &'a [Scope],
    /// In words that the ring does not know.
    pub detail: &'a Detail,
}

/// The cached rows. Each call has taken effect, across a crash of the process too, when it returns.
pub trait Rows {
    /// The epoch under which a row was cached, and the row: `None` where the database had none.
    fn get(&self, key: &RowKey) -> Option<(u64, Option<Vec<u8>>)>;
    /// Whether nothing is served or cached now: the settings say so, or differ from the ring's.
    fn is_idle(&self) -> bool {
        false
    }
    /// Whether a row may not be cached now: an earlier process has granted a write to it that may
    /// still be applied, and the rows know of that. Each read of it asks the database itself.
    fn is_held(&self, _key: &RowKey) -> bool {
        false
    }
    /// Whether a write of everything does no more than make rows whose keys the database draws. It
    /// changes no row that is there. Then a bit of each of its tables, of 64 that tables share.
    fn makes_rows(&self, _detail: &Detail) -> Option<u64> {
        None
    }
    /// The bit of a row's table.
    fn table_bit(&self, _key: &RowKey) -> u64 {
        u64::MAX
    }
    /// Caches a row; for a short time only if it is `weak`, so that it may miss writes.
    /// `at`: its epoch, and when its fill began, from when that time counts.
    fn install(&mut self, key: &RowKey, at: (u64, Time), row: Option<Vec<u8>>, weak: bool);
    /// A write begins: its rows are forgotten, and may not be cached before it has ended. Comes
    /// again with a further question for the same write.
    fn begin(&mut self, write: PermitKey, body: WriteBody<'_>);
    /// A write has ended so. Comes for no write that has not begun.
    fn end(&mut self, write: PermitKey, outcome: Outcome);
    /// Nobody has said how a write has ended, and its permit has run out. A plain write can no
    /// longer be applied. Comes for no write that has not begun.
    fn run_out(&mut self, write: PermitKey);
    /// Time passes. A permit that was given `valid` ago has ended on its writer's clock too.
    fn tick(&mut self, _now: Time, _valid: Time) {}
    /// A write is over, and its rows are forgotten. `weak`: a quorum read may miss it.
    fn forget(&mut self, body: WriteBody<'_>, weak: bool);
    /// Forgets all rows.
    fn drop_all(&mut self);
}

/// What a member has at hand while it handles one input.
pub struct Io<'a> {
    /// The clock, read after the input was received.
    pub now: Time,
    /// What is cached.
    pub rows: &'a mut dyn Rows,
    /// A random number of 128 bits that nobody can guess or repeat.
    pub random: &'a mut dyn FnMut() -> u128,
    /// The actions to carry out, in this order, when the call has returned.
    pub actions: Vec<Action>,
}

impl Io<'_> {
    pub(crate) fn incarnation(&mut self) -> Incarnation {
        Incarnation((self.random)())
    }
}

/// Where the answer to a read came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSource {
    /// From the cache, here or at the owner.
    Cache,
    /// From the database.
    Database,
}

/// Why a request of a client failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailReason {
    /// Nothing was sent to the database: the client may try another instance.
    NotSent,
    /// The outcome of a write is unknown.
    Unknown,
}

/// An action that a member asks its caller for.
#[derive(Debug, Clone)]
pub enum Action {
    /// Send a message.
    Send {
        /// The receiver.
        to: MemberId,
        /// The message.
        envelope: Envelope,
    },
    /// Read the row of the map at SERIAL.
    ReadMap {
        /// Its number, which comes back with the answer.
        id: u64,
    },
    /// Put this map in, if the version is the one before.
    Transact {
        /// Its number, which comes back with the answer.
        id: u64,
        /// With its own version.
        map: Arc<Map>,
    },
    /// Read a row at a quorum, at least.
    ReadRow {
        /// Its number, which comes back with the answer.
        id: u64,
        /// The row's key.
        key: RowKey,
    },
    /// Send a client's write to the database.
    SendWrite {
        /// Its number, which comes back with the answer.
        number: u64,
        /// The client's number, as given with the write.
        client: u64,
    },
    /// Answer a client's read.
    Answer {
        /// The client's number, as given with the read.
        client: u64,
        /// The row, `None` where there is none.
        row: Option<Vec<u8>>,
        /// Where it came from.
        source: ReadSource,
    },
    /// Acknowledge a client's write.
    Acknowledge {
        /// The client's number, as given with the write.
        client: u64,
    },
    /// Tell a client that its request has failed.
    Fail {
        /// The client's number, as given with the request.
        client: u64,
        /// The reason.
        reason: FailReason,
    },
}

/// The outcome of a transaction.
#[derive(Debug, Clone)]
pub enum TransactionResult {
    /// It was applied.
    Applied,
    /// It was not, because this is the map.
    Refused(Arc<Map>),
    /// An error, a timeout: it may have been applied, or may yet be.
    Unknown,
}

/// The database's answer to a client's write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// It was acknowledged at a level that every quorum read sees.
    Done,
    /// It was acknowledged at a level that a quorum read may miss.
    DoneWeakly,
    /// It was refused; nothing of it will be applied.
    Refused,
    /// A timeout or a lost connection.
    Unknown,
    /// The same of a lightweight transaction that a serial read has decided since.
    Decided,
}
