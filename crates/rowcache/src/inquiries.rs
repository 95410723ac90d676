//! Bounds the inquiries about writes of unknown outcome: questions to the database about
//! lightweight transactions, and plain writes that are sent again. Their gates stay closed
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterglow_cql::plan::TableSchema;

use crate::row_cache::RowCache;
use crate::write_scope::{WriteScope, group_of};

/// At most so many inquiries are made at once. Other transactions wait until the replicas have
/// forgotten them, and other writes until their hints have gone.
const MAX_INQUIRIES: usize = 1024;

/// A coordinator that did not answer may go on trying for as long as its timeouts let it. No server
/// takes longer.
pub const COORDINATORS_TIME: Duration = Duration::from_secs(60);

/// One inquiry, as long as it lasts.
pub struct Counted<W>(Arc<RowCache<W>>);

impl<W> Drop for Counted<W> {
    fn drop(&mut self) {
        self.0.unresolved.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An attempt to send a write again, from before the last look at what else has begun until it has
/// its answer.
pub struct Attempt<W> {
    cache: Arc<RowCache<W>>,
    group: u32,
}

impl<W> Drop for Attempt<W> {
    fn drop(&mut self) {
        self.cache.attempts.remove(self.group);
    }
}

impl<W> RowCache<W> {
    /// A write of the table is about to be sent again. To be called before the last look at
    /// [`RowCache::removals`].
    pub fn begin_attempt(self: &Arc<Self>, table: &TableSchema) -> Attempt<W> {
        let group = group_of(table.id);
        self.attempts.add(group);
        Attempt { cache: self.clone(), group }
    }

    /// Whether a write is being sent again of a table that `scope` touches as a whole. To be asked
    /// once the gates of `scope` are closed: no attempt begins from then on. A statement that may
    /// touch anything because it is not understood waits for nobody.
    pub fn has_attempts(&self, scope: &WriteScope) -> bool {
        !(scope.doubtful && scope.is_everything())
            && scope.invalidations().iter().any(|one| self.attempts.are_under_way(one))
    }

    /// Whether no more inquiries are to be made now.
    pub fn is_full_of_inquiries(&self) -> bool {
        self.unresolved.load(Ordering::Acquire) >= MAX_INQUIRIES
    }

    /// Whether no more plain writes are to be sent again now. The last places are for lightweight
    /// transactions: there may be very many plain writes, and what waits for the replicas to forget
    /// a transaction waits longest.
    pub fn is_full_of_repetitions(&self) -> bool {
        self.unresolved.load(Ordering::Acquire) >= MAX_INQUIRIES / 4 * 3
    }

    /// How many writes of the whole table have begun that may remove its rows or change what later
    /// writes do: TRUNCATE, changes of its schema, statements that were carried out without being
    /// understood.
    pub fn removals(&self, table: &TableSchema) -> u64 {
        self.attempts.removals(group_of(table.id))
    }

    /// How long a plain write of unknown outcome is held where it is not settled.
    pub fn hold(&self) -> Duration {
        self.hold
    }

    /// For how long a write may be sent again, from before it was first sent; zero: not at all. A
    /// tombstone that has gone hides no write any more. So the last attempt is at the replicas, or
    /// never to come, before half of `tombstones_stay` has passed. The other half is for clocks
    /// that differ.
    ///
    /// `tombstones_stay`: how long those of its table stay. `apart`: how far its timestamp is from
    /// the clock, either way. A delete of a later timestamp may be older than the write by as much,
    /// and its tombstone too.
    pub fn may_repeat_for(&self, tombstones_stay: Duration, apart: Duration) -> Duration {
        let half = tombstones_stay / 2;
        self.hold.min(half.saturating_sub(COORDINATORS_TIME).saturating_sub(apart))
    }

    /// Counts an inquiry.
    pub fn count_inquiry(self: &Arc<Self>) -> Counted<W> {
        self.unresolved.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::plan::Target;
    use afterglow_cql::schema::Schema;
    use uuid::Uuid;

    use super::*;
    use crate::tables::Index;
    use crate::testing::{TestClock, cache_of_boot, open_engine};
    use crate::write_in_flight::Answered;

    struct Stage {
        _dir: tempfile::TempDir,
        cache: Arc<RowCache<u32>>,
        tables: [TableSchema; 2],
        index: Index,
    }

    impl Stage {
        fn new() -> Stage {
            let dir = tempfile::tempdir().unwrap();
            let engine = open_engine(dir.path());
            let cache = cache_of_boot(7, &engine, &dir.path().join("intents"), &TestClock::new());
            let table =
                |name: &str, id| TableSchema::new("ks".into(), name.into(), Uuid::from_u128(id));
            let tables = [table("a", 1), table("b", 2)];
            let index = Index::of(Arc::new(Schema::of_tables(tables.clone())));
            Stage { _dir: dir, cache, tables, index }
        }

        fn scope(&self, target: &Target) -> WriteScope {
            let mut scope = WriteScope::default();
            scope.add_target(target, &|_| None, &self.index);
            scope
        }

        fn whole(&self, table: usize) -> WriteScope {
            let TableSchema { keyspace, name, id, .. } = self.tables[table].clone();
            self.scope(&Target::Table { keyspace, table: name, id: Some(id) })
        }

        fn removals(&self) -> [u64; 2] {
            self.tables.each_ref().map(|table| self.cache.removals(table))
        }
    }

    /// Of a statement that is not understood.
    fn doubtful() -> WriteScope {
        let mut scope = WriteScope::everything();
        scope.doubtful = true;
        scope
    }

    #[test]
    fn an_attempt_is_waited_for_by_who_removes_its_table_until_it_is_answered() {
        let stage = Stage::new();
        let everything = WriteScope::everything();
        let keyspace = stage.scope(&Target::Keyspace("ks".into()));
        let new_row = stage.scope(&Target::NewPartition(Uuid::from_u128(1)));
        let doubtful = doubtful();
        let scopes =
            [&stage.whole(0), &keyspace, &everything, &stage.whole(1), &new_row, &doubtful];
        let waits = || scopes.map(|scope| stage.cache.has_attempts(scope));
        assert_eq!(waits(), [false; 6]);
        let attempts = [0, 1].map(|_| stage.cache.begin_attempt(&stage.tables[0]));
        assert_eq!(waits(), [true, true, true, false, false, false]);
        let [first, second] = attempts;
        drop(first);
        assert!(stage.cache.has_attempts(scopes[0]), "the other one is not answered");
        drop(second);
        assert_eq!(waits(), [false; 6]);
    }

    #[test]
    fn what_removes_a_table_is_counted_before_it_is_sent() {
        let stage = Stage::new();
        let begin =
            |scope: &WriteScope| stage.cache.begin_write(scope, false, 0, WriteScope::default);
        let truncate = begin(&stage.whole(0));
        assert_eq!(stage.removals(), [1, 0]);
        truncate.settle(Answered::Definite);
        begin(&stage.scope(&Target::NewPartition(Uuid::from_u128(1)))).settle(Answered::Definite);
        assert_eq!(stage.removals(), [1, 0], "a new row removes none");
        let doubtful = doubtful();
        let refused = begin(&doubtful);
        assert_eq!(stage.removals(), [1, 0]);
        refused.settle(Answered::Refused);
        assert_eq!(stage.removals(), [1, 0], "it was not carried out");
        begin(&doubtful).settle(Answered::Definite);
        assert_eq!(stage.removals(), [2, 1]);
        drop(begin(&stage.scope(&Target::Keyspace("ks".into()))));
        assert_eq!(stage.removals(), [3, 2]);
    }

    #[test]
    fn a_write_is_sent_again_only_as_long_as_no_later_delete_may_be_forgotten() {
        let stage = Stage::new();
        let hold = stage.cache.hold();
        let may = |stay: u64, apart: u64| {
            let (stay, apart) = (Duration::from_secs(stay), Duration::from_secs(apart));
            stage.cache.may_repeat_for(stay, apart).as_secs()
        };
        assert_eq!(may(10 * 86_400, 0), hold.as_secs());
        // An attempt may take a minute to arrive.
        assert_eq!((may(0, 0), may(1, 0), may(120, 0), may(122, 0)), (0, 0, 0, 1));
        assert_eq!(may(1_000, 0), 440);
        // The delete may be as much older as the timestamp.
        assert_eq!((may(1_000, 439), may(1_000, 440), may(1_000, 5_000)), (1, 0, 0));
        assert_eq!(may(10 * 86_400, 5 * 86_400 - 61), 1);
        assert_eq!(may(10 * 86_400, 5 * 86_400 - 60), 0);
        let farthest = Duration::from_micros(u64::MAX);
        assert_eq!(stage.cache.may_repeat_for(Duration::MAX, farthest), hold, "it stays for ever");
    }

    #[test]
    fn plain_writes_leave_places_for_transactions() {
        let stage = Stage::new();
        let full = || (stage.cache.is_full_of_repetitions(), stage.cache.is_full_of_inquiries());
        let mut counted = Vec::new();
        while !stage.cache.is_full_of_repetitions() {
            counted.push(stage.cache.count_inquiry());
        }
        assert_eq!((counted.len(), full()), (768, (true, false)));
        counted.extend((768..1_024).map(|_| stage.cache.count_inquiry()));
        assert_eq!(full(), (true, true));
        drop(counted);
        assert_eq!(full(), (false, false));
    }
}
