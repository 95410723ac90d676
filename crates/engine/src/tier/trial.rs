//! Which eviction policy is the better one for what is asked for, found out by trying.
//!
//! Both policies evict in a tier of their own, which holds no bytes: miniature simulations, as in
//! Waldspurger et al., "Cache modeling and optimization using miniature simulations" (USENIX ATC
//! 2017). Each sees the same sample of the keys, and has room for that share of the objects that
//! the real tier holds. So both have about the hit ratio that the real tier would have.
//!
//! ```text
//! request ──▶ key in the sample? ──▶ tier by S3-FIFO: hit?      after some requests: a policy
//!                          └───────▶ tier by contest: hit?      with clearly more hits is followed
//! ```
//!
//! - The two take at most 1/[`SHARE`] of the tier's budget, and have [`MOST`] objects each at most.
//!   So a large tier samples few of its requests.
//! - The contest needs to know what was asked for lately. Its sketch has 8 bytes for each object
//!   while it is followed, and forgets within 20 requests for each. A longer memory follows too
//!   late, a shorter one has forgotten a loop before its next round. The sketch of the shard is one
//!   for flash, whose memory is longer by as much as flash is larger.
//! - What a trial takes is put by in small steps, before it begins. Otherwise many objects would
//!   be evicted at once.
//! - Hits are compared within the same requests, so that chance is small. They are halved after
//!   each comparison: the answer follows the workload.

use super::arena::entry_bytes;
use super::dram::{DramTier, EvictionPolicy};
use super::entry::{DramObject, EntryState, NOWHERE};
use super::evicted::Victims;
use super::sketch::FrequencySketch;
use crate::format::record::Meta;

/// Part of the budget that the rivals may take.
const SHARE: usize = 16;
/// Objects of each tier of a trial.
const LEAST: usize = 8;
const MOST: usize = 1024;
/// A tier of more than so many objects is sampled, one key of so many at most: a request for a key
/// of the sample costs as much as two or three others.
const ALL: usize = 256;
const THIN: usize = 16;
/// What the ghost of a tier takes for each of its objects.
const GHOST: usize = 13;
/// Objects that a sketch is made for, for each object of its tier.
const WIDTH: usize = 2;
/// Requests for each object of a tier, after which what was counted is halved.
const MEMORY: usize = 20;
/// Bytes that are put by at a time.
const STEP: usize = 4 << 10;
/// Requests for each object of a tier, after which hits are compared.
const REQUESTS: u64 = 8;
/// The better policy has so many hits more, in parts of the requests.
const MARGIN: u64 = 128;

const POLICIES: [EvictionPolicy; 2] = [EvictionPolicy::S3Fifo, EvictionPolicy::Contest];

/// Finds out which policy a tier should follow, has it follow that one, and counts requests for it.
/// Until the tier has evicted something there is nothing to choose.
#[derive(Default)]
pub struct PolicyTrial {
    running: Option<Box<Running>>,
    /// The policy is not to change.
    #[cfg(test)]
    held: bool,
}

struct Running {
    rivals: Rivals,
    /// The policy that is to be followed.
    better: EvictionPolicy,
    /// What the contest of the tier itself goes by, once its memory is put by.
    popularity: Option<FrequencySketch>,
    /// Objects of the tier when this was made.
    made_for: usize,
    bytes: usize,
}

impl PolicyTrial {
    /// Nothing is tried yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for what counting a request for an object will look at.
    pub fn prefetch(&self, hash: u64) {
        if let Some(popularity) = self.counts() {
            popularity.prefetch(hash);
        }
    }

    /// Counts a request for an object of `tier`, found there or not.
    pub fn request(&mut self, tier: &mut DramTier, hash: u64) {
        let Some(running) = &mut self.running else { return };
        if let Some(popularity) = &mut running.popularity {
            popularity.add(hash);
        }
        if !running.rivals.samples(hash) {
            return;
        }
        running.rivals.request(hash);
        let better = running.rivals.judge(running.better);
        if better != running.better {
            running.better = better;
            if better == EvictionPolicy::S3Fifo {
                running.end_contest(tier);
            }
        }
    }

    /// An object is put into the tier, asked for or not.
    pub fn put(&mut self, hash: u64) {
        if let Some(running) = self.running.as_mut().filter(|running| running.rivals.samples(hash))
        {
            running.rivals.put(hash);
        }
    }

