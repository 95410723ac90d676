//! The cache of rows: under what they may be served, what a fill installs, and for how long.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_engine::{Ack, Hit, Lookup, Namespace, PutOptions, PutOutcome, RefuseReason};
use afterglow_rowcache::clock::Millis;
use afterglow_rowcache::gate::{Bypass, Gates, Join, Ticket, slot_of};
use afterglow_rowcache::intents::{IntentId, IntentTable};
use afterglow_rowcache::lease::LeaseClock;
use afterglow_rowcache::row::{Filled, StoredRow};
use bytes::Bytes;
use futures_channel::oneshot;
use parking_lot::RwLock;
use uuid::Uuid;

use super::intent_log::IntentLog;
use crate::config::{LivePolicies, TablePolicy};
use crate::metrics::{FillOutcome, MissReason, PassReason, Tier};
use afterglow_rowcache::clock::{Clock, Moment};
use afterglow_rowcache::scope::{NEVER, Nature, gate_of, group_of, scope_of_intent, token_of};

/// The row a fill brought, or nothing if it brought none that can be shared.
pub type FillResult = Option<Row>;
/// How a read that waits for another's fill hears of it.
pub type FillWaiter = oneshot::Sender<FillResult>;

/// The hold of a lightweight transaction of unknown outcome that the database never forgets: any later one may complete it.
const FOREVER: Millis = Millis::MAX;
/// `claim u64 | filled_at u32 (seconds since boot) | life u32 (seconds)`, little endian, before the stored row. Rows that were not
/// filled under `exclusive` have [`Parts::boot`] in the place of a claim.
const PREFIX: usize = 16;
/// The life of rows that end by no clock.
const ENDLESS: u32 = u32::MAX;
/// No claim, and no boot.
const NO_CLAIM: u64 = 0;

/// A cached row: its bytes are checked and belong to the table shape that was asked for.
#[derive(Debug, Clone)]
pub struct Row(Bytes);

impl Row {
    /// The row itself.
    pub fn stored(&self) -> StoredRow<'_> {
        StoredRow::decode(&self.0).expect("checked when it was made")
    }

    fn checked(bytes: Bytes, fingerprint: u64) -> Option<Row> {
        StoredRow::decode(&bytes).is_some_and(|row| row.fingerprint() == fingerprint).then_some(Row(bytes))
    }
}

/// Under what a table's rows are cached at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePermission {
    /// All writers come through us, and the lease says that nobody else caches.
    Exclusive {
        /// Rows of another claim are not believed.
        claim: u64,
    },
    /// Nothing older than this many seconds.
    Bounded {
        /// At least one.
        seconds: u32,
    },
}

/// What the cached path is made of.
pub(super) struct Parts {
    /// Where rows live: mutable, with partition epochs.
    pub rows: Namespace,
    /// Writes in flight, kept across a crash.
    pub intents: IntentTable,
    /// What was in flight when the last run ended, still noted there.
    pub unsettled: Vec<(IntentId, u64)>,
    /// Policies in force.
    pub policies: Arc<LivePolicies>,
    /// How long a write of unknown outcome keeps its partitions uncached.
    pub hold: Duration,
    /// Time.
    pub clock: Clock,
    /// Names this boot of the machine: seconds since another one say nothing about age.
    pub boot: u64,
    /// Longest life of a row whose fill may not see the last acknowledged write (weak consistency levels).
    pub weak_life: Duration,
}

/// Tables whose policy is remembered.
const MAX_RESOLVED: usize = 1 << 16;

/// Policies of tables, by id: a name never changes its id, nor an id its name.
#[derive(Default)]
struct Resolved {
    generation: u64,
    by_id: HashMap<Uuid, TablePolicy>,
}

/// The cache of rows.
pub struct RowCache {
    pub(super) rows: Namespace,
    pub(super) gates: Arc<Gates<FillWaiter>>,
    pub(super) intent_log: IntentLog,
    policies: Arc<LivePolicies>,
    resolved: RwLock<Resolved>,
    lease: LeaseClock,
    /// The present claim; [`NO_CLAIM`] while there is none that is safely on disk.
    claim: AtomicU64,
    /// Generation of the policies that the claim was made under; under others it licenses nothing.
    claim_generation: AtomicU64,
    /// Set while the schema is not known, so that nothing may be planned from it.
    suspended: AtomicBool,
    /// Writes under way that may touch anything, and have dropped nothing.
    pub(super) doubts: AtomicUsize,
    /// Lightweight transactions of unknown outcome whose gates stay closed until the database tells it.
    pub(super) unresolved: AtomicUsize,
    pub(super) hold: Duration,
    weak_life: Duration,
    pub(super) clock: Clock,
    boot: u64,
}

