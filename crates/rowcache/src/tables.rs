//! The newest schema as the cached path needs it: tables by id, their gates, and which writes a
//! quorum read may miss.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::message::Consistency;
use afterglow_cql::plan::{SchemaView, TableSchema};
use afterglow_cql::schema::{Currency, Schema};
use uuid::Uuid;

use crate::write_scope::{Tables, WriteScope, gate_of};

/// The consistency level at which fills read. [`Index::answers`] says which reads their rows may
/// answer.
pub const FILL_AT: Consistency = Consistency::LocalQuorum;

/// Whether what is read at [`FILL_AT`] answers a read at another level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// As the database would.
    Always,
    /// If no write that the fill may miss has come before. Where replicas are in several data
    /// centres, a QUORUM read sees some of those, such as one at TWO.
    Undoubted,
    /// Never, or it is not known.
    Never,
}

/// One snapshot of the schema, indexed.
pub struct Index {
    schema: Arc<Schema>,
    by_id: HashMap<Uuid, (u32, Arc<TableSchema>)>,
    /// Gates of tables that were in an earlier snapshot and are in this one no more.
    former: HashMap<Uuid, u32>,
}

/// Of more tables that are gone no name is known.
const MOST_FORMER: usize = 4096;

impl Index {
    /// Indexes a snapshot.
    pub fn of(schema: Arc<Schema>) -> Index {
        let entry = |table: &Arc<TableSchema>| {
            (table.id, (gate_of(&table.keyspace, &table.name), table.clone()))
        };
        let by_id = schema.tables().map(entry).collect();
        Index { schema, by_id, former: HashMap::new() }
    }

    /// Indexes the snapshot that comes after `before`: writes may still be planned for that.
    pub fn after(before: &Index, schema: Arc<Schema>) -> Index {
        let mut index = Index::of(schema);
        let last = before.by_id.iter().map(|(id, (gate, _))| (*id, *gate));
        let earlier = before.former.iter().map(|(id, gate)| (*id, *gate));
        let gone = last.chain(earlier).filter(|(id, _)| !index.by_id.contains_key(id));
        index.former = gone.take(MOST_FORMER).collect();
        index
    }

    /// Generation of the snapshot.
    pub fn generation(&self) -> u64 {
        self.schema.generation
    }

    /// Whether the snapshot has every change that was heard of when it became the newest.
    pub fn is_complete(&self) -> bool {
        self.schema.currency == Currency::Current
    }

    /// The table with this id.
    pub fn table(&self, id: Uuid) -> Option<&Arc<TableSchema>> {
        self.by_id.get(&id).map(|(_, table)| table)
    }

    /// Whether a write of this may touch a table of which that is so. `None` is a table that is not
    /// known here.
    pub fn may_touch(
        &self,
        scope: &WriteScope,
        is_so: impl Fn(Option<&TableSchema>) -> bool,
    ) -> bool {
        // A keyspace names no plan.
        let planned = scope.planned();
        scope.is_everything()
            || planned.is_empty()
            || planned.iter().any(|id| is_so(self.table(*id).map(|table| &**table)))
    }

    /// The longest `gc_grace_seconds` of these tables; `None` where one is not known.
    pub fn grace(&self, tables: &[Uuid]) -> Option<u32> {
        let graces = tables.iter().map(|id| self.schema.graces(*id).gc_grace);
        graces.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// For how long every tombstone of this table stays. Zero where that is not known.
    pub fn tombstones_stay(&self, table: Uuid) -> Duration {
        self.schema.graces(table).tombstones
    }

    /// Whether a read at LOCAL_QUORUM in `data_center` may miss a write at this level, in any table
    /// that the write touches: `W + R <= RF` there. In doubt yes.
    pub fn is_weak(
        &self,
        scope: &WriteScope,
        consistency: Consistency,
        data_center: Option<&str>,
    ) -> bool {
        let misses = |keyspace: &str| {
            let replication = self.schema.replication(keyspace);
            let replicas = replication.and_then(|options| Replicas::of(options, data_center));
            replicas.is_none_or(|replicas| replicas.may_miss(consistency))
        };
        let missed =
            |id: &Uuid| self.by_id.get(id).is_none_or(|(_, table)| misses(&table.keyspace));
        let any = || self.by_id.values().any(|(_, table)| !table.system && misses(&table.keyspace));
        scope.by_level
            && (scope.planned().iter().any(missed)
                || scope.unknown_keyspaces().any(misses)
                || scope.is_everything() && (self.is_unknown() || any()))
    }

    /// Whether a row that was read at LOCAL_QUORUM in `data_center` answers a read of the table at
    /// this level.
    pub fn answers(
        &self,
        table: Uuid,
        consistency: Consistency,
        data_center: Option<&str>,
    ) -> Answers {
        if matches!(
            consistency,
            Consistency::One | Consistency::LocalOne | Consistency::LocalQuorum
        ) {
            return Answers::Always;
        }
        let keyspace = self.by_id.get(&table).map(|(_, table)| table.keyspace.as_str());
        let replication = keyspace.and_then(|keyspace| self.schema.replication(keyspace));
        let replicas = replication.and_then(|options| Replicas::of(options, data_center));
        replicas.map_or(Answers::Never, |replicas| replicas.answers(consistency))
    }
}

impl Tables for Index {
    fn gate(&self, id: Uuid) -> Option<u32> {
        self.by_id.get(&id).map(|(gate, _)| *gate)
    }

