//! How far apart checkpoints are: the further, the less is written, and the more recovery reads.
//!
//! A checkpoint writes the whole index, however few changes it is for. So its cost for a change
//! would grow with the index, if the journal alone decided how many changes there are between two.

/// Bytes of a checkpoint that a change may cost.
const A_CHANGE: u64 = 16;
/// So many bytes are written to segments for each byte of a checkpoint, before their number alone
/// makes one due.
const WRITTEN: u64 = 64;
/// Most bytes of a put or remove in the kill log.
pub const KILL: u64 = 9;

/// Changes that a journal of so many entries may have before a checkpoint gives it room.
#[must_use]
pub fn journal_share(entries: u64) -> u64 {
    entries / 4 * 3
}

/// Changes between two checkpoints of an index of so many bytes, with a journal of so many entries.
/// Where they are more than the journal may have, it is compacted meanwhile.
#[must_use]
pub fn changes_between(index_bytes: u64, entries: u64) -> u64 {
    (index_bytes / A_CHANGE).max(journal_share(entries))
}

/// Segments opened between two checkpoints, of `all` with `segment_size` bytes.
#[must_use]
pub fn segments_between(index_bytes: u64, all: u64, segment_size: u64) -> u64 {
    let written = WRITTEN * index_bytes / segment_size;
    written.min(all / 2).max(all.clamp(4, 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a change costs does not grow with the index.
    #[test]
    fn a_change_costs_as_much_of_a_checkpoint_whatever_the_index() {
        let entries = (64 << 20) / 32;
        for objects in [1_000_000, 4_000_000, 100_000_000, 400_000_000_u64] {
            let index = objects * 89 / 10;
            let each = index / changes_between(index, entries);
            assert!(each <= A_CHANGE, "{each} bytes with {objects} objects");
        }
        // A small index is written when the journal is full, as it costs little.
        assert_eq!(changes_between(1 << 20, entries), journal_share(entries));
    }

    #[test]
    fn segments_are_reckoned_by_what_a_checkpoint_writes() {
        assert_eq!(segments_between(40 << 20, 256, 16 << 20), 256, "as ever, in a small cache");
        let far = segments_between(890 << 20, 6400, 16 << 20);
        assert!((3000..=3200).contains(&far), "{far}");
    }
}
