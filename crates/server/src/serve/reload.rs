//! SIGHUP: what can change while serving does, the rest is named.

use crate::{
    config::{Config, LivePolicies, keys::KEYS},
    logging::Logging,
};

/// Reads the configuration again, for SIGHUP; the error says what is wrong with it.
pub type Reload<'a> = dyn Fn() -> Result<Config, String> + 'a;

/// Reads the configuration again and puts in force what can be. Nothing changes when anything in it
/// is wrong.
pub(super) fn apply(
    config: &mut Config,
    reload: &Reload<'_>,
    policies: &LivePolicies,
    logging: &Logging,
) {
    let new = match reload() {
        Ok(new) => new,
        Err(faults) => return tracing::error!("SIGHUP: the configuration is unchanged:\n{faults}"),
    };
    let changes = changes(config, &new);
    if changes.is_empty() {
        tracing::info!("SIGHUP: nothing has changed in the configuration");
    }
    for change in &changes {
        match change.live {
            true => {
                tracing::info!("SIGHUP: {} is now {} (was {})", change.name, change.new, change.old)
            }
            false => tracing::warn!(
                "SIGHUP: {} stays {} until a restart (now {} in the file)",
                change.name,
                change.old,
                change.new
            ),
        }
    }
    if config.table_policy != new.table_policy {
        policies.replace(new.table_policy.clone());
        config.table_policy = new.table_policy;
    }
    if config.log_level != new.log_level {
        logging.set(&new.log_level);
        config.log_level = new.log_level;
    }
}

struct Change {
    name: &'static str,
    live: bool,
    old: String,
    new: String,
}

fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let shown = |values: Vec<String>| match values.is_empty() {
        true => "not set".to_string(),
        false => values.join(", "),
    };
    let changed = KEYS.iter().filter(|key| (key.get)(old) != (key.get)(new));
    changed
        .map(|key| Change {
            name: key.name,
            live: key.live,
            old: shown((key.get)(old)),
            new: shown((key.get)(new)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Size, TablePolicies};

    #[test]
    fn every_live_key_is_put_in_force_and_no_other_changes() {
        let logging = Logging::start(&Config::default());
        let mut config = Config::default();
        let policies = LivePolicies::default();
        let rules = vec!["a.*=exclusive".parse().unwrap()];
        let new = Config {
            table_policy: TablePolicies { rules },
            log_level: "warn".parse().unwrap(),
            memory: Size::gib(7),
            ..Config::default()
        };
        for key in changes(&config, &new).iter().filter(|change| change.live) {
            assert!(
                ["table-policy", "log-level"].contains(&key.name),
                "{} is live and not handled here",
                key.name
            );
        }
        apply(&mut config, &|| Ok(new.clone()), &policies, &logging);
        assert_eq!(policies.current().1.rules, new.table_policy.rules);
        assert_eq!(config, Config { memory: Config::default().memory, ..new });
    }

    #[test]
    fn a_wrong_file_changes_nothing() {
        let logging = Logging::start(&Config::default());
        let (mut config, policies) = (Config::default(), LivePolicies::default());
        apply(&mut config, &|| Err("no".into()), &policies, &logging);
        assert_eq!((config, policies.generation()), (Config::default(), 0));
    }
}
