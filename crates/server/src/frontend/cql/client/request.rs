//! One QUERY, PREPARE, EXECUTE or BATCH of a client: decoded, and in flight until it is answered.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::error::ProtocolError;
use afterglow_cql::frame::{Envelope, Header, Version};
use afterglow_cql::message::{self, Consistency, Execute, Request as Message, RequestExtras};
use afterglow_cql::plan::{Plan, Target};
use afterglow_cql::response::ResultKind;
use bytes::Bytes;
use uuid::Uuid;

use crate::frontend::cql::client::state::{Client, Responder};
use crate::frontend::cql::cluster::answer::result_kind;
use crate::frontend::cql::cluster::backend::{Backend, KeptBackend};
use crate::frontend::cql::cluster::error::CallError;
use crate::frontend::cql::cluster::nodes::NodeId;
use crate::frontend::cql::cluster::pool::{Doubt, Who};
use crate::frontend::cql::cluster::routes::Candidates;
use crate::frontend::cql::statements::prepared::Prepared;
use crate::metrics::{FrontEndMetrics, MissReason, PassReason, Path, Tier};

/// After that a client has given up: drivers wait 10 or 12 s.
const REPEATED_WITHIN: Duration = Duration::from_secs(12);
/// Plans of requests longer than that are weighed. Those of shorter ones take little, even if the
/// client has many under way.
const LONG: usize = 4 * 1024;
/// Connections that are begun at once where another node shall be asked and there is none.
const MOST_BESIDE: usize = 2;

/// What a request asks for, as far as it matters for a cache.
pub enum Operation {
    /// QUERY, with the plan of its text.
    Query(Arc<Plan>),
    /// PREPARE.
    Prepare,
    /// EXECUTE, with the statement and its plan.
    Execute(Arc<Prepared>, Arc<Plan>),
    /// BATCH: every statement with its plan, in order; text statements have no prepared one.
    Batch(Vec<(Option<Arc<Prepared>>, Arc<Plan>)>),
}

impl Operation {
    /// What the plans of its texts take. Those of prepared statements are kept for all.
    fn weight(&self) -> usize {
        match self {
            Operation::Query(plan) => plan.weight(),
            Operation::Prepare | Operation::Execute(..) => 0,
            Operation::Batch(statements) => {
                let texts = statements.iter().filter(|(prepared, _)| prepared.is_none());
                statements.len() * size_of::<(Option<Arc<Prepared>>, Arc<Plan>)>()
                    + texts.map(|(_, plan)| plan.weight()).sum::<usize>()
            }
        }
    }

    /// Its kind, and its table if there is one that is known.
    fn described(&self) -> (&'static str, Option<Uuid>) {
        let plan = match self {
            Operation::Query(plan) | Operation::Execute(_, plan) => plan,
            Operation::Prepare => return ("prepare", None),
            Operation::Batch(_) => return ("batch", None),
        };
        match &**plan {
            Plan::CachedRead(read) => ("read", Some(read.table.id)),
            Plan::CachedSlice(slice) => ("read", Some(slice.read.table.id)),
            Plan::CachedRows(rows) => ("read", Some(rows.read.table.id)),
            Plan::SystemRead(_) => ("system_read", None),
            Plan::Read(_, table) => ("passed_read", *table),
            Plan::Use(_) | Plan::OddUse => ("use", None),
            Plan::Write(write) => {
                let table = write.targets.iter().find_map(|target| match target {
                    Target::Row(row) => Some(row.table()),
                    Target::Partition(partition) | Target::NewRow(partition) => {
                        Some(partition.table())
                    }
                    Target::Bound(keys) => Some(keys.table()),
                    Target::NewPartition(table) => Some(*table),
                    Target::Table { id, .. } => *id,
                    Target::Keyspace(_) | Target::Everything => None,
                });
                ("write", table)
            }
        }
    }
}

