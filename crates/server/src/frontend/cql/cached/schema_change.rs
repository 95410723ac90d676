//! What a change of the schema means for fills to come.

use std::collections::HashSet;
use std::sync::Arc;

use afterglow_cql::frame::Envelope;
use afterglow_cql::plan::{SchemaView, TableSchema, Target};
use afterglow_cql::response::{Response, ResultBody, SchemaChange, SchemaTarget};
use afterglow_cql::schema::Schema;
use afterglow_ring::WriteResult;
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_scope::{Tables, WriteScope};
use uuid::Uuid;

use super::super::parsed;
use super::changed_table::ChangedTable;
use super::ring::tell_until_all_know;
use super::state::CachedState;

/// The change of the schema that an answer tells of.
pub(super) fn schema_change(answer: &Envelope) -> Option<SchemaChange<'_>> {
    match parsed(answer)? {
        Response::Result(ResultBody::SchemaChange(change)) => Some(change),
        _ => None,
    }
}

/// The keyspace of the ring's map was dropped or made anew, or its table. The lease's row may be
/// gone as well. Then an instance that comes founds a ring at once: nothing tells it that there is
/// one. A table that was made anew while nobody told us shows as one that has changed.
pub(super) fn doubt_map(shared: &CachedState, change: &SchemaChange<'_>) {
    let is_it = match change.target {
        SchemaTarget::Keyspace => change.change != "UPDATED",
        SchemaTarget::Table(name) => name == "ring",
        _ => false,
    };
    if change.keyspace == "afterglow" && is_it {
        shared.ring.get().inspect(|ring| ring.doubt_map(change.change == "DROPPED"));
    }
}

/// A keyspace may have more replicas than before, which get its rows by a repair only: fills of its
/// tables are not believed for long. Noted by who hears the database's answer, because there may be
/// no control connection to hear of it.
pub(super) fn weaken_replicated(shared: &CachedState, change: &SchemaChange<'_>, newest: &Index) {
    if matches!(change.target, SchemaTarget::Keyspace) && change.change == "UPDATED" {
        let mut tables = WriteScope::default();
        tables.add_tables_of(change.keyspace, newest);
        // Before the first snapshot rows of an earlier run may be there all the same.
        shared.weaken(if newest.is_unknown() { WriteScope::everything() } else { tables });
    }
}

/// What was dropped may be made again, with the columns that it had. A node that has heard of
/// neither coordinates all the same, and shows rows of before: what it answers has the right form.
/// So fills of whatever has the name next are not believed for long, where a policy caches it.
/// `known`: the last snapshot. One that comes before the event shows what is gone: see
/// [`weaken_gone`].
///
/// In a ring each member hears of the change itself.
pub(super) fn weaken_dropped(
    shared: &CachedState,
    change: &SchemaChange<'_>,
    (known, newest): (&Schema, &Index),
) {
    if change.change != "DROPPED" {
        return;
    }
    let mut weak = WriteScope::default();
    match change.target {
        SchemaTarget::Table(name) if shared.cache.may_cache(change.keyspace, name) => {
            let (keyspace, table) = (change.keyspace.to_owned(), name.to_owned());
            weak.add_target(&Target::Table { keyspace, table, id: None }, &|_| None, newest);
        }
        // Rows of an earlier run may be there all the same.
        SchemaTarget::Keyspace if known.is_unknown() => weak = WriteScope::everything(),
        SchemaTarget::Keyspace => {
            let of_it = |table: &&Arc<TableSchema>| table.keyspace == change.keyspace;
            add_cacheable(shared, &mut weak, known.tables().filter(of_it));
        }
        _ => {}
    }
    if !weak.is_empty() {
        shared.cache.weaken(weak);
    }
}

/// As [`weaken_dropped`], for tables of the last snapshot that the new one lacks or has under
/// another id. Releases before 4.0 tell of a dropped keyspace, and not of its tables.
pub(super) fn weaken_gone(shared: &CachedState, before: &Schema, now: &Schema) {
    let mut weak = WriteScope::default();
    add_cacheable(shared, &mut weak, gone(before, now));
    if !weak.is_empty() {
        shared.cache.weaken(weak);
    }
}

/// Tables of users in the last snapshot that the new one lacks or has under another id.
fn gone<'s>(before: &'s Schema, now: &'s Schema) -> impl Iterator<Item = &'s Arc<TableSchema>> {
    before.tables().filter(|then| {
        let next = now.table(&then.keyspace, &then.name);
        !then.system && next.is_none_or(|next| next.id != then.id)
    })
}

