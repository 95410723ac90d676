//! YCSB's core workloads: which operations, in which shares, over which records.

use super::chooser::Distribution;
use crate::rng::Rng;

/// A workload by its name.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// YCSB A: half reads, half updates of one field, zipfian.
    A,
    /// YCSB B: 95 % reads, 5 % updates of one field, zipfian.
    B,
    /// YCSB C: reads, zipfian.
    C,
    /// YCSB D: 95 % reads of the latest records, 5 % inserts.
    D,
    /// YCSB E: 95 % scans of 1 to 100 records from a zipfian start, 5 % inserts. A scan is a slice
    /// of a clustering.
    E,
    /// YCSB F: half reads, half read-modify-writes of one field, zipfian.
    F,
    /// Not of YCSB: 90 % reads of the 50 newest rows of a partition, 10 % new rows, zipfian.
    Feed,
    /// Not of YCSB: new records alone. With reads for nothing D would reach twenty times that.
    Inserts,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads a record.
    Read,
    /// Writes one field of a record.
    Update,
    /// Writes a new record.
    Insert,
    /// Reads several records in their order.
    Scan,
    /// Reads a record, then writes one of its fields.
    ReadModifyWrite,
}

/// Shares of the operations; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpMix {
    shares: [(Action, f64); 2],
}

impl OpMix {
    /// So large a share of `first`; the rest is `second`.
    pub fn new(first: Action, share: f64, second: Action) -> Self {
        Self { shares: [(first, share), (second, 1.0 - share)] }
    }

    /// Whether the action occurs at all.
    pub fn has(&self, action: Action) -> bool {
        self.shares.iter().any(|(which, share)| *which == action && *share > 0.0)
    }

    /// What the next operation does.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> Action {
        let [(first, share), (second, rest)] = self.shares;
        // Without a choice none is drawn: a load of reads only asks for the same keys as ever.
        if rest <= 0.0 || (share > 0.0 && rng.next_f64() < share) { first } else { second }
    }
}

impl Workload {
    /// Its operations.
    pub fn mix(self) -> OpMix {
        match self {
            Workload::A => OpMix::new(Action::Read, 0.5, Action::Update),
            Workload::B => OpMix::new(Action::Read, 0.95, Action::Update),
            Workload::C => OpMix::new(Action::Read, 1.0, Action::Update),
            Workload::D => OpMix::new(Action::Read, 0.95, Action::Insert),
            Workload::E => OpMix::new(Action::Scan, 0.95, Action::Insert),
            Workload::F => OpMix::new(Action::Read, 0.5, Action::ReadModifyWrite),
            Workload::Feed => OpMix::new(Action::Scan, 0.9, Action::Insert),
            Workload::Inserts => OpMix::new(Action::Insert, 1.0, Action::Read),
        }
    }

    /// Which records are asked for.
    pub fn distribution(self) -> Distribution {
        match self {
            Workload::D | Workload::Inserts => Distribution::Latest,
            _ => Distribution::Zipfian,
        }
    }

    /// Whether its table has partitions of several rows.
    pub fn is_clustered(self) -> bool {
        matches!(self, Workload::E | Workload::Feed)
    }

    /// How many records a scan has: YCSB's `maxscanlength` of 100 with a uniform distribution.
    #[inline]
    pub fn scan_length(self, rng: &mut Rng) -> u64 {
        if self == Workload::Feed { 50 } else { 1 + rng.below(100) }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Workload::Feed => f.write_str("feed"),
            Workload::Inserts => f.write_str("inserts"),
            letter => write!(f, "YCSB {letter:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations of each kind of 100,000.
    fn counts(workload: Workload) -> impl Fn(Action) -> usize {
        let mut rng = Rng::new(7);
        let drawn: Vec<_> = (0..100_000).map(|_| workload.mix().draw(&mut rng)).collect();
        move |action| drawn.iter().filter(|drawn| **drawn == action).count()
    }

    #[test]
    fn shares_are_those_of_ycsb() {
        use Action::*;
        for (workload, first, share, second) in [
            (Workload::A, Read, 50_000, Update),
            (Workload::B, Read, 95_000, Update),
            (Workload::C, Read, 100_000, Update),
            (Workload::D, Read, 95_000, Insert),
            (Workload::E, Scan, 95_000, Insert),
            (Workload::F, Read, 50_000, ReadModifyWrite),
            (Workload::Feed, Scan, 90_000, Insert),
            (Workload::Inserts, Insert, 100_000, Read),
        ] {
            let count = counts(workload);
            assert!(count(first).abs_diff(share) < 500, "{workload}: {}", count(first));
            assert_eq!(count(first) + count(second), 100_000, "{workload}");
            assert!(workload.mix().has(first) && workload.mix().has(second) == (share < 100_000));
        }
    }

    #[test]
    fn scans_of_e_have_1_to_100_records_and_feeds_50() {
        let mut rng = Rng::new(1);
        let lengths: Vec<_> = (0..10_000).map(|_| Workload::E.scan_length(&mut rng)).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&1), Some(&100)));
        assert_eq!(Workload::Feed.scan_length(&mut rng), 50);
    }
}