impl RowCache {
    /// Takes over from the last run: what it left unsettled is held.
    pub(super) fn new(parts: Parts) -> Arc<RowCache> {
        let gates = Gates::new();
        let intent_log = IntentLog::new(parts.intents);
        if parts.unsettled.iter().any(|(_, word)| scope_of_intent(*word).1.undropped) {
            parts.rows.clear();
        }
        for (id, word) in parts.unsettled {
            let (scope, nature) = scope_of_intent(word);
            let until = hold_of(nature, &parts.clock, parts.hold);
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
            policies: parts.policies,
            resolved: RwLock::default(),
            lease: LeaseClock::default(),
            claim: AtomicU64::new(NO_CLAIM),
            claim_generation: AtomicU64::new(0),
            suspended: AtomicBool::new(true),
            doubts: AtomicUsize::new(0),
            unresolved: AtomicUsize::new(0),
            hold: parts.hold,
            weak_life: parts.weak_life,
            clock: parts.clock,
            boot: parts.boot,
        })
    }

    /// The clock that everything here goes by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Until when the lease is ours.
    pub fn lease(&self) -> &LeaseClock {
        &self.lease
    }

    /// Rows filled under `exclusive` are believed if they carry this claim, made under that generation of the policies;
    /// `None`: none are.
    pub fn set_claim(&self, claim: Option<(u64, u64)>) {
        let (claim, generation) = claim.unwrap_or((NO_CLAIM, 0));
        self.claim.store(NO_CLAIM, Ordering::Release);
        self.claim_generation.store(generation, Ordering::Release);
        self.claim.store(claim, Ordering::Release);
    }

    /// While suspended, nothing is served or filled; writes drop as ever.
    pub fn suspend(&self, suspended: bool) {
        self.suspended.store(suspended, Ordering::Release);
    }

    /// Partitions and tables held because of unknown outcomes.
    pub fn held(&self) -> usize {
        self.gates.held(self.clock.now()) + self.unresolved.load(Ordering::Acquire)
    }

    /// Whether every write that went through us is where a fill finds it.
    pub fn is_settled(&self) -> bool {
        !self.suspended.load(Ordering::Acquire) && self.held() == 0 && self.gates.is_settled(self.clock.now())
    }

    /// Whether rows may be cached under `exclusive` now: the lease has not run out, and there is a claim to carry.
    pub fn caches_exclusive(&self) -> bool {
        self.claim.load(Ordering::Acquire) != NO_CLAIM && self.lease.holds(self.clock.now())
    }

    /// Under what rows of `table` may be served and filled now.
    ///
    /// # Errors
    /// Why the read must go to the database.
    pub fn cache_permission(&self, table: &TableSchema) -> Result<CachePermission, PassReason> {
        if self.suspended.load(Ordering::Acquire) || self.doubts.load(Ordering::Acquire) > 0 {
            return Err(PassReason::Suspended);
        }
        let (generation, policy) = self.policy(table);
        match policy {
            TablePolicy::Off => Err(PassReason::PolicyOff),
            TablePolicy::MaxStaleness(bound) => Ok(CachePermission::Bounded {
                seconds: u32::try_from(bound.as_secs()).unwrap_or(u32::MAX).max(1),
            }),
            TablePolicy::Exclusive => {
                // In this order, the reverse of `set_claim`: a claim read after its generation is never an older one.
                let made_for = self.claim_generation.load(Ordering::Acquire);
                let claim = self.claim.load(Ordering::Acquire);
                if claim == NO_CLAIM || made_for != generation || !self.lease.holds(self.clock.now()) {
                    return Err(PassReason::NoLease);
                }
                Ok(CachePermission::Exclusive { claim })
            }
        }
    }

    /// The policy of a table, resolved once for as long as the policies stay, with the generation it is of.
    fn policy(&self, table: &TableSchema) -> (u64, TablePolicy) {
        let generation = self.policies.generation();
        {
            let resolved = self.resolved.read();
            if resolved.generation == generation
                && let Some(policy) = resolved.by_id.get(&table.id)
            {
                return (generation, *policy);
            }
        }
        let (generation, policies) = self.policies.current();
        let policy = policies.policy(&table.keyspace, &table.name);
        let mut resolved = self.resolved.write();
        if resolved.generation != generation || resolved.by_id.len() >= MAX_RESOLVED {
            *resolved = Resolved { generation, by_id: HashMap::new() };
        }
        resolved.by_id.insert(table.id, policy);
        (generation, policy)
    }

    /// Looks a row up. A [`Lookup::Flash`] is read by the caller and finished; a hit goes to [`RowCache::accept`].
    pub fn look_up(&self, key: &RowKey) -> Lookup {
        self.rows.get(key.engine_key())
    }

    /// Whether a hit may be served under this licence, to a plan made for this shape of the table.
    ///
    /// # Errors
    /// Why it counts as a miss.
    pub fn accept(
        &self,
        hit: &Hit,
        cache_permission: CachePermission,
        fingerprint: u64,
    ) -> Result<Row, MissReason> {
        let (prefix, row) = hit.value.split_first_chunk::<PREFIX>().ok_or(MissReason::Corrupt)?;
        let (claim, times) = prefix.split_first_chunk::<8>().ok_or(MissReason::Corrupt)?;
        let (filled_at, life) = times.split_first_chunk::<4>().ok_or(MissReason::Corrupt)?;
        let life = u32::from_le_bytes(life.try_into().map_err(|_| MissReason::Corrupt)?);
        let (present, longest) = match cache_permission {
            CachePermission::Exclusive { claim } => (claim, life),
            CachePermission::Bounded { seconds } => (self.boot, life.min(seconds)),
        };
        if u64::from_le_bytes(*claim) != present {
            return Err(MissReason::Unusable);
        }
        // The engine ends rows by the wall clock, which may have been set back since.
        if longest != ENDLESS {
            match self.age(u32::from_le_bytes(*filled_at)) {
                Some(age) if age < longest => {}
                Some(_) => return Err(MissReason::Expired),
                None => return Err(MissReason::Unusable),
            }
        }
        Row::checked(hit.value.slice_ref(row), fingerprint).ok_or(MissReason::Unusable)
    }

    /// Seconds since that second since boot. Both are rounded down, so an age below a bound is truly below it. `None`: it is yet to
    /// come.
    fn age(&self, filled_at: u32) -> Option<u32> {
        self.clock.seconds().checked_sub(filled_at)
    }

    /// What a read that missed shall do: lead the fill, wait for another's, or pass the gates by.
    pub fn join(
        &self,
        table: &TableSchema,
        key: &RowKey,
        cache_permission: CachePermission,
    ) -> (Join<FillWaiter>, Option<oneshot::Receiver<FillResult>>) {
        let tolerant = matches!(cache_permission, CachePermission::Bounded { .. });
        let gate = gate_of(&table.keyspace, &table.name);
        let slot = slot_of(token_of(gate, key.partition_key()));
        let mut receiver = None;
        let joined = self.gates.join(gate, slot, key.engine_key(), self.clock.now(), tolerant, || {
            let (sender, hears) = oneshot::channel();
            receiver = Some(hears);
            sender
        });
        (joined, receiver)
    }

    /// Ends a fill: installs the row if nothing overtook it, and tells those who wait.
    ///
    /// `asked_at` is the moment *before* the fill was sent.
    pub fn install(&self, mut fill: Fill<'_>, ticket: Ticket<FillWaiter>) -> (Option<Row>, FillOutcome) {
        let bytes = Bytes::from(std::mem::take(&mut fill.filled.bytes));
        let row = Row::checked(bytes.clone(), fill.plan.fingerprint);
        let mut outcome = FillOutcome::Overtaken;
        let weak = ticket.is_weak().then_some(self.weak_life.as_secs() as u32);
        // A bare row may end before its marker says so, which no SELECT shows: only a bound licenses that.
        let life = fill.life(weak);
        let finished = if fill.filled.marker_only
            && matches!(fill.cache_permission, CachePermission::Exclusive { .. })
        {
            outcome = FillOutcome::Uncacheable;
            ticket.finish(|| ())
        } else {
            ticket.finish(|| outcome = self.put(&fill, &bytes, life))
        };
        // Who came while the database took its time may have come after the row's end.
        let ended = life.is_some_and(|life| self.age(fill.asked_at.boot).is_none_or(|age| age >= life));
        for waiter in finished.waiters {
            // Fails when the waiting read has gone away, which is fine.
            let _ = waiter.send(row.clone().filter(|_| !ended));
        }
        if outcome == FillOutcome::TooLarge {
            self.gates.note_too_large(fill.key.engine_key(), finished.stamp, self.clock.now());
        }
        (row, outcome)
    }

    fn put(&self, fill: &Fill<'_>, bytes: &[u8], life: Option<u32>) -> FillOutcome {
        let Fill { plan: ReadPlan { table, .. }, key, cache_permission, asked_at, .. } = fill;
        let claim = match cache_permission {
            CachePermission::Exclusive { claim } => *claim,
            CachePermission::Bounded { .. } => self.boot,
        };
        let mut value = Vec::with_capacity(PREFIX + bytes.len());
        value.extend_from_slice(&claim.to_le_bytes());
        value.extend_from_slice(&asked_at.boot.to_le_bytes());
        value.extend_from_slice(&life.unwrap_or(ENDLESS).to_le_bytes());
        value.extend_from_slice(bytes);
        let token = token_of(gate_of(&table.keyspace, &table.name), key.partition_key());
        let expiry = life.map_or(0, |life| asked_at.unix.saturating_add(life));
        let options = PutOptions { expiry, group: group_of(table.id), token };
        // A full journal is for writes: this row is filled again by a later read.
        if self.rows.backpressure().is_some() {
            return FillOutcome::Refused;
        }
        match self.rows.submit_put(key.engine_key(), &value, options) {
            Ack::Done(PutOutcome::Stored { .. })
                if StoredRow::decode(bytes).is_some_and(|row| row.is_absent()) =>
            {
                FillOutcome::InstalledAbsent
            }
            Ack::Done(PutOutcome::Stored { .. }) | Ack::Later(_) => FillOutcome::Installed,
            Ack::Done(PutOutcome::Refused(RefuseReason::TooLarge | RefuseReason::KeyTooLong)) => {
                FillOutcome::TooLarge
            }
            Ack::Done(PutOutcome::Refused(_)) => FillOutcome::Refused,
        }
    }
}

