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
#[path = "table_tests.rs"]
mod tests;
