//! Our side of TLS where clients connect to us.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::server::WebPkiClientVerifier;
use rustls::{ServerConfig, ServerConnection};

use super::fault::TlsError;
use super::pem;
use super::session::TlsSession;

/// Where certificates and keys are, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// A chain of certificates, the server's own first.
    pub certificates: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whether nobody but its owner may read the key.
    pub private_key: bool,
    /// The CA whose certificate clients must show; `None`: they need none.
    pub client_ca: Option<PathBuf>,
}

/// Certificate and key, read from files and now and then again.
pub struct ServerTls {
    files: ServerFiles,
    current: RwLock<Arc<ServerConfig>>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// The files.
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn open(files: ServerFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(read(&files)?);
        Ok(ServerTls { files, current })
    }

    /// Reads the files again, for connections to come.
    ///
    /// # Errors
    /// When one of them cannot be used: the ones in use stay.
    pub fn refresh(&self) -> Result<(), TlsError> {
        let ServerFiles { certificates, key, client_ca, .. } = &self.files;
        let all = [certificates, key].into_iter().chain(client_ca);
        pem::rereadable(all.map(PathBuf::as_path))?;
        *self.current.write() = read(&self.files)?;
        Ok(())
    }

    /// TLS for a new connection.
    ///
    /// # Errors
    /// What rustls said.
    pub fn session(&self) -> Result<TlsSession, rustls::Error> {
        let config = self.current.read().clone();
        Ok(TlsSession::new(ServerConnection::new(config)?.into()))
    }
}

fn read(files: &ServerFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let ServerFiles { certificates, key, private_key, client_ca } = files;
    let (chain, secret) = pem::identity(certificates, key, *private_key)?;
    let unusable = |source| pem::refused(certificates, key, source);
    let builder = ServerConfig::builder_with_provider(pem::provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = pem::authority(path)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, pem::provider())
                .build()
                .map_err(|error| TlsError::Authority {
                    path: path.clone(),
                    why: error.to_string(),
                })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    Ok(Arc::new(builder.with_single_cert(chain, secret).map_err(unusable)?))
}
