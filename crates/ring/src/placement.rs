//! Which shards go to whom: by weight, and with as few moves as that takes.

use std::collections::BTreeMap;

use crate::identity::MemberId;
use crate::map::{Map, MemberEntry, Standing};

/// The weights that count among active members. Whoever leaves has none: where all leave, all but
/// the one with the lowest id, who leaves last. Where the others have the weight 0, each of them
/// counts alike.
fn weights(map: &Map) -> Vec<(MemberId, u64)> {
    let id = |member: &MemberEntry| member.identity.id;
    let staying = || map.active().filter(|member| !member.leaving);
    let last = if staying().next().is_none() { map.active().map(id).min() } else { None };
    let is_light = staying().all(|member| member.profile.weight == 0);
    let weight = |member: &MemberEntry| match member.leaving {
        true => u64::from(last == Some(id(member))),
        false if is_light => 1,
        false => member.profile.weight.into(),
    };
    map.active().map(|member| (id(member), weight(member))).collect()
}

/// How many shards each active member is to own; members with equal weights differ by one at most.
/// Rests go to the largest remainders, then to the lower ids.
#[must_use]
pub fn quotas(map: &Map) -> BTreeMap<MemberId, usize> {
    let weights = weights(map);
    let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
    assert!(total > 0 || weights.is_empty(), "somebody is to own the shards");
    let shards = map.shards.len() as u64;
    let mut quotas: BTreeMap<MemberId, usize> = BTreeMap::new();
    let mut rests = Vec::new();
    for (id, weight) in &weights {
        quotas.insert(*id, (shards * weight / total) as usize);
        rests.push((std::cmp::Reverse(shards * weight % total), *id));
    }
    rests.sort_unstable();
    let given: usize = quotas.values().sum();
    for (_, id) in
        rests.into_iter().cycle().take(if quotas.is_empty() { 0 } else { map.shards.len() - given })
    {
        *quotas.get_mut(&id).expect("it has a quota") += 1;
    }
    quotas
}

/// Gives the shards of `from`, and those of nobody, to active members: first to who had them before
/// and lacks some, then to the neediest. A shard is given to nobody where no member is active.
pub fn give_away(map: &mut Map, from: &[MemberId]) {
    let quotas: BTreeMap<_, _> =
        quotas(map).into_iter().filter(|(id, _)| !from.contains(id)).collect();
    let mut owned: BTreeMap<MemberId, usize> = quotas.keys().map(|id| (*id, 0)).collect();
    for owner in map.shards.iter().filter_map(|s| s.owner) {
        owned.entry(owner).and_modify(|n| *n += 1);
    }
    let is_given = |shard: &usize| map.shards[*shard].owner.is_none_or(|o| from.contains(&o));
    let given: Vec<usize> = (0..map.shards.len()).filter(is_given).collect();
    let mut rest = Vec::new();
    for shard in given {
        let before = map.shards[shard].previous.filter(|id| owned.get(id) < quotas.get(id));
        let Some(id) = before else {
            rest.push(shard);
            continue;
        };
        *owned.get_mut(&id).expect("it has a quota") += 1;
        map.give(shard, Some(id));
    }
    for shard in rest {
        let lack = |(id, quota): (&MemberId, &usize)| (owned[id] as i64 - *quota as i64, *id);
        let neediest = quotas.iter().map(lack).min().map(|(_, id)| id);
        if let Some(id) = neediest {
            *owned.get_mut(&id).expect("it has a quota") += 1;
        }
        if map.shards[shard].owner.is_some() || neediest.is_some() {
            map.give(shard, neediest);
        }
    }
}

/// What `me` is to get from one other member that has more than its quota: the owner and its
/// shards. None if the quotas are kept. Every such move brings the map nearer to the quotas, and no
/// two members make the same.
///
/// Shards that `me` had before come first: it has their rows still, and some drivers never learn
/// that it has others.
#[must_use]
pub fn wanted(map: &Map, me: MemberId) -> Option<(MemberId, Vec<usize>)> {
    if map.members.iter().any(|m| m.standing == Standing::Accused) {
        return None;
    }
    let quotas = quotas(map);
    let mine = map.owned_by(me).count();
    let lacking = quotas.get(&me)?.checked_sub(mine).filter(|n| *n > 0)?;
    quotas
        .iter()
        .map(|(id, quota)| (map.owned_by(*id).count().saturating_sub(*quota), *id))
        .filter(|(surplus, _)| *surplus > 0)
        .max_by_key(|(surplus, id)| (*surplus, std::cmp::Reverse(*id)))
        .map(|(surplus, from)| (from, best(map, me, from, surplus.min(lacking))))
}

