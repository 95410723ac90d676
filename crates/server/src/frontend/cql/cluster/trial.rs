//! A database asked while there is no front end: whether it lets us in, and what its schema is.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use afterglow_cql::frame::Version;
use afterglow_cql::schema::Schema;

use crate::config::HostPort;
use crate::frontend::cql::cluster::backend::{Backend, Dial};
use crate::frontend::cql::cluster::error::{CallError, ConnectError};
use crate::frontend::cql::cluster::first::first;
use crate::frontend::cql::cluster::login::Login;
use crate::frontend::cql::cluster::nodes::{Addresses, NodeId};
use crate::frontend::cql::cluster::schema_load::load_schema;
use crate::metrics::BackendMetrics;
use crate::reactor::{Driver, Reactors, ReactorsConfig};
use crate::tls::ClientTls;

/// Connects to the first of these nodes that lets us in, and closes the connection again.
/// `clients_log_in`: a database that requires authentication counts too where we have no
/// credentials. Members of a ring need their own.
///
/// # Errors
/// What a node said about it, else what happened last.
pub async fn try_database(
    nodes: &[HostPort],
    credentials: Option<&Path>,
    tls: Option<&Arc<ClientTls>>,
    clients_log_in: bool,
) -> Result<(), ConnectError> {
    match connect(nodes, credentials, tls).await {
        Ok(backend) => {
            backend.close();
            Ok(())
        }
        Err(ConnectError::Authentication(_)) if clients_log_in => Ok(()),
        Err(error) => Err(error),
    }
}

/// The schema of the database at `target`, read once, for who serves nobody. Blocks; not to be
/// called on a reactor.
///
/// # Errors
/// In words for the person who named it.
pub fn read_schema_of(
    target: &HostPort,
    credentials: Option<&Path>,
    tls: Option<Arc<ClientTls>>,
) -> Result<Schema, String> {
    let config = ReactorsConfig { threads: Some(1), driver: Driver::Auto };
    let reactors = Reactors::start(&config).map_err(|error| error.to_string())?;
    let (target, credentials) = (target.clone(), credentials.map(Path::to_path_buf));
    let read = reactors.block_on(0, move || async move {
        let nodes = [target];
        let backend = connect(&nodes, credentials.as_deref(), tls.as_ref()).await;
        let backend = backend.map_err(|error| with_remedy(&error, tls.is_some()))?;
        let schema = load_schema(&backend).await.map_err(|error| error.to_string());
        backend.close();
        schema
    });
    reactors.shutdown();
    read.unwrap_or_else(|| Err("it could not be asked".into()))
}

/// The error for who asks the database once, with the option that is missing.
fn with_remedy(error: &ConnectError, over_tls: bool) -> String {
    let lost = CallError::Lost.to_string();
    match error {
        ConnectError::Authentication(_) => format!("{error}: give --backend-credentials FILE"),
        ConnectError::Unreachable { reason, .. } if !over_tls && **reason == *lost => {
            format!("{error}; if the database speaks TLS, give --backend-tls-ca FILE")
        }
        _ => error.to_string(),
    }
}

/// A connection to the first of these nodes that lets us in.
async fn connect(
    nodes: &[HostPort],
    credentials: Option<&Path>,
    tls: Option<&Arc<ClientTls>>,
) -> Result<Rc<Backend>, ConnectError> {
    let login = credentials.map(Login::of_file).transpose()?;
    let (addresses, metrics) = (Addresses::default(), Arc::<BackendMetrics>::default());
    let targets: Vec<NodeId> = nodes.iter().map(|node| addresses.id(node)).collect();
    let mut version = Version::MAX;
    loop {
        let connect = |node| {
            let (login, tls, metrics) = (login.clone(), tls.cloned(), metrics.clone());
            let (keyspace, events, shared) = (None, None, true);
            let dial = Dial { version, keyspace, login, events, shared, tls, metrics };
            let address = addresses.get(node);
            async move { Backend::connect(&address, dial).await }
        };
        match first(targets.clone(), connect, ConnectError::is_of_all).await {
            Ok((backend, _)) => return Ok(backend),
            Err(ConnectError::Version(refused)) if refused > Version::ALL[0] => {
                version = Version::ALL[refused as usize - 1];
            }
            Err(error) => return Err(error),
        }
    }
}
