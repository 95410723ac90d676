//! The cache of rows: the state that all parts share. [`serve`](crate::serve) reads from it,
//! [`install`](crate::install) fills it, and writes ([`write_in_flight`](crate::write_in_flight))
//! drop rows from it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use afterglow_engine::Namespace;

use crate::attempts::Attempts;
use crate::clock::{Clock, Millis};
use crate::doubts::Doubts;
use crate::gate::Gates;
use crate::intents::log::IntentLog;
use crate::intents::words::{NEVER, Nature, scope_of_intent, undropped_rows};
use crate::intents::{IntentId, IntentTable};
use crate::lease::LeaseClock;
use crate::policy::{Policies, Resolved};
use crate::shards::Shards;

/// The end of a hold that never ends: a lightweight transaction of unknown outcome that the
/// database never forgets. Any later one may complete it.
const FOREVER: Millis = Millis::MAX;
/// Stands for no claim and for no boot.
pub(crate) const NO_CLAIM: u64 = 0;

/// What the cached path is made of.
pub struct Parts {
    /// Where rows live: mutable, with partition epochs.
    pub rows: Namespace,
    /// Writes in flight, kept across a crash.
    pub intents: IntentTable,
    /// What was in flight when the last run ended. It is still noted in the intent log.
    pub unsettled: Vec<(IntentId, u64)>,
    /// The present policies.
    pub policies: Arc<dyn Policies>,
    /// Their generation, and in which second since boot a member of a ring first saw them; 0 in no
    /// ring.
    pub policies_since: (u64, u32),
    /// How long a write of unknown outcome keeps its partitions uncached.
    pub hold: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Names this boot of the machine. Seconds since another boot say nothing about age.
    pub boot: u64,
    /// Maximum age of a row whose fill may not see the last acknowledged write (weak consistency
    /// levels).
    pub weak_max_age: Duration,
}

/// The cache of rows. `W` is the means to tell a read that waits for another's fill of the result.
pub struct RowCache<W> {
    pub(crate) rows: Namespace,
    pub(crate) gates: Arc<Gates<W>>,
    pub(crate) intent_log: IntentLog,
    pub(crate) policies: Resolved,
    pub(crate) lease: LeaseClock,
    /// Where several instances share the tables: which partitions are ours.
    pub(crate) shards: OnceLock<Shards>,
    /// The present claim. [`NO_CLAIM`] while no claim is safely on disk.
    pub(crate) claim: AtomicU64,
    /// Generation of the policies that the claim was made under. Under other policies it permits
    /// nothing.
    pub(crate) claim_generation: AtomicU64,
    /// Where several instances share the tables: one more than the generation of the policies that
    /// all of them have, or 0.
    pub(crate) agreed: AtomicU64,
    /// One more than the generation of the policies that was last looked at.
    pub(crate) policies_seen: AtomicU64,
    /// In which second since boot another generation was first seen, in this run or in earlier
    /// ones; 0 if never.
    pub(crate) policies_since: AtomicU32,
    /// The lease was ours, in this run or one before it.
    pub(crate) had_lease: AtomicBool,
    /// Set while the schema is not known: nothing may be planned from it.
    pub(crate) suspended: AtomicBool,
    /// What writes in flight have not dropped yet.
    pub(crate) doubts: Doubts,
    /// Lightweight transactions of unknown outcome. Their gates stay closed until the database says
    /// how they ended.
    pub(crate) unresolved: AtomicUsize,
    /// Plain writes that are being sent again.
    pub(crate) attempts: Attempts,
    /// Bytes of rows that writes under way are to put back.
    pub(crate) pending: Arc<AtomicUsize>,
    pub(crate) hold: Duration,
    pub(crate) weak_max_age: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) boot: u64,
    /// Seconds since boot, as the last question for the lease read them.
    pub(crate) recent: AtomicU32,
}

