//! The file of prepared statements in the data directory: the meaning of an id survives our
//! restart, also after `kill -9`.
//!
//! Records are appended, never changed. The last one of an id and version counts; the keyspaces of
//! those before it count too, where several share the id. Damage by a crash or a bad disk costs its
//! statements one round trip, because their clients are asked to prepare again. It costs nothing
//! else: each record carries a checksum, and reading ends at the first that does not hold. Drawn in
//! `docs/internals/formats.md`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use afterglow_cql::frame::Version;
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"aglowPLN";
const FORMAT: u32 = 1;
/// `magic 8 | format u32 | 0 u32`
const HEADER: usize = 16;
/// `length of the payload u32 | 0 u32 | checksum of the payload u64`
const PREFIX: usize = 16;
/// `version u8 | flags u8 | length of the id u16 | of the keyspace u32 | of the text u32 | of the
/// message u32`
const FIXED: usize = 16;
/// Every record is a little different from a checksum of zeros.
const SEED: u64 = FORMAT as u64;
/// No record is longer: a frame has at most 256 MiB.
const LONGEST: usize = 512 << 20;

const NAMES_KEYSPACE: u8 = 1;
const HAS_KEYSPACE: u8 = 2;
const DRIFTED: u8 = 4;

/// What is remembered of one statement in one protocol version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanEntry {
    /// The version.
    pub version: Version,
    /// The server's id.
    pub id: Vec<u8>,
    /// The text.
    pub text: String,
    /// The keyspace in which it was prepared.
    pub keyspace: Option<String>,
    /// Whether the request named the keyspace, not the session.
    pub names_keyspace: bool,
    /// Clients may know other columns than `message` has.
    pub drifted: bool,
    /// The message of the server's RESULT Prepared.
    pub message: Vec<u8>,
}

impl PlanEntry {
    fn write(&self, out: &mut Vec<u8>) {
        let keyspace = self.keyspace.as_deref().unwrap_or_default();
        let flag = |on, flag| if on { flag } else { 0 };
        let flags = flag(self.names_keyspace, NAMES_KEYSPACE)
            | flag(self.keyspace.is_some(), HAS_KEYSPACE)
            | flag(self.drifted, DRIFTED);
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX]);
        out.extend_from_slice(&[self.version.as_u8(), flags]);
        out.extend_from_slice(&(self.id.len() as u16).to_le_bytes());
        for length in [keyspace.len(), self.text.len(), self.message.len()] {
            out.extend_from_slice(&(length as u32).to_le_bytes());
        }
        for part in [&self.id, keyspace.as_bytes(), self.text.as_bytes(), &self.message] {
            out.extend_from_slice(part);
        }
        let payload = &out[start + PREFIX..];
        let (length, checksum) =
            (payload.len() as u32, XxHash3_64::oneshot_with_seed(SEED, payload));
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out[start + 8..start + PREFIX].copy_from_slice(&checksum.to_le_bytes());
    }

    /// The record at the start of `bytes`, and its length.
    fn read(bytes: &[u8]) -> Option<(PlanEntry, usize)> {
        let (prefix, rest) = bytes.split_at_checked(PREFIX)?;
        let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize);
        let length = number(&prefix[..4])?;
        let payload = rest.get(..length).filter(|_| length <= LONGEST)?;
        if XxHash3_64::oneshot_with_seed(SEED, payload).to_le_bytes() != prefix[8..] {
            return None;
        }
        let (fixed, mut parts) = payload.split_at_checked(FIXED)?;
        let flags = fixed[1];
        let mut take = |length: usize| {
            let (part, rest) = parts.split_at_checked(length)?;
            parts = rest;
            Some(part.to_vec())
        };
        let id = take(usize::from(u16::from_le_bytes([fixed[2], fixed[3]])))?;
        let keyspace = String::from_utf8(take(number(&fixed[4..8])?)?).ok()?;
        let text = String::from_utf8(take(number(&fixed[8..12])?)?).ok()?;
        let message = take(number(&fixed[12..])?)?;
        let entry = PlanEntry {
            version: Version::from_u8(fixed[0])?,
            id,
            text,
            keyspace: (flags & HAS_KEYSPACE != 0).then_some(keyspace),
            names_keyspace: flags & NAMES_KEYSPACE != 0,
            drifted: flags & DRIFTED != 0,
            message,
        };
        Some((entry, PREFIX + length))
    }
}

