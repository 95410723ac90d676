//! What an owner takes over, keeps and hands on.

use super::*;
use crate::identity::Incarnation;
use crate::map::Profile;
use crate::message::Detail;
use crate::sim::bit_of;

impl Custody {
    /// For the oracles: whether a cached row could be served, were the lease valid.
    pub fn row_counts(&self, map: &Map, me: MemberId, row: OlderRow) -> bool {
        let shard = map.shard_of(row.token);
        self.answers_for(map, me, row.token)
            && self.counts(shard as u16, row, map.shards[shard].epoch)
    }

    /// For the oracles: whether a write to this token is known.
    pub fn knows_of_a_write(&self, map: &Map, token: i64, now: Time) -> bool {
        !self.may_fill(map.shard_of(token) as u16, token, now)
    }

    /// For the oracles: whether this member would serve the shard under a lease.
    pub fn serves(&self, map: &Map, me: MemberId, shard: usize) -> bool {
        map.shards[shard].owner == Some(me) && !self.leaving.contains_key(&(shard as u16))
    }
}

const OLD: MemberId = MemberId(1);
const NEW: MemberId = MemberId(2);
const TOKEN: i64 = 7;
const RING: RingId = RingId(5);

impl Custody {
    /// The epochs of a shard whose dirty bits are known.
    pub(crate) fn dirty_epochs(&self, shard: u16) -> Vec<u64> {
        self.dirty.of(shard).into_iter().map(|(epoch, _)| epoch).collect()
    }
}

/// A row that was cached under that epoch.
fn older(epoch: u64) -> OlderRow {
    OlderRow { token: TOKEN, epoch, absent: 0 }
}

fn map() -> Map {
    let mut map = Map { version: 1, ring: RING, ..Map::empty(1) };
    for id in [OLD, NEW] {
        map.put(id, Incarnation(id.0.into()), Profile::default());
    }
    map.give(0, Some(OLD));
    map
}

fn adopt(custody: &mut Custody, map: &Map, old: Option<&Map>, me: MemberId, config: &Config) {
    custody.adopted((map, old, old.is_some()), me, 0, config, &mut crate::sim::rows());
}

/// What the new owner has in custody, a snapshot received at version 1 and these maps adopted.
fn after(maps: &[Map], config: &Config) -> Custody {
    let (first, scopes) = (map(), [Scope::Token(TOKEN)]);
    let (mut old, mut new) = (Custody::default(), Custody::default());
    old.begun = true;
    adopt(&mut old, &first, None, OLD, config);
    adopt(&mut new, &first, None, NEW, config);
    old.stop_answering(&first, OLD, (&[0], NEW));
    let states = old.snapshot(&first, OLD, &[0], 0);
    new.receive(1, states, (0, true));
    // The old owner goes on, once the version has passed.
    let key = PermitKey {
        process: crate::identity::Identity { id: OLD, incarnation: Incarnation(9) },
        number: 1,
    };
    adopt(&mut old, &first.next(), Some(&first), OLD, config);
    let detail = Detail::from([]);
    let body = WriteBody { scopes: &scopes, detail: &detail };
    assert!(old.begin(&first.next(), OLD, 2, (key, body), 9, &mut crate::sim::rows()));
    let before = std::iter::once(&first).chain(maps);
    maps.iter().zip(before).for_each(|(map, old)| adopt(&mut new, map, Some(old), NEW, config));
    new
}

#[test]
fn a_snapshot_counts_for_its_own_move_and_not_for_a_later_takeover() {
    let config = Config { shards: 1, ..Config::default() };
    let mut moved = map().next();
    moved.give(0, Some(NEW));
    let new = after(std::slice::from_ref(&moved), &config);
    assert!(new.may_fill(0, TOKEN, 0) && new.row_counts(&moved, NEW, older(1)));

    let stayed = map().next();
    let mut taken = stayed.next();
    taken.give(0, Some(NEW));
    for maps in [vec![stayed, taken.clone()], vec![taken.clone()]] {
        let new = after(&maps, &config);
        assert!(!new.may_fill(0, TOKEN, 0) && !new.row_counts(&taken, NEW, older(0)));
    }
}

/// As instances have it that keep their gates beside their rows.
fn beside_rows() -> Config {
    Config { shards: 1, weak_fills: true, ..Config::default() }
}

