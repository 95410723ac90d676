//! Whether the database's nodes agree on the schema.
//!
//! A client that is told of a change too early may write to a node that does not know it. A node
//! that cannot be reached shows its old version for ever, so it is left out. Events tell of nodes
//! that go down. A node that went down before the control connection was made is probed.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::frame::{Flags, Opcode, Version};
use bytes::Bytes;
use futures_util::future::join_all;
use uuid::Uuid;

use crate::config::HostPort;
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::nodes;
use crate::frontend::cql::cluster::query::{ControlConnectionError, fetch};
use crate::frontend::cql::cluster::rows::{Fetched, FetchedRow};
use crate::frontend::cql::shared::CqlShared;
use crate::tls::ClientTls;

/// How long a schema change waits until all nodes have it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two looks whether they have.
const PAUSE: Duration = Duration::from_millis(50);
/// Most nodes have it before. After that those that lack it are asked whether they are there.
const WAIT: Duration = Duration::from_millis(300);
/// Pause between two such questions.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long a node may take for a connection, and as long again for an answer on it.
const PROBE: Duration = Duration::from_secs(1);
/// For how long a node that did not answer counts as away.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Nodes that cannot be waited for.
#[derive(Default)]
pub(crate) struct Away {
    /// So the database says.
    down: HashSet<IpAddr>,
    /// They did not answer, and when that was.
    silent: HashMap<Uuid, Instant>,
}

impl Away {
    /// The database says that a node is down.
    pub(crate) fn went(&mut self, address: IpAddr) {
        self.down.insert(address);
    }

    /// The database says that a node is there. Which of the silent ones it is does not matter: all
    /// may be asked again.
    pub(crate) fn came(&mut self, address: IpAddr) {
        self.down.remove(&address);
        self.silent.clear();
    }

    fn has(&self, row: &FetchedRow<'_>) -> bool {
        let silent = host_id(row).and_then(|id| self.silent.get(&id));
        let addresses = ["peer", "rpc_address"];
        silent.is_some_and(|since| since.elapsed() < REMEMBERED)
            || addresses
                .iter()
                .filter_map(|at| nodes::ip(row.bytes(at)?))
                .any(|ip| self.down.contains(&ip))
    }

    /// Asks these nodes whether they are there.
    async fn ask(&mut self, front_end: &CqlShared, version: Version, hosts: &[Uuid]) {
        let topology = front_end.topology.current();
        let asked = topology.nodes.iter().filter(|node| hosts.contains(&node.host_id));
        let asked = asked.map(|node| {
            let target = front_end.addresses.get(node.id);
            let tls = front_end.config.backend_tls.as_ref();
            async move { (node.host_id, answers(&target, version, tls).await) }
        });
        for (host, answered) in join_all(asked).await {
            if !answered {
                tracing::info!(%host, "schema agreement does not wait for a node that cannot be reached");
                self.silent.insert(host, Instant::now());
            }
        }
    }
}

fn host_id(row: &FetchedRow<'_>) -> Option<Uuid> {
    Uuid::from_slice(row.bytes("host_id")?).ok()
}

/// Whether a node answers a question that comes before any login.
async fn answers(target: &HostPort, version: Version, tls: Option<&Arc<ClientTls>>) -> bool {
    // Not counted: it is no connection that requests could use.
    let metrics = Arc::default();
    let connected =
        compio::time::timeout(PROBE, Backend::dedicated(target, version, tls, &metrics)).await;
    let Ok(Ok(backend)) = connected else { return false };
    let answer =
        compio::time::timeout(PROBE, backend.call(Opcode::Options, Flags::NONE, Bytes::new()))
            .await;
    backend.close();
    matches!(answer, Ok(Ok(_)))
}

/// Waits until all nodes that can be reached have the same schema.
pub(crate) async fn agree(
    front_end: &CqlShared,
    backend: &Rc<Backend>,
    away: &mut Away,
) -> Result<(), ControlConnectionError> {
    const LOCAL: &str = "SELECT schema_version FROM system.local";
    const PEERS: &str = "SELECT peer, rpc_address, host_id, schema_version FROM system.peers";
    if front_end.topology.current().nodes.len() < 2 {
        return Ok(());
    }
    let began = Instant::now();
    let mut ask_at = began + WAIT;
    loop {
        let (local, peers) = (fetch(backend, LOCAL).await?, fetch(backend, PEERS).await?);
        let Some(lacking) = lacking(&local, &peers, away) else { return Ok(()) };
        let now = Instant::now();
        if now >= began + TIMEOUT {
            tracing::warn!(
                "the database's nodes do not agree on the schema in time: the change is answered all the same"
            );
            return Ok(());
        }
        if now >= ask_at {
            away.ask(front_end, backend.version(), &lacking).await;
            ask_at = Instant::now() + ASK_AGAIN;
        }
        compio::time::sleep(PAUSE).await;
    }
}

/// Who has another schema than the node that is asked, as far as they say who they are; none if all
/// agree.
fn lacking(local: &Fetched, peers: &Fetched, away: &Away) -> Option<Vec<Uuid>> {
    fn version<'a>(row: &'a FetchedRow<'_>) -> Option<&'a [u8]> {
        row.bytes("schema_version")
    }
    let local = local.rows().next();
    let own = local.as_ref().and_then(version);
    let others: Vec<_> = peers
        .rows()
        .filter(|row| !away.has(row) && version(row).is_some_and(|other| Some(other) != own))
        .collect();
    (!others.is_empty()).then(|| others.iter().filter_map(host_id).collect())
}
