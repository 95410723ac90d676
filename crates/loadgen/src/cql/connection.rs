//! A blocking connection: one request at a time.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

use afterglow_cql::{
    frame::{Decoder, Encoder, Envelope, Flags, Header, Opcode, Version, notation::Reader},
    message::{AuthResponse, Consistency, Execute, Prepare, Query, QueryParams, Startup},
    response::{self, ResultBody},
};

use super::answer::{Answer, rows};
use super::error::CqlError;
use super::wire::{ServerCa, Wire};

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Protocol version to speak.
    pub version: Version,
    /// User and password, for servers that ask.
    pub credentials: Option<(String, String)>,
    /// Longest time to wait for the connection and for each answer.
    pub timeout: Duration,
    /// Speaks TLS with the servers that this trusts; `None`: speaks none.
    pub tls: Option<ServerCa>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let timeout = Duration::from_secs(10);
        Self { version: Version::V4, credentials: None, timeout, tls: None }
    }
}

/// A prepared statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The server's id.
    pub id: Vec<u8>,
    /// The id of its result's metadata (v5).
    pub result_metadata_id: Option<Vec<u8>>,
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Connection {
    pub(super) wire: Wire,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    address: String,
    version: Version,
}

impl Connection {
    /// Connects to `address` (`host:port`), with TLS if that is wanted, speaks STARTUP and
    /// authenticates if asked to.
    pub fn open(address: &str, options: &ConnectOptions) -> Result<Self, CqlError> {
        let stream = connect(address, options.timeout)
            .map_err(|source| CqlError::Connect { address: address.to_owned(), source })?;
        let wire = match &options.tls {
            Some(ca) => Wire::secure(stream, address, ca)?,
            None => Wire::Plain(stream),
        };
        let mut connection = Self {
            wire,
            decoder: Decoder::for_responses(),
            encoder: Encoder::new(),
            address: address.to_owned(),
            version: options.version,
        };
        connection.start(options)?;
        Ok(connection)
    }

    fn start(&mut self, options: &ConnectOptions) -> Result<(), CqlError> {
        let startup = [("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", "afterglow-loadgen")];
        let first = self.request(Opcode::Startup, |out| Startup::encode(&startup, out))?;
        if self.version.has_segments() && first.header.opcode != Opcode::Error {
            self.decoder.switch_to_segments();
            self.encoder.switch_to_segments();
        }
        match first.header.opcode {
            Opcode::Ready => Ok(()),
            Opcode::Authenticate => self.authenticate(&first, options),
            _ => Err(unexpected(&first)),
        }
    }

    fn authenticate(
        &mut self,
        demand: &Envelope,
        options: &ConnectOptions,
    ) -> Result<(), CqlError> {
        let Some((user, password)) = &options.credentials else {
            return Err(CqlError::Authentication(Reader::new(&demand.body).string()?.to_owned()));
        };
        let token = AuthResponse::plain(user, password);
        let answer = self.request(Opcode::AuthResponse, |out| {
            AuthResponse { token: Some(&token) }.encode(out)
        })?;
        if answer.header.opcode == Opcode::AuthSuccess { Ok(()) } else { Err(unexpected(&answer)) }
    }

    /// The protocol version spoken.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Runs a statement and returns its answer's rows (none for statements without).
    pub fn query(
        &mut self,
        text: &str,
        consistency: Consistency,
    ) -> Result<Vec<OwnedRow>, CqlError> {
        let version = self.version;
        let query = Query { text, params: QueryParams::new(consistency) };
        let answer = self.request(Opcode::Query, |out| query.encode(version, out))?;
        owned_rows(&answer)
    }

    /// Prepares a statement.
    pub fn prepare(&mut self, text: &str) -> Result<Prepared, CqlError> {
        let version = self.version;
        let prepare = Prepare { text, keyspace: None };
        let answer = self.request(Opcode::Prepare, |out| prepare.encode(version, out))?;
        if answer.header.opcode != Opcode::Result {
            return Err(unexpected(&answer));
        }
        let (_, message) = response::split(&answer.header, &answer.body)?;
        let ResultBody::Prepared(prepared) = ResultBody::parse(version, message)? else {
            return Err(unexpected(&answer));
        };
        let result_metadata_id = prepared.result_metadata_id.map(<[u8]>::to_vec);
        Ok(Prepared { id: prepared.id.to_vec(), result_metadata_id })
    }

