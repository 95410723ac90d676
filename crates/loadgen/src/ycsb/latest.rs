//! YCSB's `latest`: zipfian counted back from the newest record.

use super::{generator::Generator, zipfian::Zipfian};
use crate::rng::Rng;

/// The newest record is the hottest.
///
/// As in YCSB the zipfian has as many items as the *number of the newest record*. That is one less
/// than there are records: record 0 is never asked for.
#[derive(Clone, Debug)]
pub struct SkewedLatest {
    newest: u64,
    zipfian: Zipfian,
}

impl SkewedLatest {
    /// Over the records `0..=newest`; `newest` must be at least 1.
    pub fn new(newest: u64) -> Self {
        Self { newest, zipfian: Zipfian::new(0, newest.max(1) - 1) }
    }

    /// A record was added: it is the hottest from now on.
    pub fn advance(&mut self, newest: u64) {
        self.newest = self.newest.max(newest);
    }
}

impl Generator for SkewedLatest {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        self.newest - self.zipfian.next_of(self.newest, rng)
    }
}