fn key(number: u64) -> PermitKey {
    let process = crate::identity::Identity { id: OLD, incarnation: Incarnation(9) };
    PermitKey { process, number }
}

/// The old owner under `map()`, with a write begun to this scope.
fn owner_with_a_write(scope: Scope, config: &Config, rows: &mut dyn Rows) -> Custody {
    let (detail, scopes) = (Detail::from([]), [scope]);
    let body = WriteBody { scopes: &scopes, detail: &detail };
    let mut old = Custody { begun: true, ..Custody::default() };
    adopt(&mut old, &map(), None, OLD, config);
    let until = config.intent();
    assert!(old.begin(&map(), OLD, 1, (key(1), body), until, rows));
    old
}

fn moved() -> Map {
    let mut moved = map().next();
    moved.give(0, Some(NEW));
    moved
}

/// The new owner, right after the move.
fn heir(old: &mut Custody, config: &Config) -> Custody {
    let mut new = Custody { begun: true, ..Custody::default() };
    adopt(&mut new, &map(), None, NEW, config);
    old.stop_answering(&map(), OLD, (&[0], NEW));
    new.receive(1, old.snapshot(&map(), OLD, &[0], 0), (0, true));
    adopt(&mut new, &moved(), Some(&map()), NEW, config);
    new
}

/// Whether the new owner fills a row at that time, and whether weakly.
fn fills(new: &Custody, token: i64, now: Time) -> Option<bool> {
    new.fill_terms(&moved(), NEW, token, now).map(|terms| terms.weak)
}

/// The next process of the new owner, which knows what the file says.
fn restarted(kept: KeptShards, config: &Config) -> Custody {
    let durable = Durable::keep(Kept { ring: RING, shards: kept });
    let mut new = Custody::restore(durable, 0, config, &mut crate::sim::rows());
    adopt(&mut new, &moved(), None, NEW, config);
    new
}

#[test]
fn a_shard_that_moves_while_everything_may_be_written_is_not_filled_until_the_permit_ends() {
    let (config, mut rows) = (beside_rows(), crate::sim::rows());
    let new = heir(&mut owner_with_a_write(Scope::All, &config, &mut rows), &config);
    assert_eq!(fills(&new, TOKEN, config.lease), None, "TRUNCATE may still be answered");
    assert_eq!(fills(&new, TOKEN, config.stretched(config.lease)), Some(true));
}

/// A TRUNCATE of one table, or one INSERT of a row whose key the database makes.
#[test]
fn a_write_of_everything_closes_no_fills_where_the_rows_have_gates_of_their_own() {
    for weak_fills in [true, false] {
        let (config, mut rows) = (Config { weak_fills, ..beside_rows() }, crate::sim::rows());
        let mut old = owner_with_a_write(Scope::All, &config, &mut rows);
        let fills = |old: &Custody, now| old.fill_terms(&map(), OLD, TOKEN, now).is_some();
        assert_eq!(fills(&old, 0), weak_fills, "its writer may be dead for an intent");
        old.end(key(1), Outcome::Unknown, (0, &config), &mut rows);
        assert_eq!(fills(&old, 0), weak_fills, "its outcome is unknown for a hold");
        assert!(fills(&old, config.stretched(config.hold)));
    }
}

#[test]
fn the_next_owner_hears_of_a_write_that_its_fills_may_miss() {
    let config = beside_rows();
    let mut rows = crate::sim::rows();
    let mut old = owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows);
    old.end(key(1), Outcome::Weak, (0, &config), &mut rows);
    let new = heir(&mut old, &config);
    let after = config.stretched(config.lease);
    assert_eq!(fills(&new, TOKEN, after), Some(true));
    assert_eq!(fills(&new, TOKEN, 2 * config.hold), Some(false));

    let mut old = owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows);
    old.end(key(1), Outcome::Settled, (0, &config), &mut rows);
    assert_eq!(fills(&heir(&mut old, &config), TOKEN, 0), Some(false));

    // A DROP says the same.
    old.leaving.clear();
    let (detail, scopes) = (Detail::from([]), [Scope::Token(TOKEN)]);
    let body = WriteBody { scopes: &scopes, detail: &detail };
    assert!(old.forget(&map(), OLD, 1, (body, true), (0, &config), &mut rows));
    assert_eq!(fills(&heir(&mut old, &config), TOKEN, after), Some(true));
}

