//! A client's connection from its first byte to its last.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::error::{ErrorCode, ProtocolError};
use afterglow_cql::frame::{
    Compression, DEFAULT_MAX_ENVELOPE, Decoder, Envelope, Flags, FrameError, Header, Opcode,
    Version,
};
use afterglow_cql::message::{self, AuthResponse, Request as Message, Startup};
use afterglow_cql::negotiate::{self, Stage};
use afterglow_cql::response::{ErrorBody, encode_auth_token, encode_authenticate};
use bytes::Bytes;
use compio::BufResult;
use compio::io::AsyncRead;
use compio::net::TcpStream;

use crate::frontend::cql::client::budget::{FREE, is_told};
use crate::frontend::cql::client::dispatch;
use crate::frontend::cql::client::habits::DriverHabits;
use crate::frontend::cql::client::outbox::Outbox;
use crate::frontend::cql::client::state::{Client, Responder};
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::error::{CallError, ConnectError};
use crate::frontend::cql::cluster::events::Cluster;
use crate::frontend::cql::cluster::login::Login;
use crate::frontend::cql::reactor_state::CqlReactorState;
use crate::frontend::cql::router::Router;
use crate::frontend::cql::shared::CqlShared;
use crate::metrics::{Path, RequestKind};
use crate::reactor::yield_now;
use crate::tls::TlsSession;

/// Read buffer of a connection: small, because there may be many; grows to the larger size when
/// filled by one read.
const READ_BUFFER: (usize, usize) = (8 * 1024, 256 * 1024);
/// How long an envelope may be before the client has logged in: the largest tickets are shorter.
const MAX_BEFORE_LOGIN: usize = 128 * 1024;
/// A request that takes more than that must be admitted.
const HOLD_ABOVE: usize = FREE;
/// How long it waits for room: not as long as drivers wait for answers, so that nothing is carried
/// out for nobody; nor as long as a client may stand still that cannot read while it sends.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(9);
/// How long it may take to arrive: so long, and a second more for each mebibyte.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);
/// So many envelopes of one client are taken before the reactor turns to others.
const TURN: usize = 64;
/// How long a client that comes before the database waits.
const WAIT_FOR_DATABASE: Duration = Duration::from_secs(5);
/// How long a client that comes before the lease waits. It is a moment at the start, so that
/// clients of a warm cache do not all go to the database first.
const WAIT_FOR_CACHE: Duration = Duration::from_secs(1);
/// How often it is looked whether the database has come, or a large request is taken no more.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The CQL version told in SUPPORTED, as Cassandra 4.0 and later have it.
const CQL_VERSION: &str = "3.4.7";

/// Serves one connection to its end; `router` decides how its requests are answered.
pub async fn serve(
    front_end: Arc<CqlShared>,
    router: Arc<dyn Router>,
    mut stream: TcpStream,
    peer: SocketAddr,
    guard: impl Sized,
) {
    let (mut tls, mut came, mut open) = (None, Vec::new(), true);
    if let Some(config) = &front_end.config.tls {
        let reactor_state = CqlReactorState::of(&front_end);
        let (handshakes, metrics) = (&reactor_state.handshakes, &reactor_state.metrics);
        let secured = handshakes.secure(config, &mut stream, peer, metrics).await;
        let Some(client) = secured else { return };
        tls = Some(Rc::new(RefCell::new(client.session)));
        (came, open) = (client.came, client.open);
    }
    // Whoever drains says so before it looks for clients on this reactor. So one that does not hear
    // it here is among those: it waits for nothing until it is added.
    if front_end.is_closing() {
        return;
    }
    let _counted = (guard, front_end.sessions.enter());
    let reactor_state = CqlReactorState::of(&front_end);
    let client = Rc::new(Client::new(
        reactor_state.clone(),
        reactor_state.next_client_id(),
        peer,
        Outbox::new(stream.clone(), tls.clone()),
    ));
    reactor_state.metrics.connections_opened.inc();
    reactor_state.add(client.id, client.clone());
    let writer = client.clone();
    let writing = compio::runtime::spawn(async move {
        let sent = &writer.reactor_state.metrics.bytes_sent;
        let written = |bytes| {
            sent.add(bytes as u64);
            writer.account();
        };
        writer.out.run(written).await;
    });
    let mut decoder = Decoder::for_requests().with_max_envelope(MAX_BEFORE_LOGIN);
    decoder.hold_above(HOLD_ABOVE);
    let mut session =
        ClientSession { client: client.clone(), router, decoder, tls, may_take: None };
    if let Cluster::Known { version, .. } = front_end.cluster() {
        session.decoder.set_highest(version);
    }
    session.read(stream, &came, open).await;
    // What has come of a large request is given up.
    drop(session);
    client.received();
    client.wait_for_answers().await;
    client.out.finish();
    // The writer ends when everything is sent or cannot be; it never panics.
    let _ = writing.await;
    // Where our half had ended before.
    client.out.abort();
    if let Some(backend) = client.dedicated.take() {
        backend.close();
    }
    reactor_state.remove(client.id);
    reactor_state.metrics.connections_closed.inc();
}

