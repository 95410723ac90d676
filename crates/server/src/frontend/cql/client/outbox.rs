//! The outbox: bytes that wait to be written to a connection, of a client or of the database.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use afterglow_cql::frame::{Compression, Encoder, Header};
use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::io::AsyncWrite;
use compio::net::TcpStream;

use crate::reactor::Wake;
use crate::tls::TlsSession;

/// A write buffer larger than this is given back after use, so that one large answer does not cost
/// memory for ever.
const KEEP_BUFFER: usize = 256 * 1024;

/// The outgoing half of a connection. Whatever is pushed while a write is under way, or in one turn
/// of the reactor, goes out together in the next write.
pub struct Outbox {
    stream: TcpStream,
    /// The connection's TLS, which whoever reads has too.
    tls: Option<Rc<RefCell<TlsSession>>>,
    encoder: RefCell<Encoder>,
    /// Bytes handed to the kernel and not yet taken by it.
    writing: Cell<usize>,
    /// When the kernel last took some, or was first given any.
    moved: Cell<Instant>,
    state: Cell<OutboxState>,
    work: Wake,
    space: Wake,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutboxState {
    Open,
    /// Write what is queued, then close.
    Finishing,
    /// Write what is queued, then end our half alone.
    Leaving,
    /// Our half has ended: the other side has not closed yet.
    Left,
    Closed,
}

/// Closes the connection when it is dropped.
struct Torn<'a>(&'a Outbox);

impl Drop for Torn<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Outbox {
    /// The outgoing half of `stream`, whose TLS handshake has been made if it has TLS. Somebody
    /// must [`run`](Outbox::run) it.
    pub fn new(stream: TcpStream, tls: Option<Rc<RefCell<TlsSession>>>) -> Self {
        Self {
            stream,
            tls,
            encoder: RefCell::default(),
            writing: Cell::new(0),
            moved: Cell::new(Instant::now()),
            state: Cell::new(OutboxState::Open),
            work: Wake::default(),
            space: Wake::default(),
        }
    }

    /// Queues an envelope. Nothing happens on a closed connection.
    pub fn push(&self, header: &Header, body: &[u8]) {
        self.encode(|encoder| encoder.push(header, body));
    }

    /// Queues an envelope whose body `write` appends to the buffer it gets. Should it panic, the
    /// connection is closed: half an envelope is in the buffer.
    pub fn push_with(&self, header: &Header, write: impl FnOnce(&mut Vec<u8>)) {
        let torn = Torn(self);
        self.encode(|encoder| encoder.push_with(header, write));
        std::mem::forget(torn);
    }

    /// Queues an envelope that is bytes already.
    pub fn push_encoded(&self, envelope: &[u8]) {
        self.encode(|encoder| encoder.push_encoded(envelope));
    }

    /// From the next envelope on, what is long enough is compressed.
    pub fn set_compression(&self, compression: Compression) {
        self.encoder.borrow_mut().set_compression(compression);
    }

    /// From the next envelope on, everything travels in segments (v5).
    pub fn switch_to_segments(&self) {
        self.encoder.borrow_mut().switch_to_segments();
    }

    fn encode(&self, push: impl FnOnce(&mut Encoder)) {
        if !matches!(self.state.get(), OutboxState::Left | OutboxState::Closed) {
            push(&mut self.encoder.borrow_mut());
            self.work.wake();
        }
    }

    /// Bytes that the other side has not taken yet, the socket's own buffer aside.
    pub fn queued(&self) -> usize {
        self.encoder.borrow().len() + self.writing.get()
    }

    /// For how long the other side has taken nothing of what waits for it.
    pub fn stands_still(&self) -> Duration {
        if self.writing.get() > 0 { self.moved.get().elapsed() } else { Duration::ZERO }
    }

    /// Whether nothing more will be written.
    pub fn is_closed(&self) -> bool {
        self.state.get() == OutboxState::Closed
    }

    /// Whether all is written and our half has ended, as [`Outbox::leave`] was to have it.
    pub fn has_left(&self) -> bool {
        self.state.get() == OutboxState::Left
    }

    /// Waits until `ready` holds; it is asked again whenever bytes were written, on
    /// [`Outbox::nudge`] and on closing. One task may wait at a time.
    pub async fn wait_until(&self, ready: impl Fn(&Self) -> bool) {
        self.space.until(|| ready(self).then_some(())).await;
    }

