//! Whether the database lets us in, tried before there is a front end.

use std::path::Path;
use std::sync::Arc;

use afterglow_cql::frame::Version;

use crate::config::HostPort;
use crate::frontend::cql::cluster::backend::{Backend, Dial};
use crate::frontend::cql::cluster::error::ConnectError;
use crate::frontend::cql::cluster::first::first;
use crate::frontend::cql::cluster::login::Login;
use crate::frontend::cql::cluster::nodes::{Addresses, NodeId};
use crate::metrics::BackendMetrics;
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
    let login = credentials.map(Login::of_file).transpose()?;
    let (addresses, metrics) = (Addresses::default(), Arc::<BackendMetrics>::default());
    let targets: Vec<NodeId> = nodes.iter().map(|node| addresses.id(node)).collect();
    let mut version = Version::MAX;
    loop {
        let connect = |node| {
            let (login, tls, metrics) = (login.clone(), tls.cloned(), metrics.clone());
            let dial = Dial { version, keyspace: None, login, events: None, tls, metrics };
            let address = addresses.get(node);
            async move { Backend::connect(&address, dial).await }
        };
        match first(targets.clone(), connect, ConnectError::is_of_all).await {
            Ok((backend, _)) => {
                backend.close();
                return Ok(());
            }
            Err(ConnectError::Authentication(_)) if clients_log_in => return Ok(()),
            Err(ConnectError::Version(refused)) if refused > Version::ALL[0] => {
                version = Version::ALL[refused as usize - 1];
            }
            Err(error) => return Err(error),
        }
    }
}
