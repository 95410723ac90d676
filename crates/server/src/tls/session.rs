//! One connection's TLS, sans-io: bytes from and to the socket go through a rustls connection.

use std::io::{self, BufRead, Write};

use rustls::Connection;

/// The TLS of one connection, of either side.
pub struct TlsSession {
    connection: Connection,
    /// Why it ended, where that was no proper end.
    fault: Option<rustls::Error>,
}

impl TlsSession {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, fault: None }
    }

    /// Takes what the socket gave and appends what the peer said. False when that was its last: it
    /// said so, or went on with what is no TLS. Nothing behind that counts, all before it does.
    /// There may be an alert to send.
    pub fn open(&mut self, raw: &[u8], input: &mut Vec<u8>) -> bool {
        let mut rest = raw;
        while !rest.is_empty() {
            // Once the peer has said that it is done, rustls takes nothing any more: no error, no
            // byte.
            if !matches!(self.connection.read_tls(&mut rest), Ok(1..)) {
                return false;
            }
            let state = self.connection.process_new_packets();
            let mut said = self.connection.reader();
            while let Ok(chunk @ [_, ..]) = said.fill_buf() {
                input.extend_from_slice(chunk);
                let len = chunk.len();
                said.consume(len);
            }
            match state {
                Ok(state) if !state.peer_has_closed() => {}
                Ok(_) => return false,
                Err(error) => {
                    self.fault.get_or_insert(error);
                    return false;
                }
            }
        }
        true
    }

    /// Makes `plain` what the socket is to be given, with whatever else TLS has to say.
    ///
    /// # Errors
    /// What rustls said, or that it takes nothing more.
    pub fn seal(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        let mut sealed = Vec::with_capacity(plain.len() + 64);
        let mut rest = &plain[..];
        loop {
            while self.connection.wants_write() {
                self.connection.write_tls(&mut sealed)?;
            }
            if rest.is_empty() {
                break;
            }
            match self.connection.writer().write(rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                taken => rest = &rest[taken..],
            }
        }
        *plain = sealed;
        Ok(())
    }

    /// Whether TLS has something to say of its own.
    pub fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Whether peer and we do not know each other yet.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Why the session ended, where that was no proper end.
    pub fn fault(&self) -> Option<&rustls::Error> {
        self.fault.as_ref()
    }

    /// Says that nothing more will come.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
    }
}
