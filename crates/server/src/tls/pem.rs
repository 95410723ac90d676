//! Certificates, keys and CAs in PEM files.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::fault::TlsError;
use crate::config::{check_rereadable, private};

/// A chain and its key.
pub(super) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The cryptography of all connections.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Reads a chain of certificates, the own one first, and its key. With `private_key` the key's file
/// must be of its owner alone.
pub(super) fn identity(
    certificates: &Path,
    key: &Path,
    private_key: bool,
) -> Result<Identity, TlsError> {
    let wrong = |what, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { what, path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(|chain| chain.collect::<Result<Vec<_>, _>>())
        .map_err(wrong("certificates", certificates))?;
    let secret = match private_key {
        true => {
            let bytes = private::read(key)
                .map_err(|source| TlsError::Key { path: key.to_owned(), source })?;
            PrivateKeyDer::from_pem_slice(&bytes)
        }
        false => PrivateKeyDer::from_pem_file(key),
    };
    Ok((chain, secret.map_err(wrong("a private key", key))?))
}

/// What it means that rustls takes no such pair.
pub(super) fn refused(certificates: &Path, key: &Path, source: rustls::Error) -> TlsError {
    let (certificates, key) = (certificates.to_owned(), key.to_owned());
    match source {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch { certificates, key },
        source => TlsError::Unusable { certificates, key, source },
    }
}

/// Reads the certificates of a CA.
pub(super) fn authority(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let wrong = |why: String| TlsError::Authority { path: path.to_owned(), why };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>())
        .map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(wrong("it holds no certificate".to_owned())),
        false => Ok(Arc::new(roots)),
    }
}

/// Refuses what can be read only once.
pub(super) fn rereadable<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<(), TlsError> {
    for path in paths {
        check_rereadable(path).map_err(|why| TlsError::Reread { path: path.to_owned(), why })?;
    }
    Ok(())
}
