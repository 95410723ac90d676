//! Checks the connections of a reactor from time to time. It finds those that rest, are idle, or
//! are stalled while others wait for what they hold. That is memory, the turn to dump, or a place
//! among the watchers.
//!
//! Memory that is short is given in the order in which it was asked for. So clients that stand
//! still could hold up all others for as often as there is room for them. Each client therefore
//! gets [`STALL`] seconds for what it holds. One that moves no byte at all gets less the longer the
//! shortage lasts: half as much each time that some had to be cut, and all of it again once nobody
//! waits. Nobody is cut who holds nothing that is short.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterglow_engine::device::AlignedBuf;
use afterglow_memcache::CloseReason;

use super::reactor_state::{Info, MemcacheReactorState, STALL};
use super::shared::MemcacheShared;

/// As short as the patience with clients that stand still becomes, in seconds.
const LEAST_PATIENCE: u64 = 2;
/// A connection on which nothing has come for so long gives back the memory that it keeps for
/// answers.
const REST: u64 = 2;
/// So often read buffers that nobody has used since are given back, in seconds.
const UNUSED: u64 = 10;
/// How often it is looked for connections that stand still.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Looks at them until the front end is closed.
pub async fn watch(front_end: Arc<MemcacheShared>) {
    let reactor_state = MemcacheReactorState::of(&front_end);
    let mut looks = 0;
    while !front_end.closed.load(Ordering::Acquire) {
        compio::time::sleep(POLL_INTERVAL).await;
        look(&reactor_state, front_end.seconds());
        looks += 1;
        if looks % UNUSED == 0 {
            AlignedBuf::give_back_unused_long();
        }
    }
}

/// Has connections that rest give back what they keep. Cuts those that are idle for too long, and
/// those that stand still while others wait for what they hold.
pub(super) fn look(reactor_state: &MemcacheReactorState, now: u64) {
    let front_end = &reactor_state.front_end;
    let patience = reactor_state.patience.get();
    let mut is_cut = false;
    let dump_wanted = front_end.dump_turn.is_wanted();
    let watch_wanted = front_end.watchers.is_wanted();
    for info in reactor_state.connections() {
        let stalled = stands_still(&info, now, STALL);
        let rested = now.saturating_sub(info.last_request.get());
        if rested >= REST {
            info.answers.give_back();
        }
        // One that sends a value, or takes one, is not idle as long as bytes move.
        let still = rested.min(now.saturating_sub(info.moved.get()));
        let idle = front_end.limits.idle_timeout().is_some_and(|timeout| {
            info.answers.is_complete() && Duration::from_secs(still) >= timeout
        });
        let wanted = dump_wanted && info.dump.borrow().strong_count() > 0
            || watch_wanted && info.watching.get();
        let in_the_way = info.answers.holds_what_is_short() && stands_still(&info, now, patience);
        is_cut |= in_the_way;
        if stalled && wanted || in_the_way {
            reactor_state.counts.stalled_connections.inc();
            info.cut(CloseReason::Error);
        } else if idle && !info.watching.get() {
            reactor_state.counts.idle_connections.inc();
            info.cut(CloseReason::Idle);
        }
    }
    let next = match reactor_state.budget.is_short() || is_cut {
        true if is_cut => (patience / 2).max(LEAST_PATIENCE),
        true => patience,
        false => STALL,
    };
    reactor_state.patience.set(next);
}

/// Whether a connection has been at the same MiB of a write, or of a request, for [`STALL`]
/// seconds, or has moved no byte of it for `patience`.
fn stands_still(info: &Info, now: u64, patience: u64) -> bool {
    let since = [info.writing_since.get(), info.holding_since.get()];
    since.into_iter().flatten().any(|since| {
        let silent = now.saturating_sub(since.max(info.moved.get()));
        now.saturating_sub(since) >= STALL || silent >= patience
    })
}
