//! Admission policies of others, and CacheLib's regions.

use std::collections::{BTreeMap, VecDeque};

use afterglow_loadgen::rng::Rng;

use super::{
    policy::Room,
    tiers::{Admission, Flash},
};

/// TinyLFU (Einziger, Friedman and Manes, ACM ToS 2017): written if it was asked for more often
/// lately than all that would leave for it together. The sum is the aggregated-victims rule for
/// objects of unequal size (Einziger et al., "Lightweight Robust Size Aware Cache Management", ACM
/// ToS 2022). Counts are exact, at most 15, and halved after ten times as many requests as flash
/// holds objects.
pub struct TinyLfu {
    counts: Vec<u8>,
    counted: usize,
    sample: usize,
}

impl TinyLfu {
    /// Nothing counted yet.
    pub fn new(room: &Room) -> Self {
        Self { counts: vec![0; room.unique], counted: 0, sample: 10 * room.objects.max(1) }
    }
}

impl Admission for TinyLfu {
    fn seen(&mut self, key: u32) {
        let count = &mut self.counts[key as usize];
        if *count == 15 {
            return;
        }
        *count += 1;
        self.counted += 1;
        if self.counted >= self.sample {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.counted /= 2;
        }
    }

    fn admits(&mut self, key: u32, _: bool, victims: impl Iterator<Item = u32>) -> bool {
        let mut victims = victims.peekable();
        let worth = u32::from(self.counts[key as usize]);
        let loss = |key| u32::from(self.counts[key as usize]);
        victims.peek().is_none() || worth > victims.map(loss).sum()
    }
}

/// CacheLib's `RejectFirstAP`: written if it was hit in DRAM, or has left DRAM before as one of the
/// last so many. These are as many as flash holds objects.
pub struct RejectFirst {
    /// How often each object is among the last.
    known: Vec<u32>,
    last: VecDeque<u32>,
    most: usize,
}

impl RejectFirst {
    /// Nothing seen yet.
    pub fn new(room: &Room) -> Self {
        Self { known: vec![0; room.unique], last: VecDeque::new(), most: room.objects.max(1) }
    }
}

impl Admission for RejectFirst {
    fn admits(&mut self, key: u32, hit: bool, _: impl Iterator<Item = u32>) -> bool {
        let seen = self.known[key as usize] > 0;
        self.known[key as usize] += 1;
        self.last.push_back(key);
        if self.last.len() > self.most
            && let Some(forgotten) = self.last.pop_front()
        {
            self.known[forgotten as usize] -= 1;
        }
        seen || hit
    }
}

/// CacheLib's random admission: written with a probability.
pub struct Random {
    rng: Rng,
    probability: f64,
}

impl Random {
    /// With this probability.
    pub fn new(probability: f64) -> Self {
        Self { rng: Rng::new(1), probability }
    }
}

impl Admission for Random {
    fn admits(&mut self, _: u32, _: bool, _: impl Iterator<Item = u32>) -> bool {
        self.rng.next_f64() < self.probability
    }
}

/// Flash in regions of equal size. The one whose objects were used least recently leaves as a
/// whole, which is the default of CacheLib's BlockCache (Berg et al., OSDI 2020, and its
/// documentation).
pub struct Regions {
    /// Region of each object, counted from 1; 0 for none.
    of: Vec<u32>,
    /// When each region was used last, by its number.
    used: BTreeMap<u32, u64>,
    /// The least recently used first.
    order: BTreeMap<u64, Region>,
    /// The region that is written.
    open: Region,
    number: u32,
    now: u64,
    /// Bytes of a region, and how many there are beside the open one.
    size: u64,
    most: usize,
}

#[derive(Default)]
struct Region {
    objects: Vec<u32>,
    bytes: u64,
}

impl Regions {
    /// So many regions in all.
    pub fn new(room: &Room, regions: usize) -> Self {
        Self {
            of: vec![0; room.unique],
            used: BTreeMap::new(),
            order: BTreeMap::new(),
            open: Region::default(),
            number: 1,
            now: 0,
            size: room.flash / regions as u64,
            most: regions - 1,
        }
    }

