//! The newest snapshot of the database's schema, kept for all reactors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use afterglow_cql::schema::{Currency, Schema};
use parking_lot::RwLock;

/// The newest snapshot, for all reactors.
///
/// A snapshot is read over a time, in which the schema may change. So changes that are heard of
/// have numbers, and it is noted which had been heard of when the reading began.
#[derive(Default)]
pub struct SchemaStore {
    current: RwLock<Current>,
    generation: AtomicU64,
}

#[derive(Default)]
struct Current {
    schema: Arc<Schema>,
    /// The last change that it certainly has.
    has: ChangeNumber,
    /// The last change that was heard of.
    heard: ChangeNumber,
    /// The last change that a snapshot must have, for reads to be answered by it.
    required: ChangeNumber,
}

/// A change of the schema that was heard of, by its number. At the beginning of a reading of the
/// schema: the last one until then.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeNumber(u64);

/// The version of the schema that a node has shown.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SeenVersion {
    /// `schema_version` of `system.local`, equal only for equal schemas.
    pub version: Option<String>,
    /// The last change that was heard of before it was read.
    pub began: ChangeNumber,
}

impl SchemaStore {
    /// The newest snapshot.
    pub fn current(&self) -> Arc<Schema> {
        self.current.read().schema.clone()
    }

    /// Generation of the newest snapshot; cheap, to find out whether one still has it.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The schema has changed: a snapshot has that if its reading begins after this.
    pub fn note_change(&self) -> ChangeNumber {
        let mut current = self.current.write();
        current.heard.0 += 1;
        current.heard
    }

    /// The schema is about to be read.
    pub fn begin_load(&self) -> ChangeNumber {
        self.current.read().heard
    }

    /// Makes `schema` the newest snapshot, whose reading began at `began`.
    pub fn publish(&self, schema: Schema, began: ChangeNumber) {
        let mut current = self.current.write();
        current.has = began;
        self.replace(&mut current, schema);
    }

    /// Clients are about to be told of this change. Until a snapshot has it, no read is answered
    /// by one. False if the newest has it.
    ///
    /// The tables stay known: a write that touches a row of one need not drop all that is cached.
    pub fn require(&self, change: ChangeNumber) -> bool {
        let mut current = self.current.write();
        current.required = current.required.max(change);
        if current.has >= change {
            return false;
        }
        let known = Schema::clone(&current.schema);
        self.replace(&mut current, known);
        true
    }

    /// The race between a reading that began before a change and what its client is told: the
    /// snapshot counts as what it had when its reading began, whenever it comes.
    fn replace(&self, current: &mut Current, mut schema: Schema) {
        assert!(current.has <= current.heard, "a snapshot has changes that nobody heard of");
        assert!(current.required <= current.heard, "a change is required before it is heard of");
        schema.generation = current.schema.generation + 1;
        schema.currency = match current.has {
            has if has < current.required => Currency::Outdated,
            has if has < current.heard => Currency::Behind,
            _ => Currency::Current,
        };
        self.generation.store(schema.generation, Ordering::Release);
        current.schema = Arc::new(schema);
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::plan::{SchemaView, TableSchema};
    use uuid::Uuid;

    use super::*;

    fn of_t() -> Schema {
        Schema::of_tables([TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7))])
    }

    #[test]
    fn every_published_snapshot_voids_the_plans_of_the_one_before() {
        let store = SchemaStore::default();
        let before = store.current();
        assert!(before.is_unknown());
        store.publish(of_t(), store.begin_load());
        assert!(!store.current().is_unknown());
        assert_eq!(store.current().generation, store.generation());
        assert_ne!(store.generation(), before.generation);
    }

    #[test]
    fn a_snapshot_answers_no_read_until_it_has_every_change_that_clients_know_of() {
        let store = SchemaStore::default();
        store.publish(of_t(), store.begin_load());
        let currency = || {
            let newest = store.current();
            assert!(newest.table("ks", "t").is_some(), "what is known stays known");
            newest.currency
        };
        assert_eq!(currency(), Currency::Current);
        // It is told before it can be read, and a reading that began before comes late.
        let began = store.begin_load();
        let change = store.note_change();
        let generation = store.generation();
        assert!(store.require(change));
        assert_eq!((currency(), store.generation()), (Currency::Outdated, generation + 1));
        store.publish(of_t(), began);
        assert_eq!(currency(), Currency::Outdated);
        store.publish(of_t(), store.begin_load());
        assert_eq!(currency(), Currency::Current);
        // It was read in time, and is told after.
        let began = store.begin_load();
        let change = store.note_change();
        store.publish(of_t(), began);
        assert_eq!(currency(), Currency::Behind);
        store.publish(of_t(), store.begin_load());
        let generation = store.generation();
        assert!(!store.require(change));
        assert_eq!((currency(), store.generation()), (Currency::Current, generation));
    }
}
