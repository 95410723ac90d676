//! Settings and clocks decide who joins, clocks who is accused, settings which rows count.

use super::super::alone::{Alone, ME, OTHER, THIRD, TICK, map, profile};
use super::*;
use crate::config::Config;
use crate::custody::{Durable, Kept};
use crate::identity::{Incarnation, RingId};
use crate::join::Founding;
use crate::member::MapLoss;
use crate::message::{Message, RowKey, Scope, ShardState};
use crate::schema::SchemaVersion;
use crate::settings::Agreement;
use crate::terms::OlderRow;

#[test]
fn an_instance_with_other_settings_does_not_join_until_they_are_the_ring_s() {
    let mut joiner = Alone::new("b", map(&[(OTHER, "a")]));
    joiner.run(20_000_000);
    assert!(joiner.tried.is_empty(), "it has joined");
    assert_eq!(joiner.member.agreement(), Agreement::Differs(OTHER));
    joiner.member.set_settings(profile("a").settings);
    joiner.run(4 * TICK);
    assert!(joiner.member.is_active());
    assert_eq!(joiner.member.agreement(), Agreement::Same);
}

#[test]
fn an_instance_that_restarts_with_other_settings_does_not_take_its_place() {
    let before = map(&[(OTHER, "a"), (ME, "a")]);
    let mut restarted = Alone::new("b", before.clone());
    restarted.run(20_000_000);
    assert!(restarted.tried.is_empty());
    let mut restarted = Alone::new("a", before.clone());
    restarted.run(TICK);
    assert!(restarted.member.is_active());
    // Where no member answers there is nobody to differ from.
    let mut last = Alone::new("b", before);
    last.answers = false;
    last.run(6_000_000);
    assert!(last.member.is_active());
}

#[test]
fn a_member_puts_its_new_settings_into_the_map() {
    let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    member.run(4 * TICK);
    member.tried.clear();
    let before = member.map.clone();
    member.member.set_settings(profile("b").settings);
    assert_eq!(member.member.agreement(), Agreement::Differs(OTHER));
    member.run(20 * TICK);
    let [after] = &member.tried[..] else { panic!("{:?}", member.tried) };
    assert_eq!(after.entry(ME).unwrap().profile.settings, profile("b").settings);
    assert_eq!((&after.shards, after.members.len()), (&before.shards, 2));
    assert!(member.member.lease_end() > member.now, "it goes on granting writes");
}

/// A second in a hundred too fast.
#[test]
fn a_member_whose_clock_drifts_is_promised_nothing_and_accused_where_others_run_alike() {
    for (members, accused) in [(&[OTHER, ME][..], false), (&[OTHER, ME, THIRD], true)] {
        let all: Vec<_> = members.iter().map(|id| (*id, "a")).collect();
        let mut ours = Alone::new("a", map(&all));
        ours.run(4 * TICK);
        let ping = |ours: &Alone| Message::Ping { hash: ours.map.fingerprint(), sent: ours.now };
        ours.say(OTHER, ping(&ours));
        ours.drifts = true;
        ours.run(5_000_000);
        ours.say(OTHER, ping(&ours));
        assert_eq!(ours.promised, [true, false]);
        // Whoever is accused is no active member any more.
        let suspects = if accused { Vec::new() } else { vec![OTHER] };
        assert_eq!(ours.member.drifting(ours.now), (suspects, !accused));
        // Its shards have gone to others by now.
        assert_eq!(ours.map.entry(OTHER).is_none(), accused, "{members:?}");
    }
}

#[test]
fn an_instance_whose_clock_drifts_does_not_join() {
    let mut joiner = Alone::new("a", map(&[(OTHER, "a")]));
    joiner.drifts = true;
    joiner.run(1_000_000);
    joiner.run(20_000_000);
    assert!(joiner.tried.is_empty(), "it has joined");
    assert_eq!(joiner.member.drifting(joiner.now), (vec![OTHER], true));
}

