//! Laps of the journal over many pages, openings in between; and flushes that fail.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Journal, Scan};
use crate::device::area::{Media, MmapMedia};
use crate::device::sim::{SimFaults, SimMachine};
use crate::format::journal::{ENTRY, Event, HEADER, POISON_AT};
use crate::testing::TempDir;

const UUID: [u8; 16] = [5; 16];
const EPOCH: u64 = 3;

fn kill(hash: u64) -> Event {
    Event::Kill { hash, ns: 1 }
}

fn hashes(scan: &Scan) -> BTreeSet<u64> {
    scan.kills().map(|kill| kill.hash).collect()
}

/// foyer's tombstone log would fail this. It computes where to go on from an offset within one
/// page. So a log longer than a page goes on in its first page, over entries that still count.
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

/// A medium whose flushes fail when told to, and which knows where it was stored to.
struct Failing {
    media: MmapMedia,
    fails: AtomicBool,
    stored: Mutex<Vec<u64>>,
}

impl Media for Failing {
    fn len(&self) -> u64 {
        self.media.len()
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.stored.lock().push(offset);
        self.media.store(offset, bytes)
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.media.load(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            Err(io::Error::other("told to"))
        } else {
            self.media.sync()
        }
    }
}

fn failing() -> (TempDir, Arc<Failing>, Journal) {
    let dir = TempDir::new();
    let media = MmapMedia::create(&dir.path().join("journal"), 2 * 4096).expect("made");
    let media =
        Arc::new(Failing { media, fails: AtomicBool::new(false), stored: Mutex::default() });
    let journal = Journal::create(media.clone(), &UUID, EPOCH, 0..0, 0).expect("made");
    (dir, media, journal)
}

#[test]
#[should_panic(expected = "the journal ends at 1, below 2")]
fn a_journal_is_not_cut_off_beyond_its_head() {
    let (_dir, _media, journal) = failing();
    journal.append(kill(1), 1);
    journal.truncate(2);
}

#[test]
fn after_a_flush_that_failed_the_next_one_makes_the_word_last_that_entries_are_lost() {
    let (_dir, media, journal) = failing();
    journal.append(kill(1), 1);
    media.fails.store(true, Ordering::Relaxed);
    assert!(journal.sync().is_err());
    assert!(journal.is_poisoned());
    media.fails.store(false, Ordering::Relaxed);
    media.stored.lock().clear();
    journal.sync().expect("nothing fails any more");
    assert_eq!(
        *media.stored.lock(),
        [POISON_AT],
        "a page that was dropped is written when it is stored to again"
    );
    assert!(Journal::scan(&*media, &UUID, EPOCH, 0).expect("whole").poisoned);
}

#[test]
fn a_flush_that_fails_while_the_poison_is_lifted_is_one_more_reason_for_it() {
    let (_dir, media, journal) = failing();
    journal.append(kill(1), 1);
    journal.poison_now();
    journal.append(kill(2), 2);
    media.fails.store(true, Ordering::Relaxed);
    journal.truncate(1);
    assert_eq!(journal.poisoned_below(), Some(2), "the second entry may be lost, too");
    media.fails.store(false, Ordering::Relaxed);
    journal.truncate(1);
    assert!(journal.is_poisoned());
    journal.truncate(2);
    assert!(
        !journal.is_poisoned() && !Journal::scan(&*media, &UUID, EPOCH, 2).expect("whole").poisoned
    );
}

#[test]
fn an_entry_of_this_life_that_is_gone_makes_the_journal_doubtful_at_once() {
    for lives in [1, 2] {
        let (_dir, media, mut journal) = failing();
        (1..4).for_each(|n| journal.append(kill(n), n));
        // The kernel could not write a page, gave up its memory, and reads the old bytes again.
        media.media.store(HEADER + ENTRY, &[0; ENTRY as usize]).expect("stored");
        if lives == 2 {
            journal = Journal::resume(media.clone(), &UUID, EPOCH, 3, 0);
        }
        let read = journal.read(0..3).map(|entries| entries.len());
        assert_eq!(read, if lives == 1 { None } else { Some(2) });
        assert_eq!(
            journal.poisoned_below(),
            (lives == 1).then_some(3),
            "what an earlier life left undone was acknowledged to nobody"
        );
        let scan = Journal::scan(&*media, &UUID, EPOCH, 0).expect("whole");
        assert_eq!(scan.poisoned, lives == 1);
    }
}

