//! What is said at the start: which Afterglow, where, how large, under which policies.

use crate::{
    config::{Config, TablePolicy},
    version,
};

pub(super) fn say_configuration(config: &Config) {
    tracing::info!("afterglow {} starts", version::LONG);
    tracing::info!(memory = %config.memory, data_dir = %config.data_dir.display(), "cache: {}", flash(config));
    if config.cql.is_none() {
        return;
    }
    for rule in &config.table_policy.rules {
        tracing::info!("tables {}: {}: {}", rule.pattern, rule.policy, rule.policy.explain());
    }
    let rest = TablePolicy::default();
    tracing::info!("every other table: {rest}: {}", rest.explain());
}

fn flash(config: &Config) -> String {
    match config.flash.is_empty() {
        true => format!("{} in a file in the data directory", config.flash_size),
        false => config.flash.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