/// A request with the duty to answer it. Dropping it answers with an error.
pub struct Request {
    /// Header as the client sent it.
    pub header: Header,
    /// Body as the client sent it; shares the read buffer, so do not keep it beyond the answer.
    pub body: Bytes,
    /// What it asks for.
    pub asked: Operation,
    /// The session's keyspace when it was planned: it must be executed in no other, whatever the
    /// client has asked for meanwhile.
    keyspace: Option<Rc<str>>,
    went_far: bool,
    /// It was sent again after its connection broke.
    repeated: bool,
    responder: Responder,
}

impl Request {
    /// Takes on the duty.
    pub fn new(header: Header, body: Bytes, asked: Operation, responder: Responder) -> Self {
        let keyspace = responder.client().keyspace();
        let (went_far, repeated) = (false, false);
        let mut request = Self { header, body, asked, keyspace, went_far, repeated, responder };
        if request.body.len() > LONG {
            let weight = request.asked.weight();
            request.responder.takes_also(weight);
        }
        let (kind, table) = request.asked.described();
        request.responder.name_table(table);
        if request.metrics().slow.is_on() {
            request.responder.about().kind = kind;
        }
        request
    }

    /// Says which row it is about, for the slow-request log.
    pub fn name_key(&mut self, key: String) {
        self.responder.about().key = Some(key);
    }

    /// The session's keyspace when it came.
    pub fn keyspace(&self) -> Option<&str> {
        self.keyspace.as_deref()
    }

    /// Whose connections it travels on.
    fn who(&self) -> Who {
        Who { keyspace: self.keyspace.clone(), ..self.client().who(self.header.version) }
    }

    /// Who asks.
    pub fn client(&self) -> &Rc<Client> {
        self.responder.client()
    }

    /// The counters of the reactor that it is on.
    pub fn metrics(&self) -> &FrontEndMetrics {
        &self.client().reactor_state.metrics
    }

    /// The cache has what answers it, filled so many seconds ago if that is known.
    pub fn note_hit(&self, tier: Tier, age: Option<u32>) {
        self.metrics().hits.inc(tier);
        if let (Some(table), Some(age)) = (self.responder.table(), age) {
            table.served(age);
        }
    }

    /// The cache has nothing to answer it with.
    pub fn note_miss(&self, reason: MissReason) {
        let metrics = self.metrics();
        metrics.misses.inc(reason);
        if let Some(table) = self.responder.table() {
            table.missed(reason);
        }
    }

    /// It goes to the database without a look into the cache.
    pub fn note_pass(&self, reason: PassReason) {
        let metrics = self.metrics();
        metrics.passes.inc(reason);
        if let Some(table) = self.responder.table() {
            table.passed(reason);
        }
    }

    /// The message and what precedes it.
    ///
    /// # Errors
    /// Never for a request that was given to a [`Router`](crate::frontend::cql::Router): it has
    /// been parsed before.
    pub fn message(&self) -> Result<(RequestExtras<'_>, Message<'_>), ProtocolError> {
        message::parse(&self.header, &self.body)
    }

    /// The request's consistency level, if it has one.
    pub fn consistency(&self) -> Option<Consistency> {
        match self.message().ok()?.1 {
            Message::Query(query) => Some(query.params.consistency),
            Message::Execute(execute) => Some(execute.params.consistency),
            Message::Batch(batch) => Some(batch.params.consistency),
            _ => None,
        }
    }

    /// Has an EXECUTE before v5 answered with the result's columns, whether its client asks for
    /// that or not: for one that may know others. Servers answer so too when they think that a
    /// client's columns are not theirs.
    pub fn ask_for_metadata(&mut self) {
        if self.header.version < Version::V5 {
            self.ask_for_columns();
        }
    }

    /// Has an EXECUTE answered with the result's columns, whether its client asks for that or not.
    pub fn ask_for_columns(&mut self) {
        let at = match self.message() {
            Ok((_, Message::Execute(execute))) if execute.params.skip_metadata => {
                execute.flags_at(&self.body)
            }
            _ => return,
        };
        let mut body = self.body.to_vec();
        body[at] &= !Execute::SKIP_METADATA;
        self.body = body.into();
    }

