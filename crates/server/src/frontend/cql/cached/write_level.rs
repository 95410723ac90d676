//! Writes at a level that a quorum read may miss: raised where the operator wants that, else
//! counted and told of. What such a write has touched is cached for at most a minute, for
//! `unknown-outcome-hold`.

use afterglow_cql::message::Consistency;
use afterglow_rowcache::serve::CachePermission;
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_scope::WriteScope;
use uuid::Uuid;

use super::super::Request;
use super::state::CachedState;

/// Whether a quorum read may miss a write. If it may and a rule says so, its level is raised first.
pub(super) fn is_weak(
    shared: &CachedState,
    request: &mut Request,
    touched: &WriteScope,
    newest: &Index,
) -> bool {
    let weak = match request.consistency() {
        Some(level) => newest.is_weak(touched, level, shared.data_center.read().as_deref()),
        None => true,
    };
    if !weak {
        return false;
    }
    // Others that a quorum read may miss, such as QUORUM over several data centres, may ask more
    // replicas than the new level does.
    let is_low = matches!(request.consistency(), Some(Consistency::One | Consistency::LocalOne));
    let sees = |level| !newest.is_weak(touched, level, shared.data_center.read().as_deref());
    if is_low
        && let Some(level) = shared.weak_writes.level_for(touched, newest)
        && sees(level)
        && request.raise_consistency(level)
    {
        request.metrics().raised_writes.inc();
        return false;
    }
    request.metrics().weak_writes.inc();
    for id in touched.planned() {
        tell(shared, request, *id, newest);
    }
    true
}

/// Warns once of each table that would be cached for longer otherwise.
fn tell(shared: &CachedState, request: &Request, id: Uuid, newest: &Index) {
    if shared.weak_writes.is_told(id) {
        return;
    }
    let Some(table) = newest.table(id) else { return };
    let exclusive = shared.cache.cache_permission(table);
    if !matches!(exclusive, Ok(CachePermission::Exclusive { .. })) {
        return;
    }
    if shared.weak_writes.tell(id) {
        let name = format!("{}.{}", table.keyspace, table.name);
        let level = request.consistency().map_or("no level", Consistency::name);
        tracing::warn!(
            "{name} is written at {level}, which a quorum read may miss: what is written is cached for at most a minute, for `unknown-outcome-hold`. Write at LOCAL_QUORUM, or set --table-write-level '{name}=LOCAL_QUORUM'"
        );
    }
}
