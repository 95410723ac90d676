//! The file `tables` in the data directory: the ids of the tables that the newest snapshot of the
//! schema has.
//!
//! ```text
//! magic "agtabl01" | checksum u64 of what follows | id of the engine's cache, 16 bytes
//! | number of its opening u64 | count u32, each: id of a table, 16 bytes
//! ```
//!
//! Numbers are little endian. A node may hear of a table long after others. A write to a table that
//! the snapshot lacks drops no rows of it, for nobody knows its id. So its rows are dropped when a
//! snapshot first has it. What the snapshot before had is in memory. For the first snapshot of a
//! run the file says it: what it lacks has appeared.
//!
//! | danger | why no stale row is served |
//! |---|---|
//! | a table goes | its id leaves the file before the snapshot is the newest |
//! | a table appears | its rows are dropped, which is journalled, before its id is in the file |
//! | writes before the first snapshot | they drop everything |
//! | the process dies | the kernel has the file, as it has the journal |
//! | the machine dies | no row counts in another boot, but after a clean stop: that [syncs](sync) it |
//! | the file cannot be written | intents name what it should lack, for the next start to drop |
//! | the disk is full | what is no longer is written in place; a file that is half old is damaged |
//! | a release without the file runs | only the engine's very next opening believes the file |
//! | it is missing, damaged, or of another cache | no table was known: rows of all are dropped |
//!
//! It is written where the set of ids changes, and once at each start. What fails is
//! [tried again](NotedTables::try_again): the newest snapshot is the same until the next is noted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use afterglow_engine::device::area::replace_file;
use afterglow_engine::format::checksum;
use uuid::Uuid;

use crate::clock::Millis;
use crate::row_cache::RowCache;
use crate::write_scope::group_of;

const MAGIC: &[u8; 8] = b"agtabl01";
/// The file's name in the data directory.
pub const FILE: &str = "tables";
const ID: usize = 16;
/// Between two attempts to write it.
const RETRY: Millis = 2_000;

/// One opening of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOpening {
    /// The id of its cache.
    pub cache: Uuid,
    /// Its number: no two of a cache have the same.
    pub number: u64,
}

impl EngineOpening {
    fn is_right_after(self, earlier: EngineOpening) -> bool {
        self.cache == earlier.cache && earlier.number.checked_add(1) == Some(self.number)
    }
}

/// Why it is not known which tables the last run knew.
#[derive(Debug, thiserror::Error)]
pub enum NoTables {
    /// No file: the first run of a release that has one.
    #[error("there is no file '{FILE}' in the data directory, as after an upgrade")]
    Missing,
    /// It cannot be read.
    #[error("the file '{FILE}' in the data directory cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// It is not what was written.
    #[error("the file '{FILE}' in the data directory is damaged")]
    Damaged,
    /// The last run was of a release that does not know the file, or had no CQL front end.
    #[error("the file '{FILE}' in the data directory is not of the last run")]
    Outdated,
}

/// The file, and what it says.
#[derive(Debug)]
pub struct NotedTables {
    path: PathBuf,
    opening: EngineOpening,
    /// What it says, or would say to the next run if that believed it.
    noted: BTreeSet<Uuid>,
    /// It says that as of this opening.
    is_written: bool,
    /// Groups of tables that it names and should not: intents say that their rows are not dropped.
    owed: BTreeSet<u32>,
    /// What it should say and does not: it could not be written.
    unwritten: Option<Unwritten>,
}

#[derive(Debug)]
struct Unwritten {
    tables: BTreeSet<Uuid>,
    /// No attempt before this.
    again_at: Millis,
}

impl NotedTables {
    /// Reads what the last run left, and writes it for the next: no snapshot may come in this one.
    pub fn open(data_dir: &Path, opening: EngineOpening) -> (NotedTables, Option<NoTables>) {
        let path = data_dir.join(FILE);
        let (noted, why) = match read(&path, opening) {
            Ok(noted) => (noted, None),
            Err(why) => (BTreeSet::new(), Some(why)),
        };
        // If it cannot be written, the next run does not believe it.
        let is_written = why.is_none() && write(&path, opening, &noted).is_ok();
        let unwritten = (why.is_none() && !is_written)
            .then(|| Unwritten { tables: noted.clone(), again_at: 0 });
        let owed = BTreeSet::new();
        (NotedTables { path, opening, noted, is_written, owed, unwritten }, why)
    }

    /// Whether the file has a table. Of one that it lacks, rows of an earlier run may be cached
    /// that writes have not dropped.
    pub fn has(&self, table: Uuid) -> bool {
        self.noted.contains(&table)
    }

    /// Takes the tables of the snapshot that is about to be the newest. Rows of those that have
    /// appeared are dropped already.
    pub fn note<W>(&mut self, tables: BTreeSet<Uuid>, cache: &RowCache<W>) {
        if let Err(error) = self.attempt(tables, cache) {
            let whose = if self.is_written { "tables that came or went" } else { "all tables" };
            tracing::warn!(
                %error,
                file = %self.path.display(),
                "the tables of the newest schema cannot be noted: make room for the file, or make it writable. It is tried again every \
                 two seconds. Until then the next start drops the rows of {whose}"
            );
        }
    }