fn add_cacheable<'a>(
    shared: &CachedState,
    weak: &mut WriteScope,
    tables: impl Iterator<Item = &'a Arc<TableSchema>>,
) {
    tables
        .filter(|table| shared.cache.may_cache(&table.keyspace, &table.name))
        .for_each(|table| weak.add_table(table));
}

/// Tables that the last snapshot lacks, by their ids. A node may have heard of a table long after
/// others, and an earlier run of ours before it. That run may have cached rows of the table, and
/// writes since have not named them: no schema had such an id. So they are dropped before any plan
/// can name the table. Of a table that is new there are none. The last snapshot may be that of the
/// run before: see [`note_tables`].
///
/// In a ring each member does so by its own snapshots. Rows of earlier epochs go on to count:
/// whichever a write may have changed is noted by its partition, whatever schema it was planned
/// for.
///
/// Those that were made just before their keyspace got other replicas are not believed for long:
/// who heard of that did not know of them yet.
pub(super) fn forget_appeared(shared: &CachedState, before: &Schema, now: &Schema) {
    // What is written while no schema is known drops everything, so the run before counts then.
    let is_first = before.is_unknown();
    let known: HashSet<Uuid> = before.tables().map(|table| table.id).collect();
    let of_last_run = shared.tables.lock();
    let is_known = |id| if is_first { of_last_run.has(id) } else { known.contains(&id) };
    let appeared = || now.tables().filter(|table| !table.system && !is_known(table.id));
    for keyspace in now.replicated_since(before) {
        let mut weak = WriteScope::default();
        let of_it = appeared().filter(|table| table.keyspace == keyspace);
        of_it.for_each(|table| weak.add_table(table));
        if !weak.is_empty() {
            shared.weaken(weak);
        }
    }
    let mut dropped = WriteScope::default();
    appeared().for_each(|table| dropped.add_table(table));
    if !dropped.is_empty() {
        shared.cache.forget(&dropped);
    }
}

/// Tables of the last snapshot that were made again, or are gone. A write that was planned here for
/// one may have changed rows of what has its name now, whose owners it did not ask: their keys may
/// be others. It was answered before this member knew. So all owners drop these tables once more. A
/// node may show that one is gone before it shows the next: owners that know that drop it.
pub(super) fn tell_of_remade(shared: &CachedState, before: &Schema, now: &Schema) {
    let Some(ring) = shared.ring.get().cloned() else { return };
    let remade = remade(before, now);
    if !remade.is_empty() {
        let tell = async move { tell_until_all_know(&ring, &remade, WriteResult::Done).await };
        compio::runtime::spawn(tell).detach();
    }
}

fn remade(before: &Schema, now: &Schema) -> WriteScope {
    let mut remade = WriteScope::default();
    for then in gone(before, now) {
        remade.add_planned(then);
        now.table(&then.keyspace, &then.name).iter().for_each(|next| remade.add_table(next));
    }
    remade
}

/// Notes for the next run which tables this snapshot has, before it is the newest: from then on
/// writes to others drop none of their rows. Rows of those that have appeared are dropped already.
pub(super) fn note_tables(shared: &CachedState, now: &Schema) {
    let ours = now.tables().filter(|table| !table.system).map(|table| table.id);
    shared.tables.lock().note(ours.collect(), &shared.cache);
}

/// Notes them again where that failed.
pub(super) fn note_tables_again(shared: &CachedState) {
    shared.tables.lock().try_again(&shared.cache);
}

/// Nodes may lack the last change of the schema for a while, and coordinate all the same. Some
/// changes show in what such a node does until it has them, though not in its answer's form:
///
/// - `default_time_to_live`: what they write lives as long as theirs says. A row that follows its
///   write would live as long as ours says.
/// - A column that was dropped and added again: they still show what it had before.
/// - A column that is not masked any more: they still mask it.
/// - A trigger that was dropped: it still changes what they write.
///
/// So rows of such a table are not believed for long, and none follows its write. Whether all nodes
/// have agreed is not waited for: one may be away and come back.
pub(super) fn weaken_lagging(shared: &CachedState, before: &Schema, now: &Schema) {
    let lags = |table: &&Arc<TableSchema>| {
        let Some(then) = before.table(&table.keyspace, &table.name) else { return false };
        then.id == table.id
            && then != **table
            && (then.default_ttl != table.default_ttl
                || (then.triggers && !table.triggers)
                || has_lagging_column(&then, table))
    };
    let mut weak = WriteScope::default();
    now.tables().filter(lags).for_each(|table| weak.add_table(table));
    if !weak.is_empty() {
        shared.weaken(weak);
    }
}

