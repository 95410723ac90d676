//! Which nodes of the database a fill asks: one, a second if that is slow, others if all are
//! silent.
//!
//! 1. [`Filler::fill`]: one node is asked, a replica if the request shows its partition.
//! 2. It is slower than most fills are: another node is asked too, which is a *hedge*.
//!    [`Hedges`](crate::frontend::cql::cluster::hedge::Hedges) decides when.
//! 3. It owes answers and nothing at all has come from it for half a second: another is asked, in
//!    any case.
//! 4. The first answer counts. An error, or a lost connection, is no answer while another may come.
//!
//! Invariant: all nodes are asked the same, at the same level, and after the fill's stamp and time
//! were taken. So any of their answers has every write that the stamp is newer than.
//!
//! The race of two answers: the later one finds nobody who waits. Its stream is taken until then
//! ([`Waiters::take`](crate::frontend::cql::streams::Waiters::take)), so no other request gets it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use afterglow_rowcache::row::Filled;
use afterglow_rowcache::tables::FILL_AT;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::fill::{Ask, FillFailure, FillShape};
use super::miss::Filler;
use crate::frontend::cql::cluster::hedge::{FillKind, OVERLOADED_FOR};
use crate::frontend::cql::{Backend, CqlReactorState, KeptBackend};

/// How often a fill checks whether the nodes that it asked are silent.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Nodes that a fill asks at most.
const MOST_ASKED: usize = 3;

/// When a fill may ask another node.
struct Deadlines {
    /// When it was sent.
    begun: Instant,
    /// When it is hedged; `None`: not any more.
    hedge_at: Option<Instant>,
    /// When to see whether all nodes are silent.
    check_at: Instant,
}

impl Deadlines {
    /// `hedge_after`: so long after it was sent, it is to be hedged.
    fn new(begun: Instant, hedge_after: Option<Duration>) -> Self {
        let hedge_at = hedge_after.map(|after| begun + after);
        Deadlines { begun, hedge_at, check_at: begun + TIMEOUT }
    }

    fn next(&self) -> Instant {
        self.hedge_at.map_or(self.check_at, |at| at.min(self.check_at))
    }

    /// Time has passed; whether the fill is to be hedged, which is said once.
    fn passed(&mut self, now: Instant) -> bool {
        if self.check_at <= now {
            self.check_at = now + TIMEOUT;
        }
        self.hedge_at.take_if(|at| *at <= now).is_some()
    }

    /// No other node can be reached yet.
    fn hedge_later(&mut self) {
        self.hedge_at = Some(self.check_at);
    }
}

