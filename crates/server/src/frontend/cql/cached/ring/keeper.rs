//! Keeps an instance in its ring: one task on the first reactor that lets time pass for the member,
//! has its transactions run, and writes down what a restart needs.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use afterglow_ring::{Founding, Kept, Map, MemberId, SchemaVersion, Standing, Suspicion};
use afterglow_rowcache::claims::Claims;
use afterglow_rowcache::write_scope::WriteScope;
use futures_channel::{mpsc, oneshot};
use futures_util::{FutureExt, StreamExt};

use super::clocks;
use super::core::{Admission, DatabaseJob, Ring, TWIN};
use super::database::Database;
use super::kept::KeptFile;
use super::lease_row::{LeaseRowState, is_ring};
use super::notes::Note;
use super::row_of_others::RowOfOthers;
use super::settings::settings_of;
use super::setup::OpenRing;
use super::source::now;
use super::unconfirmed::{Confirmation, Told, reason};
use crate::config::LivePolicies;
use crate::frontend::cql::CqlShared;
use crate::frontend::cql::cached::FillWaiter;
use crate::frontend::cql::cached::keeper::{StopRequest, look_around};
use crate::frontend::cql::cached::state::CachedState;
use crate::frontend::cql::ring_view::view::RingView;
use crate::metrics::{LeaseState, RingEntry};

/// How often time passes for the member.
const TICK: Duration = Duration::from_millis(50);
/// For so long it is not told again that another process has our id.
const TWIN_PAUSE: Duration = Duration::from_secs(60);
/// An instance that stops lets no write wait longer for its permits: in a whole ring they come
/// within milliseconds. Those that the database has done still wait until their rows are dropped.
const STOPS_WAITING: u64 = 500_000;
/// Links of a process that ends are waited for no longer: who is away for 0.6 s loses its rows.
const FLUSHES_WITHIN: u64 = 250_000;
/// An instance that its ring has not let in by then answers clients as well as it can: where that
/// holds for all, a load balancer would have nobody.
const ENTERS_WITHIN: u64 = 15_000_000;
/// Clients that come at the start wait no longer than this for the ring.
const SETTLES_WITHIN: u64 = 5_000_000;

/// The keeper's state.
pub struct RingKeeper {
    front_end: Arc<CqlShared>,
    shared: Arc<CachedState>,
    policies: Arc<LivePolicies>,
    claims: Claims<FillWaiter>,
    ring: Arc<Ring>,
    jobs: Option<mpsc::UnboundedReceiver<DatabaseJob>>,
    kept: KeptFile,
    database: Rc<Database>,
    /// The version of the map that peers were last taken from.
    peers_of: u64,
    /// When this process began.
    started: u64,
    hold: Duration,
    row: Rc<RowOfOthers>,
    /// Epoch and time of the row under which the claim was last shared.
    shared_under: (i64, i64),
    /// The members that were last told.
    members: Vec<String>,
    /// Of what difference of settings was last told.
    differs: String,
    /// Of which drifting clocks was last told.
    drifting: Vec<MemberId>,
    /// When was last told of another process with our id.
    twin_told: Option<Instant>,
    confirmation: Confirmation,
    entry: RingEntry,
    /// The settings that it said last have tables that need the claim.
    said_exclusive: bool,
    /// Was told that it leaves no more.
    stay_told: bool,
}

impl RingKeeper {
    /// A keeper of an open ring.
    pub fn new(
        front_end: Arc<CqlShared>,
        shared: Arc<CachedState>,
        policies: Arc<LivePolicies>,
        claims: Claims<FillWaiter>,
        open: OpenRing,
    ) -> RingKeeper {
        let OpenRing { ring, jobs, kept, config } = open;
        let (of, seen) = (front_end.clone(), shared.clone());
        let database = Rc::new(Database::new(of, seen, config.name, &config.protocol));
        RingKeeper {
            front_end,
            shared,
            policies,
            claims,
            ring,
            jobs: Some(jobs),
            kept,
            database,
            peers_of: 0,
            started: now(),
            hold: Duration::from_micros(config.protocol.hold),
            row: Rc::default(),
            shared_under: (0, 0),
            members: Vec::new(),
            differs: String::new(),
            drifting: Vec::new(),
            twin_told: None,
            confirmation: Confirmation::new(now()),
            entry: RingEntry::Awaited,
            said_exclusive: true,
            stay_told: false,
        }
    }

    /// Runs until it is asked to stop.
    pub async fn run(mut self, mut stop: oneshot::Receiver<StopRequest>) {
        let jobs = self.jobs.take().expect("it runs once");
        compio::runtime::spawn(run_jobs(jobs, self.ring.clone(), self.database.clone())).detach();
        loop {
            if let Some(asked) = (&mut stop).now_or_never() {
                let Ok((_, done)) = asked else { return };
                // Those whose clients were not waited for.
                self.ring.refuse_waiting(0);
                self.ring.close();
                self.claims.end();
                self.flush().await;
                // Who asked has given up waiting if this fails.
                let _ = done.send(());
                return;
            }
            self.tick();
            compio::time::sleep(TICK).await;
        }
    }

