//! Which run a seed is.

use super::plan::Plan;
use super::scenes::staged;
use super::wild::wild;

/// Two of three seeds are staged, the third is wild. Some fill weak shards, as the server does,
/// where only what was acknowledged is judged and no write is weak.
pub fn plan_of(seed: u64) -> Plan {
    let mut plan = if seed % 3 == 2 { wild(seed) } else { staged(seed) };
    plan.config.weak_fills = seed % 4 == 3 && plan.config.hold < plan.config.lease;
    plan
}
