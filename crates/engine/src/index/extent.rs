//! How many lines an index has, and which line of a group holds a slot.
//!
//! An index grows a line at a time, by linear hashing (Litwin, 1980). A key's hash names one of the
//! *base lines* that the index was made with. Each base line has a *group*: itself, and one line of
//! each round of growth that has come past it.
//!
//! ```text
//!  base lines            first round           second round
//! +----+----+----+----+ +----+----+----+----+ +----+----+ - - - -
//! | 0  | 1  | 2  | 3  | | 0' | 1' | 2' | 3' | | 0" | 1" |          rounds = 2, next = 2
//! +----+----+----+----+ +----+----+----+----+ +----+----+ - - - -
//! ```
//!
//! The *tag* alone chooses the line of the group, so that a line can be parted by its slots' words:
//! neither keys nor hashes are needed. When a group gets a line, each of its lines gives up an
//! equal share of the tags, and no tag moves between older lines. [`SHARES`] says which tags.

/// Most lines of a group.
pub const MAX_GROUP: usize = 16;
/// Classes of tags. Each of 16 lines gets 64 of them.
const CLASSES: usize = 1 << CLASS_BITS;
const CLASS_BITS: u32 = 10;

/// For each class of tags a mask: bit `n` is set where the class moves to line `n` of its group
/// when that line is added. The highest bit below the number of lines is where it is.
static SHARES: [u16; CLASSES] = shares();

const fn shares() -> [u16; CLASSES] {
    let (mut masks, mut line_of) = ([1u16; CLASSES], [0usize; CLASSES]);
    let mut new = 1;
    while new < MAX_GROUP {
        // Each older line gives up every (new + 1)th of its classes. Lines begin to count at
        // different numbers, so that what is rounded off differs.
        let mut seen = [0usize; MAX_GROUP];
        let mut class = 0;
        while class < CLASSES {
            let line = line_of[class];
            seen[line] += 1;
            if (seen[line] + line) % (new + 1) == 0 {
                masks[class] |= 1 << new;
                line_of[class] = new;
            }
            class += 1;
        }
        new += 1;
    }
    masks
}

/// Which line of a group of `lines` holds a tag, by the tag's mix. Below `lines`.
pub(super) fn line_in_group(mix: u64, lines: usize) -> usize {
    debug_assert!((1..=MAX_GROUP).contains(&lines), "a group of {lines} lines");
    let mask = SHARES[(mix >> (64 - CLASS_BITS)) as usize] & (u16::MAX >> (MAX_GROUP - lines));
    mask.ilog2() as usize
}

/// How far an index has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Lines of each group, but for those that [`next`](Self::next) has passed: one more.
    pub(super) rounds: usize,
    /// The base line whose group gets the next line.
    pub(super) next: usize,
}

impl Extent {
    /// Of `lines` lines over `base` base lines.
    ///
    /// # Panics
    /// When these are fewer than the base lines, or more than [`MAX_GROUP`] for each.
    pub(super) fn of(base: usize, lines: usize) -> Self {
        assert!(
            base > 0 && lines >= base && lines <= base * MAX_GROUP,
            "an index of {lines} lines over {base}"
        );
        Self { rounds: lines / base, next: lines % base }
    }

    /// Lines of the group of a base line.
    pub(super) fn group(self, base_line: usize) -> usize {
        self.rounds + usize::from(base_line < self.next)
    }

    /// All lines over `base` base lines.
    pub(super) fn lines(self, base: usize) -> usize {
        self.rounds * base + self.next
    }

    /// With one line more.
    pub(super) fn grown(self, base: usize) -> Self {
        match self.next + 1 {
            next if next == base => Self { rounds: self.rounds + 1, next: 0 },
            next => Self { next, ..self },
        }
    }

    /// As one word, so that readers see an extent whole.
    pub(super) fn word(self) -> u64 {
        (self.rounds as u64) << 56 | self.next as u64
    }

    /// The extent in a word.
    pub(super) fn from_word(word: u64) -> Self {
        Self { rounds: (word >> 56) as usize, next: (word & ((1 << 56) - 1)) as usize }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_group_has_an_equal_share_and_only_the_new_one_gains() {
        let mixes = || (0..CLASSES as u64).map(|class| class << (64 - CLASS_BITS));
        for lines in 1..=MAX_GROUP {
            let mut counts = vec![0; lines];
            mixes().for_each(|mix| counts[line_in_group(mix, lines)] += 1);
            let fair = CLASSES / lines;
            assert!(
                counts.iter().all(|&count: &usize| count.abs_diff(fair) <= fair / 16 + 1),
                "{lines} lines: {counts:?}"
            );
            if lines > 1 {
                let moved = mixes()
                    .filter(|&mix| line_in_group(mix, lines) != line_in_group(mix, lines - 1));
                assert!(moved.into_iter().all(|mix| line_in_group(mix, lines) == lines - 1));
            }
        }
    }

    #[test]
    fn an_extent_grows_line_by_line_and_fits_a_word() {
        let base = 5;
        let mut extent = Extent::of(base, base);
        for lines in base..base * MAX_GROUP {
            assert_eq!(extent, Extent::of(base, lines));
            assert_eq!(extent.lines(base), lines);
            assert_eq!((0..base).map(|line| extent.group(line)).sum::<usize>(), lines);
            assert_eq!(Extent::from_word(extent.word()), extent);
            extent = extent.grown(base);
        }
    }
}
