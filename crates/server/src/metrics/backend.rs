//! Counters of the database behind a front end, and of the lease in it.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    sync::{Arc, OnceLock},
};

use super::{ConnectFailure, Counter, Exposition, Family, Gauge, Kind, Label, LeaseState};

/// One reactor's counters of its connections to the database.
#[derive(Debug, Default)]
pub struct BackendMetrics {
    /// Connections being made now.
    pub connecting: Gauge,
    /// Connections that take requests now.
    pub ready: Gauge,
    /// Requests waiting for an answer now.
    pub in_flight: Gauge,
    /// Connections that were made.
    pub connected: Counter,
    /// Connections that failed or ended.
    pub failures: Family<ConnectFailure>,
    /// Requests sent.
    pub requests: Counter,
    /// Requests given up without an answer.
    pub unanswered: Counter,
}

pub(super) fn expose(shards: &[Arc<BackendMetrics>], out: &mut Exposition) {
    // A server of memcached's protocol has no database, so nothing of one is down.
    if shards.is_empty() {
        return;
    }
    let count =
        |of: &dyn Fn(&BackendMetrics) -> u64| shards.iter().map(|shard| of(shard)).sum::<u64>();
    let level = |of: &dyn Fn(&BackendMetrics) -> &Gauge| {
        shards.iter().map(|shard| of(shard).get()).sum::<i64>()
    };

    const CONNECTIONS: &str = "afterglow_backend_connections";
    out.header(CONNECTIONS, Kind::Gauge, "Current connections to the database, by state.");
    out.sample(CONNECTIONS, &[("state", "connecting")], level(&|b| &b.connecting));
    out.sample(CONNECTIONS, &[("state", "ready")], level(&|b| &b.ready));

    const UP: &str = "afterglow_backend_up";
    out.header(
        UP,
        Kind::Gauge,
        "1 while at least one connection to the database accepts requests.",
    );
    out.sample(UP, &[], u64::from(level(&|b| &b.ready) > 0));

    const IN_FLIGHT: &str = "afterglow_backend_requests_in_flight";
    out.header(IN_FLIGHT, Kind::Gauge, "Requests that currently wait for the database.");
    out.sample(IN_FLIGHT, &[], level(&|b| &b.in_flight));

    const CONNECTED: &str = "afterglow_backend_connects_total";
    out.header(CONNECTED, Kind::Counter, "Connections made to the database.");
    out.sample(CONNECTED, &[], count(&|b| b.connected.get()));

    const FAILURES: &str = "afterglow_backend_connection_failures_total";
    out.header(
        FAILURES,
        Kind::Counter,
        "Connections to the database that failed or ended, by reason.",
    );
    for &reason in ConnectFailure::ALL {
        let failures = count(&|b| b.failures.of(reason).get());
        out.sample(FAILURES, &[(ConnectFailure::NAME, reason.word())], failures);
    }

    const REQUESTS: &str = "afterglow_backend_requests_total";
    out.header(REQUESTS, Kind::Counter, "Requests sent to the database.");
    out.sample(REQUESTS, &[], count(&|b| b.requests.get()));

    const UNANSWERED: &str = "afterglow_backend_unanswered_total";
    out.header(
        UNANSWERED,
        Kind::Counter,
        "Requests to the database that were given up without an answer.",
    );
    out.sample(UNANSWERED, &[], count(&|b| b.unanswered.get()));
}

/// Where this instance stands with the lease that `exclusive` tables need.
#[derive(Default)]
pub struct LeaseMetrics {
    /// Index into [`LeaseState::ALL`]; starts at `NotNeeded`.
    state: AtomicUsize,
    /// Successful claims.
    pub acquired: Counter,
    /// Successful renewals.
    pub renewed: Counter,
    /// Times it was held and then not.
    pub lost: Counter,
    /// Whether what is held counts at this moment. It runs out by the clock, while whoever sets the
    /// state may wait for the database.
    counts: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl std::fmt::Debug for LeaseMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseMetrics").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl LeaseMetrics {
    /// Says where the lease stands now.
    pub fn set(&self, state: LeaseState) {
        self.state.store(state.index(), Ordering::Relaxed);
    }

    /// From now on a lease that is held counts as [`LeaseState::Waiting`] unless `counts` says that
    /// it counts; once at most.
    pub fn held_while(&self, counts: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.counts.set(Box::new(counts));
    }

    /// Where it stands.
    pub fn state(&self) -> LeaseState {
        match LeaseState::ALL[self.state.load(Ordering::Relaxed)] {
            LeaseState::Held if self.counts.get().is_some_and(|counts| !counts()) => {
                LeaseState::Waiting
            }
            state => state,
        }
    }

    pub(super) fn expose(&self, out: &mut Exposition) {
        const STATE: &str = "afterglow_lease_state";
        out.header(
            STATE,
            Kind::Gauge,
            "1 for the current state of the lease of exclusive tables, 0 for other states.",
        );
        for &state in LeaseState::ALL {
            out.sample(
                STATE,
                &[(LeaseState::NAME, state.word())],
                u64::from(state == self.state()),
            );
        }
        const CHANGES: &str = "afterglow_lease_events_total";
        out.header(CHANGES, Kind::Counter, "Claims, renewals and losses of the lease.");
        for (event, counter) in
            [("acquired", &self.acquired), ("renewed", &self.renewed), ("lost", &self.lost)]
        {
            out.sample(CHANGES, &[("event", event)], counter.get());
        }
    }
}
