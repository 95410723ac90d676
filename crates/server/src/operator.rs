//! Commands of the operator to a running server: over a Unix socket in the data directory, which
//! only its owner may enter. Unlike the admin address it may change things.
//!
//! ```text
//! client: one line, the command      server: one line, `{"done": ...}` or `{"error": "..."}`
//! ```
//!
//! One connection is served at a time, and each for at most [`TIMEOUT`].

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Done(serde_json::Value),
    Error(String),
}

/// The open socket; dropping it removes it. The thread that serves it ends with the process.
pub struct OperatorSocket {
    path: PathBuf,
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
        std::thread::Builder::new().name("operator".into()).spawn(move || {
            for stream in listener.incoming() {
                // Whoever has gone does not hear the answer.
                let _ = stream.and_then(|stream| serve(stream, &*operated));
            }
        })?;
        Ok(OperatorSocket { path })
    }
}

impl Drop for OperatorSocket {
    fn drop(&mut self) {
        // The next start removes what this leaves.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(mut stream: UnixStream, operated: &dyn Operated) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut command = String::new();
    BufReader::new((&stream).take(MAX_COMMAND)).read_line(&mut command)?;
    let reply = match operated.command(command.trim()) {
        Ok(done) => Reply::Done(done),
        Err(why) => Reply::Error(why),
    };
    let mut line = serde_json::to_string(&reply).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Has the server on this data directory carry a command out.
///
/// # Errors
/// Why it could not be asked, or what it says against it.
pub fn ask<T: DeserializeOwned>(data_dir: &Path, command: &str) -> Result<T, String> {
    let path = data_dir.join(SOCKET);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "no server runs on {}: name its data directory with --data-dir",
            data_dir.display()
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{} is another user's: run this as the server's user", path.display())
        }
        _ => format!("the server on {} cannot be asked: {error}", data_dir.display()),
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.write_all(format!("{command}\n").as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(failed)?;
    let strange =
        |error: serde_json::Error| format!("the server's answer is not understood: {error}");
    match serde_json::from_str(&line).map_err(strange)? {
        Reply::Done(done) => serde_json::from_value(done).map_err(strange),
        Reply::Error(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Operated for Echo {
        fn command(&self, command: &str) -> Result<serde_json::Value, String> {
            match command {
                "refuse" => Err("not today".into()),
                other => Ok(other.into()),
            }
        }
    }

    #[test]
    fn commands_are_answered_refused_and_only_for_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SOCKET), "left by a dead process").unwrap();
        let socket = OperatorSocket::open(dir.path(), Arc::new(Echo)).unwrap();
        let mode = std::fs::metadata(dir.path().join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(ask::<String>(dir.path(), "ring status").unwrap(), "ring status");
        assert_eq!(ask::<String>(dir.path(), "refuse").unwrap_err(), "not today");
        drop(socket);
        let error = ask::<String>(dir.path(), "ring status").unwrap_err();
        assert!(error.contains("no server runs") && error.contains("--data-dir"), "{error}");
    }

    #[test]
    fn whoever_sends_nothing_useful_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let _socket = OperatorSocket::open(dir.path(), Arc::new(Echo)).unwrap();
        drop(UnixStream::connect(dir.path().join(SOCKET)).unwrap());
        let mut long = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        // It may be cut off in the middle.
        let _ = long.write_all(&vec![b'x'; 2 * MAX_COMMAND as usize]);
        drop(long);
        assert_eq!(ask::<String>(dir.path(), "still here").unwrap(), "still here");
    }
}
