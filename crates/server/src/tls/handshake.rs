//! The handshake, over a socket. Whoever calls bounds its time.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use compio::BufResult;
use compio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::session::TlsSession;
use super::turns::{HandshakeTurn, HandshakeTurns};
use crate::reactor::yield_now;

/// Read buffer of a handshake: a chain of certificates is a few kilobytes.
const READ_BUFFER: usize = 8 * 1024;
/// How long a message of a handshake may wait for its turn. Callers give the handshake longer.
const TURN_TIMEOUT: Duration = Duration::from_secs(4);
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
    /// It waited too long for its turn.
    #[error("too many TLS handshakes are under way")]
    Crowded,
    /// The socket.
    #[error("the connection broke during the TLS handshake: {0}")]
    Io(#[from] io::Error),
    /// TLS itself.
    #[error("the TLS handshake failed: {0}")]
    Tls(#[from] rustls::Error),
}

/// Makes the handshake. What the peer said right behind it is appended to `input`; false when that
/// was its last, as with [`TlsSession::open`]. `turns`: each message of the peer waits for its
/// turn. Nobody holds one while it waits for its peer.
///
/// # Errors
/// Why there is no TLS with the peer, which has been told.
pub async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite),
    session: &mut TlsSession,
    input: &mut Vec<u8>,
    turns: Option<&Rc<HandshakeTurns>>,
) -> Result<bool, HandshakeFault> {
    let mut buffer = Vec::with_capacity(READ_BUFFER);
    let mut first = None;
    loop {
        send(stream, session).await?;
        if !session.is_handshaking() {
            return Ok(true);
        }
        let BufResult(read, returned) = stream.read(buffer).await;
        buffer = returned;
        if read? == 0 {
            return Err(HandshakeFault::Closed);
        }
        first = first.or(buffer.first().copied());
        let turn = in_turn(turns).await?;
        let open = session.open(&buffer, input);
        drop(turn);
        if !open {
            // The alert, or our last message; whether it arrives or not, it is over.
            let _ = send(stream, session).await;
            if !session.is_handshaking() {
                return Ok(false);
            }
            return Err(match session.fault() {
                _ if first != Some(HANDSHAKE_RECORD) && !is_alert(first) => HandshakeFault::Plain,
                Some(fault) => fault.clone().into(),
                None => HandshakeFault::Closed,
            });
        }
        buffer.clear();
    }
}

/// Waits for a turn, and lets the reactor look after others first: a message may take it a
/// millisecond.
async fn in_turn(
    turns: Option<&Rc<HandshakeTurns>>,
) -> Result<Option<HandshakeTurn>, HandshakeFault> {
    let Some(turns) = turns else { return Ok(None) };
    let turn = compio::time::timeout(TURN_TIMEOUT, turns.take())
        .await
        .map_err(|_| HandshakeFault::Crowded)?;
    yield_now().await;
    Ok(Some(turn))
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
