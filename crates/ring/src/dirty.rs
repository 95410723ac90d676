//! Dirty bits: for each shard and epoch, which of its slots a write has touched. A bit is set
//! before the write is granted.
//!
//! A row of an older epoch counts only if its slot is clean in every later epoch. The bits of all
//! of these must be known.
//!
//! A write whose key the database draws touches one slot, and nobody knows which. It changes no row
//! that is there, for its row is new. So it sets one more bit, of its table, and no absence of an
//! older epoch counts in that table. Tables share 64 bits.

use std::collections::BTreeMap;

use crate::terms::OlderRow;

/// Words of the bitmap of one shard and epoch.
pub const WORDS: usize = 16;

/// The bits of one shard in one epoch.
pub type Bits = [u64; WORDS];

#[derive(Debug, Default, Clone)]
pub struct DirtyBits {
    /// By shard and epoch.
    pub(crate) epochs: BTreeMap<(u16, u64), Touched>,
    everywhere: Everywhere,
}

/// What is set in all shards that are held, by that version of the map.
#[derive(Debug, Default, Clone, Copy)]
struct Everywhere {
    version: u64,
    all: bool,
    made: u64,
}

/// What writes have touched of one shard in one epoch.
#[derive(Debug, Default, Clone, Copy)]
pub struct Touched {
    bits: Bits,
    /// Rows were made whose keys nobody knows: bits of their tables.
    made: u64,
}

