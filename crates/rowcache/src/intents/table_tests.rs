//! Tests of the table of intents.

use std::path::PathBuf;

use super::*;
use afterglow_engine::device::sim::SimMedia;
use afterglow_engine::device::sim::{Crash, SimFaults, SimMachine};

const ANYTHING: u64 = u64::MAX;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir =
            std::env::temp_dir().join(format!("afterglow-intents-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("intents")
    }

    fn open(&self, expected: bool) -> (IntentTable, Unsettled) {
        IntentTable::open(&self.file(), 4, ANYTHING, expected).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn words(unsettled: &Unsettled) -> Vec<u64> {
    let mut words: Vec<u64> = unsettled.intents.iter().map(|(_, word)| *word).collect();
    words.sort_unstable();
    words
}

#[test]
fn what_was_not_settled_is_found_again_and_again() {
    let dir = Dir::new("again");
    let (table, unsettled) = dir.open(false);
    assert!(unsettled.intents.is_empty() && unsettled.doubt.is_none());
    let [a, b, _c] = [10, 11, 12].map(|word| table.begin(word));
    table.settle(b);
    drop(table);
    for _ in 0..2 {
        let (_, unsettled) = dir.open(true);
        assert_eq!((words(&unsettled), unsettled.doubt), (vec![10, 12], None));
    }
    let (table, unsettled) = dir.open(true);
    unsettled.intents.iter().for_each(|(id, _)| table.settle(*id));
    assert_eq!(table.free(), 4);
    drop(table);
    assert!(dir.open(true).1.intents.is_empty());
    let _ = a;
}

#[test]
fn a_full_table_remembers_that_it_missed_something_until_that_is_settled() {
    let dir = Dir::new("full");
    let (table, _) = dir.open(false);
    let ids: Vec<IntentId> = (1..=6).map(|word| table.begin(word)).collect();
    drop(table);
    let (_, unsettled) = dir.open(true);
    assert_eq!((words(&unsettled), unsettled.doubt), (vec![ANYTHING], Some(IntentDoubt::Missed)));
    std::fs::remove_file(dir.file()).unwrap();
    let (table, _) = dir.open(false);
    let again: Vec<IntentId> = (1..=6).map(|word| table.begin(word)).collect();
    assert_eq!(ids, again);
    again[4..].iter().for_each(|id| table.settle(*id));
    drop(table);
    let (_, unsettled) = dir.open(true);
    assert_eq!((words(&unsettled), unsettled.doubt), (vec![1, 2, 3, 4], None));
}

#[test]
fn every_doubt_stands_for_anything_and_outlives_another_crash() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm, IntentDoubt); 4] = [
        ("gone", |file| std::fs::remove_file(file).unwrap(), IntentDoubt::Missing),
        ("boot", |file| poke(file, 16), IntentDoubt::Rebooted),
        ("magic", |file| poke(file, 0), IntentDoubt::Damaged),
        ("short", |file| std::fs::write(file, [0; 100]).unwrap(), IntentDoubt::Damaged),
    ];
    for (name, harm, doubt) in harms {
        let dir = Dir::new(name);
        let (table, _) = dir.open(false);
        table.begin(7);
        drop(table);
        harm(&dir.file());
        let (_, unsettled) = dir.open(true);
        assert_eq!((words(&unsettled), unsettled.doubt), (vec![ANYTHING], Some(doubt)), "{name}");
        assert_eq!(words(&dir.open(true).1), [ANYTHING], "{name}");
    }
}

#[test]
fn a_clean_stop_is_believed_after_a_reboot_but_only_once() {
    let dir = Dir::new("clean");
    let (table, _) = dir.open(false);
    table.begin(7);
    table.close();
    drop(table);
    poke(&dir.file(), 16);
    let (table, unsettled) = dir.open(true);
    assert_eq!((words(&unsettled), unsettled.doubt), (vec![7], None));
    drop(table);
    poke(&dir.file(), 16);
    assert_eq!(dir.open(true).1.doubt, Some(IntentDoubt::Rebooted));
}

