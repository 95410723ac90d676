//! The sampler of one reactor: which requests are sampled, and what is kept of them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::sketch::{LONGEST, Sketch};

/// One request of so many is looked at, on average.
pub const SAMPLED: u32 = 128;
/// Counts are halved after so long: what is reported is of the last minutes.
pub(super) const HALF_LIFE: Duration = Duration::from_secs(60);
/// Counters for keys, for prefixes and for tables.
const KEYS: usize = 256;
const PREFIXES: usize = 128;
const TABLES: usize = 64;

/// What a request that is looked at asked for.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A key as the client wrote it.
    Key(&'a [u8]),
    /// A row of a table: the table's name, and the row's key as people write it.
    Row {
        /// `keyspace.table`.
        table: String,
        /// Its key.
        key: String,
    },
}

/// Takes the keys of some requests.
#[derive(Debug)]
pub struct Sampler {
    /// Requests until the next one that is looked at. Only its reactor writes it; a count that is
    /// lost to another thread is no harm.
    left: AtomicU32,
    separator: u8,
    sample: Mutex<Sample>,
}

/// What was taken.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) keys: Sketch,
    pub(super) prefixes: Sketch,
    pub(super) tables: Sketch,
    /// Requests that were looked at, halved as counts are.
    pub(super) taken: u64,
    /// The seconds in which they came, halved as they are, but for those since `since`.
    seconds: f64,
    since: Instant,
    random: u32,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new(b':')
    }
}

impl Sampler {
    /// A prefix ends with the first `separator`.
    pub fn new(separator: u8) -> Self {
        Self {
            left: AtomicU32::new(1),
            separator,
            sample: Mutex::new(Sample {
                keys: Sketch::new(KEYS),
                prefixes: Sketch::new(PREFIXES),
                tables: Sketch::new(TABLES),
                taken: 0,
                seconds: 0.0,
                since: Instant::now(),
                random: 0x9e37_79b9,
            }),
        }
    }

    /// Counts a request; asks `seen` for its key only if this one is looked at.
    #[inline]
    pub fn see<'a>(&self, seen: impl FnOnce() -> Seen<'a>) {
        let left = self.left.load(Ordering::Relaxed);
        if left > 1 {
            self.left.store(left - 1, Ordering::Relaxed);
        } else {
            self.take(&seen());
        }
    }

    #[cold]
    #[inline(never)]
    fn take(&self, seen: &Seen<'_>) {
        let mut sample = self.sample.lock();
        // Not every 128th: a load that goes round could show the same keys again and again.
        self.left.store(sample.next_gap(), Ordering::Relaxed);
        sample.age(Instant::now());
        sample.taken += 1;
        match seen {
            Seen::Key(key) => {
                sample.keys.add(&cut(key));
                let end = key.iter().position(|byte| *byte == self.separator);
                if let Some(end) = end.filter(|end| *end > 0 && *end < LONGEST) {
                    sample.prefixes.add(&key[..=end]);
                }
            }
            Seen::Row { table, key } => {
                sample.tables.add(&cut(table.as_bytes()));
                sample.keys.add(&cut(format!("{table} {key}").as_bytes()));
            }
        }
    }

    /// Hands out what was taken, as old as it is now.
    pub(super) fn look<T>(&self, take: impl FnOnce(&Sample) -> T) -> T {
        let mut sample = self.sample.lock();
        sample.age(Instant::now());
        take(&sample)
    }

    /// Memory in bytes, about.
    pub fn bytes(&self) -> usize {
        let sample = self.sample.lock();
        sample.keys.bytes() + sample.prefixes.bytes() + sample.tables.bytes()
    }
}

impl Sample {
    /// Seconds that the counts are of, weighted as they are.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds + self.since.elapsed().as_secs_f64()
    }

    /// Uniform from 1 to 2 * SAMPLED - 1 (xorshift, Marsaglia 2003).
    fn next_gap(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        1 + self.random % (2 * SAMPLED - 1)
    }

    fn age(&mut self, now: Instant) {
        while now.duration_since(self.since) >= HALF_LIFE {
            for sketch in [&mut self.keys, &mut self.prefixes, &mut self.tables] {
                sketch.halve();
            }
            self.taken /= 2;
            self.seconds = (self.seconds + HALF_LIFE.as_secs_f64()) / 2.0;
            self.since += HALF_LIFE;
            if self.taken == 0 {
                // Nothing is left to be halved.
                (self.seconds, self.since) = (0.0, now);
            }
        }
    }
}

/// A word of at most [`LONGEST`] bytes.
fn cut(word: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    match word.get(..LONGEST - 3) {
        Some(start) if word.len() > LONGEST => [start, "…".as_bytes()].concat().into(),
        _ => word.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_of_so_many_is_looked_at_and_not_in_step_with_the_load() {
        let sampler = Sampler::default();
        let mut looked_at = [0_u32; 128];
        for n in 0..128 * 20_000_usize {
            sampler.see(|| {
                looked_at[n % 128] += 1;
                Seen::Key(b"user:1")
            });
        }
        let all: u32 = looked_at.iter().sum();
        assert!((19_000..21_000).contains(&all), "{all}");
        assert!(looked_at.iter().all(|n| (80..250).contains(n)), "{looked_at:?}");
    }

    #[test]
    fn prefixes_end_with_the_first_separator_and_long_keys_are_cut() {
        let sampler = Sampler::new(b'/');
        let long = [b'x'; 10_000];
        for key in [&b"a/b/c"[..], b"/x", b"none", &long] {
            sampler.take(&Seen::Key(key));
        }
        sampler.take(&Seen::Row { table: "shop.items".into(), key: "7".into() });
        let words = |of: fn(&Sample) -> &Sketch| {
            sampler.look(|sample| {
                let mut words: Vec<_> = of(sample).counted().map(|c| c.word).collect();
                words.sort();
                words
            })
        };
        assert_eq!(words(|s| &s.prefixes), [Box::from(&b"a/"[..])]);
        assert_eq!(words(|s| &s.tables), [Box::from(&b"shop.items"[..])]);
        let keys = words(|s| &s.keys);
        assert_eq!(keys[3], Box::from(&b"shop.items 7"[..]));
        assert!(keys.iter().all(|key| key.len() <= LONGEST));
        assert!(keys[4].ends_with("…".as_bytes()));
        assert!(sampler.bytes() < 5 * (2 * LONGEST + 200));
    }

    #[test]
    fn counts_age_by_half_a_minute_after_minute() {
        let sampler = Sampler::default();
        (0..8).for_each(|_| sampler.take(&Seen::Key(b"a:b")));
        let mut sample = sampler.sample.lock();
        let begin = sample.since;
        sample.age(begin + HALF_LIFE);
        assert_eq!((sample.taken, sample.seconds), (4, 30.0));
        sample.age(begin + 3 * HALF_LIFE);
        assert_eq!((sample.taken, sample.seconds), (1, 52.5));
        sample.age(begin + 1000 * HALF_LIFE);
        assert_eq!((sample.taken, sample.seconds, sample.keys.bytes()), (0, 0.0, 0));
    }
}
