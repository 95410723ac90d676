//! Limits of the admin address's connections: few at once, and none that is stalled.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};

use super::places::{Place, Places};

/// What the connections may have.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once, at least one.
    pub connections: usize,
    /// From one answer, or the beginning, to the next answer.
    pub timeout: Duration,
    /// Where all connections are taken, the idlest gives way to a further one if it has been idle
    /// for so long.
    pub grace: Duration,
}

/// Takes a bounded number of connections, and ends one that has not asked for a page and taken it
/// within the time given. Whoever comes beyond the bound gets the place of the idlest.
pub struct Limited {
    listener: TcpListener,
    places: Arc<Places>,
    timeout: Duration,
}

impl Limited {
    /// Takes connections of that listener.
    pub fn new(listener: TcpListener, limits: Limits) -> Self {
        let places = Places::new(limits.connections, limits.grace);
        Self { listener, places, timeout: limits.timeout }
    }
}

impl Listener for Limited {
    type Io = AdminConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AdminConnection, SocketAddr) {
        // Nobody is evicted before a client is there that needs the place.
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        let place = self.places.take().await;
        let deadline = Box::pin(sleep(self.timeout));
        (AdminConnection { stream, deadline, timeout: self.timeout, place }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection of the admin address.
pub struct AdminConnection {
    stream: TcpStream,
    /// When it ends unless something of an answer is taken before. What the client sends does not
    /// put it off: a client could send the head of its request byte by byte for ever.
    deadline: Pin<Box<Sleep>>,
    timeout: Duration,
    /// Given back when the connection ends.
    place: Place,
}

impl AdminConnection {
    /// What `io` comes to, unless it waits beyond the deadline or its place goes to another client.
    /// Whoever polls is woken then too.
    fn in_time<T>(&mut self, io: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if io.is_ready() {
            return io;
        }
        if self.deadline.as_mut().poll(cx).is_ready() || self.place.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        io
    }

    /// As [`AdminConnection::in_time`], for what a client takes: that puts the deadline off.
    fn taken(
        &mut self,
        io: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = io {
            self.deadline.as_mut().reset(Instant::now() + self.timeout);
            self.place.is_used();
        }
        self.in_time(io, cx)
    }
}

impl AsyncRead for AdminConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A client that sends and sends makes every read ready: it is held to the deadline and to
        // an eviction all the same.
        if self.deadline.is_elapsed() || self.place.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let read = pin!(&mut self.stream).poll_read(cx, buf);
        self.in_time(read, cx)
    }
}

impl AsyncWrite for AdminConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = pin!(&mut self.stream).poll_write(cx, bytes);
        self.taken(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = pin!(&mut self.stream).poll_write_vectored(cx, parts);
        self.taken(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(cx)
    }
}
