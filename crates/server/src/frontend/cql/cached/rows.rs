//! A read of rows of several partitions by their primary keys (`IN` on the partition key).
//!
//! 1. [`route`]: each row is looked for as if it were read alone, under a permission of its own.
//! 2. [`RowsRead::look_up`]: what is on flash is read.
//! 3. [`RowsRead::bring`]: where few rows are missing, each is filled as if it were read alone.
//!    Otherwise the client's own request is sent.
//! 4. [`RowsRead::answer`]: the rows in the order of their keys, as servers give them.
//!
//! The rows are of different partitions. A server reads these one by one too, so there is no moment
//! at which all of them must have been current. Each is what the database had at some moment since
//! the request came.

use std::sync::Arc;

use afterglow_cql::frame::notation::Put;
use afterglow_cql::plan::{Plan, RowKey};
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::serve::CachePermission;
use futures_util::future::join_all;

use super::answer::{MOST_BYTES, answer_rows};
use super::miss::{Brought, CountedOnce};
use super::read::{
    Pending, admit_rows, ask, is_allowed, may_answer, path_of, tier_of, without_cache,
};
use super::sought::{Found, Sought};
use super::state::CachedState;
use super::wanted::Ready;
use crate::frontend::cql::bound::bound;
use crate::frontend::cql::{Later, Request};
use crate::metrics::{MissReason, PassReason, Path, Tier};

/// If more rows than this are missing, the request is sent as it is.
const MOST_FILLED: usize = 16;

/// Takes a read whose plan is [`Plan::CachedRows`].
pub(super) fn route(
    shared: &Arc<CachedState>,
    mut request: Request,
    plan: Arc<Plan>,
) -> Option<Later> {
    let Plan::CachedRows(rows) = &*plan else { unreachable!("the caller looked") };
    let (mut limit, mut page_size) = (usize::MAX, None);
    let admitted = admit_rows(shared, &mut request, &rows.read, |params| {
        let named = rows.bind(&bound(&params.values))?;
        (limit, page_size) = (named.limit, params.page_size);
        Some(named.keys)
    });
    let (terms, rows) = match admitted {
        Ok(admitted) => admitted,
        Err(unfit) => return without_cache(shared, request, &plan, unfit),
    };
    // No row without values is kept under `exclusive`: each would be filled again for every read.
    let keys_only = plan.read().is_some_and(|read| read.table.values().next().is_none());
    if keys_only && matches!(terms.cache_permission, Some(CachePermission::Exclusive { .. })) {
        request.note_pass(PassReason::UncacheableTable);
        request.pass(Path::Pass);
        return None;
    }
    let pending = Pending::new(shared, request, plan, terms);
    let found = rows.iter().map(|row| sought(&pending, row).look_up()).collect::<Vec<_>>();
    let any = found.iter().any(|found| !matches!(found, Found::Missing(_)));
    if any && !may_answer(&pending.request, pending.read()) {
        pending.request.note_pass(PassReason::Authentication);
        return Some(Box::pin(ask(pending.request, pending.plan)));
    }
    let read = RowsRead { pending, rows, limit, page_size };
    match read.at_once(&found) {
        Some((all, tier)) => read.hit(&all, tier),
        None => Some(Box::pin(read.look_up(found))),
    }
}

fn sought<'a>(
    pending: &'a Pending,
    (key, permission): &'a (RowKey, CachePermission),
) -> Sought<'a> {
    let (permission, need) = (*permission, pending.terms.need);
    Sought { shared: &pending.shared, read: pending.read(), key, permission, need }
}

/// A read of several rows on its way.
struct RowsRead {
    pending: Pending,
    /// Each with its permission, in the order of the answer.
    rows: Vec<(RowKey, CachePermission)>,
    /// The most rows that the request wants.
    limit: usize,
    page_size: Option<i32>,
}

impl RowsRead {
    /// All of the rows, if DRAM has them.
    fn at_once(&self, found: &[Found]) -> Option<(Vec<Row>, Tier)> {
        let row = |found: &Found| match found {
            Found::Row(row, tier) => Some((row.clone(), *tier)),
            Found::Flash(_) | Found::Missing(_) => None,
        };
        let all = found.iter().map(row).collect::<Option<Vec<_>>>()?;
        let tier = slowest(all.iter().map(|(_, tier)| *tier));
        Some((all.into_iter().map(|(row, _)| row).collect(), tier))
    }

    fn hit(self, all: &[Row], tier: Tier) -> Option<Later> {
        if let Err(reason) = self.fits(all) {
            self.pending.request.note_pass(reason);
            self.pending.request.pass(Path::Pass);
            return None;
        }
        let oldest = all.iter().filter_map(Row::age).max();
        self.pending.request.note_hit(tier, oldest);
        let Some(metadata) = self.pending.ready_metadata() else {
            let all = all.to_vec();
            return Some(Box::pin(self.answer_later(all, path_of(tier))));
        };
        self.answer(all, &metadata, path_of(tier));
        None
    }

