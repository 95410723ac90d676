//! Compares our choosers with histograms drawn from the real `site.ycsb:core` jar (`ycsb-check/`,
//! `golden/ycsb.txt`).
//!
//! YCSB draws from an unseeded source, so equality cannot be asked for. Both sides draw the same
//! number of items. A two-sample chi-square test over the buckets is turned into a standard normal
//! deviate (Wilson and Hilferty, 1931).

use super::{
    Distribution, Generator, Hotspot, KeyChooser, ScrambledZipfian, Sequential, SkewedLatest,
    Uniform, Zipfian,
};
use crate::rng::Rng;

/// How items become buckets, the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bucketing {
    /// One bucket per item.
    Exact,
    /// This many buckets of equal width over the items.
    Width(u64),
    /// Four buckets per doubling of `item + 1`: popularity by rank.
    Octaves,
    /// The same counted from the last item.
    OctavesFromEnd,
}

impl Bucketing {
    /// The bucket of `item` among `items`.
    pub fn bucket(self, item: u64, items: u64) -> usize {
        let octave = |rank: u64| {
            let log = (rank + 1).ilog2();
            let quarter = if log < 2 { 0 } else { ((rank + 1) >> (log - 2)) & 3 };
            log as usize * 4 + quarter as usize
        };
        match self {
            Bucketing::Exact => item as usize,
            Bucketing::Width(buckets) => (item * buckets / items) as usize,
            Bucketing::Octaves => octave(item),
            Bucketing::OctavesFromEnd => octave(items - 1 - item),
        }
    }
}

/// One comparison: a generator, the number of items it draws from, and the buckets.
pub struct CheckCase {
    /// The name that the Java side uses too.
    pub name: &'static str,
    /// Items are below this.
    pub items: u64,
    /// How they are counted.
    pub bucketing: Bucketing,
    /// Our chooser.
    pub draw: Box<dyn FnMut(&mut Rng) -> u64>,
}

/// All comparisons. Those named `core-` go through YCSB's CoreWorkload, that is with the ranges it
/// gives its generators.
pub fn cases() -> Vec<CheckCase> {
    use Bucketing::{Exact, Octaves, OctavesFromEnd, Width};
    fn raw(
        name: &'static str,
        items: u64,
        bucketing: Bucketing,
        mut generator: impl Generator + 'static,
    ) -> CheckCase {
        CheckCase { name, items, bucketing, draw: Box::new(move |rng| generator.next(rng)) }
    }
    let core = |name, distribution| {
        let mut chooser = KeyChooser::new(distribution, 400);
        CheckCase {
            name,
            items: 400,
            bucketing: Exact,
            draw: Box::new(move |rng| chooser.next(rng)),
        }
    };
    const MANY: u64 = 1_000_000;
    vec![
        raw("uniform", 400, Exact, Uniform::new(0, 399)),
        raw("zipfian", 400, Exact, Zipfian::new(0, 399)),
        raw("zipfian-many", MANY, Octaves, Zipfian::new(0, MANY - 1)),
        raw("scrambled", 400, Exact, ScrambledZipfian::new(0, 399)),
        raw("scrambled-many", MANY, Width(400), ScrambledZipfian::new(0, MANY - 1)),
        raw("latest", 400, Exact, SkewedLatest::new(399)),
        raw("latest-many", MANY, OctavesFromEnd, SkewedLatest::new(MANY - 1)),
        raw("hotspot", 400, Exact, Hotspot::new(0, 399, 0.1, 0.7)),
        raw("sequential", 400, Exact, Sequential::new(0, 399)),
        core("core-uniform", Distribution::Uniform),
        core("core-zipfian", Distribution::Zipfian),
        core("core-latest", Distribution::Latest),
        core("core-hotspot", Distribution::Hotspot),
        core("core-sequential", Distribution::Sequential),
    ]
}

/// A golden file that cannot be used, or a distribution that is not YCSB's.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CheckError {
    /// Not the format that `ycsb-check` prints.
    #[error("golden file, line {line}: {what}; make it anew with crates/bench/ycsb-check/run.sh")]
    Format {
        /// Line number from 1.
        line: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// YCSB's histogram of a case is not in the file.
    #[error("the golden file has no case `{0}`; make it anew with crates/bench/ycsb-check/run.sh")]
    Missing(String),
    /// The distributions differ.
    #[error(
        "`{name}` is not distributed as in YCSB: chi-square deviate {z:.1}, at most {limit} allowed"
    )]
    Differs {
        /// The case.
        name: String,
        /// The deviate found.
        z: f64,
        /// The tolerance.
        limit: f64,
    },
}

/// YCSB's histograms by case, in the order of the file. Lines: `case NAME COUNT COUNT ...`, `#`
/// comments, others (`fnv`, `zeta`) skipped.
pub fn parse_golden(text: &str) -> Result<Vec<(String, Vec<u64>)>, CheckError> {
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some(rest) = line.strip_prefix("case ") else { continue };
        let mut words = rest.split_ascii_whitespace();
        let name = words.next().ok_or(CheckError::Format { line: i + 1, what: "no name" })?;
        let counts: Result<Vec<u64>, _> = words.map(str::parse).collect();
        let counts = counts
            .map_err(|_| CheckError::Format { line: i + 1, what: "a count is not a number" })?;
        found.push((name.to_owned(), counts));
    }
    Ok(found)
}

