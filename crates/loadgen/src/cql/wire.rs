//! What the bytes of a connection go over: a TCP socket, or TLS on one.
//!
//! 1. [`trusting`] reads the CA of the servers to talk to, once for all connections.
//! 2. [`Wire::secure`] makes the handshake, while the socket still blocks.
//! 3. From then on a [`Wire`] reads and writes as its socket does, blocking or not.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};

use super::CqlError;

/// Bytes that are read from a socket at once.
const RAW: usize = 64 * 1024;

/// Which servers are trusted; clones share it.
#[derive(Clone)]
pub struct ServerCa(Arc<ClientConfig>);

impl fmt::Debug for ServerCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCa")
    }
}

/// Trusts servers whose certificate the CA in this PEM file has signed, for the host that they are
/// reached by.
///
/// # Errors
/// [`CqlError::Ca`]: the file cannot be read, or holds no certificate.
pub fn trusting(ca: &Path) -> Result<ServerCa, CqlError> {
    let wrong = |why: String| CqlError::Ca { path: ca.to_owned(), why };
    let pem = std::fs::read(ca).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("it holds no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(ServerCa(Arc::new(config)))
}

/// A connection's socket, perhaps with TLS.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Wire {
    /// Makes the handshake over a socket that blocks; `address` is `host:port`.
    ///
    /// # Errors
    /// [`CqlError::Tls`].
    pub(super) fn secure(
        mut socket: TcpStream,
        address: &str,
        ServerCa(config): &ServerCa,
    ) -> Result<Self, CqlError> {
        let host = host(address);
        let failed = |why| CqlError::Tls { address: address.to_owned(), why };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| failed(format!("no certificate can name {host:?}: give another host")))?;
        let mut session = ClientConnection::new(config.clone(), name)
            .map_err(|error| failed(tls_words(&error, host)))?;
        while session.is_handshaking() {
            session.complete_io(&mut socket).map_err(|error| failed(words(&error, host)))?;
        }
        let raw = vec![0; RAW].into();
        Ok(Wire::Tls(Box::new(TlsStream { socket, session, raw, start: 0, end: 0 })))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(tls) => &tls.socket,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        self.socket().set_nonblocking(true)
    }

    /// Whether there may be something to read that the socket does not tell of: it has come
    /// already.
    pub(super) fn holds_back(&self) -> bool {
        matches!(self, Wire::Tls(tls) if tls.start < tls.end || !tls.session.wants_read())
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read(buffer),
            Wire::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.write(bytes),
            Wire::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(socket) => socket.flush(),
            Wire::Tls(tls) => tls.send(),
        }
    }
}

/// TLS over a socket that may block or not. It is no [`rustls::StreamOwned`], for that one reads
/// where it was to write, and says that it has sent all where it has sent a part.
#[derive(Debug)]
pub(super) struct TlsStream {
    socket: TcpStream,
    session: ClientConnection,
    /// What the socket gave and the session has not taken yet is between `start` and `end`.
    raw: Box<[u8]>,
    start: usize,
    end: usize,
}

impl TlsStream {
    /// Reads some plain text, from the socket only if none has come yet.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.start == self.end {
                (self.start, self.end) = (0, self.socket.read(&mut self.raw)?);
            }
            // Where there is nothing this tells it that the server has closed.
            self.start += self.session.read_tls(&mut &self.raw[self.start..self.end])?;
            self.session
                .process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    /// Takes some plain text, if all that was taken before is sent.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send()?;
        self.session.writer().write(bytes)
    }

    /// Sends what was taken.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Why a handshake failed, and what to do about it.
fn words(error: &io::Error, host: &str) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => tls_words(error, host),
        None if error.kind() == ErrorKind::UnexpectedEof => {
            "the server closed the connection: see whether it speaks TLS on this port, and its log"
                .into()
        }
        None => error.to_string(),
    }
}

fn tls_words(error: &Error, host: &str) -> String {
    use CertificateError as Certificate;
    match error {
        Error::InvalidMessage(_) => {
            "the server speaks no TLS: leave out --tls-ca, or connect to its port for TLS".into()
        }
        Error::InvalidCertificate(Certificate::UnknownIssuer) => {
            "the CA of --tls-ca has not signed the server's certificate: name the CA that has"
                .into()
        }
        Error::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        ) => format!(
            "the server's certificate does not name {host}: connect by a name that it has, or \
             give it that subject alternative name"
        ),
        Error::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
            "the server's certificate has expired: renew it, and look whether this machine's \
             clock is right"
                .into()
        }
        Error::AlertReceived(alert) => format!(
            "the server refuses TLS ({alert:?}): see its log; a server that asks clients for \
             certificates gets none from here"
        ),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_what_a_certificate_names() {
        for (address, named) in [
            ("db.example:9042", "db.example"),
            ("127.0.0.1:9042", "127.0.0.1"),
            ("[::1]:9042", "::1"),
            ("db", "db"),
        ] {
            assert_eq!(host(address), named);
            assert!(ServerName::try_from(named).is_ok());
        }
    }

    #[test]
    fn a_failed_handshake_names_its_cause_and_what_to_do() {
        let certificate = Error::InvalidCertificate;
        for (error, cause, remedy) in [
            (
                Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "no TLS",
                "leave out --tls-ca",
            ),
            (certificate(CertificateError::UnknownIssuer), "not signed", "name the CA"),
            (certificate(CertificateError::NotValidForName), "db.example", "connect by a name"),
            (certificate(CertificateError::Expired), "expired", "renew"),
        ] {
            let said = words(&io::Error::new(ErrorKind::InvalidData, error), "db.example");
            assert!(said.contains(cause) && said.contains(remedy), "{said}");
        }
        let said = words(&ErrorKind::UnexpectedEof.into(), "db.example");
        assert!(said.contains("closed") && said.contains("speaks TLS"), "{said}");
    }
}