/// Whether an authenticator is satisfied with a SASL PLAIN token, which can be said again.
fn takes_passwords(class: &str) -> bool {
    class.rsplit('.').next().is_some_and(|name| name.ends_with("PasswordAuthenticator"))
}

/// Answers a login that the database has not taken.
fn refuse_login(error: &ConnectError, responder: Responder) {
    match error {
        ConnectError::Refused { answer, .. } => responder.relay(answer, Path::Pass),
        error => responder.call_error(&CallError::NotSent(error.to_string().into()), None),
    }
}

struct ClientSession {
    client: Rc<Client>,
    router: Arc<dyn Router>,
    decoder: Decoder,
    /// The connection's TLS.
    tls: Option<Rc<RefCell<TlsSession>>>,
    /// How long it may still be waited for the large request that is arriving. What is between its
    /// parts, and takes time here, does not count.
    may_take: Option<Duration>,
}

/// How long a request of that size may take to arrive.
fn arrives_within(bytes: usize) -> Duration {
    ARRIVES_WITHIN + Duration::from_secs((bytes / (1024 * 1024)) as u64)
}

/// What is said instead of the answer to a request for which there is no room.
fn overloaded(header: &Header, error: ProtocolError) -> FrameError {
    let version = header.version.as_u8();
    FrameError { error, stream: header.stream, version, flags: Flags::NONE, fatal: false }
}

/// The connection is to be closed.
struct Hangup;

impl ClientSession {
    /// `came` came with the TLS handshake; there is more unless it is `open` no longer.
    async fn read(&mut self, mut stream: TcpStream, came: &[u8], open: bool) {
        self.decoder.feed(came);
        if !came.is_empty() && self.take_all(Instant::now()).await.is_err() || !open {
            return;
        }
        let mut buffer = Vec::with_capacity(READ_BUFFER.0);
        while !self.client.out.is_closed() {
            self.client.has_taken_all.set(true);
            let read = self.in_time(stream.read(buffer)).await;
            if self.client.takes_no_more() {
                return self.throw_away(stream).await;
            }
            self.client.has_taken_all.set(false);
            let Some(BufResult(result, returned)) = read else { return self.client.too_slow() };
            buffer = returned;
            let Ok(1..) = result else { return };
            self.client.reactor_state.metrics.bytes_received.add(buffer.len() as u64);
            let open = self.take_in(&buffer);
            let full = buffer.len() == buffer.capacity();
            buffer.clear();
            if full && buffer.capacity() < READ_BUFFER.1 {
                buffer.reserve(buffer.capacity() * 2);
            }
            if self.take_all(Instant::now()).await.is_err() || !open {
                return;
            }
        }
    }

    /// Takes nothing more: what comes until the client's end is read and thrown away. So is the
    /// part of a large request that has come. A read that was given up may have met the end; the
    /// next one meets it again.
    async fn throw_away(&mut self, mut stream: TcpStream) {
        self.may_take = None;
        self.decoder = Decoder::for_requests();
        self.client.received();
        let mut buffer = Vec::with_capacity(READ_BUFFER.0);
        while !self.client.out.is_closed() {
            let BufResult(Ok(1..), returned) = stream.read(buffer).await else { return };
            buffer = returned;
            buffer.clear();
        }
    }

    /// Gives the decoder what came from the socket; false when that was the last, as TLS has it.
    fn take_in(&mut self, raw: &[u8]) -> bool {
        let Some(tls) = &self.tls else {
            self.decoder.feed(raw);
            return true;
        };
        let mut plain = Vec::with_capacity(raw.len());
        let open = tls.borrow_mut().open(raw, &mut plain);
        self.client.out.nudge_tls();
        self.decoder.feed(&plain);
        open
    }

