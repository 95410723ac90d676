//! The client's side of TLS, sans-io, so that a test decides what shares a write with what.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

/// Where the certificate and the key for tests are.
pub const FILES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/hostile/cert.pem"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/hostile/key.pem"),
];

/// The certificate and the key for tests.
pub fn files() -> [&'static Path; 2] {
    FILES.map(Path::new)
}

/// Takes any certificate, so that no test depends on the date.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A client's TLS connection.
pub struct Tls(ClientConnection);

impl Tls {
    /// A connection that has said nothing yet.
    pub fn new() -> Tls {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().dangerous().with_custom_certificate_verifier(Arc::new(Anyone));
        let name = ServerName::try_from("localhost").unwrap();
        Tls(ClientConnection::new(Arc::new(config.with_no_client_auth()), name).unwrap())
    }

    /// A connection over `stream` that is ready for what a client wants to say.
    pub fn over(stream: &mut (impl Read + Write)) -> Tls {
        let mut tls = Tls::new();
        while tls.0.is_handshaking() {
            tls.0.complete_io(stream).unwrap();
        }
        tls
    }

    /// A connection over `stream` of which the server lacks the last message of the handshake. It
    /// goes before what is sealed next.
    pub fn nearly_over(stream: &mut (impl Read + Write)) -> Tls {
        let mut tls = Tls::new();
        while tls.0.is_handshaking() {
            stream.write_all(&tls.out()).unwrap();
            assert!(tls.0.read_tls(stream).unwrap() > 0, "the server goes on with the handshake");
            tls.0.process_new_packets().unwrap();
        }
        assert!(tls.0.wants_write(), "the last message is the client's");
        tls
    }

    /// What goes over the network for `plain`, in one record or more.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        self.0.writer().write_all(plain).unwrap();
        self.out()
    }

    /// What goes over the network to say that nothing more comes.
    pub fn close_notify(&mut self) -> Vec<u8> {
        self.0.send_close_notify();
        self.out()
    }

    fn out(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.0.wants_write() {
            self.0.write_tls(&mut out).unwrap();
        }
        out
    }

    /// What the server says, once that is so many bytes.
    pub fn read(&mut self, stream: &mut impl Read, bytes: usize) -> std::io::Result<Vec<u8>> {
        let mut said = Vec::new();
        while said.len() < bytes && self.read_more(stream, &mut said)? {}
        Ok(said)
    }

    /// What the server says until it ends the connection; the error when it does not do so in the
    /// time `stream` has.
    pub fn read_to_end(&mut self, stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
        let mut said = Vec::new();
        while self.read_more(stream, &mut said)? {}
        Ok(said)
    }

    /// Appends what the server says next; false when that is its last.
    fn read_more(&mut self, stream: &mut impl Read, said: &mut Vec<u8>) -> std::io::Result<bool> {
        let read = self.0.read_tls(stream)?;
        let state = self.0.process_new_packets().map_err(std::io::Error::other)?;
        let before = said.len();
        said.resize(before + state.plaintext_bytes_to_read(), 0);
        self.0.reader().read_exact(&mut said[before..])?;
        Ok(read > 0 && !state.peer_has_closed())
    }
}
