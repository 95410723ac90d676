//! A database that does what a test says, and a client that sees every byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterglow_cql::error::{ErrorCode, ProtocolError};
use afterglow_cql::frame::{
    Compression, Decoder, Encoder, Envelope, Flags, FrameError, Header, Opcode, Version,
};
use afterglow_cql::message::{self, Consistency, Prepare, Query, QueryParams, Request, Startup};
use afterglow_cql::response::{
    ColumnSpec, ErrorBody, MetadataOut, encode_prepared, encode_rows_start, encode_set_keyspace, encode_void,
};

/// A reply may take this long before a test is given up; nothing waits for it when all goes well.
const GIVE_UP: Duration = Duration::from_secs(20);

/// One request, as the database sees it.
pub struct Ask {
    /// Which of its connections, in the order they came.
    pub connection: usize,
    pub envelope: Envelope,
    /// Text of a QUERY or PREPARE.
    pub text: String,
    writer: Arc<Mutex<Writer>>,
}

struct Writer {
    stream: TcpStream,
    encoder: Encoder,
}

impl Ask {
    pub fn opcode(&self) -> Opcode {
        self.envelope.header.opcode
    }

    pub fn version(&self) -> Version {
        self.envelope.header.version
    }

    /// Level of a QUERY.
    pub fn consistency(&self) -> Option<Consistency> {
        match message::parse(&self.envelope.header, &self.envelope.body).unwrap().1 {
            Request::Query(query) => Some(query.params.consistency),
            _ => None,
        }
    }

    /// Answers; may be called at any time, from any thread, for requests of a connection in any order.
    pub fn reply(&self, opcode: Opcode, body: &[u8]) {
        let header = Header::new(self.version(), self.envelope.header.stream, opcode);
        self.push(&header, body);
        let opens = matches!(opcode, Opcode::Ready | Opcode::Authenticate);
        if opens && self.version().has_segments() {
            self.writer.lock().unwrap().encoder.switch_to_segments();
        }
    }

    /// Answers a traced request with the id of its trace.
    pub fn reply_traced(&self, trace: [u8; 16], opcode: Opcode, body: &[u8]) {
        let header = Header::new(self.version(), self.envelope.header.stream, opcode);
        self.push(&Header { flags: Flags::TRACING, ..header }, &[&trace[..], body].concat());
    }

    /// Sends an event on the connection of this request.
    pub fn event(&self, body: &[u8]) {
        self.push(&Header::new(self.version(), -1, Opcode::Event), body);
    }

    fn push(&self, header: &Header, body: &[u8]) {
        let mut writer = self.writer.lock().unwrap();
        writer.encoder.push(header, body);
        let bytes = writer.encoder.take();
        // A proxy that has gone away is the test's business.
        let _ = writer.stream.write_all(&bytes);
    }

    pub fn error(&self, error: &ErrorBody<'_>) {
        let mut body = Vec::new();
        error.encode(&mut body);
        self.reply(Opcode::Error, &body);
    }

    /// One row with one text.
    pub fn text_row(&self, text: &str) {
        self.reply(Opcode::Result, &rows(self.version(), &[("v", TEXT)], &[&[text.as_bytes()]]));
    }

    pub fn hang_up(&self) {
        let _ = self.writer.lock().unwrap().stream.shutdown(std::net::Shutdown::Both);
    }
}

pub const TEXT: &[u8] = &[0, 0x0d];
const INET: &[u8] = &[0, 0x10];
const INT: &[u8] = &[0, 0x09];
const UUID: &[u8] = &[0, 0x0c];

/// A `set<text>`; of twice as many, a `map<text, text>`.
pub fn text_set(count: i32, items: &[&str]) -> Vec<u8> {
    let mut out = count.to_be_bytes().to_vec();
    for item in items {
        out.extend((item.len() as i32).to_be_bytes());
        out.extend(item.as_bytes());
    }
    out
}

pub fn columns<'a>(names: &[(&'a str, &'a [u8])]) -> Vec<ColumnSpec<'a>> {
    let column = |&(name, type_bytes)| ColumnSpec { keyspace: "ks", table: "t", name, type_bytes };
    names.iter().map(column).collect()
}

pub fn rows(version: Version, names: &[(&str, &[u8])], rows: &[&[&[u8]]]) -> Vec<u8> {
    let mut out = Vec::new();
    let columns = columns(names);
    encode_rows_start(version, &MetadataOut::of_table(&columns), rows.len(), &mut out);
    for cell in rows.iter().flat_map(|row| row.iter()) {
        out.extend_from_slice(&(cell.len() as i32).to_be_bytes());
        out.extend_from_slice(cell);
    }
    out
}

pub fn prepared(version: Version, id: &[u8], result: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let columns = columns(result);
    encode_prepared(version, id, Some(b"rm"), &[], &[], &MetadataOut::of_table(&columns), &mut out);
    out
}

type Handler = dyn Fn(&Arc<Ask>) -> bool + Send + Sync;

