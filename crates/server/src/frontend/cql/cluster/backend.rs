//! One connection to the database, shared by many requests at once.
//!
//! The protocol allows 32,768 requests in flight on a connection. Further requests wait here, in
//! the order in which they came, until earlier ones are answered. Their number is bounded, because
//! each client's requests in flight are.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Decoder, Envelope, Flags, Header, Opcode, Version};
use afterglow_cql::response::{self, Response, ResultKind};
use bytes::Bytes;
use compio::BufResult;
use compio::io::AsyncRead;
use compio::net::TcpStream;
use futures_channel::{mpsc, oneshot};

use crate::config::HostPort;
use crate::frontend::cql::client::outbox::Outbox;
use crate::frontend::cql::cluster::answer::{error_code, parsed, result_kind};
use crate::frontend::cql::cluster::error::{CONNECT_TIMEOUT, CallError, ConnectError, HESITATION};
use crate::frontend::cql::cluster::login::Login;
use crate::frontend::cql::cluster::secure;
use crate::frontend::cql::streams::{MAX_IN_FLIGHT, MAX_STREAMS, Queued, Waiters};
use crate::metrics::{BackendMetrics, ConnectFailure};
use crate::tls::{ClientTls, TlsSession};

/// How often a connection is looked after.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A connection that owes answers and is silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// Largest read at once.
const READ_BUFFER: usize = 64 * 1024;

/// Takes the answer to a client's request as it comes.
pub trait AnswerSink {
    /// The answer is here, from that connection.
    fn answer(self: Box<Self>, backend: &Rc<Backend>, answer: Envelope);

    /// There will be no answer.
    fn fail(self: Box<Self>, error: &CallError);
}

/// Who waits for an answer.
pub enum AnswerWaiter {
    /// A client: the answer is passed on as it is.
    Relay(Box<dyn AnswerSink>),
    /// A task.
    Call(oneshot::Sender<Result<Envelope, CallError>>),
    /// Nobody.
    Heartbeat,
}

impl AnswerWaiter {
    fn fail(self, error: &CallError) {
        match self {
            AnswerWaiter::Relay(relay) => relay.fail(error),
            // A task that was dropped does not want it.
            AnswerWaiter::Call(answer) => drop(answer.send(Err(error.clone()))),
            AnswerWaiter::Heartbeat => {}
        }
    }

    /// Whether nobody wants the answer any more.
    fn is_gone(&self) -> bool {
        matches!(self, AnswerWaiter::Call(answer) if answer.is_canceled())
    }
}

/// How to connect.
pub struct Dial {
    /// The protocol version to speak.
    pub version: Version,
    /// The keyspace to be in.
    pub keyspace: Option<Rc<str>>,
    /// What to say when the server asks who we are.
    pub login: Option<Login>,
    /// Speaks TLS with the server; `None`: nobody does.
    pub tls: Option<Arc<ClientTls>>,
    /// Gets what the server pushes.
    pub events: Option<mpsc::UnboundedSender<Envelope>>,
    /// Requests of several clients are to travel on it.
    pub shared: bool,
    /// Where to count.
    pub metrics: Arc<BackendMetrics>,
}

/// A connection to the database. All clones of the `Rc` are on one reactor.
pub struct Backend {
    out: Outbox,
    pub(super) tls: Option<Rc<RefCell<TlsSession>>>,
    version: Version,
    keyspace: Option<Rc<str>>,
    target: HostPort,
    pub(super) address: Rc<str>,
    waiters: RefCell<Waiters<AnswerWaiter>>,
    last_heard: Cell<Instant>,
    /// When the server said that it has too much to do.
    overloaded: Cell<Option<Instant>>,
    /// Gets what the server pushes, until the connection has ended.
    events: RefCell<Option<mpsc::UnboundedSender<Envelope>>>,
    /// Requests of several clients travel on it.
    shared: bool,
    /// The class of the authenticator that let us in, if one did.
    pub(super) authenticator: RefCell<Option<Rc<str>>>,
    /// It ends when nothing is under way any more.
    retiring: Cell<bool>,
    /// Who was given it and may still ask something, or ask more once an answer has come.
    kept: Cell<usize>,
    /// Since when it is there.
    since: Instant,
    /// To be told of its end.
    on_end: RefCell<Option<Box<dyn FnOnce()>>>,
    /// It takes requests; until then it is counted as being made.
    ready: Cell<bool>,
    metrics: Arc<BackendMetrics>,
}