    /// What `reading` gives, if it does before the large request that is arriving is late, or is
    /// taken no more.
    async fn in_time<T>(&mut self, reading: impl Future<Output = T>) -> Option<T> {
        let Some(may_take) = self.may_take else { return Some(reading.await) };
        let (began, mut reading) = (Instant::now(), std::pin::pin!(reading));
        while !self.client.takes_no_more() {
            let left = may_take.checked_sub(began.elapsed())?;
            let read = compio::time::timeout(left.min(LOOK_AGAIN), reading.as_mut()).await;
            if let Ok(read) = read {
                self.may_take = Some(may_take.saturating_sub(began.elapsed()));
                return Some(read);
            }
        }
        None
    }

    /// Handles every whole envelope that has come. One read may bring many thousands of envelopes
    /// if segments are compressed. The client's bounds are checked between any two. Other tasks
    /// have their turn after some.
    async fn take_all(&mut self, received: Instant) -> Result<(), Hangup> {
        for taken in 1_usize.. {
            // The budget for the large request that is arriving has been granted. A client that
            // waited for more while this request takes all of it would wait for ever.
            let granted = self.may_take.is_some();
            let throws = self.client.throws_on_overload.get();
            match granted || throws {
                false => self.client.wait_for_room().await,
                true => self.client.wait_for_answers_taken().await,
            }
            if self.client.out.is_closed() {
                return Err(Hangup);
            }
            if taken % TURN == 0 {
                yield_now().await;
            }
            let next = self.decoder.next_envelope();
            // In segments, others may have come between the parts of a large one.
            if !matches!(next, Ok(None)) && !self.decoder.is_receiving() {
                self.may_take = None;
                self.client.received();
            }
            match next {
                Ok(None) => match self.decoder.held() {
                    Some(takes) if !self.client.takes_no_more() => self.hold(takes).await,
                    _ => return Ok(()),
                },
                Ok(Some(envelope)) if throws && !granted && !self.client.may_grow() => {
                    self.tell_overload(&envelope.header);
                }
                Ok(Some(envelope)) => {
                    self.take(envelope, received).await?;
                    if self.client.stage.get() == Stage::Ready {
                        self.decoder.set_max_envelope(DEFAULT_MAX_ENVELOPE);
                    }
                }
                Err(error) => self.refuse(&error)?,
            }
        }
        Ok(())
    }

    /// A large request begins: it is read when there is room for it, and skipped when there is none
    /// for long. A client that asks to be told of an overload does not wait.
    async fn hold(&mut self, takes: usize) {
        let throws = self.client.throws_on_overload.get();
        let at_most = if throws { Duration::ZERO } else { WAIT_FOR_ROOM };
        if self.client.admit(takes, at_most).await {
            self.may_take = Some(arrives_within(takes));
            return self.decoder.admit();
        }
        self.decoder.refuse(self.client.overload());
    }

    /// Answers a request for which there is no room. The answer takes room, too.
    fn tell_overload(&self, header: &Header) {
        let metrics = &self.client.reactor_state.metrics;
        metrics.requests.inc(dispatch::kind_of(header.opcode));
        metrics.errors.inc();
        self.client.out.push_encoded(&overloaded(header, self.client.overload()).reply());
        self.client.account();
    }

    /// Answers what is no envelope.
    fn refuse(&self, error: &FrameError) -> Result<(), Hangup> {
        self.client.reactor_state.metrics.requests.inc(RequestKind::Malformed);
        self.client.reactor_state.metrics.errors.inc();
        self.client.out.push_encoded(&error.reply());
        self.client.account();
        if error.fatal { Err(Hangup) } else { Ok(()) }
    }

    async fn take(&mut self, envelope: Envelope, received: Instant) -> Result<(), Hangup> {
        let header = envelope.header;
        if header.opcode == Opcode::Startup {
            self.wait_for_database().await;
        }
        if let Some(refusal) = self.refuses_version(&header) {
            return self.refuse(&refusal);
        }
        let responder = Responder::new(self.client.clone(), &envelope, received);
        if let Err(error) = self.client.stage.get().check(header.opcode) {
            responder.protocol_error(&error);
            return Ok(());
        }
        match header.opcode {
            Opcode::Query | Opcode::Prepare | Opcode::Execute | Opcode::Batch => {
                // On a connection of its own a USE must not meet other requests: nobody could tell
                // in which keyspace those are executed.
                let understood = dispatch::understand(&self.client, &header, &envelope.body);
                let apart =
                    self.client.dedicated.borrow().is_some() && dispatch::is_use(&understood);
                if apart {
                    self.client.wait_until_in_flight(1).await;
                }
                dispatch::request(header, envelope.body, understood, responder, &*self.router);
                if apart {
                    self.client.wait_for_answers().await;
                }
                return Ok(());
            }
            _ => self.client.reactor_state.metrics.requests.inc(RequestKind::Session),
        }
        let message = message::parse(&header, &envelope.body).map(|(_, message)| message);
        match message {
            Ok(Message::Options) => self.options(responder),
            Ok(Message::Startup(startup)) => self.startup(&startup, &envelope, responder).await,
            Ok(Message::AuthResponse(AuthResponse { token })) => {
                self.auth_response(token, &envelope, responder).await;
            }
            Ok(Message::Register(register)) => {
                self.client.register(&register);
                responder.reply_with(Opcode::Ready, Flags::NONE, Path::Local, |_| ());
            }
            Ok(_) => responder.protocol_error(&ProtocolError::new(format!(
                "Unexpected message {}",
                header.opcode
            ))),
            Err(error) => responder.protocol_error(&error),
        }
        Ok(())
    }

