//! The messages, and the socket they go to.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::Arc,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// How long a message may wait for a manager that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// `NOTIFY_SOCKET` names a socket that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach the service manager at NOTIFY_SOCKET={}: {why}", .socket.display())]
pub struct NotifyError {
    /// What the variable says.
    pub socket: OsString,
    /// What is wrong with it.
    pub why: io::Error,
}

/// Sends messages to the service manager, if there is one; clones share the socket.
#[derive(Debug, Clone, Default)]
pub struct Notifier {
    socket: Option<Arc<UnixDatagram>>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// For the manager that `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` tell of.
    ///
    /// # Errors
    /// There is one and it cannot be reached.
    pub fn from_environment() -> Result<Self, NotifyError> {
        let text = |name| std::env::var(name).ok();
        let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return Ok(Self::default());
        };
        let watchdog = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        Self::connected(&socket, watchdog).map_err(|why| NotifyError { socket, why })
    }

    /// To this socket: a path, or behind `@` an abstract name. `watchdog` is the time within which
    /// the manager wants each ping.
    pub(super) fn connected(socket: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(socket)?,
            _ => {
                return Err(io::Error::other("it is neither a path from / nor a name behind @"));
            }
        };
        let datagrams = UnixDatagram::unbound()?;
        datagrams.connect_addr(&address)?;
        datagrams.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { socket: Some(Arc::new(datagrams)), watchdog })
    }

    /// Clients are served; `status` says where.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// What is going on, in words.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// The configuration is being read again; [`Notifier::ready`] ends that.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=reloading"));
    }

    /// The end has begun and takes at most `bound`, however short the manager's own timeout is.
    pub fn stopping(&self, bound: Duration, status: &str) {
        let bound = bound.as_micros();
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={bound}\nSTATUS={status}"));
    }

    /// The time within which the manager wants each ping; `None` when it wants none.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    pub(super) fn ping(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        // The manager judges by what arrives; the cache serves all the same.
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::warn!("the service manager was not told `{message}`: {error}");
        }
    }
}

/// The time of the manager's watchdog, if it is meant for process `own`.
fn watchdog(usec: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    let ours = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let usec = usec?.parse().ok().filter(|usec| *usec > 0 && ours)?;
    Some(Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_a_socket_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("afterglow-notify-{}", std::process::id());
        let named = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, manager) in [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{name}").into(), UnixDatagram::bind_addr(&named).unwrap()),
        ] {
            let notifier = Notifier::connected(&socket, None).unwrap();
            notifier.stopping(Duration::from_secs(2), "closing");
            let mut message = [0; 100];
            let len = manager.recv(&mut message).unwrap();
            let message = std::str::from_utf8(&message[..len]).unwrap();
            assert_eq!(message, "STOPPING=1\nEXTEND_TIMEOUT_USEC=2000000\nSTATUS=closing");
        }
    }

    #[test]
    fn a_socket_that_is_not_there_is_an_error_and_a_manager_that_went_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        for wrong in [path.as_os_str(), OsStr::new("vsock:2:1234")] {
            assert!(Notifier::connected(wrong, None).is_err(), "{wrong:?}");
        }
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::connected(path.as_os_str(), None).unwrap();
        drop(manager);
        notifier.ready("nobody hears it");
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_ours() {
        let usec = |text: &str| Some(text.to_string());
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog(usec("1000000"), None, 7), second);
        assert_eq!(watchdog(usec("1000000"), usec("7"), 7), second);
        assert_eq!(watchdog(usec("1000000"), usec("8"), 7), None);
        assert_eq!(watchdog(usec("0"), None, 7), None);
        assert_eq!(watchdog(usec("soon"), None, 7), None);
        assert_eq!(watchdog(None, None, 7), None);
    }
}
