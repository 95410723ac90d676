//! Whether rows of `exclusive` tables are believed: the lease that is asked for, the claim on disk,
//! and what ties them.
//!
//! Who has a clock and a connection drives it, for ever:
//!
//! 1. [`Claims::tick`]: signs of life, holds that end, other policies.
//! 2. [`Claims::next`]: the transaction to run now, if any; [`Claims::about_to_send`] before it is
//!    sent.
//! 3. [`Claims::answered`]: what the answer changes. Of a lease that was taken from another holder,
//!    the caller reads what that one had settled.
//! 4. [`Claims::apply`]: the change, and what it means for the claim.
//!
//! Invariants:
//! - A claim counts only once it is on disk, and no older one ever again: while it cannot be
//!   written, none counts.
//! - A new claim begins whenever somebody else may have written: another holder, other policies,
//!   another cluster.
//! - Before the first fill under a lease that another held, all is weak unless that one said that
//!   its writes were settled.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::Millis;
use crate::instance::{Instance, NewClaim};
use crate::lease::{Answer, Before, Change, KnownEpochs, Lease, LeaseConfig, Next, Request};
use crate::row_cache::RowCache;

/// Pause before asking again for a lease that is not to be had.
const RETRY: Duration = Duration::from_secs(1);
/// How often a sign of life is written.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long the lease lasts.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTimes {
    /// Lifetime in the database, in whole seconds.
    pub lease: Duration,
    /// Part of it that we give away, for clocks of database nodes that differ.
    pub margin: Duration,
}

/// What licenses the cache of `exclusive` tables.
pub struct Claims<W> {
    cache: Arc<RowCache<W>>,
    instance: Instance,
    lease: Lease,
    /// Generation of the policies that the claim was made under.
    generation: u64,
    alive_noted: Millis,
    /// Why a new claim is due that could not be written yet.
    owed: Option<NewClaim>,
}

impl<W> Claims<W> {
    /// Of an instance that holds no lease yet; `generation` is that of the policies that its claim
    /// is about.
    pub fn new(
        cache: Arc<RowCache<W>>,
        instance: Instance,
        generation: u64,
        times: LeaseTimes,
    ) -> Claims<W> {
        let config = LeaseConfig {
            me: instance.id(),
            ttl_seconds: times.lease.as_secs() as u32,
            margin: times.margin.as_millis() as Millis,
            retry: RETRY.as_millis() as Millis,
        };
        let lease = Lease::new(config, instance.epochs());
        Claims { cache, instance, lease, generation, alive_noted: 0, owed: None }
    }

    /// This instance's identity.
    pub fn id(&self) -> Uuid {
        self.instance.id()
    }

    /// The cache that is licensed.
    pub fn cache(&self) -> &Arc<RowCache<W>> {
        &self.cache
    }

    /// The lease's configuration.
    pub fn config(&self) -> &LeaseConfig {
        self.lease.config()
    }

    /// Our epoch while the lease is held.
    pub fn epoch(&self) -> Option<i64> {
        self.lease.epoch()
    }

    /// What is to be done every so often. `generation` and `policies` are those in force, the
    /// latter as text that differs whenever they do.
    pub fn tick(&mut self, generation: u64, policies: impl FnOnce() -> String) {
        self.cache.settle_due();
        let now = self.now();
        if now.saturating_sub(self.alive_noted) >= HEARTBEAT.as_millis() as Millis {
            self.alive_noted = now;
            self.note_alive();
        }
        // Under other policies others may write what only we could write before, and back again.
        if generation != self.generation {
            self.generation = generation;
            self.instance.set_policies(&policies());
            self.renew_claim(NewClaim::PoliciesChanged);
        }
        if let Some(why) = self.owed.clone() {
            self.renew_claim(why);
        }
    }

    /// What to do about the lease now.
    pub fn next(&self) -> Next {
        self.lease.next(self.now())
    }