/// The rows know of it, by a change of the schema.
#[test]
fn the_next_owner_hears_that_fills_of_anything_may_miss_writes() {
    let config = beside_rows();
    let mut old = Custody { begun: true, ..Custody::default() };
    // Before the shard comes: its owner then may not have heard of it.
    old.note_weak(&[Scope::All], 0, &config);
    adopt(&mut old, &map(), None, OLD, &config);
    let new = heir(&mut old, &config);
    assert_eq!(fills(&new, TOKEN, config.stretched(config.lease)), Some(true));
    assert_eq!(fills(&new, TOKEN, 2 * config.hold), Some(false));
}

/// A write that is under way while its row moves costs its row nothing once it has ended.
#[test]
fn the_next_owner_fills_a_row_once_a_write_has_ended_that_the_old_one_had_granted() {
    let (config, mut rows) = (beside_rows(), crate::sim::rows());
    for (outcome, filled) in [
        (Outcome::Settled, Some(false)),
        (Outcome::Refused, Some(false)),
        (Outcome::Weak, Some(true)),
        (Outcome::Unknown, None),
    ] {
        let mut old = owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows);
        let mut new = heir(&mut old, &config);
        let before = new.gates.stamp();
        assert_eq!(fills(&new, TOKEN, config.hold), None);
        assert_eq!(fills(&new, TOKEN - 1, 0), Some(false), "another row");
        assert_eq!(old.heirs(&map(), OLD, key(1)), [NEW], "its map may be old");
        assert_eq!(old.heirs(&moved(), OLD, key(1)), [NEW]);
        assert_eq!(new.heirs(&moved(), NEW, key(1)), []);
        new.end(key(1), outcome, (0, &config), &mut rows);
        let is_over = matches!(outcome, Outcome::Settled | Outcome::Refused);
        let weak: Vec<_> = new.kept().map(|(.., weak)| weak > 0).collect();
        assert_eq!(weak, [!is_over], "what a successor knows of {outcome:?}");
        assert_eq!(fills(&new, TOKEN, config.lease), filled, "{outcome:?}");
        assert!(!new.gates.is_untouched(TOKEN, before) || before > 0);
        let next = new.fill_terms(&moved(), NEW, TOKEN, 2 * config.hold);
        assert_eq!(next.map(|terms| terms.weak), Some(false));
    }
}

/// The end of a write overtakes the move of its shard, and may overtake what the old owner says.
#[test]
fn a_write_that_ends_before_its_move_is_known_is_no_hold_if_it_cannot_be_applied_any_more() {
    let (config, mut rows) = (beside_rows(), crate::sim::rows());
    let certain = [Outcome::Settled, Outcome::Refused, Outcome::Weak];
    for outcome in certain.into_iter().chain([Outcome::Unknown, Outcome::Decided]) {
        for comes_first in [false, true] {
            let mut old = owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows);
            let mut new = Custody { begun: true, ..Custody::default() };
            adopt(&mut new, &map(), None, NEW, &config);
            old.stop_answering(&map(), OLD, (&[0], NEW));
            let states = old.snapshot(&map(), OLD, &[0], 0);
            if comes_first {
                new.end(key(1), outcome, (0, &config), &mut rows);
            }
            new.receive(1, states, (0, true));
            new.end(key(1), outcome, (0, &config), &mut rows);
            adopt(&mut new, &moved(), Some(&map()), NEW, &config);
            let filled = match outcome {
                Outcome::Settled | Outcome::Refused => Some(false),
                Outcome::Weak => Some(true),
                Outcome::Unknown | Outcome::Decided => None,
            };
            assert_eq!(fills(&new, TOKEN, config.hold - 1), filled, "{outcome:?}");
        }
    }
}

