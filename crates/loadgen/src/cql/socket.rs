//! A non-blocking connection with many requests in flight.

use std::{
    io::{self, Read, Write},
    os::fd::BorrowedFd,
};

use afterglow_cql::frame::{Decoder, Encoder, Flags, HEADER_LEN, Header, Opcode, Version};

use super::{Connection, CqlError, wire::Wire};

const READ_SIZE: usize = 256 * 1024;

/// The socket, what is to be sent, and what has come of an envelope that is not whole yet.
pub(super) struct Socket {
    wire: Wire,
    /// Envelopes to be framed (v5) or bytes to be sent (v4).
    pub(super) out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Bytes of `input` that are filled.
    filled: usize,
    /// Segments of v5; v4 goes without: its envelopes are found by their headers where they lie.
    segments: Option<(Decoder, Encoder, Vec<u8>)>,
}

impl Socket {
    /// Takes over a connection after its handshake.
    pub(super) fn new(connection: Connection) -> io::Result<Self> {
        let Connection { wire, decoder, encoder, .. } = connection;
        wire.set_nonblocking()?;
        let segments = encoder.has_segments().then(|| (decoder, encoder, Vec::new()));
        Ok(Self { wire, out: Vec::new(), sent: 0, input: vec![0; READ_SIZE], filled: 0, segments })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wire.fd()
    }

    /// Sends what is to be sent as far as the system takes it. True when all of it is gone.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Self { wire, out, sent, segments, .. } = self;
        let bytes = match segments {
            None => out,
            Some((_, encoder, framed)) => {
                // Whole envelopes only; a stalled write keeps its framed bytes and frames the rest
                // behind them.
                for envelope in Envelopes(out) {
                    encoder.push_encoded(envelope);
                }
                out.clear();
                if !encoder.is_empty() {
                    framed.extend_from_slice(&encoder.take());
                }
                framed
            }
        };
        while *sent < bytes.len() {
            match wire.write(&bytes[*sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => *sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        match wire.flush() {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
        bytes.clear();
        *sent = 0;
        Ok(true)
    }

    /// Reads once, or until TLS holds nothing back, and hands every whole answer to `each`. An
    /// error also when the server has closed.
    pub(super) fn receive(
        &mut self,
        mut each: impl FnMut(&Header, &[u8]) -> Result<(), CqlError>,
    ) -> Result<(), Failure> {
        self.receive_once(&mut each)?;
        while self.wire.holds_back() {
            self.receive_once(&mut each)?;
        }
        Ok(())
    }

    fn receive_once(
        &mut self,
        mut each: impl FnMut(&Header, &[u8]) -> Result<(), CqlError>,
    ) -> Result<(), Failure> {
        let n = match self.wire.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(Failure::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => n,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                return Ok(());
            }
            Err(e) => return Err(Failure::Lost(e)),
        };
        if let Some((decoder, ..)) = &mut self.segments {
            decoder.feed(&self.input[..n]);
            while let Some(envelope) =
                decoder.next_envelope().map_err(|e| Failure::Cql(e.into()))?
            {
                each(&envelope.header, &envelope.body).map_err(Failure::Cql)?;
            }
            return Ok(());
        }
        self.filled += n;
        let mut whole = Envelopes(&self.input[..self.filled]);
        for envelope in &mut whole {
            each(&header(envelope)?, &envelope[HEADER_LEN..]).map_err(Failure::Cql)?;
        }
        let rest = whole.0.len();
        let need = if rest >= HEADER_LEN { envelope_len(whole.0) } else { 0 };
        self.input.copy_within(self.filled - rest..self.filled, 0);
        self.filled = rest;
        if need > self.input.len() {
            self.input.resize(need, 0);
        }
        Ok(())
    }
}

/// Why a socket is of no use any more.
#[derive(Debug)]
pub(super) enum Failure {
    /// Closed or broken: connecting anew may help.
    Lost(io::Error),
    /// The server has forgotten our prepared statements.
    Unprepared,
    /// What came is not what it should be.
    Cql(CqlError),
}

/// Whole envelopes at the front of a buffer; what is left is the start of one.
struct Envelopes<'a>(&'a [u8]);

impl<'a> Iterator for Envelopes<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.len() < HEADER_LEN || self.0.len() < envelope_len(self.0) {
            return None;
        }
        let (envelope, rest) = self.0.split_at(envelope_len(self.0));
        self.0 = rest;
        Some(envelope)
    }
}

/// Length of the envelope whose header starts `bytes`.
fn envelope_len(bytes: &[u8]) -> usize {
    HEADER_LEN + u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]) as usize
}

fn header(envelope: &[u8]) -> Result<Header, Failure> {
    let stream = i16::from_be_bytes([envelope[2], envelope[3]]);
    match (Version::from_u8(envelope[0] & 0x7F), Opcode::from_u8(envelope[4])) {
        (Some(version), Some(opcode)) => {
            Ok(Header { version, flags: Flags(envelope[1]), stream, opcode })
        }
        _ => Err(Failure::Cql(CqlError::Unexpected(format!(
            "header {:02X?}",
            &envelope[..HEADER_LEN]
        )))),
    }
}