/// Two of three that have lost the third go on, whichever ids they have.
#[test]
fn whoever_reaches_less_than_half_of_the_members_accuses_later() {
    let wait = |answering: &[MemberId]| {
        let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a"), (THIRD, "a")]));
        ours.run(70_000_000);
        ours.tried.clear();
        (ours.answers, ours.answering) = (false, answering.to_vec());
        let began = ours.now;
        while ours.tried.is_empty() {
            ours.run(TICK);
        }
        ours.now - began
    };
    let config = Config::default();
    let first = config.silence + config.rank_step;
    let [one, both] = [wait(&[OTHER]), wait(&[])];
    assert!(one < first + 3 * TICK, "{one}");
    // The latest of the two others is before the lowest of those that are alone.
    assert!(both >= first + 3 * config.rank_step && both < first + 3 * config.rank_step + 4 * TICK);
}

/// It answers PINGs, and soon it has no lease: nobody could write its rows.
#[test]
fn a_member_that_has_lost_the_database_is_accused_by_who_has_it() {
    let second = 1_000_000;
    // The other's last read was then.
    let ours = |last: Time| {
        let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a"), (THIRD, "a")]));
        ours.run(70 * second);
        ours.blind_since = Some(last * second);
        ours
    };
    let accused =
        |ours: &Alone| ours.map.entry(OTHER).is_none_or(|o| o.standing == Standing::Accused);
    let mut seeing = ours(55);
    seeing.run(18 * second);
    assert!(!accused(&seeing), "the database may be back for all since a moment ago");
    seeing.run(2 * second);
    assert!(accused(&seeing), "it has 27 s of its lease left");
    // Nobody has it. Once it is back for us, the other has the time to read the map too.
    let mut blind = ours(45);
    blind.sees = false;
    blind.run(50 * second);
    blind.sees = true;
    blind.run(5 * second);
    assert!(!accused(&blind));
    blind.run(2 * second);
    assert!(accused(&blind));
}

/// The other one may be back in a moment.
#[test]
fn whoever_leaves_is_not_the_last_at_once_because_another_one_is_put_out() {
    let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    ours.run(70_000_000);
    ours.answers = false;
    ours.run(1_000_000);
    assert!(ours.map.accused().next().is_some());
    ours.member.leave();
    ours.run(14_000_000);
    assert!(ours.map.entry(OTHER).is_none(), "it is put out");
    assert_eq!(ours.map.owner_of(TOKEN), Some(ME), "somebody owns its rows");
    let accused = ours.member.accusations();
    assert!(accused.contains(&(OTHER, Suspicion::Silent)) && ours.member.accusations().is_empty());
    ours.run(4_000_000);
    assert!(ours.map.members.is_empty(), "and does as it was told in the end");
}

/// It may have died a moment ago, and nobody has noticed yet.
#[test]
fn whoever_owns_nothing_leaves_the_ring_to_nobody_who_does_not_answer() {
    let ours = |answers: bool| {
        let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
        ours.run(70_000_000);
        ours.answers = answers;
        ours.member.leave();
        ours
    };
    let mut well = ours(true);
    well.run(1_000_000);
    assert!(well.map.entry(ME).is_none() && well.map.entry(OTHER).is_some());
    let mut bereft = ours(false);
    bereft.run(14_000_000);
    assert!(bereft.map.entry(OTHER).is_none(), "it is put out");
    assert_eq!(bereft.map.owner_of(TOKEN), Some(ME), "somebody owns its rows");
    bereft.run(5_000_000);
    assert!(bereft.map.members.is_empty(), "and does as it was told in the end");
}

/// The PONG was on its way while its sender died.
#[test]
fn whoever_owns_nothing_believes_no_answer_to_a_ping_of_before_it_wants_to_go() {
    let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    ours.run(70_000_000);
    (ours.answers, ours.member.leaving) = (false, true);
    for (waits, is_there) in [(2 * TICK, true), (0, false)] {
        let (hash, sent, to) = (ours.member.hash, ours.now, ours.member.life());
        ours.run(waits);
        ours.say(OTHER, Message::Pong { hash, sent, to, promise: true, clock: ours.now, blind: 0 });
        ours.run(2 * TICK);
        assert_eq!(ours.map.entry(ME).is_some(), is_there, "the other may be dead");
    }
}

