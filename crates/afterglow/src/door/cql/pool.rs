//! Connections to the database that all clients of a reactor share: one for each protocol version and keyspace.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::frame::Version;
use futures_channel::oneshot;

use super::backend::{Backend, CallError, ConnectError};
use crate::config::HostPort;
use crate::metrics::BackendMetrics;

/// Wait after a first failure to connect; doubled with every further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// Longest wait between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

type Key = (Version, Option<Rc<str>>);
type Connected = Result<Rc<Backend>, ConnectError>;

/// The connections of one reactor, made when they are first needed and again after they were lost.
pub struct Pool {
    targets: Vec<HostPort>,
    metrics: Arc<BackendMetrics>,
    entries: RefCell<HashMap<Key, Entry>>,
}

#[derive(Default)]
enum Entry {
    #[default]
    Unused,
    Up(Rc<Backend>),
    /// Who waits for it, and how long to wait should it fail.
    Connecting(Vec<oneshot::Sender<Connected>>, Duration),
    Down {
        until: Instant,
        next: Duration,
        error: ConnectError,
    },
}

impl Pool {
    /// A pool of connections to the first of `targets` that can be reached.
    pub fn new(targets: Vec<HostPort>, metrics: Arc<BackendMetrics>) -> Self {
        Self { targets, metrics, entries: RefCell::default() }
    }

    /// The connection, if it is there now.
    pub fn ready(&self, version: Version, keyspace: Option<&Rc<str>>) -> Option<Rc<Backend>> {
        match self.entries.borrow().get(&(version, keyspace.cloned())) {
            Some(Entry::Up(backend)) if !backend.is_closed() => Some(backend.clone()),
            _ => None,
        }
    }

    /// The connection, made if need be. Fails at once for a while after an attempt has failed.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub async fn acquire(self: &Rc<Self>, version: Version, keyspace: Option<Rc<str>>) -> Connected {
        let waiting = {
            let mut entries = self.entries.borrow_mut();
            let entry = entries.entry((version, keyspace.clone())).or_default();
            let (answer, waiting) = oneshot::channel();
            let backoff = match entry {
                Entry::Up(backend) if !backend.is_closed() => return Ok(backend.clone()),
                Entry::Down { until, error, .. } if Instant::now() < *until => return Err(error.clone()),
                Entry::Connecting(waiters, _) => {
                    waiters.push(answer);
                    None
                }
                Entry::Down { next, .. } => Some((*next, answer)),
                Entry::Unused | Entry::Up(_) => Some((FIRST_BACKOFF, answer)),
            };
            if let Some((backoff, answer)) = backoff {
                *entry = Entry::Connecting(vec![answer], backoff);
                let pool = self.clone();
                compio::runtime::spawn(async move { pool.connect(version, keyspace).await }).detach();
            }
            waiting
        };
        waiting.await.unwrap_or_else(|_| {
            Err(ConnectError::Unreachable { address: "-".into(), reason: "the attempt was given up".into() })
        })
    }

    /// As [`Pool::acquire`], for a request: the error says that it was not sent.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub async fn acquire_for_call(
        self: &Rc<Self>,
        version: Version,
        keyspace: Option<Rc<str>>,
    ) -> Result<Rc<Backend>, CallError> {
        match self.ready(version, keyspace.as_ref()) {
            Some(backend) => Ok(backend),
            None => self
                .acquire(version, keyspace)
                .await
                .map_err(|error| CallError::NotSent(error.to_string().into())),
        }
    }

    /// Closes all connections.
    pub fn close(&self) {
        for (_, entry) in self.entries.borrow_mut().drain() {
            if let Entry::Up(backend) = entry {
                backend.close();
            }
        }
    }

    async fn connect(&self, version: Version, keyspace: Option<Rc<str>>) {
        let result = Backend::connect(&self.targets, version, keyspace.clone(), None, &self.metrics).await;
        let mut entries = self.entries.borrow_mut();
        let key = (version, keyspace);
        let Some(Entry::Connecting(waiters, backoff)) = entries.remove(&key) else { return };
        match &result {
            Ok(backend) => drop(entries.insert(key, Entry::Up(backend.clone()))),
            // A keyspace that does not exist may exist in a moment, and made-up names must not fill the table.
            Err(ConnectError::Refused { .. }) => {}
            Err(error) => {
                let until = Instant::now() + backoff;
                let next = (backoff * 2).min(MAX_BACKOFF);
                entries.insert(key, Entry::Down { until, next, error: error.clone() });
            }
        }
        drop(entries);
        for waiter in waiters {
            // Who gave up waiting does not want it.
            let _ = waiter.send(result.clone());
        }
    }
}
