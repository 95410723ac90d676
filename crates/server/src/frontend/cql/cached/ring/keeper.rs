//! Keeps an instance in its ring: one task on the first reactor that lets time pass for the member,
//! has its transactions run, and writes down what a restart needs.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use afterglow_ring::{Founding, Map, MemberId, SchemaVersion, Standing};
use afterglow_rowcache::claims::Claims;
use afterglow_rowcache::write_scope::WriteScope;
use futures_channel::{mpsc, oneshot};
use futures_util::{FutureExt, StreamExt};
use uuid::Uuid;

use super::core::{Admission, DatabaseJob, Ring, TWIN, now};
use super::database::Database;
use super::kept::KeptFile;
use super::lease_row::{LeaseRowState, is_ring};
use super::settings::settings_of;
use super::setup::OpenRing;
use super::unconfirmed::{Confirmation, Told, reason};
use crate::config::LivePolicies;
use crate::frontend::cql::CqlShared;
use crate::frontend::cql::cached::FillWaiter;
use crate::frontend::cql::cached::keeper::{StopRequest, policies_text};
use crate::frontend::cql::cached::state::CachedState;
use crate::frontend::cql::ring_view::view::RingView;
use crate::metrics::LeaseState;

/// How often time passes for the member.
const TICK: Duration = Duration::from_millis(50);
/// Pause between attempts to take the lease's row.
const RETRY: Duration = Duration::from_millis(500);
/// For so long it is not told again that another process has our id.
const TWIN_PAUSE: Duration = Duration::from_secs(60);
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
}

/// How the lease's row of instances without a ring stands.
#[derive(Default)]
struct RowOfOthers {
    state: Cell<Option<LeaseRowState>>,
    /// Grows when what was known is forgotten, and with it an answer that is on its way.
    life: Cell<u64>,
    /// Of which holder was last told.
    told: Cell<Option<Uuid>>,
    asking: Cell<bool>,
    /// No attempt before this.
    at: Cell<u64>,
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
        }
    }

    /// Runs until it is asked to stop.
    pub async fn run(mut self, mut stop: oneshot::Receiver<StopRequest>) {
        let jobs = self.jobs.take().expect("it runs once");
        compio::runtime::spawn(run_jobs(jobs, self.ring.clone(), self.database.clone())).detach();
        loop {
            if let Some(asked) = (&mut stop).now_or_never() {
                let Ok((_, done)) = asked else { return };
                self.ring.close();
                self.claims.end();
                // Who asked has given up waiting if this fails.
                let _ = done.send(());
                return;
            }
            self.tick();
            compio::time::sleep(TICK).await;
        }
    }

    fn tick(&mut self) {
        let (generation, policies) = self.policies.current();
        self.claims.tick(generation, || policies_text(&policies));
        self.ring.set_settings(generation, || settings_of(&policies, self.hold));
        self.say_what_differs();
        self.say_what_drifts();
        self.say_of_a_twin();
        self.say_what_is_unconfirmed();
        if let Some(data_center) = &*self.shared.data_center.read() {
            self.claims.set_data_center(data_center);
        }
        if let Some(name) = &*self.shared.cluster.read()
            && self.claims.set_cluster(name)
        {
            self.ring.distrust_older();
        }
        let (schema, founding) = (self.schema(), self.founding(policies.any_exclusive()));
        self.ring.with(|member, io| {
            member.set_schema(schema);
            member.set_founding(founding);
            member.tick(io);
        });
        match policies.any_exclusive() {
            true => self.keep_row_of_others(),
            false => self.forget_row_of_others(),
        }
        self.admit(policies.any_exclusive());
        self.follow_map();
        self.note(policies.any_exclusive());
    }

    /// Up to where the control connection has told of changes of the schema. To know it late is
    /// safe: the cache has been told of each change before its version is noted.
    fn schema(&self) -> SchemaVersion {
        let noted = self.shared.schema_version.read();
        let version = noted.as_deref().and_then(|version| Uuid::parse_str(version).ok());
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
        self.row.state.set(None);
        self.row.life.set(self.row.life.get() + 1);
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
            let state = database.take_lease_row(hold).await;
            if let Some(LeaseRowState::HeldBy(other)) = state
                && row.told.replace(Some(other)) != Some(other)
            {
                say_who_holds(other, &database).await;
            }
            if let Some(LeaseRowState::Ours { .. }) = state {
                row.told.set(None);
            }
            // What is the ring's stays so while nobody answers: another data centre may be away.
            let is_ours = || matches!(row.state.get(), Some(LeaseRowState::Ours { .. }));
            if row.life.get() == life && (state.is_some() || !is_ours()) {
                row.state.set(state);
            }
            row.at.set(now() + if is_ours() { again } else { RETRY.as_micros() as u64 });
            row.asking.set(false);
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
        if let Err(error) = self.kept.write(self.ring.kept()) {
            tracing::warn!(%error, "the ring's file cannot be written: after a restart the shards are taken anew");
        }
        let Some(map) = self.ring.map() else { return };
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
        let names =
            drifting.iter().map(|id| format!("{:016x}", id.0)).collect::<Vec<_>>().join(", ");
        match (drifting.is_empty(), is_odd) {
            (true, _) => tracing::info!("the clocks of the ring's members run alike again"),
            (false, true) => tracing::error!(
                "the clock of this instance does not run like those of most members ({names}): it gets no lease, and reads pass through; look at the time service and at pauses of this machine"
            ),
            (false, false) => tracing::error!(
                "the clocks of these members do not run like ours: {names}; they get no lease; look at the time service and at pauses of their machines"
            ),
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

/// Tells who else caches, and what to do about it.
async fn say_who_holds(other: Uuid, database: &Database) {
    if !is_ring(other) {
        tracing::warn!(%other, "an instance without this ring holds the lease: reads of `exclusive` tables pass through and writes are refused until it has ended; stop it");
        return;
    }
    let name = match database.ring_of(other).await {
        Some(ring) => format!("the ring `{}` of data centre {}", ring.name, ring.data_center),
        None => "another ring".to_owned(),
    };
    tracing::warn!(
        %other,
        "{name} holds the lease: here reads of `exclusive` tables pass through and writes are refused; give all tables `max-staleness` here, or move their home to this ring, see \"Several data centres\" in docs/guide/ring.md"
    );
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
                    let read = database.read_map().await;
                    ring.note_trouble(reason(&read, ring.me(), ring.map().is_some()));
                    let map = read.ok().map(Arc::new);
                    ring.with(|member, io| member.map_read(id, map, io));
                }
                DatabaseJob::Transact { id, map } => {
                    let result = database.transact(&map).await;
                    ring.with(|member, io| member.transacted(id, result, io));
                }
            }
        })
        .detach();
    }
}