    /// What the links have taken goes out before the process ends: owners keep the gates of a
    /// refused write closed for an hour if they do not hear of it.
    async fn flush(&self) {
        let until = now() + FLUSHES_WITHIN;
        let is_open = || self.ring.transport().is_some_and(|links| links.open_links() > 0);
        while is_open() && now() < until {
            compio::time::sleep(TICK / 25).await;
        }
    }

    fn tick(&mut self) {
        let (generation, policies) = self.policies.current();
        look_around(&mut self.claims, &self.shared, (generation, &policies));
        // Who reads in the map that this one caches nothing may write past the ring. Killed then,
        // it would come back with the claim of before, and its rows. Bounded rows need no claim.
        let needs_claim = policies.any_exclusive() || self.said_exclusive;
        if !(needs_claim && self.claims.owes_claim()) {
            self.said_exclusive = policies.any_exclusive();
            self.ring.set_settings(generation, || settings_of(&policies, self.hold));
        }
        self.say_what_differs();
        self.say_what_drifts();
        self.say_of_a_twin();
        self.say_that_it_stays();
        self.say_whom_it_accuses();
        self.say_what_is_unconfirmed();
        if let Some(data_center) = &*self.shared.data_center.read() {
            self.claims.set_data_center(data_center);
        }
        if let Some(name) = &*self.shared.cluster.read()
            && self.claims.set_cluster(name)
        {
            self.ring.distrust_older();
        }
        let founding = self.founding(policies.any_exclusive());
        self.ring.with(|member, io| {
            member.set_schema(self.schema());
            member.set_founding(founding);
            member.tick(io);
        });
        match policies.any_exclusive() {
            true => self.keep_row_of_others(),
            false => self.forget_row_of_others(),
        }
        self.ring.notes().set(Note::Lease, self.row.trouble());
        self.admit(policies.any_exclusive());
        self.follow_map();
        if self.front_end.is_closing() {
            self.ring.refuse_waiting(STOPS_WAITING);
        }
        self.note(policies.any_exclusive());
        self.enter();
    }

    /// Up to where the control connection has told of changes of the schema. To know it late is
    /// safe: the cache has been told of each change before its version is noted.
    fn schema(&self) -> SchemaVersion {
        let version = self.shared.heard_schema.version();
        version.map_or_else(SchemaVersion::default, |version| SchemaVersion(version.as_u128()))
    }

    /// When this instance may found the ring. Whoever has the row in our name was a member of it:
    /// then there was a ring, and somebody has emptied its map.
    fn founding(&self, needs_row: bool) -> Founding {
        match self.row.state.get() {
            _ if !needs_row => Founding::AtOnce,
            None => Founding::NotYet,
            Some(LeaseRowState::Ours { is_new: false, .. }) => Founding::AfterLeases,
            Some(_) => Founding::AtOnce,
        }
    }

    /// Whether clients may write. While nobody has answered since the policies changed, what was
    /// before: writes of the old policies did not need the row.
    fn admit(&self, needs_row: bool) {
        let admission = match self.row.state.get() {
            _ if !needs_row => Admission::Open,
            Some(LeaseRowState::Ours { .. }) => Admission::Open,
            Some(LeaseRowState::HeldBy(other)) if is_ring(other) => Admission::HeldByRing,
            Some(LeaseRowState::HeldBy(_)) => Admission::HeldByInstance,
            None => return,
        };
        self.ring.admit(admission);
    }

    /// A ring without `exclusive` tables leaves the row to others. Whether it is still the ring's
    /// is asked again when it is needed again: an operator may have given it to another ring.
    fn forget_row_of_others(&mut self) {
        self.row.forget();
        if self.claims.is_shared() {
            self.claims.unshare();
        }
    }

    /// The claim counts only while no instance without a ring can cache beside us, and so do
    /// permits to write. A ring has the row for ever. It is looked at again all the same, in case
    /// an operator has given it away while a member still says `exclusive`.
    fn keep_row_of_others(&mut self) {
        if self.row.asking.get() || now() < self.row.at.get() {
            return;
        }
        self.row.asking.set(true);
        let (row, database, hold) = (self.row.clone(), self.database.clone(), self.hold);
        // As often as the map is read.
        let again = self.ring.config().confirm / 3;
        let life = row.life.get();
        compio::runtime::spawn(async move {
            row.ask(&database, life, (hold, again)).await;
        })
        .detach();
    }

