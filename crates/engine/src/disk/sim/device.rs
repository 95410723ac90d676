//! The bytes of a simulated device, and what of them would survive power loss.

use std::collections::BTreeMap;

use super::{SIM_ALIGNMENT, SimRandom};
use crate::disk::WriteBuf;

/// Unit in which writes tear.
pub(super) const SECTOR: usize = SIM_ALIGNMENT as usize;

/// An acknowledged write that a sync has not covered yet.
struct Unsynced {
    offset: u64,
    data: Vec<u8>,
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
    /// Durable content of every sector that unsynced writes have touched.
    durable: BTreeMap<usize, [u8; SECTOR]>,
    /// Acknowledged since the last completed sync, in order.
    log: Vec<Unsynced>,
    /// Writes ever logged; the log holds the last ones.
    logged: u64,
}

impl Device {
    pub(super) fn new(size: u64) -> Self {
        Self { bytes: vec![0; size as usize], durable: BTreeMap::new(), log: Vec::new(), logged: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
    }

    /// Stores each sector of `data` or leaves it, at random.
    pub(super) fn write_torn(&mut self, offset: u64, data: &[u8], random: &mut SimRandom) {
        for (n, sector) in data.chunks_exact(SECTOR).enumerate() {
            if random.chance(0.5) {
                self.write(offset + (n * SECTOR) as u64, sector);
            }
        }
    }

    /// Stores whole sectors, which stay at risk until a sync.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let first = offset as usize / SECTOR;
        for sector in first..first + data.len() / SECTOR {
            let now = &self.bytes[sector * SECTOR..][..SECTOR];
            self.durable.entry(sector).or_insert_with(|| now.try_into().expect("a whole sector"));
        }
        self.bytes[offset as usize..][..data.len()].copy_from_slice(data);
        self.log.push(Unsynced { offset, data: data.to_vec() });
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
            let first = write.offset as usize / SECTOR;
            for (n, content) in write.data.chunks_exact(SECTOR).enumerate() {
                self.durable.insert(first + n, content.try_into().expect("a whole sector"));
            }
        }
        let mut at_risk = std::mem::take(&mut self.durable);
        for write in &self.log {
            let first = write.offset as usize / SECTOR;
            for sector in first..first + write.data.len() / SECTOR {
                if let Some(content) = at_risk.remove(&sector) {
                    self.durable.insert(sector, content);
                }
            }
        }
    }

    /// Decides on a write in flight at a crash.
    pub(super) fn survive_in_flight(&mut self, offset: u64, data: &WriteBuf, random: &mut SimRandom) {
        match fate(random) {
            Fate::Kept => self.write(offset, data),
            Fate::Lost => {}
            Fate::Torn => self.write_torn(offset, data, random),
        }
    }

    /// Power loss: unsynced writes are kept, lost or torn, in any order. What is left is durable.
    pub(super) fn lose_unsynced(&mut self, random: &mut SimRandom) {
        for (sector, content) in std::mem::take(&mut self.durable) {
            self.bytes[sector * SECTOR..][..SECTOR].copy_from_slice(&content);
        }
        let mut log = std::mem::take(&mut self.log);
        if random.chance(0.5) {
            random.shuffle(&mut log);
        }
        for write in log {
            let fate = fate(random);
            for (n, sector) in write.data.chunks_exact(SECTOR).enumerate() {
                let kept = match fate {
                    Fate::Kept => true,
                    Fate::Lost => false,
                    Fate::Torn => random.chance(0.5),
                };
                if kept {
                    self.bytes[write.offset as usize + n * SECTOR..][..SECTOR].copy_from_slice(sector);
                }
            }
        }
    }

    pub(super) fn flip(&mut self, byte: u64, bit: u8) {
        self.bytes[byte as usize] ^= 1 << (bit % 8);
    }
}

fn fate(random: &mut SimRandom) -> Fate {
    match random.below(3) {
        0 => Fate::Kept,
        1 => Fate::Lost,
        _ => Fate::Torn,
    }
}
