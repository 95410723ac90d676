//! A read of a slice of one partition.
//!
//! 1. [`route`]: as for a row, may the cache answer, and is there a unit of the partition?
//! 2. [`SliceRead::found`]: the unit answers if the slice is within it. Otherwise it is a miss.
//! 3. [`SliceRead::missed`]: a unit that is being written is waited for. A fill reads a larger
//!    unit, or the same again after a write. If that does not answer either, the client's own
//!    request is sent, and there is no fill for a while.
//!    Reads that waited for another's fill, which is too small for them, make one fill once more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use afterglow_cql::message::Request as Message;
use afterglow_cql::plan::{Plan, Slice, SlicePlan};
use afterglow_engine::{FlashRead, Hit, Lookup};
use afterglow_rowcache::entry::Unit;
use afterglow_rowcache::gate::{Join, Ticket};
use afterglow_rowcache::install::Installed;
use afterglow_rowcache::serve::CachePermission;
use afterglow_rowcache::unit::{SliceRows, StoredUnit, Unanswered, UnitAsked};
use bytes::Bytes;
use futures_channel::oneshot;

use super::FillWaiter;
use super::answer::{MOST_BYTES, answer_rows};
use super::awaited::{SoughtUnit, Waited};
use super::fill::{FillFailure, FillShape};
use super::read::{Pending, admit, allow, ask, is_allowed, may_answer, path_of, without_cache};
use super::state::CachedState;
use super::wanted::Ready;
use crate::frontend::cql::bound::bound;
use crate::frontend::cql::{Later, Request};
use crate::metrics::{MissReason, PassReason, Path, Tier};

/// Takes a read whose plan is [`Plan::CachedSlice`].
pub(super) fn route(
    shared: &Arc<CachedState>,
    mut request: Request,
    plan: Arc<Plan>,
) -> Option<Later> {
    let Plan::CachedSlice(slice) = &*plan else { unreachable!("the caller looked") };
    if shared.units.most_bytes() == 0 {
        return pass(request, PassReason::NotOneRow);
    }
    if slice.counts() && !shared.counts_shown_rows.load(Ordering::Acquire) {
        return pass(request, PassReason::Projection);
    }
    let terms = match admit(shared, &mut request, &slice.read) {
        Ok(terms) => terms,
        Err(unfit) => return without_cache(shared, request, &plan, unfit),
    };
    let Some((wanted, page_size)) = wanted(&request, slice) else {
        return pass(request, PassReason::Clause);
    };
    let Some(permission) = terms.cache_permission else {
        return pass(request, PassReason::NotOwner);
    };
    // No SELECT shows when rows without values expire.
    let keys_only = slice.read.table.regulars.is_empty();
    if keys_only && matches!(permission, CachePermission::Exclusive { .. }) {
        return pass(request, PassReason::UncacheableTable);
    }
    let looked_up = shared.cache.look_up(&terms.key);
    if !matches!(looked_up, Lookup::Miss(_)) && !may_answer(&request, &slice.read) {
        request.note_pass(PassReason::Authentication);
        return Some(Box::pin(ask(request, plan)));
    }
    let pending = Pending::new(shared, request, plan, terms);
    let read = SliceRead { pending, wanted, page_size, permission, waited: false, seen: 0 };
    match looked_up {
        Lookup::Hit(hit) => read.hit(&hit),
        Lookup::Miss(reason) => read.miss(reason.into()),
        Lookup::Flash(flash) => Some(Box::pin(read.read_flash(flash))),
    }
}

/// Whether a node of this `release_version` counts all rows that `SELECT *` shows. Cassandra 3.11
/// leaves out a row whose marker has expired, though a column lives on. ScyllaDB, which says 3.0,
/// was not there to ask.
pub(super) fn counts_shown_rows(release: &str) -> bool {
    let major = release.split(['.', '-']).next().and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= 4)
}

fn pass(request: Request, reason: PassReason) -> Option<Later> {
    request.note_pass(reason);
    request.pass(Path::Pass);
    None
}