/// Whether a column was masked and is not, or was dropped since and added again. Each is compared
/// by its name: one may have been dropped before another that is there longer.
fn has_lagging_column(before: &TableSchema, now: &TableSchema) -> bool {
    now.keys().chain(now.values()).any(|column| {
        let then = before.keys().chain(before.values()).find(|then| then.name == column.name);
        let (masked, dropped_at) = then.map_or((false, 0), |then| (then.masked, then.dropped_at));
        (masked && !column.masked) || dropped_at < column.dropped_at
    })
}

/// Changes of the schema may not have been told: there was no control connection. Whatever has
/// changed between two snapshots, or was changed and changed back, is forgotten.
///
/// | what may have happened in between | how it shows |
/// |---|---|
/// | a table was dropped and made again, also with the same id | its time |
/// | a column was dropped and added again, masked and unmasked | the time of its table |
/// | a type was changed | not: tables with columns of such types are forgotten |
/// | a keyspace got other replicas, also for a while | its time, which any change of it sets |
/// | TRUNCATE | not, and no event tells of it either: it is a write, of which we know our own |
///
/// Fills of tables whose times have moved are not believed for long: there may have been several
/// changes, and a node may have but the first of them.
///
/// So it is with all tables of a keyspace that has changed. What it had cached before is correct.
/// But it may have had fewer replicas for a while. What was filled from those may lack writes that
/// the others have acknowledged. Fills of it are not believed for long either: replicas that came
/// may lack what was written before, and those that came back what was written meanwhile.
pub(super) fn forget_untold(shared: &CachedState, before: &Schema, now: &Schema) {
    shared.unheard.lock().compared();
    let touched = now.touched_since(before);
    let ours = |table: &&TableSchema| !table.system;
    let (mut weak, mut changed) = (WriteScope::default(), WriteScope::default());
    for keyspace in &touched.keyspaces {
        let tables = now.tables().map(|table| &**table).filter(ours);
        tables.filter(|table| table.keyspace == *keyspace).for_each(|table| {
            weak.add_table(table);
            changed.add_table(table);
        });
    }
    for table in touched.tables.iter().map(|table| &***table).filter(ours) {
        changed.add_table(table);
        // Nobody has told how often, and a node may have but the first change.
        let times = [before, now].map(|of| of.seen(&table.keyspace, &table.name)?.time);
        if times[0].is_none() || times[0] != times[1] {
            weak.add_table(table);
        }
    }
    if weak.is_empty() && changed.is_empty() {
        return;
    }
    tracing::warn!(
        tables = changed.gates().len(),
        weak_tables = weak.gates().len(),
        "the schema changed while the control connection was lost: rows of tables that may have \
         changed, or whose keyspace has, are dropped, and those that are not believed for long are \
         read again soon"
    );
    // Before the rows are forgotten: no fill in between is believed for long.
    if !weak.is_empty() {
        shared.weaken(weak);
    }
    if !changed.is_empty() {
        shared.forget(&changed);
    }
}

/// A table has changed, and the next snapshot shows how. Nothing of it is served or filled until
/// then.
pub(super) fn suspect(shared: &CachedState, keyspace: &str, table: &TableSchema) {
    let mut changed = shared.changed.lock();
    let is_it = |one: &&mut ChangedTable| one.keyspace == keyspace && one.table == table.name;
    if let Some(before) = changed.iter_mut().find(is_it) {
        before.again = true;
        return;
    }
    let mut scope = WriteScope::default();
    scope.add_table(table);
    changed.push(ChangedTable {
        keyspace: keyspace.to_owned(),
        table: table.name.clone(),
        suspected: shared.cache.suspect(&scope),
        again: false,
    });
}

