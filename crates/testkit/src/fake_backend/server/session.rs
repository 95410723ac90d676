//! One connection's requests and their answers.

use std::{
    io::{self, Read},
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    thread,
};

use afterglow_cql::{
    error::{ErrorCode, ProtocolError},
    frame::{
        Decoder, Envelope, Flags, FrameError, Header, Opcode, Version,
        notation::{Put, Value},
    },
    message::{self, Consistency, QueryParams, Request, StatementRef},
    negotiate,
    response::{
        self, ErrorBody, Event, MetadataOut, SchemaChange, SchemaTarget, encode_prepared,
        encode_rows_start,
    },
};
use afterglow_loadgen::rng::{Rng, mix};

use super::bodies::{bound, digest, error_body, metadata_id, own, specs};
use super::lock::lock;
use super::script::Ask;
use super::shared::{Prepared, ServerShared};
use super::wire::Wire;
use crate::fake_backend::{
    exec::{self, Context, Reply},
    faults::StatementKind,
    identity::Identity,
    parse::parse,
    refusal::Refusal,
    statement::Statement,
    term::{Bound, type_bytes},
};

/// A client's connection.
pub struct Session<'a> {
    shared: &'a ServerShared,
    number: u64,
    wire: Arc<Wire>,
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

/// An answer: what it is, and its body.
type Answer = (Opcode, Vec<u8>);

impl<'a> Session<'a> {
    /// Serves it to its end.
    pub fn serve(mut stream: TcpStream, number: u64, shared: &'a ServerShared) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut session = Session {
            shared,
            number,
            wire: Arc::new(Wire::new(stream.try_clone()?)),
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
        session.wire.hang_up();
        outcome
    }

