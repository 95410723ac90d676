//! Our side of TLS where we connect to the database.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::fault::TlsError;
use super::pem;
use super::session::TlsSession;

/// Where certificates and keys are, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// The CA whose certificate the server must show.
    pub ca: PathBuf,
    /// The chain and the key that we show the server, where it asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether the server's certificate must name the host that we connect to.
    pub verify_name: bool,
}

/// Which servers are trusted, and who we are; read from files and now and then again.
pub struct ClientTls {
    files: ClientFiles,
    current: RwLock<Arc<ClientConfig>>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ClientTls {
    /// The files.
    pub fn files(&self) -> &ClientFiles {
        &self.files
    }

    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn open(files: ClientFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(read(&files)?);
        Ok(ClientTls { files, current })
    }

    /// Reads the files again, for connections to come.
    ///
    /// # Errors
    /// When one of them cannot be used: the ones in use stay.
    pub fn refresh(&self) -> Result<(), TlsError> {
        let identity = self.files.identity.iter().flat_map(|(chain, key)| [chain, key]);
        pem::rereadable([&self.files.ca].into_iter().chain(identity).map(PathBuf::as_path))?;
        *self.current.write() = read(&self.files)?;
        Ok(())
    }

    /// TLS for a new connection to `host`, a name or an IP address.
    ///
    /// # Errors
    /// `host` can be in no certificate, or what rustls said.
    pub fn session(&self, host: &str) -> Result<TlsSession, rustls::Error> {
        let config = self.current.read().clone();
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| rustls::Error::General(format!("{host}: {error}")))?;
        Ok(TlsSession::new(ClientConnection::new(config, name)?.into()))
    }
}

fn read(files: &ClientFiles) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = pem::authority(&files.ca)?;
    let wrong = |why: String| TlsError::Authority { path: files.ca.clone(), why };
    let by_name = WebPkiServerVerifier::builder_with_provider(roots.clone(), pem::provider())
        .build()
        .map_err(|error| wrong(error.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = match files.verify_name {
        true => by_name,
        false => Arc::new(AnyName { roots, by_name }),
    };
    // There is no danger in it: the chain is verified in either case.
    let builder = ClientConfig::builder_with_provider(pem::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((certificates, key)) => {
            let (chain, secret) = pem::identity(certificates, key, true)?;
            let refused = |source| pem::refused(certificates, key, source);
            builder.with_client_auth_cert(chain, secret).map_err(refused)?
        }
    };
    Ok(Arc::new(config))
}

/// Takes a certificate of the CA whatever host it names.
#[derive(Debug)]
struct AnyName {
    roots: Arc<RootCertStore>,
    /// Verifies signatures, which have nothing to do with names.
    by_name: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            pem::provider().signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_name.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_name.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_name.supported_verify_schemes()
    }
}