    /// The answer to a version that the database does not speak, as it would give it. The client
    /// may try another one on the same connection.
    fn refuses_version(&self, header: &Header) -> Option<FrameError> {
        match self.client.reactor_state.front_end.cluster() {
            Cluster::Known { version: highest, .. } if header.version > highest => {
                Some(negotiate::refused_version(header.version.as_u8(), header.flags, highest))
            }
            _ => None,
        }
    }

    fn options(&self, responder: Responder) {
        let highest = match self.client.reactor_state.front_end.cluster() {
            Cluster::Known { version, .. } => version,
            Cluster::Unknown => Version::MAX,
        };
        responder.reply_with(Opcode::Supported, Flags::NONE, Path::Local, |out| {
            negotiate::supported(CQL_VERSION, highest, out);
        });
    }

    async fn startup(&mut self, startup: &Startup<'_>, envelope: &Envelope, responder: Responder) {
        self.client.habits.set(DriverHabits::of(startup.option("DRIVER_NAME")));
        self.client.throws_on_overload.set(is_told(startup.option("THROW_ON_OVERLOAD")));
        let version = envelope.header.version;
        let compression = match negotiate::check_startup(startup, version) {
            Ok(compression) => compression,
            Err(error) => return responder.protocol_error(&error),
        };
        let authentication = match self.client.reactor_state.front_end.cluster() {
            Cluster::Known { authentication, .. } => authentication,
            Cluster::Unknown => {
                let text = "Afterglow cannot reach the database yet, try again";
                return responder.error(&ErrorBody::new(ErrorCode::IsBootstrapping, text));
            }
        };
        if authentication {
            return self.startup_guarded(startup, compression, envelope, responder).await;
        }
        responder.reply_with(Opcode::Ready, Flags::NONE, Path::Local, |_| ());
        self.started(version, compression, Stage::Ready);
    }

    /// Waits until the database's protocol versions are known, and then until the cache is ready.
    /// Each wait has a timeout.
    async fn wait_for_database(&self) {
        let front_end = &self.client.reactor_state.front_end;
        self.wait(WAIT_FOR_DATABASE, || front_end.cluster() != Cluster::Unknown).await;
        if matches!(front_end.cluster(), Cluster::Known { guarded: false, .. }) {
            self.wait(WAIT_FOR_CACHE, || self.router.is_ready()).await;
        }
    }

