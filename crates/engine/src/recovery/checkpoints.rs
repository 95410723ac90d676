//! Which of the two checkpoints to go on from, and what becomes of one that cannot be read.

use super::device_io::run;
use super::past::Past;
use crate::device::{AlignedBuf, DeviceId, DeviceSet, Disk, Io, IoKind};
use crate::format::checkpoint::{Header, Tables};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, round_up};

/// What the two areas hold.
pub(super) struct FoundCheckpoints {
    /// The newest whole one, with its area.
    pub(super) newest: Option<(Header, u32, Tables)>,
    /// Offsets of areas that may hold a newer one, which cannot be read now.
    pub(super) unread: Vec<u64>,
}

/// Looks at both areas of the first device.
pub(super) fn find_checkpoints(
    set: &dyn DeviceSet,
    uuid: &[u8; 16],
    block: &Superblock,
) -> FoundCheckpoints {
    let mut headers: Vec<(Header, u32)> = Vec::new();
    let mut unread = Vec::new();
    for which in [0, 1] {
        let bytes = set.read_at(DeviceId(0), block.area_at(which), BLOCK).ok();
        let header = bytes.as_ref().and_then(|bytes| Header::decode(bytes, uuid, block.area));
        if let Some(header) = header {
            headers.push((header, which));
        } else if bytes.is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            unread.push(block.area_at(which));
        }
    }
    headers.sort_by_key(|(header, _)| std::cmp::Reverse(header.sequence));
    let newest = headers.into_iter().find_map(|(header, which)| {
        let tables = read_tables(set, uuid, block.area_at(which), &header);
        if tables.is_none() {
            unread.push(block.area_at(which));
        }
        Some((header, which, tables?))
    });
    FoundCheckpoints { newest, unread }
}

fn read_tables(set: &dyn DeviceSet, uuid: &[u8; 16], area: u64, header: &Header) -> Option<Tables> {
    let len = round_up(header.tables_len, BLOCK.into()) as u32;
    let bytes = set.read_at(DeviceId(0), area + header.tables_at(), len).ok()?;
    let bytes = &bytes[..header.tables_len as usize];
    if Tables::sum(bytes, uuid, header.sequence) != header.tables_checksum {
        return None;
    }
    Tables::decode(bytes, header.segments)
}

/// Erases checkpoints that cannot be read, so that no later run goes on from one.
///
/// A power loss takes journal entries that were not flushed. So such a checkpoint may need the
/// journal only from a position that this run has not reached. Removals of this run would lie below
/// that position. A later run that can read the checkpoint again would pass over them. A journal
/// that is begun anew has positions of its own, so this cannot happen there.
///
/// Where erasing fails, the journal is begun anew: Mutable namespaces start cold.
pub(super) fn forget_unread(mut past: Past, disk: &mut dyn Disk) -> Past {
    if !past.journal_ok || past.unread.is_empty() {
        return past;
    }
    coverage_mark!(CheckpointErased);
    let erased = past.unread.iter().try_for_each(|&offset| {
        let data = AlignedBuf::zeroed(BLOCK as usize).into();
        run(disk, Io { id: 0, device: DeviceId(0), offset, kind: IoKind::Write { data } })
    });
    let sync = Io { id: 0, device: DeviceId(0), offset: 0, kind: IoKind::Sync };
    if let Err(error) = erased.and_then(|()| run(disk, sync)) {
        tracing::warn!(%error, "a checkpoint can be neither read nor erased: what it may cover starts cold");
        past.journal_ok = false;
    }
    past
}
