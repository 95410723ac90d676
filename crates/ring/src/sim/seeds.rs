//! Which run a seed is.

use super::alone::lengthen_some;
use super::bereaved::bereave_some;
use super::changing::changing;
use super::forgetting::forget_some;
use super::hot_moves::move_some;
use super::making::make_some;
use super::other_tables::make_others;
use super::plan::Plan;
use super::scenes::staged;
use super::slowing::slow_some;
use super::stopping::stop_some;
use super::wild::wild;

/// One of eight seeds has settings and a schema that change. Two of three others are staged, the
/// third is wild. For some the database is slow, in some tables of others change. In some of all a
/// row moves while it is written, in some one member alone is in trouble at the end, in some all
/// but one leave, in some one stops, in some the database loses the map, in some it makes a row.
/// Some fill weak shards, as the server does, where only what was acknowledged is judged and no
/// write is weak. Some remember no more than one hold of a partition.
pub fn plan_of(seed: u64) -> Plan {
    let mut plan = match seed {
        _ if seed % 8 == 6 => changing(seed),
        _ if seed % 3 == 2 => wild(seed),
        _ => staged(seed),
    };
    slow_some(&mut plan);
    move_some(&mut plan);
    lengthen_some(&mut plan, 250);
    bereave_some(&mut plan);
    stop_some(&mut plan);
    forget_some(&mut plan);
    make_some(&mut plan);
    make_others(&mut plan);
    let fills = seed % 4 == 3 || seed % 16 == 6;
    if seed % 5 == 4 {
        plan.config.holds = 1;
    }
    plan.config.weak_fills = plan.grows || fills && plan.config.hold < plan.config.lease;
    plan
}
