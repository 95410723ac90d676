//! The bytes of a simulated device, and what of them would survive power loss.

use super::random::SimRandom;
use crate::device::WriteBuf;

/// Alignment of simulated devices.
pub const SIM_ALIGNMENT: u32 = 512;
/// Unit in which writes tear.
pub(super) const SECTOR: usize = SIM_ALIGNMENT as usize;

/// An acknowledged write that a sync has not covered yet.
struct Unsynced {
    offset: usize,
    data: WriteBuf,
    /// The part of `data` that was stored.
    from: usize,
    to: usize,
}

impl Unsynced {
    fn bytes(&self) -> &[u8] {
        &self.data[self.from..self.to]
    }
}

/// What becomes of a write at a crash.
enum Fate {
    Kept,
    Lost,
    Torn,
}

pub(super) struct Device {
    /// What reads see.
    bytes: Vec<u8>,
    /// What would be left if every unsynced write were lost: differs from `bytes` only where the
    /// log has writes.
    durable: Vec<u8>,
    /// Acknowledged since the last completed sync, in order.
    log: Vec<Unsynced>,
    /// Writes ever logged; the log holds the last ones.
    logged: u64,
    /// It does not answer.
    pub(super) away: bool,
    /// What is in flight to it stays there.
    pub(super) mute: bool,
    /// Crashes over which that lasts.
    pub(super) mute_over: u32,
    /// Writes fail that touch these bytes.
    pub(super) bad: std::ops::Range<u64>,
}

impl Device {
    pub(super) fn new(size: u64) -> Self {
        let (bytes, durable) = (vec![0; size as usize], vec![0; size as usize]);
        Self {
            bytes,
            durable,
            log: Vec::new(),
            logged: 0,
            away: false,
            mute: false,
            mute_over: 0,
            bad: 0..0,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
    }

    /// Stores each sector of `data` or leaves it, at random.
    pub(super) fn write_torn(&mut self, offset: u64, data: &WriteBuf, random: &mut SimRandom) {
        for from in (0..data.len()).step_by(SECTOR) {
            if random.chance(0.5) {
                self.write_part(offset as usize + from, data, from, from + SECTOR);
            }
        }
    }

    /// Stores whole sectors, which stay at risk until a sync.
    pub(super) fn write(&mut self, offset: u64, data: &WriteBuf) {
        self.write_part(offset as usize, data, 0, data.len());
    }

    fn write_part(&mut self, offset: usize, data: &WriteBuf, from: usize, to: usize) {
        self.bytes[offset..][..to - from].copy_from_slice(&data[from..to]);
        self.log.push(Unsynced { offset, data: data.clone(), from, to });
        self.logged += 1;
    }

    /// Position in the sequence of writes, for [`Device::sync`].
    pub(super) fn position(&self) -> u64 {
        self.logged
    }

    /// Makes everything written before `position` durable.
    pub(super) fn sync(&mut self, position: u64) {
        let start = self.logged - self.log.len() as u64;
        let covered = position.saturating_sub(start) as usize;
        for write in self.log.drain(..covered) {
            self.durable[write.offset..][..write.to - write.from].copy_from_slice(write.bytes());
        }
    }

    /// Whether power loss cannot change a range any more.
    #[cfg(test)]
    pub(super) fn is_durable(&self, offset: u64, len: u64) -> bool {
        let (from, to) = (offset as usize, (offset + len) as usize);
        self.log.iter().all(|w| w.offset >= to || w.offset + (w.to - w.from) <= from)
    }

    /// Decides on a write in flight at a crash.
    pub(super) fn survive_in_flight(
        &mut self,
        offset: u64,
        data: &WriteBuf,
        random: &mut SimRandom,
    ) {
        match fate(random) {
            Fate::Kept => self.write(offset, data),
            Fate::Lost => {}
            Fate::Torn => self.write_torn(offset, data, random),
        }
    }

    /// Power loss: unsynced writes are kept, lost or torn, in any order. What is left is durable.
    pub(super) fn lose_unsynced(&mut self, random: &mut SimRandom) {
        let mut log = std::mem::take(&mut self.log);
        if random.chance(0.5) {
            random.shuffle(&mut log);
        }
        for write in &log {
            let fate = fate(random);
            for (n, sector) in write.bytes().chunks_exact(SECTOR).enumerate() {
                let kept = match fate {
                    Fate::Kept => true,
                    Fate::Lost => false,
                    Fate::Torn => random.chance(0.5),
                };
                if kept {
                    self.durable[write.offset + n * SECTOR..][..SECTOR].copy_from_slice(sector);
                }
            }
        }
        for write in &log {
            let range = write.offset..write.offset + (write.to - write.from);
            self.bytes[range.clone()].copy_from_slice(&self.durable[range]);
        }
    }

    /// A crash ends that it is mute, unless that is to last.
    pub(super) fn answer_after_crash(&mut self) {
        self.mute &= self.mute_over > 0;
        self.mute_over = self.mute_over.saturating_sub(1);
    }

    /// Everything is gone: a new, empty device in its place.
    #[cfg(test)]
    pub(super) fn wipe(&mut self) {
        *self = Self::new(self.len());
    }

    /// What is stored.
    #[cfg(test)]
    pub(super) fn image(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// What is stored is this again, for good.
    #[cfg(test)]
    pub(super) fn restore(&mut self, image: &[u8]) {
        (self.bytes, self.durable) = (image.to_vec(), image.to_vec());
        self.log.clear();
    }

    pub(super) fn flip(&mut self, byte: u64, bit: u8) {
        self.bytes[byte as usize] ^= 1 << (bit % 8);
        self.durable[byte as usize] ^= 1 << (bit % 8);
    }
}

fn fate(random: &mut SimRandom) -> Fate {
    match random.below(3) {
        0 => Fate::Kept,
        1 => Fate::Lost,
        _ => Fate::Torn,
    }
}
