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

/// A key as text: what cannot be seen, or would change how what is around it looks, is written as
/// `\x00` or `\u{0}`; a backslash is doubled. So no two keys look the same by that.
pub fn readable(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_unseen(c) => text.extend(c.escape_unicode()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Characters that control a terminal, turn the direction of text around, take no space, or cannot
/// be told from a space.
fn is_unseen(c: char) -> bool {
    let is_mark = matches!(c, '\u{300}'..='\u{36f}' | '\u{20d0}'..='\u{20ff}');
    let is_format = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    );
    c.is_control() || is_mark || is_format || c.is_whitespace() && c != ' '
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

    #[test]
    fn a_name_cannot_change_how_a_terminal_or_a_page_looks() {
        for (key, shown) in [
            (&b"user:1 <b>"[..], "user:1 <b>"),
            ("größe:日本".as_bytes(), "größe:日本"),
            (b"\x1b[2J\x1b]0;x\x07", "\\u{1b}[2J\\u{1b}]0;x\\u{7}"),
            // The same in one byte each, as text and as what is no text.
            ("\u{9b}31m".as_bytes(), "\\u{9b}31m"),
            (b"\x9b31m", "\\x9b31m"),
            (b"\\x9b31m", "\\\\x9b31m"),
            // From right to left, without width, another line or space, a mark on what is before.
            ("a\u{202e}b".as_bytes(), "a\\u{202e}b"),
            ("a\u{200b}\u{2066}b".as_bytes(), "a\\u{200b}\\u{2066}b"),
            ("a\u{2028}b\u{a0}".as_bytes(), "a\\u{2028}b\\u{a0}"),
            ("\u{301}b\u{e0041}".as_bytes(), "\\u{301}b\\u{e0041}"),
        ] {
            assert_eq!(readable(key), shown);
        }
    }
}
