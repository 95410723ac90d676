//! How the database runs lightweight transactions, as far as its settings tell: older releases do
//! not. They can be changed while it runs, so a node is asked again now and then.

use std::cell::Cell;

use afterglow_cql::message::Consistency;
use afterglow_rowcache::clock::Millis;

use super::super::Backend;
use super::own_query::call;
use super::setting::setting_of;
use super::state::CachedState;

/// Between two questions, once a node has answered.
const AGAIN: Millis = 60_000;

/// When to ask, and what was told of the answers.
#[derive(Default)]
pub(super) struct PaxosSettings {
    /// When the last answer came.
    answered_at: Cell<Option<Millis>>,
    told_refusal: Cell<bool>,
}

impl PaxosSettings {
    /// Asks this node, if it is time. Where it does not answer, what is known stays.
    pub(super) async fn look(&self, backend: &Backend, shared: &CachedState) {
        if !self.is_due(shared.cache.clock().now()) {
            return;
        }
        let setting = async |name: &str| {
            let text = format!("SELECT value FROM system_views.settings WHERE name = '{name}'");
            setting_of(&call(backend, &text, Consistency::One).await.ok()?)
        };
        let (variant, purging) =
            (setting("paxos_variant").await, setting("paxos_state_purging").await);
        if let (Some(variant), Some(purging)) = (variant, purging) {
            shared.paxos.set_settings(variant.as_deref(), purging.as_deref());
            self.answered_at.set(Some(shared.cache.clock().now()));
        } else if !self.told_refusal.replace(true) {
            tracing::warn!(
                "system_views.settings cannot be read (grant SELECT on it): lightweight transactions of unknown outcome keep their partitions uncached until the replicas have forgotten them"
            );
        }
    }

    fn is_due(&self, now: Millis) -> bool {
        self.answered_at.get().is_none_or(|at| now >= at + AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_until_it_answers_and_then_once_a_minute() {
        let settings = PaxosSettings::default();
        assert!(settings.is_due(5) && settings.is_due(6), "nobody has answered");
        settings.answered_at.set(Some(7));
        assert!(!settings.is_due(7) && !settings.is_due(6 + AGAIN) && settings.is_due(7 + AGAIN));
    }
}