impl Backend {
    /// Connects for one client alone, without a handshake: that is made with [`Backend::call`].
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`] and [`ConnectError::Timeout`].
    pub async fn dedicated(
        target: &HostPort,
        version: Version,
        tls: Option<&Arc<ClientTls>>,
        metrics: &Arc<BackendMetrics>,
    ) -> Result<Rc<Self>, ConnectError> {
        let (tls, metrics) = (tls.cloned(), metrics.clone());
        let (keyspace, login, events, shared) = (None, None, None, false);
        let dial = Dial { version, keyspace, login, events, shared, tls, metrics };
        let backend = Self::open(target, &dial).await?;
        backend.set_ready();
        Ok(backend)
    }

    pub(super) fn set_ready(&self) {
        if !self.is_closed() && !self.ready.replace(true) {
            self.metrics.ready.inc();
            self.metrics.connected.inc();
        }
    }

    /// A connection on which nothing has been said yet.
    pub(super) async fn open(target: &HostPort, dial: &Dial) -> Result<Rc<Self>, ConnectError> {
        let address: Rc<str> = target.to_string().into();
        let unreachable = |error: std::io::Error| ConnectError::Unreachable {
            address: address.clone(),
            reason: error.to_string().into(),
        };
        let connecting = TcpStream::connect((target.host.as_str(), target.port));
        let mut stream = compio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| ConnectError::Timeout(address.clone()))?
            .map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let mut came = Vec::new();
        let tls = match &dial.tls {
            Some(tls) => Some(secure::secure(tls, target, &mut stream, &mut came).await?),
            None => None,
        };
        let backend = Rc::new(Self {
            out: Outbox::new(stream.clone(), tls.clone()),
            tls,
            version: dial.version,
            keyspace: dial.keyspace.clone(),
            target: target.clone(),
            address,
            waiters: RefCell::default(),
            last_heard: Cell::new(Instant::now()),
            overloaded: Cell::default(),
            events: RefCell::new(dial.events.clone()),
            shared: dial.shared,
            authenticator: RefCell::default(),
            retiring: Cell::new(false),
            kept: Cell::new(0),
            since: Instant::now(),
            on_end: RefCell::default(),
            ready: Cell::new(false),
            metrics: dial.metrics.clone(),
        });
        let (writer, reader, keeper) = (backend.clone(), backend.clone(), Rc::downgrade(&backend));
        compio::runtime::spawn(async move { writer.out.run(|_| ()).await }).detach();
        compio::runtime::spawn(async move { reader.read(stream, came).await }).detach();
        compio::runtime::spawn(async move {
            loop {
                compio::time::sleep(HEARTBEAT).await;
                match keeper.upgrade() {
                    Some(backend) if !backend.is_closed() => backend.look_after(),
                    _ => return,
                }
            }
        })
        .detach();
        Ok(backend)
    }

    /// The protocol version it speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where it goes.
    pub fn target(&self) -> &HostPort {
        &self.target
    }

    /// The keyspace it is in.
    pub fn keyspace(&self) -> Option<&Rc<str>> {
        self.keyspace.as_ref()
    }

    /// Whether it can take no more requests, ever.
    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Requests waiting for an answer, or for a stream to be sent on.
    pub fn in_flight(&self) -> usize {
        let waiters = self.waiters.borrow();
        waiters.sent() + waiters.queued.len()
    }

    /// Requests waiting for an answer, and who may ask more.
    pub fn in_use(&self) -> usize {
        self.in_flight() + self.kept.get()
    }

    /// For how long it has been there.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The class of the authenticator that let us in; none where the database does not ask.
    pub fn authenticator(&self) -> Option<Rc<str>> {
        self.authenticator.borrow().clone()
    }

    /// When it was last heard, or first asked.
    pub fn last_heard(&self) -> Instant {
        self.last_heard.get()
    }

    /// Whether it owes answers and nothing at all has come for a while: the node may have stopped.
    pub fn is_silent(&self) -> bool {
        self.in_flight() > 0 && self.last_heard.get().elapsed() >= HESITATION
    }

    /// Whether the server has said within this time that it has too much to do.
    pub fn was_overloaded(&self, within: Duration) -> bool {
        self.overloaded.get().is_some_and(|when| when.elapsed() < within)
    }

    /// Closes it as soon as nothing is under way.
    pub fn retire(&self) {
        self.retiring.set(true);
        self.close_if_retired();
    }

    fn close_if_retired(&self) {
        if self.retiring.get() && self.in_flight() == 0 && self.kept.get() == 0 {
            self.close();
        }
    }

    /// Keeps it from being closed to make room before whoever has this has asked what he wants to.
    pub fn keep(self: &Rc<Self>) -> KeptBackend {
        self.kept.set(self.kept.get() + 1);
        KeptBackend(self.clone())
    }

    /// Has `act` called when the connection has ended.
    pub fn on_end(&self, act: impl FnOnce() + 'static) {
        self.on_end.replace(Some(Box::new(act)));
    }

    /// Closes it; whoever waits is told that the connection was lost.
    pub fn close(&self) {
        self.out.abort();
    }

    /// Sends a request as soon as there is a stream for it. The waiter is told of the answer, of
    /// the loss of the connection, or that the request was not sent.
    pub fn send(&self, opcode: Opcode, flags: Flags, body: Bytes, waiter: AnswerWaiter) {
        if self.is_closed() {
            return waiter.fail(&CallError::NotSent("the connection was just lost".into()));
        }
        let request = Queued { opcode, flags, body, waiter };
        let is_heartbeat = matches!(request.waiter, AnswerWaiter::Heartbeat);
        let mut waiters = self.waiters.borrow_mut();
        let stream = match is_heartbeat {
            true => waiters.reserve(MAX_STREAMS),
            false if waiters.queued.is_empty() => waiters.reserve(MAX_IN_FLIGHT),
            false => None,
        };
        match stream {
            Some(stream) => {
                drop(waiters);
                self.send_on(stream, request);
            }
            // There is another one then.
            None if is_heartbeat => {}
            None => waiters.queued.push_back(request),
        }
    }

    fn send_on(&self, stream: i16, request: Queued<AnswerWaiter>) {
        let Queued { opcode, flags, body, waiter } = request;
        let mut waiters = self.waiters.borrow_mut();
        if waiters.sent() == 1 {
            // Silence counts from the first question on.
            self.last_heard.set(Instant::now());
        }
        waiters.slots[stream as usize] = Some(waiter);
        self.metrics.in_flight.inc();
        self.metrics.requests.inc();
        self.out.push(&Header { version: self.version, flags, stream, opcode }, &body);
    }

    /// Sends what waits for a stream, as far as there are some.
    fn send_queued(&self) {
        loop {
            let mut waiters = self.waiters.borrow_mut();
            // Who was given up meanwhile is asked for by nobody.
            while waiters.queued.front().is_some_and(|request| request.waiter.is_gone()) {
                waiters.queued.pop_front();
            }
            if waiters.queued.is_empty() || self.is_closed() {
                return;
            }
            let Some(stream) = waiters.reserve(MAX_IN_FLIGHT) else { return };
            let Some(request) = waiters.queued.pop_front() else { return };
            drop(waiters);
            self.send_on(stream, request);
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// [`CallError`] says whether the request may have been executed.
    pub async fn call(
        &self,
        opcode: Opcode,
        flags: Flags,
        body: Bytes,
    ) -> Result<Envelope, CallError> {
        let (answer, result) = oneshot::channel();
        self.send(opcode, flags, body, AnswerWaiter::Call(answer));
        result.await.unwrap_or(Err(CallError::Lost))
    }

    /// `came` came with the TLS handshake.
    async fn read(self: Rc<Self>, mut stream: TcpStream, came: Vec<u8>) {
        let mut decoder = Decoder::for_responses();
        decoder.feed(&came);
        let mut buffer = Vec::with_capacity(READ_BUFFER);
        let mut failure = ConnectFailure::Lost;
        while !self.is_closed() {
            let BufResult(result, returned) = stream.read(buffer).await;
            buffer = returned;
            let Ok(1..) = result else { break };
            self.last_heard.set(Instant::now());
            let open = self.take_in(&buffer, &mut decoder);
            buffer.clear();
            if let Err(error) = self.answers(&mut decoder) {
                tracing::warn!(address = %self.address, %error, "the database sent an answer that cannot be parsed");
                failure = ConnectFailure::Protocol;
                break;
            }
            if !open {
                break;
            }
        }
        self.end(failure);
    }

    /// Gives the decoder what came from the socket; false when that was the last, as TLS has it.
    fn take_in(&self, raw: &[u8], decoder: &mut Decoder) -> bool {
        let Some(tls) = &self.tls else {
            decoder.feed(raw);
            return true;
        };
        let mut plain = Vec::with_capacity(raw.len());
        let open = tls.borrow_mut().open(raw, &mut plain);
        self.out.nudge_tls();
        decoder.feed(&plain);
        open
    }

    /// Hands out every whole answer.
    fn answers(
        self: &Rc<Self>,
        decoder: &mut Decoder,
    ) -> Result<(), afterglow_cql::frame::FrameError> {
        while let Some(envelope) = decoder.next_envelope()? {
            let opens = matches!(envelope.header.opcode, Opcode::Ready | Opcode::Authenticate);
            if opens && self.version.has_segments() {
                decoder.switch_to_segments();
                self.out.switch_to_segments();
            }
            self.answer(envelope);
            self.send_queued();
            self.close_if_retired();
        }
        Ok(())
    }

    fn answer(self: &Rc<Self>, envelope: Envelope) {
        if envelope.header.opcode == Opcode::Event {
            if let Some(events) = &*self.events.borrow() {
                // Fails when the control connection has been given up already.
                let _ = events.unbounded_send(envelope);
            }
            return;
        }
        let Some(waiter) = self.waiters.borrow_mut().take(envelope.header.stream) else {
            tracing::debug!(address = %self.address, stream = envelope.header.stream, "an answer that nobody waits for");
            return;
        };
        self.metrics.in_flight.dec();
        self.guard_keyspace(&envelope);
        if error_code(&envelope) == Some(ErrorCode::Overloaded) {
            self.overloaded.set(Some(Instant::now()));
        }
        match waiter {
            AnswerWaiter::Relay(relay) => relay.answer(self, envelope),
            AnswerWaiter::Call(answer) => drop(answer.send(Ok(envelope))),
            AnswerWaiter::Heartbeat => {}
        }
    }

    /// Nobody may have moved a shared connection to another keyspace: text that the parser does not
    /// take for USE and the server does would. Then no further request must use it.
    fn guard_keyspace(&self, answer: &Envelope) {
        if result_kind(answer) == Some(ResultKind::SetKeyspace)
            && let Some(Response::Result(response::ResultBody::SetKeyspace(now))) = parsed(answer)
            && self.shared
            && Some(now) != self.keyspace.as_deref()
        {
            tracing::warn!(
                keyspace = now,
                "connection closed: its keyspace was changed although clients share it"
            );
            self.close();
        }
    }

    /// The connection is over: tells everybody who waits.
    fn end(&self, failure: ConnectFailure) {
        self.out.abort();
        // Other attempts to connect may have a sender too: the channel is closed when nobody has
        // one.
        self.events.take();
        if self.ready.replace(false) {
            self.metrics.ready.dec();
            self.metrics.failures.inc(failure);
        }
        if let Some(act) = self.on_end.take() {
            act();
        }
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        for waiter in waiters.slots.into_iter().flatten() {
            self.metrics.in_flight.dec();
            self.metrics.unanswered.inc();
            waiter.fail(&CallError::Lost);
        }
        for request in waiters.queued {
            request.waiter.fail(&CallError::NotSent("the connection was just lost".into()));
        }
    }

    fn look_after(&self) {
        let silence = self.last_heard.get().elapsed();
        match care(self.in_flight(), silence) {
            Care::None => {}
            Care::Ask => {
                self.send(Opcode::Options, Flags::NONE, Bytes::new(), AnswerWaiter::Heartbeat)
            }
            Care::Close => {
                tracing::warn!(address = %self.address, ?silence, "connection closed: the database owes answers and is silent");
                self.close();
            }
        }
    }
}

/// What a connection needs.
#[derive(Debug, PartialEq, Eq)]
enum Care {
    None,
    /// A request that every server answers at once. It keeps firewalls from forgetting the
    /// connection. It also distinguishes a slow server (truncating a table, say) from one that is
    /// gone.
    Ask,
    Close,
}

/// `silence`: since it was last heard, or first asked.
fn care(in_flight: usize, silence: Duration) -> Care {
    match in_flight {
        0 if silence > SILENCE => Care::Ask,
        0 => Care::None,
        _ if silence > SILENCE => Care::Close,
        _ if silence >= HEARTBEAT => Care::Ask,
        _ => Care::None,
    }
}

/// A connection that is not closed to make room for another one meanwhile; see [`Backend::keep`].
pub struct KeptBackend(Rc<Backend>);

impl std::ops::Deref for KeptBackend {
    type Target = Rc<Backend>;

    fn deref(&self) -> &Rc<Backend> {
        &self.0
    }
}

impl Drop for KeptBackend {
    fn drop(&mut self) {
        self.0.kept.set(self.0.kept.get() - 1);
        self.0.close_if_retired();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_takes_long_is_asked_whether_it_is_there_before_it_is_given_up() {
        let after = |in_flight, seconds| care(in_flight, Duration::from_secs(seconds));
        assert_eq!([after(0, 29), after(0, 31)], [Care::None, Care::Ask]);
        assert_eq!([after(1, 9), after(1, 10), after(1, 31)], [Care::None, Care::Ask, Care::Close]);
    }
}