    /// To be called before a transaction is sent, which must not be where this fails.
    ///
    /// # Errors
    /// What a restart would have to know of it cannot be written.
    pub fn about_to_send(&mut self, request: Request) -> io::Result<()> {
        self.lease.to_note(request).map_or(Ok(()), |epochs| self.instance.note_epochs(epochs))
    }

    /// Takes the answer to a transaction that was sent at `sent_at`, a moment from before.
    pub fn answered(&mut self, request: Request, sent_at: Millis, answer: Answer) -> Change {
        self.lease.answered(request, sent_at, answer, self.now())
    }

    /// Does what a change means. `settled`: of a lease that another held, the epoch that its holder
    /// said to be settled, if any.
    pub fn apply(
        &mut self,
        request: Request,
        answer: Answer,
        change: Change,
        settled: Option<i64>,
    ) {
        match change {
            Change::Nothing => {
                if matches!((request, answer), (Request::Renew { .. }, Answer::Applied(true))) {
                    self.cache.lease().extend(self.lease.until());
                }
            }
            Change::Acquired { epoch, before } => {
                if let Before::Another(theirs) = before
                    && settled != Some(theirs)
                {
                    tracing::warn!(
                        "the instance that held the lease before did not say that its writes were settled: what `exclusive` tables are read for lives a minute at most for `unknown-outcome-hold`"
                    );
                    self.cache.take_over();
                }
                self.acquired(epoch, before);
            }
            Change::HeldByOther(_) => {}
            Change::Lost => self.cache.lease().end(),
        }
    }

    fn acquired(&mut self, epoch: i64, before: Before) {
        self.cache.set_claim(None);
        let epochs = KnownEpochs { held: epoch, asked: epoch };
        let is_first = self.instance.epochs().held == 0;
        if before == Before::Us {
            let noted = self.instance.note_epochs(epochs);
            warn("the lease's epoch", noted);
            self.believe();
        } else {
            self.instance.set_epochs(epochs);
            let why = if is_first { NewClaim::FirstLease } else { NewClaim::LeaseChangedHands };
            self.renew_claim(why);
        }
        self.cache.lease().extend(self.lease.until());
        tracing::info!(epoch, ?before, "the lease is ours: `exclusive` tables are cached");
    }

    /// Takes the data centre that we read in.
    pub fn set_data_center(&mut self, data_center: &str) {
        if self.instance.set_data_center(data_center) {
            self.cache.moved();
        }
    }

    /// Takes the cluster that answers.
    pub fn set_cluster(&mut self, name: &str) {
        if self.instance.set_cluster(name) {
            self.renew_claim(NewClaim::OtherCluster);
        }
    }

    /// The end of this run: nothing is served under the lease any more. The epoch that may be given
    /// back.
    pub fn end(&mut self) -> Option<i64> {
        self.cache.lease().end();
        self.note_alive();
        self.lease.epoch()
    }

    fn renew_claim(&mut self, why: NewClaim) {
        self.cache.set_claim(None);
        let renewed = self.instance.renew_claim();
        match renewed {
            Ok(_) => {
                self.owed = None;
                tracing::info!(%why, "rows cached under `exclusive` so far are not served any more");
                if self.lease.epoch().is_some() {
                    self.believe();
                }
            }
            Err(error) => {
                if self.owed.replace(why).is_none() {
                    tracing::error!(%error, "the instance file cannot be written: `exclusive` tables pass through until it can");
                }
            }
        }
    }

    fn believe(&self) {
        // The claim on disk is the one that a restart would believe; while it is an older one there
        // is none.
        if self.owed.is_some() {
            return;
        }
        self.cache.set_claim(Some((self.instance.claim(), self.generation)));
    }

    fn note_alive(&mut self) {
        let noted = self.instance.note_alive(self.now());
        warn("a sign of life", noted);
    }

    fn now(&self) -> Millis {
        self.cache.clock().now()
    }
}

fn warn(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "{what} could not be written to the instance file");
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
