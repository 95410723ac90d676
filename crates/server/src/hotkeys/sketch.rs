//! The most frequent words of a stream in bounded memory. The algorithm is Space-Saving (Metwally,
//! Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams",
//! ICDT 2005).
//!
//! There are `capacity` counters. A word without a counter takes over the lowest one. It counts on
//! from there, and the counter remembers by how much that may be too high. A word's count is never
//! below the true count, and above it by at most its error. Every word with a share of more than
//! `1 / capacity` has a counter.

use std::collections::HashMap;

/// Longer words are cut: they end with `…` then.
pub(super) const LONGEST: usize = 256;
/// What a counter takes beside the two copies of its word, about: the map's entry and its spare
/// room, the two allocations.
const OVERHEAD: usize = 160;

/// Counts of words.
#[derive(Debug, Clone)]
pub(super) struct Sketch {
    capacity: usize,
    places: HashMap<Box<[u8]>, usize>,
    words: Vec<Box<[u8]>>,
    counts: Vec<u32>,
    errors: Vec<u32>,
}

/// A word, how often it came at most, and how much less that may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) word: Box<[u8]>,
    pub(super) count: u64,
    pub(super) error: u64,
}

impl Sketch {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            places: HashMap::new(),
            words: Vec::new(),
            counts: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Counts a word.
    pub(super) fn add(&mut self, word: &[u8]) {
        if let Some(&place) = self.places.get(word) {
            self.counts[place] = self.counts[place].saturating_add(1);
            return;
        }
        if self.words.len() < self.capacity {
            self.places.insert(word.into(), self.words.len());
            self.words.push(word.into());
            self.counts.push(1);
            self.errors.push(0);
            return;
        }
        let (place, least) = self.lowest();
        self.places.remove(&self.words[place]);
        self.places.insert(word.into(), place);
        self.words[place] = word.into();
        self.counts[place] = least.saturating_add(1);
        self.errors[place] = least;
    }

    fn lowest(&self) -> (usize, u32) {
        let least = self.counts.iter().copied().min().unwrap_or(0);
        (self.counts.iter().position(|count| *count == least).unwrap_or(0), least)
    }

    /// Halves all counts, so that what was long ago weighs less; what comes to nothing goes.
    pub(super) fn halve(&mut self) {
        let mut kept = Self::new(self.capacity);
        for (place, word) in std::mem::take(&mut self.words).into_iter().enumerate() {
            let (count, error) = (self.counts[place] / 2, self.errors[place] / 2);
            if count > 0 {
                kept.places.insert(word.clone(), kept.words.len());
                kept.words.push(word);
                kept.counts.push(count);
                kept.errors.push(error);
            }
        }
        *self = kept;
    }

    /// All words that have a counter.
    pub(super) fn counted(&self) -> impl Iterator<Item = Counted> + '_ {
        self.words.iter().enumerate().map(|(place, word)| Counted {
            word: word.clone(),
            count: self.counts[place].into(),
            error: self.errors[place].into(),
        })
    }

    /// The most that a word without a counter may have been counted.
    pub(super) fn unseen(&self) -> u64 {
        if self.words.len() < self.capacity { 0 } else { self.lowest().1.into() }
    }

    /// Memory in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.words.iter().map(|word| 2 * word.len() + OVERHEAD).sum()
    }
}

/// The `most` most frequent words of several sketches together.
///
/// A word without a counter in one of them may have come there as often as the lowest counter says.
/// That much is added to its count and to its error.
pub(super) fn merge<'a>(
    sketches: impl Iterator<Item = &'a Sketch> + Clone,
    most: usize,
) -> Vec<Counted> {
    let unseen: u64 = sketches.clone().map(Sketch::unseen).sum();
    let mut sum: HashMap<Box<[u8]>, (u64, u64)> = HashMap::new();
    for sketch in sketches {
        let floor = sketch.unseen();
        for Counted { word, count, error } in sketch.counted() {
            // Seen here: what was assumed of this sketch is taken back.
            let (total, doubt) = sum.entry(word).or_insert((unseen, unseen));
            *total = *total + count - floor;
            *doubt = *doubt + error - floor.min(*doubt + error);
        }
    }
    let mut all: Vec<Counted> =
        sum.into_iter().map(|(word, (count, error))| Counted { word, count, error }).collect();
    all.sort_unstable_by(|a, b| {
        (b.count - b.error, b.count, &a.word).cmp(&(a.count - a.error, a.count, &b.word))
    });
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream in which word `n` of 1..=words comes with a frequency of one in `n`.
    fn stream(words: u64, length: u64, seed: u64) -> Vec<u64> {
        let weights: Vec<f64> = (1..=words).map(|n| 1.0 / n as f64).collect();
        let all: f64 = weights.iter().sum();
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let pick = |mut at: f64| {
            for (n, weight) in weights.iter().enumerate() {
                at -= weight;
                if at < 0.0 {
                    return n as u64;
                }
            }
            words - 1
        };
        (0..length).map(|_| pick(next() * all)).collect()
    }

    fn check(found: &[Counted], truth: &HashMap<Box<[u8]>, u64>) {
        for Counted { word, count, error } in found {
            let true_count = truth.get(word).copied().unwrap_or(0);
            let range = count - error..=*count;
            assert!(range.contains(&true_count), "{word:?}: {true_count} is not in {range:?}");
        }
    }

    #[test]
    fn counts_hold_the_truth_within_their_error_and_the_frequent_are_found() {
        let mut sketches = [Sketch::new(100), Sketch::new(100)];
        let mut truth: HashMap<Box<[u8]>, u64> = HashMap::new();
        for (n, word) in stream(5000, 60_000, 7).into_iter().enumerate() {
            let word = word.to_string().into_bytes();
            sketches[n % 2].add(&word);
            *truth.entry(word.into()).or_default() += 1;
        }
        let found = merge(sketches.iter(), 200);
        check(&found, &truth);
        let names: Vec<&[u8]> = found.iter().take(5).map(|c| &*c.word).collect();
        assert_eq!(names, [b"0", b"1", b"2", b"3", b"4"], "in this order");
        for (word, count) in &truth {
            let promised = *count > 2 * 60_000 / 100;
            assert!(!promised || found.iter().any(|c| c.word == *word), "{word:?}: {count}");
        }
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut sketch = Sketch::new(10);
        for n in 0..10_000_u64 {
            sketch.add(&n.to_be_bytes());
            assert!(sketch.counts.len() <= 10 && sketch.places.len() == sketch.words.len());
        }
        assert_eq!(sketch.bytes(), 10 * (2 * 8 + OVERHEAD));
        assert_eq!(sketch.counts.iter().map(|c| u64::from(*c)).sum::<u64>(), 10_000);
    }

    #[test]
    fn halving_forgets_what_is_not_asked_for_any_more() {
        let mut sketch = Sketch::new(10);
        (0..8).for_each(|_| sketch.add(b"old"));
        (0..3).for_each(|_| sketch.halve());
        (0..2).for_each(|_| sketch.add(b"new"));
        let found = merge([&sketch].into_iter(), 10);
        assert_eq!((&*found[0].word, found[0].count), (&b"new"[..], 2));
        assert_eq!((&*found[1].word, found[1].count), (&b"old"[..], 1));
        sketch.halve();
        sketch.halve();
        assert_eq!(sketch.counted().count(), 0);
        assert_eq!(sketch.bytes(), 0);
    }
}
