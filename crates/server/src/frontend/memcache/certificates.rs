//! `refresh_certs`: certificates are read again.

use crate::tls::ServerTls;

/// `refresh_certs`, and its answer.
pub fn refresh(tls: Option<&ServerTls>) -> String {
    let Some(tls) = tls else { return "Error TLS not enabled\r\n".into() };
    match tls.refresh() {
        Ok(()) => "OK\r\n".into(),
        Err(error) => {
            tracing::error!(%error, "new certificates cannot be used: the old ones stay in use");
            format!("Error {}\r\n", error.to_string().replace(['\r', '\n'], " "))
        }
    }
}
