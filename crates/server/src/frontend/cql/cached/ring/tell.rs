//! Has owners of a ring drop what no write of theirs named: what one may have touched besides, and
//! what the operator says.

use std::sync::Arc;
use std::time::Duration;

use afterglow_ring::WriteResult;
use afterglow_rowcache::write_scope::WriteScope;

use super::core::Ring;
use super::write::{RingWrite, Verdict};

/// Between two tries to tell an owner.
const AGAIN: Duration = Duration::from_secs(1);

/// Has the owners drop what a write may have touched that has ended so. Whether all have.
pub async fn tell_owners(ring: &Arc<Ring>, touched: &WriteScope, result: WriteResult) -> bool {
    let mut write = RingWrite::begin(ring, touched, 0);
    write.permitted().await && write.finish(result).await == Verdict::Acknowledged
}

/// The same, again and again until all have.
pub async fn tell_until_all_know(ring: &Arc<Ring>, touched: &WriteScope, result: WriteResult) {
    while !tell_owners(ring, touched, result).await {
        compio::time::sleep(AGAIN).await;
    }
}