/// Its operator may have started it again to have it stay.
#[test]
fn whoever_was_leaving_when_it_was_killed_is_a_member_again_and_knows_it() {
    let mut before = map(&[(OTHER, "a"), (ME, "a")]);
    before.members[1].leaving = true;
    let mut ours = Alone::new("a", before);
    ours.run(5_000_000);
    assert!(ours.member.is_active() && !ours.map.entry(ME).is_some_and(|entry| entry.leaving));
    assert!(ours.member.has_given_up_leaving());
    ours.member.leave();
    assert!(!ours.member.has_given_up_leaving());
    ours.run(5_000_000);
    assert_eq!(ours.map.entry(ME), None, "told again it leaves");
    let mut plain = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    plain.run(5_000_000);
    assert!(plain.member.is_active() && !plain.member.has_given_up_leaving());
}

#[test]
fn whoever_is_accused_joins_again_under_another_incarnation() {
    let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    ours.run(4 * TICK);
    let before = ours.member.identity().expect("a member");
    let mut accused = ours.map.next();
    accused.accuse(before);
    ours.map = Arc::new(accused);
    ours.say(OTHER, Message::MapIs(ours.map.clone()));
    assert_eq!(ours.member.lease_end(), 0);
    ours.run(5_000_000);
    assert!(ours.member.identity().is_some_and(|after| after != before));
}

#[test]
fn whoever_leaves_is_a_member_until_its_shards_have_gone() {
    let mut before = map(&[(OTHER, "a"), (ME, "a")]);
    before.give(0, Some(ME));
    let mut ours = Alone::new("a", before);
    ours.run(70_000_000);
    ours.member.leave();
    ours.run(5_000_000);
    assert!(ours.map.entry(ME).is_some_and(|entry| entry.leaving), "nobody has asked for them");
    let mut gone = ours.map.next();
    gone.give(0, Some(OTHER));
    ours.map = Arc::new(gone);
    ours.say(OTHER, Message::MapIs(ours.map.clone()));
    ours.run(5_000_000);
    assert_eq!(ours.map.entry(ME), None);
}

/// Its transaction would get no answer, and until it has one the other gets no promise.
#[test]
fn a_member_without_the_database_goes_on_to_promise_whom_it_would_accuse() {
    let promises = |sees: bool| {
        let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a"), (THIRD, "a")]));
        // It has read the map a moment ago.
        ours.run(80_200_000);
        (ours.sees, ours.answers) = (sees, false);
        ours.run(2_000_000);
        let hash = ours.member.hash;
        ours.say(OTHER, Message::Ping { hash, sent: ours.now });
        *ours.promised.last().expect("an answer")
    };
    assert!(promises(false) && !promises(true));
}

/// A second process runs with a copy of the data directory.
#[test]
fn another_process_with_the_same_id_is_noticed_by_who_had_the_place() {
    let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    assert!(!ours.member.has_twin());
    ours.run(4 * TICK);
    assert!(ours.member.is_active() && !ours.member.has_twin(), "an earlier process had the place");
    let mut next = ours.map.next();
    next.put(ME, Incarnation(555), profile("a"));
    ours.map = Arc::new(next);
    ours.say(OTHER, Message::MapIs(ours.map.clone()));
    assert!(!ours.member.is_active() && ours.member.has_twin());
}

const TOKEN: i64 = 7;
const HEARD: SchemaVersion = SchemaVersion(3);

impl Alone {
    /// A member that takes the shard in its third epoch. The old owner has `theirs` then.
    fn that_takes_the_shard(theirs: &str) -> Self {
        Self::that_takes_the_shard_of((theirs, HEARD), HEARD)
    }

    /// The same. The old owner has these settings and has heard of changes of the schema up to
    /// there; and so has the member.
    fn that_takes_the_shard_of(
        (theirs, heard): (&str, SchemaVersion),
        schema: SchemaVersion,
    ) -> Self {
        let mut before = map(&[(OTHER, "a"), (ME, "a")]);
        before.give(0, Some(OTHER));
        let mut member = Alone::new("a", before);
        member.member.set_schema(schema);
        member.run(4 * TICK);
        let mut next = member.map.next();
        next.members[0].profile = profile(theirs);
        member.map = Arc::new(next);
        let map = member.map.clone();
        member.say(OTHER, Message::MapIs(map));
        member.act(|member, io| member.want(0, io));
        let dirty = vec![(2, vec![0; 16])];
        let state = ShardState { epoch: 2, dirty, ..ShardState::default() };
        let (to, version) = (member.member.life(), member.map.version);
        member.say(OTHER, Message::Handover { to, version, schema: heard, states: vec![state] });
        assert_eq!(member.map.shards[0].owner, Some(ME));
        member
    }

