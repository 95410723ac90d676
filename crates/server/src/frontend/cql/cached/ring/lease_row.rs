//! The lease's row of instances without a ring. A ring takes it for ever, so that no such instance
//! caches `exclusive` tables beside it. All members of a ring are one owner there.

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afterglow_cql::message::Consistency;
use afterglow_rowcache::lease::{LeaseConfig, READ_SETTLED, Request};
use uuid::Uuid;

use super::map_row::RingName;
use crate::frontend::cql::Backend;
use crate::frontend::cql::cached::own_query::{NoResult, query};

const DAMAGED: &str = "the row of the lease cannot be read";

/// The row, with the time of the transaction that took it, in microseconds since 1970.
const READ: &str = "SELECT owner, epoch, writetime(owner) FROM afterglow.lease WHERE scope = 'cql'";

/// The time by the clock of the node that is asked, in milliseconds since 1970.
const DATABASE_TIME: &str =
    "SELECT toUnixTimestamp(now()) AS moment FROM system.local WHERE key='local'";

/// What the row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRowState {
    /// It is the ring's. `unsettled`: so short a time ago another instance had it that writes which
    /// it acknowledged may not have reached all replicas yet.
    Ours {
        /// See above.
        unsettled: bool,
        /// Grows whenever the row changes hands, from 1 on where somebody has deleted it.
        epoch: i64,
        /// This process has taken it just now: no member of the ring had it before.
        is_new: bool,
        /// When it was taken, in microseconds since 1970 as the database says it.
        taken: i64,
    },
    /// An instance without a ring, or of another ring, has it.
    HeldBy(Uuid),
}

/// The owner that all members of a ring are in the row.
pub fn owner_of(name: &RingName) -> Uuid {
    // Any function of the name will do that never gives the identity of an instance, which is of
    // version 4.
    let half = |salt: u64| {
        let text = format!("{}\0{}", name.data_center, name.name);
        twox_hash::XxHash3_64::oneshot_with_seed(salt, text.as_bytes())
    };
    uuid::Builder::from_custom_bytes(Uuid::from_u64_pair(half(0), half(1)).into_bytes()).into_uuid()
}

/// Whether an owner of the row is a ring.
pub fn is_ring(owner: Uuid) -> bool {
    owner.get_version() == Some(uuid::Version::Custom)
}

/// Takes the row for the ring unless another instance has it. `hold`: for so long a write that was
/// acknowledged may be missing on a replica.
///
/// # Errors
/// Why it is not known who has it.
pub async fn take(
    backend: &Rc<Backend>,
    name: &RingName,
    hold: Duration,
) -> Result<LeaseRowState, NoResult> {
    let me = owner_of(name);
    // A time to live of 0 is none.
    let config = LeaseConfig { me, ttl_seconds: 0, margin: 0, retry: 0 };
    let mut is_new = false;
    for _ in 0..4 {
        let fetched = query(backend, READ, Consistency::Serial).await?;
        let Some(row) = fetched.rows().next() else {
            let found = Request::Found.cql(&config);
            is_new = query(backend, &found, Consistency::Quorum).await?.applied() == Some(true);
            continue;
        };
        let epoch = row.bigint("epoch").ok_or(DAMAGED)?;
        let owner = row.bytes("owner").and_then(|bytes| Uuid::from_slice(bytes).ok());
        match owner {
            Some(owner) if owner == me => {
                let taken = row.bigint("writetime(owner)").ok_or(DAMAGED)?;
                let unsettled = epoch > 1
                    && age(backend, taken).await < hold
                    && settled_epoch(backend).await? < epoch - 1;
                return Ok(LeaseRowState::Ours { unsettled, epoch, is_new, taken });
            }
            Some(other) => return Ok(LeaseRowState::HeldBy(other)),
            None => {
                let to = epoch.checked_add(1).ok_or(DAMAGED)?;
                let take = Request::Take { from: epoch, ours: false, to }.cql(&config);
                is_new = query(backend, &take, Consistency::Quorum).await?.applied() == Some(true);
            }
        }
    }
    Err("others change the row of the lease all the time".into())
}

