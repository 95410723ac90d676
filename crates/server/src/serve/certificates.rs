//! Certificates of all that speaks TLS: read at the start, and again at SIGHUP.

use std::sync::Arc;

use crate::config::Config;
use crate::tls::{ClientFiles, ClientTls, ServerFiles, ServerTls, TlsError};

/// Reads the files for connections to the database; `None` if these are without TLS.
///
/// # Errors
/// What is wrong with one of them.
pub fn towards_database(config: &Config) -> Result<Option<Arc<ClientTls>>, TlsError> {
    let files = config.backend_tls_ca.clone().map(|ca| ClientFiles {
        ca,
        identity: config.backend_tls_cert.clone().zip(config.backend_tls_key.clone()),
        verify_name: config.backend_tls_verify_host_name,
    });
    files.map(ClientTls::open).transpose().map(|tls| tls.map(Arc::new))
}

/// What speaks TLS, and with which certificates.
#[derive(Clone, Default)]
pub(super) struct TlsParts {
    pub(super) memcache: Option<Arc<ServerTls>>,
    pub(super) cql: Option<Arc<ServerTls>>,
    pub(super) backend: Option<Arc<ClientTls>>,
}

impl TlsParts {
    /// Reads the files.
    pub(super) fn open(config: &Config) -> Result<Self, TlsError> {
        let memcache = config.memcache_tls_cert.clone().zip(config.memcache_tls_key.clone());
        let cql = config.cql_tls_cert.clone().zip(config.cql_tls_key.clone());
        let server = |(certificates, key), private_key, client_ca| {
            ServerTls::open(ServerFiles { certificates, key, private_key, client_ca }).map(Arc::new)
        };
        Ok(TlsParts {
            // As memcached has it, whose files these may be.
            memcache: memcache.map(|files| server(files, false, None)).transpose()?,
            cql: cql
                .map(|files| server(files, true, config.cql_tls_client_ca.clone()))
                .transpose()?,
            backend: towards_database(config)?,
        })
    }

    /// Reads all files again, for connections that begin from then on. Where one is wrong, those in
    /// use stay.
    pub(super) fn refresh(&self) {
        let server = |tls: &Option<Arc<ServerTls>>| tls.as_ref().map(|tls| tls.refresh());
        let all = [
            ("the memcached front end", server(&self.memcache)),
            ("the CQL front end", server(&self.cql)),
            ("connections to the database", self.backend.as_ref().map(|tls| tls.refresh())),
        ];
        for (whose, refreshed) in all {
            match refreshed {
                None => {}
                Some(Ok(())) => tracing::info!(
                    "SIGHUP: the certificates of {whose} were read again, for new connections"
                ),
                Some(Err(error)) => {
                    tracing::error!("SIGHUP: the certificates of {whose} are unchanged: {error}");
                }
            }
        }
    }
}
