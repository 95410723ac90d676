//! Why certificates cannot be used.

use std::path::PathBuf;

use crate::config::private::PrivateFileError;

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
    /// A key is not there, or not of its owner alone.
    #[error("the private key {path} cannot be used: {source}", path = .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PrivateFileError,
    },
    /// Certificate and key are of two pairs.
    #[error(
        "the key {key} does not fit the certificate {certificates}: name the key that the first certificate in that file was made for",
        certificates = .certificates.display(), key = .key.display()
    )]
    Mismatch {
        /// The certificates' file.
        certificates: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// Certificate and key are of no use.
    #[error(
        "certificate {certificates} and key {key} cannot be used: {source}",
        certificates = .certificates.display(), key = .key.display()
    )]
    Unusable {
        /// The certificates' file.
        certificates: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        source: rustls::Error,
    },
    /// What should be the certificates of a CA is not.
    #[error(
        "{path} cannot be used as a CA: {why}. Name a PEM file with the certificate of the CA",
        path = .path.display()
    )]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file cannot be read a second time.
    #[error("cannot read {path} again: {why}", path = .path.display())]
    Reread {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}
