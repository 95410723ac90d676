//! What the member does to the cached rows: a write that is granted here is a write of the row
//! cache, from its BEGIN to its END. So its gates, intents and holds are those of an instance
//! without a ring, and outlive the process as those do.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use afterglow_ring::{Detail, Outcome, PermitKey, RowKey, Rows, Time, WriteBody};
use afterglow_rowcache::write_in_flight::{Answered, InDoubt};
use afterglow_rowcache::write_scope::WriteScope;

use crate::frontend::cql::cached::{RowCache, WriteInFlight};

/// What a write may touch besides, if it was not planned for the schema as it is here.
pub type Newer = Box<dyn Fn(&WriteScope) -> WriteScope + Send>;

/// How far ahead tables are weak in which a write makes partitions whose permit has ended.
const WEAK: Time = 60_000_000;

/// The rows, with the writes that are granted.
pub struct RingRows {
    cache: Arc<RowCache>,
    newer: Newer,
    granted: BTreeMap<PermitKey, WriteInFlight>,
    /// Of these, writes of nothing but partitions that the database makes, once time has passed:
    /// when the permit has ended for certain, and then when their tables are to be weakened again.
    made: BTreeMap<PermitKey, Option<Time>>,
    /// A write has dropped more than its scopes say.
    dropped_more: bool,
}

impl RingRows {
    /// No write is granted yet.
    pub fn new(cache: Arc<RowCache>, newer: Newer) -> RingRows {
        RingRows {
            cache,
            newer,
            granted: BTreeMap::new(),
            made: BTreeMap::new(),
            dropped_more: false,
        }
    }

    /// Whether a write has dropped more than its scopes say, since this was last asked: it was
    /// planned for a table that was made again since, with other keys perhaps.
    pub fn has_dropped_more(&mut self) -> bool {
        take(&mut self.dropped_more)
    }

    fn begin_write(&mut self, (scope, dead_after): (WriteScope, u32), weak: bool) -> WriteInFlight {
        let newer = || {
            let newer = (self.newer)(&scope);
            self.dropped_more |= !newer.is_empty();
            newer
        };
        self.cache.begin_write(&scope, weak, dead_after, newer)
    }
}

/// The bit of the table with this gate, see [`Rows::makes_rows`].
pub fn bit_of(gate: u32) -> u64 {
    1 << (gate % 64)
}

/// What a write touches, for its owners. `dead_after`: see
/// [`Nature`](afterglow_rowcache::intents::words::Nature).
pub fn detail(scope: &WriteScope, dead_after: u32) -> Detail {
    [&dead_after.to_le_bytes()[..], &scope.encode()].concat().into()
}

/// What cannot be read may touch anything.
fn read_detail(detail: &[u8]) -> (WriteScope, u32) {
    let read = detail.split_first_chunk::<4>().and_then(|(dead_after, scope)| {
        Some((WriteScope::decode(scope).ok()?, u32::from_le_bytes(*dead_after)))
    });
    read.unwrap_or_else(|| (WriteScope::everything(), 0))
}

impl Rows for RingRows {
    fn get(&self, _: &RowKey) -> Option<(u64, Option<Vec<u8>>)> {
        None // rows are looked up beside the member
    }

    /// A table that was made again may have other keys, so that what is new in one of them is in a
    /// partition that is there.
    fn makes_rows(&self, detail: &Detail) -> Option<u64> {
        let (scope, _) = read_detail(detail);
        let gates = scope.only_made_in()?;
        let is_as_planned = (self.newer)(&scope).is_empty();
        is_as_planned.then(|| gates.iter().fold(0, |bits, gate| bits | bit_of(*gate)))
    }

    fn install(&mut self, _: &RowKey, _: (u64, Time), _: Option<Vec<u8>>, _: bool) {
        unreachable!("rows are filled beside the member");
    }

    fn begin(&mut self, write: PermitKey, body: WriteBody<'_>) {
        if let Some(begun) = self.granted.get_mut(&write) {
            begun.renew_made();
            self.made.entry(write).and_modify(|next| *next = None);
            return;
        }
        let (scope, dead_after) = read_detail(body.detail);
        if scope.only_makes_partitions() {
            self.made.insert(write, None);
        }
        let begun = self.begin_write((scope, dead_after), false);
        self.granted.insert(write, begun);
    }

    fn end(&mut self, write: PermitKey, outcome: Outcome) {
        self.made.remove(&write);
        let Some(mut begun) = self.granted.remove(&write) else { return };
        if outcome == Outcome::Weak {
            begun.weaken();
        }
        let unknown = Answered::Unknown(InDoubt::ConnectionLost);
        match outcome {
            Outcome::Settled | Outcome::Weak => begun.settle(Answered::Definite),
            Outcome::Refused => begun.settle(Answered::Refused),
            Outcome::Unknown => begun.settle(unknown),
            Outcome::Decided => begun.settle_inquired(unknown, true, true),
        }
    }

