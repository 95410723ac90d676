//! The memory budget of all clients of a front end, for requests in flight and answers that they
//! have not read.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::metrics::{Counter, Exposition, Kind};

/// What any client may hold whatever the others do, in bytes: it is neither asked for nor counted.
pub const FREE: usize = 64 * 1024;
/// What all clients of a front end may hold beyond that.
const LIMIT: usize = 512 * 1024 * 1024;
/// A client whose answers wait to that length, the last one not counted, is cut off. Reading stops
/// long before: many large answers to requests already under way get here. As many as may be under
/// way, of 64 KiB each, do not.
const MOST_UNREAD: usize = 128 * 1024 * 1024;
/// However little there is, a client may leave so much unread.
const LEAST_UNREAD: usize = 1024 * 1024;

/// One front end's budget, over all its reactors.
pub struct Budget {
    limit: usize,
    /// What clients hold beyond [`FREE`].
    used: AtomicUsize,
    /// How many of them hold more than [`FREE`].
    sharers: AtomicUsize,
    /// Requests refused since there was no room.
    pub refused: Counter,
    /// Clients cut off since they did not read their answers.
    pub unread: Counter,
    /// Clients cut off since a large request came too slowly.
    pub slow: Counter,
    /// Clients sent to make a new connection since tokens of the ring have moved.
    pub moved: Counter,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(LIMIT)
    }
}

impl Budget {
    fn new(limit: usize) -> Self {
        let (used, sharers) = Default::default();
        let (refused, unread, slow, moved) = Default::default();
        Self { limit, used, sharers, refused, unread, slow, moved }
    }

    /// Whether there is room for more.
    pub fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) < self.limit
    }

    /// How much a client may leave unread before another answer. Where the budget is overdrawn, its
    /// fair share. One of the clients has more than that then, so that what they hold comes down
    /// with the answers they get.
    pub fn may_leave_unread(&self) -> usize {
        if self.used.load(Ordering::Relaxed) <= self.limit {
            return MOST_UNREAD;
        }
        let fair = self.limit / self.sharers.load(Ordering::Relaxed).max(1);
        fair.clamp(LEAST_UNREAD, MOST_UNREAD)
    }

    /// A client comes.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), held: Cell::default() }
    }

    /// Adds what is held and what was done about it.
    pub fn expose(&self, out: &mut Exposition) {
        let labels = [("frontend", "cql")];
        const HELD: &str = "afterglow_client_held_bytes";
        let help = "Bytes of requests under way and unread answers, beyond 64 KiB a client.";
        out.header(HELD, Kind::Gauge, help);
        out.sample(HELD, &labels, self.used.load(Ordering::Relaxed));
        const REFUSED: &str = "afterglow_client_large_requests_refused_total";
        out.header(
            REFUSED,
            Kind::Counter,
            "Large requests refused because clients held too much memory.",
        );
        out.sample(REFUSED, &labels, self.refused.get());
        const CUT: &str = "afterglow_client_connections_cut_total";
        out.header(CUT, Kind::Counter, "Connections of clients closed, by reason.");
        let reasons = [
            ("unread_answers", &self.unread),
            ("slow_request", &self.slow),
            ("ring_moved", &self.moved),
        ];
        for (reason, counter) in reasons {
            out.sample(CUT, &[("frontend", "cql"), ("reason", reason)], counter.get());
        }
    }
}

/// What one client holds.
pub struct Share {
    budget: Arc<Budget>,
    held: Cell<usize>,
}

/// What of so many bytes counts.
fn counted(held: usize) -> usize {
    held.saturating_sub(FREE)
}

impl Share {
    /// The budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The client holds so much now.
    pub fn set(&self, held: usize) {
        let (before, after) = (counted(self.held.replace(held)), counted(held));
        match after.checked_sub(before) {
            Some(more) if more > 0 => drop(self.budget.used.fetch_add(more, Ordering::Relaxed)),
            Some(_) => {}
            None => drop(self.budget.used.fetch_sub(before - after, Ordering::Relaxed)),
        }
        match (before > 0, after > 0) {
            (false, true) => drop(self.budget.sharers.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.budget.sharers.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// The client is to hold so much, if there is room. What is larger than the whole budget gets
    /// through alone.
    ///
    /// Clients of other reactors ask at the same time: room is looked for and taken in one step.
    pub fn try_set(&self, held: usize) -> bool {
        let (before, after) = (counted(self.held.get()), counted(held));
        let taken = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let others = used - before;
            (others == 0 || others + after <= self.budget.limit).then_some(others + after)
        });
        if taken.is_err() {
            return false;
        }
        self.held.set(held);
        if before == 0 && after > 0 {
            self.budget.sharers.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Whether the client may ask for more: it holds little, or there is room.
    pub fn may_grow(&self) -> bool {
        counted(self.held.get()) == 0 || self.budget.has_room()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_things_wait_for_each_other_and_small_ones_for_nobody() {
        let budget = Arc::new(Budget::new(4 * FREE));
        let (a, b) = (budget.share(), budget.share());
        assert!(a.try_set(4 * FREE) && !b.try_set(3 * FREE));
        assert!(b.try_set(FREE) && b.try_set(2 * FREE), "what fits");
        assert!(!budget.has_room() && !a.may_grow() && budget.share().may_grow());
        b.set(FREE);
        assert!(budget.has_room());
        drop(a);
        assert!(b.try_set(100 * FREE), "what is too large for everybody gets through alone");
        drop(b);
        assert_eq!(
            (budget.used.load(Ordering::Relaxed), budget.sharers.load(Ordering::Relaxed)),
            (0, 0)
        );
    }

    #[test]
    fn where_there_is_too_little_each_may_leave_its_share_unread() {
        let budget = Arc::new(Budget::new(LIMIT));
        let shares: Vec<_> = (0..16).map(|_| budget.share()).collect();
        shares.iter().for_each(|share| share.set(LIMIT / 16 + FREE));
        assert_eq!(budget.may_leave_unread(), MOST_UNREAD, "there is no more than there may be");
        shares[0].set(LIMIT);
        assert_eq!(budget.may_leave_unread(), LIMIT / 16);
        shares[0].set(0);
        assert_eq!(budget.may_leave_unread(), MOST_UNREAD);
        let many: Vec<_> = (0..LIMIT / LEAST_UNREAD + 1).map(|_| budget.share()).collect();
        many.iter().for_each(|share| share.set(FREE + LEAST_UNREAD));
        assert_eq!(budget.may_leave_unread(), LEAST_UNREAD);
    }
}
