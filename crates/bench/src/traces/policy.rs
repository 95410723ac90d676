//! What the policies that stand beside ours have in common: sizes, places, and counting.

use super::read::Request;

/// Bytes that an object takes in either tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// In DRAM, with what an entry costs besides key and value.
    pub dram: u32,
    /// On flash, with header and padding.
    pub flash: u32,
}

/// Where a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// DRAM.
    Dram,
    /// Flash.
    Flash,
    /// Neither: the object was put.
    Nowhere,
}

/// A cache policy over both tiers, fed request by request.
pub trait Policy {
    /// Answers a request; an object that is nowhere is put.
    fn request(&mut self, key: u32, cost: Cost) -> Place;

    /// Bytes of records written to flash so far.
    fn written(&self) -> u64;
}

/// What a replay came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Requests answered from DRAM and from flash.
    pub hits: [u64; 2],
    /// Bytes answered from DRAM and from flash.
    pub hit_bytes: [u64; 2],
    /// Bytes of records written to flash.
    pub written: u64,
}

impl Tally {
    /// Counts a request.
    pub fn count(&mut self, len: u32, place: Place) {
        let len = u64::from(len);
        self.requests += 1;
        self.bytes += len;
        let tier = match place {
            Place::Dram => 0,
            Place::Flash => 1,
            Place::Nowhere => return,
        };
        self.hits[tier] += 1;
        self.hit_bytes[tier] += len;
    }

    /// Percent of the requests that DRAM answered, and that either tier answered.
    pub fn objects(&self) -> [f64; 2] {
        cumulated(self.hits, self.requests)
    }

    /// The same in bytes.
    pub fn in_bytes(&self) -> [f64; 2] {
        cumulated(self.hit_bytes, self.bytes)
    }

    /// Bytes written to flash for each byte asked for.
    pub fn written_share(&self) -> f64 {
        self.written as f64 / self.bytes.max(1) as f64
    }
}

fn cumulated([dram, flash]: [u64; 2], of: u64) -> [f64; 2] {
    [dram, dram + flash].map(|hits| 100.0 * hits as f64 / of.max(1) as f64)
}

/// What a policy is given: bytes of either tier, how many objects there are, and the largest object
/// that is stored.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes of DRAM.
    pub dram: u64,
    /// Bytes of flash.
    pub flash: u64,
    /// Different objects in the trace.
    pub unique: usize,
    /// Objects that flash holds, about.
    pub objects: usize,
    /// Bytes of the largest value that is stored. Nobody stores larger ones.
    pub largest: u32,
}

/// Replays requests through a policy.
pub fn replay(
    requests: &[Request],
    room: &Room,
    cost: impl Fn(u32) -> Cost,
    mut policy: impl Policy,
) -> Tally {
    let mut tally = Tally::default();
    for request in requests {
        let place = match request.len <= room.largest {
            true => policy.request(request.key, cost(request.len)),
            false => Place::Nowhere,
        };
        tally.count(request.len, place);
    }
    Tally { written: policy.written(), ..tally }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// Room for so many objects of one byte.
    pub fn room(dram: u64, flash: u64) -> Room {
        Room { dram, flash, unique: 100, objects: flash as usize, largest: 100 }
    }

    /// Where each request for an object of one byte is answered: `d`, `f` or `-`; and what was
    /// written.
    pub fn places(mut policy: impl Policy, keys: &[u32]) -> (String, u64) {
        let one = Cost { dram: 1, flash: 1 };
        let place = |&key: &u32| match policy.request(key, one) {
            Place::Dram => 'd',
            Place::Flash => 'f',
            Place::Nowhere => '-',
        };
        (keys.iter().map(place).collect(), policy.written())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_bytes_are_counted_by_tier() {
        let mut tally = Tally::default();
        tally.count(100, Place::Nowhere);
        tally.count(100, Place::Dram);
        tally.count(200, Place::Flash);
        tally.count(400, Place::Flash);
        assert_eq!(tally.objects(), [25.0, 75.0]);
        assert_eq!(tally.in_bytes(), [12.5, 87.5]);
        tally.written = 400;
        assert_eq!(tally.written_share(), 0.5);
    }

    /// Finds everything it was asked for before.
    struct Everything(Vec<u32>);

    impl Policy for Everything {
        fn request(&mut self, key: u32, _: Cost) -> Place {
            let known = self.0.contains(&key);
            self.0.push(key);
            if known { Place::Flash } else { Place::Nowhere }
        }

        fn written(&self) -> u64 {
            9
        }
    }

    #[test]
    fn objects_that_are_too_large_are_nobodys() {
        let request = |key, len| Request { key, len };
        let requests = [request(1, 50), request(1, 50), request(2, 101), request(2, 101)];
        let room = testing::room(1, 1);
        let tally = replay(&requests, &room, |_| Cost::default(), Everything(Vec::new()));
        assert_eq!((tally.requests, tally.hits, tally.written), (4, [0, 1], 9));
    }
}