    /// Has it carried out at another consistency level than its client asks for. False: it has
    /// none.
    pub fn raise_consistency(&mut self, level: Consistency) -> bool {
        // What precedes the message is at the front of the body.
        let at = match self.message() {
            Ok((_, Message::Query(query))) => query.consistency_at(&self.body),
            Ok((_, Message::Execute(execute))) => execute.consistency_at(&self.body),
            Ok((_, Message::Batch(batch))) => batch.consistency_at(&self.body),
            _ => return false,
        };
        let mut body = self.body.to_vec();
        body[at..at + 2].copy_from_slice(&(level as u16).to_be_bytes());
        self.body = body.into();
        true
    }

    /// How many prepared statements it names.
    pub fn prepared_count(&self) -> usize {
        match &self.asked {
            Operation::Query(_) | Operation::Prepare => 0,
            Operation::Execute(..) => 1,
            Operation::Batch(statements) => {
                statements.iter().filter(|(prepared, _)| prepared.is_some()).count()
            }
        }
    }

    /// The means to answer without the database.
    pub fn into_responder(self) -> Responder {
        self.responder
    }

    /// Sends it to the database as it is and gives the answer, for who wants to look at it before
    /// [`Request::relay`]. A statement that the server has forgotten is prepared again unseen. A
    /// read whose node is lost is sent to another, once.
    ///
    /// # Errors
    /// [`CallError`] says whether the request may have been executed.
    pub async fn call(&mut self) -> Result<Envelope, CallError> {
        match self.call_once().await {
            Err(CallError::Lost) if self.may_be_repeated() => {
                self.note_repeated();
                self.call_once().await
            }
            answer => answer,
        }
    }

    /// Whether it may be sent again after its connection broke: it reads, and this was the first
    /// time. The database may have carried it out already. A client with a connection of its own
    /// has no other.
    pub(super) fn may_be_repeated(&self) -> bool {
        let reads = match &self.asked {
            Operation::Prepare => true,
            Operation::Query(plan) | Operation::Execute(_, plan) => {
                matches!(**plan, Plan::Read(..)) || plan.read().is_some()
            }
            Operation::Batch(_) => false,
        };
        let client_waits = self.responder.received().elapsed() < REPEATED_WITHIN;
        reads && !self.repeated && client_waits && self.client().dedicated.borrow().is_none()
    }

    /// It is sent again.
    pub(super) fn note_repeated(&mut self) {
        self.repeated = true;
        self.metrics().repeated_reads.inc();
    }

    pub(super) async fn call_once(&mut self) -> Result<Envelope, CallError> {
        let backend = self.connection().await?;
        self.went_far |= !self.client().reactor_state.is_near(&backend);
        let answer = backend.call(self.header.opcode, self.header.flags, self.body.clone()).await?;
        self.settle_unprepared(&backend, answer).await
    }

    /// Whether [`Request::call`] has sent it to another data centre than ours.
    pub fn went_far(&self) -> bool {
        self.went_far
    }