/// Until when a write whose outcome is not known keeps its gates closed.
pub(super) fn hold_of(nature: Nature, clock: &Clock, hold: Duration) -> Millis {
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

/// A fill that came back.
pub struct Fill<'a> {
    /// The plan that the row was read for.
    pub plan: &'a ReadPlan,
    /// The row's key.
    pub key: &'a RowKey,
    /// What the database said.
    pub filled: Filled,
    /// The licence from before the fill was sent.
    pub cache_permission: CachePermission,
    /// The moment before it was sent.
    pub asked_at: Moment,
}

impl Fill<'_> {
    /// For how long after it was sent what it brought may be served, in seconds; `None`: for ever. `weak`: the most where
    /// it may not have seen all that was acknowledged.
    fn life(&self, weak: Option<u32>) -> Option<u32> {
        let bound = match self.cache_permission {
            CachePermission::Bounded { seconds } => Some(seconds),
            CachePermission::Exclusive { .. } => None,
        };
        [bound, weak, self.filled.life].into_iter().flatten().min()
    }
}

impl From<Bypass> for MissReason {
    fn from(bypass: Bypass) -> MissReason {
        match bypass {
            Bypass::WriteInFlight => MissReason::WriteInFlight,
            Bypass::Quarantined => MissReason::Quarantined,
            Bypass::TooLarge => MissReason::TooLarge,
        }
    }
}

impl From<afterglow_engine::MissReason> for MissReason {
    fn from(reason: afterglow_engine::MissReason) -> MissReason {
        use afterglow_engine::MissReason as Engine;
        match reason {
            Engine::Absent => MissReason::Absent,
            Engine::Loading => MissReason::Loading,
            Engine::Expired => MissReason::Expired,
            Engine::Killed => MissReason::Killed,
            Engine::Superseded => MissReason::Superseded,
            Engine::Collision => MissReason::Collision,
            Engine::Corrupt => MissReason::Corrupt,
            Engine::Device => MissReason::Device,
            Engine::Moved => MissReason::Moved,
            Engine::Abandoned => MissReason::Abandoned,
            Engine::Busy => MissReason::Busy,
        }
    }
}

impl From<afterglow_engine::Tier> for Tier {
    fn from(tier: afterglow_engine::Tier) -> Tier {
        match tier {
            afterglow_engine::Tier::Dram => Tier::Dram,
            afterglow_engine::Tier::Buffer => Tier::Buffer,
            afterglow_engine::Tier::Flash => Tier::Flash,
        }
    }
}
