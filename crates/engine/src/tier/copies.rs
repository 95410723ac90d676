//! Promotion: whether a copy of an object on flash is worth its place in DRAM.
//!
//! A promotion costs processor time and evicts another object. It pays if the object just read is
//! likelier to be read again than what it evicts. That is so if requests have recency, as in every
//! real trace at hand. Without recency (uniform, or independent draws by popularity) both are
//! equally likely, and the promotion is work for nothing. Both likelihoods are measured:
//!
//! - *useful*: the share of copies that were hit before they left the small queue,
//! - *missed*: the share of objects evicted from small that were asked for again soon. Soon is
//!   within as many evictions as small has objects: as much time as a copy has there.
//!
//! While useful is not clearly above missed, only a sample is promoted; it shows when that changes.
//!
//! Hit ratios in percent where flash holds everything, and the share of copies taken, by `cargo
//! test -p afterglow-engine --test hit_ratio`, size in percent of unique keys:
//!
//! ```text
//!                         1 %                     10 %
//! requests       all  judged   taken     all  judged   taken
//! any trace            as all    1.00          as all    1.00
//! uniform        1.0     1.0    0.14    10.0    10.0    0.14
//! Zipf 0.7      21.0    21.4    0.13    44.1    45.1    0.15
//! Zipf 0.99     56.8    57.5    0.14    76.7    77.0    0.19
//! ```

/// Copies of which fewer than this share is hit are not worth their cost whatever they push out.
/// With this bound no trace loses more than 0.1 points; with 1/16 some lose 3.
const WORTHWHILE: f32 = 1.0 / 64.0;
/// Useful must be this many times missed: two averages of one likelihood differ by chance.
const MARGIN: f32 = 1.05;
/// Shares are averages over about so many objects: with half as many, chance makes a trace lose
/// half a point.
const AVERAGED: f32 = 8192.0;
/// Of copies that are not worth their place one in so many is taken.
const SAMPLE: u8 = 8;

/// An average that follows what it averages: of all so far at first, then of about the last
/// [`AVERAGED`].
struct Share {
    share: f32,
    of: f32,
}

impl Share {
    fn add(&mut self, value: f32) {
        self.of = (self.of + 1.0).min(AVERAGED);
        self.share += (value - self.share) / self.of;
    }

    /// Counts again what was added as nothing before.
    fn was_one(&mut self) {
        self.share += 1.0 / self.of.max(1.0);
    }
}

/// What was learnt about copies.
pub(super) struct Copies {
    useful: Share,
    missed: Share,
    /// Copies not taken since the last one.
    skipped: u8,
}

impl Copies {
    pub(super) fn new() -> Self {
        let share = |share| Share { share, of: 0.0 };
        Self { useful: share(1.0), missed: share(0.0), skipped: 0 }
    }

    /// A copy leaves the small queue.
    pub(super) fn left_small(&mut self, hit: bool) {
        self.useful.add(if hit { 1.0 } else { 0.0 });
    }

    /// An object is evicted from the small queue.
    pub(super) fn evicted(&mut self) {
        self.missed.add(0.0);
    }

    /// An object evicted from small is asked for within as many evictions as small has objects.
    pub(super) fn missed(&mut self) {
        self.missed.was_one();
    }

    /// Whether to take the next copy.
    pub(super) fn wants(&mut self) -> bool {
        let useful = self.useful.share;
        if useful >= WORTHWHILE && useful >= self.missed.share * MARGIN {
            return true;
        }
        self.skipped = (self.skipped + 1) % SAMPLE;
        self.skipped == 0
    }
}