    /// The connection that requests of this client go to: for requests of our own beside the
    /// client's, such as a fill.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub async fn connection(&self) -> Result<KeptBackend, CallError> {
        match self.connection_now() {
            Some(backend) => Ok(backend),
            None => self.connection_among(&self.candidates()).await.map(|(backend, _)| backend),
        }
    }

    /// As [`Request::connection`], to the first of these nodes that can be reached, and which that
    /// is.
    pub(crate) async fn connection_among(
        &self,
        candidates: &Candidates,
    ) -> Result<(KeptBackend, Option<NodeId>), CallError> {
        let client = self.client();
        let dedicated = client.dedicated.borrow().clone();
        if let Some(backend) = dedicated {
            let lost = || {
                CallError::NotSent("this client's own connection to the database was lost".into())
            };
            return if backend.is_closed() { Err(lost()) } else { Ok((backend.keep(), None)) };
        }
        let who = self.who();
        let mut last = CallError::NotSent("no node is known".into());
        let mut nodes = candidates.nodes.clone();
        if !self.changes_schema() {
            nodes.sort_by_key(|node| client.reactor_state.pool.doubt(*node));
        }
        for node in &nodes {
            match client.reactor_state.pool.acquire_in(*node, &who).await {
                Ok(backend) => return Ok((backend, Some(*node))),
                Err(error) => last = CallError::NotSent(error.to_string().into()),
            }
        }
        Err(last)
    }

    /// A connection to another node of our data centre than those asked already, if one is there;
    /// else it begins to make some. None for a client with a connection of its own.
    pub fn connection_beside(&self, asked: &[Rc<Backend>]) -> Option<KeptBackend> {
        let client = self.client();
        if client.dedicated.borrow().is_some() {
            return None;
        }
        let (topology, addresses) =
            (client.reactor_state.topology(), &client.reactor_state.front_end.addresses);
        let asked: Vec<NodeId> =
            asked.iter().map(|backend| addresses.id(backend.target())).collect();
        let mut nodes = self.candidates().nodes;
        nodes.retain(|node| !asked.contains(node) && topology.is_near(*node));
        let (pool, who) = (&client.reactor_state.pool, self.who());
        let mut ready = nodes.iter().filter_map(|node| pool.ready(*node, &who));
        let found = ready.find(|backend| !backend.is_silent());
        if found.is_none() {
            nodes.iter().take(MOST_BESIDE).for_each(|node| pool.prepare(*node, &who));
        }
        found
    }

    /// A connection that is there now: to the best node, or to the next best while the better ones
    /// are being connected to or are silent. None also where only silent nodes have one and others
    /// may be reached. A change of the schema goes to its node even if that is silent: our view of
    /// the schema is read from there.
    pub(crate) fn connection_now(&self) -> Option<KeptBackend> {
        let client = self.client();
        if let Some(backend) = &*client.dedicated.borrow() {
            return (!backend.is_closed()).then(|| backend.keep());
        }
        let (pool, who) = (&client.reactor_state.pool, self.who());
        let Candidates { nodes, preferred } = self.candidates();
        let (best, others) = nodes.split_at(preferred.min(nodes.len()));
        let ready = best.iter().filter_map(|node| {
            let ready = pool.ready(*node, &who);
            if ready.is_none() {
                pool.prepare(*node, &who);
            }
            ready.map(|backend| (pool.is_silent(*node, &backend), backend))
        });
        // Of equals the first, and that goes round.
        let ready = ready.min_by_key(|(is_silent, backend)| (*is_silent, backend.in_flight()));
        let silent = match ready {
            Some((is_silent, backend)) if !is_silent || self.changes_schema() => {
                return Some(backend);
            }
            silent => silent.map(|(_, backend)| backend),
        };
        let mut heard = others.iter().filter_map(|node| {
            pool.ready(*node, &who).filter(|backend| !pool.is_silent(*node, backend))
        });
        let found = heard.next();
        let may_be_reached = || nodes.iter().any(|node| pool.doubt(*node) == Doubt::None);
        if found.is_none() && silent.is_some() && may_be_reached() {
            return None;
        }
        let any = || others.iter().find_map(|node| pool.ready(*node, &who));
        found.or(silent).or_else(any)
    }

    /// Answers with the database's answer. If it says that the schema has changed, our own view of
    /// the schema is updated first. So a client that has seen the answer finds plans made for the
    /// new schema.
    pub async fn relay(self, answer: Envelope, path: Path) {
        if result_kind(&answer) == Some(ResultKind::SchemaChange) {
            self.client().reactor_state.front_end.refresh_schema().await;
        }
        self.relay_plain(&answer, path);
    }

    /// As [`Request::relay`], for an answer that is known not to be a schema change.
    pub fn relay_plain(self, answer: &Envelope, path: Path) {
        self.responder.relay(answer, path);
    }

    /// As [`Request::relay_plain`], for one that is boxed and dropped where it is.
    pub(super) fn relay_in_place(&mut self, answer: &Envelope, path: Path) {
        self.responder.relay_in_place(answer, path);
    }

    /// Answers as a coordinator would that cannot reach what it needs.
    pub fn fail(self, error: &CallError) {
        let consistency = self.consistency();
        self.responder.call_error(error, consistency);
    }
}

/// The keyspace that counts: a request's own (v5), else the session's.
pub(super) fn session_keyspace<'a>(
    request: Option<&'a str>,
    session: Option<&'a str>,
) -> Option<&'a str> {
    request.or(session)
}
