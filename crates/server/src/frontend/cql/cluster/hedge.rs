//! Decides when a fill is sent to a second node of the database. Sans-io: the caller has the clock
//! and the nodes.
//!
//! 1. [`Hedges::begin`]: a fill is sent, and may be hedged after this time.
//! 2. [`Hedges::spend`]: it has no answer by then. Whether the budget has a hedge for it.
//! 3. [`Hedges::took`]: it has an answer.
//!
//! Invariant: of any run of `n` fills at most `n / 20 + 10` are hedged. A reactor has a budget of
//! its own.
//!
//! A hedge that wins leaves the first node's latency unknown. What is recorded then is longer than
//! the time after which the fill was hedged, as that latency is. So it counts above the percentile,
//! and hedges do not bring the percentile down.

use std::time::Duration;

use crate::config::FillHedge;
use crate::metrics::LatencyWindow;

/// No percentile hedges earlier: fills this fast gain nothing, and the percentile of fast ones is
/// that of their noise.
pub const FLOOR: Duration = Duration::from_millis(2);
/// For so long after a node has said that it is overloaded, no fill is hedged.
pub const OVERLOADED_FOR: Duration = Duration::from_secs(10);
/// One fill in so many may be hedged.
const FILLS_PER_HEDGE: u32 = 20;
/// Hedges that fills without one save up.
const SAVED: u32 = 10;

/// Fills of one kind take about as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillKind {
    /// Of one row.
    Row,
    /// Of a unit of a partition: up to thousands of rows.
    Unit,
}

/// What a reactor knows of its fills.
#[derive(Debug)]
pub struct Hedges {
    rows: LatencyWindow,
    units: LatencyWindow,
    /// In fills: a hedge costs [`FILLS_PER_HEDGE`].
    budget: u32,
}

impl Default for Hedges {
    fn default() -> Self {
        let (rows, units) = Default::default();
        Hedges { rows, units, budget: SAVED * FILLS_PER_HEDGE }
    }
}

impl Hedges {
    /// A fill is sent. After how long without an answer it may be hedged; `None`: never.
    pub fn begin(&mut self, setting: FillHedge, kind: FillKind) -> Option<Duration> {
        self.budget = (self.budget + 1).min(SAVED * FILLS_PER_HEDGE);
        match setting {
            FillHedge::Off => None,
            FillHedge::Percentile(permille) => {
                Some(self.window(kind).percentile(permille)?.max(FLOOR))
            }
            FillHedge::After(span) => Some(span.get()),
        }
    }

    /// Whether a fill may be hedged now.
    pub fn has_budget(&self) -> bool {
        self.budget >= FILLS_PER_HEDGE
    }

    /// A fill is hedged; only if [`Hedges::has_budget`].
    pub fn spend(&mut self) {
        self.budget = self.budget.saturating_sub(FILLS_PER_HEDGE);
    }

    /// The time from the first send of a fill to its first answer.
    pub fn took(&mut self, kind: FillKind, time: Duration) {
        self.window(kind).record(time);
    }

    fn window(&mut self, kind: FillKind) -> &mut LatencyWindow {
        match kind {
            FillKind::Row => &mut self.rows,
            FillKind::Unit => &mut self.units,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Span;

    const MS: Duration = Duration::from_millis(1);

    /// A database of two nodes whose fills take such times, and how many of so many are hedged.
    struct Simulated {
        hedges: Hedges,
        setting: FillHedge,
    }

    impl Simulated {
        fn new() -> Self {
            Simulated { hedges: Hedges::default(), setting: FillHedge::default() }
        }

        /// `takes`: how long a node takes for the `n`th question.
        fn run(&mut self, fills: u32, takes: impl Fn(u32) -> Duration) -> u32 {
            let mut hedged = 0;
            for n in 0..fills {
                let after = self.hedges.begin(self.setting, FillKind::Row);
                let (mut first, second) = (takes(2 * n), takes(2 * n + 1));
                if let Some(after) = after.filter(|after| *after < first)
                    && self.hedges.has_budget()
                {
                    self.hedges.spend();
                    hedged += 1;
                    first = first.min(after + second);
                }
                self.hedges.took(FillKind::Row, first);
            }
            hedged
        }
    }

    /// A hash: one number in `every` is exceptional.
    fn is_one_in(n: u32, every: u64) -> bool {
        u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32).is_multiple_of(every)
    }

    #[test]
    fn a_steady_database_gets_one_percent_more_fills_at_most() {
        let mut steady = Simulated::new();
        let spread = |n: u32| 3 * MS + MS * (n.wrapping_mul(2_654_435_761) >> 25);
        let hedged = steady.run(200_000, spread);
        assert!(hedged <= 2_000, "{hedged}");
    }

    #[test]
    fn fast_fills_are_not_hedged() {
        let mut fast = Simulated::new();
        let hedged = fast.run(100_000, |n| MS * if is_one_in(n, 50) { 2 } else { 1 });
        assert_eq!(hedged, 0, "all end before the floor");
    }

    #[test]
    fn rare_stalls_are_hedged_and_hedges_do_not_bring_the_percentile_down() {
        let mut stalls = Simulated::new();
        let takes = |n| if is_one_in(n, 200) { 2000 * MS } else { 3 * MS };
        let hedged = stalls.run(100_000, takes);
        assert!((400..=600).contains(&hedged), "one in 200 stalls: {hedged}");
        let after = stalls.hedges.begin(stalls.setting, FillKind::Row).unwrap();
        assert!(after >= 3 * MS && after <= 4 * MS, "{after:?}");
    }

    #[test]
    fn a_database_that_slows_down_gets_one_in_twenty_more_at_most_and_less_soon() {
        let mut slowed = Simulated::new();
        slowed.run(10_000, |_| 3 * MS);
        let first = slowed.run(1_000, |_| 300 * MS);
        assert!((1..=60).contains(&first), "{first}");
        assert_eq!(slowed.run(10_000, |_| 300 * MS), 0, "that is how long they take now");
    }

    #[test]
    fn the_budget_holds_for_every_run_of_fills() {
        let mut hedges = Hedges::default();
        let after = FillHedge::After(Span::new(MS));
        let mut all = Vec::new();
        for n in 0..3_000_u32 {
            // Two times without hedges, in which some are saved up.
            let pause = (1000..1400).contains(&n) || (2000..2050).contains(&n);
            assert_eq!(hedges.begin(after, FillKind::Unit), Some(MS));
            let hedged = !pause && hedges.has_budget();
            if hedged {
                hedges.spend();
            }
            all.push(u32::from(hedged));
        }
        assert_eq!(all[..10], [1; 10]);
        for run in [1, 10, 20, 100, 1000] {
            let most = all.windows(run).map(|run| run.iter().sum::<u32>()).max().unwrap();
            assert!(most <= run as u32 / 20 + 10, "{most} of {run}");
        }
    }

    #[test]
    fn rows_and_units_are_told_apart_and_off_is_never() {
        let mut hedges = Hedges::default();
        for _ in 0..1000 {
            hedges.took(FillKind::Row, 3 * MS);
            hedges.took(FillKind::Unit, 80 * MS);
        }
        let (p99, off) = (FillHedge::default(), FillHedge::Off);
        assert!(hedges.begin(p99, FillKind::Row).unwrap() < 4 * MS);
        assert!(hedges.begin(p99, FillKind::Unit).unwrap() >= 80 * MS);
        assert_eq!(hedges.begin(off, FillKind::Row), None);
        assert_eq!(Hedges::default().begin(p99, FillKind::Row), None, "nothing is known yet");
    }
}
