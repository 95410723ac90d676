//! The lease: at most one instance at a time caches `exclusive` tables.
//!
//! One row in the database, changed only by lightweight transactions:
//!
//! ```text
//!   afterglow.lease   scope 'cql' | owner uuid, expires by TTL | epoch bigint | last_owner uuid
//!
//!                 nobody's, or ours                   renewed
//!   Apart --read--> Asking ------take--> Taking ---applied---> Held --+
//!     ^                |                    |                   | ^   | deadline passed: holds() is false,
//!     |  another's,    |      not applied,  |      not applied  | +---+ renewals go on
//!     +-- failed ------+------ failed ------+-------------------+
//! ```
//!
//! Every take raises the epoch. So two processes with the same identity fence each other. For us
//! the lease ends `ttl - margin` after the moment *before* the transaction was sent, on a clock
//! that never steps. For others it ends when the database expires the owner cell. That is later, as
//! long as the database's clocks keep within the margin. A transaction that timed out counts as not
//! held.
//!
//! The lease is *continuous* if nobody else had it since we last did. Then the rows cached under it
//! are still valid: every write in between came through us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

use crate::clock::Millis;

/// Creates the lease's table. The keyspace comes from [`create_keyspace`].
pub const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS afterglow.lease \
     (scope text PRIMARY KEY, owner uuid, epoch bigint, last_owner uuid)";

/// Creates the lease's keyspace with `replicas` copies in the data centre `dc`.
pub fn create_keyspace(dc: &str, replicas: usize) -> String {
    let dc = dc.replace('\'', "''");
    format!(
        "CREATE KEYSPACE IF NOT EXISTS afterglow WITH replication = \
         {{'class': 'NetworkTopologyStrategy', '{dc}': {replicas}}}"
    )
}

/// How long a lease lasts, and which instance asks for it.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// This instance, the same across restarts.
    pub me: Uuid,
    /// TTL of the owner cell, in whole seconds as the database needs it.
    pub ttl_seconds: u32,
    /// Safety margin at the end, for database nodes whose clocks differ.
    pub margin: Millis,
    /// Pause before asking again while another instance holds it or the database fails.
    pub retry: Millis,
}

impl LeaseConfig {
    fn lifetime(&self) -> Millis {
        (Millis::from(self.ttl_seconds) * 1_000).saturating_sub(self.margin)
    }

    fn renew_after(&self) -> Millis {
        self.lifetime() / 4
    }
}

/// The epochs that an earlier run left in the data directory: the one it held, and the one it was
/// about to take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownEpochs {
    /// Held for certain.
    pub held: i64,
    /// Asked for. It is held if the crash came after the transaction, but before the note of it.
    pub asked: i64,
}

/// The row as read at serial consistency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRow {
    /// The holder. None once expired or released.
    pub owner: Option<Uuid>,
    /// Raised by every take.
    pub epoch: i64,
    /// The instance that took the present epoch.
    pub last_owner: Option<Uuid>,
}

/// One transaction for the caller to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Read the row.
    Read,
    /// Create the row and take it.
    Found,
    /// Take the row from `from` to `to`. The caller notes `to` as asked before it sends this.
    Take {
        /// Epoch that was read.
        from: i64,
        /// Whether the row still names us as owner.
        ours: bool,
        /// Epoch that will be ours.
        to: i64,
    },
    /// Extend what is held.
    Renew {
        /// Our epoch.
        epoch: i64,
    },
}

impl Request {
    /// The statement to run, at serial consistency.
    pub fn cql(&self, config: &LeaseConfig) -> String {
        let LeaseConfig { me, ttl_seconds: ttl, .. } = config;
        let own =
            format!("UPDATE afterglow.lease USING TTL {ttl} SET owner = {me} WHERE scope = 'cql'");
        match self {
            Request::Read => {
                "SELECT owner, epoch, last_owner FROM afterglow.lease WHERE scope = 'cql'"
                    .to_string()
            }
            Request::Found => format!(
                "BEGIN BATCH INSERT INTO afterglow.lease (scope, epoch, last_owner) VALUES ('cql', 1, {me}) \
                 IF NOT EXISTS; {own}; APPLY BATCH"
            ),
            Request::Take { from, ours, to } => {
                let owner = if *ours { me.to_string() } else { "null".to_string() };
                format!(
                    "BEGIN BATCH {own} IF owner = {owner} AND epoch = {from}; \
                     UPDATE afterglow.lease SET epoch = {to}, last_owner = {me} WHERE scope = 'cql'; APPLY BATCH"
                )
            }
            Request::Renew { epoch } => format!("{own} IF owner = {me} AND epoch = {epoch}"),
        }
    }
}

