//! Instances of other rings whose messages come here: they have this ring's secret and name, and
//! another map. What they say is ignored. The operator hears of it once a minute for each.

use std::time::Instant;

use afterglow_ring::MemberId;

use super::core::Ring;
use crate::ring_link::seldom::Seldom;

/// Who was told of a moment ago.
#[derive(Default)]
pub struct Foreigners(Seldom<MemberId>);

impl Foreigners {
    /// A message of that instance has come, which is of another ring.
    pub fn note(&self, ring: &Ring, who: MemberId) {
        if !self.0.is_news(who, Instant::now()) {
            return;
        }
        let peers = ring.transport().map(|links| links.peers()).unwrap_or_default();
        let address = peers.iter().find(|peer| peer.id == who).map(|peer| peer.address.as_str());
        tracing::error!(
            "the instance {:016x}, heard from {}, and this one are of two rings, and what it says is ignored: one of the two leads with --backend to another database or data centre, or somebody has emptied `afterglow.ring`. Look at this one's --backend first, which may be why it hears this; correct the wrong one and restart it. If both are right, give one of the rings another --ring-secret",
            who.0,
            address.unwrap_or("an unknown address")
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ring_link::seldom::MOST;

    #[test]
    fn each_is_told_of_once_a_minute_and_many_fill_no_memory() {
        let (foreigners, start) = (Foreigners::default(), Instant::now());
        let news = |id: u64, seconds| {
            foreigners.0.is_news(MemberId(id), start + Duration::from_secs(seconds))
        };
        assert!(news(1, 0) && !news(1, 59) && news(2, 59) && news(1, 60));
        assert_eq!((10..1_000).filter(|id| news(*id, 61)).count(), MOST - 2);
        assert!(news(2_000, 200));
        assert_eq!(foreigners.0.remembered(), 1);
    }
}
