//! Which members have lost the database while this one has it. They answer PINGs for ever, and soon
//! nobody can write their rows.
//!
//! 1. A member says in each PONG for how long the database has answered no read of the map to it.
//!    With its clock, which is in the PONG too, that is when its last read was by its own clock.
//!    While this stays the same it has read nothing, however its clock and ours differ.
//! 2. Each reads the map every T/3, so where all lose the database, their last reads differ by less
//!    than B. If the last read of one is older than B, this member reads the map itself.
//! 3. Once that is answered the other is suspected. The database may be back since a moment ago.
//! 4. It has time to read the map too. Meanwhile this member goes on to read it. If none of its
//!    reads fails, and the other has not read by then, the other has lost the database alone.

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::identity::Identity;
use crate::map::Map;

#[derive(Debug, Default, Clone)]
pub struct Sight {
    /// What each has said in its last PONG.
    told: BTreeMap<Identity, Told>,
    /// Who is suspected, and when the read of ours was sent since which it is.
    suspected: BTreeMap<Identity, Time>,
}

/// What a member has said of the database.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// When we heard it.
    heard: Time,
    /// When its last read of the map was.
    read: Time,
    /// The same by its own clock.
    by_its_clock: Time,
}

/// Whether a PONG that was heard then still says how its sender is.
fn is_fresh(heard: Time, now: Time, config: &Config) -> bool {
    now < heard + config.silence
}

impl Sight {
    /// A member answered a PING: by its `clock` then, the database has not answered it for `blind`.
    ///
    /// A PONG that comes late, or a clock that runs faster than its own, lets the same read seem to
    /// be later each time. So the earliest time that was reckoned for a read stays: else a suspect
    /// that has read nothing would clear itself.
    pub fn answered(
        &mut self,
        who: Identity,
        (blind, clock): (Time, Time),
        now: Time,
        config: &Config,
    ) {
        let (by_its_clock, reckoned) = (clock.saturating_sub(blind), now.saturating_sub(blind));
        let before = self.told.get(&who).copied().filter(|told| told.by_its_clock == by_its_clock);
        let read = before.map_or(reckoned, |told| told.read.min(reckoned));
        self.told.insert(who, Told { heard: now, read, by_its_clock });
        if self.suspected.get(&who).is_some_and(|since| *since < read + config.blind()) {
            assert!(before.is_none(), "a suspect is cleared by a read alone");
            self.suspected.remove(&who);
        }
    }

    /// When this member's last read of the map was, by its last answer.
    pub fn last_read(&self, who: Identity) -> Option<Time> {
        self.told.get(&who).map(|told| told.read)
    }

    /// Our read of the map that was sent at `sent` was answered.
    pub fn read(&mut self, sent: Time, now: Time, config: &Config) {
        for (who, told) in &self.told {
            if is_fresh(told.heard, now, config) && sent >= told.read + config.blind() {
                self.suspected.entry(*who).or_insert(sent);
            }
        }
    }

    /// Our read of the map has failed: the database may be gone for all.
    pub fn failed(&mut self) {
        self.suspected.clear();
    }

    /// A newer map: those who are in it no more are forgotten.
    pub fn adopted(&mut self, map: &Map) {
        self.told.retain(|who, _| map.has(*who));
        self.suspected.retain(|who, _| map.has(*who));
    }

    /// When to read the map again because of those who answer, if at all. `rank`: of this member,
    /// so that not all read and accuse at one time. `last`: when our last read was sent that was
    /// answered.
    pub fn next_read(&self, rank: Time, last: Time, now: Time, config: &Config) -> Option<Time> {
        let answers = |(_, told): &(&Identity, &Told)| is_fresh(told.heard, now, config);
        let due = |(who, told): (&Identity, &Told)| match self.suspected.get(who) {
            Some(_) => last + config.transaction,
            None => told.read + config.blind() + rank * config.rank_step,
        };
        self.told.iter().filter(answers).map(due).min()
    }

    /// Whether a member has lost the database alone. Only what is fresh counts: we may have stood
    /// still, or have lost the database since. `last`: as above.
    pub fn is_blind(&self, who: Identity, last: Time, now: Time, config: &Config) -> bool {
        let Some(since) = self.suspected.get(&who) else { return false };
        let Some(Told { heard, read, .. }) = self.told.get(&who) else { return false };
        let settled = since + config.recovers();
        assert!(*since >= read + config.blind(), "it has read the map since");
        let is_blind = last.min(*heard) >= settled
            && is_fresh(*heard, now, config)
            && now < last + 2 * config.transaction;
        if is_blind {
            coverage_mark!(AccusedBlind);
        }
        is_blind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Incarnation, MemberId};

    const OTHER: Identity = Identity { id: MemberId(2), incarnation: Incarnation(2) };
    const SECOND: Time = 1_000_000;

