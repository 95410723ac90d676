//! The key chooser of a run, made as YCSB's CoreWorkload makes it.

use super::generator::Generator;
use super::latest::SkewedLatest;
use super::uniform::{Hotspot, Sequential, Uniform};
use super::zipfian::{ScrambledZipfian, Zipfian};
use crate::rng::Rng;

/// Which items are asked for how often: the choices of the command line.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Every record equally often.
    Uniform,
    /// YCSB's `requestdistribution=zipfian`: a zipfian over ten thousand million items, scrambled
    /// over the records.
    #[value(alias = "scrambled")]
    Zipfian,
    /// A plain zipfian over the records, constant 0.99: record 0 is the hottest. Steeper than
    /// `zipfian`.
    PlainZipfian,
    /// YCSB's `latest`: the records loaded last are the hottest.
    Latest,
    /// YCSB's `hotspot` with its defaults: 80 % of the requests go to 20 % of the records.
    Hotspot,
    /// One after the other, again and again: the worst case of any cache smaller than the data.
    Sequential,
}

/// Fraction of the records that is hot in YCSB's `hotspot`, by default.
pub const HOT_SET: f64 = 0.2;
/// Fraction of the requests that these get.
const HOT_REQUESTS: f64 = 0.8;

/// A key chooser over `0..records`, made as YCSB's CoreWorkload makes it. Clones draw independently
/// and share no state.
#[derive(Clone, Debug)]
pub struct KeyChooser {
    kind: ChooserKind,
    records: u64,
}

#[derive(Clone, Debug)]
enum ChooserKind {
    Uniform(Uniform),
    Scrambled(ScrambledZipfian),
    Zipfian(Zipfian),
    Latest(SkewedLatest),
    Hotspot(Hotspot),
    Sequential(Sequential),
}

impl KeyChooser {
    /// A chooser over the items `0..records` (2 if less). `PlainZipfian` and `Latest` sum `records`
    /// terms here, some 30 ns each: make it once and clone it.
    pub fn new(distribution: Distribution, records: u64) -> Self {
        let records = records.max(2);
        let kind = match distribution {
            Distribution::Uniform => ChooserKind::Uniform(Uniform::new(0, records - 1)),
            // CoreWorkload hands over `insertstart + insertcount` as the *inclusive* upper bound
            // and rejects what is not there.
            Distribution::Zipfian => ChooserKind::Scrambled(ScrambledZipfian::new(0, records)),
            Distribution::PlainZipfian => ChooserKind::Zipfian(Zipfian::new(0, records - 1)),
            Distribution::Latest => ChooserKind::Latest(SkewedLatest::new(records - 1)),
            Distribution::Hotspot => {
                ChooserKind::Hotspot(Hotspot::new(0, records - 1, HOT_SET, HOT_REQUESTS))
            }
            Distribution::Sequential => ChooserKind::Sequential(Sequential::new(0, records - 1)),
        };
        Self { kind, records }
    }

    /// Another hot set of `hotspot` than YCSB's default: so large a fraction of the records gets 80
    /// % of the requests. Others stay as they are.
    pub fn with_hot_set(mut self, fraction: f64) -> Self {
        if let ChooserKind::Hotspot(hotspot) = &mut self.kind {
            *hotspot = Hotspot::new(0, self.records - 1, fraction, HOT_REQUESTS);
        }
        self
    }

    /// Starts a sequential chooser at `first`, so that several threads do not walk in step; others
    /// stay as they are.
    pub fn starting_at(mut self, first: u64) -> Self {
        if let ChooserKind::Sequential(sequential) = &mut self.kind {
            *sequential = Sequential::starting_at(0, self.records - 1, first);
        }
        self
    }

    /// How many records it chooses from.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Made for more records than there are yet: those below `present` are asked for until it
    /// [grows](Self::grow). As YCSB does it, numbers of others are drawn again.
    pub fn of_present(mut self, present: u64) -> Self {
        self.records = present.max(2);
        self
    }

    /// There are `records` now, no fewer than before. With `latest` the newest is the hottest.
    #[inline]
    pub fn grow(&mut self, records: u64) {
        if records > self.records {
            self.records = records;
            if let ChooserKind::Latest(latest) = &mut self.kind {
                latest.advance(records - 1);
            }
        }
    }

    fn draw(&mut self, rng: &mut Rng) -> u64 {
        match &mut self.kind {
            ChooserKind::Uniform(g) => g.next(rng),
            ChooserKind::Scrambled(g) => g.next(rng),
            ChooserKind::Zipfian(g) => g.next(rng),
            ChooserKind::Latest(g) => g.next(rng),
            ChooserKind::Hotspot(g) => g.next(rng),
            ChooserKind::Sequential(g) => g.next(rng),
        }
    }

    /// The next record number, always below the number of records.
    #[inline]
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        loop {
            let item = self.draw(rng);
            if item < self.records {
                return item;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chooser_stays_in_range() {
        use clap::ValueEnum;
        for &distribution in Distribution::value_variants() {
            for records in [2, 3, 1000] {
                let mut chooser = KeyChooser::new(distribution, records);
                let mut rng = Rng::new(3);
                assert!(
                    (0..10_000).all(|_| chooser.next(&mut rng) < records),
                    "{distribution:?} {records}"
                );
            }
        }
    }

    #[test]
    fn a_hot_set_of_another_size_gets_as_many_requests() {
        let mut chooser = KeyChooser::new(Distribution::Hotspot, 1000).with_hot_set(0.3);
        let mut rng = Rng::new(5);
        let hot = (0..100_000).filter(|_| chooser.next(&mut rng) < 300).count();
        assert!((79_000..81_000).contains(&hot), "{hot}");
    }

    #[test]
    fn what_was_added_is_asked_for_and_what_is_not_there_yet_is_not() {
        let mut rng = Rng::new(9);
        let mut latest = KeyChooser::new(Distribution::Latest, 1000);
        latest.grow(1100);
        let newest = (0..10_000).filter(|_| latest.next(&mut rng) == 1099).count();
        assert!(newest > 1000, "the hottest: {newest}");
        let mut zipfian = KeyChooser::new(Distribution::Zipfian, 1200).of_present(1000);
        assert!((0..10_000).all(|_| zipfian.next(&mut rng) < 1000));
        zipfian.grow(1100);
        assert!((0..10_000).any(|_| zipfian.next(&mut rng) >= 1000));
    }

    #[test]
    fn sequential_visits_every_record_once_a_round() {
        let mut chooser = KeyChooser::new(Distribution::Sequential, 8).starting_at(5);
        let mut rng = Rng::new(0);
        let round: Vec<_> = (0..8).map(|_| chooser.next(&mut rng)).collect();
        assert_eq!(round, [5, 6, 7, 0, 1, 2, 3, 4]);
    }
}
