//! The state of one client's connection, and how its requests are answered.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::error::{ErrorCode, ProtocolError};
use afterglow_cql::frame::{Envelope, Flags, Header, Opcode, Version};
use afterglow_cql::message::{Consistency, Register};
use afterglow_cql::negotiate::Stage;
use afterglow_cql::response::{ErrorBody, ErrorDetail, Event, Response, ResultBody, ResultKind};
use uuid::Uuid;

use crate::frontend::cql::CqlShared;
use crate::frontend::cql::client::budget::{FREE, Share};
use crate::frontend::cql::client::habits::DriverHabits;
use crate::frontend::cql::client::outbox::Outbox;
use crate::frontend::cql::cluster::answer::{parsed, result_kind};
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::error::CallError;
use crate::frontend::cql::cluster::login::User;
use crate::frontend::cql::cluster::pool::Who;
use crate::frontend::cql::reactor_state::{ConnectedClient, CqlReactorState};
use crate::frontend::cql::refusals::Refusals;
use crate::frontend::cql::ring_view::shown::SeenRing;
use crate::frontend::cql::statements::outdated::Outdated;
use crate::metrics::{Path, TableCounters};
use crate::slow_log::SlowRequest;

/// A client may have so many unread bytes waiting before nothing more is read from it.
const PAUSE_READING: usize = 1024 * 1024;
/// A client may have so many requests under way before nothing more is read from it.
const MAX_IN_FLIGHT: usize = 1024;
/// Bytes of requests that a client may have under way before nothing more is read from it. One
/// longer than that gets through.
const MAX_BYTES_IN_FLIGHT: usize = 16 * 1024 * 1024;
/// So often a request is in memory: as it came, and on its way to the database.
const COPIES: usize = 2;
/// How often it is looked whether other clients have given memory back, or this one has its answers
/// or has closed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A client that takes nothing of its answers for so long is cut off when it is to connect anew, or
/// others lack the memory that those take.
const STALLED: Duration = Duration::from_secs(10);
/// Others lack it when one of them has waited for so long, or is refused.
const LACKS_AFTER: Duration = Duration::from_secs(5);

/// Which events a client hears of.
#[derive(Clone, Copy, Default)]
struct EventKinds {
    schema: bool,
    topology: bool,
    status: bool,
}

/// One client's connection; lives on one reactor.
pub struct Client {
    /// What is on its way to the client.
    pub out: Outbox,
    /// Number of the connection on its reactor.
    pub id: u64,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// What is shared on this reactor.
    pub reactor_state: Rc<CqlReactorState>,
    /// How far the handshake got.
    pub stage: Cell<Stage>,
    /// The keyspace set with USE.
    pub keyspace: RefCell<Option<Rc<str>>>,
    /// The kinds of events that it registered for.
    asked_for: Cell<EventKinds>,
    /// Its version, once it has started; events are sent in it.
    pub version: Cell<Option<Version>>,
    /// Who it is to the database, once the database has said so.
    pub user: RefCell<Option<Arc<User>>>,
    /// Its own connection to the database, where that asks in a way that cannot be repeated for
    /// connections that clients share.
    pub dedicated: RefCell<Option<Rc<Backend>>>,
    /// Statements of which it was told new columns.
    pub outdated: RefCell<Outdated>,
    /// Its statements over whole tables that the database has refused.
    pub refusals: Rc<Refusals>,
    opened: Instant,
    /// The ring when it was opened.
    pub ring: SeenRing,
    /// What its driver does about the tokens of a ring.
    pub habits: Cell<DriverHabits>,
    /// It has asked which nodes there are.
    pub asked_for_peers: Cell<bool>,
    /// It has asked to be told of an overload, and does not wait for its end.
    pub throws_on_overload: Cell<bool>,
    /// It is going to be closed, since tokens of the ring have moved.
    is_leaving: Cell<bool>,
    /// Its requests are not taken any more: it is to connect anew.
    takes_no_more: Cell<bool>,
    /// What was read of it has been taken: its session waits for the socket.
    pub(super) has_taken_all: Cell<bool>,
    in_flight: Cell<usize>,
    bytes_in_flight: Cell<usize>,
    /// Length of a large request that has been admitted and is not whole yet.
    receiving: Cell<usize>,
    /// What all that takes, of what all clients may take.
    share: Share,
}