/// What the replicas of this data centre know, where those of others cannot be asked: the ring's
/// members may restart while another data centre is away. `None` unless the row is the ring's.
///
/// A ring has the row until an operator takes it away, at EACH_QUORUM. So a quorum of each data
/// centre knows of that, and what it shows as the ring's is the ring's.
pub async fn known_here(
    backend: &Rc<Backend>,
    name: &RingName,
    hold: Duration,
) -> Option<LeaseRowState> {
    let fetched = query(backend, READ, Consistency::LocalQuorum).await.ok()?;
    let row = fetched.rows().next()?;
    let owner = row.bytes("owner").and_then(|bytes| Uuid::from_slice(bytes).ok())?;
    let (epoch, taken) = (row.bigint("epoch")?, row.bigint("writetime(owner)")?);
    // Whether the one before had settled its writes is not known.
    let unsettled = epoch > 1 && age(backend, taken).await < hold;
    let ours = LeaseRowState::Ours { unsettled, epoch, is_new: false, taken };
    (owner == owner_of(name)).then_some(ours)
}

/// The ring that is this owner of the row, if it has a map.
pub async fn ring_of(backend: &Rc<Backend>, owner: Uuid) -> Option<RingName> {
    let text = "SELECT data_center, name FROM afterglow.ring";
    let fetched = query(backend, text, Consistency::One).await.ok()?;
    let mut names = fetched.rows().filter_map(|row| {
        Some(RingName { data_center: row.text("data_center")?, name: row.text("name")? })
    });
    names.find(|name| owner_of(name) == owner)
}

/// The time since then, by the database's clock and by ours, whichever is behind. None where one is
/// not known or before then, so that it counts as recent: our clock may be ahead by hours, as a
/// clock is that was set to local time.
async fn age(backend: &Rc<Backend>, since: i64) -> Duration {
    let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let told = query(backend, DATABASE_TIME, Consistency::One).await.ok();
    let there = told.and_then(|fetched| fetched.rows().next()?.bigint("moment"));
    age_of(since, here, Duration::from_millis(there.unwrap_or(0).max(0) as u64))
}

fn age_of(since: i64, here: Duration, there: Duration) -> Duration {
    let since = Duration::from_micros(since.max(0) as u64);
    here.min(there).checked_sub(since).unwrap_or_default()
}

/// The newest epoch whose holder said that its writes were settled; 0 for none.
async fn settled_epoch(backend: &Rc<Backend>) -> Result<i64, NoResult> {
    let fetched = query(backend, READ_SETTLED, Consistency::Quorum).await?;
    let epoch = fetched.rows().next().and_then(|row| row.bigint("epoch"));
    Ok(epoch.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_different_owners_and_none_is_an_instance() {
        let ring = |center: &str, name: &str| {
            owner_of(&RingName { data_center: center.into(), name: name.into() })
        };
        assert_eq!(ring("a", "x"), ring("a", "x"));
        assert_ne!(ring("a", "x"), ring("b", "x"));
        assert_ne!(ring("a", "x"), ring("a", "y"));
        assert!(is_ring(ring("a", "x")) && !is_ring(Uuid::new_v4()));
    }

    #[test]
    fn what_either_clock_calls_recent_is_recent() {
        let [early, late] = [100, 160].map(Duration::from_secs);
        let age = |since: i64, here, there| age_of(since * 1_000_000, here, there).as_secs();
        assert_eq!(age(90, late, late), 70);
        assert_eq!(age(90, late, early), 10, "ours is ahead");
        assert_eq!(age(90, early, late), 10);
        assert_eq!(age(130, early, late), 0, "ours is before then");
        assert_eq!(age(90, late, Duration::ZERO), 0, "the database's is not known");
    }
}
