//! A read of one row: from DRAM in place, from flash on the reactor's ring, or from the database.
//! [`sought`](super::sought) says where a row is looked for.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{QueryParams, Request as Message};
use afterglow_cql::plan::{Plan, ReadPlan, RowKey};
use afterglow_cql::response::{Response, ResultBody, ResultKind, Rows};
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::serve::{CachePermission, NotCached, fits};
use bytes::Bytes;

use super::super::{
    Backend, Client, Later, May, Operation, Prepared, Request, error_code, parsed, result_kind,
};
use super::answer::{self, answer};
use super::level::{Need, need_of};
use super::names;
use super::ring::RemoteRow;
use super::sought::{Found, OnFlash, Sought};
use super::state::CachedState;
use super::wanted::{Ready, Wanted};
use crate::frontend::cql::bound::bound;
use crate::frontend::cql::client::dispatch;
use crate::frontend::cql::cluster::error::HESITATION;
use crate::metrics::{PassReason, Path, Tier};

/// Takes a read whose plan is [`Plan::CachedRead`].
pub(super) fn route(
    shared: &Arc<CachedState>,
    mut request: Request,
    plan: Arc<Plan>,
) -> Option<Later> {
    let Plan::CachedRead(read) = &*plan else { unreachable!("the caller looked") };
    let terms = match admit(shared, &mut request, read) {
        Ok(terms) => terms,
        Err(unfit) => return without_cache(shared, request, &plan, unfit),
    };
    let Some(cache_permission) = terms.cache_permission else {
        return Some(Box::pin(Pending::new(shared, request, plan, terms).owned_elsewhere()));
    };
    let Terms { key, need, .. } = &terms;
    let sought = Sought { shared, read, key, permission: cache_permission, need: *need };
    let found = sought.look_up();
    if !matches!(found, Found::Missing(_)) && !may_answer(&request, read) {
        request.note_pass(PassReason::Authentication);
        return Some(Box::pin(ask(request, plan)));
    }
    match found {
        Found::Row(row, _) if !answer::fits(read, &terms.key, &row) => {
            request.note_pass(PassReason::TooLong);
            request.pass(Path::Pass);
            None
        }
        Found::Row(row, tier) => {
            let Some(metadata) = terms.metadata.ready(shared, read, request.header.version) else {
                let pending = Pending::new(shared, request, plan, terms);
                return Some(Box::pin(pending.hit(row, tier)));
            };
            request.note_hit(tier, row.age());
            answer(
                request.into_responder(),
                read,
                &terms.key,
                &row,
                metadata.view(),
                path_of(tier),
            );
            None
        }
        Found::Flash(flash) => {
            let pending = Pending::new(shared, request, plan, terms);
            Some(Box::pin(pending.read_and_reply(flash, cache_permission)))
        }
        Found::Missing(reason) => {
            let pending = Pending::new(shared, request, plan, terms);
            Some(Box::pin(pending.missed(cache_permission, reason)))
        }
    }
}

/// The terms of a read that the cache may answer.
pub(super) fn admit(
    shared: &CachedState,
    request: &mut Request,
    read: &ReadPlan,
) -> Result<Terms, Unfit> {
    let terms = terms(shared, request, read)?;
    request.metrics().hot.see(|| names::seen(&read.table, &terms.key));
    if request.metrics().slow.names_keys() {
        request.name_key(names::row(&read.table, &terms.key));
    }
    Ok(terms)
}

/// Has the database answer a read. Gives what is left to do for it, if it is not passed on yet.
pub(super) fn without_cache(
    shared: &CachedState,
    request: Request,
    plan: &Arc<Plan>,
    unfit: Unfit,
) -> Option<Later> {
    match unfit {
        Unfit::Pass(reason) => {
            request.note_pass(reason);
            request.pass(Path::Pass);
            None
        }
        Unfit::Unconfirmed(prepared) => {
            request.note_pass(PassReason::SchemaUnknown);
            Some(Box::pin(confirm(request, prepared, plan.clone())))
        }
        Unfit::Outdated(prepared, now) => {
            request.note_pass(PassReason::Option);
            let read = plan.read().expect("only a plan to read is admitted");
            if shared.cache.cache_permission(&read.table).is_ok() {
                return outdated(request, prepared, now);
            }
            request.pass(Path::Pass);
            None
        }
    }
}

