//! Dirty bits: for each shard and epoch, which of its slots a write has touched. A bit is set
//! before the write is granted.
//!
//! A row of an older epoch counts only if its slot is clean in every later epoch. The bits of all
//! of these must be known.
//!
//! A write whose key the database draws touches one slot, and nobody knows which. It changes no row
//! that is there, for its row is new. So it sets one more bit, and no absence of an older epoch
//! counts.

use std::collections::BTreeMap;

use crate::terms::OlderRow;

/// Words of the bitmap of one shard and epoch.
pub const WORDS: usize = 16;

/// The bits of one shard in one epoch.
pub type Bits = [u64; WORDS];

/// The word behind the bitmap, if rows were made: other members hear of it so.
const MADE: u64 = 1;

#[derive(Debug, Default, Clone)]
pub struct DirtyBits {
    /// By shard and epoch.
    pub(crate) epochs: BTreeMap<(u16, u64), Touched>,
    /// What is set in all shards that are held, by that version of the map.
    everywhere: Option<(u64, Reach)>,
}

/// What a write to everything has touched of each shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    All,
    Made,
}

/// What writes have touched of one shard in one epoch.
#[derive(Debug, Default, Clone, Copy)]
pub struct Touched {
    bits: Bits,
    /// Rows were made whose keys nobody knows.
    made: bool,
}

fn place(token: i64) -> (usize, u64) {
    let slot = (token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    ((slot / 64) as usize % WORDS, 1 << (slot % 64))
}

impl Touched {
    /// The bitmap, and behind it one word more if rows were made. A member that does not know this
    /// word takes the epoch for one whose bits it does not have.
    fn words(&self) -> Vec<u64> {
        let made = self.made.then_some(MADE);
        self.bits.iter().copied().chain(made).collect()
    }

    /// `None`: it cannot be read.
    fn of_words(words: &[u64]) -> Option<Self> {
        let (bits, made) = words.split_first_chunk::<WORDS>()?;
        let made = match made {
            [] => false,
            [MADE] => true,
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
        self.bits[word] & bit == 0 && (row.exists || !self.made)
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
    /// of the map. `only_makes`: it only makes rows whose keys nobody knows. Nothing is looked at
    /// that is known: an application may make a thousand rows a second.
    pub fn set_everywhere(
        &mut self,
        held: &BTreeMap<u16, u64>,
        version: u64,
        only_makes: impl Fn() -> bool,
    ) {
        let (all, made) = (Some((version, Reach::All)), Some((version, Reach::Made)));
        if self.everywhere == all {
            return;
        }
        let only_makes = only_makes();
        if only_makes && self.everywhere == made {
            return;
        }
        self.everywhere = if only_makes { made } else { all };
        for (shard, epoch) in held {
            let Some(touched) = self.epochs.get_mut(&(*shard, *epoch)) else { continue };
            match only_makes {
                true => touched.made = true,
                false => touched.bits = [u64::MAX; WORDS],
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
        OlderRow { token, epoch, exists: true }
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
        dirty.set_everywhere(&BTreeMap::from([(3, 4)]), 1, || false);
        assert!(!dirty.is_clean(3, row(78, 3), 4));
    }

    /// Each INSERT with `uuid()` would cost all that a move or a return has brought.
    #[test]
    fn where_rows_are_made_absences_alone_do_not_count() {
        let (mut dirty, mut other) = (DirtyBits::default(), DirtyBits::default());
        let (there, absent) = (row(77, 4), OlderRow { exists: false, ..row(77, 4) });
        dirty.begin(3, 5);
        assert!([there, absent].iter().all(|row| dirty.is_clean(3, *row, 5)));
        let held = BTreeMap::from([(3, 5)]);
        dirty.set_everywhere(&held, 1, || true);
        other.begin(3, 5);
        for (epoch, words) in dirty.of(3) {
            other.learn(3, epoch, &words);
        }
        for dirty in [&dirty, &other] {
            assert!(dirty.is_clean(3, there, 5) && !dirty.is_clean(3, absent, 5));
        }
        // All of another version, and all of the same after that.
        for (version, only_makes) in [(2, true), (2, false)] {
            dirty.begin(4, 1);
            let held = BTreeMap::from([(3, 5), (4, 1)]);
            dirty.set_everywhere(&held, version, || only_makes);
            dirty.set_everywhere(&held, version, || true);
            assert!(!dirty.is_clean(4, OlderRow { exists: false, ..row(77, 0) }, 1));
            assert_eq!(dirty.is_clean(4, row(77, 0), 1), only_makes);
        }
        // What a later release may say besides is not understood.
        let mut strange = DirtyBits::default();
        for words in [&[0; WORDS - 1][..], &[0; WORDS + 1], &[0; WORDS + 2]] {
            strange.learn(3, 5, words);
        }
        assert!(!strange.is_clean(3, there, 5));
    }
}
