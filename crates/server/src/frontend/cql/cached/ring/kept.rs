//! The file `ring` in the data directory: which shards this instance holds, under which epochs, and
//! until when their rows are weak.
//!
//! ```text
//! magic "agring03" | checksum u64 of what follows | boot id, 16 bytes
//! | ring u128 | count u32, each: shard u16, epoch u64, weak until u64
//! ```
//!
//! Numbers are little endian. It is written when a map is adopted, and not synced: after a restart
//! of the machine it says nothing. A file that is missing, damaged, or of another boot is a lost
//! state. Then nothing that was cached counts, and the ring's waits for a lost state apply. A file
//! that is older than what the process knew is safe: shards that it lacks count as taken anew. If
//! the next map is of another ring, the state is lost too: somebody has emptied the ring's table,
//! and epochs have begun anew.

use std::io;
use std::path::{Path, PathBuf};

use afterglow_engine::device::area::replace_file;
use afterglow_ring::{Durable, Kept, RingId, Time};
use twox_hash::XxHash3_64;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"agring03";
/// The file's name in the data directory.
const FILE: &str = "ring";
const ENTRY: usize = 18;
/// What cannot be written is not tried again before: the disk may be full for hours.
const RETRY: Time = 1_000_000;

/// The file, and what was last written to it.
pub struct KeptFile {
    path: PathBuf,
    boot: Uuid,
    written: Option<Kept>,
    /// When it was tried last, if that has failed.
    failed: Option<Time>,
}

impl KeptFile {
    /// Reads what the last process left. `boot` names this boot of the machine.
    pub fn open(data_dir: &Path, boot: Uuid) -> (KeptFile, Durable) {
        let path = data_dir.join(FILE);
        let kept = std::fs::read(&path).ok().and_then(|bytes| decode(&bytes, boot));
        let durable = kept.map_or_else(Durable::default, Durable::keep);
        (KeptFile { path, boot, written: None, failed: None }, durable)
    }

    /// Writes what has changed: `newer` says it of what was written last. Where writing fails it is
    /// tried again a second later, and the first error is given back. The file is as it was then,
    /// which is safe.
    pub fn keep(
        &mut self,
        newer: impl FnOnce(Option<&Kept>) -> Option<Kept>,
        now: Time,
    ) -> Option<io::Error> {
        if self.failed.is_some_and(|failed| now < failed + RETRY) {
            return None;
        }
        let error = newer(self.written.as_ref()).and_then(|kept| self.write(kept).err());
        let before = std::mem::replace(&mut self.failed, error.as_ref().map(|_| now));
        error.filter(|_| before.is_none())
    }

    fn write(&mut self, kept: Kept) -> io::Result<()> {
        replace_file(&self.path, &encode(&kept, self.boot), false)?;
        self.written = Some(kept);
        Ok(())
    }
}

fn encode(kept: &Kept, boot: Uuid) -> Vec<u8> {
    let mut body = boot.as_bytes().to_vec();
    body.extend(kept.ring.0.to_le_bytes());
    body.extend((kept.shards.len() as u32).to_le_bytes());
    for (shard, epoch, weak) in &kept.shards {
        body.extend(shard.to_le_bytes());
        body.extend(epoch.to_le_bytes());
        body.extend(weak.to_le_bytes());
    }
    let checksum = XxHash3_64::oneshot(&body);
    [&MAGIC[..], &checksum.to_le_bytes(), &body].concat()
}

fn decode(bytes: &[u8], boot: Uuid) -> Option<Kept> {
    let (checksum, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*checksum) != XxHash3_64::oneshot(body) {
        return None;
    }
    let (of, rest) = body.split_first_chunk::<16>()?;
    let (ring, rest) = rest.split_first_chunk::<16>()?;
    let (count, entries) = rest.split_first_chunk::<4>()?;
    let whole = entries.len() == u32::from_le_bytes(*count) as usize * ENTRY;
    (whole && of == boot.as_bytes()).then(|| Kept {
        ring: RingId(u128::from_le_bytes(*ring)),
        shards: entries.chunks_exact(ENTRY).map(entry).collect(),
    })
}

fn entry(bytes: &[u8]) -> (u16, u64, u64) {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (u16::from_le_bytes([bytes[0], bytes[1]]), number(2), number(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The disk is full, for hours perhaps.
    #[test]
    fn a_file_that_cannot_be_written_is_told_of_once_and_not_tried_all_the_time() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("data");
        let (mut file, _) = KeptFile::open(&folder, Uuid::from_u128(7));
        let kept = Kept { ring: RingId(5), shards: vec![(1, 2, 3)] };
        let mut keep = |now| file.keep(|_| Some(kept.clone()), now);
        assert!(keep(0).is_some(), "there is no folder");
        for now in (0..60_000_000).step_by(50_000) {
            assert!(keep(now).is_none(), "at {now}");
        }
        std::fs::create_dir(&folder).unwrap();
        assert!(keep(60_000_000).is_none() && folder.join(FILE).exists());
        std::fs::remove_dir_all(&folder).unwrap();
        let mut keep = |epoch| {
            let shards = vec![(1, epoch, 0)];
            file.keep(|_| Some(Kept { ring: RingId(5), shards }), 61_000_000)
        };
        assert!(keep(3).is_some(), "it is told of again");
        std::fs::create_dir(&folder).unwrap();
        assert!(keep(4).is_none() && !folder.join(FILE).exists(), "not at once");
    }

    #[test]
    fn what_was_kept_reads_back_and_nothing_else_does() {
        let shards = vec![(0, 1, 0), (4_095, 1 << 40, u64::MAX)];
        let kept = Kept { ring: RingId(1 << 90 | 5), shards };
        let boot = Uuid::from_u128(7);
        let bytes = encode(&kept, boot);
        assert_eq!(decode(&bytes, boot), Some(kept));
        assert_eq!(decode(&bytes, Uuid::from_u128(8)), None);
        (0..bytes.len()).for_each(|end| assert_eq!(decode(&bytes[..end], boot), None));
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes, boot), None, "byte {at}");
        }
    }
}
