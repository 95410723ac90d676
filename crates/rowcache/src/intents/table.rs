//! The table of intents: words that say which writes are in flight. They survive the death of the
//! process.
//!
//! ```text
//!  0       8          12       16        32       40      48         4096      4104          4096 + 8 n
//! +-------+----------+--------+---------+--------+-------+--- 0 ----+---------+---------+- - -+
//! | magic | format   | slots n| boot id | missed | clean | reserved | word 0  | word 1  |     |
//! +-------+----------+--------+---------+--------+-------+----------+---------+---------+- - -+
//! ```
//! A word of 0 is a free slot; words are stored whole. `missed` is 1 while a write is in flight
//! that found no free slot. `clean` is 1 after a clean stop, until the table is opened again. The
//! file is a journal without order. An intent is written before its write begins, and wiped when
//! the outcome is known. So the intents found at the next start are the writes of unknown outcome.
//!
//! Intents survive the process because the kernel keeps what was stored. The file is mapped; it is
//! written with `pwrite` where the file system may fail to write a page of a mapping. After another
//! boot without a clean stop, or if the file cannot be read or missed an intent, nothing is known.
//! Then the caller's word for "anything" replaces all intents.
//!
//! A word that cannot be stored is a missed intent: the file says so until the end of this life. If
//! even that cannot be stored the file is removed, which the next start notices too.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use afterglow_engine::device::area::{
    BootId, Media, MediaError, MmapMedia, PwriteMedia, boot_id, look_at_area, unfit_to_map,
};
use parking_lot::Mutex;

const MAGIC: &[u8; 8] = b"aglowINT";
const FORMAT: u32 = 1;
const MISSED_AT: u64 = 32;
const CLEAN_AT: u64 = 40;
const HEADER: u64 = 4096;
const WORD: u64 = 8;

/// Where an intent is noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IntentId(Option<u32>);

/// Why it is not known what was under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntentDoubt {
    /// There is no file, although there was one.
    Missing,
    /// The machine was restarted without a clean stop: the last stores may be lost.
    Rebooted,
    /// The file is damaged or of another format.
    Damaged,
    /// More writes were in flight than the table has slots.
    Missed,
}

/// What a table held when it was opened.
#[derive(Debug)]
pub struct Unsettled {
    /// Intents without a known outcome. Each is still noted, and must be settled in time.
    pub intents: Vec<(IntentId, u64)>,
    /// Set if the file could not be trusted. The only intent is then the caller's word for
    /// anything.
    pub doubt: Option<IntentDoubt>,
}

/// A table of intents in a file.
pub struct IntentTable {
    media: Box<dyn Media>,
    path: PathBuf,
    state: Mutex<IntentState>,
    /// An intent could not be stored: the file is incomplete for the rest of this life.
    lost: AtomicBool,
}

#[derive(Default)]
struct IntentState {
    free: Vec<u32>,
    /// Intents under way that found no slot.
    missed: usize,
}

impl IntentTable {
    /// Opens the table in the file `path`, or makes one with `slots` slots. `anything` is the word
    /// noted when it is not known what was in flight. `expected` says that there must be a file,
    /// because this is not the first start.
    ///
    /// # Errors
    /// The file cannot be made: no space, no permission.
    ///
    /// # Panics
    /// When `anything` is 0 or `slots` is.
    pub fn open(
        path: &Path,
        slots: u32,
        anything: u64,
        expected: bool,
    ) -> Result<(IntentTable, Unsettled), MediaError> {
        Self::open_as(path, slots, anything, expected, is_mapped(path))
    }

    /// [`IntentTable::open`], with the file mapped or not.
    fn open_as(
        path: &Path,
        slots: u32,
        anything: u64,
        expected: bool,
        mapped: bool,
    ) -> Result<(IntentTable, Unsettled), MediaError> {
        assert!(anything != 0 && slots > 0, "word 0 is a free slot");
        let boot = boot_id().unwrap_or(BootId([0; 16]));
        let doubt = match open_media(path, mapped) {
            Ok(Some(media)) => {
                match read(&*media, boot).and_then(|words| take_over(&*media, boot).map(|()| words))
                {
                    Ok(words) => return Ok(IntentTable::with(media, path, words)),
                    Err(doubt) => Some(doubt),
                }
            }
            Ok(None) => expected.then_some(IntentDoubt::Missing),
            Err(_) => Some(IntentDoubt::Damaged),
        };
        // The new file is made beside the old one and renamed when whole. So no crash leaves an
        // incomplete table.
        let temporary = path.with_extension("new");
        let _ = std::fs::remove_file(&temporary);
        let media = create_media(&temporary, len(slots), mapped)?;
        let first = if doubt.is_some() { anything } else { 0 };
        let made =
            format(&*media, slots, boot, first).and_then(|()| std::fs::rename(&temporary, path));
        made.map_err(|source| MediaError::Io { doing: "write", path: path.to_owned(), source })?;
        let mut words = vec![0; slots as usize];
        words[0] = first;
        let (table, mut unsettled) = IntentTable::with(media, path, words);
        unsettled.doubt = doubt;
        Ok((table, unsettled))
    }

