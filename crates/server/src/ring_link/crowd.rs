//! How many connections may be there that have not proven the secret, and from where.
//!
//! An address may have as many of the places as are free. So one that takes all it can leaves half
//! of them to others, and two leave a third. Members get in beside strangers that hold on to
//! theirs.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The places that are taken.
#[derive(Debug, Default)]
pub struct Crowd(Mutex<CrowdPlaces>);

#[derive(Debug, Default)]
struct CrowdPlaces {
    all: usize,
    by_address: HashMap<String, usize>,
}

impl Crowd {
    /// Takes a place for a connection from that address, of so many places; false: there is none
    /// for it.
    pub fn enter(&self, address: &str, limit: usize) -> bool {
        let mut taken = self.0.lock();
        let own = taken.by_address.get(address).copied().unwrap_or(0);
        if own >= limit.saturating_sub(taken.all) {
            return false;
        }
        taken.all += 1;
        taken.by_address.insert(address.to_owned(), own + 1);
        true
    }

    /// Gives a place back.
    pub fn leave(&self, address: &str) {
        let mut taken = self.0.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_address.get_mut(address) {
            *own -= 1;
            if *own == 0 {
                taken.by_address.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_at_some_addresses_leave_places_to_members_at_others() {
        let crowd = Crowd::default();
        let fill = |address: &str| (0..100).filter(|_| crowd.enter(address, 64)).count();
        assert_eq!(fill("a"), 32);
        assert_eq!([fill("b"), fill("c"), fill("d")], [16, 8, 4]);
        assert!(crowd.enter("member", 64));
        crowd.leave("member");
        (0..32).for_each(|_| crowd.leave("a"));
        assert!(crowd.0.lock().by_address.keys().all(|address| *address != "a"));
        assert!(fill("e") > 8, "its places are free again");
    }
}