    /// Has the tier follow the contest for good. A tier too small for a trial counts no requests.
    #[cfg(test)]
    pub fn hold_contest(&mut self, tier: &mut DramTier) {
        tier.policy = EvictionPolicy::Contest;
        self.held = true;
    }

    /// Whether both policies are being tried.
    #[cfg(test)]
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Objects that the tier had when the trial began.
    #[cfg(test)]
    pub fn made_for(&self) -> Option<usize> {
        self.running.as_ref().map(|running| running.made_for)
    }

    /// Requests for an object that were counted lately, at most 15; 0 while no contest is on.
    #[must_use]
    pub fn popularity(&self, hash: u64) -> u8 {
        self.counts().map_or(0, |popularity| popularity.estimate(hash))
    }

    /// What the tier's own contest goes by, while one is on.
    fn counts(&self) -> Option<&FrequencySketch> {
        self.running.as_ref()?.popularity.as_ref()
    }

    /// Adds an object to `tier`, where it is not yet. What it evicts is forgotten: for a replay,
    /// whose tier stands for one of a cache.
    pub fn replay(&mut self, tier: &mut DramTier, object: &DramObject<'_>) {
        self.put(object.hash);
        let mut forgotten = Forgotten { trial: self, any: false };
        tier.insert_absent(object, &mut forgotten);
        if forgotten.any {
            self.evicted(tier);
        }
    }

    /// The tier has evicted something: the trial begins, or begins anew where the tier has many
    /// more or fewer objects than it was made for. Where the budget is too small now, it ends. A
    /// contest begins that is the better policy.
    pub fn evicted(&mut self, tier: &mut DramTier) {
        #[cfg(test)]
        if self.held {
            return;
        }
        let objects = tier.len();
        match &mut self.running {
            Some(running) if running.fits(objects, tier.budget) => {
                if running.better == EvictionPolicy::Contest && running.popularity.is_none() {
                    running.begin_contest(tier);
                }
            }
            _ => self.begin(tier, objects),
        }
    }

    fn begin(&mut self, tier: &mut DramTier, objects: usize) {
        if let Some(running) = &mut self.running {
            running.end_contest(tier);
        }
        let Some(sampled) = sampled(objects, tier.budget) else {
            (self.running, tier.reserved, tier.put_by) = (None, 0, 0);
            return;
        };
        let bytes =
            POLICIES.len() * rival_bytes(sampled) + FrequencySketch::bytes_for(sampled * WIDTH);
        if put_by(tier, bytes) {
            self.running = Some(Box::new(Running {
                rivals: Rivals::new(objects, sampled),
                better: EvictionPolicy::S3Fifo,
                popularity: None,
                made_for: objects,
                bytes,
            }));
        }
    }
}

/// Reserves some more of so many bytes, for which insertions make room; whether that is all.
fn put_by(tier: &mut DramTier, bytes: usize) -> bool {
    if tier.reserved >= bytes {
        (tier.reserved, tier.put_by) = (bytes, 0);
        return true;
    }
    let step = STEP.min(bytes - tier.reserved);
    if tier.put_by != 0 && tier.bytes() + step <= tier.budget {
        tier.reserved += step;
    }
    tier.put_by = STEP.min(bytes - tier.reserved);
    false
}

/// What leaves the tier of a replay.
struct Forgotten<'a> {
    trial: &'a PolicyTrial,
    any: bool,
}

impl Victims for Forgotten<'_> {
    fn take(&mut self, _object: &DramObject<'_>) {
        self.any = true;
    }

    fn popularity(&self, hash: u64) -> u8 {
        self.trial.popularity(hash)
    }
}

impl Running {
    /// Whether this is still of use for a tier of so many objects and bytes.
    fn fits(&self, objects: usize, budget: usize) -> bool {
        let like = (self.made_for / 2..=self.made_for * 2).contains(&objects);
        like && self.bytes <= budget / SHARE * 2
    }

    /// Has the tier follow the contest, once the memory for its counts is put by.
    fn begin_contest(&mut self, tier: &mut DramTier) {
        let counted = self.made_for * WIDTH;
        if put_by(tier, self.bytes + FrequencySketch::bytes_for(counted)) {
            self.popularity = Some(FrequencySketch::with_sample(counted, self.made_for * MEMORY));
            tier.policy = EvictionPolicy::Contest;
        }
    }

