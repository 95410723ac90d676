//! The cache of rows: under what they may be served, what a fill installs, and for how long.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Millis;
use crate::gate::{Gates, Join, Ticket, slot_of};
use crate::intents::{IntentId, IntentTable};
use crate::lease::LeaseClock;
use crate::policy::{Policies, Policy};
use crate::row::{Filled, StoredRow};
use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_engine::{Ack, Hit, Lookup, Namespace, PutOptions, PutOutcome, RefuseReason};
use bytes::Bytes;
use parking_lot::RwLock;
use uuid::Uuid;

use crate::clock::{Clock, Moment};
use crate::intents::log::IntentLog;
use crate::scope::{NEVER, Nature, gate_of, group_of, scope_of_intent, token_of};

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

/// Why no row of a table may be served or filled now: reads of it go to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCached {
    /// The schema is not known, or a write that may touch anything is on its way.
    Suspended,
    /// The table's policy says so.
    PolicyOff,
    /// The table's policy is `exclusive`, and the lease is not ours or the claim not on disk.
    NoLease,
}

/// Why a row that was found is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotServed {
    /// It is not what was installed.
    Corrupt,
    /// Its time is over.
    Expired,
    /// It is of another claim, another boot or another shape of the table.
    Unusable,
}

/// What became of a fill that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// The row is cached.
    Row,
    /// That the row does not exist is cached.
    Absent,
    /// A write, or a younger fill, has overtaken it.
    Overtaken,
    /// What it brought may not be cached.
    Uncacheable,
    /// The engine did not take it.
    Refused,
    /// It is larger than what the engine can keep.
    TooLarge,
}

/// A finished fill.
pub struct Finished<W> {
    /// For who led it; `None` where what it brought cannot be understood.
    pub row: Option<Row>,
    /// Whether it is cached.
    pub installed: Installed,
    /// Reads that waited for it.
    pub waiters: Vec<W>,
    /// What they are to be told: nothing where the row has ended before they may have come.
    pub shared: Option<Row>,
}

/// What the cached path is made of.
pub struct Parts {
    /// Where rows live: mutable, with partition epochs.
    pub rows: Namespace,
    /// Writes in flight, kept across a crash.
    pub intents: IntentTable,
    /// What was in flight when the last run ended, still noted there.
    pub unsettled: Vec<(IntentId, u64)>,
    /// Policies in force.
    pub policies: Arc<dyn Policies>,
    /// How long a write of unknown outcome keeps its partitions uncached.
    pub hold: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
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
    by_id: HashMap<Uuid, Policy>,
}

/// The cache of rows. `W` is how a read that waits for another's fill is told of it.
pub struct RowCache<W> {
    pub(crate) rows: Namespace,
    pub(crate) gates: Arc<Gates<W>>,
    pub(crate) intent_log: IntentLog,
    policies: Arc<dyn Policies>,
    resolved: RwLock<Resolved>,
    lease: LeaseClock,
    /// The present claim; [`NO_CLAIM`] while there is none that is safely on disk.
    claim: AtomicU64,
    /// Generation of the policies that the claim was made under; under others it licenses nothing.
    claim_generation: AtomicU64,
    /// Set while the schema is not known, so that nothing may be planned from it.
    suspended: AtomicBool,
    /// Writes under way that may touch anything, and have dropped nothing.
    pub(crate) doubts: AtomicUsize,
    /// Lightweight transactions of unknown outcome whose gates stay closed until the database tells it.
    pub(crate) unresolved: AtomicUsize,
    pub(crate) hold: Duration,
    weak_life: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    boot: u64,
}

