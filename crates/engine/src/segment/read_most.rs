//! Where what is read most goes while a device is relieved of it: segments of the device that takes
//! it, by [`Relief`](super::relief::Relief).

use super::state::SegmentTable;
use super::stream::{StreamId, Streams};
use crate::device::DeviceId;

impl SegmentTable {
    /// The same for what is read most: of the device that takes it, while others are relieved.
    pub fn take_free_for_read_most(&self) -> Option<u32> {
        let preferred = self.relief.to().filter(|&to| self.free.is_usable(to));
        preferred.and_then(|to| self.free.take_on(to)).or_else(|| self.free.take())
    }

    /// Takes the longest free one of a device.
    #[cfg(test)]
    pub fn take_free_on(&self, device: DeviceId) -> Option<u32> {
        self.free.take_on(device)
    }

    /// A lookup is about to read a device.
    pub fn read_begins(&self, device: DeviceId) {
        self.relief.read_begins(device);
    }

    /// It has read, or will not.
    pub fn read_ends(&self, device: DeviceId) {
        self.relief.read_ends(device);
    }

    /// Reads of lookups in flight to a device; 0 where there is one device only.
    pub fn reads(&self, device: DeviceId) -> u32 {
        self.relief.reads(device)
    }

    /// From now on what is read most moves from some devices to another.
    pub fn begin_relief(&self, from: impl Fn(DeviceId) -> bool, to: DeviceId) {
        self.relief.begin(from, to);
    }

    /// Nothing moves any more.
    pub fn end_relief(&self) {
        self.relief.end();
    }

    /// So many bytes more may move, up to `most` at once.
    pub fn grant_relief(&self, bytes: u64, most: u64) {
        self.relief.grant(bytes, most);
    }

    /// The device that takes what is read most, if one does.
    pub fn relief_to(&self) -> Option<DeviceId> {
        self.relief.to()
    }

    /// The device that what is read most of a segment moves to, if it moves.
    pub fn relief_of(&self, segment: u32) -> Option<DeviceId> {
        self.relief.to().filter(|_| self.relief.is_from(self.place(segment).device))
    }

    /// Whether a device takes new segments, and has a free one.
    pub fn takes_objects(&self, device: DeviceId) -> bool {
        self.free.takes(device)
    }

    /// From now on only what was read so often before moves. Of the bytes that may move, so many
    /// are kept for what was read before.
    pub fn prefer_in_relief(&self, least: u8, kept: u64) {
        self.relief.prefer(least, kept);
    }

    /// Takes so many of the bytes that may move now, for what was read so often before. False where
    /// there are not so many for it.
    pub fn take_relief(&self, bytes: u64, reads: u8) -> bool {
        self.relief.take(bytes, reads)
    }

    /// Whether so manieth part of a device is free.
    pub fn is_free_on(&self, device: DeviceId, part: u32) -> bool {
        self.free.is_free(device, part)
    }
}

impl Streams {
    /// Seals the segment of what is read most where it does not lie on this device: from now on it
    /// goes there.
    pub fn seal_read_most_elsewhere(&self, device: DeviceId) {
        let mut open = self.open[StreamId::Reinserted as usize].lock();
        if open.as_ref().is_some_and(|o| self.table.place(o.id).device != device) {
            self.seal(&mut open);
        }
    }
}