    /// What opening the table at `path` would doubt, without opening it and without a lock. A
    /// missing table is no doubt here.
    #[must_use]
    pub fn look(path: &Path) -> Option<IntentDoubt> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(_) => return Some(IntentDoubt::Damaged),
        };
        if look_at_area(path, is_mapped(path)).is_err() {
            return Some(IntentDoubt::Damaged);
        }
        read(&Looked(bytes), boot_id().unwrap_or(BootId([0; 16]))).err()
    }

    fn with(media: Box<dyn Media>, path: &Path, words: Vec<u64>) -> (IntentTable, Unsettled) {
        let mut free = Vec::with_capacity(words.len());
        let mut intents = Vec::new();
        for (slot, word) in (0u32..).zip(words) {
            match word {
                0 => free.push(slot),
                word => intents.push((IntentId(Some(slot)), word)),
            }
        }
        let state = Mutex::new(IntentState { free, missed: 0 });
        let table =
            IntentTable { media, path: path.to_owned(), state, lost: AtomicBool::new(false) };
        (table, Unsettled { intents, doubt: None })
    }

    /// Notes an intent, before its write begins. If the table is full it remembers that it missed
    /// one.
    ///
    /// # Panics
    /// When `word` is 0.
    pub fn begin(&self, word: u64) -> IntentId {
        assert!(word != 0, "word 0 is a free slot");
        let slot = {
            let mut state = self.state.lock();
            let slot = state.free.pop();
            if slot.is_none() {
                state.missed += 1;
                if state.missed == 1 && self.media.store(MISSED_AT, &1u64.to_le_bytes()).is_err() {
                    self.lose_track();
                }
            }
            slot
        };
        if let Some(slot) = slot
            && self.media.store(at(slot), &word.to_le_bytes()).is_err()
        {
            self.lose_track();
        }
        IntentId(slot)
    }

    /// Says something else of an intent, in its place. Where that cannot be stored the earlier word
    /// may stay, so it must cover what the new one says. Returns the intent's name from now on: one
    /// that found no slot may find one now.
    ///
    /// # Panics
    /// When `word` is 0.
    pub fn replace(&self, id: IntentId, word: u64) -> IntentId {
        assert!(word != 0, "word 0 is a free slot");
        match id.0 {
            Some(slot) => {
                let _ = self.media.store(at(slot), &word.to_le_bytes());
                id
            }
            None => {
                let found = self.begin(word);
                self.settle(id);
                found
            }
        }
    }

    /// Wipes an intent: its outcome is known, or no longer matters. Called once for each
    /// [`IntentTable::begin`]. An intent that cannot be wiped stays noted, which is safe.
    pub fn settle(&self, id: IntentId) {
        match id.0 {
            Some(slot) => {
                let _ = self.media.store(at(slot), &[0; WORD as usize]);
                self.state.lock().free.push(slot);
            }
            None => {
                let mut state = self.state.lock();
                state.missed -= 1;
                if state.missed == 0 && !self.lost.load(Ordering::SeqCst) {
                    let _ = self.media.store(MISSED_AT, &0u64.to_le_bytes());
                }
            }
        }
    }

    /// The clean stop: the intents noted now are complete, and the file says so even after power
    /// loss. Nothing may begin after this. If an intent could not be stored, the file does not say
    /// so: the next start doubts everything.
    pub fn close(&self) {
        if self.lost.load(Ordering::SeqCst) {
            return;
        }
        // If the clean mark cannot be made durable, it is taken back.
        let written = self.store_all_again().and_then(|()| self.media.sync());
        let marked = written.and_then(|()| self.media.store(CLEAN_AT, &1u64.to_le_bytes()));
        if marked.is_ok() && self.media.sync().is_err() {
            let _ = self.media.store(CLEAN_AT, &0u64.to_le_bytes());
        }
    }

    /// An intent could not be stored, and its write begins all the same. The next start after a
    /// crash must not take the file for complete.
    fn lose_track(&self) {
        if self.lost.swap(true, Ordering::SeqCst) {
            return;
        }
        let path = self.path.display();
        tracing::error!(%path, "a write's intent cannot be stored: after a crash no cached row is believed; check the disk");
        if self.media.store(MISSED_AT, &1u64.to_le_bytes()).is_ok() {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::error!(%path, %error, "the file of intents cannot be removed either: remove it before the next start");
        }
    }

    /// Makes the next flush write every page. A page that a failed write-back dropped passes for
    /// written, also in later lives of this boot. An intent that is wiped at the same moment may be
    /// noted again, which is safe.
    fn store_all_again(&self) -> io::Result<()> {
        let mut bytes = vec![0; usize::try_from(self.media.len()).expect("a table is small")];
        self.media.load(0, &mut bytes)?;
        self.media.store(0, &bytes)
    }

    /// Slots that are free.
    pub fn free(&self) -> usize {
        self.state.lock().free.len()
    }
}