/// The statement that gives the lease back at a clean stop, so that another instance need not wait.
pub fn release_cql(config: &LeaseConfig, epoch: i64) -> String {
    let me = config.me;
    format!(
        "UPDATE afterglow.lease SET owner = null WHERE scope = 'cql' IF owner = {me} AND epoch = {epoch}"
    )
}

/// Reads the epoch that ended with nothing unsettled, see [`settled_cql`].
pub const READ_SETTLED: &str = "SELECT epoch FROM afterglow.lease WHERE scope = 'settled'";

/// The statement that tells the next holder that every fill sees all writes through the holder of
/// this epoch. It is run once no write is in flight, before the lease is given back. It names one
/// epoch, which no holder has twice. If it comes too late, it says nothing about any other epoch.
pub fn settled_cql(epoch: i64) -> String {
    format!("INSERT INTO afterglow.lease (scope, epoch) VALUES ('settled', {epoch})")
}

/// What the database answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// To a read: the row, if there is one.
    Row(Option<LeaseRow>),
    /// To a transaction: whether it applied.
    Applied(bool),
    /// An error or no answer; the transaction may or may not have happened.
    Failed,
}

/// What an answer changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing that the caller must act on.
    Nothing,
    /// Held now.
    Acquired {
        /// Our epoch, to be noted as held.
        epoch: i64,
        /// The holder before.
        before: Before,
    },
    /// Somebody else has it.
    HeldByOther(Uuid),
    /// A renewal was refused: it is no longer ours.
    Lost,
}

/// The holder before the lease was acquired. Unless it was us, everything cached under the lease
/// must be dropped before [`LeaseClock::extend`] makes it count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// We had, and nobody since.
    Us,
    /// Nobody: the row is new.
    Nobody,
    /// Another instance, at this epoch. Its writes may not have reached all replicas, see
    /// [`settled_cql`].
    Another(i64),
}

/// What the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run this now.
    Send(Request),
    /// Nothing before this moment.
    WaitUntil(Millis),
}

/// For the hot path: until when the lease is ours.
#[derive(Debug, Clone, Default)]
pub struct LeaseClock(Arc<AtomicU64>);

impl LeaseClock {
    /// Whether the lease is ours at `now`.
    pub fn holds(&self, now: Millis) -> bool {
        now < self.0.load(Ordering::Acquire)
    }

    /// Makes the lease count until `until`, at least.
    pub fn extend(&self, until: Millis) {
        self.0.fetch_max(until, Ordering::AcqRel);
    }

    /// Makes the lease count until `until` exactly.
    pub fn set(&self, until: Millis) {
        self.0.store(until, Ordering::Release);
    }

