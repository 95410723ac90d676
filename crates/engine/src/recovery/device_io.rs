//! Blocking single reads and writes, for opening.

use crate::device::{DeviceId, DeviceSet, Disk, Io};
use crate::error::OpenError;
use crate::format::FORMAT_VERSION;
use crate::format::superblock::{Found, RESERVED, Superblock};
use std::io;

pub(super) fn read_superblock(set: &dyn DeviceSet, device: u16) -> Result<Found, OpenError> {
    let path = set.infos()[usize::from(device)].path.clone();
    let bytes = set
        .read_at(DeviceId(device), 0, RESERVED as u32)
        .map_err(OpenError::io(format!("reading the superblock of {}", path.display())))?;
    match Superblock::decode(&bytes) {
        Found::Foreign => Err(OpenError::Foreign { path }),
        Found::OtherFormat(found) => {
            Err(OpenError::OtherFormat { path, found, supported: FORMAT_VERSION })
        }
        found => Ok(found),
    }
}

/// One I/O, waited for.
pub(super) fn run(disk: &mut dyn Disk, io: Io) -> io::Result<()> {
    disk.submit(io);
    let mut done = Vec::new();
    while done.is_empty() {
        disk.wait(1, &mut done);
    }
    done.remove(0).result.map(|_| ())
}