/// Why a read is passed on without the cache.
pub(super) enum Unfit {
    Pass(PassReason),
    /// No server has accepted the statement as prepared since the schema changed.
    Unconfirmed(Arc<Prepared>),
    /// The client names other columns of it than these, whose id is given.
    Outdated(Arc<Prepared>, Bytes),
}

impl From<PassReason> for Unfit {
    fn from(reason: PassReason) -> Unfit {
        Unfit::Pass(reason)
    }
}

/// What a read request has besides its plan.
pub(super) struct Terms {
    pub(super) key: RowKey,
    /// None where another instance of the ring owns the row.
    pub(super) cache_permission: Option<CachePermission>,
    /// Generation of the schema that the plan was made for, or an older one.
    pub(super) generation: u64,
    /// By its consistency level.
    pub(super) need: Need,
    metadata: Wanted,
}

fn terms(shared: &CachedState, request: &Request, read: &ReadPlan) -> Result<Terms, Unfit> {
    let bind = |params: &QueryParams<'_>| {
        let mut key = RowKey::new();
        read.key.bind(bound(&params.values), &mut key).ok()?;
        Some(key)
    };
    let general = general_terms(shared, request, read, bind)?;
    let GeneralTerms { keys: key, of_table, generation, need, metadata } = general;
    let cache_permission = permission(shared, of_table, &key)?;
    check_need(shared, request, need, (read, &key), cache_permission)?;
    Ok(Terms { key, cache_permission, generation, need, metadata })
}

/// The permission for the row with this key, of that of its table. `None` where another instance of
/// the ring owns the row.
fn permission(
    shared: &CachedState,
    of_table: Result<CachePermission, NotCached>,
    key: &RowKey,
) -> Result<Option<CachePermission>, PassReason> {
    match shared.cache.narrowed(of_table, key) {
        Ok(permission) => Ok(Some(permission)),
        Err(NotCached::NotOwner) => Ok(None),
        Err(reason) => Err(PassReason::from(reason)),
    }
}

/// Rows of other instances are not known to be undoubted.
fn check_need(
    shared: &CachedState,
    request: &Request,
    need: Need,
    row: (&ReadPlan, &RowKey),
    permission: Option<CachePermission>,
) -> Result<(), PassReason> {
    let is_met = match permission {
        Some(permission) => need.is_met(shared, request, row, permission),
        None => need == Need::Nothing,
    };
    if is_met { Ok(()) } else { Err(PassReason::Consistency) }
}

