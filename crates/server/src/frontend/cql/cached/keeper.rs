//! Keeps what caching under `exclusive` needs: the lease row, the claim, signs of life. It is one
//! task, on the first reactor, with a connection of its own.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterglow_cql::message::Consistency;
use afterglow_rowcache::claims::Claims;
use afterglow_rowcache::clock::Millis;
use afterglow_rowcache::lease::{
    Answer, Before, CREATE_TABLE, Change, LeaseRow, Next, READ_SETTLED, Request, release_cql,
    settled_cql,
};
use futures_channel::oneshot;
use futures_util::FutureExt;
use uuid::Uuid;

use super::super::{Backend, Cluster, CqlShared, LeftNodes, NodeId};
use super::FillWaiter;
use super::own_keyspace::{self, Lack};
use super::own_query::{NoResult, execute, query, remedy};
use super::paxos_settings::PaxosSettings;
use super::ring::is_ring;
use super::schema_change::note_tables_again;
use super::state::CachedState;
use crate::config::{LivePolicies, TablePolicies};
use crate::metrics::{BackendMetrics, LeaseState};

/// Pause between attempts to connect.
const RECONNECT: Duration = Duration::from_millis(500);
/// How often it looks around.
const TICK: Duration = Duration::from_millis(50);
/// Reasons that are told before the database answers again.
const MOST_TOLD: usize = 8;

/// The keeper's state.
pub(super) struct Keeper {
    front_end: Arc<CqlShared>,
    shared: Arc<CachedState>,
    policies: Arc<LivePolicies>,
    claims: Claims<FillWaiter>,
    connection: Option<(Rc<Backend>, NodeId)>,
    /// Nodes that have not answered.
    left: LeftNodes,
    backend_metrics: Arc<BackendMetrics>,
    /// The keyspace and the table are there.
    prepared: bool,
    paxos: PaxosSettings,
    /// Since the claim was checked against the cluster that answers.
    cluster_checked: bool,
    /// No attempt to connect before this.
    connect_at: Millis,
    holder: Option<Uuid>,
    /// What was told of why the lease cannot be had, since the database last answered.
    troubles: Vec<NoResult>,
    /// What the lease's keyspace lacks of replicas, which was told.
    lack: Option<Lack>,
}

/// Asks the keeper to end; the answer comes when it has. True: give the lease back, nothing of ours
/// is in flight.
pub(super) type Stop = oneshot::Sender<StopRequest>;
/// Whether to give the lease back, and whom to tell when that is done.
pub(super) type StopRequest = (bool, std::sync::mpsc::SyncSender<()>);

impl Keeper {
    pub(super) fn new(
        front_end: Arc<CqlShared>,
        shared: Arc<CachedState>,
        policies: Arc<LivePolicies>,
        claims: Claims<FillWaiter>,
    ) -> Keeper {
        Keeper {
            backend_metrics: front_end.config.metrics.backend(),
            front_end,
            shared,
            policies,
            claims,
            connection: None,
            left: LeftNodes::default(),
            prepared: false,
            paxos: PaxosSettings::default(),
            cluster_checked: false,
            connect_at: 0,
            holder: None,
            troubles: Vec::new(),
            lack: None,
        }
    }

    pub(super) async fn run(mut self, mut stop: oneshot::Receiver<StopRequest>) {
        loop {
            if let Some(asked) = (&mut stop).now_or_never() {
                let Ok((release, done)) = asked else { return };
                self.end(release).await;
                // Who asked has given up waiting if this fails.
                let _ = done.send(());
                return;
            }
            self.tick().await;
            compio::time::sleep(TICK).await;
        }
    }

    async fn tick(&mut self) {
        let (generation, policies) = self.policies.current();
        look_around(&mut self.claims, &self.shared, (generation, &policies));
        if self.policies.current().1.any_exclusive() {
            self.keep_lease().await;
        } else {
            // Nobody asks any more who has the lease.
            self.shared.beside_ring.store(false, Ordering::Release);
            self.shared.settled.store(true, Ordering::Release);
            self.front_end.config.metrics.lease.set(LeaseState::NotNeeded);
        }
    }

