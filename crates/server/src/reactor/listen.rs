//! Listening sockets: one thread accepts; a connection goes to the reactor that has the fewest.
//!
//! SO_REUSEPORT is not used. With it the kernel spreads connections by a hash of the addresses.
//! Drivers open one or two long connections per node, so with a handful of clients one core would
//! often get them all. Accepting is rare here, and balance by count is worth the hand-over. Also,
//! with SO_REUSEPORT a second process could silently share the port.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use compio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use parking_lot::Mutex;

use super::reactors::{ConnectionGuard, Reactors};
use super::wake::wake_in_drop;

/// How long to wait after an accept failed (mostly: no descriptors left) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that may wait to be accepted, as memcached has it: many clients come back at once
/// after a restart. The standard library's sockets have 128; to listen again changes that. The
/// system may allow fewer (`net.core.somaxconn`).
const BACKLOG: i32 = 1024;

/// For how long an address that is in use may be that of a process that is gone.
const LETTING_GO: Duration = Duration::from_secs(2);
/// Pause between two attempts to take an address.
const BIND_PAUSE: Duration = Duration::from_millis(5);

/// A listening socket could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose a free address of this machine")]
pub struct ListenError {
    /// The address that was asked for.
    pub address: String,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// A listening socket whose connections are spread over the reactors.
pub struct Listener {
    address: SocketAddr,
    reactors: Reactors,
    stop: Arc<Mutex<Option<Stop>>>,
    /// The file of a Unix socket.
    _file: Option<SocketFile>,
}

/// An address that is ours before anybody is served there. Whoever connects meanwhile waits.
pub struct Bound {
    socket: StdListener,
    address: SocketAddr,
}

impl Bound {
    /// Where it will listen, with the port that the system chose in place of 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A socket that another process listens on, or has. Its flags are that one's too, so they stay
    /// as they are: its runtime may rely on them.
    ///
    /// # Errors
    /// When it is no listening socket of an address.
    pub fn taken(socket: OwnedFd) -> io::Result<Self> {
        let socket = StdListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// The same socket once more, for another process. While it is open, whoever connects waits.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Takes `address`; port 0 lets the system choose one.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address: address.to_string(), source };
        let socket = once_let_go(LETTING_GO, || StdListener::bind(address)).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, address })
    }
}

/// A Unix socket that is ours before anybody is served there; its file is removed when this is
/// dropped.
pub struct BoundUnix {
    socket: StdUnixListener,
    file: SocketFile,
}

impl BoundUnix {
    /// Makes a socket that only this user may use. One that a process left behind is replaced.
    ///
    /// # Errors
    /// When something else has that name, or a process listens there.
    pub fn at(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address: path.display().to_string(), source };
        let socket = once_let_go(LETTING_GO, || bind_unix(path)).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
        Ok(Self { socket, file: SocketFile(path.to_owned()) })
    }
}

/// The file of a Unix socket, removed in the end.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Ends the accepting task on reactor 0 when it is dropped.
struct Stop(Option<futures_channel::oneshot::Sender<()>>);

impl Drop for Stop {
    fn drop(&mut self) {
        let accepting = self.0.take();
        wake_in_drop(|| drop(accepting));
    }
}

impl Listener {
    /// Listens on `address`; `serve` runs on the reactor of each connection, which counts as there
    /// until the guard is dropped.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn start<S, F>(
        reactors: &Reactors,
        address: SocketAddr,
        serve: S,
    ) -> Result<Self, ListenError>
    where
        S: Fn(TcpStream, SocketAddr, ConnectionGuard) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        Ok(Self::start_on(reactors, Bound::tcp(address)?, serve))
    }

    /// As [`Listener::start`], on an address that is bound already.
    pub fn start_on<S, F>(reactors: &Reactors, bound: Bound, serve: S) -> Self
    where
        S: Fn(TcpStream, SocketAddr, ConnectionGuard) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let Bound { socket, address } = bound;
        let (stop, stopped) = futures_channel::oneshot::channel();
        let spread = reactors.clone();
        reactors.spawn_on(0, move || async move {
            // A process that listened on it before may have had another driver.
            let ours = socket.set_nonblocking(false).and_then(|()| TcpListener::from_std(socket));
            match ours {
                Ok(listener) => accept(&listener, stopped, &spread, serve).await,
                Err(error) => {
                    tracing::error!(%address, %error, "the listening socket cannot be used")
                }
            }
        });
        let stop = Arc::new(Mutex::new(Some(Stop(Some(stop)))));
        Self { address, reactors: reactors.clone(), stop, _file: None }
    }

    /// As [`Listener::start_on`], on a Unix socket.
    pub fn start_unix<S, F>(reactors: &Reactors, bound: BoundUnix, serve: S) -> Self
    where
        S: Fn(UnixStream, ConnectionGuard) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let BoundUnix { socket, file } = bound;
        let (stop, stopped) = futures_channel::oneshot::channel();
        let (spread, shown) = (reactors.clone(), file.0.clone());
        reactors.spawn_on(0, move || async move {
            match UnixListener::from_std(socket) {
                Ok(listener) => accept_unix(&listener, stopped, &spread, serve).await,
                Err(error) => {
                    tracing::error!(path = %shown.display(), %error, "the listening socket cannot be used")
                }
            }
        });
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let stop = Arc::new(Mutex::new(Some(Stop(Some(stop)))));
        Self { address, reactors: reactors.clone(), stop, _file: Some(file) }
    }

    /// Where it listens: the address asked for, with the port that the system chose in place of 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The reactors its connections live on.
    pub fn reactors(&self) -> &Reactors {
        &self.reactors
    }

    /// Takes no further connections; those that are there stay.
    pub fn stop(&self) {
        drop(self.stop.lock().take());
    }
}

