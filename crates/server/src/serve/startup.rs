//! Messages at the start: which Afterglow this is, where it listens, how large it is, and its
//! policies.

use crate::{
    config::{Config, TablePolicy},
    service_manager::Notifier,
    version,
};

/// The service manager. One that cannot be reached costs its messages, not the service.
pub(super) fn notifier() -> Notifier {
    Notifier::from_environment().unwrap_or_else(|error| {
        tracing::warn!("{error}. Unset it where no service manager started this process");
        Notifier::default()
    })
}

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
