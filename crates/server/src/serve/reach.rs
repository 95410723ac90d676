//! Whether the database can be reached, asked before another process gives its place to this one.

use super::certificates::TlsParts;
use super::error::ServeError;
use crate::config::Config;
use crate::frontend::cql::try_database;
use crate::reactor::{Driver, build_runtime};

/// Connects to the database as the front end of CQL would, if there is one. Takes some seconds at
/// most.
///
/// # Errors
/// Why no contact point lets us in.
pub(super) fn database(config: &Config, driver: Driver) -> Result<(), ServeError> {
    if config.cql.is_none() {
        return Ok(());
    }
    let tls = TlsParts::open(config)?;
    let runtime = build_runtime(driver, false).map_err(ServeError::Reactors)?;
    let (credentials, tls) = (config.backend_credentials.as_deref(), tls.backend.as_ref());
    let clients_log_in = config.ring_address.is_none();
    runtime
        .block_on(try_database(&config.backend, credentials, tls, clients_log_in))
        .map_err(|error| ServeError::Database(error.to_string()))
}