impl Filler<'_> {
    /// Reads the whole row or a unit. It ends when nobody waits any longer: an answer that comes
    /// later is dropped with its ticket.
    pub(super) async fn fill(
        &self,
        asked_at: u32,
        shape: FillShape,
    ) -> Result<Filled, FillFailure> {
        let filled = self.fill_from_any(asked_at, shape);
        let filled = compio::time::timeout(self.shared.fills.timeout, filled).await;
        filled.unwrap_or(Err(FillFailure::Late))
    }

    /// The first answer counts. All reads were sent after `asked_at`, and after the ticket was
    /// taken.
    async fn fill_from_any(&self, asked_at: u32, shape: FillShape) -> Result<Filled, FillFailure> {
        let first = self.request.connection().await.map_err(|_| FillFailure::Failed)?;
        // A quorum of another data centre may lack what was acknowledged in ours.
        if !self.reactor_state().is_near(&first) {
            return Err(FillFailure::Failed);
        }
        let hedges = &self.reactor_state().hedges;
        let after = hedges.borrow_mut().begin(self.shared.fills.hedge, kind(shape));
        let mut deadlines = Deadlines::new(Instant::now(), after);
        let (mut asked, mut hedge) = (vec![Rc::clone(&first)], None);
        let mut reads = FuturesUnordered::new();
        reads.push(self.fill_from(0, first, asked_at, shape));
        loop {
            match compio::time::timeout_at(deadlines.next(), reads.next()).await {
                Ok(Some((_, Err(FillFailure::Failed)))) if !reads.is_empty() => continue,
                Ok(Some((number, filled))) => {
                    if filled.is_ok() {
                        hedges.borrow_mut().took(kind(shape), deadlines.begun.elapsed());
                        if hedge == Some(number) {
                            self.request.metrics().hedges_won.inc();
                        }
                    }
                    return filled;
                }
                Ok(None) => return Err(FillFailure::Failed),
                Err(_) => {}
            }
            let is_hedge = deadlines.passed(Instant::now()) && self.may_hedge(&asked);
            // A node that answers other requests is busy, not silent. If it is not slower than
            // others are, another node would not be faster.
            let are_silent =
                asked.len() < MOST_ASKED && asked.iter().all(|backend| backend.is_silent());
            if !(is_hedge || are_silent) {
                continue;
            }
            let Some(another) = self.request.connection_beside(&asked) else {
                if is_hedge {
                    deadlines.hedge_later();
                }
                continue;
            };
            let number = asked.len();
            if is_hedge {
                hedge = Some(number);
                self.note_hedge();
            }
            asked.push(Rc::clone(&another));
            reads.push(self.fill_from(number, another, asked_at, shape));
        }
    }

    /// Whether a fill that has asked these nodes may ask another, although they are not silent. An
    /// overloaded database gets no more to do.
    fn may_hedge(&self, asked: &[Rc<Backend>]) -> bool {
        let reactor_state = self.reactor_state();
        asked.len() == 1
            && reactor_state.hedges.borrow().has_budget()
            && !reactor_state.pool.was_overloaded(OVERLOADED_FOR)
    }

    fn note_hedge(&self) {
        self.reactor_state().hedges.borrow_mut().spend();
        self.request.metrics().hedged_fills.inc();
    }

    /// The answer of one node, with its number among those asked.
    async fn fill_from(
        &self,
        number: usize,
        backend: KeptBackend,
        asked_at: u32,
        shape: FillShape,
    ) -> (usize, Result<Filled, FillFailure>) {
        let (plan, key) = (self.read, self.key);
        let ask = Ask { plan, key, shape, consistency: FILL_AT };
        let filled = self.shared.fill(&backend, ask, self.generation, asked_at).await;
        (number, filled)
    }

    fn reactor_state(&self) -> &CqlReactorState {
        &self.request.client().reactor_state
    }
}

fn kind(shape: FillShape) -> FillKind {
    match shape {
        FillShape::Row => FillKind::Row,
        FillShape::Unit(_) => FillKind::Unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_fill_is_hedged_once_and_checks_for_silence_again_and_again() {
        let begun = Instant::now();
        let mut deadlines = Deadlines::new(begun, Some(20 * MS));
        assert_eq!(deadlines.next(), begun + 20 * MS);
        assert!(deadlines.passed(begun + 20 * MS));
        assert_eq!(
            deadlines.next(),
            begun + TIMEOUT,
            "the first check is as early as without hedges"
        );
        assert!(!deadlines.passed(begun + TIMEOUT));
        assert_eq!(deadlines.next(), begun + 2 * TIMEOUT);
        let mut late = Deadlines::new(begun, Some(2 * TIMEOUT + MS));
        assert!(!late.passed(begun + TIMEOUT));
        assert!(!late.passed(begun + 2 * TIMEOUT));
        assert!(late.passed(begun + 2 * TIMEOUT + MS));
        assert_eq!(Deadlines::new(begun, None).next(), begun + TIMEOUT);
    }

    #[test]
    fn a_hedge_without_a_second_node_waits_for_the_next_check() {
        let begun = Instant::now();
        let mut deadlines = Deadlines::new(begun, Some(MS));
        assert!(deadlines.passed(begun + MS));
        deadlines.hedge_later();
        assert_eq!(deadlines.next(), begun + TIMEOUT);
        assert!(deadlines.passed(begun + TIMEOUT) && deadlines.next() > begun + TIMEOUT);
    }
}
