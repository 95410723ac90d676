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
/// Between two questions, where it has not.
const RETRY: Millis = 5_000;

/// When to ask, and what was told of the answers.
#[derive(Default)]
pub(super) struct PaxosSettings {
    /// When to ask next.
    next: Cell<Millis>,
    told_refusal: Cell<bool>,
}

impl PaxosSettings {
    /// Asks this node, if it is time. Where it does not answer, what is known stays.
    pub(super) async fn look(&self, backend: &Backend, shared: &CachedState) {
        let now = shared.cache.clock().now();
        if now < self.next.get() {
            return;
        }
        self.next.set(now + RETRY);
        let setting = async |name: &str| {
            let text = format!("SELECT value FROM system_views.settings WHERE name = '{name}'");
            setting_of(&call(backend, &text, Consistency::One).await.ok()?)
        };
        let (variant, purging) =
            (setting("paxos_variant").await, setting("paxos_state_purging").await);
        if let (Some(variant), Some(purging)) = (variant, purging) {
            shared.paxos.set_settings(variant.as_deref(), purging.as_deref());
            self.next.set(now + AGAIN);
        } else if !self.told_refusal.replace(true) {
            tracing::warn!(
                "system_views.settings cannot be read (grant SELECT on it): lightweight transactions of unknown outcome keep their partitions uncached until the replicas have forgotten them"
            );
        }
    }
}
