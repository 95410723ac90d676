//! The journal under every interleaving of its writers with each other, with a checkpoint, and with
//! a crash (`make models`).
//!
//! A crash is a scan of the medium at any moment. It must find every entry whose `append` had
//! returned. A writer that stops between taking its position and storing its entry leaves a hole.
//! The hole hides no other entry.

use std::io;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{Journal, Scan};
use crate::device::area::Media;
use crate::format::journal::{ENTRY, Event, HEADER};
use crate::version::Versions;

const UUID: [u8; 16] = [3; 16];
const EPOCH: u64 = 1;

/// Mapped memory: words, each stored whole, in no order. Of the header only the beginning is kept.
struct Memory {
    head: [AtomicU64; 16],
    entries: Vec<AtomicU64>,
}

impl Memory {
    fn new(entries: u64) -> Arc<Self> {
        let words = entries * ENTRY / 8;
        Arc::new(Self {
            head: std::array::from_fn(|_| AtomicU64::new(0)),
            entries: (0..words).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        match offset.checked_sub(HEADER) {
            Some(offset) => &self.entries[offset as usize / 8],
            None => &self.head[offset as usize / 8],
        }
    }
}

impl Media for Memory {
    fn len(&self) -> u64 {
        HEADER + self.entries.len() as u64 * 8
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (at, chunk) in (offset..).step_by(8).zip(bytes.as_chunks().0) {
            self.word(at).store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        Ok(())
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        for (at, chunk) in (offset..).step_by(8).zip(bytes.as_chunks_mut().0) {
            *chunk = self.word(at).load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A journal with room for `entries`, and its medium.
fn journal(entries: u64) -> (Arc<Journal>, Arc<Memory>) {
    let memory = Memory::new(entries);
    // The journal wants a standard Arc.
    struct Shared(Arc<Memory>);
    impl Media for Shared {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.store(offset, bytes)
        }
        fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
            self.0.load(offset, bytes)
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }
    let media = std::sync::Arc::new(Shared(memory.clone()));
    (Arc::new(Journal::create(media, &UUID, EPOCH, 0..0, 0).expect("memory does not fail")), memory)
}

fn put(hash: u64) -> Event {
    Event::Kill { hash, ns: 0 }
}

/// What recovery would find now: hashes of entries from `needed` on, and whether one is known to be
/// missing.
fn crash(memory: &Memory, needed: u64) -> (Vec<u64>, Scan) {
    let scan = Journal::scan(memory, &UUID, EPOCH, needed).expect("the header is whole");
    assert!(scan.others.is_empty(), "nobody wrote {:?}", scan.others);
    (scan.kills().map(|kill| kill.hash).collect(), scan)
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Two writers, one of whom may stand still anywhere, and a crash at any moment.
#[test]
fn an_acknowledged_entry_is_found_whoever_stands_still_beside_it() {
    explore(2, || {
        let (journal, memory) = journal(3);
        let done = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writers = [1, 2].map(|hash: u64| {
            let (journal, done) = (journal.clone(), done.clone());
            thread::spawn(move || {
                journal.append(put(hash), 10 + hash);
                done[hash as usize - 1].store(hash, Ordering::Release);
            })
        });
        let acknowledged = [0, 1].map(|n: usize| done[n].load(Ordering::Acquire));
        let (found, scan) = crash(&memory, 0);
        assert!(
            acknowledged.iter().all(|hash| *hash == 0 || found.contains(hash)),
            "{acknowledged:?}: {found:?}"
        );
        assert!(
            found.iter().all(|hash| [1, 2].contains(hash)) && !scan.poisoned,
            "nobody wrote that: {found:?}"
        );
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        let (mut found, scan) = crash(&memory, 0);
        found.sort_unstable();
        assert_eq!((found, scan.head), (vec![1, 2], 2));
    });
}

/// More entries than there is room for: when the last `append` has returned, the medium says that
/// one is missing.
#[test]
fn a_full_journal_says_so_before_anybody_relies_on_it() {
    explore(3, || {
        let (journal, memory) = journal(1);
        let writer = {
            let journal = journal.clone();
            thread::spawn(move || journal.append(put(1), 11))
        };
        journal.append(put(2), 12);
        writer.join().expect("no panic");
        let (found, scan) = crash(&memory, 0);
        assert!(scan.poisoned && journal.is_poisoned() && found.len() == 1, "{found:?}");
        // Freed by a checkpoint that covers both, it is sound again.
        journal.truncate(2);
        assert!(!journal.is_poisoned() && !crash(&memory, 2).1.poisoned);
    });
}

/// The order of a checkpoint (head, floor, every lock once, capture, truncate) runs beside writers.
/// A writer takes version and position, and takes effect, under the lock. Every acknowledged change
/// is in what was captured, or in the journal from the position that the checkpoint needs.
/// Otherwise the journal says that it has lost something.
#[test]
fn nothing_falls_between_a_checkpoint_and_the_journal() {
    explore(2, || {
        let (journal, memory) = journal(2);
        let versions = Arc::new(Versions::new(1, 1 << 20));
        // What an index line holds: the versions that have taken effect.
        let lines = Arc::new(Mutex::new(Vec::new()));
        let write = |hash: u64| {
            let (journal, versions, lines) = (journal.clone(), versions.clone(), lines.clone());
            move || {
                let mut lines = lines.lock().expect("no panic");
                let version = versions.take();
                journal.append(put(hash), version);
                lines.push(hash);
            }
        };
        let writers = [thread::spawn(write(1)), thread::spawn(write(2))];
        let head = journal.head();
        let floor = versions.peek();
        drop(lines.lock().expect("no panic"));
        let captured = lines.lock().expect("no panic").clone();
        journal.truncate(head);
        write(3)();
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        let (found, scan) = crash(&memory, head);
        for hash in 1..=3 {
            let safe = captured.contains(&hash) || found.contains(&hash) || scan.poisoned;
            assert!(
                safe,
                "{hash} is lost: captured {captured:?}, in the journal from {head}: {found:?}"
            );
        }
        // What the captured lines may not hold has a version at or above the floor: the kill map
        // takes it.
        let mut missing = scan.kills().filter(|kill| !captured.contains(&kill.hash));
        assert!(missing.all(|kill| kill.version >= floor));
    });
}
