//! Commands of the operator to a running server: over a Unix socket in the data directory, which
//! only its owner may enter. Unlike the admin address it may change things.
//!
//! ```text
//! client: one line, the command      server: one line, `{"done": ...}` or `{"error": "..."}`
//! ```
//!
//! One connection is served at a time, and each for at most [`TIMEOUT`].
//!
//! [`HAND_OVER`] is answered with an [`Offer`] and descriptors: the listening sockets, by
//! SCM_RIGHTS, in the order of their names. Nothing has changed then. The server stops when the
//! other says [`GO`]; if it says nothing, or has gone, the server goes on.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The socket's name in the data directory.
const SOCKET: &str = "operator.sock";
/// How long a command may take to be sent and answered.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest command.
const MAX_COMMAND: u64 = 64 * 1024;

/// What a server does when it is told to: an answer in JSON, or why not.
pub trait Operated: Send + Sync + 'static {
    /// Carries a command out.
    ///
    /// # Errors
    /// Why it cannot be done, in words for the operator.
    fn command(&self, command: &str) -> Result<serde_json::Value, String>;

    /// The listening sockets, for a process that takes over, and their names in the offer.
    ///
    /// # Errors
    /// Why not, in words for the operator.
    fn offer(&self) -> Result<(Offer, Vec<OwnedFd>), String>;

    /// A process that has the sockets can start: end.
    fn succeeded(&self);
}

/// What a server offers to a process that takes over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Names of the sockets, in their order.
    pub sockets: Vec<String>,
    /// Where its admin pages are. That socket is not handed over.
    pub admin: Option<SocketAddr>,
}

/// Asks for the listening sockets.
const HAND_OVER: &str = "hand over";
/// The process that has the sockets can start.
const GO: &str = "go";
/// Sockets that can be handed over at once.
const MOST_SOCKETS: usize = 8;
/// For so many milliseconds a server that has been killed may still seem to listen.
const CLOSES_FOR: usize = 200;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Done(serde_json::Value),
    Error(String),
}

/// The open socket; dropping it removes it. The thread that serves it ends with the process.
pub struct OperatorSocket {
    path: PathBuf,
    /// The file of it, as [`file_of`] tells.
    made: (u64, u64),
}

impl OperatorSocket {
    /// Opens it in the data directory, which must be locked: a socket that is there is a dead
    /// process's.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(data_dir: &Path, operated: Arc<dyn Operated>) -> io::Result<OperatorSocket> {
        let path = data_dir.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let made = file_of(&path)?;
        std::thread::Builder::new().name("operator".into()).spawn(move || {
            for stream in listener.incoming() {
                // Whoever has gone does not hear the answer.
                let _ = stream.and_then(|stream| serve(stream, &*operated));
            }
        })?;
        Ok(OperatorSocket { path, made })
    }
}

