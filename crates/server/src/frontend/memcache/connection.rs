//! A client's connection from its first byte to its last.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use afterglow_engine::Backpressure;
use afterglow_memcache::{CloseReason, Decoded, Decoder, LogEntry};
use compio::BufResult;
use compio::buf::{IntoInner, IoBuf, IoVectoredBuf};
use compio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures_util::future::{Either, select};

use super::answers::Answers;
use super::budget::FREE;
use super::metering;
use super::options::REQUESTS_PER_EVENT;
use super::outgoing::Outgoing;
use super::parts::REFUSED_PAUSE;
use super::reactor_state::{Info, MemcacheReactorState};
use super::session::{MemcacheSession, Performed};
use super::shared::MemcacheShared;
use super::watchers::Watching;
use crate::metrics::RequestKind;
use crate::tls::TlsOrPlain;

/// Read buffer of a connection: small, because there may be many; doubles when filled by one read,
/// up to [`FREE`].
const READ_BUFFER: usize = 8 * 1024;
/// What one read over TLS adds to the requests at most, whatever is asked for: the bytes that it
/// takes, and a record of 16 KiB that had begun before.
const TLS_AHEAD: usize = 4 * READ_BUFFER;
/// What a connection too many is told, as memcached has it.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// A socket of either kind; clones are handles to the same one.
pub trait Stream: AsyncRead + AsyncWrite + rustix::fd::AsFd + Clone + 'static {}

impl<S: AsyncRead + AsyncWrite + rustix::fd::AsFd + Clone + 'static> Stream for S {}

/// Where a connection came from, and where to.
pub struct Ends {
    /// The client's address.
    pub peer: String,
    /// The same; `None` of a Unix socket.
    pub from: Option<SocketAddr>,
    /// The address it came to.
    pub listener: Arc<str>,
    /// Whether it speaks TLS.
    pub tls: bool,
}

/// Counts a connection of the front end as long as it lives.
struct CountedConnection(Arc<MemcacheShared>);

