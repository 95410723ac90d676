//! One connection's requests and their answers.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::{Arc, Mutex, atomic::Ordering},
    thread,
    time::SystemTime,
};

use afterglow_cql::frame::notation::Put;
use afterglow_cql::{
    error::ErrorCode,
    frame::{Decoder, Encoder, Envelope, Header, Opcode, Version, notation::Value},
    message::{self, Consistency, QueryParams, Request, StatementRef},
    negotiate,
    response::{
        self, ColumnSpec, ErrorBody, MetadataOut, SchemaChange, SchemaTarget, encode_prepared,
        encode_rows_start,
    },
};

use super::{Prepared, ServerShared, lock};
use crate::fake_backend::{
    StatementKind,
    exec::{self, Context, Reply},
    parse::parse,
    refusal::Refusal,
    statement::Statement,
    term::{Bound, type_bytes},
};
use afterglow_loadgen::rng::{Rng, mix};

/// A client's connection.
pub(super) struct Session<'a> {
    shared: &'a ServerShared,
    number: u64,
    stream: Arc<Mutex<TcpStream>>,
    encoder: Encoder,
    keyspace: Option<String>,
    user: Option<String>,
    /// The columns that the client of the EXECUTE under way knows (v5).
    knows: Option<Vec<u8>>,
    rng: Rng,
}

/// What becomes of a statement.
enum Fate {
    Answer { lie: bool },
    Timeout { happens: bool },
    Drop { happens: bool },
}

impl<'a> Session<'a> {
    /// Serves it to its end.
    pub(super) fn serve(mut stream: TcpStream, number: u64, shared: &'a ServerShared) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut session = Session {
            shared,
            number,
            stream: Arc::new(Mutex::new(stream.try_clone()?)),
            encoder: Encoder::new(),
            keyspace: None,
            user: None,
            knows: None,
            rng: Rng::new(lock(&shared.faults).seed ^ mix(number + 1)),
        };
        let outcome = session.run(&mut stream);
        lock(&shared.listeners).remove(&number);
        if let Some(user) = &session.user {
            lock(&shared.accounts).leave(user);
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
        outcome
    }

