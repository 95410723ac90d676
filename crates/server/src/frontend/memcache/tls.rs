//! TLS, sans-io: bytes from and to the socket go through a rustls connection.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConnection;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Certificate and key, read from files and now and then again.
pub struct Tls {
    certificates: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<rustls::ServerConfig>>,
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there, or holds no PEM of the kind that is needed.
    #[error("cannot read {what} from {path}: {source}", path = .path.display())]
    Pem {
        /// Certificates or key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not fit each other, or are of no use.
    #[error("certificate {certificates} and key {key} cannot be used: {source}", certificates = .certificates.display(), key = .key.display())]
    Unusable {
        /// The certificates' file.
        certificates: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        source: rustls::Error,
    },
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("certificates", &self.certificates).finish_non_exhaustive()
    }
}

impl Tls {
    /// The files of the certificates and of the key.
    pub fn files(&self) -> [&Path; 2] {
        [&self.certificates, &self.key]
    }

    /// Reads both files: a chain of certificates, the server's own first, and its key, in PEM.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn open(certificates: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(read(certificates, key)?);
        Ok(Tls { certificates: certificates.to_owned(), key: key.to_owned(), current })
    }

    /// Reads the files again, for connections to come.
    ///
    /// # Errors
    /// When one of them cannot be used: the ones in use stay.
    pub fn refresh(&self) -> Result<(), TlsError> {
        *self.current.write() = read(&self.certificates, &self.key)?;
        Ok(())
    }

    fn config(&self) -> Arc<rustls::ServerConfig> {
        self.current.read().clone()
    }
}

fn read(certificates: &Path, key: &Path) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let wrong = |what, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { what, path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(|chain| chain.collect::<Result<Vec<_>, _>>())
        .map_err(wrong("certificates", certificates))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(wrong("a private key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |source| TlsError::Unusable {
        certificates: certificates.to_owned(),
        key: key.to_owned(),
        source,
    };
    let builder =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.map_err(unusable)?.with_no_client_auth().with_single_cert(chain, secret);
    Ok(Arc::new(config.map_err(unusable)?))
}

/// `refresh_certs`, and its answer.
pub fn refresh(tls: Option<&Tls>) -> String {
    let Some(tls) = tls else { return "Error TLS not enabled\r\n".into() };
    match tls.refresh() {
        Ok(()) => "OK\r\n".into(),
        Err(error) => {
            tracing::error!(%error, "new certificates cannot be used: the old ones stay in use");
            format!("Error {}\r\n", error.to_string().replace(['\r', '\n'], " "))
        }
    }
}

/// What is between a connection's bytes and its socket.
pub enum TlsOrPlain {
    /// Nothing.
    Plain,
    /// TLS.
    Tls(Box<ServerConnection>),
}

impl TlsOrPlain {
    /// For a new connection.
    ///
    /// # Errors
    /// What rustls said.
    pub fn new(tls: Option<&Tls>) -> io::Result<Self> {
        match tls {
            None => Ok(TlsOrPlain::Plain),
            Some(tls) => {
                let connection = ServerConnection::new(tls.config()).map_err(io::Error::other)?;
                Ok(TlsOrPlain::Tls(Box::new(connection)))
            }
        }
    }

    /// Whether what the socket gives is not yet what the client said.
    pub fn is_tls(&self) -> bool {
        matches!(self, TlsOrPlain::Tls(_))
    }

    /// Takes what the socket gave and appends what the client said. False when that was its last:
    /// it said so, or went on with what is no TLS. Nothing behind that counts, all before it does.
    /// There may be an alert to send.
    pub fn open(&mut self, raw: &[u8], input: &mut Vec<u8>) -> bool {
        let TlsOrPlain::Tls(connection) = self else {
            input.extend_from_slice(raw);
            return true;
        };
        let mut rest = raw;
        while !rest.is_empty() {
            // Once the client has said that it is done, rustls takes nothing any more: no error, no
            // byte.
            if !matches!(connection.read_tls(&mut rest), Ok(1..)) {
                return false;
            }
            let state = connection.process_new_packets();
            let mut said = connection.reader();
            while let Ok(chunk @ [_, ..]) = said.fill_buf() {
                input.extend_from_slice(chunk);
                let len = chunk.len();
                said.consume(len);
            }
            if state.map_or(true, |state| state.peer_has_closed()) {
                return false;
            }
        }
        true
    }

    /// Makes `plain` what the socket is to be given, with whatever else TLS has to say.
    ///
    /// # Errors
    /// What rustls said.
    pub fn seal(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        let TlsOrPlain::Tls(connection) = self else { return Ok(()) };
        let mut sealed = Vec::with_capacity(plain.len() + 64);
        let mut rest = &plain[..];
        loop {
            while connection.wants_write() {
                connection.write_tls(&mut sealed)?;
            }
            if rest.is_empty() {
                break;
            }
            let taken = connection.writer().write(rest)?;
            rest = &rest[taken..];
        }
        *plain = sealed;
        Ok(())
    }

    /// Whether TLS has something to say of its own.
    pub fn wants_write(&self) -> bool {
        matches!(self, TlsOrPlain::Tls(connection) if connection.wants_write())
    }

    /// Says that nothing more will come.
    pub fn close(&mut self) {
        if let TlsOrPlain::Tls(connection) = self {
            connection.send_close_notify();
        }
    }
}
