//! The state of the cached path besides its cache: what is known of the database, and how flash is
//! read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use afterglow_cql::plan::{ReadPlan, TableSchema};
use afterglow_cql::schema::Schema;
use afterglow_engine::device::{AlignedBuf, DeviceId, DeviceSet};
use afterglow_engine::{FlashRead, Hit, Lookup};
use afterglow_ring::SchemaVersion;
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::gate::Ticket;
use afterglow_rowcache::install::{Installed, ReturnedFill};
use afterglow_rowcache::newcomers::Newcomers;
use afterglow_rowcache::noted_tables::NotedTables;
use afterglow_rowcache::paxos::Paxos;
use afterglow_rowcache::refresh::Refreshed;
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::unit::Units;
use afterglow_rowcache::write_in_flight::WriteInFlight;
use afterglow_rowcache::write_scope::WriteScope;
use parking_lot::{Mutex, RwLock};

use super::RowCache;
use super::changed_table::ChangedTable;
use super::fill::{Ask, FillFailure, FillStatement, FillStatements};
use super::fill_result::{FillResult, FillWaiter};
use super::heard_schema::HeardSchema;
use super::newest::Newest;
use super::ring::Ring;
use super::under_way::UnderWay;
use super::unheard::Unheard;
use super::weak_writes::WeakWrites;
use crate::config::FillHedge;
use crate::frontend::cql::{Backend, ChangeNumber};
use crate::metrics::{FrontEndMetrics, MissReason};
use crate::reactor::{FlashFile, read_flash};

/// How fills read the database.
#[derive(Clone, Copy)]
pub(super) struct FillRules {
    /// See [`Times::fill`](super::Times::fill).
    pub(super) timeout: Duration,
    /// When a second node is asked too.
    pub(super) hedge: FillHedge,
}

/// Reads of the database that writes have led to.
const MOST_REFRESHES: usize = 511;
/// Reads of flash that writes have begun, and that no device has answered. Fewer than the threads
/// of a reactor that reads by threads, so that reads of clients find some.
const MOST_WRITE_READS: usize = 128;

/// What the tasks of a router share.
pub(super) struct CachedState {
    pub(super) cache: Arc<RowCache>,
    pub(super) statements: FillStatements,
    pub(super) newest: Newest,
    /// The tables that the newest snapshot has, for the next run.
    pub(super) tables: Mutex<NotedTables>,
    pub(super) flash: Vec<FlashFile>,
    /// Sizes of the partitions' units.
    pub(super) units: Units,
    /// Which written rows to read at once.
    pub(super) newcomers: Newcomers,
    /// As many as there are refreshes under way, and one.
    pub(super) refreshing: UnderWay,
    /// How fills read the database.
    pub(super) fills: FillRules,
    /// The ring, where several instances share the tables.
    pub(super) ring: OnceLock<Arc<Ring>>,
    /// Whether several instances share the tables; the ring is there soon then.
    pub(super) sharing: bool,
    /// We have no ring, and one has the lease: what is written through us its members would not
    /// hear of.
    pub(super) beside_ring: AtomicBool,
    /// Writes that a quorum read may miss.
    pub(super) weak_writes: WeakWrites,
    /// Reads of rows that writes have begun.
    pub(super) write_reads: UnderWay,
    /// What is known of the database's lightweight transactions.
    pub(super) paxos: Paxos,
    /// The database counts the rows that it shows: see [`super::slice::counts_shown_rows`].
    pub(super) counts_shown_rows: AtomicBool,
    /// The data centre of the node that we talk to.
    pub(super) data_center: RwLock<Option<String>>,
    /// Name of the cluster that we talk to.
    pub(super) cluster: RwLock<Option<String>>,
    /// Up to where changes of the schema have been heard of.
    pub(super) heard_schema: HeardSchema,
    /// The schema as the last control connection found it. All that has changed since was told, or
    /// shows when it is compared with what the next one finds.
    pub(super) found: Mutex<Option<Arc<Schema>>>,
    /// Tables of which a change was heard, until a snapshot shows whether their rows are others.
    pub(super) changed: Mutex<Vec<ChangedTable>>,
    /// Changes of tables that the newest snapshot has, and that nobody has told.
    pub(super) unheard: Mutex<Unheard>,
    /// Changes of the schema are heard of at once: there is a control connection.
    pub(super) hears_changes: AtomicBool,
    /// Snapshots of the schema up to this generation lack the last change that was heard of.
    outdated: AtomicU64,
    /// The lease has been asked for, and the answer is known; or none is needed.
    pub(super) settled: AtomicBool,
    /// The database has required authentication since the control connection was last there.
    guarded: AtomicBool,
    /// What is written past us meanwhile, for the next run.
    unseen: Mutex<Option<WriteInFlight<FillWaiter>>>,
}

