//! The ring: several instances share the `exclusive` tables as one cache. [`afterglow_ring`] is the
//! protocol and has no sockets; this connects it.
//!
//! - [`core`]: the member, behind one lock, and what becomes of its decisions.
//! - [`rows`]: what the member does to the cached rows.
//! - [`write`](mod@write): a client's write, from its permits to its acknowledgement.
//! - [`tell`]: owners drop what no write of theirs named.
//! - [`ask`]: a read of a row that another instance owns; [`serve`]: the owner's side, which looks
//!   the row up and fills it in [`owned`].
//! - [`sending`]: how messages leave for other instances; [`questions`]: what was not answered yet.
//! - [`carry`]: rows of earlier epochs, which a move or an absence need not cost;
//!   [`silent_owners`]: whom it does not ask; [`late_fills`]: what it does not try for others.
//! - [`database`]: the connection for transactions; [`map_row`]: the ring's row in the database;
//!   [`lease_row`]: the row of instances without a ring.
//! - [`settings`]: what all members must have in common.
//! - [`kept`]: what a restart needs to know.
//! - [`status`]: what an operator is told; [`report`]: of leases, of ranges and of moves;
//!   [`notes`]: of what is wrong.
//! - [`keeper`]: the task that keeps it all going; [`row_of_others`]: what it knows of that row.
//! - [`source`]: time and random numbers.
//! - [`unconfirmed`], [`lasting`], [`clocks`], [`foreigners`]: when and what the log tells of a
//!   missing lease, of refusals of the database, of clocks, and of instances of other rings.
//!
//! Lock order: the member, then whatever [`afterglow_rowcache`] and the engine lock.

mod ask;
mod carry;
mod clocks;
mod core;
mod database;
mod foreigners;
mod keeper;
mod kept;
mod lasting;
mod late_fills;
mod lease_row;
mod map_row;
mod notes;
mod owned;
mod questions;
mod report;
mod row_of_others;
mod rows;
mod sending;
mod serve;
mod settings;
mod setup;
mod silent_owners;
#[cfg(test)]
mod sim;
mod source;
mod status;
mod tell;
mod unconfirmed;
mod write;

pub(super) use self::ask::RemoteRow;
pub(super) use self::carry::{carried, carried_weakly};
pub(super) use self::core::{Admission, Ring};
pub(super) use self::keeper::RingKeeper;
pub(super) use self::lease_row::is_ring;
pub use self::report::{LeaseStatus, MoveStatus, RangeStatus};
pub(super) use self::setup::OpenRing;
pub use self::setup::RingConfig;
pub use self::status::{DifferenceStatus, MemberStatus, RingHandle, RingStatus};
pub(super) use self::tell::{tell_owners, tell_until_all_know};
pub(super) use self::write::{RingWrite, Verdict};