/// How far two histograms are from being two samples of one distribution: about standard normal if
/// they are, large if not. Buckets with fewer than 10 draws together are pooled.
pub fn chi_square_z(a: &[u64], b: &[u64]) -> f64 {
    let (total_a, total_b) = (a.iter().sum::<u64>() as f64, b.iter().sum::<u64>() as f64);
    if total_a == 0.0 || total_b == 0.0 {
        return f64::INFINITY;
    }
    let (scale_a, scale_b) = ((total_b / total_a).sqrt(), (total_a / total_b).sqrt());
    let (mut chi, mut buckets, mut pool) = (0.0, 0u32, (0u64, 0u64));
    let mut add = |a: u64, b: u64| {
        let difference = scale_a * a as f64 - scale_b * b as f64;
        chi += difference * difference / (a + b) as f64;
        buckets += 1;
    };
    for i in 0..a.len().max(b.len()) {
        let (x, y) = (a.get(i).copied().unwrap_or(0), b.get(i).copied().unwrap_or(0));
        if x + y >= 10 {
            add(x, y);
        } else {
            pool = (pool.0 + x, pool.1 + y);
        }
    }
    if pool.0 + pool.1 > 0 {
        add(pool.0, pool.1);
    }
    if buckets < 2 {
        return if chi > 10.0 { f64::INFINITY } else { 0.0 };
    }
    let df = f64::from(buckets - 1);
    let spread = 2.0 / (9.0 * df);
    ((chi / df).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Draws as many items as YCSB's histogram has, from a source seeded with `seed`, and compares.
/// Returns the deviate; an error if it is above `limit` (4 means a false alarm in 30,000).
pub fn compare(
    mut case: CheckCase,
    golden: &[u64],
    seed: u64,
    limit: f64,
) -> Result<f64, CheckError> {
    let mut rng = Rng::new(seed);
    let mut ours = vec![0u64; golden.len()];
    for _ in 0..golden.iter().sum::<u64>() {
        let bucket = case.bucketing.bucket((case.draw)(&mut rng), case.items);
        if bucket >= ours.len() {
            ours.resize(bucket + 1, 0);
        }
        ours[bucket] += 1;
    }
    let z = chi_square_z(&ours, golden);
    if z > limit {
        Err(CheckError::Differs { name: case.name.to_owned(), z, limit })
    } else {
        Ok(z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::{fnv_hash64, zeta};

    const GOLDEN: &str = include_str!("../../golden/ycsb.txt");
    const SEED: u64 = 20_17;

    fn golden(name: &str) -> Vec<u64> {
        parse_golden(GOLDEN).unwrap().into_iter().find(|(n, _)| n == name).unwrap().1
    }

    #[test]
    fn every_chooser_has_the_distribution_of_ycsb() {
        for case in cases() {
            let counts = golden(case.name);
            compare(case, &counts, SEED, 4.0).unwrap();
        }
    }

    /// The comparison would notice: a slightly different skew, an interval off by one, no
    /// scrambling, YCSB's quirks left out.
    #[test]
    fn wrong_choosers_are_noticed() {
        let wrong: [(&str, Box<dyn Generator>); 6] = [
            ("zipfian", Box::new(Zipfian::with_constant(0, 399, 0.97))),
            ("uniform", Box::new(Uniform::new(0, 398))),
            ("scrambled", Box::new(Zipfian::new(0, 399))),
            ("core-zipfian", Box::new(ScrambledZipfian::new(0, 399))),
            ("latest", Box::new(SkewedLatest::new(398))),
            ("hotspot", Box::new(Hotspot::new(0, 399, 0.1, 0.71))),
        ];
        for (name, mut generator) in wrong {
            let template = cases().into_iter().find(|c| c.name == name).unwrap();
            let case = CheckCase { draw: Box::new(move |rng| generator.next(rng)), ..template };
            let outcome = compare(case, &golden(name), SEED, 4.0);
            assert!(matches!(outcome, Err(CheckError::Differs { .. })), "{name}: {outcome:?}");
        }
    }

    #[test]
    fn hashes_and_zetas_are_those_of_ycsb() {
        let mut seen = 0;
        for line in GOLDEN.lines() {
            match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
                ["fnv", value, hash] => {
                    assert_eq!(
                        fnv_hash64(value.parse::<i64>().unwrap() as u64),
                        hash.parse::<u64>().unwrap()
                    );
                    seen += 1;
                }
                ["zeta", n, sum] => {
                    let (ours, theirs) =
                        (zeta(n.parse().unwrap(), 0.99), sum.parse::<f64>().unwrap());
                    assert!(
                        (ours / theirs - 1.0).abs() < 1e-12,
                        "zeta({n}) = {ours}, YCSB has {theirs}"
                    );
                    seen += 1;
                }
                _ => {}
            }
        }
        assert!(seen >= 8, "the golden file has lost its hashes and zetas");
    }

    #[test]
    fn a_broken_golden_file_is_named_with_its_line() {
        let error = parse_golden("# x\ncase uniform 1 2 x").unwrap_err();
        assert!(matches!(error, CheckError::Format { line: 2, .. }));
    }
}