impl CachedState {
    /// Installs what a fill has read, and tells the reads that waited for it.
    pub(super) fn install(
        &self,
        fill: ReturnedFill<'_>,
        ticket: Ticket<FillWaiter>,
    ) -> (Installed, Option<Row>) {
        let finished = self.cache.install(fill, ticket);
        let shared = finished.shared.map_or(FillResult::Nothing, FillResult::Row);
        tell(finished.waiters, &shared);
        (finished.installed, finished.row)
    }

    /// Tells the reads that waited for a unit.
    pub(super) fn refreshed(&self, ended: Refreshed<FillWaiter>) -> Installed {
        tell(ended.waiters, &ended.unit.map_or(FillResult::Nothing, FillResult::Unit));
        ended.installed
    }

    /// Ends a fill that another made needless: the reads that waited for it get the row.
    pub(super) fn share(&self, row: &Row, ticket: Ticket<FillWaiter>) {
        tell(ticket.finish(|| ()).waiters, &FillResult::Row(row.clone()));
    }

    /// Reads a row or a unit, see [`FillStatements::fill`].
    pub(super) async fn fill(
        &self,
        backend: &Backend,
        ask: Ask<'_>,
        generation: u64,
        asked_at: u32,
    ) -> Result<Filled, FillFailure> {
        let filled = self.statements.fill(backend, ask, generation, asked_at).await;
        filled.inspect_err(|failure| self.note_types(*failure, &ask.plan.table))
    }

    /// The statement that reads a row, see [`FillStatements::get`].
    pub(super) async fn fill_statement(
        &self,
        backend: &Backend,
        plan: &ReadPlan,
        generation: u64,
    ) -> Result<Arc<FillStatement>, FillFailure> {
        let statement = self.statements.get(backend, plan, generation).await;
        statement.inspect_err(|failure| self.note_types(*failure, &plan.table))
    }

    /// Nodes differ about the types of a table's columns: its rows may be of either form. The
    /// statements are removed already, so what is filled after this has the types of the next.
    fn note_types(&self, failure: FillFailure, table: &TableSchema) {
        if failure == FillFailure::OtherTypes {
            let mut both = WriteScope::default();
            both.add_table(table);
            self.forget(&both);
        }
    }

    /// Rows are gone because of what no write through us has told. In a ring, nobody gives us what
    /// others may still have of them.
    pub(super) fn forget(&self, scope: &WriteScope) {
        self.distrust_older();
        self.cache.forget(scope);
    }

    /// Rows that were cached under earlier epochs of the ring do not count any more.
    pub(super) fn distrust_older(&self) {
        if let Some(ring) = self.ring.get() {
            ring.distrust_older();
        }
    }

    /// A change of the schema was heard of, by the answer to `change` or by an event, and its
    /// version is not known yet. In a ring, an owner that still names the version of before has not
    /// heard of it: its shards are not to be believed.
    ///
    /// The race with the ring's keeper, which tells the member what we vouch for: it looks while it
    /// has the member, so the last to come finds the change noted.
    pub(super) fn schema_goes_on(&self, change: Option<ChangeNumber>) {
        match change {
            Some(change) => self.heard_schema.answered(change),
            None => self.heard_schema.told(),
        }
        if let Some(ring) = self.ring.get() {
            ring.with(|member, _| member.set_schema(SchemaVersion::default()));
        }
    }

    /// Fills of this may miss writes for a while, and so may rows that others have. In a ring,
    /// others may fill it soon, who have not heard why.
    pub(super) fn weaken(&self, scope: WriteScope) {
        if let Some(ring) = self.ring.get() {
            ring.weaken();
        }
        self.distrust_older();
        self.cache.weaken(scope);
    }

    /// From now on clients write past us, and may read what the database would refuse them. Neither
    /// a stop nor a crash ends what is not known then.
    pub(super) fn guard(&self) {
        self.cache.suspend(true);
        self.guarded.store(true, Ordering::Release);
        // A member of a ring refuses what would go past it.
        if !self.sharing {
            let mut unseen = self.unseen.lock();
            if unseen.is_none() {
                *unseen = self.cache.begin_unseen();
            }
        }
        self.forget(&WriteScope::everything());
    }

    /// All writes come through us again. Those that went past us may still be in flight.
    pub(super) fn end_guard(&self) {
        if self.guarded.swap(false, Ordering::AcqRel) {
            self.weaken(WriteScope::everything());
            self.cache.forget_and_hold(&WriteScope::everything());
            drop(self.unseen.lock().take());
        }
    }

    /// The schema has changed, and snapshots up to `generation` lack that.
    pub(super) fn note_schema_change(&self, generation: u64) {
        self.outdated.fetch_max(generation, Ordering::AcqRel);
    }

    /// Whether the snapshot of that generation has all that the database knows, as far as we have
    /// heard, and we would hear of more.
    pub(super) fn knows_schema(&self, generation: u64) -> bool {
        self.hears_changes.load(Ordering::Acquire)
            && generation > self.outdated.load(Ordering::Acquire)
    }