    /// Ends it at once.
    pub fn end(&self) {
        self.0.store(0, Ordering::Release);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Apart { ask_at: Millis },
    Asking { row: Option<LeaseRow> },
    Held { epoch: i64, renew_at: Millis },
}

/// The state machine. Its caller runs what [`Lease::next`] returns and passes the answer to
/// [`Lease::answered`].
#[derive(Debug)]
pub struct Lease {
    config: LeaseConfig,
    known: KnownEpochs,
    state: State,
    /// End of what the last applied transaction gave us.
    until: Millis,
}

impl Lease {
    /// A lease not yet asked for.
    pub fn new(config: LeaseConfig, known: KnownEpochs) -> Self {
        Lease { config, known, state: State::Apart { ask_at: 0 }, until: 0 }
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &LeaseConfig {
        &self.config
    }

    /// Our epoch while held.
    pub fn epoch(&self) -> Option<i64> {
        match self.state {
            State::Held { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// End of the lease as granted so far.
    pub fn until(&self) -> Millis {
        self.until
    }

    /// What to do at `now`.
    pub fn next(&self, now: Millis) -> Next {
        match self.state {
            State::Apart { ask_at } if now < ask_at => Next::WaitUntil(ask_at),
            State::Apart { .. } => Next::Send(Request::Read),
            State::Asking { row: None } => Next::Send(Request::Found),
            State::Asking { row: Some(row) } => {
                let to = row.epoch.max(self.known.held).max(self.known.asked) + 1;
                Next::Send(Request::Take { from: row.epoch, ours: row.owner.is_some(), to })
            }
            State::Held { renew_at, .. } if now < renew_at => Next::WaitUntil(renew_at),
            State::Held { epoch, .. } => Next::Send(Request::Renew { epoch }),
        }
    }

    /// Takes the answer to `request`, sent at `sent_at` (taken before sending), at `now`.
    pub fn answered(
        &mut self,
        request: Request,
        sent_at: Millis,
        answer: Answer,
        now: Millis,
    ) -> Change {
        match (request, answer) {
            (Request::Read, Answer::Row(row)) => self.saw(row, now),
            (Request::Found, Answer::Applied(true)) => self.acquired(1, Before::Nobody, sent_at),
            (Request::Take { from, to, .. }, Answer::Applied(true)) => {
                let before =
                    if self.is_continuous(from) { Before::Us } else { Before::Another(from) };
                self.acquired(to, before, sent_at)
            }
            (Request::Renew { epoch }, Answer::Applied(true)) => {
                self.held(epoch, sent_at);
                Change::Nothing
            }
            (Request::Renew { .. }, Answer::Applied(false)) => {
                self.state = State::Apart { ask_at: now };
                Change::Lost
            }
            (Request::Renew { epoch }, _) => {
                self.state = State::Held { epoch, renew_at: now + self.config.retry };
                Change::Nothing
            }
            (request, _) => {
                if let Some(known) = self.to_note(request) {
                    self.known = known; // it may have applied, or may yet
                }
                self.state = State::Apart { ask_at: now + self.config.retry };
                Change::Nothing
            }
        }
    }

    fn saw(&mut self, row: Option<LeaseRow>, now: Millis) -> Change {
        match row.and_then(|row| row.owner).filter(|owner| *owner != self.config.me) {
            Some(other) => {
                self.state = State::Apart { ask_at: now + self.config.retry };
                Change::HeldByOther(other)
            }
            None => {
                self.state = State::Asking { row };
                Change::Nothing
            }
        }
    }

    /// The epochs to note before `request` is sent: those of a take that leaves no gap if it
    /// applies. The epoch that it starts from counts as held. It may be that of an earlier take
    /// whose answer was lost; this take's answer may be lost too. A take that follows another
    /// holder must not be noted. If its answer were lost, its epoch would pass for one of ours.
    /// Rows cached before the other holder came would then be served.
    pub fn to_note(&self, request: Request) -> Option<KnownEpochs> {
        match request {
            Request::Take { from, to, .. } if self.is_continuous(from) => {
                Some(KnownEpochs { held: from, asked: to })
            }
            _ => None,
        }
    }

    /// Whether the epoch that a take started from was ours. The transaction checked it, so no other
    /// holder came in between. `last_owner` distinguishes us from another instance with the same
    /// number.
    fn is_continuous(&self, from: i64) -> bool {
        let State::Asking { row: Some(row) } = self.state else { return false };
        row.last_owner == Some(self.config.me)
            && (from == self.known.held || from == self.known.asked)
    }

    fn acquired(&mut self, epoch: i64, before: Before, sent_at: Millis) -> Change {
        self.known = KnownEpochs { held: epoch, asked: epoch };
        self.held(epoch, sent_at);
        Change::Acquired { epoch, before }
    }

    fn held(&mut self, epoch: i64, sent_at: Millis) {
        self.until = sent_at + self.config.lifetime();
        self.state = State::Held { epoch, renew_at: sent_at + self.config.renew_after() };
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
