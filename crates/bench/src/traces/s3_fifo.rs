//! S3-FIFO over two tiers (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
//! 2023, with DRAM as the small queue and flash as the main one, as its section on flash has it).
//!
//! New objects enter DRAM. What leaves it is written if it was hit at least twice there; otherwise
//! its number goes to a ghost as long as flash has objects. What comes back while the ghost knows
//! it is written at once. The oldest of flash goes round again with one hit less if it was hit:
//! that is a write too.

use super::{
    policy::{Cost, Place, Policy, Room},
    queue::Queue,
};

/// Hits in DRAM that earn a write.
const PROMOTE_AT: u8 = 2;
/// Hits counted at most.
const MAX_FREQ: u8 = 3;

/// Both tiers as one S3-FIFO.
pub struct S3Fifo {
    small: Queue,
    main: Queue,
    ghost: Queue,
    freq: Vec<u8>,
    /// What each object takes on flash.
    cost: Vec<u32>,
    room: Room,
    written: u64,
}

impl S3Fifo {
    /// Empty tiers.
    pub fn new(room: &Room) -> Self {
        let queue = || Queue::new(room.unique);
        Self {
            small: queue(),
            main: queue(),
            ghost: queue(),
            freq: vec![0; room.unique],
            cost: vec![0; room.unique],
            room: *room,
            written: 0,
        }
    }

    fn write(&mut self, key: u32) {
        let cost = self.cost[key as usize];
        self.freq[key as usize] = 0;
        self.main.push(key, cost);
        self.written += u64::from(cost);
        while self.main.bytes() > self.room.flash {
            let Some((old, cost)) = self.main.pop() else { return };
            let freq = &mut self.freq[old as usize];
            if *freq > 0 {
                *freq -= 1;
                self.main.push(old, cost);
                self.written += u64::from(cost);
            }
        }
    }

    fn make_room(&mut self) {
        while self.small.bytes() > self.room.dram {
            let Some((old, _)) = self.small.pop() else { return };
            if self.freq[old as usize] >= PROMOTE_AT {
                self.write(old);
                continue;
            }
            self.ghost.push(old, 1);
            while self.ghost.len() > self.main.len().max(self.room.objects) {
                self.ghost.pop();
            }
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, key: u32, cost: Cost) -> Place {
        let here = match (self.small.contains(key), self.main.contains(key)) {
            (true, _) => Place::Dram,
            (_, true) => Place::Flash,
            _ => Place::Nowhere,
        };
        let freq = &mut self.freq[key as usize];
        if here != Place::Nowhere {
            *freq = (*freq + 1).min(MAX_FREQ);
            return here;
        }
        *freq = 0;
        self.cost[key as usize] = cost.flash;
        if self.ghost.remove(key) > 0 {
            self.write(key);
        } else {
            self.small.push(key, cost.dram);
            self.make_room();
        }
        Place::Nowhere
    }

    fn written(&self) -> u64 {
        self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::policy::testing::{places, room};

    #[test]
    fn what_is_seen_once_is_never_written_and_what_comes_back_is() {
        let policy = || S3Fifo::new(&room(1, 2));
        assert_eq!(places(policy(), &[1, 2, 3, 4]), ("----".into(), 0));
        assert_eq!(places(policy(), &[1, 2, 1, 3, 1]), ("----f".into(), 1));
    }

    #[test]
    fn two_hits_in_dram_are_a_write() {
        let policy = || S3Fifo::new(&room(1, 2));
        assert_eq!(places(policy(), &[1, 1, 1, 2, 1]), ("-dd-f".into(), 1));
        assert_eq!(places(policy(), &[1, 1, 2, 1, 1]), ("-d--f".into(), 1));
    }

    #[test]
    fn what_was_hit_on_flash_goes_round_once_more() {
        // 1 and 2 are written, 1 is hit, 3 is written: 1 goes round (a fourth write), 2 leaves.
        let keys = [1, 2, 3, 1, 2, 1, 3, 4, 3, 1, 2];
        assert_eq!(places(S3Fifo::new(&room(1, 2)), &keys), ("-----fd--f-".into(), 4));
    }
}