/// The shard goes, its next owner dies, and it comes back without a snapshot.
#[test]
fn what_came_with_a_shard_does_not_outlive_the_weakness_of_its_takeover() {
    let (config, mut rows) = (beside_rows(), crate::sim::rows());
    let third = MemberId(3);
    let mut new = heir(&mut owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows), &config);
    let mut gone = moved().next();
    gone.put(third, Incarnation(3), Profile::default());
    gone.give(0, Some(third));
    let mut accused = gone.next();
    accused.accuse(accused.members.iter().find(|m| m.identity.id == third).unwrap().identity);
    let mut taken = accused.next();
    taken.give(0, Some(NEW));
    let maps = [moved(), gone, accused, taken.clone()];
    for pair in maps.windows(2) {
        adopt(&mut new, &pair[1], Some(&pair[0]), NEW, &config);
    }
    let terms = |now| new.fill_terms(&taken, NEW, TOKEN, now).map(|terms| terms.weak);
    assert_eq!((terms(0), terms(2 * config.hold)), (Some(true), Some(false)));
}

/// It went back meanwhile, and the write ended there. Nobody tells who has no part in it any more.
#[test]
fn what_came_with_a_shard_is_over_when_the_shard_comes_again_without_it() {
    let (config, mut rows) = (beside_rows(), crate::sim::rows());
    let mut new = heir(&mut owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows), &config);
    let mut back = moved().next();
    back.give(0, Some(OLD));
    let mut again = back.next();
    again.give(0, Some(NEW));
    adopt(&mut new, &back, Some(&moved()), NEW, &config);
    let state = ShardState { epoch: back.shards[0].epoch, ..ShardState::default() };
    new.receive(back.version, vec![state], (0, true));
    adopt(&mut new, &again, Some(&back), NEW, &config);
    let terms = new.fill_terms(&again, NEW, TOKEN, 0);
    assert_eq!(terms.map(|terms| terms.weak), Some(false));
}

/// Its rows may lack what new replicas lack. Each lives for a minute at the new owner, but the old
/// one has it for good.
#[test]
fn an_old_owner_that_has_not_heard_of_a_change_of_the_schema_is_asked_for_no_rows() {
    let config = beside_rows();
    for heard in [true, false] {
        let mut new = Custody { begun: true, ..Custody::default() };
        adopt(&mut new, &map(), None, NEW, &config);
        new.receive(1, vec![ShardState { epoch: 1, ..ShardState::default() }], (0, heard));
        adopt(&mut new, &moved(), Some(&map()), NEW, &config);
        let carried = new.carried(&moved(), NEW, TOKEN, 0).expect("its own rows count");
        assert_eq!(carried.old_owner, heard.then_some(OLD));
    }
}

/// A peer says it.
#[test]
fn no_permit_of_a_peer_is_too_long_to_reckon_with_at_the_next_move() {
    let config = beside_rows();
    let mut new = Custody { begun: true, ..Custody::default() };
    adopt(&mut new, &map(), None, NEW, &config);
    let writes = vec![(key(1), TOKEN, Time::MAX)];
    let state = ShardState { epoch: 1, writes, ..ShardState::default() };
    new.receive(1, vec![state], (9, true));
    adopt(&mut new, &moved(), Some(&map()), NEW, &config);
    assert!(new.are_written(&moved(), &[0], 10, &config));
}

/// A shard moves on while a write is under way that its first owner has granted.
#[test]
fn a_permit_moves_on_with_its_shard() {
    let (config, mut rows) = (beside_rows(), crate::sim::rows());
    let third = MemberId(3);
    let mut new = heir(&mut owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows), &config);
    new.stop_answering(&moved(), NEW, (&[0], third));
    let states = new.snapshot(&moved(), NEW, &[0], 0);
    assert_eq!(states[0].writes.iter().map(|(key, ..)| *key).collect::<Vec<_>>(), [key(1)]);
    assert_eq!(states[0].holds, [], "the write is under way");
    assert_eq!(new.heirs(&moved(), NEW, key(1)), [third]);
}

/// The holds that came with a shard are known to the process alone.
#[test]
fn a_restart_right_after_a_move_does_not_fill_what_the_old_owner_has_granted() {
    let config = beside_rows();
    let mut rows = crate::sim::rows();
    let new = heir(&mut owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows), &config);
    assert_eq!(fills(&new, TOKEN, config.hold), None);
    let new = restarted(new.kept().collect(), &config);
    assert_eq!(fills(&new, TOKEN, config.lease), None, "the permit may be valid");
    let after = config.stretched(config.lease);
    assert_eq!(fills(&new, TOKEN, after), Some(true));
    // The file may be older than the move.
    let new = restarted(Vec::new(), &config);
    assert_eq!(fills(&new, TOKEN, config.lease), None, "the permit may be valid");
    assert_eq!(fills(&new, TOKEN, after), Some(true));
}

