//! The half of a connection that answers, from any thread: whole envelopes, in the order in which
//! they are pushed.

use std::{
    io::{self, Write},
    net::{Shutdown, TcpStream},
    sync::Mutex,
};

use afterglow_cql::frame::{Encoder, Header, Opcode};

use super::lock::lock;

pub struct Wire(Mutex<Writing>);

struct Writing {
    stream: TcpStream,
    encoder: Encoder,
}

impl Wire {
    /// The answering half of a connection that has just been accepted.
    pub fn new(stream: TcpStream) -> Self {
        Self(Mutex::new(Writing { stream, encoder: Encoder::new() }))
    }

    /// Appends an envelope, to be sent by [`Wire::flush`]. What opens a connection of v5 is the
    /// last that is not in segments.
    pub fn push(&self, header: &Header, body: &[u8]) {
        let encoder = &mut lock(&self.0).encoder;
        encoder.push(header, body);
        let opens = matches!(header.opcode, Opcode::Ready | Opcode::Authenticate);
        if opens && header.version.has_segments() {
            encoder.switch_to_segments();
        }
    }

    /// Sends what was pushed.
    ///
    /// # Errors
    /// The client has gone.
    pub fn flush(&self) -> io::Result<()> {
        let Writing { stream, encoder } = &mut *lock(&self.0);
        match encoder.is_empty() {
            true => Ok(()),
            false => stream.write_all(&encoder.take()),
        }
    }

    /// Sends what was pushed and an envelope.
    ///
    /// # Errors
    /// The client has gone.
    pub fn send(&self, header: &Header, body: &[u8]) -> io::Result<()> {
        self.push(header, body);
        self.flush()
    }

    /// Sends bytes that are in no segment.
    ///
    /// # Errors
    /// The client has gone.
    pub fn send_bare(&self, bytes: &[u8]) -> io::Result<()> {
        self.flush()?;
        lock(&self.0).stream.write_all(bytes)
    }

    /// How many bytes were pushed and not sent.
    pub fn waiting(&self) -> usize {
        lock(&self.0).encoder.len()
    }

    /// Ends the connection, both ways.
    pub fn hang_up(&self) {
        // One that is closed already is closed.
        let _ = lock(&self.0).stream.shutdown(Shutdown::Both);
    }
}