impl Drop for OperatorSocket {
    fn drop(&mut self) {
        // Where the directory was removed and made again another process may have its own there.
        if file_of(&self.path).is_ok_and(|there| there == self.made) {
            // The next start removes what this leaves.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and number of the file there.
fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn serve(mut stream: UnixStream, operated: &dyn Operated) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut command = String::new();
    BufReader::new((&stream).take(MAX_COMMAND)).read_line(&mut command)?;
    if command.trim() == HAND_OVER {
        return hand_over(stream, operated);
    }
    // Who has given up while others were served thinks that it is not done.
    if has_gone(&mut stream)? {
        return Ok(());
    }
    let reply = match operated.command(command.trim()) {
        Ok(done) => Reply::Done(done),
        Err(why) => Reply::Error(why),
    };
    stream.write_all(&line_of(&reply)?)
}

fn has_gone(stream: &mut UnixStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let gone = matches!(stream.read(&mut [0]), Ok(0));
    stream.set_nonblocking(false)?;
    Ok(gone)
}

fn line_of(reply: &Reply) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(reply).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

/// A server whose successor says nothing goes on serving.
fn hand_over(mut stream: UnixStream, operated: &dyn Operated) -> io::Result<()> {
    let (offer, sockets) = match operated.offer() {
        Ok(offered) => offered,
        Err(why) => return stream.write_all(&line_of(&Reply::Error(why))?),
    };
    assert!(sockets.len() <= MOST_SOCKETS, "more sockets than a message has room for");
    assert_eq!(sockets.len(), offer.sockets.len(), "each socket has a name");
    let line = line_of(&Reply::Done(serde_json::to_value(offer).map_err(io::Error::other)?))?;
    let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let slices = [IoSlice::new(&line)];
    let sent = retry_on_intr(|| sendmsg(&stream, &slices, &mut control, SendFlags::empty()))?;
    stream.write_all(&line[sent..])?;
    let mut answer = String::new();
    BufReader::new((&stream).take(MAX_COMMAND)).read_line(&mut answer)?;
    if answer.trim() != GO {
        return Ok(());
    }
    operated.succeeded();
    stream.write_all(&line_of(&Reply::Done(serde_json::Value::Null))?)
}

/// The sockets of a running server. It stops once they are accepted; dropping this leaves it as it
/// is.
pub struct Offered {
    /// What it says of them.
    pub offer: Offer,
    /// The sockets.
    pub sockets: Vec<OwnedFd>,
    stream: UnixStream,
}

impl Offered {
    /// Has the server stop.
    ///
    /// # Errors
    /// It does not answer. It may stop all the same.
    pub fn accept(&mut self) -> Result<(), String> {
        let failed = |error: io::Error| format!("the server that runs does not answer: {error}");
        self.stream.write_all(format!("{GO}\n").as_bytes()).map_err(failed)?;
        let mut line = Vec::new();
        BufReader::new(&self.stream).read_until(b'\n', &mut line).map_err(failed)?;
        done(&line)
    }
}

/// Asks the server on this data directory for its listening sockets. `None`: no server runs there,
/// or it has ended meanwhile.
///
/// # Errors
/// Why it could not be asked, or what it says against it.
pub fn ask_for_sockets(data_dir: &Path) -> Result<Option<Offered>, String> {
    if !is_there(data_dir) {
        return Ok(None);
    }
    match offered(data_dir) {
        Ok(offered) => Ok(Some(offered)),
        Err(_) if has_ended(data_dir) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Whether nobody listens any more for commands in this data directory. The kernel closes what a
/// process had one after the other, so this looks again for a moment.
pub fn has_ended(data_dir: &Path) -> bool {
    (0..CLOSES_FOR).any(|looks| {
        if looks > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        !is_there(data_dir)
    })
}

fn is_there(data_dir: &Path) -> bool {
    !UnixStream::connect(data_dir.join(SOCKET)).is_err_and(|error| is_nobody(&error))
}

fn offered(data_dir: &Path) -> Result<Offered, String> {
    let failed = |error: io::Error| not_asked(data_dir, &error);
    let mut stream = connect(data_dir)?;
    stream.write_all(format!("{HAND_OVER}\n").as_bytes()).map_err(failed)?;
    let (mut line, mut sockets) = (vec![0; MAX_COMMAND as usize], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // A socket with a timeout ends its wait also where its process was stopped and goes on.
    let read = retry_on_intr(|| {
        recvmsg(&stream, &mut [IoSliceMut::new(&mut line)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(|error| failed(error.into()))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            sockets.extend(descriptors);
        }
    }
    line.truncate(read.bytes);
    if !line.ends_with(b"\n") {
        BufReader::new(&stream).read_until(b'\n', &mut line).map_err(failed)?;
    }
    let offer: Offer = done(&line)?;
    if offer.sockets.len() != sockets.len() {
        let (names, count) = (offer.sockets.len(), sockets.len());
        return Err(format!("{count} sockets came under {names} names"));
    }
    Ok(Offered { offer, sockets, stream })
}

/// Whether a connection failed because nobody listens.
fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Has the server on this data directory carry a command out.
///
/// # Errors
/// Why it could not be asked, or what it says against it.
pub fn ask<T: DeserializeOwned>(data_dir: &Path, command: &str) -> Result<T, String> {
    let failed = |error: io::Error| not_asked(data_dir, &error);
    let mut stream = connect(data_dir)?;
    stream.write_all(format!("{command}\n").as_bytes()).map_err(failed)?;
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).map_err(failed)?;
    done(&line)
}

fn not_asked(data_dir: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "the server on {} has not answered for {} s: it stands still, or its machine is overloaded",
            data_dir.display(),
            TIMEOUT.as_secs()
        ),
        _ => format!("the server on {} cannot be asked: {error}", data_dir.display()),
    }
}

fn connect(data_dir: &Path) -> Result<UnixStream, String> {
    let path = data_dir.join(SOCKET);
    let failed = |error: io::Error| match error.kind() {
        _ if is_nobody(&error) => format!(
            "no server runs on {}: start it, or name the data directory of one that runs with --data-dir",
            data_dir.display()
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{} is another user's: run this as the server's user", path.display())
        }
        _ => not_asked(data_dir, &error),
    };
    let stream = UnixStream::connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
    Ok(stream)
}

fn done<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    let strange =
        |error: serde_json::Error| format!("the server's answer is not understood: {error}");
    match serde_json::from_slice(line).map_err(strange)? {
        Reply::Done(done) => serde_json::from_value(done).map_err(strange),
        Reply::Error(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Echo {
        sockets: Vec<(String, OwnedFd)>,
        succeeded: AtomicBool,
    }

    impl Operated for Echo {
        fn command(&self, command: &str) -> Result<serde_json::Value, String> {
            match command {
                "refuse" => Err("not today".into()),
                other => Ok(other.into()),
            }
        }

        fn offer(&self) -> Result<(Offer, Vec<OwnedFd>), String> {
            if self.succeeded.load(Ordering::SeqCst) {
                return Err("it stops already".into());
            }
            let names = self.sockets.iter().map(|(name, _)| name.clone()).collect();
            let copies = self.sockets.iter().map(|(_, socket)| socket.try_clone().unwrap());
            Ok((Offer { sockets: names, admin: None }, copies.collect()))
        }

        fn succeeded(&self) {
            self.succeeded.store(true, Ordering::SeqCst);
        }
    }

    /// It was killed, or has gone wrong.
    #[test]
    fn a_server_that_ends_while_it_is_asked_for_its_sockets_is_no_server() {
        for ends in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
            let kept = (!ends).then(|| listener.try_clone().unwrap());
            let server = std::thread::spawn(move || {
                let looked = listener.accept().unwrap();
                let asked = listener.accept().unwrap();
                drop((listener, looked));
                drop(asked);
            });
            let found = ask_for_sockets(dir.path());
            server.join().unwrap();
            match found {
                Ok(found) => assert!(found.is_none() && ends),
                Err(why) => assert!(!ends && why.contains("the server"), "{why}"),
            }
            drop(kept);
        }
    }

    #[test]
    fn sockets_go_to_a_successor_once_and_whoever_connects_meanwhile_waits() {
        let dir = tempfile::tempdir().unwrap();
        let listeners: Vec<_> =
            (0..3).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
        let addresses: Vec<_> = listeners.iter().map(|one| one.local_addr().unwrap()).collect();
        let sockets = listeners.into_iter().enumerate();
        let sockets = sockets.map(|(n, one)| (format!("number {n}"), one.into())).collect();
        let echo = Arc::new(Echo { sockets, ..Echo::default() });
        let operator = OperatorSocket::open(dir.path(), echo.clone()).unwrap();
        // Whoever has looked at them changes nothing.
        assert_eq!(ask_for_sockets(dir.path()).unwrap().unwrap().sockets.len(), 3);
        assert_eq!(ask::<String>(dir.path(), "still here").unwrap(), "still here");
        assert!(!echo.succeeded.load(Ordering::SeqCst));
        let mut taken = ask_for_sockets(dir.path()).unwrap().unwrap();
        taken.accept().unwrap();
        assert!(echo.succeeded.load(Ordering::SeqCst));
        let error = ask_for_sockets(dir.path()).err().unwrap();
        assert_eq!(error, "it stops already");
        drop((operator, echo));
        assert!(ask_for_sockets(dir.path()).unwrap().is_none());
        assert_eq!(taken.offer.sockets, ["number 0", "number 1", "number 2"]);
        for (socket, address) in taken.sockets.into_iter().zip(addresses) {
            let client = TcpStream::connect(address).expect("it is not refused");
            let (_, peer) = TcpListener::from(socket).accept().unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
        }
    }

    #[test]
    fn a_server_without_sockets_hands_none_over() {
        let dir = tempfile::tempdir().unwrap();
        let _operator = OperatorSocket::open(dir.path(), Arc::new(Echo::default())).unwrap();
        assert!(ask_for_sockets(dir.path()).unwrap().unwrap().sockets.is_empty());
    }

    #[test]
    fn commands_are_answered_refused_and_only_for_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SOCKET), "left by a dead process").unwrap();
        let socket = OperatorSocket::open(dir.path(), Arc::new(Echo::default())).unwrap();
        let mode = std::fs::metadata(dir.path().join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(ask::<String>(dir.path(), "ring status").unwrap(), "ring status");
        assert_eq!(ask::<String>(dir.path(), "refuse").unwrap_err(), "not today");
        drop(socket);
        let error = ask::<String>(dir.path(), "ring status").unwrap_err();
        assert!(error.contains("no server runs") && error.contains("--data-dir"), "{error}");
    }

    /// The data directory was removed under it, and made again.
    #[test]
    fn a_process_that_ends_leaves_the_socket_of_its_successor() {
        let dir = tempfile::tempdir().unwrap();
        let ours = OperatorSocket::open(dir.path(), Arc::new(Echo::default())).unwrap();
        let theirs = OperatorSocket::open(dir.path(), Arc::new(Echo::default())).unwrap();
        drop(ours);
        assert!(dir.path().join(SOCKET).exists());
        drop(theirs);
        assert!(!dir.path().join(SOCKET).exists());
    }

    #[test]
    fn whoever_sends_nothing_useful_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let _socket = OperatorSocket::open(dir.path(), Arc::new(Echo::default())).unwrap();
        drop(UnixStream::connect(dir.path().join(SOCKET)).unwrap());
        let mut long = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        // It may be cut off in the middle.
        let _ = long.write_all(&vec![b'x'; 2 * MAX_COMMAND as usize]);
        drop(long);
        assert_eq!(ask::<String>(dir.path(), "still here").unwrap(), "still here");
    }
}
