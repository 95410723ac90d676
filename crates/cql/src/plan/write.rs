//! Plans every statement that is not a read: what it may touch.

use super::binds::Binds;
use super::bound_keys::{BoundKeys, KeySource};
use super::context::Context;
use super::json_keys::JsonKeys;
use super::keys::{self, WrittenRows};
use super::named_keys::NamedKeys;
use super::plain::PlainWrite;
use super::schema::TableSchema;
use super::target::Target;
use super::touched::Touched;
use super::update::RowUpdate;
use super::weight;
use crate::message::BatchKind;
use crate::statement::{
    BatchText, Literal, Modification, SchemaObject, SchemaStatement, SchemaVerb, TableName, Term,
    Unknown,
};

/// What a write may touch, and what else matters for sending it.
#[derive(Debug, Clone, PartialEq)]
pub struct WritePlan {
    /// What kind of statement it is.
    pub kind: WriteKind,
    /// Everything that it may change. Empty only for [`WriteKind::Access`], `CREATE` and empty
    /// batches.
    pub targets: Vec<Target>,
    /// Has an `IF`: a lightweight transaction.
    pub conditional: bool,
    /// Touches counters: never to be sent twice.
    pub counter: bool,
    /// Servers may apply it partition by partition: `IN`, and batches that are not logged. So one
    /// partition may be changed although they say that another cannot be.
    pub parted: bool,
    /// How many values it takes.
    pub binds: Binds,
    /// What it sets in its one row, if a cached row can follow it.
    pub update: Option<RowUpdate>,
    /// Its statements, if each is the same write whenever it is sent. Otherwise none.
    pub plain: Vec<PlainWrite>,
}

impl WritePlan {
    /// About how many bytes it takes; see [`Plan::weight`](super::Plan::weight).
    pub(super) fn weight(&self) -> usize {
        weight::list(&self.targets, Target::weight)
            + self.update.as_ref().map_or(0, RowUpdate::weight)
            + weight::list(&self.plain, PlainWrite::weight)
    }

    /// The same statement, where it may also be what `other` was planned as: in another keyspace.
    /// It touches what either does. No cached row follows it, and it is not sent again.
    #[must_use]
    pub fn or(mut self, other: WritePlan) -> WritePlan {
        for target in other.targets {
            if !self.targets.contains(&target) {
                self.targets.push(target);
            }
        }
        self.conditional |= other.conditional;
        self.counter |= other.counter;
        self.parted |= other.parted;
        (self.update, self.plain) = (None, Vec::new());
        self
    }

    pub(super) fn new(kind: WriteKind, targets: Vec<Target>) -> WritePlan {
        WritePlan {
            kind,
            targets,
            conditional: false,
            counter: false,
            parted: kind == WriteKind::Unknown,
            binds: Binds::default(),
            update: None,
            plain: Vec::new(),
        }
    }
}

/// What kind of write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// `INSERT`, `UPDATE`, `DELETE`.
    Modification,
    /// A batch in text.
    Batch,
    /// `TRUNCATE`.
    Truncate,
    /// DDL.
    Schema,
    /// Roles and permissions: no rows, but who may read them.
    Access,
    /// Not understood.
    Unknown,
}

pub(super) fn modification(modification: &Modification, context: &Context) -> WritePlan {
    let mut plan = WritePlan::new(WriteKind::Modification, Vec::new());
    plan.binds = context.binds;
    let mut touched = Touched::default();
    add(&mut plan, &mut touched, modification, context);
    plan.targets = touched.into_targets();
    plan.parted = keys::names_several(modification);
    let one_row = matches!(plan.targets.as_slice(), [Target::Row(_)]);
    plan.update = RowUpdate::of(modification, one_row, context);
    plan.plain = PlainWrite::of(modification, &None, context).into_iter().collect();
    plan
}

pub(super) fn batch(batch: &BatchText, context: &Context) -> WritePlan {
    let mut plan = WritePlan::new(WriteKind::Batch, Vec::new());
    plan.binds = context.binds;
    plan.counter = batch.kind == BatchKind::Counter;
    plan.parted = batch.kind != BatchKind::Logged;
    let mut touched = Touched::default();
    for modification in &batch.modifications {
        add(&mut plan, &mut touched, modification, context);
    }
    plan.targets = touched.into_targets();
    let plain = |modification| PlainWrite::of(modification, &batch.timestamp, context);
    if !plan.counter {
        plan.plain =
            batch.modifications.iter().map(plain).collect::<Option<_>>().unwrap_or_default();
    }
    plan
}