/// As [`admit`], for rows with these keys, which `bind` makes of the bound values: what a read of
/// the first would have, and the permission for each.
pub(super) fn admit_rows(
    shared: &CachedState,
    request: &mut Request,
    read: &ReadPlan,
    bind: impl FnOnce(&QueryParams<'_>) -> Option<Vec<RowKey>>,
) -> Result<(Terms, Vec<(RowKey, CachePermission)>), Unfit> {
    let general = general_terms(shared, request, read, bind)?;
    let GeneralTerms { keys, of_table, generation, need, metadata } = general;
    let key = keys.first().ok_or(PassReason::NotOneRow)?.clone();
    let mut rows = Vec::with_capacity(keys.len());
    for key in keys {
        let permission = permission(shared, of_table, &key)?.ok_or(PassReason::NotOwner)?;
        check_need(shared, request, need, (read, &key), Some(permission))?;
        request.metrics().hot.see(|| names::seen(&read.table, &key));
        rows.push((key, permission));
    }
    if request.metrics().slow.names_keys() {
        request.name_key(names::row(&read.table, &key));
    }
    let cache_permission = rows.first().map(|(_, permission)| *permission);
    Ok((Terms { key, cache_permission, generation, need, metadata }, rows))
}

/// What a read request has, whatever rows it names.
struct GeneralTerms<K> {
    keys: K,
    of_table: Result<CachePermission, NotCached>,
    generation: u64,
    need: Need,
    metadata: Wanted,
}

fn general_terms<K>(
    shared: &CachedState,
    request: &Request,
    read: &ReadPlan,
    bind: impl FnOnce(&QueryParams<'_>) -> Option<K>,
) -> Result<GeneralTerms<K>, Unfit> {
    let generation = request.client().reactor_state.schema_generation();
    let (extras, message) = request.message().map_err(|_| PassReason::NotUnderstood)?;
    if request.header.flags.contains(Flags::TRACING) {
        return Err(PassReason::Tracing.into());
    }
    if !extras.is_plain() {
        return Err(PassReason::Payload.into());
    }
    let (params, metadata) = match (&message, &request.asked) {
        (Message::Query(query), _) => {
            (query.params, Wanted::by_text(query.params.skip_metadata, generation))
        }
        (Message::Execute(execute), Operation::Execute(prepared, _)) => {
            let known = prepared.answer(request.header.version).ok_or(PassReason::Option)?;
            // The client may have other columns from an answer, not from PREPARE. Then its id says
            // nothing about the columns known here.
            match (execute.result_metadata_id, &known.metadata_id) {
                (Some(theirs), Some(ours)) if theirs != ours => {
                    return Err(Unfit::Outdated(prepared.clone(), ours.clone()));
                }
                (theirs, ours) if theirs != ours.as_deref() => {
                    return Err(PassReason::Option.into());
                }
                _ => {}
            }
            if !prepared.is_confirmed(request.header.version, generation)
                || known.names != read.names
            {
                return Err(Unfit::Unconfirmed(prepared.clone()));
            }
            let (of, skip) = ((request.header.version, generation), execute.params.skip_metadata);
            let metadata = Wanted::by_prepared(shared, read, of, known, skip)
                .ok_or_else(|| Unfit::Unconfirmed(prepared.clone()))?;
            (execute.params, metadata)
        }
        _ => return Err(PassReason::NotUnderstood.into()),
    };
    fits(&params, read).map_err(PassReason::from)?;
    let need = need_of(shared, request, read, params.consistency).ok_or(PassReason::Consistency)?;
    if !read.limits_allow(bound(&params.values)) {
        return Err(PassReason::Clause.into());
    }
    // Before the key is bound: reads of tables that are not cached do not pay for it.
    let of_table = shared.cache.cache_permission(&read.table);
    if let Err(reason) = of_table
        && reason != NotCached::NoLease
    {
        return Err(PassReason::from(reason).into());
    }
    let keys = bind(&params).ok_or(PassReason::NotOneRow)?;
    Ok(GeneralTerms { keys, of_table, generation, need, metadata })
}

pub(super) fn path_of(tier: Tier) -> Path {
    match tier {
        Tier::Flash => Path::Flash,
        Tier::Ring => Path::Ring,
        _ => Path::Dram,
    }
}

/// The tier of an answer that did not come from the database.
pub(super) fn tier_of(path: Path) -> Option<Tier> {
    match path {
        Path::Dram => Some(Tier::Dram),
        Path::Flash => Some(Tier::Flash),
        Path::Ring => Some(Tier::Ring),
        _ => None,
    }
}

/// A read that could not be answered at once.
pub(super) struct Pending {
    pub(super) shared: Arc<CachedState>,
    pub(super) request: Request,
    pub(super) plan: Arc<Plan>,
    pub(super) terms: Terms,
}

impl Pending {
    pub(super) fn new(
        shared: &Arc<CachedState>,
        request: Request,
        plan: Arc<Plan>,
        terms: Terms,
    ) -> Self {
        Pending { shared: shared.clone(), request, plan, terms }
    }

    pub(super) fn read(&self) -> &ReadPlan {
        self.plan.read().expect("a read is pending only under a plan to read")
    }

    /// Rare and large steps wait in boxes of their own. So the future of every read stays small and
    /// cheap to allocate.
    async fn read_and_reply(self, flash: OnFlash, permission: CachePermission) {
        let (shared, read, key) = (&self.shared, self.read(), &self.terms.key);
        let sought = Sought { shared, read, key, permission, need: self.terms.need };
        match sought.read(flash, self.request.metrics()).await {
            Ok((row, tier)) => self.hit(row, tier).await,
            Err(reason) => Box::pin(self.missed(permission, reason)).await,
        }
    }

    /// Not a future around another, which would keep the read twice: a client that has nothing told
    /// of its columns yet may have as many of these as requests.
    fn hit(self, row: Row, tier: Tier) -> impl Future<Output = ()> {
        let path = match self.fits(&row) {
            true => {
                self.request.note_hit(tier, row.age());
                path_of(tier)
            }
            false => {
                self.request.note_pass(PassReason::TooLong);
                Path::Pass
            }
        };
        self.reply(row, path)
    }

    fn fits(&self, row: &Row) -> bool {
        answer::fits(self.read(), &self.terms.key, row)
    }

    /// Answers with the row. The database answers if the metadata that the client wants is not
    /// known, or the answer may be too long.
    pub(super) async fn reply(self, row: Row, path: Path) {
        if !self.fits(&row) {
            return self.request.pass(path);
        }
        let Some(metadata) = self.metadata().await else {
            return self.request.pass(path);
        };
        let Some(read) = self.plan.read() else { return };
        answer(self.request.into_responder(), read, &self.terms.key, &row, metadata.view(), path);
    }

    pub(super) async fn metadata(&self) -> Option<Ready> {
        if let Some(ready) = self.ready_metadata() {
            return Some(ready);
        }
        Box::pin(self.fetch_metadata(self.request.header.version)).await
    }

    /// The metadata that the client wants, if it is known without a question.
    pub(super) fn ready_metadata(&self) -> Option<Ready> {
        self.terms.metadata.ready(&self.shared, self.read(), self.request.header.version)
    }

    async fn fetch_metadata(&self, version: Version) -> Option<Ready> {
        let first = self.request.connection().await.ok()?;
        if !self.prepare_on(&first).await {
            let another = self.request.connection_beside(&[Rc::clone(&first)])?;
            self.prepare_on(&another).await;
        }
        self.terms.metadata.ready(&self.shared, self.read(), version)
    }

    /// Whether the node has said in time what the columns are. It may have stood still since it
    /// answered others.
    async fn prepare_on(&self, backend: &Backend) -> bool {
        let prepared = self.shared.fill_statement(backend, self.read(), self.terms.generation);
        matches!(compio::time::timeout(HESITATION, prepared).await, Ok(Ok(_)))
    }

    /// Asks the owner of the row. What that cannot answer the database does.
    async fn owned_elsewhere(self) {
        if !may_answer(&self.request, self.read()) {
            self.request.note_pass(PassReason::Authentication);
            return ask(self.request, self.plan).await;
        }
        let asked = match self.shared.ring.get() {
            Some(ring) => ring.ask(&self.terms.key, self.read().fingerprint).await,
            None => RemoteRow::Pass,
        };
        match asked {
            RemoteRow::Row(row) => self.hit(row, Tier::Ring).await,
            RemoteRow::Pass => {
                self.request.note_pass(PassReason::NotOwner);
                self.request.pass(Path::Pass);
            }
        }
    }
}

/// Whether the database has lately let this client's user read the table. If the database asks for
/// no login, everybody may.
pub(super) fn may_answer(request: &Request, read: &ReadPlan) -> bool {
    let client = request.client();
    match &*client.user.borrow() {
        Some(user) => {
            client.reactor_state.permissions.may(user.id, read.table.id, Instant::now())
                == May::Answer
        }
        None => is_anonymous_allowed(client),
    }
}

/// As [`may_answer`], but this request does not have to renew the permission.
pub(super) fn is_allowed(request: &Request, read: &ReadPlan) -> bool {
    let client = request.client();
    match &*client.user.borrow() {
        Some(user) => client.reactor_state.permissions.has(user.id, read.table.id, Instant::now()),
        None => is_anonymous_allowed(client),
    }
}

/// The user of a client with a connection of its own is unknown. So is that of a client that came
/// before the database began to ask for a login.
fn is_anonymous_allowed(client: &Client) -> bool {
    client.dedicated.borrow().is_none() && !client.reactor_state.front_end.cluster().asks_who()
}

/// The database, asked at `asked`, let the client's user read the table.
pub(super) fn allow(request: &Request, read: &ReadPlan, asked: Instant) {
    let client = request.client();
    if let Some(user) = &*client.user.borrow() {
        client.reactor_state.permissions.allow(user.id, read.table.id, asked);
    }
}

/// Lets the database answer a read, and so decide whether its user may read the table.
pub(super) async fn ask(mut request: Request, plan: Arc<Plan>) {
    let Some(read) = plan.read() else { return request.pass(Path::Pass) };
    let asked = Instant::now();
    match request.call().await {
        Ok(answer) => {
            if result_kind(&answer) == Some(ResultKind::Rows) {
                allow(&request, read, asked);
            } else if let (Some(ErrorCode::Unauthorized), Some(user)) =
                (error_code(&answer), &*request.client().user.borrow())
            {
                request.client().reactor_state.permissions.deny(user.id, read.table.id);
            }
            request.relay(answer, Path::Pass).await;
        }
        Err(error) => request.fail(&error),
    }
}

/// Whether an answer has rows in the columns that clients know by `metadata`, as far as it says: it
/// may leave them out, and be a page of many.
fn executed_as_known(answer: &Envelope, metadata: &[u8]) -> bool {
    match parsed(answer) {
        Some(Response::Result(ResultBody::Rows(Rows { metadata: now, .. }))) => {
            now.new_metadata_id.is_none() && (now.is_skipped() || now.has_columns_of(metadata))
        }
        _ => false,
    }
}

/// An EXECUTE (v5) of a client that knows other columns than those of the id `now`. The server
/// tells it that id with its answer. A client that goes on with the old one would never have a hit:
/// it has to prepare again, once.
fn outdated(request: Request, prepared: Arc<Prepared>, now: Bytes) -> Option<Later> {
    let client = request.client().clone();
    if client.outdated.borrow_mut().must_prepare(&prepared.id, &now, Instant::now()) {
        dispatch::unprepared(request.into_responder(), &prepared.id);
        return None;
    }
    Some(Box::pin(async move {
        let mut request = request;
        match request.call().await {
            Ok(answer) => {
                if told_by(&answer).is_some_and(|id| id == now) {
                    client.outdated.borrow_mut().told(&prepared.id, &now, Instant::now());
                }
                request.relay(answer, Path::Pass).await;
            }
            Err(error) => request.fail(&error),
        }
    }))
}

/// The id of new columns that an answer tells (v5).
fn told_by(answer: &Envelope) -> Option<&[u8]> {
    match parsed(answer)? {
        Response::Result(ResultBody::Rows(Rows { metadata, .. })) => metadata.new_metadata_id,
        _ => None,
    }
}

/// Passes an EXECUTE on. Checks whether the server accepts the statement as prepared, with the
/// columns known here. If its columns differ, it was prepared again past us, so we prepare it again
/// too.
async fn confirm(mut request: Request, prepared: Arc<Prepared>, plan: Arc<Plan>) {
    let version = request.header.version;
    let generation = request.client().reactor_state.schema_generation();
    request.ask_for_metadata();
    match request.call().await {
        Ok(answer) => {
            // The call may have prepared it again.
            let prepared = request
                .client()
                .reactor_state
                .front_end
                .prepared
                .get(&prepared.id)
                .unwrap_or(prepared);
            let known = prepared.answer(version);
            let is_known =
                known.as_ref().is_some_and(|known| executed_as_known(&answer, &known.metadata));
            let fits = match (plan.read(), known) {
                (Some(read), Some(known)) => known.names == read.names,
                _ => false,
            };
            if is_known && fits {
                prepared.confirm(version, generation);
            } else if !is_known
                && answer.header.opcode == Opcode::Result
                && prepared.may_renew(generation)
                && let Ok(backend) = request.connection().await
            {
                request.prepare_again(&backend, &prepared).await;
            }
            request.relay(answer, Path::Pass).await;
        }
        Err(error) => request.fail(&error),
    }
}
