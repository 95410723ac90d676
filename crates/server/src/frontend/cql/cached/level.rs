//! At which consistency levels the cache answers a read.
//!
//! 1. [`need_of`]: by level and replication alone, before the key is known.
//! 2. [`Need::is_met`]: for one row or unit, and again before a fill answers.
//! 3. [`Need::takes`]: for what is found in the cache.
//!
//! At QUORUM over several data centres the database may show a write that a local fill misses. Such
//! a write is weak. So nothing is served while a gate is weak, nor what was filled then.
//!
//! The race with a move to another data centre: fills go there as soon as its nodes are known, and
//! the replicas that count as ours are those of before until the schema has been read. So both must
//! name the same data centre, before a fill and after it.

use afterglow_cql::message::Consistency;
use afterglow_cql::plan::{ReadPlan, RowKey};
use afterglow_engine::Hit;
use afterglow_rowcache::serve::CachePermission;
use afterglow_rowcache::tables::Answers;

use super::super::Request;
use super::state::CachedState;

/// What a read needs besides a row that may be served at LOCAL_QUORUM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing more.
    Nothing,
    /// A row that has every acknowledged write.
    Undoubted,
}

/// What a read of the table at this level needs; `None` if the cache never answers it.
pub(super) fn need_of(
    shared: &CachedState,
    request: &Request,
    read: &ReadPlan,
    consistency: Consistency,
) -> Option<Need> {
    if matches!(consistency, Consistency::One | Consistency::LocalOne | Consistency::LocalQuorum) {
        return Some(Need::Nothing); // without a look at the schema
    }
    let newest = shared.newest.of(&request.client().reactor_state.front_end.schema);
    match newest.answers(read.table.id, consistency, shared.data_center.read().as_deref()) {
        Answers::Always => Some(Need::Nothing),
        Answers::Undoubted => Some(Need::Undoubted),
        Answers::Never => None,
    }
}

impl Need {
    /// Whether the cache may answer, or fill, for a read of this row or unit now.
    pub(super) fn is_met(
        self,
        shared: &CachedState,
        request: &Request,
        (read, key): (&ReadPlan, &RowKey),
        permission: CachePermission,
    ) -> bool {
        self == Need::Nothing
            || is_settled_here(shared, request, read)
                && shared.cache.is_undoubted(&read.table, key, permission)
    }

    /// Whether what was found may be the answer.
    pub fn takes(self, shared: &CachedState, hit: &Hit) -> bool {
        self == Need::Nothing || !shared.cache.is_doubted(hit)
    }
}

/// Whether QUORUM is still answered, by the data centre to which fills go.
fn is_settled_here(shared: &CachedState, request: &Request, read: &ReadPlan) -> bool {
    let front_end = &request.client().reactor_state.front_end;
    let topology = front_end.topology.current();
    let ours = shared.data_center.read();
    let newest = shared.newest.of(&front_end.schema);
    topology.data_center() == ours.as_deref()
        && newest.answers(read.table.id, Consistency::Quorum, ours.as_deref()) != Answers::Never
}
