//! The memory budget of all clients of a front end, for requests in flight and answers that they
//! have not read.
//!
//! A client that finds no room is told so, with OVERLOADED, if its STARTUP says `THROW_ON_OVERLOAD`
//! as the database knows it. Any other waits: nothing more is read from it. Nobody waits for ever:
//!
//! - What is [`FREE`] is there for everybody. Whoever waits with more gets the answers to what it
//!   has under way, and room with them if it reads them. It needs nobody else for that.
//! - Whoever waits with a large request holds nothing of it. What was admitted of its first bytes
//!   is given back first, so that two of them do not wait for each other.
//! - What others hold comes back. A request is answered, or fails with its node. A large request
//!   that comes too slowly loses its connection. So does a client that takes nothing of its answers
//!   while others have waited for some seconds.
//! - Many small ones may leave no gap for a large one. So that waits for a bounded time only, and
//!   is refused then, whatever STARTUP said, before its driver gives it up.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

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
    began: Instant,
    /// In which second since then it was last looked for clients that stand still.
    looked: AtomicU64,
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
        let (used, sharers, looked) = Default::default();
        let (refused, unread, slow, moved) = Default::default();
        let began = Instant::now();
        Self { limit, used, sharers, began, looked, refused, unread, slow, moved }
    }

    /// Whether there is room for more.
    pub fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) < self.limit
    }

    /// Whether it is time to look for clients that stand still: once a second, whoever asks.
    pub fn looks_again(&self) -> bool {
        self.looks_in(self.began.elapsed().as_secs())
    }

    fn looks_in(&self, second: u64) -> bool {
        self.looked.fetch_max(second, Ordering::Relaxed) < second
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
            "Requests refused because clients held too much memory: large ones, and of clients that ask for OVERLOADED any.",
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

/// Whether a client whose STARTUP has this as `THROW_ON_OVERLOAD` is told that there is no room.
/// Cassandra takes nothing else for a yes.
pub fn is_told(option: Option<&str>) -> bool {
    option == Some("1")
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

    /// The client holds so much, and is to hold so much more, if there is room. Until there is, it
    /// keeps nothing that it has got for the same before.
    pub fn admit(&self, held: usize, more: usize) -> bool {
        self.set(held);
        self.try_set(held + more)
    }

    /// The client is to hold so much, if there is room. What is larger than the whole budget gets
    /// through alone.
    ///
    /// Clients of other reactors ask at the same time: room is looked for and taken in one step.
    fn try_set(&self, held: usize) -> bool {
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

    /// What is said to a client that finds no room, as Cassandra 4.1 and 5.0 begin it.
    pub fn overload(&self) -> String {
        let (held, used) = (counted(self.held.get()), self.budget.used.load(Ordering::Relaxed));
        let limit = self.budget.limit;
        format!(
            "Request breached limit on bytes in flight. (Endpoint: {held}/{limit} bytes, Global: {used}/{limit} bytes.) \
             Afterglow is currently in an overloaded state and cannot accept more requests."
        )
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
    fn two_that_have_got_a_part_do_not_wait_for_each_other_with_the_rest() {
        let budget = Arc::new(Budget::new(10 * FREE));
        let (a, b) = (budget.share(), budget.share());
        assert!(a.admit(0, 5 * FREE) && b.admit(0, 5 * FREE));
        assert!(!a.admit(0, 9 * FREE), "it has nothing of it any more");
        assert!(b.admit(0, 9 * FREE) && !a.admit(0, 9 * FREE));
        drop(b);
        assert!(a.admit(0, 9 * FREE));
        assert!(a.overload().starts_with(
            "Request breached limit on bytes in flight. (Endpoint: 524288/655360 bytes, Global: 524288/655360 bytes.) "
        ));
    }

    #[test]
    fn many_that_wait_look_for_others_once_a_second() {
        let budget = Budget::default();
        let looks: Vec<_> = [0, 3, 3, 3, 4, 4].map(|second| budget.looks_in(second)).into();
        assert_eq!(looks, [false, true, false, false, true, false]);
    }

    #[test]
    fn who_is_told_says_so_as_the_database_has_it() {
        assert!(is_told(Some("1")));
        assert!(
            [None, Some(""), Some("0"), Some("true"), Some("01")].iter().all(|no| !is_told(*no))
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
