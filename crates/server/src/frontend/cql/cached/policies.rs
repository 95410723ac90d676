//! The configured policies, in the form that the row cache uses.

use afterglow_rowcache::policy::{Policies, Policy};

use crate::config::{LivePolicies, TablePolicy};

impl Policies for LivePolicies {
    fn generation(&self) -> u64 {
        LivePolicies::generation(self)
    }

    fn policy(&self, keyspace: &str, table: &str) -> (u64, Policy) {
        let (generation, policies) = self.current();
        let policy = match policies.policy(keyspace, table) {
            TablePolicy::Exclusive => Policy::Exclusive,
            TablePolicy::MaxStaleness(bound) => Policy::MaxStaleness(bound),
            TablePolicy::Off => Policy::Off,
        };
        (generation, policy)
    }
}
