//! Checks the connections of a reactor from time to time. It finds those that rest, are idle, or
//! are stalled while others wait for what they hold. That is memory, the turn to dump, or a place
//! among the watchers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterglow_engine::device::AlignedBuf;
use afterglow_memcache::CloseReason;

use super::reactor_state::MemcacheReactorState;
use super::shared::MemcacheShared;

/// A connection that stands still for so long is cut when others wait for what it holds.
pub(super) const STALL: u64 = 10;
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
        look(&reactor_state, front_end.store.now());
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
    let short = reactor_state.budget.is_short();
    let dump_wanted = front_end.dump_turn.is_wanted();
    let watch_wanted = front_end.watchers.is_wanted();
    for info in reactor_state.connections() {
        let stands_still = [info.writing_since.get(), info.holding_since.get()];
        let stalled =
            stands_still.into_iter().flatten().any(|since| now.saturating_sub(since) >= STALL);
        let rested = now.saturating_sub(info.last_request.get());
        if rested >= REST {
            info.answers.give_back();
        }
        let idle = front_end
            .limits
            .idle_timeout()
            .is_some_and(|timeout| info.answers.is_complete() && rested >= timeout.as_secs());
        let wanted = short
            || dump_wanted && info.dump.borrow().strong_count() > 0
            || watch_wanted && info.watching.get();
        if stalled && wanted {
            reactor_state.counts.stalled_connections.inc();
            info.cut(CloseReason::Error);
        } else if idle && !info.watching.get() {
            reactor_state.counts.idle_connections.inc();
            info.cut(CloseReason::Idle);
        }
    }
}