    fn with_gate(&self, gate: u32) -> Vec<Uuid> {
        let of = |(id, (of, _)): (&Uuid, &(u32, _))| (*of == gate).then_some(*id);
        self.by_id.iter().filter_map(of).collect()
    }

    fn id(&self, keyspace: &str, table: &str) -> Option<Uuid> {
        self.schema.table(keyspace, table).map(|table| table.id)
    }

    fn former_gate(&self, id: Uuid) -> Option<u32> {
        self.former.get(&id).copied()
    }

    fn tables_in(&self, keyspace: &str) -> Vec<(u32, Uuid)> {
        let of = |(id, (gate, table)): (&Uuid, &(u32, Arc<TableSchema>))| {
            (table.keyspace == keyspace).then_some((*gate, *id))
        };
        self.by_id.iter().filter_map(of).collect()
    }

    fn is_unknown(&self) -> bool {
        self.schema.is_unknown()
    }
}

/// Replicas of a keyspace, here and in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Replicas {
    local: u32,
    all: u32,
}

impl Replicas {
    fn of(
        options: &std::collections::BTreeMap<String, String>,
        data_center: Option<&str>,
    ) -> Option<Replicas> {
        let class = options.get("class")?;
        if class.ends_with("SimpleStrategy") {
            let all = options.get("replication_factor")?.parse().ok()?;
            return Some(Replicas { local: all, all });
        }
        if !class.ends_with("NetworkTopologyStrategy") {
            return None;
        }
        let counts = options
            .iter()
            .filter(|(name, _)| *name != "class")
            .map(|(dc, n)| Some((dc, n.parse().ok()?)));
        let counts: Vec<(&String, u32)> = counts.collect::<Option<_>>()?;
        let local = match (counts.as_slice(), data_center) {
            ([(_, only)], _) => *only,
            (several, Some(reactor_state)) => {
                several.iter().find(|(dc, _)| *dc == reactor_state)?.1
            }
            _ => return None,
        };
        Some(Replicas { local, all: counts.iter().map(|(_, n)| n).sum() })
    }

    /// In one data centre a local quorum must ask as many replicas as the level. In several it must
    /// see every write at QUORUM, which the replicas elsewhere may have acknowledged first.
    fn answers(self, read_at: Consistency) -> Answers {
        let asked = quorum(self.local);
        let one_place = self.local == self.all;
        match read_at {
            Consistency::Two if one_place && asked >= 2 => Answers::Always,
            Consistency::Three if one_place && asked >= 3 => Answers::Always,
            Consistency::Quorum if one_place => Answers::Always,
            Consistency::Quorum if self.local > 0 && !self.may_miss(Consistency::Quorum) => {
                Answers::Undoubted
            }
            // Elsewhere as well, with a round of Paxos, or not for reads.
            _ => Answers::Never,
        }
    }

    fn may_miss(self, written_at: Consistency) -> bool {
        let acknowledged_here = match written_at {
            Consistency::LocalQuorum | Consistency::EachQuorum => quorum(self.local),
            Consistency::LocalOne => 1,
            anywhere => {
                let acknowledged = match anywhere {
                    Consistency::One => 1,
                    Consistency::Two => 2,
                    Consistency::Three => 3,
                    Consistency::Quorum => quorum(self.all),
                    Consistency::All => self.all,
                    _ => 0,
                };
                // As many as can be may be elsewhere.
                acknowledged.saturating_sub(self.all - self.local)
            }
        };
        acknowledged_here + quorum(self.local) <= self.local
    }
}