#[test]
fn a_shard_that_was_taken_over_is_filled_weakly_at_once() {
    let config = beside_rows();
    let mut accused = map();
    accused.accuse(accused.members[0].identity);
    let mut taken = accused.next();
    taken.give(0, Some(NEW));
    let mut new = Custody { begun: true, ..Custody::default() };
    adopt(&mut new, &accused, None, NEW, &config);
    adopt(&mut new, &taken, Some(&accused), NEW, &config);
    assert_eq!(fills(&new, TOKEN, 0), Some(true));
}

/// The old owner has left as the last member, so nobody has a snapshot.
#[test]
fn a_shard_that_its_owner_has_left_is_not_filled_while_its_permits_may_be_valid() {
    let config = Config { hold: Config::default().lease / 100, ..Config::default() };
    let mut left = map().next();
    left.give(0, None);
    let mut taken = left.next();
    taken.give(0, Some(NEW));
    let mut new = Custody { begun: true, ..Custody::default() };
    adopt(&mut new, &left, None, NEW, &config);
    adopt(&mut new, &taken, Some(&left), NEW, &config);
    let fills = |now| new.fill_terms(&taken, NEW, TOKEN, now).map(|terms| terms.weak);
    assert_eq!(fills(config.intent() - 1), None, "the last write may be applied a hold later");
    assert_eq!(fills(config.intent()), Some(false));
}

/// The settings may have changed since, and others may have written past the ring.
#[test]
fn dirty_bits_of_before_a_restart_vouch_for_nothing() {
    let config = Config::default();
    let mut old = Custody { begun: true, ..Custody::default() };
    adopt(&mut old, &map(), Some(&map()), OLD, &config);
    assert_eq!(old.dirty_epochs(0), [1]);
    let durable = Durable::of(old);
    let restored = Custody::restore(durable, 0, &config, &mut crate::sim::rows());
    assert_eq!(restored.dirty_epochs(0), [0; 0]);
}

#[test]
fn the_next_owner_takes_shards_of_a_restarted_one_for_weak() {
    let config = beside_rows();
    let kept = Kept { ring: RING, shards: vec![(0, 1, 0)] };
    let mut old = Custody::restore(Durable::keep(kept), 0, &config, &mut crate::sim::rows());
    adopt(&mut old, &map(), None, OLD, &config);
    let terms = |now| old.fill_terms(&map(), OLD, TOKEN, now).map(|terms| terms.weak);
    let ended = config.stretched(config.lease);
    assert_eq!(terms(ended - 1), None, "permits of the process before may be valid");
    assert_eq!(terms(ended), Some(false));
    let new = heir(&mut old, &config);
    assert_eq!(fills(&new, TOKEN, config.hold), Some(true));
    assert_eq!(fills(&new, TOKEN, 2 * config.hold), Some(false));
}

/// Somebody has emptied the ring's table, or put an older map there. Epochs come to be those of old
/// rows again.
#[test]
fn rows_of_an_earlier_ring_or_of_a_map_that_is_forgotten_do_not_count_in_the_next() {
    let config = beside_rows();
    let row = RowKey { token: TOKEN, bytes: Vec::new() };
    for (known, epoch, stays) in [(RING, 1, true), (RingId(77), 1, false), (RING, 2, false)] {
        let mut rows = crate::sim::rows();
        rows.install(&row, (1, 0), None, false);
        let kept = Kept { ring: known, shards: vec![(0, epoch, 0)] };
        let mut old = Custody::restore(Durable::keep(kept), 0, &config, &mut rows);
        old.adopted((&map(), None, false), OLD, 0, &config, &mut rows);
        assert_eq!(rows.get(&row).is_some(), stays);
        let weak = old.fill_terms(&map(), OLD, TOKEN, config.hold).unwrap().weak;
        assert_eq!(weak, !stays, "who wrote under the earlier one is not known");
    }
}

