//! Who may accuse whom, and from when silence counts.

use super::*;
use crate::identity::Incarnation;
use crate::map::Profile;

const ME: Identity = Identity { id: MemberId(1), incarnation: Incarnation(1) };
const OTHER: Identity = Identity { id: MemberId(2), incarnation: Incarnation(2) };
const TICK: Time = 50_000;

/// A member whose map has these, who joined one after the other; it adopts that at once.
struct Alone {
    takeover: Takeover,
    map: Map,
    config: Config,
    now: Time,
}

impl Alone {
    fn among(members: [Identity; 2]) -> Alone {
        let mut map = Map::empty(1);
        for who in members {
            map.version += 1;
            map.put(who.id, who.incarnation, Profile::default());
        }
        let (mut takeover, config) = (Takeover::default(), Config::default());
        takeover.adopted(&map, Some(ME), 0);
        Alone { takeover, map, config, now: 0 }
    }

    fn accuses(&self) -> bool {
        let at = (self.now, &self.config);
        !self.takeover.to_accuse(&self.map, ME, at, |_| None).is_empty()
    }

    /// When it first accuses the other, from now on; within so long.
    fn accuses_within(&mut self, time: Time) -> Option<Time> {
        let end = self.now + time;
        while self.now < end {
            self.takeover.tick(self.now);
            if self.accuses() {
                return Some(self.now);
            }
            self.now += TICK;
        }
        None
    }
}

#[test]
fn whoever_joined_before_us_is_accused_when_it_names_our_join_and_is_silent_from_then_on() {
    let mut alone = Alone::among([OTHER, ME]);
    assert_eq!(alone.accuses_within(10_000_000), None, "it may act on a map without us");
    // The links are whole again, and the other was never silent to anybody else.
    let met = alone.now;
    alone.takeover.named(OTHER, alone.map.version, met);
    assert!(!alone.accuses(), "it has had no time to answer");
    let accused = alone.accuses_within(10_000_000).expect("it goes on to be silent");
    assert!(accused >= met + alone.config.silence && accused < met + 2_000_000, "{accused}");
}

#[test]
fn whoever_joined_before_us_and_names_nothing_is_accused_after_its_last_look_at_the_map() {
    let mut alone = Alone::among([OTHER, ME]);
    let confirm = alone.config.stretched(alone.config.confirm);
    assert_eq!(alone.accuses_within(confirm), None);
    assert!(alone.accuses_within(TICK * 2).is_some());
}

#[test]
fn whoever_joined_after_us_is_accused_once_it_is_silent() {
    let mut alone = Alone::among([ME, OTHER]);
    let accused = alone.accuses_within(10_000_000).expect("every map of it has us");
    assert!(accused >= alone.config.silence && accused < 2_000_000, "{accused}");
}

#[test]
fn permits_that_a_member_did_not_grant_before_it_knew_us_are_not_held_against_it() {
    let mut alone = Alone::among([OTHER, ME]);
    let silence = alone.config.silence;
    let refuse = |alone: &mut Alone| {
        (0..HUNG).for_each(|_| alone.takeover.not_granted(OTHER, alone.now));
    };
    refuse(&mut alone);
    alone.now += silence;
    let version = alone.map.version;
    alone.takeover.named(OTHER, version, alone.now);
    assert!(!alone.accuses(), "they went to nobody: the links were down");
    refuse(&mut alone);
    alone.takeover.answered(OTHER, alone.now, alone.now + silence);
    assert!(!alone.accuses(), "it has stood still for a moment, and many writes waited");
    alone.now += silence;
    assert!(alone.accuses(), "it goes on to grant nothing");
    alone.takeover.granted(OTHER);
    assert!(!alone.accuses());
}

#[test]
fn a_member_that_stood_still_itself_takes_nobody_for_silent() {
    let mut alone = Alone::among([ME, OTHER]);
    let silence = alone.config.silence;
    assert_eq!(alone.accuses_within(silence / 2), None);
    // Its messages wait while this process does.
    alone.now += 10 * silence;
    let back = alone.now;
    let accused = alone.accuses_within(10_000_000).expect("it goes on to be silent");
    assert!(accused >= back + silence, "{accused}");
}

/// An incarnation that is accused never becomes active again.
#[test]
fn the_wait_for_the_shards_of_an_accused_member_goes_on_across_versions() {
    let mut alone = Alone::among([ME, OTHER]);
    alone.map.accuse(OTHER);
    let over = alone.config.stretched(alone.config.lease);
    let takes = |alone: &Alone, now: Time| {
        let promises = Promises::default();
        !alone.takeover.to_take(&alone.map, ME, &promises, now, &alone.config).is_empty()
    };
    for now in [0, over / 2, over - 1] {
        alone.map.version += 1;
        alone.takeover.adopted(&alone.map, Some(ME), now);
        assert!(!takes(&alone, now));
    }
    assert!(takes(&alone, over));
}
