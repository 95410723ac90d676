//! The write scope, what one write may touch: gates to close, cached rows to drop, intents to note.

use afterglow_cql::plan::{
    BoundKeys, KeyError, KeyTemplate, MAX_KEY, NamedKeys, PartitionTemplate, RowKey, TableSchema,
    Target, WriteKind, WritePlan, unit_key,
};
use afterglow_cql::statement::Marker;
use afterglow_cql::token::murmur3;
use uuid::Uuid;

use crate::gate::{GateScope, SLOT_BITS, slot_of};

mod bytes;
mod drops;

pub use bytes::MalformedScope;

/// More partitions than this in one write count as their tables.
const MAX_SLOTS: usize = 512;
/// More rows and partitions to drop than this in one write count as their tables.
const MAX_DROPS: usize = 8 * MAX_SLOTS;

/// The engine's group of a table's rows. It is by id: a table that was dropped and created again is
/// another table.
pub fn group_of(table: Uuid) -> u32 {
    let bytes = table.as_u128();
    let folded = (bytes ^ (bytes >> 32) ^ (bytes >> 64) ^ (bytes >> 96)) as u32;
    folded.max(1) // 0 is no group
}

/// The gate of a table. It is by name, not by id. The table may be dropped and created again while
/// a planned write is in flight. The write must keep out fills of the new table.
pub fn gate_of(keyspace: &str, table: &str) -> u32 {
    let mut bytes = Vec::with_capacity(keyspace.len() + table.len() + 1);
    bytes.extend_from_slice(keyspace.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(table.as_bytes());
    murmur3(&bytes) as u32
}

/// The token of a partition: its Murmur3 token, mixed with the table's gate. Its slot names the
/// partition's gate and its epoch in the engine.
pub fn token_of(gate: u32, partition_key: &[u8]) -> u64 {
    (murmur3(partition_key) as u64) ^ u64::from(gate).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Cached rows to drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalidation {
    /// One row, by its engine key.
    Row(Vec<u8>),
    /// The partition unit that a changed row may belong to, by its engine key.
    Unit(Vec<u8>),
    /// Every row whose token falls into this token's slot.
    Partition(u64),
    /// Every row of a table, by its group.
    Table(u32),
    /// Every row.
    Everything,
}

impl Invalidation {
    /// Whether it drops a whole table or more.
    pub(crate) fn is_wide(&self) -> bool {
        match self {
            Invalidation::Table(_) | Invalidation::Everything => true,
            Invalidation::Row(_) | Invalidation::Unit(_) | Invalidation::Partition(_) => false,
        }
    }
}

/// The newest schema, as far as writes need it.
pub trait Tables {
    /// The gate of the table with this id; `None` if there is no such table (any more).
    fn gate(&self, id: Uuid) -> Option<u32>;
    /// The ids of the tables with this gate: in practice one, or none.
    fn with_gate(&self, gate: u32) -> Vec<Uuid>;
    /// The id of a table; `None` if there is no such table.
    fn id(&self, keyspace: &str, table: &str) -> Option<Uuid>;
    /// The gate that a table with this id had not long ago, if it is gone now.
    fn former_gate(&self, id: Uuid) -> Option<u32>;
    /// Gates and ids of all tables of a keyspace.
    fn tables_in(&self, keyspace: &str) -> Vec<(u32, Uuid)>;
    /// Whether the schema is unknown. Then tables that it does not name may be cached all the same.
    fn is_unknown(&self) -> bool;
}

/// What a write, or a batch of them, may touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteScope {
    slots: Vec<u32>,
    tables: Vec<u32>,
    everything: bool,
    invalidations: Vec<Invalidation>,
    /// Tables that the write was planned for. If one of them is gone by the time the gates are
    /// closed, the plan was made for an older schema. The write may then touch other things than
    /// the plan names.
    planned: Vec<Uuid>,
    /// The gates of these tables.
    planned_gates: Vec<u32>,
    /// Tables that were not in the schema. If one of them is in it by the time the gates are
    /// closed, its rows may be cached.
    unknown: Vec<(String, String)>,
    /// One of the writes is a lightweight transaction.
    pub conditional: bool,
    /// One of the statements is not understood. The database will probably refuse it.
    pub doubtful: bool,
    /// The database may apply it partition by partition.
    pub parted: bool,
    /// As many replicas acknowledge it as its consistency level says. That does not hold for schema
    /// changes and TRUNCATE.
    pub by_level: bool,
    /// It is what a client asks for, and the database may refuse it.
    asked: bool,
    /// All of it changes the schema. Then an answer without a change says that nothing has changed.
    only_schema: bool,
    /// It makes a row whose key the database chooses: no row is dropped for it.
    has_new_row: bool,
    /// The token of the first partition, and whether there are others.
    partitions: (Option<u64>, bool),
    /// Murmur3 tokens of the partitions.
    tokens: Vec<i64>,
    /// Table and key of the first partition of a lightweight transaction.
    transaction: Option<(Uuid, Vec<u8>)>,
    /// Of all keys to drop and all names of unknown tables.
    bytes: usize,
    /// It drops everything, so that nothing is added any more.
    has_all: bool,
}

impl WriteScope {
    /// Everything, for statements without a plan.
    pub fn everything() -> WriteScope {
        let invalidations = vec![Invalidation::Everything];
        WriteScope {
            everything: true,
            invalidations,
            parted: true,
            by_level: true,
            ..WriteScope::default()
        }
    }

    /// The same gates, and nothing to drop.
    pub fn without_drops(self) -> WriteScope {
        WriteScope { invalidations: Vec::new(), ..self }
    }

    /// The same gates, and all to drop that is behind them. A new row has nothing to drop if its
    /// gate was closed before the write was sent. Elsewhere its absence may have been cached.
    pub fn with_all_behind_gates(mut self) -> WriteScope {
        let of_slot = |slot: &u32| Invalidation::Partition(u64::from(*slot) << (64 - SLOT_BITS));
        self.invalidations.extend(self.slots.iter().map(of_slot));
        if !self.tables.is_empty() {
            let all = self.planned.iter().map(|id| Invalidation::Table(group_of(*id)));
            self.invalidations.extend(all);
        }
        self
    }

    /// Slot and engine key of the one row that it drops, if it touches and drops nothing else but
    /// the unit of the row's partition.
    pub fn only_row(&self) -> Option<(u32, &[u8])> {
        let wide = !self.tables.is_empty() || self.everything || self.has_new_row;
        match (self.slots.as_slice(), self.invalidations.as_slice()) {
            (
                [slot],
                [Invalidation::Row(key)] | [Invalidation::Row(key), Invalidation::Unit(_)],
            ) if !wide => Some((*slot, key)),
            _ => None,
        }
    }

    /// Whether nothing at all is touched.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.tables.is_empty() && !self.everything
    }

    /// What the write may touch besides, because the schema is another one than it was planned for:
    /// a table that it names is gone or was made again, or has appeared. A statement names its
    /// tables, so it touches no others than those that have the names now. Empty if all are there.
    /// All, if no schema is known: another member of a ring has planned it.
    pub fn of_newer(&self, tables: &impl Tables) -> WriteScope {
        if !self.unknown.is_empty() && tables.is_unknown() {
            return WriteScope::everything();
        }
        let mut newer = self.replaced(tables);
        let gone: Vec<_> = self.planned.iter().filter(|id| tables.gate(**id).is_none()).collect();
        if !gone.is_empty() {
            if self.planned_gates.len() < self.planned.len() {
                return WriteScope::everything(); // the name of one is not known
            }
            // Which of the gates they had is not known.
            self.planned_gates.iter().for_each(|gate| newer.gate(*gate));
            let dropped = gone.into_iter().map(|id| Invalidation::Table(group_of(*id)));
            newer.invalidations.extend(dropped);
        }
        newer
    }

    /// Tables that have taken the names of those that the write was planned for, or that were not
    /// in the schema. Their keys may be others. So the write may have changed rows of them whose
    /// gates it did not close, or that an earlier run has cached.
    pub fn replaced(&self, tables: &impl Tables) -> WriteScope {
        let mut replaced = WriteScope::default();
        for (keyspace, table) in &self.unknown {
            if let Some(id) = tables.id(keyspace, table) {
                replaced.table(gate_of(keyspace, table), id);
            }
        }
        if self.planned.iter().all(|id| tables.gate(*id).is_some()) {
            return replaced;
        }
        for gate in &self.planned_gates {
            let others =
                tables.with_gate(*gate).into_iter().filter(|id| !self.planned.contains(id));
            others.for_each(|id| replaced.table(*gate, id));
        }
        replaced
    }

    /// Whether to wait for the database's answer before whole tables are dropped. That is so if a
    /// statement is not understood: the database probably refuses all. It is so for what touches
    /// whole tables, also in a batch with rows: anybody who can log in may ask for that.
    pub fn may_be_nothing(&self) -> bool {
        self.doubtful || self.asked && self.is_wide()
    }

    /// Whether anybody who can log in may have asked for it, and it keeps others from the cache:
    /// [what may be nothing](WriteScope::may_be_nothing), and what closes all gates and drops
    /// nothing. That is what names a keyspace without tables, or one that is not there.
    pub fn may_be_in_vain(&self) -> bool {
        self.may_be_nothing() || self.asked && self.everything && self.invalidations.is_empty()
    }

    /// Whether it drops whole tables or more, maybe with rows of others.
    fn is_wide(&self) -> bool {
        let mut all = self.invalidations.iter();
        all.any(Invalidation::is_wide)
    }

    /// Whether all of it changes the schema. Of a change that the database answers with no change,
    /// such as `DROP TABLE IF EXISTS`, nothing has come.
    pub fn is_only_schema(&self) -> bool {
        self.only_schema
    }

    /// Whether a part of it may have happened although the database says that there are too few
    /// replicas. Coordinators send the writes of one partition before they look at the replicas of
    /// the next.
    pub fn may_happen_in_part(&self) -> bool {
        let (first, more) = self.partitions;
        let one = first.is_some() && !more && self.tables.is_empty() && !self.everything;
        self.parted && !one
    }

    /// The table of which it touches one partition and nothing else. The server makes no key.
    pub fn partition_of(&self) -> Option<Uuid> {
        let (first, more) = self.partitions;
        let one = first.is_some() && !more && self.tables.is_empty() && !self.everything;
        match self.planned.as_slice() {
            [table] if one && !self.has_new_row => Some(*table),
            _ => None,
        }
    }

    /// Table and partition key of a lightweight transaction that touches one partition and nothing
    /// else. All that a database accepts do so.
    pub fn transaction(&self) -> Option<(Uuid, &[u8])> {
        let (_, more) = self.partitions;
        let one = !more && self.tables.is_empty() && !self.everything;
        let (table, key) = self.transaction.as_ref().filter(|_| one)?;
        Some((*table, key))
    }

    /// Keyspaces of the tables that were not in the schema.
    pub fn unknown_keyspaces(&self) -> impl Iterator<Item = &str> {
        self.unknown.iter().map(|(keyspace, _)| keyspace.as_str())
    }

    /// Whether it may touch any table.
    pub fn is_everything(&self) -> bool {
        self.everything
    }

    /// The tables that the write was planned for.
    pub fn planned(&self) -> &[Uuid] {
        &self.planned
    }

    /// Adds what `plan` touches with these bound values.
    pub fn add<'v>(
        &mut self,
        plan: &WritePlan,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
        tables: &impl Tables,
    ) {
        let is_first = !self.asked;
        self.asked = true;
        self.only_schema = plan.kind == WriteKind::Schema && (is_first || self.only_schema);
        self.conditional |= plan.conditional;
        self.doubtful |= plan.kind == WriteKind::Unknown;
        self.parted |= plan.parted;
        self.by_level |= !matches!(plan.kind, WriteKind::Schema | WriteKind::Truncate);
        plan.targets.iter().for_each(|target| self.add_target(target, value, tables));
    }

    /// Adds one target.
    pub fn add_target<'v>(
        &mut self,
        target: &Target,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
        tables: &impl Tables,
    ) {
        match target {
            _ if self.has_all => {}
            Target::Row(template) => match self.plan_for(template.table(), tables) {
                Some(gate) => self.row(gate, template, value),
                None => self.gone(template.table(), tables),
            },
            Target::Partition(template) => match self.plan_for(template.table(), tables) {
                Some(gate) => self.partition(gate, template, value),
                None => self.gone(template.table(), tables),
            },
            Target::Bound(keys) => match self.plan_for(keys.table(), tables) {
                Some(gate) => self.bound(gate, keys, value),
                None => self.gone(keys.table(), tables),
            },
            Target::NewRow(template) => match self.plan_for(template.table(), tables) {
                Some(gate) => self.new_row(gate, template, value),
                None => self.gone(template.table(), tables),
            },
            // Its key is not known, so no gate but the table's keeps out fills that miss the write:
            // another client may find the new row before it is acknowledged, and then read it.
            Target::NewPartition(table) => match self.plan_for(*table, tables) {
                Some(gate) => self.gate(gate),
                None => self.gone(*table, tables),
            },
            Target::Table { keyspace, table, id } => {
                match id.or_else(|| tables.id(keyspace, table)) {
                    Some(id) => self.planned_table(gate_of(keyspace, table), id),
                    None if tables.is_unknown() => self.all(),
                    // It is not in our schema, so nothing of it is served. An earlier run may have
                    // cached rows of it: they are dropped when a snapshot first has it. It may
                    // enter the schema while the write is in flight. Then no fill may start.
                    None => self.unknown(keyspace, table),
                }
            }
            Target::Keyspace(_) if tables.is_unknown() => self.all(),
            Target::Keyspace(keyspace) => {
                // Tables that are created meanwhile have gates that we cannot name.
                self.everything = true;
                let ids = tables.tables_in(keyspace);
                self.invalidations
                    .extend(ids.into_iter().map(|(_, id)| Invalidation::Table(group_of(id))));
            }
            Target::Everything => self.all(),
        }
    }

    /// Adds all tables that a keyspace has now, each by its own gate.
    pub fn add_tables_of(&mut self, keyspace: &str, tables: &impl Tables) {
        tables.tables_in(keyspace).into_iter().for_each(|(gate, id)| self.table(gate, id));
    }

    /// Adds all of a table.
    pub fn add_table(&mut self, table: &TableSchema) {
        self.table(gate_of(&table.keyspace, &table.name), table.id);
    }

    /// Adds all of a table, and what has its name by the time the gates are closed: see
    /// [`WriteScope::of_newer`].
    pub fn add_planned(&mut self, table: &TableSchema) {
        self.planned_table(gate_of(&table.keyspace, &table.name), table.id);
    }

    /// The name of a table says which gate it has, also if it was made again since.
    fn planned_table(&mut self, gate: u32, id: Uuid) {
        if !self.planned.contains(&id) {
            self.planned.push(id);
            self.planned_gates.push(gate);
        }
        self.table(gate, id);
    }

    fn plan_for(&mut self, id: Uuid, tables: &impl Tables) -> Option<u32> {
        let gate = tables.gate(id);
        if !self.planned.contains(&id) {
            self.planned.push(id);
            self.planned_gates.extend(gate);
        }
        gate
    }

    /// A table that is gone: the write may touch what has its name now.
    fn gone(&mut self, id: Uuid, tables: &impl Tables) {
        let Some(gate) = tables.former_gate(id) else { return self.all() };
        if !self.planned_gates.contains(&gate) {
            self.planned_gates.push(gate);
        }
        self.table(gate, id);
        tables.with_gate(gate).into_iter().for_each(|other| self.table(gate, other));
    }

    fn all(&mut self) {
        if !self.has_all {
            (self.everything, self.has_all) = (true, true);
            self.invalidations.push(Invalidation::Everything);
        }
    }

    /// Of a table that is touched as a whole no key is looked at any more: a batch may have tens of
    /// thousands of statements, with hundreds of keys each.
    fn bound<'v>(
        &mut self,
        gate: u32,
        keys: &BoundKeys,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) {
        if self.is_whole(keys.table()) {
            return self.gate(gate);
        }
        match keys.resolve(value) {
            NamedKeys::Rows(rows) => rows.iter().for_each(|row| self.row(gate, row, value)),
            NamedKeys::Partitions(partitions) => {
                partitions.iter().for_each(|one| self.partition(gate, one, value));
            }
            NamedKeys::Table => self.table(gate, keys.table()),
        }
    }

    fn row<'v>(
        &mut self,
        gate: u32,
        template: &KeyTemplate,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) {
        if self.is_whole(template.table()) {
            return self.gate(gate);
        }
        let mut key = RowKey::new();
        match template.bind(value, &mut key) {
            Ok(()) => {
                if let Some(token) = self.slot(gate, template.table(), key.partition_key()) {
                    if self.conditional && key.has_clustering() {
                        self.completed(gate, template.table(), token);
                    }
                    let row = Invalidation::Row(key.engine_key().to_vec());
                    self.drops(gate, template.table(), row);
                    // A table without clustering columns has no units.
                    if key.has_clustering() {
                        self.unit(gate, template.table(), key.unit_key());
                    }
                }
            }
            Err(KeyError::NoPartition) => self.table(gate, template.table()),
            Err(KeyError::NoRow | KeyError::NotCanonical | KeyError::TooLong) => {
                self.partition(gate, template.partition(), value);
            }
        }
    }

    fn partition<'v>(
        &mut self,
        gate: u32,
        template: &PartitionTemplate,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) {
        if self.is_whole(template.table()) {
            return self.gate(gate);
        }
        let mut key = Vec::new();
        match template.partition_key(value, &mut key) {
            Ok(()) => {
                if let Some(token) = self.slot(gate, template.table(), &key) {
                    self.drops(gate, template.table(), Invalidation::Partition(token));
                }
            }
            Err(_) => self.table(gate, template.table()),
        }
    }

    /// A row that nobody can have read before: no row is dropped, and no fill may miss it. The unit
    /// of its partition is without it.
    fn new_row<'v>(
        &mut self,
        gate: u32,
        template: &PartitionTemplate,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) {
        self.has_new_row = true;
        let mut key = Vec::new();
        match template.partition_key(value, &mut key) {
            Ok(()) => {
                if let Some(token) = self.slot(gate, template.table(), &key) {
                    if self.conditional {
                        self.completed(gate, template.table(), token);
                    }
                    let unit = unit_key(template.table(), &key);
                    // What has a longer key is not cached.
                    if unit.len() <= MAX_KEY {
                        self.unit(gate, template.table(), &unit);
                    }
                }
            }
            Err(_) => self.table(gate, template.table()),
        }
    }

    fn table(&mut self, gate: u32, id: Uuid) {
        self.gate(gate);
        if !self.is_whole(id) {
            self.invalidations.insert(0, Invalidation::Table(group_of(id)));
        }
    }

    /// Whether all of a table is to be dropped. Tables come first among what is to be dropped, so
    /// this is cheap however much that is.
    fn is_whole(&self, id: Uuid) -> bool {
        let tables = self.invalidations.iter().map_while(|one| match one {
            Invalidation::Table(group) => Some(*group),
            _ => None,
        });
        tables.into_iter().any(|group| group == group_of(id))
    }

    fn gate(&mut self, gate: u32) {
        if !self.tables.contains(&gate) {
            self.tables.push(gate);
        }
    }

    /// Adds the slot of a partition and gives its token; `None` if the whole table is to be
    /// dropped, because there are too many or for another reason.
    fn slot(&mut self, gate: u32, table: Uuid, partition_key: &[u8]) -> Option<u64> {
        let token = token_of(gate, partition_key);
        let slot = slot_of(token);
        let (first, more) = &mut self.partitions;
        *more |= *first.get_or_insert(token) != token;
        if self.conditional {
            let transaction =
                self.transaction.get_or_insert_with(|| (table, partition_key.to_vec()));
            *more |= (transaction.0, &transaction.1[..]) != (table, partition_key);
        }
        if self.is_whole(table) {
            return None;
        }
        let plain = murmur3(partition_key);
        let is_new = (!self.slots.contains(&slot), !self.tokens.contains(&plain));
        if is_new.0 && self.slots.len() >= MAX_SLOTS || is_new.1 && self.tokens.len() >= MAX_SLOTS {
            self.table(gate, table);
            return None;
        }
        if is_new.0 {
            self.slots.push(slot);
        }
        if is_new.1 {
            self.tokens.push(plain);
        }
        Some(token)
    }

    /// The Murmur3 tokens of the partitions that it may touch; `None` if it may touch others too.
    pub fn tokens(&self) -> Option<&[i64]> {
        (self.tables.is_empty() && !self.everything).then_some(&self.tokens)
    }

    /// The gates to close.
    pub fn gates(&self) -> Vec<GateScope> {
        if self.everything {
            return vec![GateScope::Everything];
        }
        let slots = (!self.slots.is_empty()).then(|| GateScope::Slots(self.slots.clone()));
        slots.into_iter().chain(self.tables.iter().map(|gate| GateScope::Table(*gate))).collect()
    }

    /// Whether its tables' gates are closed for nothing but partitions that the database makes. No
    /// cached row is of their keys, and no client knows these before the write is acknowledged.
    pub fn only_makes_partitions(&self) -> bool {
        !self.tables.is_empty()
            && !self.everything
            && !self.doubtful
            && self.unknown.is_empty()
            && !self.invalidations.iter().any(Invalidation::is_wide)
    }

    /// The cached rows to drop once the gates are closed.
    pub fn invalidations(&self) -> &[Invalidation] {
        &self.invalidations
    }
}

#[cfg(test)]
mod tests;
