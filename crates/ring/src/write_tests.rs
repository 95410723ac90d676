//! What a writer asks its owners, and what it tells them.

use super::*;
use crate::identity::Incarnation;
use crate::map::Profile;

const OWNER: MemberId = MemberId(2);
const OTHER: MemberId = MemberId(3);

/// Runs a step of the write at a time: what is sent, and the actions.
fn step(now: Time, act: impl FnOnce(&mut Io<'_>) -> Vec<Outgoing>) -> (Vec<Message>, Vec<Action>) {
    let (mut rows, mut random) = (crate::sim::rows(), || 0);
    let mut io = Io { now, rows: &mut rows, random: &mut random, actions: Vec::new() };
    let out = act(&mut io).into_iter().map(|(_, message)| message).collect();
    (out, io.actions)
}

/// Each has a shard of two.
fn two_owners() -> Map {
    let mut map = Map { version: 1, ..Map::empty(2) };
    for (shard, owner) in [OWNER, OTHER].into_iter().enumerate() {
        map.put(owner, Incarnation(owner.0.into()), Profile::default());
        map.give(shard, Some(owner));
    }
    map
}

/// TRUNCATE and changes of the schema may take longer than owners have to answer.
#[test]
fn a_write_that_the_database_took_long_for_is_acknowledged_once_its_owner_has_dropped() {
    let (config, mut writes) = (Config::default(), Writes::default());
    let mut map = Map { version: 1, ..Map::empty(1) };
    map.put(OWNER, Incarnation(1), Profile::default());
    map.give(0, Some(OWNER));
    let scopes = vec![Scope::Token(1)];
    let (out, _) = step(0, |io| {
        writes.begin(7, (scopes, Detail::from([])), &map, io);
        writes.advance(1, &map, &config, io).0
    });
    let [Message::Begin { attempt, .. }] = out[..] else { panic!("{out:?}") };
    writes.answered(1, OWNER, attempt, config.lease);
    let (_, actions) = step(1, |io| writes.advance(1, &map, &config, io).0);
    assert!(matches!(actions[..], [Action::SendWrite { number: 1, .. }]));
    let late = 2 * config.write;
    let (out, actions) = step(late, |io| {
        assert!(writes.written(1, WriteResult::Done, &map, io).is_empty());
        writes.advance(1, &map, &config, io).0
    });
    let [Message::Drop { attempt, .. }] = out[..] else { panic!("{out:?}") };
    assert!(actions.is_empty());
    let (out, actions) = step(late + 1, |io| writes.give_up(1, (&map, &config), io));
    assert!(out.is_empty() && actions.is_empty(), "the owner has just been asked");
    writes.answered(1, OWNER, attempt, 0);
    let (_, actions) = step(late + 2, |io| writes.advance(1, &map, &config, io).0);
    assert!(matches!(actions[..], [Action::Acknowledge { client: 7 }]));
}

/// The permits of several owners end at several times.
#[test]
fn an_answer_after_the_first_end_of_its_permits_is_too_late() {
    let config = Config::default();
    let map = two_owners();
    let ends = [(OWNER, 1_000), (OTHER, 2_000)];
    for (now, in_time) in [(999, true), (1_000, false), (1_999, false), (2_000, false)] {
        let mut writes = Writes::default();
        let (out, _) = step(0, |io| {
            writes.begin(7, (vec![Scope::All], Detail::from([])), &map, io);
            writes.advance(1, &map, &config, io).0
        });
        assert_eq!(out.len(), 2);
        for (message, (owner, end)) in out.iter().zip(ends) {
            let Message::Begin { attempt, .. } = message else { panic!("{message:?}") };
            writes.answered(1, owner, *attempt, end);
        }
        step(1, |io| writes.advance(1, &map, &config, io).0);
        let (_, actions) = step(now, |io| writes.written(1, WriteResult::Done, &map, io));
        let acknowledged = matches!(actions[..], [Action::Acknowledge { client: 7 }]);
        assert_eq!(acknowledged, in_time, "at {now}");
    }
}

/// Gates of a permit that nobody ends stay closed for an hour or so.
#[test]
fn owners_of_a_write_that_is_refused_while_it_waits_hear_that_it_has_ended() {
    let (config, mut writes) = (Config::default(), Writes::default());
    let map = two_owners();
    let begin = |writes: &mut Writes| {
        let (out, _) = step(0, |io| {
            let number = writes.begin(7, (vec![Scope::All], Detail::from([])), &map, io);
            writes.advance(number, &map, &config, io).0
        });
        let [Message::Begin { number, attempt, .. }, _] = out[..] else { panic!("{out:?}") };
        writes.answered(number, OWNER, attempt, config.lease);
        (number, attempt)
    };
    let (number, _) = begin(&mut writes);
    let (out, actions) = step(99, |io| writes.refuse(number, 100, &map, io));
    assert!(out.is_empty() && actions.is_empty(), "it has not waited for so long");
    let mut told = Vec::new();
    let (_, actions) = step(100, |io| {
        told = writes.refuse(number, 100, &map, io);
        Vec::new()
    });
    let end = Message::End { number, outcome: Outcome::Refused };
    assert_eq!(format!("{told:?}"), format!("{:?}", [(OWNER, end.clone()), (OTHER, end)]));
    let not_sent = Action::Fail { client: 7, reason: FailReason::NotSent };
    assert_eq!(format!("{actions:?}"), format!("{:?}", [not_sent]));
    // One that is sent may be applied.
    let (number, attempt) = begin(&mut writes);
    writes.answered(number, OTHER, attempt + 1, config.lease);
    step(1, |io| writes.advance(number, &map, &config, io).0);
    let (out, actions) = step(100, |io| writes.refuse(number, 0, &map, io));
    assert!(out.is_empty() && actions.is_empty());
}

/// One owner is handing its shard over, and refuses for so long. What the other has granted is
/// a hold, or makes its shard weak, if its shard moves meanwhile.
#[test]
fn a_permit_goes_back_while_another_owner_refuses_and_all_are_asked_again() {
    let (config, mut writes) = (Config::default(), Writes::default());
    let map = two_owners();
    let scopes = vec![Scope::Token(i64::MIN), Scope::Token(i64::MAX)];
    let (out, _) = step(0, |io| {
        let number = writes.begin(7, (scopes, Detail::from([])), &map, io);
        writes.advance(number, &map, &config, io).0
    });
    let [Message::Begin { number, attempt, .. }, Message::Begin { attempt: second, .. }] = out[..]
    else {
        panic!("{out:?}")
    };
    writes.answered(number, OWNER, attempt, config.lease);
    let back = writes.refused((number, OTHER, second), (&map, &config), 1);
    let end = Message::End { number, outcome: Outcome::Refused };
    assert_eq!(format!("{back:?}"), format!("{:?}", [(OWNER, end.clone()), (OTHER, end)]));
    let [again] = writes.numbers()[..] else { panic!("{:?}", writes.numbers()) };
    assert!(again > number, "an owner that hears of the end grants nothing for its number");
    let asked = |writes: &mut Writes, now, map: &Map| {
        let mut asked = writes.clone();
        let mut silent = Vec::new();
        let (out, _) = step(now, |io| {
            let (out, nobody) = asked.advance(again, map, &config, io);
            silent = nobody;
            out
        });
        assert!(silent.is_empty(), "both have answered");
        out.len()
    };
    assert_eq!(asked(&mut writes, config.retry, &map), 0, "it would refuse again");
    assert_eq!(asked(&mut writes, 1 + config.retry, &map), 2);
    assert_eq!(asked(&mut writes, 2, &map.next()), 2, "the shard has moved");
    // It waits no longer for all that.
    let (_, actions) = step(config.write, |io| writes.give_up(again, (&map, &config), io));
    assert!(matches!(actions[..], [Action::Fail { client: 7, .. }]), "{actions:?}");
}

/// Its permit has come with the shard to somebody whom no BEGIN was sent to.
#[test]
fn the_present_owner_hears_of_the_end_of_a_write_whose_shard_has_moved() {
    let config = Config::default();
    for (late, moves) in [(false, false), (false, true), (true, true)] {
        let (mut writes, mut map) = (Writes::default(), two_owners());
        let (out, _) = step(0, |io| {
            let scopes = vec![Scope::Token(i64::MIN)];
            let number = writes.begin(7, (scopes, Detail::from([])), &map, io);
            writes.advance(number, &map, &config, io).0
        });
        let [Message::Begin { number, attempt, .. }] = out[..] else { panic!("{out:?}") };
        writes.answered(number, OWNER, attempt, config.lease);
        step(1, |io| writes.advance(number, &map, &config, io).0);
        if moves {
            map = map.next();
            map.give(0, Some(OTHER));
        }
        let mut told = Vec::new();
        let now = if late { config.lease } else { 2 };
        step(now, |io| {
            told = writes.written(number, WriteResult::Done, &map, io);
            if late {
                let (out, _) = writes.advance(number, &map, &config, io);
                let [(OTHER, Message::Drop { attempt, .. })] = out[..] else { panic!("{out:?}") };
                writes.answered(number, OTHER, attempt, 0);
                told = writes.advance(number, &map, &config, io).0;
            }
            Vec::new()
        });
        let whom: Vec<_> = told.iter().map(|(to, _)| *to).collect();
        assert_eq!(whom, if moves { vec![OWNER, OTHER] } else { vec![OWNER] });
    }
}

/// Owners ask for an END that they have not got.
#[test]
fn how_a_write_has_ended_is_known_until_many_others_have_not_settled() {
    let (mut writes, map) = (Writes::default(), two_owners());
    let end = |writes: &mut Writes, outcome| {
        step(0, |io| {
            writes.begin(7, (vec![Scope::Token(1)], Detail::from([])), &map, io);
            Vec::new()
        });
        assert_eq!(writes.ended(writes.next), None, "it is under way");
        writes.finish(writes.next, outcome, &map)
    };
    for (outcome, said) in [
        (Outcome::Settled, Outcome::Settled),
        (Outcome::Unknown, Outcome::Unknown),
        (Outcome::Weak, Outcome::Weak),
        (Outcome::Refused, Outcome::Settled),
    ] {
        end(&mut writes, outcome);
        assert_eq!(writes.ended(writes.next), Some(said));
    }
    assert_eq!(writes.ended(5), None, "nobody has written it");
    let all = |writes: &Writes| [1, 2, 3, 4, 5].map(|number| writes.ended(number));
    let (settled, weak, unknown) =
        (Some(Outcome::Settled), Some(Outcome::Weak), Some(Outcome::Unknown));
    for _ in 0..MOST_REMEMBERED {
        end(&mut writes, Outcome::Weak);
    }
    assert_eq!(all(&writes), [weak, unknown, weak, settled, weak], "it may have been weak");
    for _ in 0..MOST_REMEMBERED {
        end(&mut writes, Outcome::Unknown);
    }
    assert_eq!(all(&writes), [None, None, weak, settled, weak]);
    assert_eq!((writes.unknown.len(), writes.weak.len()), (MOST_REMEMBERED, MOST_REMEMBERED));
    end(&mut writes, Outcome::Decided);
    assert_eq!(writes.ended(writes.next), Some(Outcome::Decided));
}

/// Nobody else waits for it, and its number may be asked for again.
#[test]
fn a_write_with_one_owner_keeps_its_number_when_that_refuses() {
    let (config, mut writes) = (Config::default(), Writes::default());
    let mut map = Map { version: 1, ..Map::empty(1) };
    map.put(OWNER, Incarnation(1), Profile::default());
    map.give(0, Some(OWNER));
    let (out, _) = step(0, |io| {
        let number = writes.begin(7, (vec![Scope::All], Detail::from([])), &map, io);
        writes.advance(number, &map, &config, io).0
    });
    let [Message::Begin { number, attempt, .. }] = out[..] else { panic!("{out:?}") };
    let (out, _) = step(1, |io| {
        assert!(writes.refused((number, OWNER, attempt), (&map, &config), 1).is_empty());
        writes.advance(number, &map, &config, io).0
    });
    assert!(out.is_empty(), "not yet");
    assert_eq!(writes.numbers(), [number]);
}

/// Whoever takes the shard may fill its rows at once, and knows nothing of the write.
#[test]
fn a_write_of_a_shard_that_nobody_owns_waits_for_an_owner() {
    let (config, mut writes) = (Config::default(), Writes::default());
    let mut map = two_owners();
    map.give(0, None);
    let scopes = vec![Scope::Token(i64::MIN), Scope::Token(i64::MAX)];
    let (out, actions) = step(0, |io| {
        let number = writes.begin(7, (scopes, Detail::from([])), &map, io);
        writes.advance(number, &map, &config, io).0
    });
    assert!(out.is_empty() && actions.is_empty());
}

#[test]
fn a_late_write_whose_rows_nobody_drops_is_not_acknowledged() {
    let (config, mut writes, map) = (Config::default(), Writes::default(), two_owners());
    let (out, _) = step(0, |io| {
        writes.begin(7, (vec![Scope::Token(i64::MIN)], Detail::from([])), &map, io);
        writes.advance(1, &map, &config, io).0
    });
    let [Message::Begin { attempt, .. }] = out[..] else { panic!("{out:?}") };
    writes.answered(1, OWNER, attempt, config.lease);
    step(1, |io| writes.advance(1, &map, &config, io).0);
    step(config.lease, |io| writes.written(1, WriteResult::Done, &map, io));
    let late = config.lease + config.write;
    let (out, actions) = step(late, |io| writes.give_up(1, (&map, &config), io));
    assert!(matches!(actions[..], [Action::Fail { client: 7, reason: FailReason::Unknown }]));
    assert!(matches!(out[..], [Message::End { outcome: Outcome::Unknown, .. }]), "{out:?}");
}