    /// A member that reads the map when it is due, whose other answers all the time.
    struct Watch {
        sight: Sight,
        config: Config,
        now: Time,
        due: Time,
        /// When we last read the map.
        last: Time,
        /// How fast the other's clock runs, in percent of ours.
        rate: Time,
        /// How long its PONGs take.
        late: Time,
    }

    impl Watch {
        /// At 100 s, both have just read the map.
        fn new() -> Watch {
            let mut watch = Watch {
                sight: Sight::default(),
                config: Config::default(),
                now: 100 * SECOND,
                due: 0,
                last: 0,
                rate: 100,
                late: 0,
            };
            watch.pass(100 * SECOND, true, 100 * SECOND);
            watch
        }

        fn read(&mut self, at: Time) {
            self.sight.read(at, at, &self.config);
            self.last = at;
        }

        fn is_blind(&self, now: Time) -> bool {
            self.sight.is_blind(OTHER, self.last, now, &self.config)
        }

        /// Time passes until then. `sees`: whether the database answers us; `read`: the other's
        /// last read. When it was first blind.
        fn pass(&mut self, until: Time, sees: bool, read: Time) -> Option<Time> {
            let mut first = None;
            while self.now <= until {
                let clock = SECOND + self.now * self.rate / 100;
                let blind = (self.now - read) * self.rate / 100;
                self.sight.answered(OTHER, (blind, clock), self.now + self.late, &self.config);
                let wanted = self.sight.next_read(0, self.last, self.now, &self.config);
                let wanted = wanted.unwrap_or(self.due);
                if sees && self.now >= self.due.min(wanted) {
                    self.read(self.now);
                    self.due = self.now + self.config.confirm / 3;
                }
                if self.is_blind(self.now) {
                    first = first.or(Some(self.now));
                }
                self.now += SECOND / 10;
            }
            first
        }
    }

    #[test]
    fn who_has_lost_the_database_alone_is_known_long_before_its_lease_ends() {
        let mut watch = Watch::new();
        let blind = watch.pass(150 * SECOND, true, 100 * SECOND).expect("it is blind");
        let config = Config::default();
        let due = 100 * SECOND + config.blind() + config.recovers();
        assert!(blind >= due && blind < due + SECOND, "{blind}");
    }

    #[test]
    fn who_has_read_nothing_stays_a_suspect_though_its_clock_is_slow_or_its_pongs_are_late() {
        for (rate, late) in [(95, 0), (105, 0), (100, SECOND / 3)] {
            let mut watch = Watch::new();
            watch.rate = rate;
            assert_eq!(watch.pass(130 * SECOND, true, 100 * SECOND), None);
            watch.late = late;
            let blind = watch.pass(150 * SECOND, true, 100 * SECOND).expect("it is blind");
            let config = Config::default();
            let due = 100 * SECOND + (config.blind() + config.recovers()) * 100 / rate.min(100);
            assert!(blind <= due + SECOND, "{blind} at {rate} %, {late} us late");
            // It has read the map at last.
            assert!(watch.is_blind(watch.now));
            let again = watch.pass(152 * SECOND, true, watch.now);
            assert!(again.is_none(), "it has read");
        }
    }

    #[test]
    fn after_an_outage_for_all_each_has_the_time_to_read() {
        // The other read 13 s before the outage, we just before it: we notice nothing of it.
        let mut watch = Watch::new();
        assert_eq!(watch.pass(113 * SECOND, true, 100 * SECOND), None);
        watch.read(113 * SECOND);
        watch.due = 133 * SECOND;
        assert_eq!(watch.pass(133 * SECOND, false, 100 * SECOND), None);
        // It is back for all; the other's next read was under way and has to time out.
        assert_eq!(watch.pass(136 * SECOND, true, 100 * SECOND), None);
        assert_eq!(watch.pass(160 * SECOND, true, 136 * SECOND), None);
    }

    #[test]
    fn an_outage_that_stops_for_a_moment_accuses_nobody() {
        let mut watch = Watch::new();
        watch.pass(127 * SECOND, false, 100 * SECOND);
        // It answers one read of ours, and the other comes too late for it.
        assert_eq!(watch.pass(130 * SECOND, true, 100 * SECOND), None);
        watch.sight.failed();
        assert_eq!(watch.pass(141 * SECOND, false, 100 * SECOND), None);
        assert_eq!(watch.pass(143 * SECOND, true, 100 * SECOND), None);
        assert_eq!(watch.pass(160 * SECOND, true, 143 * SECOND), None);
    }

    #[test]
    fn what_is_not_fresh_says_nothing() {
        let mut watch = Watch::new();
        assert!(watch.pass(150 * SECOND, true, 100 * SECOND).is_some());
        assert!(watch.is_blind(watch.now));
        assert!(!watch.is_blind(watch.now + watch.config.silence), "we stood still");
        watch.pass(156 * SECOND, false, 100 * SECOND);
        assert!(!watch.is_blind(watch.now), "we have lost it too");
    }
}
