//! The handshake, over a socket. Whoever calls bounds its time.

use std::io;

use compio::BufResult;
use compio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::session::TlsSession;

/// Read buffer of a handshake: a chain of certificates is a few kilobytes.
const READ_BUFFER: usize = 8 * 1024;
/// The first byte of what is TLS: the type of a handshake record.
const HANDSHAKE_RECORD: u8 = 22;

/// Why there is no TLS with a peer.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeFault {
    /// What it says is no TLS from the first byte on.
    #[error("it speaks no TLS")]
    Plain,
    /// It hung up.
    #[error("it closed the connection during the TLS handshake")]
    Closed,
    /// It took too long.
    #[error("the TLS handshake took too long")]
    Late,
    /// Too many others made theirs.
    #[error("too many TLS handshakes are under way")]
    Crowded,
    /// The socket.
    #[error("the connection broke during the TLS handshake: {0}")]
    Io(#[from] io::Error),
    /// TLS itself.
    #[error("the TLS handshake failed: {0}")]
    Tls(#[from] rustls::Error),
}

/// Makes the handshake. What the peer said right behind it is appended to `input`.
///
/// # Errors
/// Why there is no TLS with the peer, which has been told.
pub async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite),
    session: &mut TlsSession,
    input: &mut Vec<u8>,
) -> Result<(), HandshakeFault> {
    let mut buffer = Vec::with_capacity(READ_BUFFER);
    let mut first = None;
    loop {
        send(stream, session).await?;
        if !session.is_handshaking() {
            return Ok(());
        }
        let BufResult(read, returned) = stream.read(buffer).await;
        buffer = returned;
        if read? == 0 {
            return Err(HandshakeFault::Closed);
        }
        first = first.or(buffer.first().copied());
        if !session.open(&buffer, input) {
            // The alert; whether it arrives or not, it is over.
            let _ = send(stream, session).await;
            return Err(match session.fault() {
                _ if first != Some(HANDSHAKE_RECORD) && !is_alert(first) => HandshakeFault::Plain,
                Some(fault) => fault.clone().into(),
                None => HandshakeFault::Closed,
            });
        }
        buffer.clear();
    }
}

/// A peer that likes nothing of what it is offered begins with an alert.
fn is_alert(first: Option<u8>) -> bool {
    first == Some(21)
}

async fn send(
    stream: &mut (impl AsyncRead + AsyncWrite),
    session: &mut TlsSession,
) -> io::Result<()> {
    let mut out = Vec::new();
    session.seal(&mut out)?;
    match out.is_empty() {
        true => Ok(()),
        false => stream.write_all(out).await.0,
    }
}