/// The row was emptied before an older map was put there, and read in between.
#[test]
fn an_empty_map_in_between_does_not_hide_that_epochs_come_again() {
    let config = beside_rows();
    let row = RowKey { token: TOKEN, bytes: Vec::new() };
    let mut rows = crate::sim::rows();
    rows.install(&row, (1, 0), None, false);
    let kept = Kept { ring: RING, shards: vec![(0, 2, 0)] };
    let mut old = Custody::restore(Durable::keep(kept), 0, &config, &mut rows);
    old.adopted((&Map::empty(1), None, false), OLD, 0, &config, &mut rows);
    old.adopted((&map(), None, false), OLD, 0, &config, &mut rows);
    assert!(rows.get(&row).is_none());
}

/// Writes of the ring before, of unknown outcome, may still be applied.
#[test]
fn what_a_ring_has_that_follows_another_is_weak_at_first() {
    let config = beside_rows();
    for follows in [false, true] {
        let mut first = Custody::default();
        adopt(&mut first, &Map::empty(1), None, OLD, &config);
        if follows {
            first.follow_another();
        }
        adopt(&mut first, &map(), None, OLD, &config);
        let terms = first.fill_terms(&map(), OLD, TOKEN, config.hold);
        assert_eq!(terms.map(|terms| terms.weak), Some(follows));
    }
}

/// A process may have died right after it took the shard and granted a write, before it noted the
/// shard down.
#[test]
fn no_row_counts_over_an_epoch_in_which_an_earlier_process_may_have_granted_writes() {
    let (config, first, moved) = (beside_rows(), map(), moved());
    let counts = |new: &Custody| new.may_install_pulled(&moved, NEW, older(1)).is_some();
    let mut new = Custody { begun: true, ..Custody::default() };
    adopt(&mut new, &first, None, NEW, &config);
    adopt(&mut new, &moved, Some(&first), NEW, &config);
    assert!(counts(&new), "it was there before the move");
    assert_eq!(new.carried(&moved, NEW, TOKEN, 0).unwrap().old_owner, Some(OLD));
    new.distrust_older();
    assert!(!counts(&new) && new.carried(&moved, NEW, TOKEN, 0).is_none());

    let durable = Durable::keep(Kept { ring: RING, shards: Vec::new() });
    let mut next = Custody::restore(durable, 0, &config, &mut crate::sim::rows());
    for (map, old) in [(&first, None), (&moved, Some(&first))] {
        next.adopted((map, old, false), NEW, 0, &config, &mut crate::sim::rows());
    }
    adopt(&mut next, &moved.next(), Some(&moved), NEW, &config);
    assert!(!counts(&next), "an earlier process of the member was in these maps");
}

/// A silent member is put out. Before the taker hears that it has the shard, nobody caches, others
/// write past the ring, and it caches again. The old owner comes back with its rows of before.
#[test]
fn no_row_counts_over_a_move_that_may_be_of_before_the_distrust() {
    let (config, first, moved) = (beside_rows(), map(), moved());
    for (sees, counts) in [(false, false), (true, true)] {
        let mut new = Custody { begun: true, ..Custody::default() };
        adopt(&mut new, &first, None, NEW, &config);
        new.distrust_older();
        if sees {
            new.saw_all_moves();
        }
        adopt(&mut new, &moved, Some(&first), NEW, &config);
        assert_eq!(new.may_install_pulled(&moved, NEW, older(1)).is_some(), counts);
        assert_eq!(new.carried(&moved, NEW, TOKEN, 0).is_some(), counts);
        new.saw_all_moves();
        adopt(&mut new, &moved.next(), Some(&moved), NEW, &config);
        assert_eq!(new.may_install_pulled(&moved, NEW, older(1)).is_some(), counts);
    }
}

