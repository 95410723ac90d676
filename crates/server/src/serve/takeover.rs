//! A restart without a refused connection: a new process takes the listening sockets of the old one
//! on the same data directory.
//!
//! 1. The new process does everything that can fail, and undoes it. It has the database let it in.
//! 2. It asks for the sockets, and binds what it needs besides. Connections wait in them from now
//!    on, whichever process accepts them.
//! 3. It says that it can start. The old process stops as at SIGTERM: it finishes requests in
//!    flight, and closes cache and intents. Until then it serves as if nothing had happened.
//! 4. The new process waits for the lock on the data directory, opens the cache, and accepts.
//!
//! Invariant: no statement is accepted while the old process may have any. It holds the lock until
//! it is gone.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

use super::error::ServeError;
use crate::admin;
use crate::config::Config;
use crate::control::{ControlError, Stopper};
use crate::operator::{self, Offer, Offered};
use crate::reactor::{Bound, ListenError};

/// How often it says that it still waits.
const TELL_AFTER: Duration = Duration::from_secs(10);
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

/// Sockets that are bound before the cache is opened: those of another process, and new ones.
#[derive(Default)]
pub(super) struct Taken(Vec<(Socket, Bound)>);

impl Taken {
    /// The socket for that address: the one that is there, else a new one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(super) fn bind(&mut self, of: Socket, address: SocketAddr) -> Result<Bound, ListenError> {
        match self.0.iter().position(|one| fits(one, of, address)) {
            Some(at) => Ok(self.0.swap_remove(at).1),
            None => Bound::tcp(address),
        }
    }
}

fn fits((socket, bound): &(Socket, Bound), of: Socket, address: SocketAddr) -> bool {
    let there = bound.address();
    *socket == of && (there == address || (address.port(), there.ip()) == (0, address.ip()))
}

/// Takes the sockets of the server that runs on the data directory, and waits for its end. Nothing
/// if no server runs there. `check` tries what else a start needs.
///
/// # Errors
/// This process could not start, or the other does not hand over: it goes on serving.
pub(super) fn take_over(
    config: &Config,
    check: impl FnOnce(&Config) -> Result<(), ServeError>,
) -> Result<Taken, ServeError> {
    let ask = || operator::ask_for_sockets(&config.data_dir).map_err(ServeError::TakeOver);
    if ask()?.is_none() {
        tracing::info!("take-over: no server runs on this data directory");
        return Ok(Taken::default());
    }
    check(config)?;
    let Some(mut offered) = ask()? else {
        // It has ended meanwhile, or is about to.
        wait_for_lock(config);
        return Ok(Taken::default());
    };
    let taken = bind_all(config, &mut offered)?;
    if let Some(admin) = config.admin.filter(|admin| offered.offer.admin != Some(*admin)) {
        drop(admin::bind(admin).map_err(ControlError::Admin)?);
    }
    // It may have been killed meanwhile, which serves us as well.
    if let Err(why) = offered.accept()
        && !operator::has_ended(&config.data_dir)
    {
        return Err(ServeError::TakeOver(why));
    }
    tracing::info!("taking over: {} listening sockets", taken.0.len());
    wait_for_lock(config);
    Ok(taken)
}

/// All sockets that this process needs. Those of the other that it does not need are closed first:
/// they may be in the way.
fn bind_all(config: &Config, offered: &mut Offered) -> Result<Taken, ServeError> {
    let wanted = [
        (Socket::Cql, config.cql),
        (Socket::Ring, config.ring_address),
        (Socket::Memcache, config.memcache),
    ];
    let wanted = wanted.into_iter().filter_map(|(of, address)| Some((of, address?)));
    let names = std::mem::take(&mut offered.offer.sockets);
    let sockets = names.iter().zip(std::mem::take(&mut offered.sockets));
    let mut taken = Taken::default();
    for (name, socket) in sockets {
        let of = Socket::ALL.into_iter().find(|one| one.name() == name);
        match (of, Bound::taken(socket)) {
            (Some(of), Ok(bound)) => taken.0.push((of, bound)),
            (None, _) => {}
            (_, Err(error)) => {
                tracing::warn!(%error, "the socket of the {name} front end cannot be used, and is made anew");
            }
        }
    }
    taken.0.retain(|one| wanted.clone().any(|(of, address)| fits(one, of, address)));
    let all = wanted.map(|(of, address)| Ok((of, taken.bind(of, address)?)));
    Ok(Taken(all.collect::<Result<_, ListenError>>()?))
}

/// The other process stops as long as it needs; it says in its own log what it does.
fn wait_for_lock(config: &Config) {
    let path = config.data_dir.join("lock");
    let began = Instant::now();
    let mut told = TELL_AFTER;
    while let Ok(file) = File::open(&path) {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return;
        }
        if began.elapsed() > told {
            tracing::info!("take-over: the other process has not ended yet, see its log");
            told += TELL_AFTER;
        }
        sleep(POLL_INTERVAL);
    }
}

/// The sockets of this process, for one that takes over.
pub(super) struct HandOver {
    /// None from the stop on: whoever connects then is refused.
    sockets: Mutex<Option<Vec<(Socket, OwnedFd)>>>,
    admin: Option<SocketAddr>,
    stop: Stopper,
}

impl HandOver {
    /// `admin`: where the admin pages are.
    pub(super) fn new(admin: Option<SocketAddr>, stop: Stopper) -> HandOver {
        HandOver { sockets: Mutex::new(Some(Vec::new())), admin, stop }
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

    /// Copies of them, with their names.
    ///
    /// # Errors
    /// This process stops already.
    pub(super) fn offer(&self) -> Result<(Offer, Vec<OwnedFd>), String> {
        let sockets = self.sockets.lock();
        let sockets = sockets.as_ref().ok_or(
            "this server stops already: start the other without --take-over once it has ended",
        )?;
        let names = sockets.iter().map(|(of, _)| of.name().to_owned()).collect();
        let copies = sockets.iter().map(|(_, socket)| socket.try_clone());
        let copies = copies.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok((Offer { sockets: names, admin: self.admin }, copies))
    }

    /// Another process has them, and can start.
    pub(super) fn succeeded(&self) {
        self.stop.stop("another process takes over");
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
        let (events, stops) = std::sync::mpsc::channel();
        let bound = Bound::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let own = HandOver::new(None, Stopper::new(events));
        own.keep(Socket::Cql, Some(&bound));
        own.keep(Socket::Ring, None);
        let (offer, sockets) = own.offer().unwrap();
        assert_eq!((offer.sockets, sockets.len()), (vec!["cql".to_owned()], 1));
        own.succeeded();
        assert!(matches!(stops.recv(), Ok(crate::control::Event::Stop(_))));
        own.close();
        assert!(own.offer().is_err());
    }

    #[test]
    fn sockets_that_are_not_needed_are_not_in_the_way() {
        let old = Bound::tcp(SocketAddr::from(([0, 0, 0, 0], 0))).unwrap();
        let port = old.address().port();
        let mut taken = Taken(vec![(Socket::Cql, old)]);
        let narrower = SocketAddr::from(([127, 0, 0, 1], port));
        taken.0.retain(|one| fits(one, Socket::Cql, narrower));
        assert_eq!(taken.bind(Socket::Cql, narrower).unwrap().address(), narrower);
    }
}