    /// Has the tier follow S3-FIFO.
    fn end_contest(&mut self, tier: &mut DramTier) {
        if tier.policy == EvictionPolicy::Contest {
            // What the small queue was to learn meanwhile, that of the trial has learnt.
            tier.small_target = (self.rivals.small_share() * tier.budget as f64) as usize;
        }
        (self.popularity, tier.policy) = (None, EvictionPolicy::S3Fifo);
        (tier.reserved, tier.put_by) = (tier.reserved.min(self.bytes), 0);
    }
}

/// Objects of each rival, for a tier of so many objects and bytes; `None` if these are too few.
fn sampled(objects: usize, budget: usize) -> Option<usize> {
    let room = (budget / SHARE / POLICIES.len()).checked_sub(rival_bytes(0))?;
    let wanted = objects.min(ALL.max(objects / THIN)).min(MOST);
    let sampled = wanted.min(room / (entry_bytes(0) + GHOST));
    (sampled >= LEAST).then_some(sampled)
}

/// Memory of a rival of so many objects.
fn rival_bytes(objects: usize) -> usize {
    DramTier::EMPTY_BYTES + objects * (entry_bytes(0) + GHOST)
}

/// Two tiers without bytes, one of each policy.
struct Rivals {
    tiers: [DramTier; 2],
    popularity: FrequencySketch,
    hits: [u64; 2],
    requests: u64,
    /// Keys whose mixed hash is below this are in the sample.
    below: u64,
    /// Objects of each tier.
    objects: usize,
}

/// What leaves a tier of a trial is nowhere.
struct Gone<'a>(&'a FrequencySketch);

impl Victims for Gone<'_> {
    fn take(&mut self, _object: &DramObject<'_>) {}

    fn popularity(&self, hash: u64) -> u8 {
        self.0.estimate(hash)
    }
}

impl Rivals {
    /// Rivals of `sampled` objects each, for a tier of so many objects.
    fn new(objects: usize, sampled: usize) -> Self {
        let tiers = POLICIES.map(|policy| {
            let mut tier = DramTier::new(rival_bytes(sampled));
            tier.policy = policy;
            tier
        });
        Self {
            tiers,
            popularity: FrequencySketch::with_sample(sampled * WIDTH, sampled * MEMORY),
            hits: [0; 2],
            requests: 0,
            below: (((sampled as u128) << 32) / objects as u128) as u64,
            objects: sampled,
        }
    }

    /// Whether a key is in the sample. Shards, buckets and the ghost go by other bits.
    fn samples(&self, hash: u64) -> bool {
        hash.wrapping_mul(0x9fb2_1c65_1e98_df25) >> 32 < self.below
    }

    /// A request for an object of the sample.
    fn request(&mut self, hash: u64) {
        self.requests += 1;
        self.popularity.add(hash);
        for (tier, hits) in self.tiers.iter_mut().zip(&mut self.hits) {
            match tier.get(hash, 0, &[]) {
                Some(_) => *hits += 1,
                None => tier.insert_absent(&object(hash), &mut Gone(&self.popularity)),
            }
        }
    }

    /// An object of the sample is put.
    fn put(&mut self, hash: u64) {
        for tier in &mut self.tiers {
            if tier.peek_hash(hash).is_none() {
                tier.insert_absent(&object(hash), &mut Gone(&self.popularity));
            }
        }
    }

    /// The policy to follow, after `now`.
    fn judge(&mut self, now: EvictionPolicy) -> EvictionPolicy {
        if self.requests < REQUESTS * self.objects as u64 {
            return now;
        }
        let mine = usize::from(now != POLICIES[0]);
        let other = 1 - mine;
        let wins = self.hits[other] * MARGIN > self.hits[mine] * MARGIN + self.requests;
        self.hits = self.hits.map(|hits| hits / 2);
        self.requests /= 2;
        if wins { POLICIES[other] } else { now }
    }

    /// The share of its budget that S3-FIFO gives to small, where it evicts all the time.
    fn small_share(&self) -> f64 {
        let tier = &self.tiers[0];
        tier.small_target as f64 / tier.budget as f64
    }
}

/// An object of no bytes.
fn object(hash: u64) -> DramObject<'static> {
    let meta = Meta { ns: 0, version: 1, expiry: 0, group: 0, epoch_slot: 0 };
    DramObject::new(hash, &meta, &[], &[], EntryState::Clean(NOWHERE))
}
