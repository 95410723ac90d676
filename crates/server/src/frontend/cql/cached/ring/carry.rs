//! Rows that were cached under an earlier epoch of their shard. After a move, or when this instance
//! comes back, a read that misses looks for such a row before it asks the database.
//!
//! 1. The read leads a fill, so a write that begins from now on overtakes it.
//! 2. The row is looked up here: this instance may have owned the shard before.
//! 3. The shard's old owner is asked (PULL), for a time after the move.
//! 4. What was found counts if the ring knows that no write has touched it since. The ring is asked
//!    after the row was found. It is cached again for the time that it has left, also where the
//!    shard is weak, if it was found here ([`carried_weakly`]).
//!
//! A shard that has not moved in this process' time costs one look at the member.

use std::time::Duration;

use afterglow_cql::plan::{RowKey, TableSchema};
use afterglow_cql::token::murmur3;
use afterglow_ring::{MemberId, Message, OlderRow};
use afterglow_rowcache::carried::CarriedRow;
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::write_scope::gate_of;

use super::core::Ring;
use super::questions::PeerAnswer;
use super::rows::bit_of;
use super::source::now;
use crate::frontend::cql::cached::state::CachedState;
use crate::metrics::{CarriedFrom, FrontEndMetrics};

/// The old owner answers from its cache or not at all. Later than that the database is asked.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Looks for a row that is missing where it was cached before, and says where it was found, which
/// is counted. The caller leads the fill of it.
pub async fn carried(
    shared: &CachedState,
    (table, fingerprint): (&TableSchema, u64),
    key: &RowKey,
    metrics: &FrontEndMetrics,
) -> Option<(Filled, CarriedFrom)> {
    let ring = shared.ring.get()?;
    let token = murmur3(key.partition_key());
    let from = ring.carried(token)?;
    let counts = |row: &CarriedRow| {
        older_row(row, (table, fingerprint), token).is_some_and(|older| ring.counts_still(older))
    };
    let hit = shared.look_up(key.engine_key(), metrics).await.ok();
    let row = hit.and_then(|hit| shared.cache.carried(&hit, from.shard, from.epoch));
    if let Some(row) = row.filter(counts) {
        metrics.carried.inc(CarriedFrom::Here);
        return Some((row.into_filled(), CarriedFrom::Here));
    }
    let row = ring.pull(from.old_owner?, token, key).await.filter(counts)?;
    metrics.carried.inc(CarriedFrom::OldOwner);
    Some((row.into_filled(), CarriedFrom::OldOwner))
}

/// What the ring is asked of a row that was found. `None`: it is no row of this shape of the table.
pub fn older_row(
    row: &CarriedRow,
    (table, fingerprint): (&TableSchema, u64),
    token: i64,
) -> Option<OlderRow> {
    let absent = match row.exists(fingerprint)? {
        true => 0,
        false => bit_of(gate_of(&table.keyspace, &table.name)),
    };
    Some(OlderRow { token, epoch: row.epoch, absent })
}

/// Whether a carried row is to be installed for a short time, as fills of a shard that is `weak`
/// are: these may miss writes that its owner before had granted. A row found here misses none, as
/// each of these writes has dropped it. The old owner may not have heard of a change of the schema,
/// and have filled its row from replicas that lack it.
pub fn carried_weakly(weak: bool, from: CarriedFrom) -> bool {
    weak && from == CarriedFrom::OldOwner
}

impl Ring {
    /// Asks the old owner of a shard for a row.
    async fn pull(&self, from: MemberId, token: i64, key: &RowKey) -> Option<CarriedRow> {
        if self.silent_owners.has(from, now()) {
            return None;
        }
        let key = afterglow_ring::RowKey { token, bytes: key.engine_key().to_vec() };
        let (_open, answer) = self.question(from, |number| Message::Pull { number, key })?;
        match compio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(PeerAnswer::Pulled(Some((epoch, Some(bytes)))))) => {
                CarriedRow::decode(epoch, &bytes.into())
            }
            Ok(_) => None,
            Err(_) => {
                self.silent_owners.note(from, now());
                None
            }
        }
    }
}