/// Whether a table there is mapped.
fn is_mapped(path: &Path) -> bool {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    unfit_to_map(dir).is_none()
}

/// The file's area; `None` when there is none.
fn open_media(path: &Path, mapped: bool) -> Result<Option<Box<dyn Media>>, MediaError> {
    Ok(match mapped {
        true => MmapMedia::open(path)?.map(|media| Box::new(media) as _),
        false => PwriteMedia::open(path)?.map(|media| Box::new(media) as _),
    })
}

fn create_media(path: &Path, len: u64, mapped: bool) -> Result<Box<dyn Media>, MediaError> {
    Ok(match mapped {
        true => Box::new(MmapMedia::create(path, len)?),
        false => Box::new(PwriteMedia::create(path, len)?),
    })
}

/// Bytes of a table: whole pages.
fn len(slots: u32) -> u64 {
    at(slots).next_multiple_of(4096)
}

fn at(slot: u32) -> u64 {
    HEADER + WORD * u64::from(slot)
}

/// The bytes of a table, for reading only.
struct Looked(Vec<u8>);

impl Media for Looked {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let found =
            usize::try_from(offset).ok().and_then(|at| self.0.get(at..)?.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// From now on the table belongs to this boot, and is not clean.
fn take_over(media: &dyn Media, boot: BootId) -> Result<(), IntentDoubt> {
    let changed = media.store(CLEAN_AT, &0u64.to_le_bytes()).and_then(|()| media.sync());
    changed.and_then(|()| media.store(16, &boot.0)).map_err(|_| IntentDoubt::Damaged)
}

fn format(media: &dyn Media, slots: u32, boot: BootId, first: u64) -> io::Result<()> {
    let mut header = [0; HEADER as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..16].copy_from_slice(&slots.to_le_bytes());
    header[16..32].copy_from_slice(&boot.0);
    media.store(0, &header)?;
    media.store(at(0), &first.to_le_bytes())?;
    media.sync()
}

fn read(media: &dyn Media, boot: BootId) -> Result<Vec<u64>, IntentDoubt> {
    let mut header = [0; 48];
    if media.len() < HEADER || media.load(0, &mut header).is_err() {
        return Err(IntentDoubt::Damaged);
    }
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let slots = number(12);
    if &header[..8] != MAGIC || number(8) != FORMAT || slots == 0 || media.len() != len(slots) {
        return Err(IntentDoubt::Damaged);
    }
    let same_boot = boot != BootId([0; 16]) && header[16..32] == boot.0;
    if !same_boot && number(CLEAN_AT as usize) != 1 {
        return Err(IntentDoubt::Rebooted);
    }
    if number(MISSED_AT as usize) != 0 {
        return Err(IntentDoubt::Missed);
    }
    let mut bytes = vec![0; (WORD * u64::from(slots)) as usize];
    media.load(HEADER, &mut bytes).map_err(|_| IntentDoubt::Damaged)?;
    Ok(bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use afterglow_engine::device::sim::SimMedia;
    use afterglow_engine::device::sim::{Crash, SimFaults, SimMachine};

    const ANYTHING: u64 = u64::MAX;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir()
                .join(format!("afterglow-intents-{}-{name}", std::process::id()));
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
        assert_eq!(
            (words(&unsettled), unsettled.doubt),
            (vec![ANYTHING], Some(IntentDoubt::Missed))
        );
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
            assert_eq!(
                (words(&unsettled), unsettled.doubt),
                (vec![ANYTHING], Some(doubt)),
                "{name}"
            );
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
        let open =
            |expected| IntentTable::open_as(&dir.file(), 4, ANYTHING, expected, false).unwrap();
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
}
