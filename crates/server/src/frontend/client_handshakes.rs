//! TLS with clients: the handshake before a client's first request, as every front end has it.
//!
//! 1. It has a time limit, and each reactor works on one of a front end's at once.
//! 2. One that fails is counted by its reason, and logged with what to do about it.
//! 3. A client without a handshake is no client yet: it has no session, and no drain waits for it.

use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

use compio::io::{AsyncRead, AsyncWrite};
use rustls::{AlertDescription, Error};

use crate::metrics::{FrontEndMetrics, TlsFailure};
use crate::tls::{HandshakeFault, HandshakeTurns, ServerTls, TlsSession, shake_hands};

/// Messages of handshakes that a reactor works on before it looks after others. A client that is
/// slow holds nobody up.
const AT_ONCE: usize = 1;
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Failures are logged once in this time on each reactor; all are counted.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// The settings of a front end's TLS, as an operator has to name them.
#[derive(Debug, Clone, Copy)]
pub struct TlsOptions {
    /// Which certificates it shows.
    pub certificates: &'static str,
    /// Whose certificates it asks for; `None`: it never asks.
    pub client_ca: Option<&'static str>,
}

/// The handshakes of one front end on one reactor.
pub struct ClientHandshakes {
    turns: Rc<HandshakeTurns>,
    options: TlsOptions,
    /// When it was last said that one failed.
    complained: Cell<Option<Instant>>,
}

/// A client with TLS.
pub struct SecuredClient {
    /// Its session.
    pub session: TlsSession,
    /// What it said right behind the handshake: bytes of its first requests.
    pub came: Vec<u8>,
    /// Whether it may say more.
    pub open: bool,
}

impl ClientHandshakes {
    /// None is under way.
    pub fn new(options: TlsOptions) -> Self {
        let turns = Rc::new(HandshakeTurns::new(AT_ONCE));
        Self { turns, options, complained: Cell::default() }
    }

    /// Makes the handshake with `peer` over `stream`; `None` if there is none, which is counted and
    /// logged.
    pub async fn secure(
        &self,
        tls: &ServerTls,
        stream: &mut (impl AsyncRead + AsyncWrite),
        peer: impl Display,
        metrics: &FrontEndMetrics,
    ) -> Option<SecuredClient> {
        let fault = match self.try_secure(tls, stream).await {
            Ok(secured) => return Some(secured),
            Err(fault) => fault,
        };
        metrics.tls_failures.inc(kind(&fault));
        let now = Instant::now();
        let fresh = |at: Instant| now.duration_since(at) < LOG_PAUSE;
        // Who only looks whether the port is open hangs up too.
        if matches!(fault, HandshakeFault::Closed) {
            tracing::debug!(%peer, "no TLS with a client: {fault}");
        } else if !self.complained.get().is_some_and(fresh) {
            self.complained.set(Some(now));
            tracing::warn!(%peer, "no TLS with a client: {}", words(&fault, self.options));
        }
        None
    }

    async fn try_secure(
        &self,
        tls: &ServerTls,
        stream: &mut (impl AsyncRead + AsyncWrite),
    ) -> Result<SecuredClient, HandshakeFault> {
        let (mut session, mut came) = (tls.session()?, Vec::new());
        let shaking = shake_hands(stream, &mut session, &mut came, Some(&self.turns));
        let open = compio::time::timeout(HANDSHAKE_TIMEOUT, shaking)
            .await
            .map_err(|_| HandshakeFault::Late)??;
        Ok(SecuredClient { session, came, open })
    }
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
fn words(fault: &HandshakeFault, options: TlsOptions) -> String {
    let TlsOptions { certificates, client_ca } = options;
    match (fault, client_ca) {
        (HandshakeFault::Plain, _) => format!(
            "it speaks no TLS, and with {certificates} this port speaks nothing else: turn TLS on \
             in the client"
        ),
        (HandshakeFault::Tls(Error::NoCertificatesPresented), Some(ca)) => format!(
            "it shows no certificate, and {ca} asks for one: give the client a certificate of \
             that CA"
        ),
        (HandshakeFault::Tls(Error::InvalidCertificate(why)), Some(ca)) => {
            format!("its certificate is refused ({why}): give the client one of {ca}")
        }
        (
            HandshakeFault::Tls(Error::AlertReceived(
                alert @ (AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired),
            )),
            _,
        ) => format!(
            "it refuses our certificate ({alert:?}): give the client the CA of {certificates}, or \
             renew that"
        ),
        (other, _) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rustls::CertificateError;

    use super::*;

    #[test]
    fn each_fault_names_its_cause_and_what_to_do() {
        let options = TlsOptions { certificates: "--a-cert", client_ca: Some("--a-client-ca") };
        for (fault, cause, remedy) in [
            (HandshakeFault::Plain, "--a-cert", "turn TLS on"),
            (Error::NoCertificatesPresented.into(), "no certificate", "of that CA"),
            (
                Error::InvalidCertificate(CertificateError::UnknownIssuer).into(),
                "UnknownIssuer",
                "--a-client-ca",
            ),
            (Error::AlertReceived(AlertDescription::UnknownCA).into(), "UnknownCA", "--a-cert"),
        ] {
            let said = words(&fault, options);
            assert!(said.contains(cause) && said.contains(remedy), "{said}");
        }
    }
}