    async fn wait(&self, at_most: Duration, done: impl Fn() -> bool) {
        let deadline = Instant::now() + at_most;
        while !done() && Instant::now() < deadline && !self.client.out.is_closed() {
            compio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The answer to STARTUP is on its way: from now on the connection has a version, perhaps
    /// compression and, in v5, segments.
    fn started(&mut self, version: Version, compression: Option<Compression>, stage: Stage) {
        self.client.stage.set(stage);
        self.client.version.set(Some(version));
        self.decoder.pin_version(version);
        if let Some(compression) = compression {
            self.decoder.set_compression(compression);
            self.client.out.set_compression(compression);
        }
        if version.has_segments() {
            self.decoder.switch_to_segments();
            self.client.out.switch_to_segments();
        }
    }

    /// The database wants to know who the client is. We ask for a password, and the database checks
    /// it. A password can be used again for the connections that clients share. With any other
    /// method the database and the client talk directly.
    async fn startup_guarded(
        &mut self,
        startup: &Startup<'_>,
        compression: Option<Compression>,
        envelope: &Envelope,
        responder: Responder,
    ) {
        match self
            .client
            .reactor_state
            .front_end
            .authenticator()
            .filter(|class| takes_passwords(class))
        {
            Some(class) => {
                responder.reply_with(Opcode::Authenticate, Flags::NONE, Path::Local, |out| {
                    encode_authenticate(&class, out);
                });
                self.started(envelope.header.version, compression, Stage::Authenticating);
            }
            None => self.startup_dedicated(startup, compression, envelope, responder).await,
        }
    }

    /// Has the database check the client's password.
    async fn log_in(&self, token: Option<&[u8]>, version: Version, responder: Responder) {
        // What is no password is for the database to refuse in its own words.
        let login = Login::of_token(token.unwrap_or_default());
        let Some(name) = login.user.clone() else {
            return self.log_in_alone(login, version, responder).await;
        };
        match self.client.reactor_state.log_in(&name, login, version).await {
            Ok(user) => {
                self.client.refusals.log_in(&user.refused);
                self.client.user.replace(Some(user));
                self.logged_in(responder);
            }
            Err(error) => refuse_login(&error, responder),
        }
    }

    /// As [`ClientSession::log_in`], for a password that names nobody: it is not remembered, and
    /// the connection that the database lets in with it ends with the client.
    async fn log_in_alone(&self, login: Login, version: Version, responder: Responder) {
        match self.client.reactor_state.log_in_alone(login, version).await {
            Ok(backend) => {
                self.have_alone(backend);
                self.logged_in(responder);
            }
            Err(error) => refuse_login(&error, responder),
        }
    }

    /// A connection of the client's own. The client's ends with it, and its driver connects anew.
    fn have_alone(&self, backend: Rc<Backend>) {
        let client = Rc::downgrade(&self.client);
        // Whoever waits for an answer is told first.
        let told = async move { client.upgrade().iter().for_each(|client| client.out.leave()) };
        backend.on_end(|| compio::runtime::spawn(told).detach());
        if backend.is_closed() {
            self.client.out.leave();
        }
        self.client.dedicated.replace(Some(backend));
    }

    fn logged_in(&self, responder: Responder) {
        self.client.stage.set(Stage::Ready);
        responder.reply_with(Opcode::AuthSuccess, Flags::NONE, Path::Local, |out| {
            encode_auth_token(None, out);
        });
    }

    /// The database asks for a login that is not a password. The client gets a connection of its
    /// own, and both talk directly.
    async fn startup_dedicated(
        &mut self,
        startup: &Startup<'_>,
        compression: Option<Compression>,
        envelope: &Envelope,
        responder: Responder,
    ) {
        // Compression is between the client and us.
        let options: Vec<_> = startup
            .options()
            .iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("COMPRESSION"))
            .collect();
        let mut body = Vec::new();
        Startup::encode(&options, &mut body);
        let body = Bytes::from(body);
        let reactor_state = self.client.reactor_state.clone();
        let version = envelope.header.version;
        let mut failed = CallError::NotSent("no backend is configured".into());
        for target in &reactor_state.front_end.config.backends {
            let opened = Backend::dedicated(
                target,
                version,
                reactor_state.front_end.config.backend_tls.as_ref(),
                &reactor_state.backend_metrics,
            )
            .await;
            let backend = match opened {
                Ok(backend) => backend,
                Err(error) => {
                    failed = CallError::NotSent(error.to_string().into());
                    continue;
                }
            };
            let answer = backend.call(Opcode::Startup, envelope.header.flags, body.clone()).await;
            match answer {
                Ok(answer) => {
                    let stage = match answer.header.opcode {
                        Opcode::Ready => Some(Stage::Ready),
                        Opcode::Authenticate => Some(Stage::Authenticating),
                        _ => None,
                    };
                    responder.relay(&answer, Path::Pass);
                    if let Some(stage) = stage {
                        self.have_alone(backend);
                        self.started(version, compression, stage);
                    }
                    return;
                }
                Err(error) => failed = error,
            }
        }
        responder.call_error(&failed, None);
    }

    async fn auth_response(
        &mut self,
        token: Option<&[u8]>,
        envelope: &Envelope,
        responder: Responder,
    ) {
        if self.client.stage.get() != Stage::Authenticating {
            let error = ProtocolError::new("Unexpected message AUTH_RESPONSE, nobody asked for it");
            return responder.protocol_error(&error);
        }
        let dedicated = self.client.dedicated.borrow().clone();
        let Some(backend) = dedicated else {
            return self.log_in(token, envelope.header.version, responder).await;
        };
        match backend.call(Opcode::AuthResponse, envelope.header.flags, envelope.body.clone()).await
        {
            Ok(answer) => {
                if answer.header.opcode == Opcode::AuthSuccess {
                    self.client.stage.set(Stage::Ready);
                }
                responder.relay(&answer, Path::Pass);
            }
            Err(error) => responder.call_error(&error, None),
        }
    }
}
