//! The two eviction policies of the DRAM tier, and the trial that chooses between them.

use super::dram::EvictionPolicy;
use super::fifo::Queue;
use super::tests::hash;
use super::*;

/// Bytes of the objects that are replayed.
const LEN: usize = 1_000;

fn object(key: u64, len: usize) -> DramEntry {
    DramEntry {
        hash: hash(key),
        version: 1,
        data: vec![0; len].into(),
        key_len: 0,
        expiry: 0,
        group: 0,
        epoch_slot: 0,
        ns: 0,
        state: EntryState::Dirty,
    }
}

/// A tier and its trial, asked for keys as a cache is.
struct Replay {
    tier: DramTier,
    trial: PolicyTrial,
}

impl Replay {
    /// With room for some more than so many objects.
    fn new(objects: usize) -> Self {
        let fixed = DramTier::new(0).bytes();
        let tier = DramTier::new(fixed + objects * (entry_bytes(LEN) + 40));
        Self { tier, trial: PolicyTrial::new() }
    }

    /// Whether an object is there. It is put if it is not.
    fn ask(&mut self, key: u64) -> bool {
        self.trial.request(&mut self.tier, hash(key));
        if self.tier.get(hash(key), 0, &[]).is_some() {
            return true;
        }
        self.trial.replay(&mut self.tier, &object(key, LEN).object());
        assert!(self.tier.bytes() <= self.tier.budget(), "the trial is part of the budget");
        false
    }

    /// The share of these requests that were hits.
    fn hits(&mut self, keys: impl Iterator<Item = u64>) -> f64 {
        let (mut hits, mut all) = (0, 0);
        for key in keys {
            hits += usize::from(self.ask(key));
            all += 1;
        }
        hits as f64 / all as f64
    }
}

/// Rounds of a loop.
fn rounds(keys: u64, rounds: u64) -> impl Iterator<Item = u64> {
    (0..keys * rounds).map(move |n| n % keys)
}

/// Keys that are each asked for three times while they are young, and never again.
fn young(first: u64, keys: u64) -> impl Iterator<Item = u64> {
    (0..keys)
        .flat_map(move |n| [n, n.saturating_sub(40), n.saturating_sub(400)])
        .map(move |n| first + n)
}

#[test]
fn a_loop_longer_than_the_tier_is_hit_by_the_part_that_has_room() {
    let mut replay = Replay::new(1_000);
    replay.hits(rounds(5_000, 20));
    assert_eq!(replay.tier.policy, EvictionPolicy::Contest);
    let hits = replay.hits(rounds(5_000, 10));
    assert!(hits > 0.10, "{hits}: with room for a fifth of the loop");
    let mut alone = Replay::new(1_000).tier;
    for key in rounds(5_000, 20) {
        assert!(alone.get(hash(key), 0, &[]).is_none(), "S3-FIFO alone keeps none until its turn");
        alone.insert_absent(&object(key, LEN).object(), &mut Evicted::default());
    }
}

#[test]
fn the_policy_follows_the_workload_back() {
    let mut replay = Replay::new(1_000);
    replay.hits(rounds(5_000, 20));
    assert_eq!(replay.tier.policy, EvictionPolicy::Contest);
    replay.hits(young(10_000, 60_000));
    assert_eq!(replay.tier.policy, EvictionPolicy::S3Fifo);
    let hits = replay.hits(young(80_000, 20_000));
    let mut alone = Replay::new(1_000);
    alone.hits(young(10_000, 60_000));
    let before = alone.hits(young(80_000, 20_000));
    assert!(hits > before - 0.01, "{hits}, and {before} where there was no loop");
}

/// A tier in a contest, with so many objects of which none is in small any more, and who is asked
/// for how often.
fn contest(asked: impl Fn(u64) -> u8) -> Vec<u64> {
    struct Known<'a>(&'a dyn Fn(u64) -> u8, Vec<u64>);
    impl Victims for Known<'_> {
        fn take(&mut self, object: &DramObject<'_>) {
            self.1.extend((0..1_000).find(|&key| hash(key) == object.hash));
        }

        fn popularity(&self, hash: u64) -> u8 {
            (0..1_000).find(|&key| self::hash(key) == hash).map_or(0, self.0)
        }
    }
    let mut tier = Replay::new(100).tier;
    tier.policy = EvictionPolicy::Contest;
    let mut known = Known(&asked, Vec::new());
    for key in 0..300 {
        tier.insert_absent(&object(key, LEN).object(), &mut known);
    }
    assert!(tier.arena.queue_len(Queue::Small) <= 2, "small has 1 %");
    known.1
}

#[test]
fn an_object_stays_out_unless_it_is_more_popular_than_the_one_it_would_replace() {
    let gone = contest(|_| 5);
    assert!(gone.iter().all(|key| *key >= 90), "those that were there first stay: {gone:?}");
    let gone = contest(|key| if key < 100 { 5 } else { 7 });
    assert!((0..90).all(|key| gone.contains(&key)), "all are replaced: {gone:?}");
    let gone = contest(|key| if key < 100 { 5 } else { 6 });
    let replaced = gone.iter().filter(|key| **key < 90).count();
    assert!((1..40).contains(&replaced), "one more request seldom decides: {replaced}");
}

#[test]
fn what_a_trial_takes_is_put_by_in_small_steps() {
    let mut replay = Replay::new(4_000);
    (0..4_100).for_each(|key| _ = replay.ask(key));
    let mut before = replay.tier.len();
    for key in 10_000..14_000 {
        replay.ask(key);
        let now = replay.tier.len();
        assert!(now + 8 > before, "{before} objects, then {now}");
        before = now;
    }
    assert!(replay.trial.is_on());
    // Far too small for a trial, or for what one has put by.
    replay.tier.set_budget(LEAST_BYTES, &mut Evicted::default());
    (20_000..20_100).for_each(|key| _ = replay.ask(key));
    assert!(!replay.trial.is_on() && replay.tier.len() > 1, "{} objects", replay.tier.len());
}

#[test]
fn a_trial_begins_anew_where_objects_are_of_another_size() {
    let mut replay = Replay::new(2_000);
    (0..4_000).for_each(|key| _ = replay.ask(key));
    let made_for = replay.trial.made_for();
    for key in 10_000..30_000 {
        replay.trial.request(&mut replay.tier, hash(key));
        replay.trial.replay(&mut replay.tier, &object(key, LEN / 10).object());
        assert!(replay.tier.bytes() <= replay.tier.budget());
    }
    assert!(replay.trial.made_for() > made_for.map(|objects| objects * 2));
}