impl Client {
    /// A connection that has not said anything yet.
    pub fn new(reactor_state: Rc<CqlReactorState>, id: u64, peer: SocketAddr, out: Outbox) -> Self {
        let share = reactor_state.front_end.budget.share();
        let ring = reactor_state.front_end.ring.seen();
        Self {
            out,
            id,
            peer,
            reactor_state,
            stage: Cell::new(Stage::Initial),
            keyspace: RefCell::default(),
            asked_for: Cell::default(),
            opened: Instant::now(),
            ring,
            habits: Cell::default(),
            asked_for_peers: Cell::default(),
            throws_on_overload: Cell::default(),
            is_leaving: Cell::default(),
            takes_no_more: Cell::default(),
            has_taken_all: Cell::default(),
            version: Cell::default(),
            user: RefCell::default(),
            dedicated: RefCell::default(),
            outdated: RefCell::default(),
            refusals: Rc::default(),
            in_flight: Cell::default(),
            bytes_in_flight: Cell::default(),
            receiving: Cell::default(),
            share,
        }
    }

    /// It asks for these kinds of events, beside those that it has asked for.
    pub fn register(&self, asked: &Register<'_>) {
        let heard = self.asked_for.get();
        self.asked_for.set(EventKinds {
            schema: heard.schema || asked.asks_for("SCHEMA_CHANGE"),
            topology: heard.topology || asked.asks_for("TOPOLOGY_CHANGE"),
            status: heard.status || asked.asks_for("STATUS_CHANGE"),
        });
    }

    /// Whether a driver learns the cluster on this connection: it has asked for events, or for the
    /// nodes. Node's reads keyspaces between the two.
    pub fn learns_cluster(&self) -> bool {
        self.is_registered() || self.asked_for_peers.get()
    }

    /// Whether it has asked for events.
    fn is_registered(&self) -> bool {
        let EventKinds { schema, topology, status } = self.asked_for.get();
        schema || topology || status
    }

    /// The name of a table of the schema, as `keyspace.table`.
    fn table_name(&self, id: Uuid) -> Option<String> {
        let schema = self.reactor_state.schema();
        let table = schema.tables().find(|table| table.id == id)?;
        Some(format!("{}.{}", table.keyspace, table.name))
    }

    /// The keyspace set with USE.
    pub fn keyspace(&self) -> Option<Rc<str>> {
        self.keyspace.borrow().clone()
    }

    /// A connection of its own is in the keyspace that the database last says, whatever made it say
    /// so.
    fn follow_keyspace(&self, answer: &Envelope) {
        if self.dedicated.borrow().is_some()
            && result_kind(answer) == Some(ResultKind::SetKeyspace)
            && let Some(Response::Result(ResultBody::SetKeyspace(now))) = parsed(answer)
        {
            self.keyspace.replace(Some(now.into()));
        }
    }

