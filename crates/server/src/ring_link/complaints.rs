//! Faults are logged once a minute for each place, not with every attempt.

use std::mem::{Discriminant, discriminant};
use std::time::Instant;

use super::fault::LinkFault;
use super::seldom::Seldom;

/// What was said a moment ago.
#[derive(Debug, Default)]
pub struct Complaints(Seldom<(String, Discriminant<LinkFault>)>);

impl Complaints {
    /// Logs that there is no link with whoever is at that place, unless it did a moment ago.
    pub fn log(&self, place: &str, fault: &LinkFault) {
        if fault.is_noteworthy() && self.is_news(place, fault, Instant::now()) {
            tracing::warn!("no link of the ring with the peer at {place}: {fault}");
        }
    }

    fn is_news(&self, place: &str, fault: &LinkFault, now: Instant) -> bool {
        self.0.is_news((place.to_owned(), discriminant(fault)), now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ring_link::seldom::MOST;

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
        assert_eq!((0..1000).filter(|n| news(*n, after(61))).count(), MOST - 3);
        assert!(news(2000, after(200)));
        assert_eq!(complaints.0.remembered(), 1);
    }
}