fn place(token: i64) -> (usize, u64) {
    let slot = (token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    ((slot / 64) as usize % WORDS, 1 << (slot % 64))
}

impl Touched {
    /// The bitmap, and behind it the bits of tables if rows were made. A member that does not know
    /// this word takes the epoch for one whose bits it does not have.
    fn words(&self) -> Vec<u64> {
        let made = (self.made != 0).then_some(self.made);
        self.bits.iter().copied().chain(made).collect()
    }

    /// `None`: it cannot be read.
    fn of_words(words: &[u64]) -> Option<Self> {
        let (bits, made) = words.split_first_chunk::<WORDS>()?;
        let made = match made {
            [] => 0,
            [made] => *made,
            _ => return None,
        };
        Some(Self { bits: *bits, made })
    }

    fn and(&mut self, other: &Self) {
        self.bits.iter_mut().zip(other.bits).for_each(|(known, more)| *known |= more);
        self.made |= other.made;
    }

    fn is_clean(&self, row: OlderRow) -> bool {
        let (word, bit) = place(row.token);
        self.bits[word] & bit == 0 && row.absent & self.made == 0
    }
}

impl DirtyBits {
    /// A new epoch begins here with clean bits. An epoch that is held already keeps its bits.
    pub fn begin(&mut self, shard: u16, epoch: u64) {
        self.epochs.entry((shard, epoch)).or_default();
    }

    /// Notes a write to a token.
    pub fn set(&mut self, shard: u16, epoch: u64, token: i64) {
        if let Some(touched) = self.epochs.get_mut(&(shard, epoch)) {
            let (word, bit) = place(token);
            touched.bits[word] |= bit;
        }
    }

    /// Notes a write to everything in the shards that are held, each with its epoch by that version
    /// of the map. `makes`: the bits of its tables, if it only makes rows whose keys nobody knows.
    /// No shard is looked at if all is set: an application may make a thousand rows a second.
    pub fn set_everywhere(
        &mut self,
        held: &BTreeMap<u16, u64>,
        version: u64,
        makes: impl Fn() -> Option<u64>,
    ) {
        let known = &mut self.everywhere;
        if known.version != version {
            *known = Everywhere { version, ..Everywhere::default() };
        }
        if known.all {
            return;
        }
        let makes = makes();
        match makes {
            Some(made) if made & !known.made == 0 => return,
            Some(made) => known.made |= made,
            None => known.all = true,
        }
        for (shard, epoch) in held {
            let Some(touched) = self.epochs.get_mut(&(*shard, *epoch)) else { continue };
            match makes {
                Some(made) => touched.made |= made,
                None => touched.bits = [u64::MAX; WORDS],
            }
        }
    }

    /// Takes in the bits of an epoch from another member. What is set already stays set.
    pub fn learn(&mut self, shard: u16, epoch: u64, words: &[u64]) {
        let Some(more) = Touched::of_words(words) else { return };
        self.epochs.entry((shard, epoch)).or_default().and(&more);
    }

    /// Whether no write of a later epoch up to `to` has touched a row.
    pub fn is_clean(&self, shard: u16, row: OlderRow, to: u64) -> bool {
        to - row.epoch <= CHAIN
            && (row.epoch + 1..=to)
                .all(|epoch| self.epochs.get(&(shard, epoch)).is_some_and(|t| t.is_clean(row)))
    }

    /// What is known of a shard, for a member that takes it over.
    pub fn of(&self, shard: u16) -> Vec<(u64, Vec<u64>)> {
        let of = self.epochs.range((shard, 0)..=(shard, u64::MAX));
        of.map(|((_, epoch), touched)| (*epoch, touched.words())).collect()
    }

    /// Forgets epochs that no chain reaches any more.
    pub fn tidy(&mut self, shard: u16, epoch: u64) {
        let oldest = epoch.saturating_sub(CHAIN);
        self.epochs.retain(|(s, e), _| *s != shard || *e >= oldest);
    }
}

/// How many epochs back a row may count.
const CHAIN: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token: i64, epoch: u64) -> OlderRow {
        OlderRow { token, epoch, absent: 0 }
    }

    #[test]
    fn a_row_counts_only_over_epochs_that_are_known_and_clean() {
        let mut dirty = DirtyBits::default();
        dirty.begin(3, 5);
        assert!(dirty.is_clean(3, row(77, 4), 5) && !dirty.is_clean(3, row(77, 3), 5));
        dirty.learn(3, 4, &[0; WORDS]);
        assert!(dirty.is_clean(3, row(77, 3), 5));
        dirty.set(3, 5, 77);
        dirty.begin(3, 5);
        assert!(!dirty.is_clean(3, row(77, 4), 5) && dirty.is_clean(3, row(77, 5), 5));
        dirty.set_everywhere(&BTreeMap::from([(3, 4)]), 1, || None);
        assert!(!dirty.is_clean(3, row(78, 3), 4));
    }

    /// Each INSERT with `uuid()` would cost all that a move or a return has brought.
    #[test]
    fn where_rows_are_made_absences_of_their_table_alone_do_not_count() {
        let (mut dirty, mut other) = (DirtyBits::default(), DirtyBits::default());
        let absent = |absent| OlderRow { absent, ..row(77, 4) };
        let all = [0, 1, 2, 4, 6].map(absent);
        dirty.begin(3, 5);
        assert!(all.iter().all(|row| dirty.is_clean(3, *row, 5)));
        let held = BTreeMap::from([(3, 5)]);
        dirty.set_everywhere(&held, 1, || Some(1));
        dirty.set_everywhere(&held, 1, || Some(4));
        other.begin(3, 5);
        for (epoch, words) in dirty.of(3) {
            other.learn(3, epoch, &words);
        }
        for dirty in [&dirty, &other] {
            let clean = all.map(|row| dirty.is_clean(3, row, 5));
            assert_eq!(clean, [true, false, true, false, false]);
        }
        // All of another version, and all of the same after that.
        for (version, makes) in [(2, Some(1)), (2, None)] {
            dirty.begin(4, 1);
            let held = BTreeMap::from([(3, 5), (4, 1)]);
            dirty.set_everywhere(&held, version, || makes);
            dirty.set_everywhere(&held, version, || Some(1));
            assert!(!dirty.is_clean(4, OlderRow { absent: 1, ..row(77, 0) }, 1));
            assert_eq!(dirty.is_clean(4, row(77, 0), 1), makes.is_some());
        }
        // What a later release may say besides is not understood.
        let mut strange = DirtyBits::default();
        for words in [&[0; WORDS - 1][..], &[0; WORDS + 2]] {
            strange.learn(3, 5, words);
        }
        assert!(!strange.is_clean(3, row(77, 4), 5));
    }
}