    fn run(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let mut decoder = Decoder::for_requests();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            loop {
                match decoder.next_envelope() {
                    Ok(Some(envelope)) => {
                        self.wait_while_frozen();
                        if !self.answer(&envelope)? {
                            return Ok(());
                        }
                        let v5 = envelope.header.version.has_segments();
                        if envelope.header.opcode == Opcode::Startup && v5 && !self.encoder.has_segments() {
                            self.flush()?;
                            decoder.switch_to_segments();
                            self.encoder.switch_to_segments();
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        lock(&self.stream).write_all(&error.reply())?;
                        if error.fatal {
                            return Ok(());
                        }
                    }
                }
            }
            self.flush()?;
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                n => decoder.feed(&buffer[..n]),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.encoder.is_empty() {
            return Ok(());
        }
        lock(&self.stream).write_all(&self.encoder.take())
    }

    /// Answers one request. False: close the connection instead.
    fn answer(&mut self, envelope: &Envelope) -> io::Result<bool> {
        let header = envelope.header;
        let reply = |opcode| negotiate::answer_to(&header, opcode);
        let request = match message::parse(&header, &envelope.body) {
            Ok((_, request)) => request,
            Err(error) => {
                let body = ErrorBody::new(error.code, &error.message);
                self.encoder.push_with(&reply(Opcode::Error), |out| body.encode(out));
                return Ok(true);
            }
        };
        let outcome = match request {
            Request::Startup(_) if lock(&self.shared.accounts).ask() => {
                self.encoder.push_with(&reply(Opcode::Authenticate), |out| {
                    response::encode_authenticate("org.apache.cassandra.auth.PasswordAuthenticator", out);
                });
                return Ok(true);
            }
            Request::Startup(_) => {
                self.encoder.push(&reply(Opcode::Ready), &[]);
                return Ok(true);
            }
            Request::Options => {
                self.encoder.push_with(&reply(Opcode::Supported), |out| {
                    negotiate::supported("3.4.7", Version::MAX, out)
                });
                return Ok(true);
            }
            Request::Register(_) => {
                let listener = (self.stream.clone(), header.version);
                lock(&self.shared.listeners).insert(self.number, listener);
                self.encoder.push(&reply(Opcode::Ready), &[]);
                return Ok(true);
            }
            Request::Prepare(prepare) => self.prepare(prepare.text, header.version),
            Request::Query(query) => match parse(query.text) {
                Ok(statement) => {
                    self.announce_untold(&statement)?;
                    match self.run_statement(&statement, &query.params, None, header.version) {
                        Some(outcome) => outcome,
                        None => return Ok(false),
                    }
                }
                Err(refusal) => Err(refusal),
            },
            Request::Execute(execute) => {
                let prepared = lock(&self.shared.prepared).get(execute.id).cloned();
                match prepared {
                    None => {
                        let body = ErrorBody::unprepared("Prepared query with that ID not found", execute.id);
                        self.encoder.push_with(&reply(Opcode::Error), |out| body.encode(out));
                        return Ok(true);
                    }
                    Some(p) => {
                        self.knows = execute.result_metadata_id.map(<[u8]>::to_vec);
                        match self.run_statement(&p.statement, &execute.params, Some(&p), header.version) {
                            Some(outcome) => outcome,
                            None => return Ok(false),
                        }
                    }
                }
            }
            Request::Batch(batch) => self.batch(&batch, header.version),
            Request::AuthResponse(response) => {
                let logged_in = lock(&self.shared.accounts).log_in(response.token.unwrap_or_default());
                match logged_in {
                    Ok(user) => {
                        self.user = Some(user);
                        self.encoder.push_with(&reply(Opcode::AuthSuccess), |out| {
                            response::encode_auth_token(None, out);
                        });
                        return Ok(true);
                    }
                    Err(refusal) => Err(refusal),
                }
            }
        };
        match outcome {
            Ok(body) => self.encoder.push(&reply(Opcode::Result), &body),
            Err(refusal) => {
                let body = error_body(&refusal);
                self.encoder.push_with(&reply(Opcode::Error), |out| body.encode(out));
            }
        }
        // Whoever pipelines gets answers in batches of at most this.
        if self.encoder.len() > 64 * 1024 {
            self.flush()?;
        }
        Ok(true)
    }

    fn fate(&mut self, statement: &Statement) -> Fate {
        let name = match statement {
            Statement::Select { table, .. } => table,
            Statement::Modify(m) => &m.table,
            _ => return Fate::Answer { lie: false },
        };
        let keyspace = name.keyspace.as_deref().or(self.keyspace.as_deref()).unwrap_or_default();
        let faults = lock(&self.shared.faults).clone();
        if keyspace.starts_with("system") || keyspace == "afterglow" {
            thread::sleep(faults.system_delay);
            return Fate::Answer { lie: false };
        }
        if !faults.delay.is_zero() {
            thread::sleep(faults.delay.mul_f64(2.0 * self.rng.next_f64()));
        }
        let write = matches!(statement, Statement::Modify(_));
        let happens = self.rng.below(2) == 0;
        if self.rng.next_f64() < faults.drops {
            Fate::Drop { happens }
        } else if write && self.rng.next_f64() < faults.write_timeouts {
            Fate::Timeout { happens }
        } else {
            Fate::Answer { lie: !write && self.rng.next_f64() < faults.stale_reads }
        }
    }

    /// `None`: the connection is to be dropped.
    fn run_statement(
        &mut self,
        statement: &Statement,
        params: &QueryParams<'_>,
        prepared: Option<&Prepared>,
        version: Version,
    ) -> Option<Result<Vec<u8>, Refusal>> {
        let fate = self.fate(statement);
        let names = prepared.map_or(&[][..], |p| &p.description.bound);
        let values = bound(params, names);
        let lie = matches!(fate, Fate::Answer { lie: true });
        let keyspace = prepared.and_then(|p| p.keyspace.clone()).or_else(|| self.keyspace.clone());
        let run = || {
            self.check_read(statement, keyspace.as_deref())?;
            let mut store = lock(&self.shared.store);
            let context =
                self.context(keyspace.as_deref(), &values, (params.timestamp, params.consistency), lie);
            exec::execute(&mut store, statement, &context)
        };
        self.shared.statements.fetch_add(1, Ordering::Relaxed);
        let outcome = match fate {
            Fate::Answer { .. } => run(),
            Fate::Drop { happens } => {
                if happens {
                    let _ = run();
                }
                return None;
            }
            Fate::Timeout { happens } => {
                if happens {
                    let _ = run();
                }
                let message = "Operation timed out - received only 0 responses.".to_owned();
                let code = lock(&self.shared.faults).write_error.unwrap_or(ErrorCode::WriteTimeout);
                Err(Refusal { code, message })
            }
        };
        if let Some(kind) = self.kind(statement) {
            self.wait_while_held(kind);
        }
        Some(outcome.map(|reply| self.encode(reply, params.skip_metadata, version)))
    }

    /// Whether the user may read the table of a SELECT.
    fn check_read(&self, statement: &Statement, keyspace: Option<&str>) -> Result<(), Refusal> {
        let (Some(user), Statement::Select { table, .. }) = (&self.user, statement) else { return Ok(()) };
        let keyspace = table.keyspace.as_deref().or(keyspace).unwrap_or_default();
        if keyspace.starts_with("system") || keyspace == "afterglow" {
            return Ok(());
        }
        lock(&self.shared.accounts).check(user, &format!("{keyspace}.{}", table.table))
    }

    fn kind(&self, statement: &Statement) -> Option<StatementKind> {
        let (kind, name) = match statement {
            Statement::Select { table, .. } => (StatementKind::Read, table),
            Statement::Modify(modify) => (StatementKind::Write, &modify.table),
            Statement::Batch(all) => (StatementKind::Write, &all.first()?.table),
            _ => return None,
        };
        let keyspace = name.keyspace.as_deref().or(self.keyspace.as_deref()).unwrap_or_default();
        match keyspace {
            "system_schema" => Some(StatementKind::Schema),
            "afterglow" => None,
            other => (!other.starts_with("system")).then_some(kind),
        }
    }

    fn wait_while_frozen(&self) {
        let mut holding = lock(&self.shared.holding);
        while holding.frozen && !self.shared.stopping.load(Ordering::SeqCst) {
            holding = self.shared.held.wait(holding).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    fn wait_while_held(&self, kind: StatementKind) {
        if kind == StatementKind::Read {
            self.shared.reads.fetch_add(1, Ordering::SeqCst);
        }
        let mut holding = lock(&self.shared.holding);
        if !holding.kinds.contains(&kind) {
            return;
        }
        holding.waiting.push(kind);
        self.shared.held.notify_all();
        while holding.kinds.contains(&kind) && !self.shared.stopping.load(Ordering::SeqCst) {
            holding = self.shared.held.wait(holding).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let at = holding.waiting.iter().position(|waiting| *waiting == kind);
        holding.waiting.swap_remove(at.expect("was put in above"));
    }

    fn context<'c>(
        &'c self,
        keyspace: Option<&'c str>,
        values: &'c [Bound],
        (timestamp, consistency): (Option<i64>, Consistency),
        lie: bool,
    ) -> Context<'c> {
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        let watch = self.shared.watch.get().map(|watch| &**watch);
        let identity = &self.shared.identity;
        Context { identity, keyspace, values, timestamp, consistency, now, lie, watch }
    }

    fn batch(&mut self, batch: &message::Batch<'_>, version: Version) -> Result<Vec<u8>, Refusal> {
        for item in batch.statements() {
            let (statement, keyspace) = match item.statement {
                StatementRef::Text(text) => (parse(text)?, self.keyspace.clone()),
                StatementRef::Prepared(id) => {
                    let prepared = lock(&self.shared.prepared).get(id).cloned();
                    let prepared = prepared.ok_or_else(|| Refusal {
                        code: ErrorCode::Unprepared,
                        message: "Prepared query with that ID not found".to_owned(),
                    })?;
                    (prepared.statement.clone(), prepared.keyspace.clone().or_else(|| self.keyspace.clone()))
                }
            };
            let values: Vec<Bound> = item.values.iter().map(|(_, v)| own(v)).collect();
            let level = (batch.params.timestamp, batch.params.consistency);
            let context = self.context(keyspace.as_deref(), &values, level, false);
            exec::execute(&mut lock(&self.shared.store), &statement, &context)?;
        }
        self.shared.statements.fetch_add(1, Ordering::Relaxed);
        Ok(self.encode(Reply::Void, false, version))
    }

    fn prepare(&mut self, text: &str, version: Version) -> Result<Vec<u8>, Refusal> {
        let statement = parse(text)?;
        let keyspace = self.keyspace.clone();
        let description = {
            let context = self.context(keyspace.as_deref(), &[], (None, Consistency::One), false);
            exec::describe(&lock(&self.shared.store), &statement, &context)?
        };
        let id = digest(&format!("{}\0{text}", keyspace.as_deref().unwrap_or_default()));
        let metadata_id = metadata_id(&description.result);
        let mut out = Vec::new();
        let types: Vec<Vec<u8>> = description.bound.iter().map(|(_, t)| type_bytes(t)).collect();
        let bound = specs(&description.keyspace, &description.table, &description.bound, &types);
        let result_types: Vec<Vec<u8>> = description.result.iter().map(|(_, t)| type_bytes(t)).collect();
        let result = specs(&description.keyspace, &description.table, &description.result, &result_types);
        let metadata = MetadataOut::of_table(&result);
        encode_prepared(
            version,
            &id,
            Some(&metadata_id),
            &description.partition,
            &bound,
            &metadata,
            &mut out,
        );
        let prepared = Prepared { statement, keyspace, description };
        lock(&self.shared.prepared).insert(id, Arc::new(prepared));
        Ok(out)
    }

    fn encode(&mut self, reply: Reply, skip_metadata: bool, version: Version) -> Vec<u8> {
        let mut out = Vec::new();
        match reply {
            Reply::Void => response::encode_void(&mut out),
            Reply::SetKeyspace(name) => {
                response::encode_set_keyspace(&name, &mut out);
                self.keyspace = Some(name);
            }
            Reply::SchemaChange { change, keyspace, table } => {
                // As servers do, for all tables here: whoever executes has to prepare again.
                lock(&self.shared.prepared).clear();
                let target = table.as_deref().map_or(SchemaTarget::Keyspace, SchemaTarget::Table);
                let change = SchemaChange { change, keyspace: &keyspace, target };
                response::encode_schema_change(&change, &mut out);
                self.announce(&change);
            }
            Reply::Rows { keyspace, table, columns, rows } => {
                let types: Vec<Vec<u8>> = columns.iter().map(|(_, t)| type_bytes(t)).collect();
                let specs = specs(&keyspace, &table, &columns, &types);
                let id = metadata_id(&columns);
                let changed = self.knows.take().is_some_and(|known| known != id);
                let metadata = MetadataOut {
                    skip: skip_metadata && !changed,
                    new_metadata_id: changed.then_some(&id[..]),
                    ..MetadataOut::of_table(&specs)
                };
                encode_rows_start(version, &metadata, rows.len(), &mut out);
                for cell in rows.iter().flatten() {
                    out.put_value(cell.as_deref().map_or(Value::Null, Value::Bytes));
                }
            }
        }
        out
    }

    /// Tells every registered connection of a change of the schema.
    fn announce(&self, change: &SchemaChange<'_>) {
        let late = lock(&self.shared.faults).late_events;
        let listeners: Vec<_> =
            lock(&self.shared.listeners).iter().map(|(number, to)| (*number, to.clone())).collect();
        for (number, (socket, version)) in listeners {
            let mut encoder = Encoder::new();
            if version.has_segments() {
                encoder.switch_to_segments();
            }
            let header = Header::new(version, -1, Opcode::Event);
            encoder.push_with(&header, |out| response::Event::Schema(change.clone()).encode(out));
            if late {
                lock(&self.shared.untold).entry(number).or_default().extend(encoder.take());
                continue;
            }
            // A dead one is found out by its own thread.
            let _ = lock(&socket).write_all(&encoder.take());
        }
    }

    /// Tells what [`Faults::late_events`] has kept back, before the version is shown.
    fn announce_untold(&mut self, statement: &Statement) -> io::Result<()> {
        if !matches!(statement, Statement::Select { table, .. } if table.table == "local") {
            return Ok(());
        }
        let untold = lock(&self.shared.untold).remove(&self.number);
        untold.map_or(Ok(()), |events| lock(&self.stream).write_all(&events))
    }
}

/// The id of a result's columns.
fn metadata_id(columns: &[(String, response::CqlType)]) -> Vec<u8> {
    digest(&format!("{columns:?}"))
}

fn specs<'s>(
    keyspace: &'s str,
    table: &'s str,
    columns: &'s [(String, response::CqlType)],
    types: &'s [Vec<u8>],
) -> Vec<ColumnSpec<'s>> {
    let spec = |((name, _), bytes): (&'s (String, _), &'s Vec<u8>)| ColumnSpec {
        keyspace,
        table,
        name,
        type_bytes: bytes,
    };
    columns.iter().zip(types).map(spec).collect()
}

