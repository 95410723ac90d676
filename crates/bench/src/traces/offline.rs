//! What a cache could answer that knows the future: Belady by bytes, approximated.
//!
//! DRAM and flash count as one cache. Of all objects there, the one leaves that has the largest
//! product of bytes and time until its next use. That is the greedy form of Belady's rule for
//! objects of unequal size, called Belady-Size by Berger, Beckmann and Harchol-Balter ("Practical
//! Bounds on Optimal Caching with Variable Object Sizes", 2018). What is never used again is not
//! stored. With equal sizes this is Belady's rule with bypassing, which no policy beats. With
//! unequal sizes it is no strict bound, and meant for objects, not for bytes.
//!
//! To find the largest product quickly, objects are in classes of size, four to each doubling. Of
//! each class only the object that is used last is looked at: within a class sizes differ by a
//! fifth at most.

use std::collections::BTreeSet;

use super::{
    policy::{Place, Tally},
    read::Request,
};

/// Of an object that is never asked for again.
const NEVER: u32 = u32::MAX;
/// Classes of size to each doubling.
const STEPS: f64 = 4.0;
/// Classes in all: up to 2^32 bytes.
const CLASSES: usize = 32 * STEPS as usize + 1;

/// Position of the next request for the same object, for each request.
fn next_uses(requests: &[Request], unique: usize) -> Vec<u32> {
    let mut upcoming = vec![NEVER; unique];
    let mut next = vec![NEVER; requests.len()];
    for (at, request) in requests.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut upcoming[request.key as usize], at as u32);
    }
    next
}

/// What is stored, by class of size: next use and number of each object.
struct Stored {
    classes: Vec<BTreeSet<(u32, u32)>>,
    /// Bytes of each object that is stored, otherwise 0.
    cost: Vec<u32>,
    bytes: u64,
}

impl Stored {
    fn add(&mut self, key: u32, cost: u32, next: u32) {
        self.classes[class(cost)].insert((next, key));
        self.cost[key as usize] = cost;
        self.bytes += u64::from(cost);
    }

    /// Takes out an object whose next use is `next`. Returns its bytes.
    fn take(&mut self, key: u32, next: u32) -> u32 {
        let cost = std::mem::take(&mut self.cost[key as usize]);
        self.classes[class(cost)].remove(&(next, key));
        self.bytes -= u64::from(cost);
        cost
    }

    /// The object with the largest product at this time, with its next use.
    fn worst(&self, now: u32) -> Option<(u32, u32)> {
        let last = self.classes.iter().filter_map(BTreeSet::last);
        let product = |&&(next, key): &&(u32, u32)| {
            u64::from(next - now) * u64::from(self.cost[key as usize])
        };
        last.max_by_key(product).map(|&(next, key)| (key, next))
    }
}

fn class(cost: u32) -> usize {
    (f64::from(cost.max(1)).log2() * STEPS) as usize
}

/// What a cache of `room` bytes could answer; all of it counts as answered from DRAM.
pub fn offline(
    requests: &[Request],
    unique: usize,
    room: u64,
    largest: u32,
    cost: impl Fn(u32) -> u32,
) -> Tally {
    let next = next_uses(requests, unique);
    let classes = vec![BTreeSet::new(); CLASSES];
    let mut stored = Stored { classes, cost: vec![0; unique], bytes: 0 };
    let mut tally = Tally::default();
    for (now, (request, &next)) in requests.iter().zip(&next).enumerate() {
        let (key, now) = (request.key, now as u32);
        let found = stored.cost[key as usize] > 0 && request.len <= largest;
        tally.count(request.len, if found { Place::Dram } else { Place::Nowhere });
        let bytes = match stored.cost[key as usize] > 0 {
            true => stored.take(key, now),
            false => cost(request.len),
        };
        if next == NEVER || request.len > largest {
            continue;
        }
        stored.add(key, bytes, next);
        while stored.bytes > room {
            let Some((key, next)) = stored.worst(now) else { break };
            stored.take(key, next);
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(keys: &[(u32, u32)], room: u64) -> u64 {
        let requests: Vec<_> = keys.iter().map(|&(key, len)| Request { key, len }).collect();
        offline(&requests, 10, room, 100, |len| len).hits[0]
    }

    fn of_one(keys: &[u32], room: u64) -> u64 {
        hits(&keys.iter().map(|&key| (key, 1)).collect::<Vec<_>>(), room)
    }

    #[test]
    fn it_is_beladys_rule_where_sizes_are_equal() {
        // Belady's own kind of example: LRU would have none of them.
        let round = [1, 2, 3, 1, 2, 3, 1, 2, 3];
        assert_eq!(of_one(&round, 1), 2);
        assert_eq!(of_one(&round, 2), 4);
        assert_eq!(of_one(&round, 3), 6);
        assert_eq!(of_one(&[1, 2, 3, 4, 1], 1), 1, "what is never used again takes no room");
        assert_eq!(of_one(&[], 1), 0);
    }

    #[test]
    fn a_large_object_leaves_for_small_ones() {
        // Room for the large one or for two small ones, which are used later but bring two hits.
        let keys = [(1, 10), (2, 5), (3, 5), (1, 10), (2, 5), (3, 5)];
        assert_eq!(hits(&keys, 10), 2);
        assert_eq!(hits(&keys, 20), 3);
        assert_eq!(hits(&[(1, 101), (1, 101)], 1000), 0, "nobody stores it");
    }
}