    fn now(&self) -> Millis {
        self.shared.cache.clock().now()
    }

    async fn keep_lease(&mut self) {
        for _ in 0..4 {
            let Next::Send(request) = self.claims.next() else { return };
            // Without a connection nothing was asked: the next look is soon, so that a start does
            // not wait.
            let Some(backend) = self.connect().await else { return };
            let sent_at = self.now();
            let answer = match self.ask(&backend, request).await {
                Ok(answer) => {
                    self.left.forget();
                    self.troubles.clear();
                    answer
                }
                Err(why) => {
                    self.leave_node();
                    self.tell_trouble(why);
                    Answer::Failed
                }
            };
            let change = self.claims.answered(request, sent_at, answer);
            let settled = match change {
                // Before any row can be filled under the lease.
                Change::Acquired { before: Before::Another(_), .. } => {
                    settled_epoch(&backend).await
                }
                _ => None,
            };
            self.claims.apply(request, answer, change, settled);
            self.note(request, answer, change);
            if answer == Answer::Failed
                || matches!(change, Change::Acquired { .. } | Change::HeldByOther(_))
            {
                self.shared.settled.store(true, Ordering::Release);
            }
        }
    }

    /// Counts and tells what has changed.
    fn note(&mut self, request: Request, answer: Answer, change: Change) {
        let metrics = self.front_end.config.metrics.clone();
        match change {
            Change::Nothing => {
                if matches!((request, answer), (Request::Renew { .. }, Answer::Applied(true))) {
                    metrics.lease.renewed.inc();
                }
            }
            Change::Acquired { .. } => {
                self.holder = None;
                self.shared.beside_ring.store(false, Ordering::Release);
                metrics.lease.acquired.inc();
                metrics.lease.set(LeaseState::Held);
            }
            Change::HeldByOther(holder) => {
                metrics.lease.set(LeaseState::HeldByOther);
                self.shared.beside_ring.store(is_ring(holder), Ordering::Release);
                if self.holder.replace(holder) != Some(holder) {
                    tracing::warn!(%holder, "another instance holds the lease: `exclusive` tables pass through");
                }
            }
            Change::Lost => {
                metrics.lease.lost.inc();
                tracing::warn!("the lease was lost: `exclusive` tables pass through");
            }
        }
        if self.claims.epoch().is_none() && change == Change::Nothing && self.holder.is_none() {
            metrics.lease.set(LeaseState::Waiting);
        }
    }

    /// Tells what keeps the lease away, each reason once until the database answers again. One that
    /// is held outlives a few failures.
    fn tell_trouble(&mut self, why: NoResult) {
        if self.troubles.contains(&why) || self.troubles.len() >= MOST_TOLD {
            return;
        }
        if !self.shared.cache.caches_exclusive() {
            let remedy = remedy(why.code);
            tracing::warn!(
                "the lease cannot be had, so `exclusive` tables pass through: {why}; it is asked for again and again. {remedy}"
            );
            self.troubles.push(why);
        }
    }

    /// Tells that the lease hangs on fewer replicas than there are nodes for.
    fn tell_lack(&mut self, data_center: &str) {
        let lack = own_keyspace::lack(&self.front_end, data_center).filter(Lack::is_everywhere);
        if self.lack == lack {
            return;
        }
        if let Some(lack) = &lack {
            let leads_to = "the lease ends, and `exclusive` tables pass through";
            tracing::warn!("{}", lack.text(leads_to));
        }
        self.lack = lack;
    }