/// An application that makes each of its rows with `uuid()` would be cold after every move and
/// every return.
#[test]
fn a_write_that_only_makes_rows_leaves_the_old_owners_rows_and_not_its_absences() {
    let (config, first, moved) = (beside_rows(), map(), moved());
    let other = TOKEN + 1;
    for (detail, stays) in
        [(crate::sim::makes(TOKEN), [true, false, true]), (Detail::from([]), [false, false, false])]
    {
        let mut new = Custody { begun: true, ..Custody::default() };
        adopt(&mut new, &first, None, NEW, &config);
        adopt(&mut new, &moved, Some(&first), NEW, &config);
        let counts = |new: &Custody| {
            let absent = [0, bit_of(TOKEN), bit_of(other)];
            absent
                .map(|absent| OlderRow { absent, ..older(1) })
                .map(|row| new.may_install_pulled(&moved, NEW, row).is_some())
        };
        assert_eq!(counts(&new), [true; 3]);
        let process = crate::identity::Identity { id: OLD, incarnation: Incarnation(9) };
        let scopes = [Scope::All];
        let body = WriteBody { scopes: &scopes, detail: &detail };
        let rows = &mut crate::sim::rows();
        let write = (PermitKey { process, number: 1 }, body);
        assert!(new.begin(&moved, NEW, moved.version, write, 9, rows));
        assert_eq!(counts(&new), stays);
        assert_eq!(new.carried(&moved, NEW, TOKEN, 0).is_some(), stays[0]);
    }
}

#[test]
fn no_hold_of_a_peer_is_too_long_to_reckon_with() {
    let config = beside_rows();
    let mut new = Custody { begun: true, ..Custody::default() };
    let (holds, dirty) = (vec![(TOKEN, Time::MAX)], Vec::new());
    let writes = vec![(key(1), TOKEN, Time::MAX)];
    let state = ShardState { shard: 0, epoch: 1, weak: Time::MAX, holds, writes, dirty };
    new.receive(1, vec![state], (9, true));
    adopt(&mut new, &moved(), Some(&map()), NEW, &config);
    assert_eq!(fills(&new, TOKEN, Time::MAX - 1), None);
}

/// Another instance's move is first. By the next one the write has ended.
#[test]
fn holds_of_a_move_that_failed_do_not_outlive_it() {
    let (config, mut rows) = (beside_rows(), crate::sim::rows());
    let mut old = owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows);
    let mut new = Custody { begun: true, ..Custody::default() };
    adopt(&mut new, &map(), None, NEW, &config);
    old.stop_answering(&map(), OLD, (&[0], NEW));
    let states = old.snapshot(&map(), OLD, &[0], 0);
    assert_eq!(states[0].writes.len(), 1);
    new.receive(1, states, (0, true));
    old.end(key(1), Outcome::Settled, (0, &config), &mut rows);
    let stayed = map().next();
    adopt(&mut old, &stayed, Some(&map()), OLD, &config);
    adopt(&mut new, &stayed, Some(&map()), NEW, &config);
    old.stop_answering(&stayed, OLD, (&[0], NEW));
    new.receive(2, old.snapshot(&stayed, OLD, &[0], 0), (0, true));
    let mut moved = stayed.next();
    moved.give(0, Some(NEW));
    adopt(&mut new, &moved, Some(&stayed), NEW, &config);
    let terms = new.fill_terms(&moved, NEW, TOKEN, 10_000_000);
    assert_eq!(terms.map(|terms| terms.weak), Some(false));
}

/// After an outage of the database there may be a hold for each of a million partitions.
#[test]
fn the_shards_of_more_holds_than_are_remembered_are_weak_in_their_place() {
    for weak_fills in [false, true] {
        let config = Config { holds: 3, weak_fills, ..beside_rows() };
        let mut rows = crate::sim::rows();
        let mut old = owner_with_a_write(Scope::Token(TOKEN), &config, &mut rows);
        for token in 0..4 {
            old.gates.hold(Scope::Token(token), 1_000 + token as Time);
        }
        old.tick(10, &config, &mut rows);
        assert_eq!(old.gates.count(), 1, "the write that is under way");
        let weak = |old: &Custody, token| {
            old.fill_terms(&map(), OLD, token, 1_002).map(|terms| terms.weak)
        };
        for token in [0, 3, 99] {
            assert_eq!(weak(&old, token), weak_fills.then_some(true), "the whole shard");
        }
        old.end(key(1), Outcome::Settled, (1_003, &config), &mut rows);
        old.tick(1_003, &config, &mut rows);
        let after = old.fill_terms(&map(), OLD, TOKEN, 1_003).map(|terms| terms.weak);
        assert_eq!(after, Some(false), "until the last of them has ended");
    }
}