async fn accept<S, F>(
    listener: &TcpListener,
    stopped: futures_channel::oneshot::Receiver<()>,
    reactors: &Reactors,
    serve: S,
) where
    S: Fn(TcpStream, SocketAddr, ConnectionGuard) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => hand_over(&stream, peer, reactors, &serve),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    compio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    futures_util::future::select(std::pin::pin!(accepting), stopped).await;
}

/// Moves a connection to the reactor with the fewest.
fn hand_over<S, F>(stream: &TcpStream, peer: SocketAddr, reactors: &Reactors, serve: &S)
where
    S: Fn(TcpStream, SocketAddr, ConnectionGuard) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    let (index, guard) = reactors.place_connection();
    // A runtime's socket stays with its thread, so the other one gets a descriptor of its own.
    let moved = stream.set_nodelay(true).and_then(|()| stream.as_fd().try_clone_to_owned());
    let serve = serve.clone();
    match moved {
        Ok(fd) => reactors.spawn_on(index, move || async move {
            match TcpStream::from_std(StdStream::from(fd)) {
                Ok(stream) => serve(stream, peer, guard).await,
                Err(error) => {
                    tracing::warn!(%peer, %error, "a connection was lost on its way to its reactor")
                }
            }
        }),
        Err(error) => {
            tracing::warn!(%peer, %error, "a connection could not be handed to its reactor")
        }
    }
}

/// Binds, again and again while the address is in use. The kernel closes a listening socket that
/// was used through io_uring a moment after its process is gone: a successor waits that long.
fn once_let_go<T>(limit: Duration, bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let until = Instant::now() + limit;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(BIND_PAUSE);
            }
            bound => return bound,
        }
    }
}

fn bind_unix(path: &Path) -> io::Result<StdUnixListener> {
    let is_left_behind = || {
        let is_socket =
            std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        is_socket && StdUnixStream::connect(path).is_err_and(refused)
    };
    let socket = match StdUnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_behind() => {
            std::fs::remove_file(path)?;
            StdUnixListener::bind(path)?
        }
        bound => bound?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    Ok(socket)
}

async fn accept_unix<S, F>(
    listener: &UnixListener,
    stopped: futures_channel::oneshot::Receiver<()>,
    reactors: &Reactors,
    serve: S,
) where
    S: Fn(UnixStream, ConnectionGuard) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    let accepting = async {
        loop {
            let moved = match listener.accept().await {
                Ok((stream, _)) => stream.as_fd().try_clone_to_owned(),
                Err(error) => Err(error),
            };
            let fd = match moved {
                Ok(fd) => fd,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    compio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (index, guard) = reactors.place_connection();
            let serve = serve.clone();
            reactors.spawn_on(index, move || async move {
                match UnixStream::from_std(StdUnixStream::from(fd)) {
                    Ok(stream) => serve(stream, guard).await,
                    Err(error) => {
                        tracing::warn!(%error, "a connection was lost on its way to its reactor")
                    }
                }
            });
        }
    };
    futures_util::future::select(std::pin::pin!(accepting), stopped).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_wait_to_be_accepted_as_a_fleet_makes_at_once() {
        const CLIENTS: usize = 200;
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux");
        let clients = CLIENTS.min(allowed.trim().parse().expect("a number"));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let unix = BoundUnix::at(&path).expect("bound");
        let tcp = Bound::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        // Beyond the backlog a TCP connection is not made, and one by a Unix socket waits for ever.
        let waiting: Vec<_> = (0..clients)
            .map(|_| StdStream::connect_timeout(&tcp.address, LETTING_GO).expect("room to wait in"))
            .collect();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let waiting: io::Result<Vec<_>> =
                (0..clients).map(|_| StdUnixStream::connect(&path)).collect();
            // The test may be over already.
            let _ = tell.send(waiting);
        });
        let local = told
            .recv_timeout(Duration::from_secs(60))
            .expect("room to wait in")
            .expect("connected");
        assert_eq!((waiting.len(), local.len()), (clients, clients));
        drop(unix);
    }

    #[test]
    fn an_address_that_is_let_go_soon_is_waited_for() {
        let first = StdListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = first.local_addr().expect("bound");
        let taken = once_let_go(Duration::ZERO, || StdListener::bind(address)).expect_err("in use");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| once_let_go(Duration::from_secs(60), || StdListener::bind(address)));
            std::thread::sleep(Duration::from_millis(20));
            drop(first);
            assert_eq!(
                waits.join().expect("no panic").expect("bound").local_addr().expect("bound"),
                address
            );
        });
    }
}