/// Adds what a modification touches to `touched`, and to the plan what else matters of it.
fn add(
    plan: &mut WritePlan,
    touched: &mut Touched,
    modification: &Modification,
    context: &Context,
) {
    plan.conditional |= modification.conditional;
    let Some(table) = context.table(&modification.table) else {
        return touched.add(table_target(&modification.table, context));
    };
    plan.counter |= table.counter;
    let rows = match &modification.json {
        Some(document) => json_rows(document, &table, context.binds_certain),
        None => keys::rows(modification, &table, context.binds_certain),
    };
    let targets: Vec<Target> = match rows {
        WrittenRows::Exact(keys) => keys.into_iter().map(Target::Row).collect(),
        WrittenRows::Partitions(keys) => keys.into_iter().map(Target::Partition).collect(),
        WrittenRows::Bound(keys) => vec![Target::Bound(keys)],
        WrittenRows::NewRows(keys) => keys.into_iter().map(Target::NewRow).collect(),
        WrittenRows::NewPartition => vec![Target::NewPartition(table.id)],
        WrittenRows::Table => vec![table_target(&modification.table, context)],
    };
    targets.into_iter().for_each(|target| touched.add_of(&table, target));
}

/// What an `INSERT JSON` touches.
fn json_rows(document: &Term, table: &TableSchema, binds_certain: bool) -> WrittenRows {
    if !table.partition_is_bytes() {
        return WrittenRows::Table;
    }
    let keys = JsonKeys::new(table);
    match document {
        Term::Literal(Literal::String(text)) => match keys.of(table.id, text) {
            NamedKeys::Rows(rows) => WrittenRows::Exact(rows),
            NamedKeys::Partitions(partitions) => WrittenRows::Partitions(partitions),
            NamedKeys::Table => WrittenRows::Table,
        },
        Term::Marker(marker) if binds_certain => WrittenRows::Bound(BoundKeys {
            table: table.id,
            source: KeySource::Json(keys, marker.clone()),
        }),
        _ => WrittenRows::Table,
    }
}

pub(super) fn truncate(table: &TableName, context: &Context) -> WritePlan {
    WritePlan::new(WriteKind::Truncate, vec![table_target(table, context)])
}

pub(super) fn unknown(unknown: &Unknown, context: &Context) -> WritePlan {
    let targets = match unknown.tables.as_slice() {
        [] => vec![Target::Everything],
        tables => distinct(tables.iter().map(|table| table_target(table, context))),
    };
    let conditional = unknown.conditional;
    WritePlan { conditional, ..WritePlan::new(WriteKind::Unknown, targets) }
}

/// `ks.t` and `t` may be the same table.
fn distinct(targets: impl Iterator<Item = Target>) -> Vec<Target> {
    let mut touched = Touched::default();
    targets.for_each(|target| touched.add(target));
    touched.into_targets()
}

/// Tables are touched as such; other objects may have dependents anywhere in their keyspace. A
/// created table has no rows yet, and an existing table stays as it is. Applications that ensure
/// their schema at every start must not empty the cache. A trigger may change what later writes of
/// its table do.
pub(super) fn schema_change(change: &SchemaStatement, context: &Context) -> WritePlan {
    if change.verb == SchemaVerb::Create && change.object != SchemaObject::Trigger {
        return WritePlan::new(WriteKind::Schema, Vec::new());
    }
    let by_table = match change.object {
        SchemaObject::Table | SchemaObject::View | SchemaObject::Trigger => true,
        SchemaObject::Keyspace
        | SchemaObject::Type
        | SchemaObject::Function
        | SchemaObject::Aggregate
        | SchemaObject::Index => false,
    };
    let target = if by_table {
        table_target(&change.name, context)
    } else {
        keyspace_target(context.keyspace_of(&change.name))
    };
    WritePlan::new(WriteKind::Schema, vec![target])
}

fn table_target(name: &TableName, context: &Context) -> Target {
    match context.keyspace_of(name) {
        Some(keyspace) => Target::Table {
            keyspace: keyspace.to_owned(),
            table: name.name.clone(),
            id: context.table(name).map(|table| table.id),
        },
        None => Target::Everything,
    }
}

fn keyspace_target(keyspace: Option<&str>) -> Target {
    keyspace.map_or(Target::Everything, |keyspace| Target::Keyspace(keyspace.to_owned()))
}