    /// Executes a prepared statement.
    pub fn execute(
        &mut self,
        prepared: &Prepared,
        params: &QueryParams<'_>,
    ) -> Result<Vec<OwnedRow>, CqlError> {
        let version = self.version;
        let answer = self.request(Opcode::Execute, |out| prepared.encode(version, params, out))?;
        owned_rows(&answer)
    }

    /// Makes `keyspace` (one copy of each row) and `table` of `columns` where they are missing, and
    /// empties the table. Do it where the policy of the table is already in force.
    pub fn empty_table(
        &mut self,
        keyspace: &str,
        table: &str,
        columns: &str,
    ) -> Result<(), CqlError> {
        for statement in [
            format!(
                "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = \
                 {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            ),
            format!("CREATE TABLE IF NOT EXISTS {keyspace}.{table} ({columns})"),
            format!("TRUNCATE {keyspace}.{table}"),
        ] {
            self.query(&statement, Consistency::Quorum)?;
        }
        Ok(())
    }

    /// Asks OPTIONS: the smallest question a CQL server answers.
    pub fn ping(&mut self) -> Result<(), CqlError> {
        let answer = self.request(Opcode::Options, |_| ())?;
        if answer.header.opcode == Opcode::Supported { Ok(()) } else { Err(unexpected(&answer)) }
    }

    fn request(
        &mut self,
        opcode: Opcode,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Envelope, CqlError> {
        self.call(Flags::NONE, opcode, body)
    }

    /// Sends any request and returns its answer, whatever it says.
    ///
    /// # Errors
    /// No answer.
    pub fn call(
        &mut self,
        flags: Flags,
        opcode: Opcode,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Envelope, CqlError> {
        self.encoder.push_with(&Header { flags, ..Header::new(self.version, 0, opcode) }, body);
        let bytes = self.encoder.take();
        let sent = self.wire.write_all(&bytes).and_then(|()| self.wire.flush());
        sent.map_err(|e| self.lost(e))?;
        loop {
            match self.decoder.next_envelope()? {
                // A push message (stream -1) is nobody's answer.
                Some(envelope) if envelope.header.stream < 0 => continue,
                Some(envelope) => return Ok(envelope),
                None => self.receive()?,
            }
        }
    }

    fn receive(&mut self) -> Result<(), CqlError> {
        let mut buffer = [0; 16 * 1024];
        match self.wire.read(&mut buffer) {
            Ok(0) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => {
                self.decoder.feed(&buffer[..n]);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(self.lost(e)),
        }
    }

    fn lost(&self, source: io::Error) -> CqlError {
        CqlError::Lost { address: self.address.clone(), source }
    }
}

impl Prepared {
    /// Appends the body of an EXECUTE of this statement.
    pub fn encode(&self, version: Version, params: &QueryParams<'_>, out: &mut Vec<u8>) {
        let result_metadata_id = self.result_metadata_id.as_deref();
        Execute { id: &self.id, result_metadata_id, params: *params }.encode(version, out);
    }
}

/// A row that owns its cells.
pub type OwnedRow = Vec<Option<Vec<u8>>>;

fn owned_rows(answer: &Envelope) -> Result<Vec<OwnedRow>, CqlError> {
    match Answer::parse(&answer.header, &answer.body)? {
        Answer::Done => Ok(Vec::new()),
        Answer::Error(error) => Err(error.into()),
        Answer::Rows(message) => {
            let own = |row: response::Row<'_>| row.cells().map(|c| c.map(<[u8]>::to_vec)).collect();
            let rows = rows(answer.header.version, message)?;
            rows.iter().map(|row| Ok(own(row?))).collect()
        }
    }
}

/// The error that an answer other than the hoped-for one stands for.
fn unexpected(answer: &Envelope) -> CqlError {
    match Answer::parse(&answer.header, &answer.body) {
        Ok(Answer::Error(error)) => error.into(),
        _ => CqlError::Unexpected(answer.header.opcode.to_string()),
    }
}

fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()?.collect::<Vec<SocketAddr>>() {
        match TcpStream::connect_timeout(&candidate, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