    /// From which epochs on its rows count.
    pub(in crate::member) fn counts(&self) -> [bool; 2] {
        [1, 2].map(|epoch| {
            let row = OlderRow { token: TOKEN, epoch, absent: 0 };
            self.member.counts_still(row)
        })
    }
}

/// Its file is older than its last map. The earlier process may have granted writes under an epoch
/// that the file does not have, and the bits of these are lost. The old owner still has its rows.
#[test]
fn an_epoch_that_an_earlier_process_may_have_had_says_nothing_of_what_was_written() {
    let mut before = map(&[(OTHER, "a"), (ME, "a")]);
    before.give(0, Some(ME));
    let kept = Kept { ring: RingId(77), shards: Vec::new() };
    let mut restarted = Alone::with(Durable::keep(kept), "a", before);
    restarted.member.set_schema(HEARD);
    restarted.run(4 * TICK);
    assert!(restarted.member.is_active());
    let shard = restarted.map.shards[0];
    assert_eq!((shard.owner, shard.epoch), (Some(ME), 2), "it has its place and its shard again");
    // The next owner would take clean bits for the truth.
    assert_eq!(restarted.member.custody().dirty_epochs(0), []);
    let taker = Alone::that_takes_the_shard("a");
    assert_eq!(taker.member.custody().dirty_epochs(0), [2, 3]);
}

/// Under other settings others may write past the ring, so that no bit is set.
#[test]
fn no_row_of_before_a_change_of_the_settings_counts_after_it() {
    let mut member = Alone::that_takes_the_shard("a");
    assert_eq!(member.counts(), [true, true]);
    for policy in ["b", "a"] {
        member.member.set_settings(profile(policy).settings);
    }
    assert_eq!(member.counts(), [false, false]);
}

#[test]
fn dirty_bits_of_an_owner_with_other_settings_say_nothing() {
    assert_eq!(Alone::that_takes_the_shard("b").counts(), [false, true]);
}

/// It has lost its connection to the database, and a keyspace has got more replicas since. The new
/// owner has come after that.
#[test]
fn a_shard_of_an_owner_that_has_not_heard_of_the_same_changes_of_the_schema_is_weak() {
    let unknown = SchemaVersion::default();
    for (theirs, ours, weak) in [
        (HEARD, HEARD, false),
        (HEARD, SchemaVersion(4), true),
        (unknown, HEARD, true),
        (HEARD, unknown, true),
        (unknown, unknown, true),
    ] {
        let member = Alone::that_takes_the_shard_of(("a", theirs), ours);
        let later = member.now + member.member.config.stretched(member.member.config.lease);
        // Callers that fill weak shards do so for a short time only, others not at all.
        let terms = |now| member.member.fill_terms(TOKEN, now).map(|terms| terms.weak);
        assert_eq!(terms(member.now), (!weak).then_some(false), "{theirs:?} {ours:?}");
        let custody = member.member.custody();
        assert_eq!(custody.kept().next().expect("a shard").2 > later, weak, "for a hold");
    }
}

/// The other was started in another data centre, with its identity, its address, the ring's name
/// and its secret. There it is a member of another ring, whose map has its own versions and owners.
#[test]
fn a_member_of_another_ring_is_not_heard() {
    for (theirs, is_heard) in [(RingId(1), true), (RingId(2), false)] {
        let mut before = map(&[(OTHER, "a"), (ME, "a")]);
        (before.ring, before.shards[0].owner) = (RingId(1), Some(ME));
        let mut member = Alone::new("a", before);
        member.run(4 * TICK);
        assert!(member.member.is_active() && member.member.lease_end() > member.now);
        let (number, attempt, detail) = (1, 1, [].into());
        let scopes = vec![Scope::Token(TOKEN)];
        member.say_in(theirs, OTHER, Message::Begin { number, attempt, scopes, detail });
        assert_eq!(member.granted, usize::from(is_heard), "its map has other owners");
        member.say_in(theirs, OTHER, Message::Ping { hash: member.member.hash, sent: 1 });
        assert_eq!(member.promised.len(), usize::from(is_heard));
        let version = member.member.version();
        let mut newer = map(&[(OTHER, "a")]);
        (newer.version, newer.ring) = (version + 1, theirs);
        member.say_in(theirs, OTHER, Message::MapIs(Arc::new(newer)));
        assert_eq!(member.member.version(), version + u64::from(is_heard), "its map is not ours");
    }
}

