//! Two tiers as caches have them: LRU in DRAM, and flash that takes what leaves DRAM if the
//! admission policy says so.
//!
//! What is found on flash is copied to DRAM and stays on flash; leaving DRAM it is not written
//! again. These are models: no region is half full, and nothing takes time.

use super::{
    policy::{Cost, Place, Policy, Room},
    queue::Queue,
};

/// What is on flash, and what leaves it.
pub trait Flash {
    /// Whether an object is there.
    fn contains(&self, key: u32) -> bool;

    /// An object that is there was asked for.
    fn used(&mut self, _key: u32) {}

    /// Writes an object that is not there; others leave for it.
    fn write(&mut self, key: u32, cost: u32);

    /// What would leave for so many bytes.
    fn victims(&self, cost: u32) -> impl Iterator<Item = u32>;
}

/// First in, first out.
pub struct Fifo {
    queue: Queue,
    room: u64,
}

impl Fifo {
    /// An empty one.
    pub fn new(room: &Room) -> Self {
        Self { queue: Queue::new(room.unique), room: room.flash }
    }
}

impl Flash for Fifo {
    fn contains(&self, key: u32) -> bool {
        self.queue.contains(key)
    }

    fn write(&mut self, key: u32, cost: u32) {
        self.queue.push(key, cost);
        while self.queue.bytes() > self.room && self.queue.pop().is_some() {}
    }

    fn victims(&self, cost: u32) -> impl Iterator<Item = u32> {
        self.queue.first((self.queue.bytes() + u64::from(cost)).saturating_sub(self.room))
    }
}

/// Which objects that leave DRAM are written to flash.
pub trait Admission {
    /// An object was asked for.
    fn seen(&mut self, _key: u32) {}

    /// Whether to write it; `hit` says that it was asked for while it was in DRAM.
    fn admits(&mut self, key: u32, hit: bool, victims: impl Iterator<Item = u32>) -> bool;
}

/// LRU in DRAM, before flash with an admission policy.
pub struct Tiers<F, A> {
    dram: Queue,
    room: u64,
    /// What was asked for since it came to DRAM.
    hit: Vec<bool>,
    /// What each object takes on flash, as it was put last.
    cost: Vec<u32>,
    flash: F,
    admission: A,
    written: u64,
}

impl<F: Flash, A: Admission> Tiers<F, A> {
    /// Empty tiers.
    pub fn new(room: &Room, flash: F, admission: A) -> Self {
        Self {
            dram: Queue::new(room.unique),
            room: room.dram,
            hit: vec![false; room.unique],
            cost: vec![0; room.unique],
            flash,
            admission,
            written: 0,
        }
    }

    /// Brings an object to DRAM; what leaves for it is written if it is admitted.
    fn bring(&mut self, key: u32, cost: u32) {
        self.hit[key as usize] = false;
        self.dram.push(key, cost);
        while self.dram.bytes() > self.room {
            let Some((old, _)) = self.dram.pop() else { return };
            let cost = self.cost[old as usize];
            let hit = self.hit[old as usize];
            if !self.flash.contains(old)
                && self.admission.admits(old, hit, self.flash.victims(cost))
            {
                self.flash.write(old, cost);
                self.written += u64::from(cost);
            }
        }
    }
}

impl<F: Flash, A: Admission> Policy for Tiers<F, A> {
    fn request(&mut self, key: u32, cost: Cost) -> Place {
        self.admission.seen(key);
        if self.dram.contains(key) {
            self.hit[key as usize] = true;
            self.dram.renew(key);
            return Place::Dram;
        }
        if self.flash.contains(key) {
            self.flash.used(key);
            self.bring(key, cost.dram);
            return Place::Flash;
        }
        self.cost[key as usize] = cost.flash;
        self.bring(key, cost.dram);
        Place::Nowhere
    }

    fn written(&self) -> u64 {
        self.written
    }
}

/// Everything is written.
pub struct AdmitAll;

impl Admission for AdmitAll {
    fn admits(&mut self, _: u32, _: bool, _: impl Iterator<Item = u32>) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::policy::testing::{places, room};

    fn admit_all(dram: u64, flash: u64) -> impl Policy {
        let room = room(dram, flash);
        Tiers::new(&room, Fifo::new(&room), AdmitAll)
    }

    #[test]
    fn what_leaves_dram_is_on_flash_until_as_much_came_after_it() {
        // 1 leaves for 2, 2 for 3, 3 for 4; flash holds two. Then 1 is gone, and 2 is found. 4
        // leaves for it, and 2 for 1 in the end, which are two more writes.
        assert_eq!(places(admit_all(1, 2), &[1, 2, 3, 4, 2, 1]), ("----f-".into(), 5));
    }

    #[test]
    fn a_copy_that_leaves_dram_is_not_written_again() {
        // 1 and 2 take turns in DRAM; each is written once.
        assert_eq!(places(admit_all(1, 2), &[1, 2, 1, 2, 1, 2]), ("--ffff".into(), 2));
    }

    #[test]
    fn dram_keeps_what_was_used_last() {
        assert_eq!(places(admit_all(2, 1), &[1, 2, 1, 3, 1, 2]), ("--d-df".into(), 2));
    }

    #[test]
    fn an_object_that_dram_cannot_hold_goes_to_flash() {
        let room = room(2, 10);
        let mut policy = Tiers::new(&room, Fifo::new(&room), AdmitAll);
        let large = Cost { dram: 3, flash: 5 };
        assert_eq!(policy.request(1, large), Place::Nowhere);
        assert_eq!((policy.request(1, large), policy.written()), (Place::Flash, 5));
    }
}