impl<W> RowCache<W> {
    /// Takes over from the last run. What that run left unsettled is held.
    pub fn new(parts: Parts) -> Arc<RowCache<W>> {
        let gates = Gates::new();
        let all_of = |word| undropped_rows(word).is_none() && scope_of_intent(word).1.undropped;
        if parts.unsettled.iter().any(|(_, word)| all_of(*word)) {
            parts.rows.clear();
        }
        let group_of = |(_, word): &(IntentId, u64)| undropped_rows(*word);
        let (rows, scopes): (Vec<_>, Vec<_>) =
            parts.unsettled.into_iter().partition(|noted| group_of(noted).is_some());
        // Each once: earlier versions noted a group for each write.
        let groups: HashSet<u32> = rows.iter().filter_map(group_of).collect();
        for group in groups {
            parts.rows.remove_group(group);
        }
        rows.iter().for_each(|(id, _)| parts.intents.settle(*id));
        // Now the table is as free as it will be.
        let intent_log = IntentLog::new(parts.intents);
        for (id, word) in scopes {
            let (scope, nature) = scope_of_intent(word);
            let until = hold_of(nature, &*parts.clock, parts.hold);
            match nature.weak {
                true => gates.weaken(&scope, until),
                false => gates.hold(&scope, until),
            }
            intent_log.keep_dropped((id, word), until);
        }
        Arc::new(RowCache {
            rows: parts.rows,
            gates,
            intent_log,
            policies: Resolved::new(parts.policies),
            lease: LeaseClock::default(),
            shards: OnceLock::new(),
            claim: AtomicU64::new(NO_CLAIM),
            claim_generation: AtomicU64::new(0),
            agreed: AtomicU64::new(0),
            policies_seen: AtomicU64::new(parts.policies_since.0 + 1),
            policies_since: AtomicU32::new(parts.policies_since.1),
            had_lease: AtomicBool::new(false),
            suspended: AtomicBool::new(true),
            doubts: Doubts::default(),
            unresolved: AtomicUsize::new(0),
            attempts: Attempts::default(),
            pending: Arc::default(),
            hold: parts.hold,
            weak_max_age: parts.weak_max_age,
            clock: parts.clock,
            boot: parts.boot,
            recent: AtomicU32::new(0),
        })
    }

    /// The clock that everything here uses.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Until when the lease is ours.
    pub fn lease(&self) -> &LeaseClock {
        &self.lease
    }

    /// Several instances share the tables from now on. `count` shards; none is ours at first.
    pub fn share(&self, count: usize) -> &Shards {
        self.shards.get_or_init(|| Shards::new(count))
    }

    /// When what may be kept for so many seconds from now on ends, by the engine's time. The wall
    /// clock may be behind that, and what it would say be over already.
    pub(crate) fn expiry_in(&self, seconds: u32) -> u32 {
        let now = u32::try_from(self.rows.now()).unwrap_or(u32::MAX);
        let slack = if seconds > 0 { self.clock.slack() } else { 0 };
        now.saturating_add(seconds).saturating_add(slack)
    }

    /// Whether rows of a table of this name may be cached, by the present policies.
    pub fn may_cache(&self, keyspace: &str, table: &str) -> bool {
        self.policies.may_cache(keyspace, table)
    }

    /// Where several instances share the tables: the policies of this generation are those of all
    /// of them. `None`: it is not known of any. Under other policies nothing is served or filled.
    pub fn agree(&self, generation: Option<u64>) {
        self.agreed.store(generation.map_or(0, |generation| generation + 1), Ordering::Release);
    }

    pub(crate) fn agrees(&self, generation: u64) -> bool {
        self.shards.get().is_none() || self.agreed.load(Ordering::Acquire) == generation + 1
    }

    /// Rows filled under `exclusive` are served if they carry this claim, made under that
    /// generation of the policies. `None`: no such row is served.
    pub fn set_claim(&self, claim: Option<(u64, u64)>) {
        let (claim, generation) = claim.unwrap_or((NO_CLAIM, 0));
        self.claim.store(NO_CLAIM, Ordering::Release);
        self.claim_generation.store(generation, Ordering::Release);
        self.claim.store(claim, Ordering::Release);
    }

    /// While suspended, nothing is served or filled. Writes still drop rows.
    pub fn suspend(&self, suspended: bool) {
        self.suspended.store(suspended, Ordering::Release);
    }

    /// Partitions and tables that are held because of unknown outcomes.
    pub fn held(&self) -> usize {
        self.gates.held(self.clock.now()) + self.unresolved.load(Ordering::Acquire)
    }

    /// Whether a fill would see every write that went through us.
    pub fn is_settled(&self) -> bool {
        !self.suspended.load(Ordering::Acquire)
            && self.held() == 0
            && self.gates.is_settled(self.clock.now())
    }

    /// Whether rows may be cached under `exclusive` now: the lease has not run out, and there is a
    /// claim for them.
    pub fn caches_exclusive(&self) -> bool {
        self.claim.load(Ordering::Acquire) != NO_CLAIM
            && self.lease.holds(self.clock.now())
            && self.agrees(self.policies.generation())
    }
}

/// Until when a write whose outcome is not known keeps its gates closed.
pub(crate) fn hold_of(nature: Nature, clock: &dyn Clock, hold: Duration) -> Millis {
    let plain = clock.now() + hold.as_millis() as Millis;
    match nature {
        Nature { conditional: true, dead_after: NEVER, .. } => FOREVER,
        Nature { conditional: true, dead_after, .. } => {
            let dead_after = u64::from(dead_after) * 60;
            let left = dead_after.saturating_sub(clock.moment().unix.into()).saturating_mul(1_000);
            plain.max(clock.now() + left)
        }
        Nature { .. } => plain,
    }
}