/// The slice with its bound values, and the page size. `None` if the database may refuse it.
fn wanted(request: &Request, plan: &SlicePlan) -> Option<(Slice, Option<i32>)> {
    let (_, message) = request.message().ok()?;
    let params = match &message {
        Message::Query(query) => &query.params,
        Message::Execute(execute) => &execute.params,
        _ => return None,
    };
    // A count is one row, whatever the size of a page.
    let page_size = params.page_size.filter(|_| !plan.counts());
    Some((plan.bind(&bound(&params.values))?, page_size))
}

/// A read of a slice on its way.
struct SliceRead {
    pending: Pending,
    wanted: Slice,
    page_size: Option<i32>,
    permission: CachePermission,
    /// It has waited for another's fill in vain, and counts as a miss already.
    waited: bool,
    /// Rows of the unit that did not reach far enough.
    seen: usize,
}

impl SliceRead {
    fn shared(&self) -> &Arc<CachedState> {
        &self.pending.shared
    }

    fn unit_key(&self) -> &[u8] {
        self.pending.terms.key.engine_key()
    }

    /// What an engine's hit is worth.
    fn unit(&self, hit: &Hit) -> Result<Unit, MissReason> {
        if !self.pending.terms.need.takes(self.shared(), hit) {
            return Err(MissReason::Unusable);
        }
        let fingerprint = self.pending.read().fingerprint;
        Ok(self.shared().cache.accept_unit(hit, self.permission, fingerprint)?)
    }

    /// Whether the cache answers at the level of the read.
    fn is_met(&self) -> bool {
        self.pending.filler().is_met(self.permission)
    }

