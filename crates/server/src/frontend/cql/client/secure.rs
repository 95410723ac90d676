//! TLS with a client: the handshake before its first request.
//!
//! It has a time limit, and each reactor works on one at once. A client without a handshake is no
//! client yet: it has no session, and a drain does not wait for it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use compio::net::TcpStream;
use rustls::{AlertDescription, Error};

use crate::frontend::cql::reactor_state::CqlReactorState;
use crate::metrics::TlsFailure;
use crate::tls::{HandshakeFault, ServerTls, TlsSession, shake_hands};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Failures are logged once in this time on each reactor; all are counted.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// The TLS of a client, with what it said right behind the handshake.
pub struct SecuredClient {
    /// Its session.
    pub session: Rc<RefCell<TlsSession>>,
    /// Bytes of its first requests.
    pub came: Vec<u8>,
}

/// Makes the handshake; `None` if there is none, which is counted and logged.
pub async fn secure(
    reactor_state: &CqlReactorState,
    tls: &ServerTls,
    stream: &mut TcpStream,
    peer: SocketAddr,
) -> Option<SecuredClient> {
    match try_secure(reactor_state, tls, stream).await {
        Ok(secured) => Some(secured),
        Err(fault) => {
            reactor_state.metrics.tls_failures.inc(kind(&fault));
            let now = Instant::now();
            let fresh = |at: Instant| now.duration_since(at) < LOG_PAUSE;
            // Who only looks whether the port is open hangs up too.
            if matches!(fault, HandshakeFault::Closed) {
                tracing::debug!(%peer, "no TLS with a client: {fault}");
            } else if !reactor_state.complained.get().is_some_and(fresh) {
                reactor_state.complained.set(Some(now));
                tracing::warn!(%peer, "no TLS with a client: {}", words(&fault));
            }
            None
        }
    }
}

async fn try_secure(
    reactor_state: &CqlReactorState,
    tls: &ServerTls,
    stream: &mut TcpStream,
) -> Result<SecuredClient, HandshakeFault> {
    let (mut session, mut came) = (tls.session()?, Vec::new());
    let turns = Some(&reactor_state.handshakes);
    let shaking = shake_hands(stream, &mut session, &mut came, turns);
    compio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await.map_err(|_| HandshakeFault::Late)??;
    Ok(SecuredClient { session: Rc::new(RefCell::new(session)), came })
}

fn kind(fault: &HandshakeFault) -> TlsFailure {
    match fault {
        HandshakeFault::Plain => TlsFailure::Plain,
        HandshakeFault::Late | HandshakeFault::Closed => TlsFailure::Late,
        HandshakeFault::Crowded => TlsFailure::Crowded,
        HandshakeFault::Tls(
            Error::InvalidCertificate(_) | Error::NoCertificatesPresented | Error::AlertReceived(_),
        ) => TlsFailure::Certificate,
        HandshakeFault::Io(_) | HandshakeFault::Tls(_) => TlsFailure::Other,
    }
}

/// What is wrong, and what to do about it.
fn words(fault: &HandshakeFault) -> String {
    match fault {
        HandshakeFault::Plain => "it speaks no TLS, and with --cql-tls-cert this port speaks \
            nothing else: turn TLS on in the driver"
            .into(),
        HandshakeFault::Tls(Error::NoCertificatesPresented) => "it shows no certificate, and \
            --cql-tls-client-ca asks for one: give the driver a certificate of that CA"
            .into(),
        HandshakeFault::Tls(Error::InvalidCertificate(why)) => {
            format!(
                "its certificate is refused ({why}): give the driver one of --cql-tls-client-ca"
            )
        }
        HandshakeFault::Tls(Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired),
        )) => format!(
            "it refuses our certificate ({alert:?}): give the driver the CA of --cql-tls-cert, or \
             renew that"
        ),
        other => other.to_string(),
    }
}
