//! Kinds of runs for which the set-up matters as much as the steps: drawn with numbers of their
//! own, so that other seeds make the same runs as before.
//!
//! *Small areas*: the areas of checkpoints are made for eight lines of index, and a block has two.
//! So an index of some hundred objects has many blocks. Most of them lie in segments.
//!
//! *Older devices*: a snapshot of a device is brought back after keys have changed, with the device
//! in use meanwhile or without it.
//!
//! *Mute over a crash*: a device does not answer when a life ends, nor when the next one begins. It
//! is back later.
//!
//! *Other places*: devices are each in the place of the other, an empty one of another size is in
//! the place of one, and a snapshot is beside what it was taken of.

use super::maker::{Maker, choose};
use super::plan::{Expiry, Key, Plan, Setup, Size, What};
use crate::device::sim::SimRandom;

/// Lines in a block there.
const FEW_LINES: u64 = 2;
/// Lines of all shards there, before the index grows.
const LEAST_LINES: u32 = 4;

impl Setup {
    /// Small areas, and many small objects.
    pub(super) fn have_small_areas(&mut self, r: &mut SimRandom) {
        self.block_lines = Some(FEW_LINES);
        self.segment_kib = choose(r, &[16, 16, 32]);
        let devices = choose(r, &[1, 1, 2]);
        let total = 20 + r.below(20) as u32;
        self.segments = vec![total / devices; devices as usize];
        self.keys = 100 + r.below(150) as u32;
        let dram = choose(r, &[8, 30, 60]) << 10;
        self.size = Size { dram, ..Size::random(r) }.within_small_areas();
        self.admits_unproven = true;
    }
}

impl Size {
    /// So few lines that the index grows.
    fn within_small_areas(self) -> Self {
        Self { lines: self.lines.min(LEAST_LINES / self.shards).max(1), ..self }
    }
}

impl Plan {
    /// Keeps every size to what small areas are made for.
    pub(super) fn keep_to_small_areas(&mut self) {
        for step in &mut self.steps {
            if let What::Resize { size } = &mut step.what {
                *size = size.within_small_areas();
            }
        }
    }
}

impl Maker<'_> {
    /// A device comes back as it was before keys have changed, in one life or in several.
    pub(super) fn older_device(&mut self, r: &mut SimRandom) {
        let devices = self.setup.segments.len() as u64;
        let device = r.below(devices) as u8;
        let keys: Vec<Key> = (0..8 + r.below(12)).map(|_| self.key(r)).collect();
        for &key in &keys {
            self.put_up_to(key, 1000, r);
        }
        self.then(What::Idle { turns: 30 + r.below(90) as u32 }, r);
        if r.chance(0.6) {
            self.checkpoint(r);
        }
        self.then(What::CopyDevice { device }, r);
        if r.chance(0.4) {
            self.end_somehow(r);
        }
        let is_out = devices > 1 && r.chance(0.5);
        if is_out {
            self.then(What::Away { device, away: true }, r);
        }
        for _ in 0..1 + r.below(3) {
            self.change_some(&keys, r);
            if r.chance(0.7) {
                self.end_somehow(r);
            }
        }
        if is_out {
            self.then(What::Away { device, away: false }, r);
        }
        self.then(What::OlderDevice { device }, r);
        self.end_somehow(r);
        self.read_all(&keys, r);
        let count = r.below(40);
        self.press(r, count);
        if r.chance(0.6) {
            self.end_somehow(r);
        }
        self.read_all(&keys, r);
        self.read_all_hot(r);
    }

    /// A device stops answering, or fails, over the end of a life, and is back after it.
    pub(super) fn mute_over_crash(&mut self, r: &mut SimRandom) {
        let devices = self.setup.segments.len() as u64;
        let device = r.below(devices) as u8;
        let keys: Vec<Key> = (0..8 + r.below(12)).map(|_| self.key(r)).collect();
        self.change_some(&keys, r);
        let what = match r.below(4) {
            0 => What::Away { device, away: true },
            _ => What::MuteOver { device, crashes: 1 + r.below(3) as u32 },
        };
        self.then(what, r);
        for _ in 0..r.below(3) {
            self.change_some(&keys, r);
        }
        for _ in 0..1 + r.below(2) {
            let machine = r.chance(0.3);
            self.crash(r, machine);
            self.change_some(&keys, r);
        }
        self.then(What::Mute { device, mute: false }, r);
        self.then(What::Away { device, away: false }, r);
        self.change_some(&keys, r);
        for _ in 0..2 {
            self.end_somehow(r);
            self.read_all(&keys, r);
        }
        self.read_all_hot(r);
    }

    /// Devices are found in other places than before, or are others.
    pub(super) fn other_places(&mut self, r: &mut SimRandom) {
        let devices = self.setup.segments.len() as u64;
        let keys: Vec<Key> = (0..8 + r.below(12)).map(|_| self.key(r)).collect();
        for _ in 0..2 + r.below(3) {
            self.change_some(&keys, r);
            let device = r.below(devices) as u8;
            if r.chance(0.3) {
                self.then(What::CopyDevice { device }, r);
            }
            let other = r.below(devices) as u8;
            if r.chance(0.8) {
                self.then(What::SwapDevices { one: device, other }, r);
            }
            match r.below(8) {
                0 => self.new_device(device, r),
                1 => self.then(What::OlderDevice { device }, r),
                _ => {}
            }
            self.end_somehow(r);
            self.read_all(&keys, r);
        }
        self.change_some(&keys, r);
        self.end_somehow(r);
        self.read_all(&keys, r);
        self.read_all_hot(r);
    }

    /// An empty device is in the place of one: larger, or smaller where a cache can do with what is
    /// left. Small areas are made for so many segments.
    fn new_device(&mut self, device: u8, r: &mut SimRandom) {
        let all: u32 = self.setup.segments.iter().sum();
        let least = if all >= 16 { -2 } else { 0 };
        if self.setup.block_lines.is_none() {
            let more = least + r.below(7) as i32;
            self.then(What::NewDevice { device, more }, r);
        }
    }

    /// Keys change, and what covers that may come: copies, a checkpoint, the journal's next lap.
    fn change_some(&mut self, keys: &[Key], r: &mut SimRandom) {
        for &key in keys {
            match r.below(4) {
                0 | 1 => self.put_up_to(key, 1000, r),
                2 => self.then(What::Remove { key }, r),
                _ => {}
            }
        }
        self.then(What::Idle { turns: r.below(90) as u32 }, r);
        if r.chance(0.5) {
            self.checkpoint(r);
        }
        if r.chance(0.3) {
            let ns = r.below(self.setup.namespaces.len() as u64) as u8;
            self.then(What::Lap { ns, over: r.below(20) as u8 }, r);
            self.checkpoint(r);
        }
        let count = r.below(30);
        self.press(r, count);
    }

    /// So many small objects that the index grows, and its checkpoints need segments.
    pub(super) fn grow_index(&mut self, r: &mut SimRandom) {
        let spaces = self.setup.namespaces.len() as u64;
        for n in 0..self.setup.keys {
            let (key, len) = (Key { ns: r.below(spaces) as u8, n }, r.below(500) as u32);
            let what = What::Put { key, len, expiry: Expiry::Never, group: 0, slot: 0 };
            self.then(what, r);
            if n % 8 == 0 {
                self.then(What::Idle { turns: 1 + r.below(4) as u32 }, r);
            }
        }
        self.then(What::Idle { turns: 40 + r.below(80) as u32 }, r);
        self.checkpoint(r);
    }
}