    /// Reads what is on flash.
    async fn look_up(self, found: Vec<Found>) {
        let metrics = self.pending.request.metrics();
        let each = self.rows.iter().zip(found).map(async |(row, found)| match found {
            Found::Row(row, tier) => Ok((row, tier)),
            Found::Flash(flash) => sought(&self.pending, row).read(flash, metrics).await,
            Found::Missing(reason) => Err(reason),
        });
        let looked_up = join_all(each).await;
        if looked_up.iter().all(Result::is_ok) {
            let all: Vec<(Row, Tier)> = looked_up.into_iter().flatten().collect();
            let tier = slowest(all.iter().map(|(_, tier)| *tier));
            let all: Vec<Row> = all.into_iter().map(|(row, _)| row).collect();
            if let Some(later) = self.hit(&all, tier) {
                later.await;
            }
            return;
        }
        Box::pin(self.bring(looked_up)).await;
    }

    /// Fills what is missing. The request counts as one miss, or as a hit if all that was missing
    /// was carried over.
    async fn bring(self, looked_up: Vec<Result<(Row, Tier), MissReason>>) {
        let count = CountedOnce::default();
        let mut missing = looked_up.iter().filter_map(|found| found.as_ref().err()).copied();
        let (missed, first) = (missing.clone().count(), missing.next());
        let miss = |count: &CountedOnce| {
            first.into_iter().for_each(|reason| count.note(&self.pending.request, reason));
        };
        if missed > MOST_FILLED {
            miss(&count);
            return self.pending.request.pass(Path::Miss);
        }
        let each =
            self.rows.iter().zip(looked_up).map(async |((key, permission), found)| match found {
                Ok((row, tier)) => Brought::Row(row, path_of(tier)),
                Err(reason) => self.pending.filler_of(key).row(*permission, reason, &count).await,
            });
        let brought = join_all(each).await;
        // Some rows may have been read with other clients' rights, and a fill takes a while.
        let of_others = brought.iter().any(|brought| matches!(brought, Brought::OfOthers))
            || !is_allowed(&self.pending.request, self.pending.read());
        let row = |brought| match brought {
            Brought::Row(row, path) => Some((row, path)),
            Brought::OfOthers | Brought::Nothing => None,
        };
        let all = brought.into_iter().map(row).collect::<Option<Vec<_>>>();
        let (all, paths): (Vec<_>, Vec<_>) = all.unwrap_or_default().into_iter().unzip();
        let is_whole = all.len() == self.rows.len();
        if is_whole && self.fits(&all).is_ok() && !of_others && self.is_answered_still() {
            let oldest = all.iter().filter_map(Row::age).max();
            let tier = slowest(paths.into_iter().filter_map(tier_of));
            let path = count.end(&self.pending.request, path_of(tier), oldest);
            return self.answer_later(all, path).await;
        }
        miss(&count);
        match of_others {
            true => ask(self.pending.request, self.pending.plan).await,
            false => self.pending.request.pass(Path::Miss),
        }
    }

    /// Whether the cache answers at this level for each of the rows.
    fn is_answered_still(&self) -> bool {
        self.rows.iter().all(|(key, permission)| self.pending.filler_of(key).is_met(*permission))
    }

    /// How many of the rows are shown.
    fn shown(&self, all: &[Row]) -> usize {
        all.iter().filter(|row| !row.stored().is_absent()).count().min(self.limit)
    }

    /// Why the answer is not ours to give, if it is not. With as many rows as a page has there may
    /// be another, unless the limit forbids it.
    fn fits(&self, all: &[Row]) -> Result<(), PassReason> {
        let shown = self.shown(all);
        let size = self.page_size.and_then(|size| usize::try_from(size).ok());
        if size.is_some_and(|size| shown > size || shown == size && shown != self.limit) {
            return Err(PassReason::Paging);
        }
        let read = self.pending.read();
        let rows = self.rows.iter().zip(all);
        let bytes = rows.map(|((key, _), row)| row.stored().most_bytes(key, read));
        if bytes.sum::<usize>() > MOST_BYTES { Err(PassReason::TooLong) } else { Ok(()) }
    }

    /// Answers with the rows. The database answers if the metadata that the client wants is not
    /// known.
    async fn answer_later(self, all: Vec<Row>, path: Path) {
        match self.pending.metadata().await {
            Some(metadata) => self.answer(&all, &metadata, path),
            None => self.pending.request.pass(path),
        }
    }

    fn answer(self, all: &[Row], metadata: &Ready, path: Path) {
        let shown = self.shown(all);
        let Pending { request, plan, .. } = self.pending;
        let Some(read) = plan.read() else { return request.pass(path) };
        answer_rows(request.into_responder(), read, metadata.view(), path, |out| {
            out.put_int(shown as i32);
            let rows = self.rows.iter().zip(all).filter(|(_, row)| !row.stored().is_absent());
            for ((key, _), row) in rows.take(shown) {
                row.stored().write_cells(key, &read.projection, out);
            }
        });
    }
}

fn slowest(tiers: impl Iterator<Item = Tier>) -> Tier {
    let rank = |tier: &Tier| match tier {
        Tier::Ring => 2,
        Tier::Flash => 1,
        _ => 0,
    };
    tiers.max_by_key(rank).unwrap_or(Tier::Dram)
}
