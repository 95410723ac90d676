//! SIGHUP: applies settings that can change while serving, and names the others.

use crate::{
    config::{Config, LivePolicies, keys::KEYS},
    logging::Logging,
};

/// Reads the configuration again, for SIGHUP; the error says what is wrong with it.
pub type Reload<'a> = dyn Fn() -> Result<Config, String> + 'a;

/// What serves, as far as its limits may change.
pub(super) trait Serving {
    /// Has objects take this much memory; blocks until what no longer fits has left. The error says
    /// why that cannot be.
    fn set_memory(&self, wanted: &Config) -> Result<(), String>;

    /// Puts the limits of the front ends in force.
    fn set_limits(&self, wanted: &Config);
}

/// Reads the configuration again and puts in force what can be. Nothing changes when anything in it
/// is wrong.
pub(super) fn apply(
    config: &mut Config,
    reload: &Reload<'_>,
    policies: &LivePolicies,
    logging: &Logging,
    serving: &dyn Serving,
) {
    let mut new = match reload() {
        Ok(new) => new,
        Err(faults) => return tracing::error!("SIGHUP: the configuration is unchanged:\n{faults}"),
    };
    if new.memory != config.memory
        && let Err(why) = serving.set_memory(&new)
    {
        tracing::error!("SIGHUP: memory stays {}: {why}", config.memory);
        new.memory = config.memory;
    }
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
    config.memory = new.memory;
    config.memcache_connections = new.memcache_connections;
    config.memcache_idle_timeout = new.memcache_idle_timeout;
    serving.set_limits(config);
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
    use std::cell::RefCell;
    use std::num::NonZeroUsize;

    use super::*;
    use crate::config::{Size, TablePolicies};

    /// What a server was told.
    #[derive(Default)]
    struct Recorded {
        limits: RefCell<Vec<Config>>,
        most: Option<Size>,
    }

    impl Serving for Recorded {
        fn set_memory(&self, wanted: &Config) -> Result<(), String> {
            match self.most.is_some_and(|most| wanted.memory > most) {
                true => Err("too much".into()),
                false => Ok(()),
            }
        }

        fn set_limits(&self, wanted: &Config) {
            self.limits.borrow_mut().push(wanted.clone());
        }
    }

    fn changed() -> Config {
        Config {
            table_policy: TablePolicies { rules: vec!["a.*=exclusive".parse().unwrap()] },
            log_level: "warn".parse().unwrap(),
            memory: Size::gib(7),
            memcache_connections: NonZeroUsize::new(7).unwrap(),
            memcache_idle_timeout: Some("7s".parse().unwrap()),
            ..Config::default()
        }
    }

    #[test]
    fn every_live_key_is_put_in_force_and_no_other_changes() {
        let logging = Logging::start(&Config::default());
        let (policies, serving) = (LivePolicies::default(), Recorded::default());
        let mut config = Config::default();
        let live = changed();
        let new = Config { memcache_no_flush: true, ..live.clone() };
        let all: Vec<_> = KEYS.iter().filter(|key| key.live).map(|key| key.name).collect();
        let named = changes(&config, &live).iter().map(|change| change.name).collect::<Vec<_>>();
        assert_eq!(named, all, "a live key is not handled here, or one that is not is");
        apply(&mut config, &|| Ok(new.clone()), &policies, &logging, &serving);
        assert_eq!(policies.current().1.rules, new.table_policy.rules);
        assert_eq!(config, live);
        assert_eq!(*serving.limits.borrow(), [live]);
    }

    #[test]
    fn memory_that_cannot_be_had_leaves_the_rest_in_force() {
        let logging = Logging::start(&Config::default());
        let policies = LivePolicies::default();
        let serving = Recorded { most: Some(Size::gib(1)), ..Recorded::default() };
        let mut config = Config::default();
        apply(&mut config, &|| Ok(changed()), &policies, &logging, &serving);
        assert_eq!(config, Config { memory: Config::default().memory, ..changed() });
    }

    #[test]
    fn a_wrong_file_changes_nothing() {
        let logging = Logging::start(&Config::default());
        let (mut config, policies) = (Config::default(), LivePolicies::default());
        let serving = Recorded::default();
        apply(&mut config, &|| Err("no".into()), &policies, &logging, &serving);
        assert_eq!((config, policies.generation()), (Config::default(), 0));
        assert!(serving.limits.borrow().is_empty());
    }
}
