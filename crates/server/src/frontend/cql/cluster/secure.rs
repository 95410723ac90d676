//! TLS with the database: the handshake, and what it means that there is none.

use std::cell::RefCell;
use std::rc::Rc;

use compio::net::TcpStream;
use rustls::{CertificateError, Error};

use crate::config::HostPort;
use crate::frontend::cql::cluster::error::{CONNECT_TIMEOUT, ConnectError};
use crate::tls::{ClientTls, HandshakeFault, TlsSession, shake_hands};

/// Makes the handshake with the node at `target`. What it said right behind it goes to `came`.
///
/// # Errors
/// [`ConnectError::Tls`], and [`ConnectError::Timeout`].
pub(super) async fn secure(
    tls: &ClientTls,
    target: &HostPort,
    stream: &mut TcpStream,
    came: &mut Vec<u8>,
) -> Result<Rc<RefCell<TlsSession>>, ConnectError> {
    let address: Rc<str> = target.to_string().into();
    let fault = |fault: &HandshakeFault| ConnectError::Tls {
        address: address.clone(),
        reason: words(fault, &target.host).into(),
    };
    let mut session = tls.session(&target.host).map_err(|error| fault(&error.into()))?;
    let open =
        compio::time::timeout(CONNECT_TIMEOUT, shake_hands(stream, &mut session, came, None))
            .await
            .map_err(|_| ConnectError::Timeout(address.clone()))?
            .map_err(|error| fault(&error))?;
    // A database that has said its last answers nothing any more.
    match (open, session.fault()) {
        (true, _) => Ok(Rc::new(RefCell::new(session))),
        (false, Some(error)) => Err(fault(&error.clone().into())),
        (false, None) => Err(fault(&HandshakeFault::Closed)),
    }
}

/// Why the connection to `target` ended, where TLS ended it.
pub(super) fn ended(session: &TlsSession, target: &HostPort) -> Option<ConnectError> {
    let fault = HandshakeFault::from(session.fault()?.clone());
    let reason = words(&fault, &target.host).into();
    Some(ConnectError::Tls { address: target.to_string().into(), reason })
}

/// What is wrong, and what to do about it.
fn words(fault: &HandshakeFault, host: &str) -> String {
    match fault {
        HandshakeFault::Plain => {
            "the database speaks no TLS here: remove --backend-tls-ca, or set \
             client_encryption_options in its cassandra.yaml"
                .into()
        }
        HandshakeFault::Closed => {
            "the database closed the connection during the TLS handshake: see its log, and whether \
             client_encryption_options is set in its cassandra.yaml"
                .into()
        }
        HandshakeFault::Tls(error) => tls_words(error, host),
        other => other.to_string(),
    }
}

fn tls_words(error: &Error, host: &str) -> String {
    use CertificateError as Certificate;
    match error {
        Error::InvalidCertificate(certificate) => match certificate {
            Certificate::UnknownIssuer => "the database's certificate is not of the CA that \
                --backend-tls-ca names: name the CA that has signed it"
                .into(),
            Certificate::Expired | Certificate::ExpiredContext { .. } => {
                "the database's certificate has expired: renew it there, and look whether this \
                 machine's clock is right"
                    .into()
            }
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "the database's certificate is not valid yet: look whether this machine's clock is \
                 right"
                    .into()
            }
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => format!(
                "the database's certificate does not name {host}: give it that subject \
                 alternative name, or set --backend-tls-verify-host-name=false"
            ),
            other => format!(
                "the database's certificate cannot be used ({other}): give the database one that \
                 the CA of --backend-tls-ca has signed for a server"
            ),
        },
        // Which alert it is that a certificate was refused depends on the library of the database.
        Error::AlertReceived(alert) => format!(
            "the database ended TLS ({alert:?}): see its log, and if it asks for certificates, set \
             --backend-tls-cert and --backend-tls-key to a pair that it trusts"
        ),
        other => format!("the TLS handshake with the database failed: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use rustls::AlertDescription;

    use super::*;

    #[test]
    fn each_fault_names_its_cause_and_what_to_do() {
        let certificate = |error| HandshakeFault::Tls(Error::InvalidCertificate(error));
        for (fault, cause, remedy) in [
            (HandshakeFault::Plain, "speaks no TLS", "remove --backend-tls-ca"),
            (certificate(CertificateError::UnknownIssuer), "--backend-tls-ca", "name the CA"),
            (certificate(CertificateError::Expired), "has expired", "renew"),
            (certificate(CertificateError::NotValidForName), "db.example", "=false"),
            (
                HandshakeFault::Tls(Error::AlertReceived(AlertDescription::InternalError)),
                "InternalError",
                "--backend-tls-cert",
            ),
        ] {
            let said = words(&fault, "db.example");
            assert!(said.contains(cause) && said.contains(remedy), "{said}");
        }
    }
}
