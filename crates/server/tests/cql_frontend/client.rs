//! A client that sees every byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{
    Compression, Decoder, Encoder, Envelope, Flags, Header, Opcode, Version,
};
use afterglow_cql::message::{self, Consistency, Prepare, Query, QueryParams, Startup};
use afterglow_cql::response::{self, Response, ResultBody};

/// An answer may take this long before a test is given up; nothing waits for it when all goes well.
const GIVE_UP: Duration = Duration::from_secs(120);

/// A client.
pub struct Client {
    pub stream: TcpStream,
    pub version: Version,
    /// Bytes that came so far.
    pub received: usize,
    decoder: Decoder,
    encoder: Encoder,
}

impl Client {
    /// Connects and says nothing.
    pub fn connect(address: SocketAddr, version: Version) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(GIVE_UP)).unwrap();
        Self {
            stream,
            version,
            received: 0,
            decoder: Decoder::for_responses(),
            encoder: Encoder::new(),
        }
    }

    /// Connects and makes the handshake.
    pub fn start(address: SocketAddr, version: Version) -> Self {
        let mut client = Self::connect(address, version);
        assert_eq!(client.startup().header.opcode, Opcode::Ready);
        client
    }

    /// Sends STARTUP; switches to segments if the answer says so.
    pub fn startup(&mut self) -> Envelope {
        self.startup_with(None)
    }

    /// Sends STARTUP that asks for compression; from the answer on both sides may compress.
    pub fn startup_with(&mut self, compression: Option<Compression>) -> Envelope {
        self.startup_saying(compression, &[])
    }

    /// As above, with more options.
    pub fn startup_saying(
        &mut self,
        compression: Option<Compression>,
        more: &[(&str, &str)],
    ) -> Envelope {
        let mut options = vec![("CQL_VERSION", "3.0.0")];
        options.extend(more);
        options.extend(compression.map(|compression| match compression {
            Compression::Lz4 => ("COMPRESSION", "lz4"),
            Compression::Snappy => ("COMPRESSION", "snappy"),
        }));
        let mut body = Vec::new();
        Startup::encode(&options, &mut body);
        self.send(0, Opcode::Startup, &body);
        let answer = self.receive();
        let opens = matches!(answer.header.opcode, Opcode::Ready | Opcode::Authenticate);
        if let (true, Some(compression)) = (opens, compression) {
            self.decoder.set_compression(compression);
            self.encoder.set_compression(compression);
        }
        if opens && self.version.has_segments() {
            self.decoder.switch_to_segments();
            self.encoder.switch_to_segments();
        }
        answer
    }

    pub fn encode(&mut self, stream: i16, opcode: Opcode, body: &[u8]) -> Vec<u8> {
        self.encoder.push(&Header::new(self.version, stream, opcode), body);
        self.encoder.take()
    }

    /// Many requests as one piece.
    pub fn encode_all<'a>(
        &mut self,
        opcode: Opcode,
        requests: impl Iterator<Item = (i16, &'a [u8])>,
    ) -> Vec<u8> {
        for (stream, body) in requests {
            self.encoder.push(&Header::new(self.version, stream, opcode), body);
        }
        self.encoder.take()
    }

    /// Sends a request with flags.
    pub fn send_flagged(&mut self, stream: i16, flags: Flags, opcode: Opcode, body: &[u8]) {
        self.encoder.push(&Header { flags, ..Header::new(self.version, stream, opcode) }, body);
        self.stream.write_all(&self.encoder.take()).unwrap();
    }

    pub fn send(&mut self, stream: i16, opcode: Opcode, body: &[u8]) {
        let bytes = self.encode(stream, opcode, body);
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn query_body(&self, text: &str) -> Vec<u8> {
        let mut body = Vec::new();
        Query { text, params: QueryParams::new(Consistency::One) }.encode(self.version, &mut body);
        body
    }

    pub fn query(&mut self, stream: i16, text: &str) {
        let body = self.query_body(text);
        self.send(stream, Opcode::Query, &body);
    }

    pub fn prepare(&mut self, text: &str) -> Envelope {
        let mut body = Vec::new();
        Prepare { text, keyspace: None }.encode(self.version, &mut body);
        self.send(1, Opcode::Prepare, &body);
        self.receive()
    }

    pub fn execute(&mut self, stream: i16, id: &[u8]) {
        let mut body = Vec::new();
        let params = QueryParams::new(Consistency::One);
        message::Execute { id, result_metadata_id: Some(b"rm"), params }
            .encode(self.version, &mut body);
        self.send(stream, Opcode::Execute, &body);
    }

    pub fn receive(&mut self) -> Envelope {
        self.try_receive().expect("the front end keeps the connection")
    }

    /// The next envelope; `None` when the connection was closed.
    pub fn try_receive(&mut self) -> Option<Envelope> {
        let mut buffer = [0; 65536];
        loop {
            if let Some(envelope) = self.decoder.next_envelope().unwrap() {
                return Some(envelope);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(read) => {
                    self.received += read;
                    self.decoder.feed(&buffer[..read]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// Sends a query and gives the one text it returns.
    pub fn ask(&mut self, text: &str) -> String {
        self.query(7, text);
        let answer = self.receive();
        assert_eq!(answer.header.stream, 7);
        text_of(&answer)
    }
}

/// The one text of an answer.
pub fn text_of(answer: &Envelope) -> String {
    let (_, message) = response::split(&answer.header, &answer.body).unwrap();
    match Response::parse(&answer.header, message).unwrap() {
        Response::Result(ResultBody::Rows(rows)) => {
            let row = rows.iter().next().unwrap().unwrap();
            String::from_utf8(row.cell(0).unwrap().unwrap().to_vec()).unwrap()
        }
        other => panic!("not rows: {other:?}"),
    }
}

/// The error that an answer is, with its text.
pub fn error_of(answer: &Envelope) -> (ErrorCode, String) {
    let (_, message) = response::split(&answer.header, &answer.body).unwrap();
    match Response::parse(&answer.header, message).unwrap() {
        Response::Error(error) => (error.code, error.message.to_owned()),
        other => panic!("not an error: {other:?}"),
    }
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + GIVE_UP;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