/// Somebody has emptied the ring's row, and its members do not know that yet: they have leases.
#[test]
fn a_ring_is_founded_when_the_leases_of_one_before_it_have_ended() {
    let config = Config::default();
    for (founding, wait) in [
        (Founding::AtOnce, Some(0)),
        (Founding::NotYet, None),
        (Founding::AfterLeases, Some(config.stretched(config.confirm))),
    ] {
        let mut member = Alone::new("a", Map::empty(1));
        member.member.set_founding(founding);
        while member.now < 2 * config.confirm && member.tried.is_empty() {
            member.run(TICK);
        }
        let founded = (!member.tried.is_empty()).then_some(member.now);
        match wait {
            Some(wait) => assert!(
                founded.is_some_and(|at| at >= wait && at <= wait + 10 * TICK),
                "{founding:?} {founded:?}"
            ),
            None => assert_eq!(founded, None),
        }
    }
}

/// Its changes would apply to the next ring's map, as soon as that has come to the same version.
#[test]
fn a_member_whose_ring_is_gone_changes_no_map() {
    let members = [(OTHER, "a"), (ME, "a")];
    let mut next = map(&members);
    next.ring = RingId(2);
    for gone in [None, Some(Map::empty(1)), Some(next)] {
        let mut before = map(&members);
        before.ring = RingId(1);
        let mut member = Alone::new("a", before);
        member.run(4 * TICK);
        assert!(member.member.is_active());
        let (tried, is_gone) = (member.tried.len(), gone.is_some());
        if let Some(mut gone) = gone {
            gone.version = gone.version.min(member.member.version());
            member.map = Arc::new(gone);
        }
        member.run(member.member.config.confirm / 3 + TICK);
        member.answers = false;
        member.run(20 * TICK);
        assert_eq!(member.tried.len() == tried, is_gone, "else it accuses the other");
    }
}

/// Somebody has emptied the ring's row, and the next ring's map comes to the version of ours. Or
/// the row is an older one of our ring, as after a restore, and goes on from there without us.
#[test]
fn a_map_that_is_not_the_adopted_one_gives_no_lease_whatever_its_version() {
    // Ring, version beside that of ours, whether a member is another, and what that means: of what
    // is found one after the other. Then whether rows of before count.
    let (emptied, older) = (Some(MapLoss::Emptied), Some(MapLoss::Older));
    for (found, stay) in [
        ([(1, 0, false, None), (1, 1, false, None)], true),
        ([(2, 0, false, emptied), (2, 0, true, emptied)], true),
        ([(1, -1, false, older), (1, 0, false, None)], true),
        ([(1, 0, true, older), (1, 1, true, None)], false),
        ([(1, -1, false, older), (1, 1, true, None)], false),
    ] {
        let mut before = map(&[(OTHER, "a"), (ME, "a")]);
        before.ring = RingId(1);
        let mut member = Alone::new("a", before);
        let row = RowKey { token: TOKEN, bytes: Vec::new() };
        member.run(4 * TICK);
        member.rows.install(&row, (1, 0), None, false);
        assert!(member.member.is_active() && member.member.lease_end() > member.now);
        let ours = member.map.clone();
        for (ring, apart, is_other, loss) in found {
            let mut map = Map::clone(&ours);
            (map.ring, map.version) = (RingId(ring), map.version.strict_add_signed(apart));
            map.members[0].profile.weight += u32::from(is_other);
            member.map = Arc::new(map);
            member.run(member.member.config.confirm / 3 + 20 * TICK);
            assert_eq!(member.member.map_loss(), loss);
            assert_eq!(member.member.lease_end() > member.now, loss.is_none(), "{loss:?}");
            let blind = member.member.blind(member.now);
            assert!(loss.is_none() || blind > member.member.config.silence, "others see it");
        }
        assert_eq!(member.rows.get(&row).is_some(), stay, "{found:?}");
    }
}