/// Appends to a mapped journal as fast as a busy cache does, for two laps. Another thread flushes
/// it once a second. Prints the microseconds of one append, page faults included.
#[test]
#[ignore = "a measurement, for: cargo test -p afterglow-engine --lib -- --ignored --nocapture appends_take"]
fn appends_take() {
    let dir = TempDir::new();
    let media = Arc::new(MmapMedia::create(&dir.path().join("journal"), 64 << 20).expect("made"));
    Journal::create(media.clone(), &UUID, EPOCH, 0..0, 0).expect("made");
    let journal = Journal::resume(media, &UUID, EPOCH, 0, 0);
    let is_over = AtomicBool::new(false);
    let mut times: Vec<u64> = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                journal.sync().expect("synced");
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        for n in 0..2 * journal.entries() {
            let began = Instant::now();
            journal.append(kill(n), n + 1);
            times.push(began.elapsed().as_nanos() as u64);
            if n % 1_000 == 0 {
                journal.truncate(n);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(!journal.is_poisoned());
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    let parts = [0.5, 0.99, 0.999, 0.9999, 1.0].map(|part| format!("{:.1}", at(part)));
    println!("p50, 99, 99.9, 99.99, max of an append: {} us", parts.join(", "));
}

/// A journal of a simulated machine in which a life has left two pages that nobody has flushed.
/// With it, how many entries it has.
fn unflushed() -> (SimMachine, Arc<dyn Media>, u64) {
    let machine = SimMachine::new(1, SimFaults::none(), &[]);
    let media: Arc<dyn Media> = Arc::new(machine.create_media("journal", 4 * 4096));
    let journal = Journal::create(media.clone(), &UUID, EPOCH, 0..0, 0).expect("made");
    let entries = 2 * 4096 / ENTRY;
    (0..entries).for_each(|n| journal.append(kill(n), n + 1));
    (machine, media, entries)
}

#[test]
fn what_nobody_has_written_yet_is_read_and_not_waited_for() {
    let (machine, media, entries) = unflushed();
    let before = machine.unsynced("journal");
    let scan = Journal::scan(&*media, &UUID, EPOCH, 0).expect("whole");
    assert_eq!((scan.poisoned, hashes(&scan)), (false, (0..entries).collect()));
    assert!(!before.is_empty() && machine.unsynced("journal") == before, "it was flushed");
}

#[test]
fn an_entry_that_is_given_up_behind_the_scan_is_no_hole_of_an_earlier_life() {
    let (machine, media, entries) = unflushed();
    let scan = Journal::scan(&*media, &UUID, EPOCH, 0).expect("whole");
    let journal = Journal::resume(media, &UUID, EPOCH, scan.head, 0);
    // The next store finds a page given up.
    machine.set_faults(SimFaults { writeback_error: 1.0, ..SimFaults::none() });
    journal.append(kill(entries), entries + 1);
    machine.set_faults(SimFaults::none());
    assert!(journal.read(0..entries).is_none(), "removals would be missing in the kill log");
    assert!(journal.is_poisoned());
}

/// The start that hears of it is killed before it has written anything else.
#[test]
fn a_start_that_hears_of_a_page_given_up_leaves_word_of_it_for_the_next() {
    let (machine, media, entries) = unflushed();
    let journal = Journal::resume(media.clone(), &UUID, EPOCH, entries, 0);
    machine.set_faults(SimFaults { writeback_error: 1.0, ..SimFaults::none() });
    journal.append(kill(entries), entries + 1);
    machine.set_faults(SimFaults::none());
    for start in ["is told", "is told by the first one"] {
        let scan = Journal::scan(&*media, &UUID, EPOCH, 0).expect("it can be read");
        assert!(scan.poisoned, "who {start}: removals would come undone");
    }
}
