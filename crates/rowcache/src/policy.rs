//! Table policies: the operator says who else writes to a table.

use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::plan::TableSchema;
use foldhash::{HashMap, HashMapExt};
use parking_lot::RwLock;
use uuid::Uuid;

/// Tables whose policy is remembered.
const MAX_RESOLVED: usize = 1 << 16;

/// What the operator says of a table's writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Every writer comes through us.
    Exclusive,
    /// Others may write past us; nothing is served for longer than this, in whole seconds.
    MaxStaleness(Duration),
    /// Never cached.
    Off,
}

/// The present policies. They may be replaced at any time.
pub trait Policies: Send + Sync {
    /// Grows with every replacement; cheap, for the hot path.
    fn generation(&self) -> u64;

    /// The policy of a table, with a generation that is never newer than it. So a caller that keeps
    /// both rather looks again too early than too late.
    fn policy(&self, keyspace: &str, table: &str) -> (u64, Policy);
}

/// Policies, with the policy of each table resolved once for each generation.
pub(crate) struct Resolved {
    policies: Arc<dyn Policies>,
    known: RwLock<KnownPolicies>,
}

/// Policies of tables, by id: a name never changes its id, nor an id its name.
#[derive(Default)]
struct KnownPolicies {
    generation: u64,
    by_id: HashMap<Uuid, Policy>,
}

impl Resolved {
    pub(crate) fn new(policies: Arc<dyn Policies>) -> Resolved {
        Resolved { policies, known: RwLock::default() }
    }

    /// The present generation.
    pub(crate) fn generation(&self) -> u64 {
        self.policies.generation()
    }

    /// Whether rows of a table of this name may be cached.
    pub(crate) fn may_cache(&self, keyspace: &str, table: &str) -> bool {
        self.policies.policy(keyspace, table).1 != Policy::Off
    }

    /// The policy of a table, with the generation it is of.
    pub(crate) fn of(&self, table: &TableSchema) -> (u64, Policy) {
        let generation = self.policies.generation();
        {
            let known = self.known.read();
            if known.generation == generation
                && let Some(policy) = known.by_id.get(&table.id)
            {
                return (generation, *policy);
            }
        }
        let (generation, policy) = self.policies.policy(&table.keyspace, &table.name);
        let mut known = self.known.write();
        if known.generation != generation || known.by_id.len() >= MAX_RESOLVED {
            *known = KnownPolicies { generation, by_id: HashMap::new() };
        }
        known.by_id.insert(table.id, policy);
        (generation, policy)
    }
}