    /// Has the task in [`Outbox::wait_until`] look again.
    pub fn nudge(&self) {
        self.space.wake();
    }

    /// Has what TLS wants to say of its own written: whoever reads has given it something.
    pub fn nudge_tls(&self) {
        if self.tls_wants_write() {
            self.work.wake();
        }
    }

    fn tls_wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.borrow().wants_write())
    }

    /// Makes the bytes what the socket is to be given; false when TLS takes nothing more.
    fn seal(&self, buffer: &mut Vec<u8>) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.borrow_mut().seal(buffer).is_ok())
    }

    /// Reads nothing more: the reading task sees the end of the stream.
    pub fn stop_reading(&self) {
        // Fails on a socket that is closed already, which is as good.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Read);
    }

    /// Writes what is queued, then closes the connection.
    pub fn finish(&self) {
        if self.state.get() == OutboxState::Open {
            self.state.set(OutboxState::Finishing);
            self.work.wake();
        }
    }

    /// Writes what is queued, then ends our half. What the other side still sends is read: a
    /// connection that is closed beside unread bytes is reset. Some drivers take a reset for the
    /// end of the node, and an end of the stream for a reason to connect anew.
    pub fn leave(&self) {
        if self.state.get() == OutboxState::Open {
            self.state.set(OutboxState::Leaving);
            self.work.wake();
        }
    }

    /// Closes the connection at once. Whoever comes later finds it closed.
    pub fn abort(&self) {
        if self.state.replace(OutboxState::Closed) == OutboxState::Closed {
            return;
        }
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
        self.work.wake();
        self.space.wake();
    }

    /// Writes until the connection is closed; `written` hears of every write.
    pub async fn run(&self, written: impl Fn(usize)) {
        let mut stream = self.stream.clone();
        let mut buffer = Vec::new();
        while self.next(&mut buffer).await {
            if !self.seal(&mut buffer) {
                return self.abort();
            }
            let len = buffer.len();
            self.moved.set(Instant::now());
            let mut taken = 0;
            while taken < len {
                self.writing.set(len - taken);
                let BufResult(result, rest) = stream.write(buffer.slice(taken..)).await;
                buffer = rest.into_inner();
                match result {
                    Ok(more @ 1..) => taken += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    _ => break,
                }
                self.moved.set(Instant::now());
            }
            self.writing.set(0);
            buffer.clear();
            buffer.shrink_to(KEEP_BUFFER);
            if taken < len {
                return self.abort();
            }
            written(len);
            self.space.wake();
        }
        if self.state.get() != OutboxState::Leaving {
            return self.abort();
        }
        self.state.set(OutboxState::Left);
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write);
    }

    /// Whether there is a last word to write.
    fn says_goodbye(&self) -> bool {
        self.tls.iter().for_each(|tls| tls.borrow_mut().close());
        self.tls_wants_write()
    }

    /// Waits for something to write; false when there will be nothing any more.
    async fn next(&self, buffer: &mut Vec<u8>) -> bool {
        self.work
            .until(|| {
                let mut encoder = self.encoder.borrow_mut();
                match self.state.get() {
                    OutboxState::Closed => Some(false),
                    _ if !encoder.is_empty() => {
                        encoder.take_into(buffer);
                        Some(true)
                    }
                    _ if self.tls_wants_write() => Some(true),
                    OutboxState::Finishing | OutboxState::Leaving => Some(self.says_goodbye()),
                    OutboxState::Open => None,
                    OutboxState::Left => Some(false),
                }
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;

    use super::*;
    use crate::tls::{ClientFiles, ClientTls};

    #[test]
    fn a_connection_whose_tls_takes_nothing_more_is_closed_even_if_it_was_to_leave() {
        let ca = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls/ca.pem");
        let tls = ClientTls::open(ClientFiles { ca, identity: None, verify_name: true }).unwrap();
        // Without a handshake it keeps what it is given, until it has its fill.
        let tls = Rc::new(RefCell::new(tls.session("127.0.0.1").unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        compio::runtime::Runtime::new().unwrap().block_on(async {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let out = Outbox::new(stream, Some(tls));
            out.push_encoded(&[0; 1024 * 1024]);
            out.leave();
            out.run(|_| ()).await;
            assert!(out.is_closed());
        });
    }
}