impl<W> RowCache<W> {
    /// Takes over from the last run: what it left unsettled is held.
    pub fn new(parts: Parts) -> Arc<RowCache<W>> {
        let gates = Gates::new();
        let intent_log = IntentLog::new(parts.intents);
        if parts.unsettled.iter().any(|(_, word)| scope_of_intent(*word).1.undropped) {
            parts.rows.clear();
        }
        for (id, word) in parts.unsettled {
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
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
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
    pub fn cache_permission(&self, table: &TableSchema) -> Result<CachePermission, NotCached> {
        if self.suspended.load(Ordering::Acquire) || self.doubts.load(Ordering::Acquire) > 0 {
            return Err(NotCached::Suspended);
        }
        let (generation, policy) = self.policy(table);
        match policy {
            Policy::Off => Err(NotCached::PolicyOff),
            Policy::MaxStaleness(bound) => Ok(CachePermission::Bounded {
                seconds: u32::try_from(bound.as_secs()).unwrap_or(u32::MAX).max(1),
            }),
            Policy::Exclusive => {
                // In this order, the reverse of `set_claim`: a claim read after its generation is never an older one.
                let made_for = self.claim_generation.load(Ordering::Acquire);
                let claim = self.claim.load(Ordering::Acquire);
                if claim == NO_CLAIM || made_for != generation || !self.lease.holds(self.clock.now()) {
                    return Err(NotCached::NoLease);
                }
                Ok(CachePermission::Exclusive { claim })
            }
        }
    }

    /// The policy of a table, resolved once for as long as the policies stay, with the generation it is of.
    fn policy(&self, table: &TableSchema) -> (u64, Policy) {
        let generation = self.policies.generation();
        {
            let resolved = self.resolved.read();
            if resolved.generation == generation
                && let Some(policy) = resolved.by_id.get(&table.id)
            {
                return (generation, *policy);
            }
        }
        let (generation, policy) = self.policies.policy(&table.keyspace, &table.name);
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
    ) -> Result<Row, NotServed> {
        let (prefix, row) = hit.value.split_first_chunk::<PREFIX>().ok_or(NotServed::Corrupt)?;
        let (claim, times) = prefix.split_first_chunk::<8>().ok_or(NotServed::Corrupt)?;
        let (filled_at, life) = times.split_first_chunk::<4>().ok_or(NotServed::Corrupt)?;
        let life = u32::from_le_bytes(life.try_into().map_err(|_| NotServed::Corrupt)?);
        let (present, longest) = match cache_permission {
            CachePermission::Exclusive { claim } => (claim, life),
            CachePermission::Bounded { seconds } => (self.boot, life.min(seconds)),
        };
        if u64::from_le_bytes(*claim) != present {
            return Err(NotServed::Unusable);
        }
        // The engine ends rows by the wall clock, which may have been set back since.
        if longest != ENDLESS {
            match self.age(u32::from_le_bytes(*filled_at)) {
                Some(age) if age < longest => {}
                Some(_) => return Err(NotServed::Expired),
                None => return Err(NotServed::Unusable),
            }
        }
        Row::checked(hit.value.slice_ref(row), fingerprint).ok_or(NotServed::Unusable)
    }

    /// Seconds since that second since boot. Both are rounded down, so an age below a bound is truly below it. `None`: it is yet to
    /// come.
    fn age(&self, filled_at: u32) -> Option<u32> {
        self.clock.seconds().checked_sub(filled_at)
    }

    /// What a read that missed shall do: lead the fill, wait for another's, or pass the gates by. `waiter` is called only
    /// if the answer is [`Join::Wait`].
    pub fn join(
        &self,
        table: &TableSchema,
        key: &RowKey,
        cache_permission: CachePermission,
        waiter: impl FnOnce() -> W,
    ) -> Join<W> {
        let tolerant = matches!(cache_permission, CachePermission::Bounded { .. });
        let gate = gate_of(&table.keyspace, &table.name);
        let slot = slot_of(token_of(gate, key.partition_key()));
        self.gates.join(gate, slot, key.engine_key(), self.clock.now(), tolerant, waiter)
    }

    /// Ends a fill: installs the row if nothing overtook it. Those who waited are the caller's to tell.
    ///
    /// `asked_at` is the moment *before* the fill was sent.
    pub fn install(&self, mut fill: Fill<'_>, ticket: Ticket<W>) -> Finished<W> {
        let bytes = Bytes::from(std::mem::take(&mut fill.filled.bytes));
        let row = Row::checked(bytes.clone(), fill.plan.fingerprint);
        let mut installed = Installed::Overtaken;
        let weak = ticket.is_weak().then_some(self.weak_life.as_secs() as u32);
        // A bare row may end before its marker says so, which no SELECT shows: only a bound licenses that.
        let life = fill.life(weak);
        let finished = if fill.filled.marker_only
            && matches!(fill.cache_permission, CachePermission::Exclusive { .. })
        {
            installed = Installed::Uncacheable;
            ticket.finish(|| ())
        } else {
            ticket.finish(|| installed = self.put(&fill, &bytes, life))
        };
        // Who came while the database took its time may have come after the row's end.
        let ended = life.is_some_and(|life| self.age(fill.asked_at.boot).is_none_or(|age| age >= life));
        if installed == Installed::TooLarge {
            self.gates.note_too_large(fill.key.engine_key(), finished.stamp, self.clock.now());
        }
        let shared = row.clone().filter(|_| !ended);
        Finished { row, installed, waiters: finished.waiters, shared }
    }

    fn put(&self, fill: &Fill<'_>, bytes: &[u8], life: Option<u32>) -> Installed {
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
            return Installed::Refused;
        }
        match self.rows.submit_put(key.engine_key(), &value, options) {
            Ack::Done(PutOutcome::Stored { .. })
                if StoredRow::decode(bytes).is_some_and(|row| row.is_absent()) =>
            {
                Installed::Absent
            }
            Ack::Done(PutOutcome::Stored { .. }) | Ack::Later(_) => Installed::Row,
            Ack::Done(PutOutcome::Refused(RefuseReason::TooLarge | RefuseReason::KeyTooLong)) => {
                Installed::TooLarge
            }
            Ack::Done(PutOutcome::Refused(_)) => Installed::Refused,
        }
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
