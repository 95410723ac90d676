//! The control connection: the database's identity, its schema, and its events.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::frame::{Envelope, Opcode, Version};
use afterglow_cql::message::Register;
use afterglow_cql::plan::SchemaView;
use afterglow_cql::response::{self, Event};
use afterglow_cql::schema::Schema;
use futures_channel::mpsc;
use futures_util::future::{Either, select};
use futures_util::stream::Peekable;
use futures_util::{FutureExt, StreamExt};

use crate::frontend::cql::cluster::agreement::{Away, agree};
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::error::ConnectError;
use crate::frontend::cql::cluster::events::{Cluster, ControlState};
use crate::frontend::cql::cluster::first::LeftNodes;
use crate::frontend::cql::cluster::query::{ControlConnectionError, call, fetch, fetch_if_there};
use crate::frontend::cql::cluster::schema_load::load_schema;
use crate::frontend::cql::cluster::schema_store::{ChangeNumber, SeenVersion};
use crate::frontend::cql::cluster::{nodes, system_read};
use crate::frontend::cql::reactor_state::CqlReactorState;
use crate::frontend::cql::shared::{CqlShared, RefreshRequest};

/// Wait between attempts, doubled from the first to the last.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often to look whether a database that requires authentication is there, and still does.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How often the schema is read at most before who waits for it is told, where one change follows
/// another.
const MOST_TURNS: u32 = 4;
/// How often the nodes are looked at, in case an event was lost.
const LOOK_AT_NODES: Duration = Duration::from_secs(30);