    /// Tries again what could not be written, if it is time to. To be called often.
    pub fn try_again<W>(&mut self, cache: &RowCache<W>) {
        let now = cache.clock().now();
        let due = self.unwritten.take_if(|unwritten| unwritten.again_at <= now);
        if let Some(Unwritten { tables, .. }) = due
            && self.attempt(tables, cache).is_ok()
        {
            tracing::info!("the tables of the newest schema are noted");
        }
    }

    fn attempt<W>(&mut self, tables: BTreeSet<Uuid>, cache: &RowCache<W>) -> io::Result<()> {
        // Those that went and are back: their rows are dropped, and the file has them rightly.
        if !self.is_written || tables != self.noted {
            if let Err(error) = write(&self.path, self.opening, &tables) {
                self.is_written &= says(&self.path, self.opening, &self.noted);
                self.owe(&tables, cache);
                let again_at = cache.clock().now() + RETRY;
                self.unwritten = Some(Unwritten { tables, again_at });
                return Err(error);
            }
            (self.noted, self.is_written) = (tables, true);
        }
        self.unwritten = None;
        self.settle(cache);
        Ok(())
    }

    /// Intents say which tables the file should lack.
    fn owe<W>(&mut self, tables: &BTreeSet<Uuid>, cache: &RowCache<W>) {
        let gone = self.noted.difference(tables).map(|table| group_of(*table));
        // Two tables may have one group.
        let gone: BTreeSet<u32> = gone.filter(|group| !self.owed.contains(group)).collect();
        let gone: Vec<u32> = gone.into_iter().collect();
        cache.intent_log.begin_undropped(&gone);
        self.owed.extend(gone);
    }

    /// The file names no table that it should lack.
    fn settle<W>(&mut self, cache: &RowCache<W>) {
        let owed: Vec<u32> = std::mem::take(&mut self.owed).into_iter().collect();
        cache.intent_log.settle_undropped(&owed);
    }
}

/// Makes the file durable, before a clean stop is noted.
///
/// # Errors
/// The error of the disk: after a restart of the machine the file may say what an earlier one said.
pub fn sync(data_dir: &Path) -> io::Result<()> {
    match File::open(data_dir.join(FILE)) {
        Ok(file) => file.sync_all()?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Its name, and that it is gone.
    File::open(data_dir)?.sync_all()
}

fn write(path: &Path, opening: EngineOpening, tables: &BTreeSet<Uuid>) -> io::Result<()> {
    let bytes = encode(opening, tables);
    replace_file(path, &bytes, false).or_else(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            overwrite(path, &bytes).map_err(|_| error)
        }
        _ => Err(error),
    })
}

/// Writes over the last version. A full disk has room for what is no longer than that. A process
/// that dies in between leaves a damaged file, which names no table.
fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    if file.metadata()?.len() < bytes.len() as u64 {
        return Err(ErrorKind::StorageFull.into());
    }
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    // Some file systems find out only then that they have no room.
    file.sync_data()
}

/// Whether the file is whole and says that.
fn says(path: &Path, opening: EngineOpening, tables: &BTreeSet<Uuid>) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes == encode(opening, tables))
}

fn read(path: &Path, opening: EngineOpening) -> Result<BTreeSet<Uuid>, NoTables> {
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => NoTables::Missing,
        _ => NoTables::Unreadable(error),
    })?;
    let (written_by, tables) = decode(&bytes).ok_or(NoTables::Damaged)?;
    match opening.is_right_after(written_by) {
        true => Ok(tables),
        false => Err(NoTables::Outdated),
    }
}

fn encode(opening: EngineOpening, tables: &BTreeSet<Uuid>) -> Vec<u8> {
    let mut body = opening.cache.as_bytes().to_vec();
    body.extend(opening.number.to_le_bytes());
    body.extend((tables.len() as u32).to_le_bytes());
    tables.iter().for_each(|table| body.extend(table.as_bytes()));
    [&MAGIC[..], &checksum(0, &body).to_le_bytes(), &body].concat()
}

fn decode(bytes: &[u8]) -> Option<(EngineOpening, BTreeSet<Uuid>)> {
    let (sum, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*sum) != checksum(0, body) {
        return None;
    }
    let (cache, rest) = body.split_first_chunk::<16>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (count, ids) = rest.split_first_chunk::<4>()?;
    let is_whole = ids.len() == u32::from_le_bytes(*count) as usize * ID;
    let opening =
        EngineOpening { cache: Uuid::from_bytes(*cache), number: u64::from_le_bytes(*number) };
    let ids = ids.chunks_exact(ID).map(|id| Uuid::from_slice(id).expect("16 bytes"));
    is_whole.then(|| (opening, ids.collect()))
}

#[cfg(test)]
#[path = "noted_tables_tests.rs"]
mod tests;
