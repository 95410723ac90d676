//! Whether rows of `exclusive` tables may be served: the lease, the claim on disk, and how they
//! depend on each other.
//!
//! A caller with a clock and a connection repeats these steps for ever:
//!
//! 1. [`Claims::tick`]: writes signs of life, ends holds, notices other policies.
//! 2. [`Claims::next`]: the transaction to run now, if any; [`Claims::about_to_send`] before it is
//!    sent.
//! 3. [`Claims::answered`]: says what the answer changes. If the lease was taken from another
//!    holder, the caller reads which epoch that one had settled.
//! 4. [`Claims::apply`]: applies the change to the claim.
//!
//! Invariants:
//! - A claim counts only once it is on disk, and no older claim ever counts again. While it cannot
//!   be written, no claim counts.
//! - A new claim begins whenever others may have written: another holder, other policies, another
//!   cluster.
//! - Before the first fill under a lease that another instance held, all gates are weak. The
//!   exception: that instance said that its writes were settled.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::Millis;
use crate::instance_file::{InstanceFile, NewClaim};
use crate::lease::{Answer, Before, Change, KnownEpochs, Lease, LeaseConfig, Next, Request};
use crate::row_cache::RowCache;

/// Pause before asking again for a lease that another instance holds.
const RETRY: Duration = Duration::from_secs(1);
/// How often a sign of life is written.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long the lease lasts.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTimes {
    /// Lifetime in the database, in whole seconds.
    pub lease: Duration,
    /// Safety margin, for database nodes whose clocks differ.
    pub margin: Duration,
}

/// Lease and claim: what permits caching of `exclusive` tables.
pub struct Claims<W> {
    cache: Arc<RowCache<W>>,
    instance: InstanceFile,
    lease: Lease,
    /// Generation of the policies that the claim was made under.
    generation: u64,
    alive_noted: Millis,
    /// The last sign of life could not be written, which was told.
    alive_failed: bool,
    /// Why a new claim is due. It could not be written yet.
    owed: Option<NewClaim>,
    /// The tables are shared: something else than this lease says whether their rows may be served.
    shared: bool,
}

impl<W> Claims<W> {
    /// For an instance that holds no lease yet. `generation` is that of the policies that its claim
    /// was made under.
    pub fn new(
        cache: Arc<RowCache<W>>,
        instance: InstanceFile,
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
        let had_lease = instance.epochs() != KnownEpochs::default();
        cache.had_lease.store(had_lease, Ordering::Release);
        Claims {
            cache,
            instance,
            lease,
            generation,
            alive_noted: 0,
            alive_failed: false,
            owed: None,
            shared: false,
        }
    }

    /// This instance's identity.
    pub fn id(&self) -> Uuid {
        self.instance.id()
    }

    /// The cache that lease and claim are for.
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

    /// Periodic work. `generation` and `policies` are the present ones, the latter as a text that
    /// differs whenever they do.
    pub fn tick(&mut self, generation: u64, policies: impl FnOnce() -> String) {
        self.cache.settle_due();
        let now = self.now();
        if now.saturating_sub(self.alive_noted) >= HEARTBEAT.as_millis() as Millis {
            self.alive_noted = now;
            self.note_alive();
        }
        // Under other policies others may have written what only we could write before, also if the
        // old policies are back.
        if generation != self.generation {
            self.generation = generation;
            self.instance.set_policies(&policies(), now);
            self.renew_claim(NewClaim::PoliciesChanged);
        }
        if let Some(why) = self.owed.clone() {
            self.renew_claim(why);
        }
    }

    /// Whether a new claim could not be written. A restart would use the one of before, so others
    /// must not hear yet of why it is due.
    pub fn owes_claim(&self) -> bool {
        self.owed.is_some()
    }

    /// What to do about the lease now.
    pub fn next(&self) -> Next {
        self.lease.next(self.now())
    }

    /// To be called before a transaction is sent. If this fails, the transaction must not be sent.
    ///
    /// # Errors
    /// The note that a restart would need cannot be written.
    pub fn about_to_send(&mut self, request: Request) -> io::Result<()> {
        self.lease.to_note(request).map_or(Ok(()), |epochs| self.instance.note_epochs(epochs))
    }

    /// Takes the answer to a transaction that was sent at `sent_at`, a moment from before.
    pub fn answered(&mut self, request: Request, sent_at: Millis, answer: Answer) -> Change {
        self.lease.answered(request, sent_at, answer, self.now())
    }

    /// Applies a change. `settled`: if another instance held the lease, the epoch that it said is
    /// settled, if any.
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
                        "the last lease holder did not say that its writes were settled: `exclusive` rows are cached at most a minute, for `unknown-outcome-hold`"
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
        self.cache.had_lease.store(true, Ordering::Release);
        let epochs = KnownEpochs { held: epoch, asked: epoch };
        let held = self.instance.epochs().held;
        if before == Before::Us {
            let noted = self.instance.note_epochs(epochs);
            warn("the lease's epoch", noted);
            self.believe();
        } else {
            self.instance.set_epochs(epochs);
            self.renew_claim(NewClaim::of_another_lease(held));
        }
        self.cache.lease().extend(self.lease.until());
        tracing::info!(epoch, ?before, "the lease is ours: `exclusive` tables are cached");
    }

    /// Several instances share the tables, and whoever drives them says how long our lease lasts
    /// ([`LeaseClock::set`](crate::lease::LeaseClock::set)). From now on the claim counts without
    /// the lease's row. `epoch`: under which they have the row; `taken`: since when, as the
    /// database says it. Whether the claim was made under another one: no earlier claim counts
    /// then, for somebody else may have written in between. The epoch alone does not tell: epochs
    /// begin anew where somebody has deleted the row.
    pub fn share(&mut self, epoch: i64, taken: i64) -> bool {
        self.shared = true;
        let held = self.instance.epochs().held;
        let is_other = held != epoch || self.instance.lease_taken() != taken;
        if is_other {
            self.instance.set_shared_epoch(epoch, taken);
            self.renew_claim(NewClaim::of_another_lease(held));
        } else {
            self.believe();
        }
        is_other
    }

    /// Takes [`Claims::share`] back: no claim counts until it is called again.
    pub fn unshare(&mut self) {
        self.shared = false;
        self.cache.set_claim(None);
    }

    /// Whether the tables are shared, see [`Claims::share`].
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Takes the data centre that we read in.
    pub fn set_data_center(&mut self, data_center: &str) {
        if self.instance.set_data_center(data_center) {
            self.cache.moved();
        }
    }

    /// Takes the cluster that answers. Whether it is another one than before: no earlier claim
    /// counts then.
    pub fn set_cluster(&mut self, name: &str) -> bool {
        let is_other = self.instance.set_cluster(name);
        if is_other {
            self.renew_claim(NewClaim::OtherCluster);
        }
        is_other
    }

    /// Ends this run: nothing is served under the lease any more. Returns the epoch that may be
    /// given back.
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
                if self.lease.epoch().is_some() || self.shared {
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
        // A restart would use the claim on disk. While that is an older one, no claim counts.
        if self.owed.is_some() {
            return;
        }
        self.cache.set_claim(Some((self.instance.claim(), self.generation)));
    }

    fn note_alive(&mut self) {
        let noted = self.instance.note_alive(self.now());
        let is_news = !std::mem::replace(&mut self.alive_failed, noted.is_err());
        if is_news {
            warn("a sign of life", noted);
        }
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