/// Keeps a control connection, for ever. Runs on the first reactor.
pub async fn run(front_end: Arc<CqlShared>) {
    let mut backoff = BACKOFF.0;
    let mut said = None;
    let (mut guarded, left) = (None, LeftNodes::default());
    loop {
        let served = serve(&front_end, &left).await;
        if !matches!(
            served,
            Served::Never(ControlConnectionError::Connect(ConnectError::Authentication(_)), _)
        ) {
            guarded = None;
        }
        match served {
            Served::Ended(error) => {
                tracing::warn!(%error, "the control connection to the database was lost");
                lost(&front_end);
                (backoff, said) = (BACKOFF.0, None);
            }
            Served::Never(
                ControlConnectionError::Connect(ConnectError::Authentication(class)),
                version,
            ) => {
                let now = Cluster::Known { version, authentication: true, guarded: true };
                *front_end.authenticator.write() = Some((*class).into());
                front_end.config.metrics.authentication.set(1);
                if front_end.cluster() != now {
                    front_end.listener.control(ControlState::Guarded);
                    front_end.set_cluster(now);
                    tracing::warn!(
                        "the database requires authentication and --backend-credentials is not set: nothing is cached until it is"
                    );
                }
                (backoff, said) = (BACKOFF.0, None);
                guarded.get_or_insert_with(|| Reachable::new(CqlReactorState::of(&front_end)));
                compio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            Served::Never(error, _) => {
                // Once, and again when it is another one: a database that comes may speak no TLS.
                let error = error.to_string();
                if said.as_ref() != Some(&error) {
                    tracing::warn!(%error, "the database cannot be reached: trying again");
                    said = Some(error);
                }
            }
        }
        compio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// A database that requires authentication is there: clients' own connections can be made. Counts
/// as one that is ready, because we have none of our own.
struct Reachable(Rc<CqlReactorState>);

impl Reachable {
    fn new(reactor_state: Rc<CqlReactorState>) -> Self {
        reactor_state.backend_metrics.ready.inc();
        Self(reactor_state)
    }
}

impl Drop for Reachable {
    fn drop(&mut self) {
        self.0.backend_metrics.ready.dec();
    }
}

/// How an attempt ended.
enum Served {
    /// It never came to serve.
    Never(ControlConnectionError, Version),
    /// It served for a time.
    Ended(ControlConnectionError),
}

fn lost(front_end: &CqlShared) {
    // The snapshot stays: what was cached under it can still be served. What changes meanwhile
    // shows in the schema's version and in the times of its parts.
    *front_end.refresh.lock() = None;
    front_end.listener.control(ControlState::Lost);
}

async fn serve(front_end: &Arc<CqlShared>, left: &LeftNodes) -> Served {
    let reactor_state = CqlReactorState::of(front_end);
    let (pushed, events) = mpsc::unbounded();
    let mut version = Version::MAX;
    let (backend, node) = loop {
        match front_end
            .connect_control(version, left, &pushed, &reactor_state.backend_metrics)
            .await
        {
            Ok(connected) => break connected,
            Err(ConnectError::Version(refused)) if refused > Version::ALL[0] => {
                version = Version::ALL[refused as usize - 1];
            }
            Err(error) => return Served::Never(error.into(), version),
        }
    };
    drop(pushed);
    let opened = open(front_end, &backend).await;
    let ended = match opened {
        Ok(()) => {
            let (requests, asked) = mpsc::unbounded();
            *front_end.refresh.lock() = Some(requests);
            front_end.config.metrics.authentication.set(0);
            let authenticator = backend.authenticator();
            *front_end.authenticator.write() = authenticator.as_deref().map(Arc::from);
            let authentication = authenticator.is_some();
            front_end.set_cluster(Cluster::Known { version, authentication, guarded: false });
            left.forget();
            Served::Ended(follow(front_end, &backend, events, asked).await)
        }
        Err(error) => Served::Never(error, version),
    };
    if let Served::Ended(ControlConnectionError::Timeout(_))
    | Served::Never(
        ControlConnectionError::Timeout(_) | ControlConnectionError::Elsewhere { .. },
        _,
    ) = ended
    {
        left.leave(node);
    }
    backend.close();
    ended
}

/// Registers for events first, so that no change is missed between loading and listening.
async fn open(
    front_end: &Arc<CqlShared>,
    backend: &Rc<Backend>,
) -> Result<(), ControlConnectionError> {
    let mut body = Vec::new();
    Register::encode(&["SCHEMA_CHANGE", "STATUS_CHANGE", "TOPOLOGY_CHANGE"], &mut body);
    let answer = call(backend, Opcode::Register, body, "REGISTER").await?;
    if answer.header.opcode != Opcode::Ready {
        return Err(ControlConnectionError::Refused("REGISTER"));
    }
    stay_in_data_center(front_end, backend).await?;
    let looked = front_end.schema.begin_load();
    let node = system_read::load(front_end, backend)
        .await
        .ok_or(ControlConnectionError::Refused("system.local"))?;
    // Before the nodes are known: from then on fills go to those of this data centre. They may lack
    // what was acknowledged in another.
    front_end.listener.control(ControlState::Found { data_center: node.data_center.clone() });
    load_nodes(front_end, backend).await?;
    if front_end.schema.current().is_outdated() {
        // Clients know of a change that this node may lack.
        agree(front_end, backend, &mut Away::default()).await?;
    }
    let began = front_end.schema.begin_load();
    let schema = load_schema(backend).await?;
    tracing::info!(cluster = %node.cluster, release = %node.release, version = %backend.version(), "connected to the database");
    if front_end.cluster().is_guarded() {
        // Before the cache opens: what comes from now on goes by its gates, and what went past them
        // it takes into account.
        let authentication = backend.authenticator().is_some();
        front_end.set_cluster(Cluster::Known {
            version: backend.version(),
            authentication,
            guarded: false,
        });
    }
    note_missed(front_end, &front_end.schema.current(), &schema);
    let seen = SeenVersion { version: node.schema_version, began: looked };
    front_end.listener.schema_found(&schema, seen);
    front_end.listener.control(ControlState::Connected {
        cluster: node.cluster,
        release: node.release,
        data_center: node.data_center,
    });
    publish(front_end, schema, began);
    front_end.announce_untold();
    Ok(())
}

/// Refuses a node of another data centre, where we stay in ours: contact points may have other
/// names than the nodes that they are.
async fn stay_in_data_center(
    front_end: &Arc<CqlShared>,
    backend: &Rc<Backend>,
) -> Result<(), ControlConnectionError> {
    let topology = front_end.topology.current();
    let Some(ring) = topology.data_center().filter(|_| front_end.listener.stays_in_data_center())
    else {
        return Ok(());
    };
    let local = fetch(backend, nodes::LOCAL).await?;
    match local.rows().next().and_then(|row| row.text("data_center")) {
        Some(there) if there != ring => {
            Err(ControlConnectionError::Elsewhere { there, ring: ring.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Follows events and requests until the connection ends.
async fn follow(
    front_end: &Arc<CqlShared>,
    backend: &Rc<Backend>,
    events: mpsc::UnboundedReceiver<Envelope>,
    mut asked: mpsc::UnboundedReceiver<RefreshRequest>,
) -> ControlConnectionError {
    let (mut away, mut events) = (Away::default(), events.peekable());
    let (mut waiting, mut turns) = (Vec::new(), 0);
    // The schema was read while more news came: its version is not noted yet.
    let mut unnoted = false;
    loop {
        let Some(mut changes) = next_changes(&mut events, &mut asked, &mut waiting).await else {
            return ControlConnectionError::Closed;
        };
        let nodes_changed = note_nodes(&changes, &mut away);
        let look = nodes_changed || tick_is_over(&changes, &waiting);
        changes.retain(|event| note_schema_change(front_end, event));
        let is_changed = !changes.is_empty();
        // Before anything can fail.
        front_end.untold.lock().extend(changes.iter().map(|event| event.body.to_vec()));
        if look {
            if let Err(error) = load_nodes(front_end, backend).await {
                return error;
            }
            if nodes_changed {
                forget_failures(front_end);
            }
        }
        if !is_changed && waiting.is_empty() && !unnoted {
            continue;
        }
        if !waiting.is_empty() {
            // Whoever waits has changed the schema, and tells its client when that is done.
            if let Err(error) = agree(front_end, backend, &mut away).await {
                return error;
            }
        }
        let began = front_end.schema.begin_load();
        match load_schema(backend).await {
            Ok(schema) => publish(front_end, schema, began),
            Err(error) => return error,
        }
        let version = match schema_version(backend).await {
            Ok(version) => version,
            Err(error) => return error,
        };
        front_end.announce_untold();
        // A server sends the event of a change before it shows its version, on the same connection.
        // So when no event is pending, all changes of this version have been received. Otherwise
        // the next turn looks again.
        let is_current = Pin::new(&mut events).peek().now_or_never().is_none();
        unnoted = !is_current;
        if is_current {
            front_end
                .listener
                .control(ControlState::Current { seen: SeenVersion { version, began } });
        }
        turns += 1;
        // A client that is told of its change finds the version noted: to lose the connection from
        // then on costs nothing.
        if is_current || turns >= MOST_TURNS {
            turns = 0;
            for done in waiting.drain(..) {
                // Whoever asked may have stopped waiting.
                let _ = done.send(());
            }
        }
    }
}

/// Waits for a change, a request or the time to look at the nodes; the changes that are here then,
/// and in `waiting` the requests. `None` when the connection has ended.
async fn next_changes(
    events: &mut Peekable<mpsc::UnboundedReceiver<Envelope>>,
    asked: &mut mpsc::UnboundedReceiver<RefreshRequest>,
    waiting: &mut Vec<RefreshRequest>,
) -> Option<Vec<Envelope>> {
    let mut changes = Vec::new();
    let tick = compio::time::timeout(LOOK_AT_NODES, select(events.next(), asked.next())).await;
    match tick {
        Ok(Either::Left((None, _))) => return None,
        Ok(Either::Left((Some(event), _))) => changes.push(event),
        Ok(Either::Right((request, _))) => waiting.extend(request),
        Err(_) => {}
    }
    // Changes come in bunches: one load for all that are here.
    while let Some(Some(event)) = events.next().now_or_never() {
        changes.push(event);
    }
    while let Some(Some(request)) = asked.next().now_or_never() {
        waiting.push(request);
    }
    Some(changes)
}

/// The version of the schema that the node shows.
async fn schema_version(backend: &Rc<Backend>) -> Result<Option<String>, ControlConnectionError> {
    let local = fetch(backend, "SELECT schema_version FROM system.local").await?;
    let id = local
        .rows()
        .next()
        .and_then(|row| uuid::Uuid::from_slice(row.bytes("schema_version")?).ok());
    Ok(id.map(|id| id.to_string()))
}

/// Makes what was read the newest snapshot; the cache sees it before anything goes by it.
fn publish(front_end: &CqlShared, schema: Schema, began: ChangeNumber) {
    front_end.listener.schema_read(&front_end.schema.current(), &schema);
    front_end.schema.publish(schema, began);
}

/// Tells the cache, and notes for clients, how the schema has changed while nobody told us.
fn note_missed(front_end: &CqlShared, before: &Schema, now: &Schema) {
    if before.is_unknown() {
        return;
    }
    let missed = now.changes_since(before).into_iter().map(|change| {
        front_end.listener.schema_changed(&change, &front_end.schema);
        let mut event = Vec::new();
        Event::Schema(change).encode(&mut event);
        event
    });
    front_end.untold.lock().extend(missed);
}

/// Tells the cache of a schema change; false for events that clients must not see: they are about
/// nodes that they do not talk to.
fn note_schema_change(front_end: &CqlShared, event: &Envelope) -> bool {
    let Ok((_, message)) = response::split(&event.header, &event.body) else { return false };
    match Event::parse(message) {
        Ok(Event::Schema(change)) => {
            front_end.listener.schema_changed(&change, &front_end.schema);
            true
        }
        _ => false,
    }
}

/// Notes which nodes are down; true when a node has come, gone, moved, or is back.
fn note_nodes(events: &[Envelope], away: &mut Away) -> bool {
    let mut changed = false;
    for event in events {
        let Ok((_, message)) = response::split(&event.header, &event.body) else { continue };
        match Event::parse(message) {
            Ok(Event::Status { change: "DOWN", address, .. }) => away.went(address),
            Ok(Event::Status { address, .. } | Event::Topology { address, .. }) => {
                away.came(address);
                changed = true;
            }
            _ => {}
        }
    }
    changed
}

fn tick_is_over(changes: &[Envelope], waiting: &[RefreshRequest]) -> bool {
    changes.is_empty() && waiting.is_empty()
}

/// Reads the nodes; connections to those that are gone end.
async fn load_nodes(
    front_end: &Arc<CqlShared>,
    backend: &Rc<Backend>,
) -> Result<(), ControlConnectionError> {
    let local = fetch(backend, nodes::LOCAL).await?;
    let peers = match fetch_if_there(backend, nodes::PEERS_V2).await? {
        Some(peers) => peers,
        None => fetch_if_there(backend, nodes::PEERS).await?.unwrap_or_default(),
    };
    let nodes = nodes::read(&local, &peers, backend.target(), &front_end.addresses);
    let asked = front_end.addresses.id(backend.target());
    if front_end.listener.stays_in_data_center() && nodes.first().is_none_or(|n| n.id != asked) {
        // Which data centre is ours would be another node's to say.
        return Err(ControlConnectionError::Refused("system.local"));
    }
    let many = nodes.len();
    if front_end.topology.publish(nodes) {
        tracing::info!(nodes = many, "the database's nodes are known");
        forget_failures(front_end);
    }
    Ok(())
}

/// Has every reactor let go of nodes that are gone, and try the others again.
fn forget_failures(front_end: &Arc<CqlShared>) {
    for reactor in 0..front_end.reactors.count() {
        let front_end_there = front_end.clone();
        front_end.reactors.spawn_on(reactor, move || async move {
            let reactor_state = CqlReactorState::of(&front_end_there);
            let topology = reactor_state.topology();
            reactor_state.pool.keep(|node| topology.has(node));
        });
    }
}