    fn follow_row(&mut self) {
        let is_shared = self.claims.is_shared();
        match self.row.state.get() {
            Some(LeaseRowState::Ours { unsettled, epoch, taken, .. })
                if !is_shared || self.shared_under != (epoch, taken) =>
            {
                if unsettled {
                    tracing::warn!(
                        "an instance without a ring held the lease before, and did not say that its writes were settled: rows live a minute at most for `unknown-outcome-hold`"
                    );
                    self.shared.weaken(WriteScope::everything());
                }
                if self.claims.share(epoch, taken) {
                    self.ring.distrust_older();
                }
                self.shared_under = (epoch, taken);
            }
            Some(LeaseRowState::HeldBy(_)) if is_shared => self.claims.unshare(),
            _ => {}
        }
    }

    fn follow_map(&mut self) {
        self.follow_row();
        let newer = |written: Option<&Kept>| self.ring.kept_unless(written);
        if let Some(error) = self.kept.keep(newer, now()) {
            tracing::warn!(%error, "the ring's file cannot be written: after a restart the shards are taken anew");
        }
        let Some(map) = self.ring.map() else { return };
        // An answer may come after the map that it was overtaken by.
        self.database.map_is(map.version);
        self.ring.notes().set(Note::Refusal, self.database.refusal());
        if map.version == self.peers_of {
            return;
        }
        self.peers_of = map.version;
        let me = self.ring.me();
        let peers: Vec<(MemberId, String)> = map
            .members
            .iter()
            .filter(|member| member.identity.id != me)
            .map(|member| (member.identity.id, member.profile.address.clone()))
            .collect();
        self.say(&map);
        if let Some(transport) = self.ring.transport() {
            transport.set_peers(peers);
        }
        self.front_end.set_ring(Some(RingView::of(&map, self.claims.id())));
    }

    /// Tells that the settings are not the ring's, or are again.
    fn say_what_differs(&mut self) {
        let differences = self.ring.differences();
        let text = differences.as_ref().map_or_else(String::new, |(_, all)| {
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        });
        if text == self.differs {
            return;
        }
        match differences {
            Some((eldest, _)) => tracing::warn!(
                there = eldest.profile.address,
                "reads pass through, because the settings of this instance are not those of its ring: {text}; make them the same on all members"
            ),
            None => tracing::info!("the settings of this instance are those of its ring"),
        }
        self.differs = text;
    }

    /// Tells of clocks that do not run alike, or do again.
    fn say_what_drifts(&mut self) {
        let (drifting, is_odd) = self.ring.drifting();
        if drifting == self.drifting {
            return;
        }
        match clocks::fault(&drifting, is_odd) {
            None => {
                tracing::info!("no member of the ring is known any more whose clock runs otherwise")
            }
            Some(fault) => tracing::error!("{fault}"),
        }
        self.drifting = drifting;
    }

    /// Tells of another process with our id, once a minute: the two take turns.
    fn say_of_a_twin(&mut self) {
        let was_told = self.twin_told.is_some_and(|told| told.elapsed() < TWIN_PAUSE);
        if self.ring.has_twin() && !was_told {
            self.twin_told = Some(Instant::now());
            tracing::error!("{TWIN}");
        }
    }

    /// Tells that an order to leave ended with the process that had it.
    fn say_that_it_stays(&mut self) {
        if !self.stay_told && self.ring.has_given_up_leaving() {
            self.stay_told = true;
            tracing::warn!(
                "this instance was leaving the ring when it was started again: it is a member like others; to have it leave, run `afterglow ring leave` again"
            );
        }
    }

    /// Tells whom this instance wants to put out, and why: its rows go to others.
    fn say_whom_it_accuses(&self) {
        for (who, why) in self.ring.with(|member, _| member.accusations()) {
            let map = self.ring.map();
            let address = map.as_ref().and_then(|map| map.entry(who));
            let address = address.map_or("?", |entry| &entry.profile.address);
            let why = match why {
                Suspicion::Silent => "it does not answer",
                Suspicion::GrantsNothing => "it answers, but grants no write in time",
                Suspicion::ClockDrifts => "its clock does not run like those of most members",
                Suspicion::NoDatabase => "it has lost the database, and this instance has not",
            };
            tracing::warn!("the rows of {:016x} at {address} are to go to others: {why}", who.0);
        }
    }

    /// Tells that there is no lease, or one again. Settings and clocks that keep a member from it
    /// are told of above.
    fn say_what_is_unconfirmed(&mut self) {
        let is_told = !self.differs.is_empty() || self.ring.drifting().1;
        if is_told || self.ring.is_leaving() {
            return;
        }
        match self.confirmation.look(now(), self.ring.lease_end()) {
            Told::Nothing => {}
            Told::Back => tracing::info!("this instance has a lease of its ring again"),
            Told::Lost => {
                let why = self.ring.trouble();
                let why = why.as_deref().unwrap_or("other members do not confirm it");
                tracing::error!(
                    "this instance has no lease of its ring, so reads pass through and writes may be refused: {why}; see \"What happens when\" in docs/guide/ring.md"
                );
            }
        }
    }