    /// Whose connections to the database its requests travel on, in the keyspace that it is in now.
    pub fn who(&self, version: Version) -> Who {
        Who { user: self.user.borrow().clone(), version, keyspace: self.keyspace() }
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Waits until the client reads its answers, and not too many requests are under way.
    pub async fn wait_for_answers_taken(&self) {
        let in_flight = || (self.in_flight.get(), self.bytes_in_flight.get());
        self.out.wait_until(|out| out.is_closed() || may_ask_more(out.queued(), in_flight())).await;
    }

    /// Waits until the client may ask more: as above, and there is memory for it.
    pub async fn wait_for_room(&self) {
        let mut lacks = None;
        loop {
            self.wait_for_answers_taken().await;
            if self.out.is_closed() || self.may_grow() {
                return;
            }
            self.has_waited_since(*lacks.get_or_insert_with(Instant::now));
            compio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether there is memory for another request, one that is not large.
    pub fn may_grow(&self) -> bool {
        self.share.may_grow()
    }

    /// Waits a while until there is room for a request that takes so much. False when there is
    /// none. Nothing is held for it meanwhile.
    pub async fn admit(&self, takes: usize, at_most: Duration) -> bool {
        let began = Instant::now();
        // What was admitted before more was known of the same request is a part of that.
        self.receiving.set(0);
        while !self.share.admit(self.holds(), COPIES * takes) {
            if began.elapsed() >= at_most || self.is_given_up() {
                return false;
            }
            self.has_waited_since(began);
            compio::time::sleep(LOOK_AGAIN).await;
        }
        self.receiving.set(takes);
        true
    }

    /// Whether nobody waits for what it sends now.
    fn is_given_up(&self) -> bool {
        self.out.is_closed() || self.takes_no_more() || self.reactor_state.front_end.is_closing()
    }

    fn has_waited_since(&self, began: Instant) {
        if began.elapsed() >= LACKS_AFTER {
            cut_stalled(&self.reactor_state.front_end);
        }
    }

    /// There is no room for a request of it: the answer to that.
    pub fn overload(&self) -> ProtocolError {
        self.share.budget().refused.inc();
        cut_stalled(&self.reactor_state.front_end);
        ProtocolError::overloaded(self.share.overload())
    }

    /// What was admitted last is whole, or given up.
    pub fn received(&self) {
        if self.receiving.replace(0) > 0 {
            self.account();
        }
    }

    /// A large request that has been admitted comes too slowly: the connection ends.
    pub fn too_slow(&self) {
        tracing::warn!(peer = %self.peer, "connection closed: the client sent a large request too slowly");
        self.share.budget().slow.inc();
        self.out.abort();
    }

    fn holds(&self) -> usize {
        COPIES * (self.receiving.get() + self.bytes_in_flight.get()) + self.out.queued()
    }

    /// Has what it holds counted; to be called when that has changed.
    pub fn account(&self) {
        self.share.set(self.holds());
    }

    /// Waits until every request has its answer.
    pub async fn wait_for_answers(&self) {
        self.wait_until_in_flight(0).await;
    }

    /// Whether what the client sends now comes too late.
    pub fn takes_no_more(&self) -> bool {
        self.takes_no_more.get()
    }

    /// Ends our half when all that was read of the client is answered. Ends everything when the
    /// client has closed its own half, has not for long, or takes nothing of its answers.
    ///
    /// Requests that are answered in place are never in flight between two turns of the reactor,
    /// though more of the same read are to be taken: so [`Client::has_taken_all`] is asked as well.
    async fn take_leave(&self) {
        let at_most = self.reactor_state.front_end.config.ring.linger;
        let mut left = None;
        while !self.out.is_closed() && self.out.stands_still() < STALLED {
            if self.has_taken_all.get() && self.in_flight.get() == 0 {
                self.out.leave();
            }
            if self.out.has_left() && left.get_or_insert_with(Instant::now).elapsed() >= at_most {
                break;
            }
            compio::time::sleep(LOOK_AGAIN).await;
        }
        self.out.abort();
    }

    /// Waits until no more than so many requests are without an answer.
    pub async fn wait_until_in_flight(&self, at_most: usize) {
        self.out.wait_until(|out| out.is_closed() || self.in_flight.get() <= at_most).await;
    }
}

impl ConnectedClient for Client {
    fn hears_in(&self, kind: &str) -> Option<Version> {
        let heard = self.asked_for.get();
        let hears = match kind {
            "SCHEMA_CHANGE" => heard.schema,
            "TOPOLOGY_CHANGE" => heard.topology,
            "STATUS_CHANGE" => heard.status,
            _ => false,
        };
        hears.then(|| self.version.get().unwrap_or(Version::V4))
    }

    fn knows_other_ring(&self) -> Option<Duration> {
        let is_outdated = self.reactor_state.front_end.ring.has_moved_since(self.ring);
        let leaves = is_outdated && self.is_registered() && !self.habits.get().keeps_tokens;
        (leaves && !self.is_leaving.replace(true)).then(|| self.opened.elapsed())
    }

    fn connect_anew(self: Rc<Self>) {
        tracing::debug!(peer = %self.peer, "connection closed: its driver is to read the ring's tokens again");
        self.share.budget().moved.inc();
        if let (true, Some(version)) = (self.habits.get().is_idle, self.hears_in("STATUS_CHANGE")) {
            let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            let mut event = Vec::new();
            Event::Status { change: "UP", address: nobody, port: 0 }.encode(&mut event);
            self.tell(&Header::new(version, -1, Opcode::Event), &event);
        }
        self.takes_no_more.set(true);
        compio::runtime::spawn(async move { self.take_leave().await }).detach();
    }

    fn tell(&self, header: &Header, body: &[u8]) {
        self.out.push(header, body);
    }

    fn stop_reading(&self) {
        // Of what is held nothing is sent any more.
        self.refusals.wake();
        self.out.stop_reading();
    }

    fn abort(&self) {
        self.out.abort();
        self.refusals.wake();
    }

    fn user(&self) -> Option<u32> {
        self.user.borrow().as_ref().map(|user| user.id)
    }

    fn abort_if_stalled(&self) {
        if self.out.queued() > FREE && self.out.stands_still() >= STALLED && !self.out.is_closed() {
            tracing::warn!(peer = %self.peer, "connection closed: the client reads no answers while others lack memory");
            self.share.budget().unread.inc();
            self.out.abort();
        }
    }
}

/// There was no room for somebody: has those give back what they hold who would hold it for ever.
fn cut_stalled(front_end: &Arc<CqlShared>) {
    if !front_end.budget.looks_again() {
        return;
    }
    for reactor in 0..front_end.reactors.count() {
        let front_end_there = front_end.clone();
        front_end.reactors.spawn_on(reactor, move || async move {
            let clients = CqlReactorState::of(&front_end_there).clients();
            clients.iter().for_each(|client| client.abort_if_stalled());
        });
    }
}

fn may_ask_more(unread: usize, (requests, bytes): (usize, usize)) -> bool {
    unread < PAUSE_READING && requests < MAX_IN_FLIGHT && bytes < MAX_BYTES_IN_FLIGHT
}

/// The duty to answer one request, exactly once. A responder that is dropped answers with an error.
/// So no client waits for a forgotten request.
pub struct Responder {
    client: Rc<Client>,
    version: Version,
    stream: i16,
    received: Instant,
    /// Length of the request's body.
    bytes: usize,
    answered: bool,
    /// Its table, where there is one that is known, and where that is counted.
    table: Option<(Uuid, Arc<TableCounters>)>,
    /// What the slow-request log would say of it; none while that is off.
    about: Option<Box<About>>,
}

/// A request for the slow-request log.
#[derive(Debug, Default)]
pub struct About {
    /// What kind of statement it is; empty for what is no statement.
    pub kind: &'static str,
    /// The key of its row, where that is to be logged.
    pub key: Option<String>,
}

impl Responder {
    /// For that request.
    pub fn new(client: Rc<Client>, request: &Envelope, received: Instant) -> Self {
        let (Header { version, stream, .. }, bytes) = (request.header, request.body.len());
        client.in_flight.set(client.in_flight.get() + 1);
        client.bytes_in_flight.set(client.bytes_in_flight.get() + bytes);
        client.account();
        let (answered, table, about) = (false, None, None);
        Self { client, version, stream, received, bytes, answered, table, about }
    }

    /// The request takes so much more than its bytes, until it is answered.
    pub(super) fn takes_also(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.client.bytes_in_flight.set(self.client.bytes_in_flight.get() + bytes);
        self.client.account();
    }

    /// Where its table is counted.
    pub fn table(&self) -> Option<&TableCounters> {
        self.table.as_ref().map(|(_, counters)| &**counters)
    }

    /// Says which table it is about.
    pub fn name_table(&mut self, table: Option<Uuid>) {
        let tables = &self.client.reactor_state.metrics.tables;
        self.table = table.map(|id| (id, tables.of(id)));
    }

    /// What the slow-request log says if the answer takes long.
    pub fn about(&mut self) -> &mut About {
        self.about.get_or_insert_default()
    }

    /// Who asked.
    pub fn client(&self) -> &Rc<Client> {
        &self.client
    }

    /// When the request was whole.
    pub fn received(&self) -> Instant {
        self.received
    }

    /// Answers with a body that `write` appends.
    pub fn reply_with(
        mut self,
        opcode: Opcode,
        flags: Flags,
        path: Path,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let header = Header { version: self.version, flags, stream: self.stream, opcode };
        let unread = self.client.out.queued();
        self.client.out.push_with(&header, write);
        self.done(path, unread);
    }

    /// Answers with the database's own answer.
    pub fn relay(mut self, answer: &Envelope, path: Path) {
        self.relay_in_place(answer, path);
    }

    /// As [`Responder::relay`], for one that is boxed and dropped where it is.
    pub(super) fn relay_in_place(&mut self, answer: &Envelope, path: Path) {
        let Header { flags, opcode, .. } = answer.header;
        let header = Header { version: self.version, flags, stream: self.stream, opcode };
        let unread = self.client.out.queued();
        self.client.follow_keyspace(answer);
        self.client.out.push(&header, &answer.body);
        self.done(path, unread);
    }

    /// Answers with an error of our own.
    pub fn error(self, error: &ErrorBody<'_>) {
        self.client.reactor_state.metrics.errors.inc();
        self.reply_with(Opcode::Error, Flags::NONE, Path::Local, |out| error.encode(out));
    }

    /// Answers what breaks the protocol.
    pub fn protocol_error(self, error: &ProtocolError) {
        self.error(&ErrorBody::from(error));
    }

    /// Answers as a coordinator would that cannot reach what it needs. `consistency` is the
    /// request's, if it has one.
    pub fn call_error(self, error: &CallError, consistency: Option<Consistency>) {
        let text = error.to_string();
        match (error, consistency) {
            (CallError::NotSent(_), Some(consistency)) => self.error(&ErrorBody {
                code: ErrorCode::Unavailable,
                message: &text,
                detail: ErrorDetail::Unavailable { consistency, required: 1, alive: 0 },
            }),
            (CallError::NotSent(_), None) => {
                self.error(&ErrorBody::new(ErrorCode::Overloaded, &text));
            }
            (CallError::Lost, _) => self.error(&ErrorBody::new(ErrorCode::Server, &text)),
        }
    }

    /// It is answered, behind so many bytes that the client has not read.
    fn done(&mut self, path: Path, unread: usize) {
        debug_assert!(!self.answered, "a request is answered once");
        self.answered = true;
        let About { kind, key } = self.about.take().map_or_else(About::default, |a| *a);
        let metrics = &self.client.reactor_state.metrics;
        if let Some((_, table)) = &self.table {
            table.answered(path);
        }
        let kind = if kind.is_empty() { "session" } else { kind };
        metrics.took(path, self.received.elapsed(), || SlowRequest {
            front_end: "cql",
            kind,
            table: self.table.as_ref().and_then(|(id, _)| self.client.table_name(*id)),
            key,
            requests: 1,
            flash: None,
        });
        let budget = self.client.share.budget();
        if unread > budget.may_leave_unread() && !self.client.out.is_closed() {
            tracing::warn!(peer = %self.client.peer, "connection closed: the client does not read its answers");
            budget.unread.inc();
            self.client.out.abort();
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let client = &self.client;
        if !self.answered {
            let header = Header::new(self.version, self.stream, Opcode::Error);
            client.reactor_state.metrics.errors.inc();
            client.out.push_with(&header, |out| {
                ErrorBody::new(ErrorCode::Server, "Afterglow gave up on this request").encode(out);
            });
        }
        client.in_flight.set(client.in_flight.get() - 1);
        client.bytes_in_flight.set(client.bytes_in_flight.get() - self.bytes);
        client.account();
        client.out.nudge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_has_under_way_is_bounded_by_number_and_bytes() {
        assert!(may_ask_more(0, (0, 0)) && may_ask_more(PAUSE_READING - 1, (MAX_IN_FLIGHT - 1, 0)));
        assert!(!may_ask_more(PAUSE_READING, (0, 0)) && !may_ask_more(0, (MAX_IN_FLIGHT, 0)));
        assert!(!may_ask_more(0, (1, MAX_BYTES_IN_FLIGHT)), "large ones are few");
    }
}
