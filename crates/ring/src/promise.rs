//! The promises that this member gives: "I do not accuse you before L(1+2ρ) from now".
//!
//! * A promise is for one incarnation, the one in this member's own map.
//! * Before it sends an accusation, a member stops to promise to the accused. It goes on when the
//!   map has passed the version of the accusation, which could apply until then.

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::identity::Identity;
use crate::map::Map;

#[derive(Debug, Default, Clone)]
pub struct Promises {
    /// When each was last promised something.
    given: BTreeMap<Identity, Time>,
    /// The version that an accusation of each was sent for.
    withheld: BTreeMap<Identity, u64>,
}

impl Promises {
    /// Gives a promise, if it may be given.
    pub fn give(&mut self, map: &Map, whom: Identity, now: Time) -> bool {
        let may = map.is_active(whom) && !self.withheld.contains_key(&whom);
        if may {
            self.given.insert(whom, now);
        }
        may
    }

    /// Stops promising, because an accusation is about to be sent that applies to `version`.
    pub fn withhold(&mut self, whom: Identity, version: u64) {
        self.withheld.insert(whom, version);
    }

    /// When everything has ended that was promised to a member.
    pub fn end(&self, whom: Identity, config: &Config) -> Time {
        self.given.get(&whom).map_or(0, |given| given + config.stretched(config.lease))
    }

    /// A newer map: what was to change an older version cannot apply any more.
    pub fn adopted(&mut self, map: &Map) {
        self.withheld.retain(|_, version| map.version <= *version);
        self.given.retain(|whom, _| map.has(*whom));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Incarnation, MemberId};
    use crate::map::Profile;

    const OTHER: Identity = Identity { id: MemberId(2), incarnation: Incarnation(2) };

    fn map() -> Map {
        let mut map = Map { version: 7, ..Map::empty(1) };
        map.put(OTHER.id, OTHER.incarnation, Profile::default());
        map
    }

    #[test]
    fn a_promise_is_for_an_active_incarnation_and_is_known_until_it_has_ended() {
        let (mut promises, config) = (Promises::default(), Config::default());
        let before = Identity { incarnation: Incarnation(1), ..OTHER };
        assert!(promises.give(&map(), OTHER, 5) && !promises.give(&map(), before, 9));
        let mut accused = map().next();
        accused.accuse(OTHER);
        promises.adopted(&accused);
        assert!(!promises.give(&accused, OTHER, 9));
        assert_eq!(promises.end(OTHER, &config), 5 + config.stretched(config.lease));
    }

    /// Its transaction may apply at any time until then.
    #[test]
    fn an_accuser_promises_nothing_until_the_version_of_its_accusation_has_passed() {
        let (mut promises, config) = (Promises::default(), Config::default());
        assert!(promises.give(&map(), OTHER, 5));
        promises.withhold(OTHER, 7);
        promises.adopted(&map());
        assert!(!promises.give(&map(), OTHER, 5 + 100 * config.confirm), "no time is enough");
        let next = map().next();
        promises.adopted(&next);
        assert!(promises.give(&next, OTHER, 9), "others have changed the map");
    }
}