    fn run_out(&mut self, write: PermitKey) {
        self.made.remove(&write);
        if let Some(begun) = self.granted.remove(&write) {
            begun.run_out();
        }
    }

    /// Its writer may be dead, and nobody says how the write has ended. Once its permit has ended
    /// nobody is told of the new rows unless this owner is asked again, which closes their tables
    /// again. So these are weak until it ends, instead of closed for an intent.
    fn tick(&mut self, now: Time, valid: Time) {
        for (write, next) in &mut self.made {
            let due = next.get_or_insert(now + valid);
            if now >= *due
                && let Some(begun) = self.granted.get_mut(write)
            {
                *due = now + WEAK / 2;
                begun.weaken_made(WEAK / 1_000);
            }
        }
    }

    /// The write was sent under another owner's gates, and its answer came too late for them. So a
    /// row that it has made may have been missed by a fill here, while no gate was closed: all
    /// behind the gates is dropped, also where the write itself drops nothing.
    fn forget(&mut self, body: WriteBody<'_>, weak: bool) {
        let (scope, dead_after) = read_detail(body.detail);
        let scope = (scope.with_all_behind_gates(), dead_after);
        self.begin_write(scope, weak).settle(Answered::Definite);
    }

    fn drop_all(&mut self) {
        self.cache.forget(&WriteScope::everything());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use afterglow_cql::plan::Target;
    use afterglow_cql::schema::Schema;
    use afterglow_ring::{Identity, Incarnation, MemberId, Scope};
    use afterglow_rowcache::gate::Join;
    use afterglow_rowcache::intents::words::NEVER;
    use afterglow_rowcache::serve::CachePermission;
    use afterglow_rowcache::tables::Index;
    use afterglow_rowcache::write_scope::gate_of;

    use super::*;
    use crate::frontend::cql::cached::testing::{keyed, open, open_holding, read_of};

    /// The writer was killed. A serial read may complete the proposal of its transaction, days
    /// later.
    #[test]
    fn a_transaction_whose_end_nobody_says_is_held_where_a_plain_write_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(directory.path());
        let cache = cached.router.shared().cache.clone();
        let (plan, key) = read_of(&Schema::of_tables([keyed("t", 7)]), "t");
        let process = Identity { id: MemberId(1), incarnation: Incarnation(1) };
        let mut rows = RingRows::new(cache.clone(), Box::new(|_| WriteScope::default()));
        for (conditional, is_filled) in [(false, true), (true, false)] {
            let mut scope = WriteScope::everything();
            scope.conditional = conditional;
            let (scopes, detail) = ([Scope::All], detail(&scope, NEVER));
            let write = PermitKey { process, number: conditional.into() };
            rows.begin(write, WriteBody { scopes: &scopes, detail: &detail });
            let permission = CachePermission::Exclusive { claim: 9 };
            let fills = || {
                let joined = cache.join(&plan.table, &key, permission, || unreachable!());
                matches!(joined, Join::Lead(_))
            };
            assert!(!fills(), "it is under way");
            rows.run_out(write);
            assert_eq!(fills(), is_filled);
        }
    }

    /// Its coordinator was lost, and a serial read has decided it since. So it is held for
    /// `unknown-outcome-hold`, as a plain write is.
    #[test]
    fn a_transaction_that_is_decided_is_not_held_until_the_replicas_forget_it() {
        let directory = tempfile::tempdir().unwrap();
        let (_engine, cached) = open_holding(directory.path(), Duration::ZERO);
        let cache = cached.router.shared().cache.clone();
        let (plan, key) = read_of(&Schema::of_tables([keyed("t", 7)]), "t");
        let process = Identity { id: MemberId(1), incarnation: Incarnation(1) };
        let mut rows = RingRows::new(cache.clone(), Box::new(|_| WriteScope::default()));
        for (outcome, is_filled) in [(Outcome::Decided, true), (Outcome::Unknown, false)] {
            let mut scope = WriteScope::everything();
            scope.conditional = true;
            let (scopes, detail) = ([Scope::All], detail(&scope, NEVER));
            let write = PermitKey { process, number: is_filled.into() };
            rows.begin(write, WriteBody { scopes: &scopes, detail: &detail });
            rows.end(write, outcome);
            let permission = CachePermission::Exclusive { claim: 9 };
            let joined = cache.join(&plan.table, &key, permission, || unreachable!());
            assert_eq!(matches!(joined, Join::Lead(_)), is_filled, "{outcome:?}");
        }
    }

