//! Writes superblocks, and can take that back.
//!
//! No lock tells that two paths are one device: a file and a loop device over it, or two names that
//! multipath gives one disk. But what is written to the one is then read from the other. So who has
//! written a superblock reads those of all others again.

use super::device_io::run;
use crate::device::{AlignedBuf, DeviceId, DeviceInfo, DeviceSet, Disk, Io, IoKind};
use crate::error::OpenError;
use crate::format::superblock::{RESERVED, Superblock};
use std::io;

/// Superblocks that were written, with what was there before.
#[derive(Default)]
pub(super) struct Overwritten {
    before: Vec<(DeviceId, AlignedBuf)>,
}

impl Overwritten {
    /// Writes a superblock, and flushes it.
    pub(super) fn write(
        &mut self,
        set: &dyn DeviceSet,
        disk: &mut dyn Disk,
        device: DeviceId,
        block: &Superblock,
    ) -> io::Result<()> {
        self.before.push((device, set.read_at(device, 0, RESERVED as u32)?));
        write(disk, device, &block.encode())
    }

    /// Has all be as it was before: the first that was written last, for it may be on the same
    /// device as a later one.
    pub(super) fn undo(self, infos: &[DeviceInfo], disk: &mut dyn Disk) {
        for (device, bytes) in self.before.into_iter().rev() {
            if let Err(error) = write(disk, device, &bytes) {
                let path = infos[usize::from(device.0)].path.display();
                tracing::error!(
                    %path, %error,
                    "what the device began with cannot be written back: it may have to be emptied before it can be used again"
                );
            }
        }
    }
}

/// Writes what a device begins with, and flushes it.
pub(super) fn write(disk: &mut dyn Disk, device: DeviceId, bytes: &[u8]) -> io::Result<()> {
    let data = AlignedBuf::copy_of(bytes).into();
    run(disk, Io { id: 0, device, offset: 0, kind: IoKind::Write { data } })?;
    run(disk, Io { id: 0, device, offset: 0, kind: IoKind::Sync })
}

/// Says that two of the devices are one.
pub(super) fn same_device(infos: &[DeviceInfo], one: DeviceId, other: DeviceId) -> OpenError {
    let path = |device: DeviceId| infos[usize::from(device.0)].path.clone();
    OpenError::SameDevice { path: path(one), other: path(other) }
}