/// A snapshot shows how the tables have changed of which that was heard. Those whose rows may be
/// others are forgotten.
///
/// Of several changes it shows only what is left of them. A node may have but the first, also where
/// the last took that back: no such table is believed for long, see [`weaken_lagging`]. There may
/// be several also where one was heard of:
///
/// - The table has no time: it changed while the schema was read.
/// - The snapshot before has the change already, see [`super::unheard`], and it is not the only one
///   that was not heard of.
pub(super) fn settle_changed(shared: &CachedState, before: &Schema, now: &Schema) {
    let heard = std::mem::take(&mut *shared.changed.lock());
    let mut unheard = shared.unheard.lock();
    let mut of_heard = HashSet::new();
    for ChangedTable { keyspace, table, suspected, again } in heard {
        let seen = now.seen(&keyspace, &table);
        let then = seen.as_ref().and_then(|seen| {
            of_heard.insert(seen.table.id);
            match unheard.take(seen.table.id) {
                Some(change) => change.before_the_only(seen),
                None => before.seen(&keyspace, &table),
            }
        });
        let change = seen.as_ref().zip(then.as_ref());
        let has_changed = again || !change.is_some_and(|(now, then)| now.keeps_rows_since(then));
        if has_changed {
            shared.distrust_older();
        }
        // Before its gate opens: no fill in between is believed for long.
        let several = again || !change.is_some_and(|(now, then)| now.tells_change_since(then));
        if let Some(seen) = seen.as_ref().filter(|_| several) {
            let mut weak = WriteScope::default();
            weak.add_table(&seen.table);
            shared.weaken(weak);
        }
        suspected.end(has_changed);
    }
    unheard.note(before, now, |table| of_heard.contains(&table));
}

/// A table, or all of a keyspace, was dropped or made. What was heard of it before is not its only
/// change then: it may be made again with the same id.
pub(super) fn count_as_several(shared: &CachedState, keyspace: &str, table: Option<&str>) {
    shared.unheard.lock().count_as_several(keyspace, table);
    let mut changed = shared.changed.lock();
    let is_of = |one: &&mut ChangedTable| {
        one.keyspace == keyspace && table.is_none_or(|table| one.table == table)
    };
    changed.iter_mut().filter(is_of).for_each(|one| one.again = true);
}

/// The control connection is lost before a snapshot showed what has changed. It may be long until
/// there is one: the tables count as changed, and are served and filled again.
///
/// What is filled until then is planned for the schema from before, as that of tables of whose
/// change nobody tells. The next snapshot shows their times, and [`forget_untold`] drops it.
pub(super) fn give_up_changed(shared: &CachedState) {
    shared.unheard.lock().clear();
    let heard = std::mem::take(&mut *shared.changed.lock());
    if heard.is_empty() {
        return;
    }
    shared.distrust_older();
    heard.into_iter().for_each(|changed| changed.suspected.end(true));
}

/// A type of a keyspace has changed. A node that has not heard of it coordinates all the same, and
/// shows values without their new fields. So fills of these tables are not believed for long. They
/// are weak before their rows are forgotten: no fill in between is believed for long either.
pub(super) fn forget_user_types(shared: &CachedState, keyspace: &str, known: &Schema) {
    let touched = with_user_types(keyspace, known);
    if !touched.is_empty() {
        shared.weaken(with_user_types(keyspace, known));
        shared.forget(&touched);
    }
}

/// All tables of a keyspace whose rows a change of one of its types may touch.
fn with_user_types(keyspace: &str, schema: &Schema) -> WriteScope {
    let mut scope = WriteScope::default();
    let tables = schema.tables().filter(|table| table.keyspace == keyspace);
    tables.filter(|table| table.has_user_types()).for_each(|table| scope.add_table(table));
    scope
}

#[cfg(test)]
mod tests {
    use afterglow_rowcache::write_scope::{Invalidation, group_of};

    use super::super::testing::keyed;
    use super::*;

    #[test]
    fn a_table_made_again_is_told_of_and_no_other() {
        let before = Schema::of_tables([keyed("same", 1), keyed("made", 2), keyed("gone", 3)]);
        let now = Schema::of_tables([keyed("same", 1), keyed("made", 4), keyed("new", 5)]);
        let told = remade(&before, &now);
        let dropped = |of: &WriteScope, id| {
            let group = group_of(Uuid::from_u128(id));
            of.invalidations().contains(&Invalidation::Table(group))
        };
        let of_all = [1, 2, 3, 4, 5].map(|id| dropped(&told, id));
        assert_eq!(of_all, [false, true, true, true, false]);
        assert!(remade(&Schema::default(), &now).is_empty(), "nothing was planned before");
        assert!(remade(&now, &now).is_empty());
        // A node showed that it was gone before it showed the next; an owner knows the next.
        let owner = Index::of(Arc::new(Schema::of_tables([keyed("gone", 6)])));
        assert!(dropped(&told.replaced(&owner), 6));
    }
}
