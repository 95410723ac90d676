//! Requests that a test answers itself, at once or later, from any thread.

use std::{io, sync::Arc};

use afterglow_cql::{
    frame::{Envelope, Flags, Header, Opcode, Version},
    message::{self, Consistency, Request},
    response::{ColumnSpec, ErrorBody, MetadataOut, encode_prepared, encode_rows_start},
};

use super::wire::Wire;

/// Is shown every request before it is answered, and says whether it answers that one itself.
pub type Script = dyn Fn(&Arc<Ask>) -> bool + Send + Sync;

/// The option bytes of text, the type of most columns in scripts.
pub const TEXT: &[u8] = &[0, 0x0d];

/// One request, as the database sees it.
pub struct Ask {
    /// Which of the node's connections, in the order they came.
    pub connection: u64,
    /// All of it.
    pub envelope: Envelope,
    /// Text of a QUERY or PREPARE; of anything else empty.
    pub text: String,
    wire: Arc<Wire>,
}

impl Ask {
    pub(super) fn new(connection: u64, envelope: Envelope, wire: Arc<Wire>) -> Self {
        let text = match message::parse(&envelope.header, &envelope.body) {
            Ok((_, Request::Query(query))) => query.text.to_owned(),
            Ok((_, Request::Prepare(prepare))) => prepare.text.to_owned(),
            _ => String::new(),
        };
        Self { connection, envelope, text, wire }
    }

    /// What is asked for.
    pub fn opcode(&self) -> Opcode {
        self.envelope.header.opcode
    }

    /// The version of the request and its answer.
    pub fn version(&self) -> Version {
        self.envelope.header.version
    }

    /// Level of a QUERY, an EXECUTE or a BATCH.
    pub fn consistency(&self) -> Option<Consistency> {
        match message::parse(&self.envelope.header, &self.envelope.body) {
            Ok((_, Request::Query(query))) => Some(query.params.consistency),
            Ok((_, Request::Execute(execute))) => Some(execute.params.consistency),
            Ok((_, Request::Batch(batch))) => Some(batch.params.consistency),
            _ => None,
        }
    }

    /// Answers; requests of a connection may be answered in any order.
    pub fn reply(&self, opcode: Opcode, body: &[u8]) {
        self.send(&Header::new(self.version(), self.envelope.header.stream, opcode), body);
    }

    /// Answers a traced request with the id of its trace.
    pub fn reply_traced(&self, trace: [u8; 16], opcode: Opcode, body: &[u8]) {
        let header = Header::new(self.version(), self.envelope.header.stream, opcode);
        self.send(&Header { flags: Flags::TRACING, ..header }, &[&trace[..], body].concat());
    }

    /// Sends an event on the connection of this request.
    pub fn event(&self, body: &[u8]) {
        self.send(&Header::new(self.version(), -1, Opcode::Event), body);
    }

    /// Answers with an error.
    pub fn error(&self, error: &ErrorBody<'_>) {
        let mut body = Vec::new();
        error.encode(&mut body);
        self.reply(Opcode::Error, &body);
    }

    /// Answers with rows of `ks.t`: names and types of the columns, and the cells.
    pub fn rows(&self, columns: &[(&str, &[u8])], rows: &[&[&[u8]]]) {
        self.reply(Opcode::Result, &rows_body(self.version(), columns, rows));
    }

    /// Answers with one row with one text.
    pub fn text_row(&self, text: &str) {
        self.rows(&[("v", TEXT)], &[&[text.as_bytes()]]);
    }

    /// Answers a PREPARE of a statement of `ks.t` with its id, its markers and its columns. The
    /// first marker, if any, is the partition key. All columns are text.
    pub fn prepared<'n>(&self, id: &[u8], markers: &[&'n str], columns: &[&'n str]) {
        let specs = |names: &[&'n str]| -> Vec<ColumnSpec<'n>> {
            let spec =
                |name: &&'n str| ColumnSpec { keyspace: "ks", table: "t", name, type_bytes: TEXT };
            names.iter().map(spec).collect()
        };
        let (bound, result) = (specs(markers), specs(columns));
        let partition = if markers.is_empty() { &[][..] } else { &[0][..] };
        let metadata = MetadataOut::of_table(&result);
        let mut body = Vec::new();
        encode_prepared(self.version(), id, Some(b"rm"), partition, &bound, &metadata, &mut body);
        self.reply(Opcode::Result, &body);
    }

    /// Ends the connection instead.
    pub fn hang_up(&self) {
        self.wire.hang_up();
    }

    fn send(&self, header: &Header, body: &[u8]) {
        // A client that has gone away is the test's business.
        let _: io::Result<()> = self.wire.send(header, body);
    }
}

/// The body of a result of rows of `ks.t`: names and types of the columns, and the cells.
pub fn rows_body(version: Version, columns: &[(&str, &[u8])], rows: &[&[&[u8]]]) -> Vec<u8> {
    let spec = |&(name, type_bytes)| ColumnSpec { keyspace: "ks", table: "t", name, type_bytes };
    let columns: Vec<_> = columns.iter().map(spec).collect();
    let mut out = Vec::new();
    encode_rows_start(version, &MetadataOut::of_table(&columns), rows.len(), &mut out);
    for cell in rows.iter().flat_map(|row| row.iter()) {
        out.extend_from_slice(&(cell.len() as i32).to_be_bytes());
        out.extend_from_slice(cell);
    }
    out
}
