//! Contents of a simulated area, and what of them would survive power loss.

use std::collections::{BTreeMap, BTreeSet};

use super::random::SimRandom;

/// Bytes of the unit in which stores tear.
pub(super) const WORD: usize = 8;
/// Bytes of the unit in which the kernel writes.
const PAGE: usize = 4096;

/// Contents of a media area.
pub(crate) struct SimArea {
    pub(super) bytes: Vec<u8>,
    /// Synced content of the words stored since.
    synced: BTreeMap<usize, [u8; WORD]>,
    /// Pages that a failed flush has dropped: no flush writes them before they are stored to again.
    dropped: BTreeSet<usize>,
    /// The kernel has given up a page, and has told nobody yet.
    untold: bool,
}

impl SimArea {
    pub(super) fn new(len: u64) -> Self {
        let (synced, dropped) = (BTreeMap::new(), BTreeSet::new());
        Self { bytes: vec![0; len as usize], synced, dropped, untold: false }
    }

    /// With this content, all of it synced.
    #[cfg(test)]
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), ..Self::new(0) }
    }

    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        for (n, word) in bytes.chunks_exact(WORD).enumerate() {
            let place = &mut self.bytes[offset as usize + n * WORD..][..WORD];
            self.synced
                .entry(offset as usize / WORD + n)
                .or_insert_with(|| (&*place).try_into().expect("a whole word"));
            place.copy_from_slice(word);
            self.dropped.remove(&((offset as usize + n * WORD) / PAGE));
        }
    }

    /// Flushes, as kernels do: pages that fail to be written pass for written from then on, and the
    /// error is told once.
    pub(super) fn sync(&mut self, fails: bool) {
        if fails {
            self.dropped.extend(self.synced.keys().map(|word| word * WORD / PAGE));
        }
        self.synced.retain(|word, _| self.dropped.contains(&(word * WORD / PAGE)));
    }

    /// The kernel cannot write a page, gives it up, and reads it again as it was. Not the first
    /// one: it is stored to all the time.
    pub(super) fn give_up_page(&mut self, random: &mut SimRandom) {
        let pages: BTreeSet<usize> = self.synced.keys().map(|word| word * WORD / PAGE).collect();
        let pages: Vec<usize> = pages.into_iter().filter(|page| *page > 0).collect();
        if pages.is_empty() {
            return;
        }
        coverage_mark!(WritebackError);
        let page = pages[random.below(pages.len() as u64) as usize];
        for word in page * PAGE / WORD..(page + 1) * PAGE / WORD {
            if let Some(content) = self.synced.remove(&word) {
                self.bytes[word * WORD..][..WORD].copy_from_slice(&content);
            }
        }
        self.untold = true;
    }

    /// Whether a page was given up and nobody has been told, which is done once.
    pub(super) fn take_untold(&mut self) -> bool {
        std::mem::take(&mut self.untold)
    }

    /// Offsets of the words at risk.
    #[cfg(test)]
    pub(crate) fn unsynced(&self) -> Vec<u64> {
        self.synced.keys().map(|word| (word * WORD) as u64).collect()
    }

    /// Power loss: of the words not synced all, none or some go back.
    pub(crate) fn lose_unsynced(&mut self, random: &mut SimRandom) {
        let probability = [0.0, 0.5, 1.0][random.below(3) as usize];
        self.dropped.clear();
        self.untold = false;
        for (word, content) in std::mem::take(&mut self.synced) {
            if random.chance(probability) {
                self.bytes[word * WORD..][..WORD].copy_from_slice(&content);
            }
        }
    }
}
