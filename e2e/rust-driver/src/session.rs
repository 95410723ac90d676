//! A session at one contact point.

use std::env;
use std::error::Error;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::Consistency;

/// What a step gives, or why it failed.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

pub fn ensure(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

/// TLS if the environment has a CA, to an address that the certificate has.
fn over_tls() -> Outcome<Option<Arc<ClientConfig>>> {
    let Some(authority) = env::var_os("CQL_TLS_CA") else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let config = ClientConfig::builder().with_root_certificates(roots);
    Ok(Some(Arc::new(match (env::var_os("CQL_TLS_CERT"), env::var_os("CQL_TLS_KEY")) {
        (Some(cert), Some(key)) => {
            let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<_, _>>()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key)?)?
        }
        _ => config.with_no_client_auth(),
    })))
}

/// Connects, at LOCAL_QUORUM.
pub async fn open(contact: &str) -> Outcome<Session> {
    let profile = ExecutionProfile::builder().consistency(Consistency::LocalQuorum).build();
    let builder = SessionBuilder::new().known_node(contact).tls_context(over_tls()?);
    Ok(builder.default_execution_profile_handle(profile.into_handle()).build().await?)
}