    /// Tells of members that have come and gone, and of shards that have stopped moving.
    fn say(&mut self, map: &Map) {
        let (version, me) = (map.version, self.ring.me());
        let owned = map.owned_by(me).count();
        let members: Vec<String> = map
            .members
            .iter()
            .map(|member| {
                let accused = member.standing == Standing::Accused;
                let state = if accused { " (accused)" } else { "" };
                format!("{:016x} at {}{state}", member.identity.id.0, member.profile.address)
            })
            .collect();
        if members == self.members {
            tracing::debug!(version, owned, "shards of the ring have moved");
            return;
        }
        tracing::info!(version, owned, "members of the ring: {}", members.join(", "));
        self.members = members;
    }

    /// Says when clients may come: reads and writes are answered then without a wait for the ring.
    /// What was so once is not looked at again.
    fn enter(&mut self) {
        if self.entry == RingEntry::Done {
            return;
        }
        let may_wait = now() <= self.started + ENTERS_WITHIN;
        self.entry = entry_of(self.entry, self.ring.admission(), self.ring.is_within(), may_wait);
        self.front_end.config.metrics.set_ring_entry(self.entry);
    }

    fn note(&self, needs_row: bool) {
        let metrics = &self.front_end.config.metrics;
        let holds = self.shared.cache.caches_exclusive();
        metrics.lease.set(match (holds, self.row.state.get()) {
            _ if !needs_row => LeaseState::NotNeeded,
            (true, _) => LeaseState::Held,
            (false, Some(LeaseRowState::HeldBy(_))) => LeaseState::HeldByOther,
            (false, _) => LeaseState::Waiting,
        });
        let serves = holds || !needs_row && self.ring.lease_end() > now();
        if serves || now() > self.started + SETTLES_WITHIN {
            self.shared.settled.store(true, Ordering::Release);
        }
    }
}

/// How far an instance is on its way into its ring. Who was ready once stays so: clients have come.
fn entry_of(before: RingEntry, admission: Admission, is_within: bool, may_wait: bool) -> RingEntry {
    match admission {
        Admission::Open if is_within => RingEntry::Done,
        Admission::HeldByInstance | Admission::HeldByRing => RingEntry::KeptOut,
        _ if before == RingEntry::Awaited && may_wait => RingEntry::Awaited,
        _ => RingEntry::Late,
    }
}

/// Runs what the member asks of the database, each on its own: a read that hangs keeps no
/// transaction waiting.
async fn run_jobs(
    mut jobs: mpsc::UnboundedReceiver<DatabaseJob>,
    ring: Arc<Ring>,
    database: Rc<Database>,
) {
    while let Some(job) = jobs.next().await {
        let (ring, database) = (ring.clone(), database.clone());
        compio::runtime::spawn(async move {
            match job {
                DatabaseJob::ReadMap { id } => {
                    let read = database.read_map().await.map(Arc::new);
                    let (known, map) = (ring.map().is_some(), read.as_ref().ok().cloned());
                    ring.with(|member, io| member.map_read(id, map, io));
                    let trouble = reason(&read, ring.me(), known, ring.map_loss());
                    ring.notes().set(Note::Trouble, trouble);
                    ring.notes().set(Note::Lack, database.lack());
                    if read.is_ok() {
                        database.look_at_settings().await;
                        ring.notes().set(Note::Transactions, database.shortfall());
                    }
                }
                DatabaseJob::Transact { id, map } => {
                    let result = database.transact(&map).await;
                    ring.notes().set(Note::Refusal, database.refusal());
                    ring.with(|member, io| member.transacted(id, result, io));
                }
            }
        })
        .detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_never_taken_back_before_or_after_the_ring_is_entered() {
        use RingEntry::{Awaited, Done, KeptOut, Late};
        let open =
            |before, is_within, may_wait| entry_of(before, Admission::Open, is_within, may_wait);
        assert_eq!([true, false].map(|may_wait| open(Awaited, false, may_wait)), [Awaited, Late]);
        assert_eq!(entry_of(Awaited, Admission::Unknown, true, true), Awaited, "writes would wait");
        for before in [Awaited, Late, KeptOut] {
            assert_eq!(open(before, true, true), Done);
            assert_eq!(entry_of(before, Admission::HeldByRing, true, true), KeptOut);
        }
        for before in [Late, KeptOut] {
            assert_eq!(open(before, false, true), Late, "its clients have come");
        }
    }
}
