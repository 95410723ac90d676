//! A connection with TLS or without, for who serves both alike.

use std::io;

use super::session::TlsSession;

/// What is between a connection's bytes and its socket.
pub enum TlsOrPlain {
    /// Nothing.
    Plain,
    /// TLS.
    Tls(Box<TlsSession>),
}

impl TlsOrPlain {
    /// Whether what the socket gives is not yet what the client said.
    pub fn is_tls(&self) -> bool {
        matches!(self, TlsOrPlain::Tls(_))
    }

    /// As [`TlsSession::open`].
    pub fn open(&mut self, raw: &[u8], input: &mut Vec<u8>) -> bool {
        match self {
            TlsOrPlain::Tls(session) => session.open(raw, input),
            TlsOrPlain::Plain => {
                input.extend_from_slice(raw);
                true
            }
        }
    }

    /// As [`TlsSession::seal`].
    ///
    /// # Errors
    /// Those of [`TlsSession::seal`].
    pub fn seal(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        match self {
            TlsOrPlain::Tls(session) => session.seal(plain),
            TlsOrPlain::Plain => Ok(()),
        }
    }

    /// Whether TLS has something to say of its own.
    pub fn wants_write(&self) -> bool {
        matches!(self, TlsOrPlain::Tls(session) if session.wants_write())
    }

    /// Says that nothing more will come.
    pub fn close(&mut self) {
        if let TlsOrPlain::Tls(session) = self {
            session.close();
        }
    }
}
