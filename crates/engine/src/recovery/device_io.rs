//! Blocking single reads and writes, for opening.

#[cfg(doc)]
use crate::device::is_no_answer;
use crate::device::{
    DeviceError, DeviceId, DeviceSet, Disk, Io, PATIENCE, is_of_process, no_answer,
};
use crate::error::OpenError;
use crate::format::FORMAT_VERSION;
use crate::format::superblock::{Found, RESERVED, Superblock};
use std::io;

pub(super) fn read_superblock(set: &dyn DeviceSet, device: u16) -> Result<Found, OpenError> {
    let path = set.infos()[usize::from(device)].path.clone();
    let doing = "read the superblock of";
    let read = set.read_at(DeviceId(device), 0, RESERVED as u32);
    let bytes = asked(set, DeviceId(device), doing, read)?
        .map_err(OpenError::io(format!("reading the superblock of {}", path.display())))?;
    match Superblock::decode(&bytes) {
        Found::Foreign => Err(OpenError::Foreign { path }),
        Found::OtherFormat(found) => {
            Err(OpenError::OtherFormat { path, found, supported: FORMAT_VERSION })
        }
        found => Ok(found),
    }
}

/// What a device that was asked for something has said. What the process is short of is no answer
/// of the device: the opening is refused, and may go otherwise when it is tried again.
pub(super) fn asked<T>(
    set: &dyn DeviceSet,
    device: DeviceId,
    doing: &'static str,
    said: io::Result<T>,
) -> Result<io::Result<T>, OpenError> {
    match said {
        Err(error) if is_of_process(&error) => {
            let path = &set.infos()[usize::from(device.0)].path;
            Err(DeviceError::from_process(doing, path, error).into())
        }
        said => Ok(said),
    }
}

/// One I/O, waited for. A device that does not answer in time is an error ([`is_no_answer`]), and
/// is to be asked for nothing more. What it was asked for may still happen.
///
/// Such an I/O comes back when nobody waits for it, perhaps once the cache is open. So its id is
/// that of no other: there is one for each device, and none of these is used by the background
/// work, which counts from 0.
pub(super) fn run(disk: &mut dyn Disk, io: Io) -> io::Result<()> {
    let id = u64::MAX - u64::from(io.device.0);
    disk.submit(Io { id, ..io });
    loop {
        let mut done = Vec::new();
        disk.wait_for(PATIENCE, &mut done);
        if done.is_empty() {
            return Err(no_answer());
        }
        if let Some(done) = done.into_iter().find(|done| done.id == id) {
            return done.result.map(|_| ());
        }
    }
}
