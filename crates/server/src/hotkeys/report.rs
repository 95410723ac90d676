//! `GET /api/v1/hotkeys`: the sketches of all reactors as one answer.

use serde::{Deserialize, Serialize};

use super::sampler::{HALF_LIFE, SAMPLED, Sample, Sampler};
use super::sketch::{self, Sketch};

/// Entries of each list.
const MOST: usize = 20;

/// The whole answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HotKeys {
    /// One request of so many is looked at.
    pub sampled: u32,
    /// Counts are halved after so many seconds.
    pub half_life_seconds: u64,
    /// Whether names of keys and prefixes are given (`--show-keys`).
    pub keys_shown: bool,
    /// Memory that it takes, about.
    pub bytes: u64,
    /// By front end.
    pub front_ends: Vec<HotFrontEnd>,
}

/// The hottest of one front end, hottest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HotFrontEnd {
    /// `cql` or `memcache`.
    pub name: String,
    /// Requests that were looked at lately.
    pub taken: u64,
    /// Keys that are asked for a second, estimated.
    pub per_second: f64,
    /// Keys.
    pub keys: Vec<HotEntry>,
    /// What keys begin with, up to the separator.
    pub prefixes: Vec<HotEntry>,
    /// Tables (CQL).
    pub tables: Vec<HotEntry>,
}

/// A key, prefix or table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HotEntry {
    /// Its name; `null` where names are not given.
    pub name: Option<String>,
    /// Its part of all requests, from 0 to 1, estimated; never too low but by the chance of
    /// sampling.
    pub part: f64,
    /// How much less its part may be.
    pub error: f64,
    /// Requests a second, estimated.
    pub per_second: f64,
}

/// Adds up the samplers of one front end.
pub fn front_end(name: &str, samplers: &[&Sampler], keys_shown: bool) -> HotFrontEnd {
    // One after the other: a sampler is held up for a copy of a few hundred words at most.
    let samples: Vec<Copied> = samplers.iter().map(|sampler| sampler.look(Copied::of)).collect();
    let taken: u64 = samples.iter().map(|sample| sample.taken).sum();
    let per_second: f64 = samples
        .iter()
        .map(|sample| sample.taken as f64 * f64::from(SAMPLED) / sample.seconds.max(1.0))
        .sum();
    let list = |of: fn(&Copied) -> &Sketch, named: bool| {
        let merged = sketch::merge(samples.iter().map(of), MOST);
        let part = |count: u64| (count as f64 / taken.max(1) as f64).min(1.0);
        // One request may be chance.
        let counted = merged.into_iter().filter(|counted| counted.count > 1);
        counted
            .map(|counted| HotEntry {
                name: named.then(|| readable(&counted.word)),
                part: part(counted.count),
                error: part(counted.error),
                per_second: part(counted.count) * per_second,
            })
            .collect()
    };
    HotFrontEnd {
        name: name.to_owned(),
        taken,
        per_second,
        keys: list(|sample| &sample.keys, keys_shown),
        prefixes: list(|sample| &sample.prefixes, keys_shown),
        tables: list(|sample| &sample.tables, true),
    }
}

/// The answer for these front ends.
pub fn report(front_ends: Vec<HotFrontEnd>, bytes: usize, keys_shown: bool) -> HotKeys {
    HotKeys {
        sampled: SAMPLED,
        half_life_seconds: HALF_LIFE.as_secs(),
        keys_shown,
        bytes: bytes as u64,
        front_ends,
    }
}

/// A sample as it was at one moment.
struct Copied {
    keys: Sketch,
    prefixes: Sketch,
    tables: Sketch,
    taken: u64,
    seconds: f64,
}

impl Copied {
    fn of(sample: &Sample) -> Self {
        Self {
            keys: sample.keys.clone(),
            prefixes: sample.prefixes.clone(),
            tables: sample.tables.clone(),
            taken: sample.taken,
            seconds: sample.seconds(),
        }
    }
}

/// A key as text: what cannot be printed is written as `\x00`.
pub fn readable(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotkeys::Seen;

    #[test]
    fn reactors_are_added_up_and_names_are_kept_back_unless_asked_for() {
        let (one, other) = (Sampler::default(), Sampler::default());
        let see = |sampler: &Sampler, key: &[u8], times: u32| {
            (0..times * SAMPLED).for_each(|_| sampler.see(|| Seen::Key(key)));
        };
        see(&one, b"user:1", 300);
        see(&other, b"user:1", 300);
        see(&other, b"cart:\x00\xff", 200);
        let shown = front_end("memcache", &[&one, &other], true);
        let names: Vec<_> = shown.keys.iter().map(|key| key.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["user:1", "cart:\\u{0}\\xff"]);
        assert!((0.70..0.80).contains(&shown.keys[0].part), "{shown:?}");
        assert_eq!(shown.keys[0].error, 0.0);
        assert_eq!(shown.prefixes[0].name.as_deref(), Some("user:"));
        assert!(shown.per_second > 0.0 && shown.tables.is_empty());
        let hidden = front_end("memcache", &[&one, &other], false);
        assert!(hidden.keys.iter().chain(&hidden.prefixes).all(|entry| entry.name.is_none()));
        assert_eq!(hidden.keys.len(), 2, "how uneven the load is can be seen all the same");
    }
}