/// The open file.
#[derive(Debug)]
pub struct PlanFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl PlanFile {
    /// Opens the file, or makes an empty one where there is none that can be read. Gives what it
    /// holds, oldest first.
    ///
    /// # Errors
    /// It can be neither read nor made.
    pub fn open(path: &Path) -> io::Result<(PlanFile, Vec<PlanEntry>)> {
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        if !bytes.starts_with(&header()) {
            if !bytes.is_empty() {
                let path = path.display();
                tracing::warn!(%path, "the file of prepared statements is damaged or of another release: clients are asked to prepare again");
            }
            return Ok((Self::make(path, [])?, Vec::new()));
        }
        let (mut entries, mut at) = (Vec::new(), HEADER);
        while let Some((entry, length)) = PlanEntry::read(&bytes[at..]) {
            entries.push(entry);
            at += length;
        }
        if at < bytes.len() {
            let lost = bytes.len() - at;
            tracing::info!(
                lost,
                "the file of prepared statements ends in an incomplete record: it is cut off"
            );
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        file.set_len(at as u64)?;
        Ok((PlanFile { path: path.to_owned(), file, len: at as u64 }, entries))
    }

    /// A file with these entries in the place of whatever is there; nobody ever sees half of it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn make(path: &Path, entries: impl IntoIterator<Item = PlanEntry>) -> io::Result<PlanFile> {
        let mut made = Self::beside(path, entries)?;
        made.publish(path)?;
        Ok(made)
    }

    /// A file with these entries beside the one at `path`, to be [published](Self::publish) there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn beside(
        path: &Path,
        entries: impl IntoIterator<Item = PlanEntry>,
    ) -> io::Result<PlanFile> {
        let temporary = path.with_extension("new");
        let _ = fs::remove_file(&temporary); // of an attempt that a crash ended
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        let mut made = PlanFile { path: temporary, file: open, len: 0 };
        let mut bytes = header().to_vec();
        for entry in entries {
            entry.write(&mut bytes);
            if bytes.len() >= 1 << 20 {
                made.write(&bytes)?;
                bytes.clear();
            }
        }
        made.write(&bytes)?;
        Ok(made)
    }

    /// Takes the place of what is at `path`.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn publish(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.path = path.to_owned();
        Ok(())
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends an entry. It is with the kernel when this returns, and survives the end of this
    /// process.
    ///
    /// # Errors
    /// It cannot be written; the file is as it was.
    pub fn append(&mut self, entry: &PlanEntry) -> io::Result<()> {
        let mut bytes = Vec::new();
        entry.write(&mut bytes);
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.len))?;
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a record would hide all that follow it.
                self.file.set_len(self.len)?;
                Err(error)
            }
        }
    }
}

fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn entry(id: &str, keyspace: Option<&str>) -> PlanEntry {
        PlanEntry {
            version: Version::V5,
            id: id.into(),
            text: format!("SELECT {id} FROM t"),
            keyspace: keyspace.map(str::to_owned),
            names_keyspace: keyspace.is_some(),
            drifted: id == "drifted",
            message: vec![7; 40],
        }
    }

    fn three() -> Vec<PlanEntry> {
        vec![entry("a", None), entry("drifted", Some("ks")), entry("c", Some(""))]
    }

    fn reopened(path: &Path) -> Vec<PlanEntry> {
        PlanFile::open(path).unwrap().1
    }

    #[test]
    fn what_is_appended_is_there_after_the_process_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plans");
        let (mut file, none) = PlanFile::open(&path).unwrap();
        assert_eq!(none, []);
        three().iter().for_each(|entry| file.append(entry).unwrap());
        assert_eq!(file.len(), fs::metadata(&path).unwrap().len());
        assert_eq!(reopened(&path), three());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_crash_in_the_middle_of_a_record_costs_that_record_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plans");
        drop(PlanFile::make(&path, three()).unwrap());
        let whole = fs::read(&path).unwrap();
        let two =
            PlanFile::make(&dir.path().join("two"), three()[..2].to_vec()).unwrap().len() as usize;
        for end in two..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let (mut file, entries) = PlanFile::open(&path).unwrap();
            assert_eq!(entries, three()[..2]);
            file.append(&entry("again", None)).unwrap();
            assert_eq!(reopened(&path).last(), Some(&entry("again", None)), "cut at {end}");
        }
    }

    #[test]
    fn no_flipped_bit_makes_an_id_stand_for_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plans");
        drop(PlanFile::make(&path, three()).unwrap());
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, bytes).unwrap();
            let read = reopened(&path);
            assert!(
                read.iter().zip(three()).all(|(read, was)| *read == was),
                "byte {at}: {read:?}"
            );
        }
    }

    #[test]
    fn a_file_of_another_format_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plans");
        let mut bytes = header().to_vec();
        bytes[8] = 2;
        for foreign in [b"short".to_vec(), vec![0; 4096], bytes] {
            fs::write(&path, foreign).unwrap();
            let (mut file, entries) = PlanFile::open(&path).unwrap();
            assert_eq!(entries, []);
            file.append(&entry("a", None)).unwrap();
            assert_eq!(reopened(&path), [entry("a", None)]);
        }
    }
}