/// How many shards are to go from whom to whom until the quotas are kept, as far as this map tells:
/// those of nobody and of accused members, and then those that members have beyond their quotas.
#[must_use]
pub fn to_come(map: &Map) -> BTreeMap<(Option<MemberId>, MemberId), usize> {
    let accused: Vec<_> = map.accused().map(|who| who.id).collect();
    let mut next = map.clone();
    give_away(&mut next, &accused);
    let mut moves = BTreeMap::new();
    let mut surplus = BTreeMap::<MemberId, usize>::new();
    for (before, after) in map.shards.iter().zip(&next.shards) {
        let Some(owner) = after.owner else { continue };
        *surplus.entry(owner).or_default() += 1;
        if before.owner != after.owner {
            *moves.entry((before.owner, owner)).or_default() += 1;
        }
    }
    let mut lacking = quotas(&next);
    for (id, lack) in &mut lacking {
        let owned = surplus.entry(*id).or_default();
        let kept = (*owned).min(*lack);
        (*owned, *lack) = (*owned - kept, *lack - kept);
    }
    for (to, mut lack) in lacking {
        while let Some((from, spare)) = surplus.iter_mut().max_by_key(|(_, spare)| **spare)
            && lack > 0
            && *spare > 0
        {
            let moved = lack.min(*spare);
            (*spare, lack) = (*spare - moved, lack - moved);
            *moves.entry((Some(*from), to)).or_default() += moved;
        }
    }
    moves
}

/// So many shards of `from` for `me`: first those that it had before, and of equals those that suit
/// it best, beside `from`. So who comes back takes what `from` got in its absence, and not what
/// `from` had taken from it when it joined.
fn best(map: &Map, me: MemberId, from: MemberId, count: usize) -> Vec<usize> {
    let mut shards: Vec<_> = map.owned_by(from).collect();
    shards.sort_by_cached_key(|&shard| {
        let is_new = map.shards[shard].previous != Some(me);
        (is_new, i128::from(suits(from, shard)) - i128::from(suits(me, shard)))
    });
    shards.truncate(count);
    shards.sort_unstable();
    shards
}

