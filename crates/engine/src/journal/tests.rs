//! Laps of the journal over many pages, openings in between.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Journal, Scan};
use crate::format::journal::{ENTRY, Event};
use crate::media::{Media, MmapMedia};
use crate::testing::TempDir;

const UUID: [u8; 16] = [5; 16];
const EPOCH: u64 = 3;

fn kill(hash: u64) -> Event {
    Event::Kill { hash, ns: 1 }
}

fn hashes(scan: &Scan) -> BTreeSet<u64> {
    scan.kills().map(|kill| kill.hash).collect()
}

/// As foyer's tombstone log would not: it computes where to go on from an offset within one page, so that a log longer than a page goes
/// on in its first one, over entries that still count.
#[test]
fn a_journal_of_many_pages_goes_on_behind_its_newest_entry_and_over_none_that_counts() {
    let dir = TempDir::new();
    // Three pages of entries behind the header.
    let media: Arc<dyn Media> =
        Arc::new(MmapMedia::create(&dir.path().join("journal"), 4 * 4096).expect("made"));
    let capacity = 3 * 4096 / ENTRY;
    let (mut head, mut tail) = (0, 0);
    Journal::create(media.clone(), &UUID, EPOCH, 0..0, 0).expect("made");
    // Openings at every place in a page, several laps of the ring.
    for life in 0..40 {
        let journal = Journal::resume(media.clone(), &UUID, EPOCH, head, tail);
        for _ in 0..37 + life {
            journal.append(kill(head), head + 1);
            head += 1;
        }
        assert!(!journal.is_poisoned());
        let scan = Journal::scan(&*media, &UUID, EPOCH, tail).expect("whole");
        assert_eq!((scan.head, hashes(&scan)), (head, (tail..head).collect()), "life {life}");
        // A checkpoint leaves the newest quarter, across laps and page ends.
        tail = head.saturating_sub(capacity / 4);
        journal.truncate(tail);
    }
    assert!(head > 4 * capacity, "several laps");
}