    /// Looks a row up in DRAM and on flash, by the key that the engine has it under.
    ///
    /// # Errors
    /// Why it is a miss.
    pub(super) async fn look_up(
        &self,
        engine_key: &[u8],
        metrics: &FrontEndMetrics,
    ) -> Result<Hit, MissReason> {
        match self.cache.look_up_key(engine_key) {
            Lookup::Hit(hit) => Ok(hit),
            Lookup::Miss(reason) => Err(reason.into()),
            Lookup::Flash(flash) => self.read(flash, metrics).await,
        }
    }

    /// Reads what is on flash, until it is a hit or a miss.
    ///
    /// # Errors
    /// Why it is a miss.
    pub(super) async fn read(
        &self,
        mut flash: FlashRead,
        metrics: &FrontEndMetrics,
    ) -> Result<Hit, MissReason> {
        loop {
            let device = self.flash.get(usize::from(flash.device().0));
            let device = device.ok_or(MissReason::Device)?;
            let under_way = metrics.flash_reads.one_more();
            let buf = AlignedBuf::for_read(flash.len() as usize);
            let bytes = read_flash(device, flash.offset(), buf).await;
            drop(under_way);
            match flash.finish(bytes) {
                Lookup::Hit(hit) => return Ok(hit),
                Lookup::Miss(reason) => return Err(reason.into()),
                Lookup::Flash(again) => flash = again,
            }
        }
    }

    /// Over `cache`, whose flash devices are read on the reactors' own rings. `tables`: those that
    /// the last run knew.
    pub(super) fn new(
        (cache, tables): (Arc<RowCache>, NotedTables),
        devices: &Arc<dyn DeviceSet>,
        units: Units,
        fills: FillRules,
        sharing: bool,
        weak_writes: WeakWrites,
    ) -> CachedState {
        let device = |n: usize| FlashFile::new(devices.clone(), DeviceId(n as u16));
        let flash = (0..devices.infos().len()).filter_map(device).collect();
        CachedState {
            cache,
            statements: FillStatements::default(),
            newest: Newest::default(),
            tables: Mutex::new(tables),
            flash,
            units,
            newcomers: Newcomers::default(),
            refreshing: UnderWay::at_most(MOST_REFRESHES),
            fills,
            ring: OnceLock::new(),
            sharing,
            beside_ring: AtomicBool::new(false),
            weak_writes,
            write_reads: UnderWay::at_most(MOST_WRITE_READS),
            paxos: Paxos::default(),
            counts_shown_rows: AtomicBool::new(false),
            data_center: RwLock::default(),
            cluster: RwLock::default(),
            heard_schema: HeardSchema::default(),
            found: Mutex::default(),
            changed: Mutex::default(),
            unheard: Mutex::default(),
            hears_changes: AtomicBool::new(false),
            outdated: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
            unseen: Mutex::default(),
        }
    }
}

/// Tells the reads that waited for a fill.
fn tell(waiters: Vec<FillWaiter>, result: &FillResult) {
    for waiter in waiters {
        // Fails if the waiting read has ended, which does no harm.
        let _ = waiter.send(result.clone());
    }
}

#[cfg(test)]
mod tests {
    use afterglow_rowcache::gate::{Bypass, Join};
    use afterglow_rowcache::lease::{Answer, Next};
    use afterglow_rowcache::serve::CachePermission;

    use super::super::setup::Cached;
    use super::super::testing::{keyed, open, read_of};
    use super::*;
    use crate::frontend::cql::{ControlState, Router};

    /// Takes the lease, which nobody has had.
    fn take_lease(cached: &mut Cached) {
        for answer in [Answer::Row(None), Answer::Applied(true)] {
            let Next::Send(request) = cached.claims.next() else { panic!("nothing is asked") };
            cached.claims.about_to_send(request).unwrap();
            let now = cached.claims.cache().clock().now();
            let change = cached.claims.answered(request, now, answer);
            cached.claims.apply(request, answer, change, None);
        }
    }

    #[test]
    fn what_was_written_past_us_for_want_of_a_login_is_in_doubt_after_a_restart_too() {
        let connected = || ControlState::Connected {
            cluster: "c".into(),
            release: "5.0.5".into(),
            data_center: None,
        };
        let (plan, key) = read_of(&Schema::of_tables([keyed("t", 7)]), "t");
        for has_lease in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (engine, mut cached) = open(dir.path());
            cached.router.control(connected());
            if has_lease {
                take_lease(&mut cached);
            }
            cached.router.control(ControlState::Guarded);
            cached.router.control(ControlState::Guarded);
            drop((cached, engine));
            let (_engine, cached) = open(dir.path());
            cached.router.control(connected());
            let permission = CachePermission::Exclusive { claim: 1 };
            let cache = &cached.router.shared().cache;
            let is_held = match cache.join(&plan.table, &key, permission, || unreachable!()) {
                Join::Bypass(Bypass::Quarantined) => true,
                Join::Lead(_) => false,
                _ => panic!("nothing is in flight"),
            };
            assert_eq!(is_held, has_lease);
        }
    }
}