    fn answer<'u>(&self, unit: &StoredUnit<'u>) -> Result<SliceRows<'u>, Unanswered> {
        let Pending { terms, .. } = &self.pending;
        let read = self.pending.read();
        let rows = unit.answer(&read.table, &self.wanted, self.page_size)?;
        let fits = rows.most_bytes(&terms.key, read) <= MOST_BYTES;
        if fits { Ok(rows) } else { Err(Unanswered::TooLong) }
    }

    fn hit(self, hit: &Hit) -> Option<Later> {
        match self.unit(hit) {
            Ok(unit) => self.found(unit, hit.tier.into()),
            Err(reason) => self.miss(reason),
        }
    }

    fn found(mut self, unit: Unit, tier: Tier) -> Option<Later> {
        self.seen = unit.stored().rows();
        match self.answer(&unit.stored()) {
            Ok(answer) => {
                self.pending.request.note_hit(tier, unit.age());
                self.shared().units.note_hit(self.unit_key());
                let Some(metadata) = self.pending.ready_metadata() else {
                    return Some(Box::pin(self.reply_later(unit, path_of(tier))));
                };
                self.reply(&answer, &metadata, path_of(tier));
                None
            }
            Err(Unanswered::Paged) => pass(self.pending.request, PassReason::Paging),
            Err(Unanswered::TooLong) => pass(self.pending.request, PassReason::TooLong),
            Err(reason) => self.miss(reason.into()),
        }
    }

    async fn read_flash(self, flash: FlashRead) {
        let read = self.shared().read(flash, self.pending.request.metrics()).await;
        let later = match read {
            Ok(hit) => self.hit(&hit),
            Err(reason) => self.miss(reason),
        };
        if let Some(later) = later {
            later.await;
        }
    }

    fn reply(self, answer: &SliceRows<'_>, metadata: &Ready, path: Path) {
        let Pending { request, plan, terms, .. } = self.pending;
        let Some(read) = plan.read() else { return request.pass(path) };
        answer_rows(request.into_responder(), read, metadata.view(), path, |out| {
            answer.write_rows(&terms.key, &read.projection, out);
        });
    }

    /// Answers with the unit. The database answers if the metadata that the client wants is not
    /// known.
    async fn reply_later(self, unit: Unit, path: Path) {
        match (self.pending.metadata().await, self.answer(&unit.stored())) {
            (Some(metadata), Ok(answer)) => self.reply(&answer, &metadata, path),
            _ => self.pending.request.pass(path),
        }
    }

    fn miss(self, reason: MissReason) -> Option<Later> {
        Some(Box::pin(self.missed(reason)))
    }

    fn note_miss(&self, reason: MissReason) {
        if !self.waited {
            self.pending.request.note_miss(reason);
        }
    }

    /// `reason`: why the lookup found nothing to serve. Each read counts as one miss, by what it
    /// comes to.
    async fn missed(mut self, reason: MissReason) {
        match self.await_unit().await {
            Waited::Unit(unit) => return self.found_awaited(unit).await,
            Waited::InVain => self.waited = true,
            Waited::Not => {}
        }
        let shared = self.shared().clone();
        let (table, now) = (self.pending.read().table.id, shared.cache.clock().now());
        let rows = match shared.units.rows_to_read(table, self.unit_key(), &self.wanted, now) {
            Ok(rows) => rows,
            Err(reason) => {
                self.note_miss(reason.into());
                return self.pending.request.pass(Path::Miss);
            }
        };
        // A fill for rows that `IN` names is small: it does not take the place of a larger unit.
        if reason == MissReason::Beyond && self.wanted.names_rows() && self.seen >= rows as usize {
            self.note_miss(reason);
            return self.pending.request.pass(Path::Miss);
        }
        let mut hears = None;
        let waiter = || {
            let (sender, receiver) = oneshot::channel();
            hears = Some(receiver);
            sender
        };
        let (read, key) = (self.pending.read(), &self.pending.terms.key);
        match shared.cache.join(&read.table, key, self.permission, waiter) {
            Join::Lead(ticket) => self.lead(ticket, rows, reason).await,
            Join::Wait => {
                self.note_miss(MissReason::Coalesced);
                if let Some(hears) = hears {
                    // What was read is in the cache now, or nobody may have it.
                    let _ = hears.await;
                }
                self.look_again().await;
            }
            Join::Bypass(reason) => {
                self.note_miss(reason.into());
                self.pending.request.pass(Path::Miss);
            }
        }
    }

    /// Waits for the unit if it is being written.
    async fn await_unit(&self) -> Waited {
        if self.waited {
            return Waited::Not;
        }
        let serves = |unit: &Unit| self.answer(&unit.stored()).is_ok();
        let began = || self.note_miss(MissReason::Coalesced);
        let Pending { shared, terms, .. } = &self.pending;
        let (cache, read, key) = (&*shared.cache, self.pending.read(), &terms.key);
        let unit = SoughtUnit { cache, read, key, permission: self.permission };
        match unit.wait(serves, began).await {
            Waited::Unit(unit) if self.answer(&unit.stored()).is_err() => Waited::InVain,
            waited => waited,
        }
    }

    /// It counts as a miss already.
    async fn found_awaited(self, unit: Unit) {
        self.shared().units.note_hit(self.unit_key());
        if !self.is_met() {
            return self.pending.request.pass(Path::Miss);
        }
        // The unit was read with another client's rights.
        if is_allowed(&self.pending.request, self.pending.read()) {
            return self.reply_later(unit, Path::Miss).await;
        }
        ask(self.pending.request, self.pending.plan).await;
    }

    /// After another read's fill. It counts as a miss already.
    async fn look_again(mut self) {
        let pending = &self.pending;
        let (table, key) = (&pending.read().table, &pending.terms.key);
        let metrics = pending.request.metrics();
        let found = self.shared().look_up(key.engine_key(), metrics).await;
        let unit = found.and_then(|hit| self.unit(&hit)).ok();
        // The lease may have ended while the read waited.
        let is_permitted = self.shared().cache.row_permission(table, key) == Ok(self.permission);
        match unit.filter(|_| is_permitted) {
            Some(unit) if self.answer(&unit.stored()).is_ok() => {
                self.found_awaited(unit).await;
            }
            Some(unit) if self.is_beyond(&unit) && !self.waited => {
                (self.waited, self.seen) = (true, unit.stored().rows());
                Box::pin(self.missed(MissReason::Beyond)).await;
            }
            _ => self.pending.request.pass(Path::Miss),
        }
    }

    /// Whether a larger unit may answer.
    fn is_beyond(&self, unit: &Unit) -> bool {
        matches!(self.answer(&unit.stored()), Err(Unanswered::Beyond))
    }

    /// The unit that another fill has left in DRAM, if it answers.
    fn filled_meanwhile(&self) -> Option<Unit> {
        let unit = self.unit(&self.pending.filler().filled_meanwhile(self.permission)?).ok()?;
        (self.is_met() && self.answer(&unit.stored()).is_ok()).then_some(unit)
    }

    async fn lead(self, ticket: Ticket<FillWaiter>, rows: u32, reason: MissReason) {
        // The race with the end of another fill: see `Pending::lead`. Reads that wait for this one
        // look again.
        if let Some(unit) = self.filled_meanwhile() {
            drop(ticket);
            self.note_miss(MissReason::Coalesced);
            self.shared().units.note_hit(self.unit_key());
            return self.reply_later(unit, Path::Miss).await;
        }
        // The gate may have become weak since the read was admitted.
        let terms = self.pending.filler().fill_terms(self.permission);
        let Some(weak) = terms.filter(|_| self.is_met()) else {
            drop(ticket);
            self.note_miss(MissReason::Quarantined);
            return self.pending.request.pass(Path::Miss);
        };
        self.note_miss(reason);
        let (asked_at, asked) = (self.shared().cache.clock().moment(), Instant::now());
        let bytes = self.shared().units.most_bytes();
        let unit = UnitAsked { reversed: self.wanted.reversed, rows, bytes };
        let filled = self.pending.filler().fill(asked_at.unix, FillShape::Unit(unit)).await;
        let metrics = self.pending.request.metrics();
        let filled = match filled {
            Ok(filled) => filled,
            // Whatever the database's reason to refuse the fill, its answer to the client's own
            // request counts.
            Err(failure) => {
                metrics.fills.inc(failure.into());
                self.note_failure(failure);
                drop(ticket);
                return self.pending.request.pass(Path::Miss);
            }
        };
        let read = self.pending.read();
        allow(&self.pending.request, read, asked);
        let unit = Unit::checked(Bytes::copy_from_slice(&filled.bytes), read.fingerprint);
        let size = filled.bytes.len();
        let (installed, _) =
            self.pending.filler().install(filled, (self.permission, asked_at, weak), ticket);
        metrics.fills.inc(installed.into());
        let Some(unit) = unit else { return self.pending.request.pass(Path::Miss) };
        let (units, found) = (&self.shared().units, unit.stored().rows());
        units.learn(read.table.id, found, size);
        let answered = self.answer(&unit.stored()).map(|rows| rows.len());
        units.note_fill(self.unit_key(), found, answered.unwrap_or(0));
        // The next fill reads more if this one was too small by mistake.
        let grows =
            found == rows as usize && units.may_read_more(read.table.id, rows, &self.wanted);
        // What is too long for this client is not for others.
        let is_missing = !matches!(answered, Ok(_) | Err(Unanswered::TooLong)) && !grows;
        if installed == Installed::Uncacheable || is_missing {
            self.note_in_vain();
        }
        match answered {
            Ok(_) if !self.is_met() => self.pending.request.pass(Path::Miss),
            Ok(_) => self.reply_later(unit, Path::Miss).await,
            Err(_) => self.pending.request.pass(Path::Miss),
        }
    }

    fn note_failure(&self, failure: FillFailure) {
        let (units, table) = (&self.shared().units, self.pending.read().table.id);
        match failure {
            FillFailure::Failed | FillFailure::OtherTypes | FillFailure::Late => {
                return units.note_failed(table);
            }
            FillFailure::TooLarge => units.learn_too_large(table),
            FillFailure::Uncacheable => {}
        }
        self.note_in_vain();
    }

    fn note_in_vain(&self) {
        let shared = self.shared();
        shared.units.note_in_vain(self.unit_key(), &self.wanted, shared.cache.clock().now());
    }
}

impl From<Unanswered> for MissReason {
    fn from(reason: Unanswered) -> MissReason {
        match reason {
            Unanswered::Beyond | Unanswered::Paged => MissReason::Beyond,
            Unanswered::TooLong => MissReason::TooLarge,
            Unanswered::Corrupt => MissReason::Corrupt,
            Unanswered::Unordered => MissReason::Unusable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::counts_shown_rows;

    #[test]
    fn rows_are_counted_as_cassandra_does_from_release_4_on() {
        assert!(
            ["4.0.0", "4.1.9", "5.0.5", "5.1-SNAPSHOT", "10.0"].map(counts_shown_rows) == [true; 5]
        );
        assert!(["3.11.19", "3.0.8", "", "unknown"].map(counts_shown_rows) == [false; 4]);
    }
}
