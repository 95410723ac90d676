//! Settings and clocks decide who joins, clocks who is accused, settings which rows count.

use super::*;
use crate::config::{Config, Time};
use crate::custody::{Durable, Kept};
use crate::identity::{Incarnation, RingId};
use crate::io::TransactionResult;
use crate::join::Founding;
use crate::map::{Profile, Setting};
use crate::message::{Envelope, Message, Scope, ShardState};
use crate::schema::SchemaVersion;
use crate::settings::Agreement;

const OTHER: MemberId = MemberId(1);
const ME: MemberId = MemberId(2);
const THIRD: MemberId = MemberId(3);
const TICK: Time = 100_000;

fn profile(policy: &str) -> Profile {
    let setting = Setting { name: "table-policy".into(), value: policy.into() };
    Profile { weight: 1, settings: vec![setting], ..Profile::default() }
}

/// A map in which the other has the policy `a`.
fn map(members: &[(MemberId, &str)]) -> Map {
    let mut map = Map::empty(1);
    for (id, policy) in members {
        map.version += 1;
        map.put(*id, Incarnation(id.0.into()), profile(policy));
    }
    map.give(0, Some(OTHER));
    map
}

/// An instance whose map in the database never changes by others.
struct Alone {
    member: Member,
    map: Arc<Map>,
    now: Time,
    /// Whether the others answer, and who does if not.
    answers: bool,
    answering: Vec<MemberId>,
    /// Whether the other's clock runs too fast.
    drifts: bool,
    /// When the database last answered the other, if it does not all the time.
    blind_since: Option<Time>,
    /// Whether the database answers the instance.
    sees: bool,
    /// What it has tried to put in.
    tried: Vec<Arc<Map>>,
    /// Its answers to PINGs.
    promised: Vec<bool>,
    /// How many writes of others it has granted.
    granted: usize,
    random: u128,
}

impl Alone {
    fn new(policy: &str, map: Map) -> Self {
        Self::with(Durable::default(), policy, map)
    }

    fn with(durable: Durable, policy: &str, map: Map) -> Self {
        let (mut rows, mut random) = (crate::sim::rows(), || 100);
        let mut io = Io { now: 0, rows: &mut rows, random: &mut random, actions: Vec::new() };
        let config = Arc::new(Config { shards: 1, ..Config::default() });
        let member = Member::start(ME, profile(policy), config, durable, &mut io);
        let (map, tried, promised) = (Arc::new(map), Vec::new(), Vec::new());
        let (answers, drifts, granted, random) = (true, false, 0, 100);
        let (blind_since, sees) = (None, true);
        Self {
            member,
            map,
            now: 0,
            answers,
            answering: Vec::new(),
            drifts,
            blind_since,
            sees,
            tried,
            promised,
            granted,
            random,
        }
    }

    fn act(&mut self, act: impl FnOnce(&mut Member, &mut Io<'_>)) {
        let (mut rows, mut next) = (crate::sim::rows(), self.random);
        let mut random = || {
            next += 1;
            next
        };
        let mut io =
            Io { now: self.now, rows: &mut rows, random: &mut random, actions: Vec::new() };
        act(&mut self.member, &mut io);
        let actions = io.actions;
        self.random = next;
        actions.into_iter().for_each(|action| self.carry_out(action));
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::ReadMap { id } => {
                let map = Some(self.map.clone()).filter(|_| self.sees);
                self.act(|member, io| member.map_read(id, map, io));
            }
            Action::Transact { id, map } => {
                self.tried.push(map.clone());
                self.map = map;
                self.act(|member, io| member.transacted(id, TransactionResult::Applied, io));
            }
            Action::Send { to, envelope } => match envelope.message {
                Message::Ping { hash, sent } if self.answers || self.answering.contains(&to) => {
                    let (life, clock) = (envelope.life, self.clock_of(to));
                    let since = self.blind_since.filter(|_| to == OTHER);
                    let blind = since.map_or(0, |since| self.now - since);
                    let promise = true;
                    let pong = Message::Pong { hash, sent, to: life, promise, clock, blind };
                    self.say_in(envelope.ring, to, pong);
                }
                Message::Pong { promise, .. } => self.promised.push(promise),
                Message::Grant { .. } => self.granted += 1,
                _ => {}
            },
            _ => {}
        }
    }

    /// Another member says something.
    fn say(&mut self, from: MemberId, message: Message) {
        self.say_in(self.map.ring, from, message);
    }

    /// An instance says something that is a member of that ring.
    fn say_in(&mut self, ring: RingId, from: MemberId, message: Message) {
        let envelope = Envelope {
            from,
            life: Incarnation(50),
            incarnation: Incarnation(from.0.into()),
            ring,
            version: self.map.version,
            message,
        };
        self.act(|member, io| member.receive(envelope, io));
    }

    fn clock_of(&self, who: MemberId) -> Time {
        if self.drifts && who == OTHER { self.now + self.now / 100 } else { self.now }
    }

    fn run(&mut self, time: Time) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            self.act(|member, io| member.tick(io));
        }
    }
}

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
    // The map is read every 20 s; the other's last read was then.
    let ours = |last: Time| {
        let mut ours = Alone::new("a", map(&[(OTHER, "a"), (ME, "a"), (THIRD, "a")]));
        ours.run(70 * second);
        ours.blind_since = Some(last * second);
        ours
    };
    let accused =
        |ours: &Alone| ours.map.entry(OTHER).is_none_or(|o| o.standing == Standing::Accused);
    let mut seeing = ours(55);
    seeing.run(29 * second);
    assert!(!accused(&seeing), "the database may have gone for all since our own last read");
    seeing.run(3 * second);
    assert!(accused(&seeing));
    // Nobody has it. Once it is back for us, the other has the time to be confirmed too.
    let mut blind = ours(45);
    blind.sees = false;
    blind.run(50 * second);
    blind.sees = true;
    blind.run(14 * second);
    assert!(!accused(&blind));
    blind.run(8 * second);
    assert!(accused(&blind));
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
        let state = ShardState { shard: 0, epoch: 2, weak: 0, holds: Vec::new(), dirty };
        let (to, version) = (member.member.life(), member.map.version);
        member.say(OTHER, Message::Handover { to, version, schema: heard, states: vec![state] });
        assert_eq!(member.map.shards[0].owner, Some(ME));
        member
    }

    /// From which epochs on its rows count.
    fn counts(&self) -> [bool; 2] {
        [1, 2].map(|epoch| self.member.counts_still(TOKEN, epoch))
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
        assert_eq!(custody.kept()[0].2 > later, weak, "for a hold");
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