#[test]
fn what_a_failed_flush_of_an_earlier_life_left_unwritten_is_written_by_the_clean_stop() {
    let machine = SimMachine::new(1, SimFaults::none(), &[]);
    let boot = BootId([7; 16]);
    let format_all = |media: &SimMedia| format(media, 4, boot, 0).unwrap();
    let media = machine.create_media("intents", len(4));
    format_all(&media);
    let (table, _) = IntentTable::with(Box::new(media), Path::new("intents"), vec![0; 4]);
    table.begin(7);
    // The kernel drops what it cannot write, and says so once.
    machine.set_faults(SimFaults { media_sync_error: 1.0, ..SimFaults::none() });
    table.close();
    machine.set_faults(SimFaults::none());
    drop(table);
    machine.crash(Crash::Process);
    let media = machine.open_media("intents").unwrap();
    let words = read(&media, boot).unwrap();
    take_over(&media, boot).unwrap();
    let (table, _) = IntentTable::with(Box::new(media), Path::new("intents"), words);
    table.close();
    drop(table);
    // Whatever the power loss leaves of what was not flushed.
    for seed in 0..20 {
        machine.reseed(seed);
        machine.crash(Crash::Machine);
        let media = machine.open_media("intents").unwrap();
        let found = read(&media, BootId([8; 16]));
        assert_eq!(
            found,
            Ok(vec![0, 0, 0, 7]),
            "it is called clean, and what was under way is gone"
        );
    }
}

#[test]
fn a_table_that_is_not_mapped_keeps_the_same() {
    let dir = Dir::new("pwrite");
    let open = |expected| IntentTable::open_as(&dir.file(), 4, ANYTHING, expected, false).unwrap();
    let (table, _) = open(false);
    let ids: Vec<IntentId> = (1..=3).map(|word| table.begin(word)).collect();
    table.settle(ids[1]);
    drop(table);
    let (table, unsettled) = open(true);
    assert_eq!((words(&unsettled), unsettled.doubt), (vec![1, 3], None));
    drop(table);
    // What one way has written the other one reads.
    assert_eq!(words(&dir.open(true).1), [1, 3]);
}

#[test]
fn a_table_with_holes_is_damaged_only_where_it_is_mapped() {
    let damaged = Some(IntentDoubt::Damaged);
    for (mapped, word, doubt) in [(true, ANYTHING, damaged), (false, 7, None)] {
        let dir = Dir::new(&format!("holes-{mapped}"));
        let file = dir.file();
        let open = |old| IntentTable::open_as(&file, 1 << 12, ANYTHING, old, mapped).unwrap();
        open(false).0.begin(7);
        // As file systems have it that keep no zeros.
        let whole = std::fs::read(&file).unwrap();
        let sparse = std::fs::File::create(&file).unwrap();
        sparse.set_len(whole.len() as u64).unwrap();
        let pages = (0..).step_by(4096).zip(whole.chunks(4096));
        for (at, page) in pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
            std::os::unix::fs::FileExt::write_all_at(&sparse, page, at).unwrap();
        }
        let found = open(true).1;
        assert_eq!((words(&found), found.doubt), (vec![word], doubt));
    }
}

/// An area on a disk that refuses so many stores.
struct Refusing {
    area: PwriteMedia,
    refusals: std::sync::atomic::AtomicU32,
}

impl Media for Refusing {
    fn len(&self) -> u64 {
        self.area.len()
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let refuse = |left: u32| left.checked_sub(1);
        match self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse) {
            Ok(_) => Err(io::ErrorKind::StorageFull.into()),
            Err(_) => self.area.store(offset, bytes),
        }
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.area.load(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.area.sync()
    }
}

#[test]
fn an_intent_that_cannot_be_stored_is_not_forgotten() {
    for (refusals, doubt) in [(1, IntentDoubt::Missed), (2, IntentDoubt::Missing)] {
        let dir = Dir::new(&format!("refused-{refusals}"));
        drop(dir.open(false));
        let area = PwriteMedia::open(&dir.file()).unwrap().unwrap();
        let media = Refusing { area, refusals: refusals.into() };
        let (table, _) = IntentTable::with(Box::new(media), &dir.file(), vec![0; 4]);
        let refused = table.begin(7);
        table.settle(table.begin(8));
        table.settle(refused);
        // Also where the life ends well: nobody knows what it has missed.
        table.close();
        drop(table);
        let (_, unsettled) = dir.open(true);
        assert_eq!((words(&unsettled), unsettled.doubt), (vec![ANYTHING], Some(doubt)));
    }
}

fn poke(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}
