//! A client that does not wait for an answer before it asks again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use afterglow_cql::frame::{Decoder, Encoder, Envelope, Header, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams, Startup};

/// Its connection.
pub struct Pipelined {
    stream: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
}

impl Pipelined {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        let mut client =
            Self { stream, encoder: Encoder::new(), decoder: Decoder::for_responses() };
        client.push(0, Opcode::Startup, |body| Startup::encode(&[("CQL_VERSION", "3.0.0")], body));
        client.flush();
        assert_eq!(client.receive().header.opcode, Opcode::Ready);
        client
    }

    fn push(&mut self, stream: i16, opcode: Opcode, body: impl FnOnce(&mut Vec<u8>)) {
        self.encoder.push_with(&Header::new(Version::V4, stream, opcode), body);
    }

    fn flush(&mut self) {
        self.stream.write_all(&self.encoder.take()).unwrap();
    }

    pub fn ask(&mut self, stream: i16, text: &str) {
        self.ask_all(stream..stream + 1, text);
    }

    /// With a timestamp.
    pub fn ask_at(&mut self, stream: i16, text: &str, timestamp: i64) {
        let timestamp = Some(timestamp);
        let params = QueryParams { timestamp, ..QueryParams::new(Consistency::LocalQuorum) };
        self.push(stream, Opcode::Query, |body| {
            Query { text, params }.encode(Version::V4, body);
        });
        self.flush();
    }

    /// Asks the same on all of these streams, in one write.
    pub fn ask_all(&mut self, streams: std::ops::Range<i16>, text: &str) {
        let params = QueryParams::new(Consistency::LocalQuorum);
        for stream in streams {
            self.push(stream, Opcode::Query, |body| {
                Query { text, params }.encode(Version::V4, body);
            });
        }
        self.flush();
    }

    pub fn receive(&mut self) -> Envelope {
        let mut buffer = [0; 4096];
        loop {
            if let Some(envelope) = self.decoder.next_envelope().unwrap() {
                return envelope;
            }
            let read = self.stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the connection was closed");
            self.decoder.feed(&buffer[..read]);
        }
    }
}