    fn run(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let mut decoder = Decoder::for_requests();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            loop {
                match decoder.next_envelope() {
                    Ok(Some(envelope)) => {
                        self.shared.holds.wait_while_frozen();
                        let header = envelope.header;
                        if !self.take(envelope)? {
                            return Ok(());
                        }
                        if header.opcode == Opcode::Startup && header.version.has_segments() {
                            self.wire.flush()?;
                            decoder.switch_to_segments();
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        self.wire.send_bare(&error.reply())?;
                        if error.fatal {
                            return Ok(());
                        }
                    }
                }
            }
            self.wire.flush()?;
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                n => decoder.feed(&buffer[..n]),
            }
        }
    }

    /// Answers one request, or has the script do it. False: close the connection instead.
    fn take(&mut self, envelope: Envelope) -> io::Result<bool> {
        if envelope.header.version > self.shared.highest {
            self.wire.send_bare(&too_new(self.shared.highest).reply())?;
            return Ok(false);
        }
        match &self.shared.script {
            None => self.answer(&envelope),
            Some(script) => {
                // What was answered before goes first.
                self.wire.flush()?;
                let ask = Arc::new(Ask::new(self.number, envelope, self.wire.clone()));
                Ok(script(&ask) || self.answer(&ask.envelope)?)
            }
        }
    }

    /// Answers one request. False: close the connection instead.
    fn answer(&mut self, envelope: &Envelope) -> io::Result<bool> {
        let header = envelope.header;
        let answer = match message::parse(&header, &envelope.body) {
            Ok((_, request)) => self.perform(&header, request)?,
            Err(error) => Some(error_answer(&ErrorBody::new(error.code, &error.message))),
        };
        let Some((opcode, body)) = answer else { return Ok(false) };
        self.wire.push(&negotiate::answer_to(&header, opcode), &body);
        // Whoever pipelines gets answers in batches of at most this.
        if self.wire.waiting() > 64 * 1024 {
            self.wire.flush()?;
        }
        Ok(true)
    }

    /// `None`: the connection is to be dropped.
    fn perform(&mut self, header: &Header, request: Request<'_>) -> io::Result<Option<Answer>> {
        let version = header.version;
        let outcome = match request {
            Request::Startup(_) => return Ok(Some(self.start_up())),
            Request::AuthResponse(auth) => match self.log_in(auth.token.unwrap_or_default()) {
                Ok(answer) => return Ok(Some(answer)),
                Err(refusal) => Some(Err(refusal)),
            },
            Request::Options => {
                let mut body = Vec::new();
                negotiate::supported("3.4.7", self.shared.highest, &mut body);
                return Ok(Some((Opcode::Supported, body)));
            }
            Request::Register(_) => {
                lock(&self.shared.listeners).insert(self.number, (self.wire.clone(), version));
                return Ok(Some((Opcode::Ready, Vec::new())));
            }
            Request::Prepare(prepare) => Some(self.prepare(prepare.text, version)),
            Request::Query(query) => match parse(query.text) {
                Ok(statement) => {
                    self.announce_untold(&statement);
                    self.run_statement(&statement, &query.params, None, version)
                }
                Err(refusal) => Some(Err(refusal)),
            },
            Request::Execute(execute) => {
                let Some(known) = self.shared.prepared(execute.id) else {
                    let text = "Prepared query with that ID not found";
                    return Ok(Some(error_answer(&ErrorBody::unprepared(text, execute.id))));
                };
                self.knows = execute.result_metadata_id.map(<[u8]>::to_vec);
                self.run_statement(&known.statement, &execute.params, Some(&known), version)
            }
            Request::Batch(batch) => Some(self.batch(&batch, version)),
        };
        Ok(outcome.map(|outcome| match outcome {
            Ok(body) => (Opcode::Result, body),
            Err(refusal) => error_answer(&error_body(&refusal)),
        }))
    }

    fn start_up(&self) -> Answer {
        let mut body = Vec::new();
        if !lock(&self.shared.accounts).ask() {
            return (Opcode::Ready, body);
        }
        response::encode_authenticate("org.apache.cassandra.auth.PasswordAuthenticator", &mut body);
        (Opcode::Authenticate, body)
    }

    fn log_in(&mut self, token: &[u8]) -> Result<Answer, Refusal> {
        self.user = Some(lock(&self.shared.accounts).log_in(token)?);
        let mut body = Vec::new();
        response::encode_auth_token(None, &mut body);
        Ok((Opcode::AuthSuccess, body))
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
        if statement.is_conditional() && lock(&self.shared.faults).refuses_transactions {
            return Some(Err(Refusal::invalid("This database takes no lightweight transactions")));
        }
        let fate = self.fate(statement);
        let names = prepared.map_or(&[][..], |p| &p.description.bound);
        let values = bound(params, names);
        let lie = matches!(fate, Fate::Answer { lie: true });
        let keyspace = prepared.and_then(|p| p.keyspace.clone()).or_else(|| self.keyspace.clone());
        let run = || {
            self.check_read(statement, keyspace.as_deref())?;
            let mut store = lock(&self.shared.database.store);
            let (who, how) = (self.shared.identity(&store), (params.timestamp, params.consistency));
            let context = self.context(&who, keyspace.as_deref(), &values, how, lie);
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
            if kind == StatementKind::Read {
                self.shared.reads.fetch_add(1, Ordering::SeqCst);
            }
            self.shared.holds.wait_while_held(kind);
        }
        Some(outcome.map(|reply| self.encode(reply, params.skip_metadata, version)))
    }

    /// Whether the user may read the table of a SELECT.
    fn check_read(&self, statement: &Statement, keyspace: Option<&str>) -> Result<(), Refusal> {
        let (Some(user), Statement::Select { table, .. }) = (&self.user, statement) else {
            return Ok(());
        };
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

    fn context<'c>(
        &'c self,
        identity: &'c Identity,
        keyspace: Option<&'c str>,
        values: &'c [Bound],
        (timestamp, consistency): (Option<i64>, Consistency),
        lie: bool,
    ) -> Context<'c> {
        let now = self.shared.now();
        let watch = self.shared.watch.get().map(|watch| &**watch);
        Context { identity, keyspace, values, timestamp, consistency, now, lie, watch }
    }

    fn batch(&mut self, batch: &message::Batch<'_>, version: Version) -> Result<Vec<u8>, Refusal> {
        for item in batch.statements() {
            let (statement, keyspace) = match item.statement {
                StatementRef::Text(text) => (parse(text)?, self.keyspace.clone()),
                StatementRef::Prepared(id) => {
                    let prepared = self.shared.prepared(id);
                    let prepared = prepared.ok_or_else(|| Refusal {
                        code: ErrorCode::Unprepared,
                        message: "Prepared query with that ID not found".to_owned(),
                    })?;
                    (
                        prepared.statement.clone(),
                        prepared.keyspace.clone().or_else(|| self.keyspace.clone()),
                    )
                }
            };
            let values: Vec<Bound> = item.values.iter().map(|(_, v)| own(v)).collect();
            let level = (batch.params.timestamp, batch.params.consistency);
            let mut store = lock(&self.shared.database.store);
            let who = self.shared.identity(&store);
            let context = self.context(&who, keyspace.as_deref(), &values, level, false);
            exec::execute(&mut store, &statement, &context)?;
        }
        self.shared.statements.fetch_add(1, Ordering::Relaxed);
        Ok(self.encode(Reply::Void, false, version))
    }

    fn prepare(&mut self, text: &str, version: Version) -> Result<Vec<u8>, Refusal> {
        let statement = parse(text)?;
        let keyspace = self.keyspace.clone();
        let description = {
            let store = lock(&self.shared.database.store);
            let (who, how) = (self.shared.identity(&store), (None, Consistency::One));
            let context = self.context(&who, keyspace.as_deref(), &[], how, false);
            exec::describe(&store, &statement, &context)?
        };
        let id = digest(&format!("{}\0{text}", keyspace.as_deref().unwrap_or_default()));
        let metadata_id = metadata_id(&description.result);
        let mut out = Vec::new();
        let types: Vec<Vec<u8>> = description.bound.iter().map(|(_, t)| type_bytes(t)).collect();
        let bound = specs(&description.keyspace, &description.table, &description.bound, &types);
        let result_types: Vec<Vec<u8>> =
            description.result.iter().map(|(_, t)| type_bytes(t)).collect();
        let result =
            specs(&description.keyspace, &description.table, &description.result, &result_types);
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
        let of_node = (self.shared.address(), id);
        lock(&self.shared.database.prepared).insert(of_node, Arc::new(prepared));
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
                lock(&self.shared.database.prepared).clear();
                let target = table.as_deref().map_or(SchemaTarget::Keyspace, SchemaTarget::Table);
                let change = SchemaChange { change, keyspace: &keyspace, target };
                response::encode_schema_change(&change, &mut out);
                self.shared.announce(&Event::Schema(change));
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

    /// Tells what [`Faults::late_events`] has kept back, before the version is shown.
    fn announce_untold(&self, statement: &Statement) {
        if matches!(statement, Statement::Select { table, .. } if table.table == "local") {
            let untold = lock(&self.shared.untold).remove(&self.number).unwrap_or_default();
            untold.iter().for_each(|(header, body)| self.wire.push(header, body));
        }
    }
}

fn error_answer(error: &ErrorBody<'_>) -> Answer {
    let mut body = Vec::new();
    error.encode(&mut body);
    (Opcode::Error, body)
}

/// What a database that speaks up to `highest` says of a newer version, and hangs up.
fn too_new(highest: Version) -> FrameError {
    let text = "Invalid or unsupported protocol version (5); supported versions are (3/v3, 4/v4)";
    let (error, version) = (ProtocolError::new(text), highest.as_u8());
    FrameError { error, stream: 0, version, flags: Flags::NONE, fatal: true }
}