    /// Runs one transaction of the lease.
    async fn ask(&mut self, backend: &Backend, request: Request) -> Result<Answer, NoResult> {
        const DAMAGED: &str = "the row of the lease cannot be read";
        let noted = self.claims.about_to_send(request);
        noted.map_err(|error| format!("the instance file cannot be written: {error}"))?;
        let text = request.cql(self.claims.config());
        let fetched = query(backend, &text, Consistency::Quorum).await?;
        if request != Request::Read {
            return Ok(Answer::Applied(fetched.applied().ok_or(DAMAGED)?));
        }
        let uuid = |bytes: Option<&[u8]>| bytes.and_then(|bytes| Uuid::from_slice(bytes).ok());
        Ok(Answer::Row(match fetched.rows().next() {
            None => None,
            Some(row) => Some(LeaseRow {
                owner: uuid(row.bytes("owner")),
                epoch: row.bigint("epoch").ok_or(DAMAGED)?,
                last_owner: uuid(row.bytes("last_owner")),
            }),
        }))
    }

    /// The connection, with the lease's table behind it.
    async fn connect(&mut self) -> Option<Rc<Backend>> {
        let Cluster::Known { version, guarded: false, .. } = self.front_end.cluster() else {
            return None;
        };
        if self.connection.as_ref().is_none_or(|(backend, _)| backend.is_closed()) {
            if self.now() < self.connect_at {
                return None;
            }
            self.connect_at = self.now() + RECONNECT.as_millis() as Millis;
            let metrics = &self.backend_metrics;
            // Another cluster may be behind the same address by now.
            self.cluster_checked = false;
            self.connection =
                self.front_end.connect_own(version, &self.left, None, metrics).await.ok();
        }
        let backend = self.connection.as_ref()?.0.clone();
        let data_center = self.shared.data_center.read().clone();
        if let Some(data_center) = data_center {
            self.claims.set_data_center(&data_center);
            self.tell_lack(&data_center);
        }
        if !self.cluster_checked {
            let name = self.shared.cluster.read().clone()?;
            self.claims.set_cluster(&name);
            self.cluster_checked = true;
        }
        if !self.prepared
            && let Err(why) = self.prepare(&backend).await
        {
            self.tell_trouble(why);
            if backend.is_silent() {
                self.leave_node();
            }
            return None;
        }
        self.paxos.look(&backend, &self.shared).await;
        Some(backend)
    }

    /// The next connection is to another node, as long as one is there.
    fn leave_node(&mut self) {
        if let Some((backend, node)) = self.connection.take() {
            self.left.leave(node);
            backend.close();
        }
    }

    /// Makes the lease's table where the schema does not have it.
    async fn prepare(&mut self, backend: &Backend) -> Result<(), NoResult> {
        own_keyspace::make(&self.front_end, backend, &[("lease", CREATE_TABLE)]).await?;
        self.prepared = true;
        Ok(())
    }

    async fn end(&mut self, release: bool) {
        let held = self.claims.end();
        if let (true, Some(epoch), Some((backend, _))) = (release, held, &self.connection) {
            if self.shared.cache.is_settled() {
                // If it fails, who comes next is the more careful.
                let _ = execute(backend, &settled_cql(epoch), Consistency::Quorum).await;
            }
            // If it fails the lease runs out by itself.
            let _ = query(backend, &release_cql(self.claims.config(), epoch), Consistency::Quorum)
                .await;
        }
        if let Some((backend, _)) = self.connection.take() {
            backend.close();
        }
    }
}

/// What any keeper does at each look: it finds new policies, and tries again what could not be
/// written.
pub(super) fn look_around(
    claims: &mut Claims<FillWaiter>,
    shared: &CachedState,
    (generation, policies): (u64, &TablePolicies),
) {
    claims.tick(generation, || policies_text(policies));
    note_tables_again(shared);
}

/// The policies as text that differs whenever they do.
pub(super) fn policies_text(policies: &TablePolicies) -> String {
    let rules: Vec<String> = policies.rules.iter().map(ToString::to_string).collect();
    rules.join("\n")
}

/// The epoch whose holder said that its writes were settled: unless it did, one that it
/// acknowledged at ONE may be anywhere.
async fn settled_epoch(backend: &Backend) -> Option<i64> {
    let read = query(backend, READ_SETTLED, Consistency::Quorum).await.ok()?;
    read.rows().next()?.bigint("epoch")
}
