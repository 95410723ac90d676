//! Settings that change and change back while the map's changes are on their way.

use std::sync::Arc;

use super::alone::{Alone, ME, OTHER, TICK, map, profile};
use super::*;

/// A map in which the other is to give its shard to the instance.
fn to_come() -> Map {
    let mut map = map(&[(OTHER, "a"), (ME, "a")]);
    map.members[0].profile.weight = 0;
    map
}

#[test]
fn no_row_counts_over_a_move_of_before_a_change_of_the_settings_that_is_heard_of_after_it() {
    for (reads, counts) in [(false, [false, false]), (true, [false, true])] {
        let mut before = to_come();
        before.give(0, Some(OTHER));
        let mut member = Alone::new("a", before);
        member.run(4 * TICK);
        member.member.set_settings(profile("b").settings);
        member.member.set_settings(profile("a").settings);
        if reads {
            member.run(4 * TICK);
        }
        let mut next = member.map.next();
        next.give(0, Some(ME));
        member.map = Arc::new(next);
        member.say(OTHER, Message::MapIs(member.map.clone()));
        assert_eq!(member.counts(), counts);
    }
}

/// The answer to its transaction that says "off" is lost. Its operator says "on" again. Whoever
/// looks into the database sees that it caches nothing.
#[test]
fn who_may_have_said_that_it_caches_nothing_does_not_cache() {
    let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    member.run(4 * TICK);
    assert_eq!(member.member.agreement(), Agreement::Same);
    member.refuses = true;
    member.member.set_settings(profile("b").settings);
    member.run(4 * TICK);
    member.member.set_settings(profile("a").settings);
    assert_eq!(member.member.agreement(), Agreement::Unknown);
    member.refuses = false;
    member.run(2 * Config::default().transaction);
    assert_eq!(member.member.agreement(), Agreement::Same, "the map has moved on");
    assert_eq!(member.map.entry(ME).unwrap().profile.settings, profile("a").settings);
}

/// Each write that drops more than it names has rows distrusted. The map is not read as often.
#[test]
fn the_map_is_read_soon_after_rows_are_distrusted_and_not_ever_again() {
    let mut member = Alone::new("a", to_come());
    member.run(4 * TICK);
    let before = member.member.reads.next;
    member.member.distrust_older();
    member.run(4 * TICK);
    assert_eq!(member.member.reads.next, before + 1);
    assert!(!member.member.custody().is_before_distrust());
    let ticks = 10 * member.member.config.transaction / TICK;
    for _ in 0..ticks {
        member.member.distrust_older();
        member.run(TICK);
    }
    let reads = member.member.reads.next - before;
    assert!((10..=12).contains(&reads), "{reads} reads in ten times a transaction's");
}

/// A change of the schema is heard of by all members of a ring at once.
#[test]
fn the_map_is_not_read_where_rows_are_distrusted_and_there_are_no_moves_to_come() {
    let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    member.run(4 * TICK);
    let before = member.member.reads.next;
    member.member.distrust_older();
    member.run(20 * TICK);
    assert_eq!(member.member.reads.next, before);
    // There are, and it is.
    let mut next = member.map.next();
    next.members[0].profile.weight = 0;
    member.map = Arc::new(next);
    member.say(OTHER, Message::MapIs(member.map.clone()));
    member.run(4 * TICK);
    assert_eq!(member.member.reads.next, before + 1);
    assert!(!member.member.custody().is_before_distrust());
}

/// Its shard would be weak for a hold, or bring no rows.
#[test]
fn no_shard_is_asked_for_while_it_is_not_known_what_its_rows_are_worth() {
    let lacks: fn(&mut Member) = |member| member.set_schema(SchemaVersion::default());
    for doubt in [lacks, Member::distrust_older] {
        let mut member = Alone::new("a", to_come());
        member.run(Config::default().stable / 10 - TICK);
        let from = member.now;
        let most = PATIENCE * member.member.config.transaction;
        while member.wanted == 0 && member.now < from + 2 * most {
            doubt(&mut member.member);
            member.run(TICK);
        }
        let waited = member.now - from;
        assert!((most..most + 4 * TICK).contains(&waited), "{waited} us, and not for good");
    }
}

/// Nodes that lag behind may show a table that is gone for a moment still.
#[test]
fn a_map_that_is_gone_is_read_no_sooner_because_rows_are_distrusted() {
    let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    member.run(4 * TICK);
    member.act(|member, io| member.doubt_map(true, io));
    member.member.distrust_older();
    let (before, from) = (member.member.reads.next, member.now);
    while member.member.reads.next == before {
        member.run(TICK);
    }
    assert!(member.now >= from + member.member.config.retry);
}