/// The database.
pub struct Fake {
    pub address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    connections: Arc<AtomicUsize>,
    live: Arc<AtomicUsize>,
    down: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Fake {
    /// Starts one that speaks up to `highest` and answers what `handler` does not want (it returns false) as usual.
    pub fn start(highest: Version, handler: impl Fn(&Arc<Ask>) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let handler: Arc<Handler> = Arc::new(handler);
        let open = Arc::<Mutex<Vec<TcpStream>>>::default();
        let connections = Arc::<AtomicUsize>::default();
        let (live, down) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (alive, dead) = (live.clone(), down.clone());
        let refused = Arc::<AtomicUsize>::default();
        let refusals = refused.clone();
        let (all, counter) = (open.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if dead.load(Ordering::SeqCst) {
                    refusals.fetch_add(1, Ordering::SeqCst);
                    continue; // and so it is closed
                }
                let number = counter.fetch_add(1, Ordering::SeqCst);
                all.lock().unwrap().push(stream.try_clone().unwrap());
                let handler = handler.clone();
                let alive = alive.clone();
                alive.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    serve(stream, number, highest, &*handler);
                    alive.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, open, connections, live, down, refused }
    }

    /// From now on nobody can connect, or somebody can again; all connections are cut.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
        self.cut();
    }

    /// How many connections were closed at once while it was down.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    /// How many connections there are now.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, connection: usize, highest: Version, handler: &Handler) {
    let writer = Writer { stream: stream.try_clone().unwrap(), encoder: Encoder::new() };
    let writer = Arc::new(Mutex::new(writer));
    let mut decoder = Decoder::for_requests();
    let mut buffer = [0; 4096];
    loop {
        let read = match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        decoder.feed(&buffer[..read]);
        while let Some(envelope) = decoder.next_envelope().expect("the proxy sends well-formed envelopes") {
            if envelope.header.version > highest {
                let text = "Invalid or unsupported protocol version (5); supported versions are (3/v3, 4/v4)";
                let error = ProtocolError::new(text);
                let refusal = FrameError {
                    error,
                    stream: 0,
                    version: highest.as_u8(),
                    flags: Flags::NONE,
                    fatal: true,
                };
                let _ = stream.write_all(&refusal.reply());
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            let text = match message::parse(&envelope.header, &envelope.body).unwrap().1 {
                Request::Query(query) => query.text.to_owned(),
                Request::Prepare(prepare) => prepare.text.to_owned(),
                _ => String::new(),
            };
            let ask = Arc::new(Ask { connection, envelope, text, writer: writer.clone() });
            if ask.opcode() == Opcode::Startup && ask.version().has_segments() {
                decoder.switch_to_segments();
            }
            if !handler(&ask) {
                usual(&ask);
            }
        }
    }
}

/// What a database with an empty schema answers.
fn usual(ask: &Ask) {
    let version = ask.version();
    let text = ask.text.as_str();
    match ask.opcode() {
        Opcode::Startup | Opcode::Register => ask.reply(Opcode::Ready, &[]),
        Opcode::Query if text.starts_with("USE ") => {
            let mut body = Vec::new();
            encode_set_keyspace(text[4..].trim_matches('"'), &mut body);
            ask.reply(Opcode::Result, &body);
        }
        Opcode::Query if text.contains("system.local") => {
            let columns = [
                ("key", TEXT),
                ("cluster_name", TEXT),
                ("release_version", TEXT),
                ("rpc_address", INET),
                ("rpc_port", INT),
                ("host_id", UUID),
            ];
            let row: [&[u8]; 6] =
                [b"local", b"fake", b"5.0.5", &[10, 0, 0, 1], &[0, 0, 0x23, 0x52], &[1; 16]];
            ask.reply(Opcode::Result, &rows(version, &columns, &[&row]));
        }
        Opcode::Query if text.contains("system.peers") => {
            ask.reply(Opcode::Result, &rows(version, &[("peer", INET)], &[&[&[10, 0, 0, 2]]]));
        }
        Opcode::Query if text.contains("system_schema.column_masks") => {
            ask.error(&ErrorBody::new(ErrorCode::Invalid, "unconfigured table column_masks"));
        }
        Opcode::Query if text.contains("system_schema") => {
            ask.reply(Opcode::Result, &rows(version, &[("keyspace_name", TEXT)], &[]));
        }
        Opcode::Prepare => ask.reply(Opcode::Result, &prepared(version, text.as_bytes(), &[("v", TEXT)])),
        Opcode::Options => ask.reply(Opcode::Supported, &[0, 0]),
        _ => {
            let mut body = Vec::new();
            encode_void(&mut body);
            ask.reply(Opcode::Result, &body);
        }
    }
}

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
        Self { stream, version, received: 0, decoder: Decoder::for_responses(), encoder: Encoder::new() }
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
        let mut options = vec![("CQL_VERSION", "3.0.0")];
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
        message::Execute { id, result_metadata_id: Some(b"rm"), params }.encode(self.version, &mut body);
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
    use afterglow_cql::response::{self, Response, ResultBody};
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
    use afterglow_cql::response::{self, Response};
    let (_, message) = response::split(&answer.header, &answer.body).unwrap();
    match Response::parse(&answer.header, message).unwrap() {
        Response::Error(error) => (error.code, error.message.to_owned()),
        other => panic!("not an error: {other:?}"),
    }
}