fn quorum(replicas: u32) -> u32 {
    replicas / 2 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use afterglow_cql::plan::{Column, Plan, analyse};
    use afterglow_cql::statement::parse;

    use super::*;

    fn replicas(options: &[(&str, &str)], reactor_state: Option<&str>) -> Option<Replicas> {
        let options: BTreeMap<_, _> =
            options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Replicas::of(&options, reactor_state)
    }

    #[test]
    fn replicas_are_read_from_either_strategy_and_doubt_is_none() {
        const SIMPLE: (&str, &str) = ("class", "org.apache.cassandra.locator.SimpleStrategy");
        const TOPOLOGY: (&str, &str) =
            ("class", "org.apache.cassandra.locator.NetworkTopologyStrategy");
        assert_eq!(
            replicas(&[SIMPLE, ("replication_factor", "3")], None),
            Some(Replicas { local: 3, all: 3 })
        );
        assert_eq!(replicas(&[TOPOLOGY, ("dc1", "3")], None), Some(Replicas { local: 3, all: 3 }));
        let two = [TOPOLOGY, ("dc1", "3"), ("dc2", "5")];
        assert_eq!(replicas(&two, Some("dc2")), Some(Replicas { local: 5, all: 8 }));
        assert_eq!(replicas(&two, None), None);
        assert_eq!(replicas(&two, Some("dc3")), None);
        assert_eq!(replicas(&[SIMPLE, ("replication_factor", "3/1")], None), None);
        assert_eq!(replicas(&[("class", "my.Strategy")], None), None);
    }

    #[test]
    fn what_is_not_understood_or_known_is_weak_where_any_table_it_may_touch_is() {
        let table = TableSchema {
            partition_key: vec![Column::new("k", "int")],
            regulars: vec![Column::new("v", "int")],
            ..TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7))
        };
        let three = [("class", "SimpleStrategy"), ("replication_factor", "3")];
        let three = three.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let mut schema = Schema::of_tables([table]);
        schema.add_keyspace("ks".to_owned(), three);
        let schema = Arc::new(schema);
        let index = Index::of(schema.clone());
        let weak = |text: &str, level| {
            let Plan::Write(plan) = analyse(&parse(text), &*schema, None) else {
                panic!("{text} is a write")
            };
            let mut scope = WriteScope::default();
            scope.add(&plan, &|_| None, &index);
            index.is_weak(&scope, level, None)
        };
        for (text, at_one) in [
            ("UPDATE ks.t SET v = 1 WHERE k = 1", true),
            ("FROBNICATE ks.t", true),
            ("INSERT INTO ks.made_just_now (k) VALUES (1)", true),
            ("TRUNCATE ks.t", false),
            ("ALTER TABLE ks.t ADD w int", false),
            ("CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {}", false),
        ] {
            assert_eq!(weak(text, Consistency::One), at_one, "{text}");
            assert!(!weak(text, Consistency::Quorum), "{text}");
        }
        assert!(index.is_weak(&WriteScope::everything(), Consistency::One, None));
    }

    #[test]
    fn a_local_quorum_answers_for_as_many_replicas_where_there_are_no_others() {
        use Consistency::{All, EachQuorum, LocalSerial, Quorum, Serial, Three, Two};
        let answered = |local, all| {
            let at = |consistency| Replicas { local, all }.answers(consistency) == Answers::Always;
            [Two, Three, Quorum, EachQuorum, All, Serial, LocalSerial].map(at)
        };
        assert_eq!(answered(1, 1), [false, false, true, false, false, false, false]);
        assert_eq!(answered(3, 3), [true, false, true, false, false, false, false]);
        assert_eq!(answered(5, 5), [true, true, true, false, false, false, false]);
        assert_eq!(answered(3, 6), [false; 7]);
    }

    /// Every set of replicas, the local ones in the lowest bits.
    fn sets(replicas: u32) -> impl Iterator<Item = u32> {
        0..1 << replicas
    }

    /// What may have acknowledged a write at this level that was sent to us: every set that does.
    fn acknowledging(level: Consistency, local: u32, all: u32) -> Vec<u32> {
        let here = (1 << local) - 1;
        let is_enough = |set: &u32| match level {
            Consistency::LocalOne => (set & here).count_ones() >= 1,
            Consistency::LocalQuorum => (set & here).count_ones() >= quorum(local),
            // Replicas elsewhere may be of one data centre or of several: in one at least.
            Consistency::EachQuorum => {
                let elsewhere = all - local;
                (set & here).count_ones() >= quorum(local)
                    && (elsewhere == 0 || (set & !here).count_ones() >= 1)
            }
            Consistency::One => set.count_ones() >= 1,
            Consistency::Two => set.count_ones() >= 2,
            Consistency::Three => set.count_ones() >= 3,
            Consistency::Quorum => set.count_ones() >= quorum(all),
            Consistency::All => set.count_ones() == all,
            other => unreachable!("{other:?} is acknowledged by none"),
        };
        sets(all).filter(is_enough).collect()
    }

    #[test]
    fn a_fill_sees_what_every_local_quorum_must_meet_wherever_a_write_was_acknowledged() {
        use Consistency::{All, EachQuorum, LocalOne, LocalQuorum, One, Quorum, Three, Two};
        for (local, elsewhere) in (1..=6).flat_map(|local| (0..=4).map(move |more| (local, more))) {
            let (all, replicas) = (local + elsewhere, Replicas { local, all: local + elsewhere });
            let fills: Vec<u32> =
                sets(local).filter(|set| set.count_ones() == quorum(local)).collect();
            let meets = |reads: &[u32], writes: &[u32]| {
                reads.iter().all(|read| writes.iter().all(|write| read & write != 0))
            };
            for level in [One, LocalOne, Two, Three, Quorum, LocalQuorum, EachQuorum, All] {
                let writes = acknowledging(level, local, all);
                let seen = meets(&fills, &writes);
                // No replica is enough for a level that asks more than there are.
                if !writes.is_empty() {
                    assert_eq!(!replicas.may_miss(level), seen, "{level:?} of {replicas:?}");
                }
            }
            let seen = meets(&fills, &acknowledging(Quorum, local, all));
            let expected = match (elsewhere, seen) {
                (0, _) => Answers::Always,
                (_, true) => Answers::Undoubted,
                (_, false) => Answers::Never,
            };
            assert_eq!(replicas.answers(Quorum), expected, "{replicas:?}");
        }
    }

    #[test]
    fn quorum_over_several_data_centres_is_answered_beside_few_replicas_elsewhere() {
        use Consistency::{All, EachQuorum, LocalSerial, Quorum, Serial, Three, Two};
        let answers = |local, all| Replicas { local, all }.answers(Quorum);
        for (local, all) in [(3, 4), (5, 6), (2, 3), (2, 4), (4, 5), (4, 6), (1, 2)] {
            assert_eq!(answers(local, all), Answers::Undoubted, "{local} of {all}");
            for level in [Two, Three, All, EachQuorum, Serial, LocalSerial] {
                let answered = Replicas { local, all }.answers(level);
                assert_eq!(answered, Answers::Never, "{level:?}, {local} of {all}");
            }
        }
        for (local, all) in [(3, 5), (3, 6), (2, 5), (4, 7), (1, 3), (1, 4), (0, 1), (0, 3)] {
            assert_eq!(answers(local, all), Answers::Never, "{local} of {all}");
        }
        // The database's QUORUM read meets a write at TWO here, and a fill may not.
        assert!(Replicas { local: 3, all: 4 }.may_miss(Two));
    }

    #[test]
    fn a_quorum_read_misses_what_too_few_replicas_have() {
        use Consistency::{All, Any, EachQuorum, LocalOne, LocalQuorum, One, Quorum, Two};
        let missed = |local, all| {
            let at = |consistency| Replicas { local, all }.may_miss(consistency);
            [Any, One, LocalOne, Two, Quorum, LocalQuorum, EachQuorum, All].map(at)
        };
        assert_eq!(missed(1, 1), [true, false, false, false, false, false, false, false]);
        assert_eq!(missed(3, 3), [true, true, true, false, false, false, false, false]);
        // Three here and three there: a global quorum may have but one here.
        assert_eq!(missed(3, 6), [true, true, true, true, true, false, false, false]);
    }
}