impl CountedConnection {
    /// `None` when there are too many.
    fn new(front_end: &Arc<MemcacheShared>) -> Option<Self> {
        let before = front_end.connections.fetch_add(1, Ordering::AcqRel);
        let entered = CountedConnection(front_end.clone());
        (before < front_end.limits.connections()).then_some(entered)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves one connection to its end; `guard` is held as long as it is served. With TLS it is no
/// session before its handshake is made, and no drain waits for it.
pub async fn serve<S: Stream>(
    front_end: Arc<MemcacheShared>,
    mut stream: S,
    ends: Ends,
    guard: impl Sized,
) {
    let reactor_state = MemcacheReactorState::of(&front_end);
    let Some(_entered) = CountedConnection::new(&front_end) else {
        reactor_state.metrics.connections_refused.inc();
        // Whether it hears why or not, it is over.
        let _ = stream.write_all(TOO_MANY).await;
        return;
    };
    let _guard = guard;
    let Some(greeted) = greet(&reactor_state, &mut stream, &ends).await else { return };
    let _counted = front_end.sessions.enter();
    let cfd = stream.as_fd().as_raw_fd();
    let answers = Answers::new(reactor_state.budget.share(), cfd);
    let handle = stream.clone();
    let info = Rc::new(Info {
        id: reactor_state.next_id(),
        peer: ends.peer,
        listener: ends.listener,
        last_request: front_end.seconds().into(),
        writing_since: None.into(),
        moved: front_end.seconds().into(),
        written: 0.into(),
        holding_since: None.into(),
        received: 0.into(),
        dump: RefCell::default(),
        watching: false.into(),
        cut: None.into(),
        answers: answers.clone(),
        // Fails on a socket that is closed already, which is as good.
        shut: Box::new(move |how| {
            let _ = rustix::net::shutdown(&handle, how);
        }),
    });
    reactor_state.metrics.connections_opened.inc();
    front_end.watchers.log(&LogEntry::Opened(ends.from, cfd));
    reactor_state.add(&info);
    let mut connection = MemcacheConnection {
        decoder: Decoder::new(front_end.config.max_item, front_end.config.users.is_some())
            .parting(front_end.config.parting),
        session: MemcacheSession::new(reactor_state.clone(), answers.clone()),
        stream,
        reader: None,
        transport: greeted.transport,
        info: info.clone(),
        answers,
        input: greeted.came,
        start: 0,
        want: READ_BUFFER,
        over: greeted.over,
    };
    let ended = connection.run().await;
    connection.answers.close();
    let reason = info.cut.get().unwrap_or(ended.unwrap_or(CloseReason::Error));
    front_end.watchers.log(&LogEntry::Closed(ends.from, cfd, reason));
    reactor_state.remove(info.id);
    reactor_state.metrics.connections_closed.inc();
}

/// A connection before its first request is carried out.
struct Greeted {
    transport: TlsOrPlain,
    /// What came with the TLS handshake.
    came: Vec<u8>,
    /// The client has said its last.
    over: bool,
}

/// Makes the TLS handshake where there is to be one. `None`: it failed, or the front end closes.
///
/// Whoever drains sets `closing` before it looks for connections on this reactor. So a connection
/// that does not find it set is among those, if it is added without waiting for anything more. One
/// that does find it may have been accepted before, and have come to this reactor only now.
async fn greet<S: Stream>(
    reactor_state: &MemcacheReactorState,
    stream: &mut S,
    ends: &Ends,
) -> Option<Greeted> {
    let MemcacheReactorState { front_end, handshakes, metrics, .. } = reactor_state;
    let greeted = match front_end.config.tls.as_deref().filter(|_| ends.tls) {
        None => Greeted {
            transport: TlsOrPlain::Plain,
            came: Vec::with_capacity(READ_BUFFER),
            over: false,
        },
        Some(tls) => {
            let client = handshakes.secure(tls, stream, &ends.peer, metrics).await?;
            Greeted {
                transport: TlsOrPlain::Tls(Box::new(client.session)),
                came: client.came,
                over: !client.open,
            }
        }
    };
    (!front_end.closing.load(Ordering::Acquire)).then_some(greeted)
}

struct MemcacheConnection<S> {
    stream: S,
    /// The handle that reads, while it does not. Each read tells it whether the socket is empty
    /// now: then the next one waits for bytes without a look at the socket. Clones are not told.
    reader: Option<S>,
    transport: TlsOrPlain,
    info: Rc<Info>,
    decoder: Decoder,
    session: MemcacheSession,
    answers: Rc<Answers>,
    /// What has come and is not done with yet begins at `start`.
    input: Vec<u8>,
    start: usize,
    /// How much to read at once.
    want: usize,
    /// The client has said its last.
    over: bool,
}

/// Writes all of it, and says each time how much of it was taken. How many bytes that were, and
/// what was written.
async fn write<S: Stream>(
    stream: &mut S,
    mut out: Outgoing,
    moved: impl Fn(usize),
) -> (io::Result<()>, usize, Outgoing) {
    let (len, mut written) = (out.total_len(), 0);
    while written < len {
        let result = if out.shared() > 0 {
            let BufResult(result, rest) = stream.write_vectored(out.slice(written)).await;
            out = rest.into_inner();
            result
        } else {
            let text = std::mem::take(out.text());
            let BufResult(result, rest) = stream.write(text.slice(written..)).await;
            out = Outgoing::of_text(rest.into_inner());
            result
        };
        match result {
            Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), len, out),
            Ok(bytes) => {
                written += bytes;
                moved(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (Err(error), len, out),
        }
    }
    (Ok(()), len, out)
}

/// What to do when nothing more can be done.
enum Pause {
    /// Read until there are so many bytes.
    Read(usize),
    /// Wait until an answer is known or there is room.
    Wait,
    /// Wait until the cache has room for what the request changes.
    Full(Backpressure),
    /// Wait a moment: flash does not take what came now.
    Nap,
    /// Let others have their turn, then go on.
    Yield,
    /// Send what is told to those who watch, until the client goes.
    Watch(Watching),
    /// Give the answers that are under way, and end.
    End(CloseReason),
}

impl<S: Stream> MemcacheConnection<S> {
    /// Serves it; how it ended is of interest to those who watch connections.
    async fn run(&mut self) -> io::Result<CloseReason> {
        loop {
            let step = self.execute();
            if matches!(step, Pause::Yield) {
                // Nothing is sent yet, so that all that came together is answered with one write.
                self.session.reactor_state.counts.conn_yields.inc();
                crate::reactor::yield_now().await;
                self.info.check()?;
                continue;
            }
            let sent = self.send().await?;
            match step {
                Pause::Yield => unreachable!("handled above"),
                Pause::Read(_) if self.over => return self.end(CloseReason::Normal).await,
                Pause::Read(least) => self.read(least).await?,
                // What was sent may have made the room that was missing.
                // A client that takes its answers is not idle.
                Pause::Wait if sent > 0 => {
                    self.info.last_request.set(self.session.reactor_state.front_end.seconds())
                }
                Pause::Wait => {
                    self.answers.changed().await;
                    self.info.check()?;
                }
                Pause::Full(backpressure) => backpressure.await,
                Pause::Nap => compio::time::sleep(REFUSED_PAUSE).await,
                Pause::Watch(watching) => return self.watch(watching).await,
                Pause::End(reason) => return self.end(reason).await,
            }
        }
    }

    /// Carries out what has come, up to [`REQUESTS_PER_EVENT`] requests.
    fn execute(&mut self) -> Pause {
        let began = Instant::now();
        let mut done = 0;
        self.answers.begin_turn();
        self.session.flush_if_due();
        let step = loop {
            if done == REQUESTS_PER_EVENT && self.start < self.input.len() {
                break Pause::Yield;
            }
            let input = &self.input[self.start..];
            let (len, kind, performed) = match self.decoder.next(input) {
                Decoded::More(least) => break Pause::Read(least),
                Decoded::Skip(len) => {
                    self.start += len;
                    continue;
                }
                Decoded::Close => break Pause::End(CloseReason::Error),
                Decoded::Request(len, request) => {
                    (len, Some(metering::kind(&request)), self.session.perform(request))
                }
                Decoded::Begin(len, operation, value) => {
                    (len, None, self.session.begin_parts(operation, value))
                }
                Decoded::Part(part) => {
                    // It makes progress, so it is not one that only holds what others wait for.
                    self.info.holding_since.set(None);
                    (part.len(), None, self.session.part(part))
                }
                Decoded::End(len, whole) => {
                    (len, Some(RequestKind::Store), self.session.end_parts(whole))
                }
            };
            if let Some(dump) = &self.session.dump {
                self.info.dump.replace(dump.turn());
            }
            let pause = match performed {
                Performed::Full(backpressure) => Some(Pause::Full(backpressure)),
                Performed::Blocked => Some(Pause::Wait),
                Performed::Refused => Some(Pause::Nap),
                ended => {
                    if let Some(kind) = kind {
                        self.session.reactor_state.metrics.requests.inc(kind);
                    }
                    match ended {
                        Performed::Close => break Pause::End(CloseReason::Normal),
                        Performed::Watch(watching) => break Pause::Watch(watching),
                        Performed::Authenticated => self.decoder.set_authenticated(),
                        _ => {}
                    }
                    None
                }
            };
            if let Some(pause) = pause {
                self.decoder.undo();
                break pause;
            }
            self.start += len;
            done += 1;
            let most = REQUESTS_PER_EVENT.saturating_sub(done) as usize;
            let is_get = kind == Some(RequestKind::Get);
            self.session.prefetch_ahead(&self.input[self.start..], is_get, most);
        };
        self.end_turn(began, done);
        step
    }

    /// So many requests were carried out since `began`.
    fn end_turn(&mut self, began: Instant, done: u64) {
        self.answers.end_turn();
        if done > 0 {
            self.info.last_request.set(self.session.reactor_state.front_end.seconds());
        }
        let MemcacheSession { reactor_state, at_once, .. } = &mut self.session;
        if !at_once.is_empty() {
            at_once.record(began.elapsed(), &reactor_state.metrics);
        }
    }

    /// Sends whatever can be sent; how many bytes that was.
    async fn send(&mut self) -> io::Result<usize> {
        let mut total = 0;
        loop {
            let mut out = Outgoing::default();
            if !self.answers.take(&mut out) && !self.transport.wants_write() {
                break;
            }
            let held = out.held();
            if self.transport.is_tls() {
                let mut text = out.into_text();
                self.transport.seal(&mut text)?;
                out = Outgoing::of_text(text);
            }
            let (info, front_end) = (&self.info, &self.session.reactor_state.front_end);
            info.begins_to_write(front_end.seconds());
            let moved = |bytes| info.wrote(bytes, front_end.seconds());
            let (result, len, sent) = write(&mut self.stream, out, moved).await;
            self.info.writing_since.set(None);
            result?;
            // Counted as sent before its memory goes: a read buffer is kept where there is room.
            self.answers.sent(held);
            self.answers.put_back(sent.into_sent());
            self.session.reactor_state.metrics.bytes_sent.add(len as u64);
            total += len;
        }
        if self.answers.is_broken() {
            return Err(io::Error::other("an answer was lost"));
        }
        Ok(total)
    }

    /// Moves what is not done with to the front, and sees that there is room for `least` bytes in
    /// all.
    async fn make_room(&mut self, least: usize) -> io::Result<()> {
        self.input.drain(..self.start);
        self.start = 0;
        let rest = self.input.len();
        // This prevents deadlock. The free bytes are enough for anything small, and held bytes are
        // enough for the rest of their request. A connection that asked for more while it holds
        // some could wait for another one that waits for it.
        let ahead = if self.transport.is_tls() { TLS_AHEAD } else { 0 };
        let free = FREE - ahead;
        let mut wanted = least.max((rest + self.want).min(free));
        if rest < free && self.input.capacity() < wanted + ahead {
            // A client that sends nothing is to hold nothing that others wait for.
            wanted = wanted.min(free);
        }
        if rest == 0 && self.input.capacity() > FREE && !self.decoder.is_parting() {
            self.input = Vec::new();
        }
        let capacity = self.input.capacity();
        if wanted > free {
            wanted += ahead;
            let more = wanted.saturating_sub(capacity.max(READ_BUFFER));
            // Who is told asks at once: a write to a client that stands still would hold it up.
            while capacity < wanted && !self.answers.may_read(more) {
                if self.send().await? == 0 {
                    self.answers.changed().await;
                    self.info.check()?;
                }
            }
            let now = self.session.reactor_state.front_end.seconds();
            self.info.holds(now);
        } else {
            self.info.holding_since.set(None);
        }
        self.input.reserve_exact(wanted - rest);
        if self.input.capacity() > FREE / 2 {
            // It would grow to double its length, which nobody has granted.
            self.input.reserve_exact(ahead);
        }
        self.answers.set_input(self.input.capacity().saturating_sub(READ_BUFFER));
        Ok(())
    }

    /// Reads something, or that there is nothing more to read, sending answers as they become
    /// known. What comes with the client's last word is still to be carried out.
    async fn read(&mut self, least: usize) -> io::Result<()> {
        loop {
            self.make_room(least).await?;
            let before = self.input.len();
            let buffer = match self.transport.is_tls() {
                true => Vec::with_capacity(2 * READ_BUFFER),
                false => std::mem::take(&mut self.input),
            };
            let mut reader = self.reader.take().unwrap_or_else(|| self.stream.clone());
            let mut reading = std::pin::pin!(async move {
                let read = reader.append(buffer).await;
                (read, reader)
            });
            let (BufResult(result, buffer), reader) = loop {
                if self.answers.is_complete() {
                    break reading.as_mut().await;
                }
                let answers = self.answers.clone();
                let changed = std::pin::pin!(answers.changed());
                match select(reading.as_mut(), changed).await {
                    Either::Left((read, _)) => break read,
                    Either::Right(_) => self.send().await?,
                };
            };
            self.reader = Some(reader);
            let read = result?;
            self.session.reactor_state.metrics.bytes_received.add(read as u64);
            self.info.came(read, self.session.reactor_state.front_end.seconds());
            self.session.received = Instant::now();
            let open = match self.transport.is_tls() {
                true => {
                    let opened = self.transport.open(&buffer, &mut self.input);
                    // A handshake's next message, or the alert that says why there is none.
                    self.send().await?;
                    opened
                }
                false => {
                    self.input = buffer;
                    true
                }
            };
            self.want = match read {
                full if full >= self.want => (self.want * 2).min(FREE),
                _ => self.want,
            };
            self.over = read == 0 || !open;
            let came = self.input.len().saturating_sub(before);
            if self.over || self.input.len() >= least || came >= FREE {
                return Ok(());
            }
        }
    }

    /// Gives every answer that is under way.
    async fn end(&mut self, reason: CloseReason) -> io::Result<CloseReason> {
        loop {
            self.send().await?;
            if self.answers.is_complete() {
                break;
            }
            self.answers.changed().await;
        }
        self.transport.close();
        self.send().await?;
        Ok(reason)
    }

    /// Sends lines until the client goes; what it says meanwhile is dropped, as in memcached.
    async fn watch(&mut self, watching: Watching) -> io::Result<CloseReason> {
        self.info.watching.set(true);
        loop {
            let mut stream = self.stream.clone();
            let buffer = Vec::with_capacity(2 * READ_BUFFER);
            let mut reading = std::pin::pin!(async move { stream.read(buffer).await });
            let BufResult(read, buffer) = loop {
                match select(reading.as_mut(), std::pin::pin!(watching.lines())).await {
                    Either::Left((read, _)) => break read,
                    Either::Right((lines, _)) => {
                        self.answers.push(|out| out.extend_from_slice(&lines));
                        self.send().await?;
                    }
                }
                self.info.check()?;
            };
            let read = read?;
            self.session.reactor_state.metrics.bytes_received.add(read as u64);
            self.input = Vec::new();
            let open = match self.transport.is_tls() {
                true => self.transport.open(&buffer, &mut self.input),
                false => true,
            };
            if read == 0 || !open {
                return self.end(CloseReason::Normal).await;
            }
        }
    }
}