    /// Then the token of its scope may be none of the rows that it changes.
    #[test]
    fn a_write_that_was_planned_for_another_table_drops_more_than_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(directory.path());
        let cache = cached.router.shared().cache.clone();
        let process = Identity { id: MemberId(1), incarnation: Incarnation(1) };
        for (number, is_current) in [(1, true), (2, false)] {
            let newer = move |_: &_| match is_current {
                true => WriteScope::default(),
                false => WriteScope::everything(),
            };
            let mut rows = RingRows::new(cache.clone(), Box::new(newer));
            let (scopes, detail) = ([Scope::Token(7)], detail(&WriteScope::default(), 0));
            let body = WriteBody { scopes: &scopes, detail: &detail };
            rows.begin(PermitKey { process, number }, body);
            assert_eq!(rows.has_dropped_more(), !is_current);
            assert!(!rows.has_dropped_more(), "it is said once");
            rows.end(PermitKey { process, number }, Outcome::Settled);
        }
    }

    /// The next owner takes rows of the one before, unless a write may have changed them.
    #[test]
    fn a_write_with_a_key_that_is_made_only_makes_rows_unless_its_table_was_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(directory.path());
        let cache = cached.router.shared().cache.clone();
        let schema = Schema::of_tables([keyed("t", 7)]);
        let (plan, _) = read_of(&schema, "t");
        let mut made = WriteScope::default();
        let new = Target::NewPartition(plan.table.id);
        made.add_target(&new, &|_| None, &Index::of(Arc::new(schema)));
        let only_makes = |scope: &WriteScope, newer: WriteScope| {
            let rows = RingRows::new(cache.clone(), Box::new(move |_| newer.clone()));
            rows.makes_rows(&detail(scope, 0))
        };
        let bit = bit_of(gate_of(&plan.table.keyspace, &plan.table.name));
        assert_eq!(only_makes(&made, WriteScope::default()), Some(bit));
        assert_eq!(only_makes(&made, WriteScope::everything()), None);
        assert_eq!(only_makes(&WriteScope::everything(), WriteScope::default()), None);
        let rows = RingRows::new(cache.clone(), Box::new(|_| WriteScope::default()));
        let unread = rows.makes_rows(&Detail::from([]));
        assert_eq!(unread, None, "what cannot be read may touch anything");
    }

    /// Its writer was killed. An intent is hours; nothing of the table would be cached meanwhile.
    #[test]
    fn what_makes_rows_closes_their_table_for_no_longer_than_its_permit_is_valid() {
        const VALID: Time = 1_500;
        let directory = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(directory.path());
        let cache = cached.router.shared().cache.clone();
        let schema = Schema::of_tables([keyed("t", 7)]);
        let (plan, key) = read_of(&schema, "t");
        let process = Identity { id: MemberId(1), incarnation: Incarnation(1) };
        let mut rows = RingRows::new(cache.clone(), Box::new(|_| WriteScope::default()));
        let mut scope = WriteScope::default();
        let made = Target::NewPartition(plan.table.id);
        scope.add_target(&made, &|_| None, &Index::of(Arc::new(schema)));
        assert!(scope.only_makes_partitions());
        let (scopes, detail) = ([Scope::All], detail(&scope, 0));
        let write = PermitKey { process, number: 1 };
        let permission = CachePermission::Exclusive { claim: 9 };
        let fills = || {
            let joined = cache.join(&plan.table, &key, permission, || unreachable!());
            matches!(joined, Join::Lead(_))
        };
        rows.begin(write, WriteBody { scopes: &scopes, detail: &detail });
        rows.tick(0, VALID);
        // A later question gives the permit anew.
        rows.begin(write, WriteBody { scopes: &scopes, detail: &detail });
        for now in [VALID, 2 * VALID - 1] {
            rows.tick(now, VALID);
            assert!(!fills(), "its writer may acknowledge it at {now}");
        }
        rows.tick(2 * VALID, VALID);
        assert!(fills());
        // Its writer has asked for another permit, and may acknowledge it.
        rows.begin(write, WriteBody { scopes: &scopes, detail: &detail });
        assert!(!fills());
        rows.tick(3 * VALID, VALID);
        rows.tick(4 * VALID, VALID);
        let is_weak = || {
            let joined = cache.join(&plan.table, &key, permission, || unreachable!());
            let Join::Lead(ticket) = joined else { panic!("its permit has ended") };
            ticket.is_weak()
        };
        assert!(is_weak(), "for as long as it has not ended");
        // Its end may come all the same.
        rows.end(write, Outcome::Settled);
        assert!(rows.made.is_empty() && rows.granted.is_empty());
    }
}
