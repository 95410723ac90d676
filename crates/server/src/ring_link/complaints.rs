//! Faults are logged once a minute for each place, not with every attempt.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::fault::LinkFault;

/// For so long the same is not said again.
const PAUSE: Duration = Duration::from_secs(60);
/// Places that are remembered. Strangers have many; while all are fresh, further ones are counted
/// alone.
const MAX_PLACES: usize = 256;

/// What was said a moment ago.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<HashMap<(String, std::mem::Discriminant<LinkFault>), Instant>>);

impl Complaints {
    /// Logs that there is no link with whoever is at that place, unless it did a moment ago.
    pub fn log(&self, place: &str, fault: &LinkFault) {
        if fault.is_noteworthy() && self.is_news(place, fault, Instant::now()) {
            tracing::warn!("no link of the ring with the peer at {place}: {fault}");
        }
    }

    fn is_news(&self, place: &str, fault: &LinkFault, now: Instant) -> bool {
        let mut said = self.0.lock();
        let key = (place.to_owned(), std::mem::discriminant(fault));
        let fresh = |at: &Instant| now.saturating_duration_since(*at) < PAUSE;
        if said.get(&key).is_some_and(fresh) {
            return false;
        }
        if said.len() >= MAX_PLACES {
            said.retain(|_, at| fresh(at));
        }
        let room = said.len() < MAX_PLACES;
        if room {
            said.insert(key, now);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_and_strangers_fill_no_memory() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(complaints.is_news("a", &LinkFault::Secret, start));
        assert!(!complaints.is_news("a", &LinkFault::Secret, after(59)));
        assert!(complaints.is_news("a", &LinkFault::Late, after(59)), "another fault");
        assert!(complaints.is_news("b", &LinkFault::Secret, after(59)), "another place");
        assert!(complaints.is_news("a", &LinkFault::Secret, after(60)));
        let news = |n: usize, at| complaints.is_news(&n.to_string(), &LinkFault::Secret, at);
        assert_eq!((0..1000).filter(|n| news(*n, after(61))).count(), MAX_PLACES - 3);
        assert!(news(2000, after(200)));
        assert_eq!(complaints.0.lock().len(), 1);
    }
}
