//! Which run a seed is.

use super::plan::Plan;
use super::scenes::staged;
use super::wild::wild;

/// Two of three seeds are staged, the third is wild.
pub fn plan_of(seed: u64) -> Plan {
    if seed % 3 == 2 { wild(seed) } else { staged(seed) }
}
