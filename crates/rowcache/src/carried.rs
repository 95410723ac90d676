//! Rows that were cached under an earlier epoch of their shard: by this instance, or by the shard's
//! old owner. Where no write has touched such a row since, the database need not be asked for it.
//!
//! 1. [`RowCache::join`]: as for any fill. The caller notes the time.
//! 2. [`RowCache::carried`]: what an engine has of the row, under which epoch, and for how long. An
//!    old owner sends that to the new one ([`CarriedRow::encode`], [`CarriedRow::decode`]).
//! 3. The caller asks the ring whether a row of that epoch counts still. It asks after the row was
//!    found.
//! 4. [`RowCache::install`] takes it for what the fill has read ([`CarriedRow::into_filled`]). A
//!    write that has begun since the first step overtakes it.

use std::sync::atomic::Ordering;

use afterglow_engine::Hit;
use bytes::Bytes;

use crate::entry::{ENDLESS, Origin, Row};
use crate::row::Filled;
use crate::row_cache::{NO_CLAIM, RowCache};
use crate::shards::claim_of;

/// How many epochs back a row may have been cached.
const EPOCHS: u64 = 8;

/// A row that was cached under an earlier epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedRow {
    /// The epoch of its shard.
    pub epoch: u64,
    /// For so many seconds it may be served. `None`: without an end.
    left: Option<u32>,
    row: Bytes,
}

impl CarriedRow {
    /// For another instance: `seconds left u32 | row`, little endian, all ones for no end.
    pub fn encode(&self) -> Vec<u8> {
        [&self.left.unwrap_or(ENDLESS).to_le_bytes()[..], &self.row].concat()
    }

    /// Reads what another instance sent. `None` for what is too short. The caller checks the row.
    pub fn decode(epoch: u64, bytes: &Bytes) -> Option<CarriedRow> {
        let left = u32::from_le_bytes(*bytes.first_chunk::<4>()?);
        Some(CarriedRow { epoch, left: (left != ENDLESS).then_some(left), row: bytes.slice(4..) })
    }

    /// Whether there is a row, and not the word that there is none. `None`: its bytes are no stored
    /// row of this shape of the table.
    pub fn exists(&self, fingerprint: u64) -> Option<bool> {
        Some(!Row::checked(self.row.clone(), fingerprint)?.stored().is_absent())
    }

    /// As if the database had been asked when the row was looked for.
    pub fn into_filled(self) -> Filled {
        // Rows of a marker alone are not cached without a bound, so none of them is carried.
        Filled { bytes: self.row.into(), max_age: self.left, marker_only: false }
    }
}

impl<W> RowCache<W> {
    /// What a hit is worth that was cached under an epoch of `shard` before `before`. `None`: it
    /// was not, or its time is over.
    pub fn carried(&self, hit: &Hit, shard: usize, before: u64) -> Option<CarriedRow> {
        let claim = self.claim.load(Ordering::Acquire);
        let (origin, row) = Origin::split(&hit.value)?;
        if claim == NO_CLAIM || origin.doubted || self.is_in_doubt() {
            return None;
        }
        let oldest = before.saturating_sub(EPOCHS);
        let is_of = |epoch: &u64| claim_of(claim, shard, *epoch) == origin.claim;
        let epoch = (oldest..before).rev().find(is_of)?;
        let left = match origin.max_age {
            ENDLESS => None,
            // Ages are rounded down.
            max_age => {
                let left = max_age.checked_sub(self.age(origin.filled_at)? + 1);
                Some(left.filter(|left| *left > 0)?)
            }
        };
        Some(CarriedRow { epoch, left, row: hit.value.slice_ref(row) })
    }
}
