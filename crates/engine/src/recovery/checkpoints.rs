//! Which of the checkpoints to go on from.

use std::cmp::Reverse;
use std::io;

use super::device_io::asked;
use crate::checkpoint_areas::{AreaAt, Home};
use crate::device::{DeviceId, DeviceSet, is_no_answer, is_of_process};
use crate::error::OpenError;
use crate::format::checkpoint::{Header, Tables};
use crate::format::{BLOCK, round_up};

/// What a device is asked for here.
const DOING: &str = "read a checkpoint from";

/// A whole checkpoint, and where it is.
#[derive(Debug)]
pub(super) struct FoundCheckpoint {
    pub(super) header: Header,
    pub(super) tables: Tables,
    /// Its area, the same in each home.
    pub(super) which: u32,
    /// Homes that have it, by their places in the list.
    pub(super) homes: Vec<usize>,
}

/// What the areas of all homes hold.
pub(super) struct FoundCheckpoints {
    /// The newest whole one.
    pub(super) newest: Option<FoundCheckpoint>,
    /// The highest sequence of a header, whether or not all of its checkpoint is whole.
    pub(super) highest: u64,
    /// Areas that may hold a newer one, which cannot be read now.
    pub(super) unread: Vec<UnreadArea>,
}

/// An area whose checkpoint cannot be read now.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnreadArea {
    pub(super) device: DeviceId,
    /// Where it begins.
    pub(super) offset: u64,
    /// Its device does not answer.
    pub(super) hangs: bool,
}

/// Looks at both areas of each home.
///
/// # Errors
/// The process is short of what a read takes: an area that is not read would be erased.
pub(super) fn find_checkpoints(
    set: &dyn DeviceSet,
    uuid: &[u8; 16],
    homes: &[Home],
) -> Result<FoundCheckpoints, OpenError> {
    let mut headers: Vec<(Header, AreaAt)> = Vec::new();
    let mut unread = Vec::new();
    for (n, home) in homes.iter().enumerate() {
        for which in [0, 1] {
            let offset = home.offsets[which as usize];
            let read = set.read_at(home.device, offset, BLOCK);
            let read = asked(set, home.device, DOING, read)?;
            let hangs = read.as_ref().is_err_and(is_no_answer);
            let bytes = read.ok();
            let header = bytes.as_ref().and_then(|bytes| Header::decode(bytes, uuid, home.len));
            // From before its device was away: nobody goes on from it, now or later.
            if header.is_some_and(|header| header.sequence < home.epoch) {
                continue;
            }
            if let Some(header) = header {
                headers.push((header, AreaAt { home: n, which }));
            } else if bytes.is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)) {
                unread.push(UnreadArea { device: home.device, offset, hangs });
            }
        }
    }
    headers.sort_by_key(|(header, at)| (Reverse(header.sequence), at.home));
    let highest = headers.first().map_or(0, |(header, _)| header.sequence);
    let mut newest: Option<FoundCheckpoint> = None;
    for (header, AreaAt { home, which }) in headers {
        if let Some(newest) = &mut newest {
            // Copies of one checkpoint are alike: the tables of the first stand for all.
            if newest.header == header && newest.which == which {
                newest.homes.push(home);
            }
            continue;
        }
        let read = read_tables(set, uuid, &homes[home], which, &header);
        match asked(set, homes[home].device, DOING, read)? {
            Ok(Some(tables)) => {
                newest = Some(FoundCheckpoint { header, tables, which, homes: vec![home] });
            }
            unreadable => {
                let Home { device, offsets, .. } = homes[home];
                let (offset, hangs) = (offsets[which as usize], unreadable.is_err());
                unread.push(UnreadArea { device, offset, hangs });
            }
        }
    }
    Ok(FoundCheckpoints { newest, highest, unread })
}

/// Its tables, if they are whole. An error where their device does not answer, or the process is
/// short of what a read takes.
fn read_tables(
    set: &dyn DeviceSet,
    uuid: &[u8; 16],
    home: &Home,
    which: u32,
    header: &Header,
) -> io::Result<Option<Tables>> {
    let len = round_up(header.tables_len, BLOCK.into()) as u32;
    let area = home.offsets[which as usize];
    let bytes = match set.read_at(home.device, area + header.tables_at(), len) {
        Ok(bytes) => bytes,
        Err(error) if is_no_answer(&error) || is_of_process(&error) => return Err(error),
        Err(_) => return Ok(None),
    };
    let bytes = &bytes[..header.tables_len as usize];
    if Tables::sum(bytes, uuid, header.sequence) != header.tables_checksum {
        return Ok(None);
    }
    Ok(Tables::decode(bytes, header.segments))
}