/// How well a shard suits a member: a number of no meaning that is always the same.
fn suits(id: MemberId, shard: usize) -> u64 {
    // The finalizer of MurmurHash3.
    let mut bits = id.0 ^ (shard as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        bits = (bits ^ bits >> 33).wrapping_mul(factor);
    }
    bits ^ bits >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;
    use crate::map::Profile;

    fn ring(weights: &[u32]) -> Map {
        let mut map = Map::empty(4_096);
        for (n, weight) in weights.iter().enumerate() {
            let profile = Profile { weight: *weight, ..Profile::default() };
            map.put(MemberId(n as u64), Incarnation(n as u128), profile);
        }
        give_away(&mut map, &[]);
        map
    }

    fn settle(map: &mut Map) -> usize {
        let mut moved = 0;
        let ids: Vec<_> = map.active().map(|m| m.identity.id).collect();
        while let Some((id, (_, shards))) =
            ids.iter().find_map(|id| wanted(map, *id).map(|w| (*id, w)))
        {
            moved += shards.len();
            shards.into_iter().for_each(|s| map.give(s, Some(id)));
        }
        moved
    }

    #[test]
    fn a_fourth_member_moves_a_quarter_of_the_shards_and_no_more() {
        let mut map = ring(&[1, 1, 1]);
        map.put(MemberId(9), Incarnation(9), Profile { weight: 1, ..Profile::default() });
        let moved = settle(&mut map);
        assert_eq!(moved, 1_024);
        assert_eq!(quotas(&map).len(), 4);
        for id in [0, 1, 2, 9] {
            assert_eq!(map.owned_by(MemberId(id)).count(), 1_024);
        }
    }

    #[test]
    fn the_shards_of_a_dead_member_go_back_to_who_had_them_before_it() {
        let before = ring(&[1, 1]);
        let mut map = before.clone();
        map.put(MemberId(9), Incarnation(9), Profile { weight: 1, ..Profile::default() });
        settle(&mut map);
        map.accuse(map.members[2].identity);
        give_away(&mut map, &[MemberId(9)]);
        for (shard, was) in before.shards.iter().enumerate() {
            assert_eq!(map.shards[shard].owner, was.owner, "shard {shard}");
        }
    }

    #[test]
    fn who_comes_back_gets_the_shards_that_it_had() {
        let profile = || Profile { weight: 1, ..Profile::default() };
        let mut map = ring(&[1]);
        for id in 1..3 {
            map.put(MemberId(id), Incarnation(id.into()), profile());
            settle(&mut map);
        }
        let before = map.clone();
        let owners = |map: &Map| map.shards.iter().map(|shard| shard.owner).collect::<Vec<_>>();
        for id in [1, 0, 2, 2, 1, 0].map(MemberId) {
            map.accuse(map.entry(id).unwrap().identity);
            give_away(&mut map, &[id]);
            map.remove(&[id]);
            assert_eq!(map.owners().len(), 2);
            map.put(id, Incarnation(7), profile());
            assert_eq!(settle(&mut map), before.owned_by(id).count());
            assert!(owners(&map) == owners(&before), "{id:?} has other shards");
            // It leaves, and comes again.
            map.members.iter_mut().find(|m| m.identity.id == id).unwrap().leaving = true;
            settle(&mut map);
            assert_eq!(map.owners().len(), 2);
            map.remove(&[id]);
            map.put(id, Incarnation(7), profile());
            settle(&mut map);
            assert!(owners(&map) == owners(&before), "{id:?} has other shards");
        }
    }

    /// The first shards are dealt in turn, whomever they suit.
    #[test]
    fn who_comes_back_gets_the_shards_that_it_had_though_others_suit_it_better() {
        let before = ring(&[1, 1, 1]);
        let (mut map, id) = (before.clone(), MemberId(1));
        map.accuse(map.members[1].identity);
        give_away(&mut map, &[id]);
        map.remove(&[id]);
        map.put(id, Incarnation(7), Profile { weight: 1, ..Profile::default() });
        assert_eq!(settle(&mut map), before.owned_by(id).count());
        assert!(map.owned_by(id).eq(before.owned_by(id)));
    }

    #[test]
    fn shards_go_by_weight_and_a_weight_of_nothing_owns_none() {
        let mut map = ring(&[2, 1, 1, 0]);
        assert_eq!(settle(&mut map), 0);
        let counts: Vec<_> = (0..4).map(|id| map.owned_by(MemberId(id)).count()).collect();
        assert_eq!(counts, [2_048, 1_024, 1_024, 0]);
    }

    /// Who owns how many once all has moved, where these leave.
    fn once_they_leave(weights: &[u32], leaving: &[usize]) -> Vec<usize> {
        let mut map = ring(weights);
        leaving.iter().for_each(|at| map.members[*at].leaving = true);
        settle(&mut map);
        map.members.iter().map(|member| map.owned_by(member.identity.id).count()).collect()
    }

    #[test]
    fn whoever_leaves_gives_all_away_whatever_weights_the_others_have() {
        assert_eq!(once_they_leave(&[100, 100], &[1]), [4_096, 0]);
        assert_eq!(once_they_leave(&[100, 0, 0], &[0]), [0, 2_048, 2_048]);
        assert_eq!(once_they_leave(&[0, 0], &[0]), [0, 4_096]);
        assert_eq!(once_they_leave(&[0, 0, 0], &[]), [1_366, 1_365, 1_365]);
    }

    #[test]
    fn where_all_leave_all_but_one_give_all_away() {
        assert_eq!(once_they_leave(&[1, 1], &[0, 1]), [4_096, 0]);
        assert_eq!(once_they_leave(&[0, 5, 1], &[0, 1, 2]), [4_096, 0, 0]);
        assert_eq!(once_they_leave(&[7], &[0]), [4_096]);
    }

    #[test]
    fn a_takeover_moves_the_shards_of_the_dead_alone_and_none_to_an_accused_member() {
        let mut map = ring(&[1, 1, 1, 1]);
        let before = map.clone();
        let accused: Vec<_> = map.members[..2].iter().map(|m| m.identity).collect();
        accused.iter().for_each(|who| map.accuse(*who));
        give_away(&mut map, &[MemberId(0)]);
        for shard in 0..4_096 {
            let (was, is) = (before.shards[shard].owner, map.shards[shard].owner);
            assert_eq!(was == is, was != Some(MemberId(0)));
            assert!(was == is || is > Some(MemberId(1)));
        }
        assert!(map.owned_by(MemberId(2)).count().abs_diff(map.owned_by(MemberId(3)).count()) <= 1);
    }

    #[test]
    fn where_nobody_is_left_nobody_owns_the_shards() {
        let mut map = ring(&[1]);
        give_away(&mut map, &[MemberId(0)]);
        assert!(map.shards.iter().all(|s| s.owner.is_none() && s.epoch == 2));
    }
}