/// Somebody has dropped its keyspace. A read may be on its way that has found the map.
#[test]
fn no_read_from_before_the_map_s_table_was_dropped_gives_a_lease() {
    let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    member.run(4 * TICK);
    assert!(member.member.lease_end() > member.now);
    // It may be made anew before all nodes know that it is gone.
    for told in [&[false][..], &[true], &[true, false]] {
        let (map, is_gone) = (member.map.clone(), told[0]);
        member.act(|member, io| {
            member.reads.due = io.now;
            member.reads.under_way = None;
            member.read_map(io);
            let sent = member.reads.next;
            told.iter().for_each(|is_gone| member.doubt_map(*is_gone, io));
            assert_eq!(member.lease_end(), 0);
            member.map_read(sent, Some(map), io);
            assert_eq!(member.lease_end(), 0);
        });
        member.run(TICK);
        assert!(!is_gone || member.member.lease_end() == 0, "nodes that lag show it still");
        member.run(4 * TICK);
        assert!(member.member.lease_end() > member.now, "the map is there still");
    }
}

/// A read is on its way while the map goes on.
#[test]
fn a_map_that_is_overtaken_says_nothing() {
    let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
    member.run(4 * TICK);
    let old = member.map.clone();
    let newer = Arc::new(old.next());
    member.sees = false;
    member.act(|member, io| {
        member.reads.due = io.now;
        member.reads.under_way = None;
        member.read_map(io);
        let sent = member.reads.next;
        member.adopt(newer.clone(), io);
        member.map_read(sent, Some(old.clone()), io);
        assert_eq!(member.map_loss(), None);
    });
}

/// Its database is a copy of ours, and so are the ring's number and secret.
#[test]
fn the_map_of_a_stranger_is_adopted_if_the_database_has_it() {
    for (from, is_adopted) in [(OTHER, true), (THIRD, false)] {
        let mut member = Alone::new("a", map(&[(OTHER, "a"), (ME, "a")]));
        member.run(4 * TICK);
        let newer = Arc::new(member.map.next());
        let version = newer.version;
        member.say(from, Message::MapIs(newer.clone()));
        assert_eq!(member.member.version() == version, is_adopted);
        member.map = newer;
        member.run(4 * TICK);
        assert_eq!(member.member.version(), version, "the database has it now");
    }
}

#[test]
fn what_the_database_refuses_is_tried_ever_more_rarely_and_soon_after_it_no_longer_does() {
    let mut alone = Alone::new("a", map(&[]));
    alone.run(5_000_000);
    assert!(alone.member.is_active());
    (alone.refuses, alone.answers) = (true, false);
    let before = alone.tried.len();
    alone.act(|member, _| member.set_settings(profile("b").settings));
    alone.run(300_000);
    assert!(alone.tried.len() > before, "it tries at once");
    alone.run(60_000_000);
    let tried = alone.tried.len() - before;
    let most = 60_000_000 / Config::default().transaction + 8;
    assert!(tried as u64 <= most, "{tried} times in a minute");
    assert!(alone.member.lease_end() > alone.now, "reads of the map go on");
    alone.refuses = false;
    alone.run(Config::default().transaction + 2 * TICK);
    let ours = alone.map.entry(ME).expect("a member");
    assert_eq!(ours.profile.settings, profile("b").settings, "tried again within the bound");
}

#[test]
fn a_member_asks_for_no_shards_while_its_next_transaction_waits() {
    let mut before = map(&[(OTHER, "a"), (ME, "a")]);
    before.members[0].profile.weight = 0;
    let mut ours = Alone::new("a", before);
    ours.run(2 * TICK);
    ours.member.set_settings(profile("b").settings);
    for (refuses, asks) in [(true, false), (false, true)] {
        ours.refuses = refuses;
        ours.run(60_000_000);
        assert_eq!(ours.wanted > 0, asks);
    }
}