fn own(value: Value<'_>) -> Bound {
    match value {
        Value::Bytes(bytes) => Bound::Bytes(bytes.to_vec()),
        Value::Null => Bound::Null,
        Value::Unset => Bound::Unset,
    }
}

/// The bound values in the order of the markers, whose names are known for prepared statements.
fn bound(params: &QueryParams<'_>, names: &[(String, response::CqlType)]) -> Vec<Bound> {
    if params.values.are_named() && !names.is_empty() {
        return names.iter().map(|(name, _)| params.values.by_name(name).map_or(Bound::Unset, own)).collect();
    }
    params.values.iter().map(|(_, value)| own(value)).collect()
}

fn error_body(refusal: &Refusal) -> ErrorBody<'_> {
    let mut body = ErrorBody::new(refusal.code, &refusal.message);
    let (consistency, received, block_for) = (message::Consistency::LocalQuorum, 0, 1);
    body.detail = match refusal.code {
        ErrorCode::WriteTimeout => response::ErrorDetail::WriteTimeout {
            consistency,
            received,
            block_for,
            write_type: "SIMPLE",
            contentions: None,
        },
        ErrorCode::Unavailable => response::ErrorDetail::Unavailable { consistency, required: 2, alive: 1 },
        ErrorCode::CasWriteUnknown => {
            response::ErrorDetail::CasWriteUnknown { consistency, received, block_for }
        }
        _ => body.detail,
    };
    body
}

/// 16 bytes that stand for a text. Not MD5, which a client must not rely on anyway.
fn digest(text: &str) -> Vec<u8> {
    let (mut a, mut b) = (0x243F_6A88_85A3_08D3u64, 0x1319_8A2E_0370_7344u64);
    for byte in text.bytes() {
        a = mix(a ^ u64::from(byte));
        b = mix(b.wrapping_add(a));
    }
    [a.to_be_bytes(), b.to_be_bytes()].concat()
}