    /// The open region is full.
    fn seal(&mut self) {
        self.now += 1;
        self.used.insert(self.number, self.now);
        self.order.insert(self.now, std::mem::take(&mut self.open));
        self.number += 1;
        while self.order.len() > self.most {
            let Some((_, gone)) = self.order.pop_first() else { return };
            let number = gone.objects.first().map_or(0, |&key| self.of[key as usize]);
            self.used.remove(&number);
            gone.objects.iter().for_each(|&key| self.of[key as usize] = 0);
        }
    }
}

impl Flash for Regions {
    fn contains(&self, key: u32) -> bool {
        self.of[key as usize] > 0
    }

    fn used(&mut self, key: u32) {
        let Some(used) = self.used.get_mut(&self.of[key as usize]) else { return };
        let Some(region) = self.order.remove(used) else { return };
        self.now += 1;
        *used = self.now;
        self.order.insert(self.now, region);
    }

    fn write(&mut self, key: u32, cost: u32) {
        if self.open.bytes + u64::from(cost) > self.size {
            self.seal();
        }
        self.open.bytes += u64::from(cost);
        self.open.objects.push(key);
        self.of[key as usize] = self.number;
    }

    fn victims(&self, _: u32) -> impl Iterator<Item = u32> {
        std::iter::empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::{
        policy::testing::{places, room},
        tiers::{Fifo, Tiers},
    };

    #[test]
    fn tiny_lfu_keeps_what_is_asked_for_as_often_as_what_comes() {
        let room = room(1, 1);
        let tiers = || Tiers::new(&room, Fifo::new(&room), TinyLfu::new(&room));
        // 1 is written while flash has room. 2 was asked for as often, and is not; asked for again
        // it is.
        assert_eq!(places(tiers(), &[1, 2, 3, 1]), ("---f".into(), 1));
        assert_eq!(places(tiers(), &[1, 2, 2, 3, 2]), ("--d-f".into(), 2));
    }

    #[test]
    fn tiny_lfu_forgets() {
        let room = room(1, 1);
        let mut policy = TinyLfu::new(&room);
        (0..9).for_each(|_| policy.seen(1));
        assert_eq!(policy.counts[1], 9);
        policy.seen(2);
        assert_eq!((policy.counts[1], policy.counts[2]), (4, 0));
    }

    #[test]
    fn tiny_lfu_weighs_all_that_leave() {
        let mut policy = TinyLfu::new(&room(1, 10));
        [1, 1, 2, 3, 3, 3].iter().for_each(|&key| policy.seen(key));
        assert!(policy.admits(1, false, [2].into_iter()));
        assert!(!policy.admits(3, false, [1, 2].into_iter()));
        assert!(policy.admits(9, false, [].into_iter()), "nothing leaves for it");
    }

    #[test]
    fn reject_first_writes_what_leaves_twice_or_was_hit() {
        let room = room(1, 2);
        let tiers = || Tiers::new(&room, Fifo::new(&room), RejectFirst::new(&room));
        // 1 leaves for 2, comes back, leaves for 3, and is there.
        assert_eq!(places(tiers(), &[1, 2, 1, 3, 1]), ("----f".into(), 1));
        assert_eq!(places(tiers(), &[1, 1, 2, 1]), ("-d-f".into(), 1));
        // Three others have left since.
        assert_eq!(places(tiers(), &[1, 2, 3, 4, 1, 5, 1]), ("-------".into(), 0));
    }

    #[test]
    fn random_writes_its_share() {
        let mut half = Random::new(0.5);
        let taken = (0..10_000).filter(|_| half.admits(1, false, [].into_iter())).count();
        assert!((4_800..5_200).contains(&taken), "{taken}");
        assert!(!Random::new(0.0).admits(1, true, [].into_iter()));
    }

    #[test]
    fn the_region_used_least_recently_leaves_as_a_whole() {
        let mut flash = Regions::new(&room(1, 6), 3);
        (1..=5).for_each(|key| flash.write(key, 1));
        // 1 and 2 are one region, 3 and 4 another, 5 is in the open one.
        flash.used(1);
        (6..=7).for_each(|key| flash.write(key, 1));
        let there: Vec<_> = (1..=7).filter(|&key| flash.contains(key)).collect();
        assert_eq!(there, [1, 2, 5, 6, 7]);
        flash.used(7);
        assert_eq!(flash.order.len(), flash.used.len());
    }
}
