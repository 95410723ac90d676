//! A restart without a refused connection: a new process takes the listening sockets of the old one
//! on the same data directory.
//!
//! 1. The new process does everything that can fail, but for the addresses, and undoes it.
//! 2. It asks for the sockets. Connections wait in them from now on.
//! 3. The old process stops as at SIGTERM: it finishes requests in flight, and closes cache and
//!    intents.
//! 4. The new process waits for its end, opens the cache, and accepts.
//!
//! Invariant: no statement is accepted while the old process may have any. The lock on the data
//! directory is held until it is gone.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::error::ServeError;
use crate::config::Config;
use crate::control::Event;
use crate::reactor::{Bound, ListenError};
use crate::{inspect, operator};

/// Pause between two looks whether the old process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The front ends whose sockets are handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Socket {
    /// CQL.
    Cql,
    /// Links of the ring.
    Ring,
    /// memcached, TCP.
    Memcache,
}

impl Socket {
    const ALL: [Socket; 3] = [Socket::Cql, Socket::Ring, Socket::Memcache];

    fn name(self) -> &'static str {
        match self {
            Socket::Cql => "cql",
            Socket::Ring => "ring",
            Socket::Memcache => "memcache",
        }
    }
}

/// Sockets that another process listened on.
#[derive(Default)]
pub(super) struct Taken(Vec<(Socket, Bound)>);

impl Taken {
    /// The socket for that address: the one that was taken if it is there, else a new one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(super) fn bind(&mut self, of: Socket, address: SocketAddr) -> Result<Bound, ListenError> {
        let fits = |(socket, bound): &(Socket, Bound)| {
            let there = bound.address();
            *socket == of && (there == address || (address.port(), there.ip()) == (0, address.ip()))
        };
        match self.0.iter().position(fits) {
            Some(at) => Ok(self.0.swap_remove(at).1),
            None => Bound::tcp(address),
        }
    }
}

/// Takes the sockets of the server that runs on the data directory, and waits for its end, so long
/// at most. Nothing if no server runs there. `check` tries what else a start needs.
///
/// # Errors
/// This process could not start, or the other does not hand over: it goes on serving. Or it has not
/// ended in time.
pub(super) fn take_over(
    config: &Config,
    check: impl FnOnce(&Config) -> Result<(), ServeError>,
    limit: Duration,
) -> Result<Taken, ServeError> {
    let lock = config.data_dir.join("lock");
    let Some(old) = inspect::holder(&lock) else {
        tracing::info!("take-over: no server runs on this data directory");
        return Ok(Taken::default());
    };
    check(config)?;
    let sockets = operator::take_sockets(&config.data_dir).map_err(ServeError::TakeOver)?;
    let count = sockets.len();
    tracing::info!("taking over from process {old}: {count} listening sockets");
    let taken = sockets.into_iter().filter_map(|(name, socket)| {
        let of = Socket::ALL.into_iter().find(|one| one.name() == name)?;
        match Bound::taken(socket) {
            Ok(bound) => Some((of, bound)),
            Err(error) => {
                tracing::warn!(%error, "the socket of the {name} front end cannot be used, and is made anew");
                None
            }
        }
    });
    let taken = Taken(taken.collect());
    let until = Instant::now() + limit;
    while inspect::holder(&lock) == Some(old) {
        if Instant::now() > until {
            let why = format!("process {old} has not ended within {} s", limit.as_secs());
            return Err(ServeError::TakeOver(why));
        }
        sleep(POLL_INTERVAL);
    }
    Ok(taken)
}

/// The sockets of this process, for one that takes over.
pub(super) struct HandOver {
    /// None from the stop on: whoever connects then is refused.
    sockets: Mutex<Option<Vec<(Socket, OwnedFd)>>>,
    events: mpsc::Sender<Event>,
}

impl HandOver {
    pub(super) fn new(events: mpsc::Sender<Event>) -> HandOver {
        HandOver { sockets: Mutex::new(Some(Vec::new())), events }
    }

    /// Keeps one more socket.
    pub(super) fn keep(&self, of: Socket, bound: Option<&Bound>) {
        let Some(bound) = bound else { return };
        match bound.share() {
            Ok(socket) => {
                if let Some(sockets) = &mut *self.sockets.lock() {
                    sockets.push((of, socket));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the socket of the {} front end cannot be handed over", of.name());
            }
        }
    }

    /// Their names and copies.
    ///
    /// # Errors
    /// This process stops already.
    pub(super) fn sockets(&self) -> Result<Vec<(String, OwnedFd)>, String> {
        let sockets = self.sockets.lock();
        let sockets = sockets.as_ref().ok_or(
            "this server stops already: start the other without --take-over once it has ended",
        )?;
        let copy = |(of, socket): &(Socket, OwnedFd)| {
            Ok((of.name().to_owned(), socket.try_clone().map_err(|error| error.to_string())?))
        };
        sockets.iter().map(copy).collect()
    }

    /// Another process has them.
    pub(super) fn succeeded(&self) {
        // Nobody listens any more only when the process is ending anyway.
        let _ = self.events.send(Event::Stop("another process takes over"));
    }

    /// This process stops.
    pub(super) fn close(&self) {
        self.sockets.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_socket_serves_its_front_end_and_address_alone() {
        let bound = || Bound::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let (cql, ring) = (bound(), bound());
        let (at, other) = (cql.address(), ring.address());
        let shared = |bound: &Bound| Bound::taken(bound.share().unwrap()).unwrap();
        let mut taken = Taken(vec![(Socket::Cql, shared(&cql)), (Socket::Ring, shared(&ring))]);
        assert!(taken.bind(Socket::Memcache, at).is_err(), "its address is in use");
        assert_eq!(taken.bind(Socket::Cql, at).unwrap().address(), at);
        assert_eq!(taken.0.len(), 1, "it is taken once");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        assert_eq!(taken.bind(Socket::Ring, any).unwrap().address(), other);
        assert_ne!(taken.bind(Socket::Ring, any).unwrap().address(), other);
    }

    #[test]
    fn a_server_that_stops_hands_nothing_over() {
        let (events, stops) = mpsc::channel();
        let bound = Bound::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let own = HandOver::new(events);
        own.keep(Socket::Cql, Some(&bound));
        own.keep(Socket::Ring, None);
        assert_eq!(own.sockets().unwrap().len(), 1);
        own.succeeded();
        assert!(matches!(stops.recv(), Ok(Event::Stop(_))));
        own.close();
        assert!(own.sockets().is_err());
    }
}
