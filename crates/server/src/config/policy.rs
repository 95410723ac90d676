//! Table policies: who else writes to a table, and so what of it may be cached for how long.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;

use super::{Invalid, Span};

/// What the operator says of a table's writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TablePolicy {
    /// Every writer comes through Afterglow, also while Afterglow is down. Rows live until they are
    /// written or evicted.
    Exclusive,
    /// Others may write past Afterglow; their writes are seen within the bound. Nothing lives
    /// longer than it. At least one second: expiry is kept in whole seconds.
    MaxStaleness(Duration),
    /// Never cached.
    Off,
}

/// The bound of `max-staleness` when none is written.
const DEFAULT_STALENESS: Duration = Duration::from_secs(60);

impl Default for TablePolicy {
    fn default() -> Self {
        TablePolicy::MaxStaleness(DEFAULT_STALENESS)
    }
}

impl TablePolicy {
    /// What the policy promises and what it costs, in a sentence or two for people.
    pub fn explain(self) -> String {
        match self {
            TablePolicy::Exclusive => "your promise: every writer comes through Afterglow, also \
                 while Afterglow is down. Rows stay until written or evicted and survive restarts; \
                 a write that goes past Afterglow stays unseen. Needs a lease row in keyspace \
                 `afterglow` of the database; without the lease these tables pass through"
                .into(),
            TablePolicy::MaxStaleness(bound) => format!(
                "writes through this instance are seen at once, others within {}. \
                 The cost: no row lives longer than that, so a large flash tier earns little",
                Span::new(bound)
            ),
            TablePolicy::Off => "never cached: every request goes to the database".into(),
        }
    }
}

impl FromStr for TablePolicy {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (name, argument) = match text.split_once('=') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        match (name, argument) {
            ("exclusive", None) => Ok(TablePolicy::Exclusive),
            ("off", None) => Ok(TablePolicy::Off),
            ("max-staleness", None) => Ok(TablePolicy::default()),
            ("max-staleness", Some(bound)) => match bound.parse::<Span>()?.get() {
                bound if bound >= Duration::from_secs(1) => Ok(TablePolicy::MaxStaleness(bound)),
                _ => Err(Invalid::new(format!(
                    "max-staleness of `{bound}` is too short: at least `1s`, or write `off`"
                ))),
            },
            ("exclusive" | "off", Some(_)) => {
                Err(Invalid::new(format!("`{name}` takes no value: write `{name}`")))
            }
            _ => Err(Invalid::new(format!(
                "`{text}` is not a policy: write `exclusive`, `max-staleness`, `max-staleness=60s` or `off`"
            ))),
        }
    }
}

impl fmt::Display for TablePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TablePolicy::Exclusive => f.write_str("exclusive"),
            TablePolicy::MaxStaleness(bound) => write!(f, "max-staleness={}", Span::new(*bound)),
            TablePolicy::Off => f.write_str("off"),
        }
    }
}

/// `keyspace.table` with `*` (any run of characters) and `?` (one character). `*` alone is every
/// table.
///
/// Names are compared as the database stores them: an unquoted name is in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePattern {
    keyspace: String,
    table: String,
}

impl TablePattern {
    /// Whether the pattern names this table.
    pub fn matches(&self, keyspace: &str, table: &str) -> bool {
        glob(self.keyspace.as_bytes(), keyspace.as_bytes())
            && glob(self.table.as_bytes(), table.as_bytes())
    }

    /// Whether this one certainly matches whatever the other does; may say no where the answer is
    /// yes.
    pub fn covers(&self, other: &TablePattern) -> bool {
        // Matched as if its wildcards were letters, a `*` of the other must be met by a `*` of
        // ours, not by a `?`.
        let covers = |ours: &str, theirs: &str| {
            glob(ours.as_bytes(), theirs.as_bytes())
                && (!theirs.contains('*') || !ours.contains('?'))
        };
        covers(&self.keyspace, &other.keyspace) && covers(&self.table, &other.table)
    }
}

/// Whether `pattern` covers all of `name`. Goes back only to the latest `*`, so it takes at most
/// len * len steps.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut latest_star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                latest_star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((star, covered)) = latest_star else { return false };
                latest_star = Some((star, covered + 1));
                p = star + 1;
                n = covered + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

impl FromStr for TablePattern {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text == "*" {
            return Ok(TablePattern { keyspace: "*".into(), table: "*".into() });
        }
        let is_pattern = |s: &str| {
            !s.is_empty()
                && s.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '*' | '?'))
        };
        match text.split_once('.') {
            Some((keyspace, table)) if is_pattern(keyspace) && is_pattern(table) => {
                Ok(TablePattern { keyspace: keyspace.into(), table: table.into() })
            }
            None if is_pattern(text) => Err(Invalid::new(format!(
                "`{text}` names no table: write `{text}.*` for every table of a keyspace"
            ))),
            _ => Err(Invalid::new(format!(
                "`{text}` is not a pattern of tables: write `keyspace.table`, where `*` stands for any run of characters and `?` for one"
            ))),
        }
    }
}

impl fmt::Display for TablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.keyspace, self.table)
    }
}

/// One line of policy: which tables, and what holds for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRule {
    /// Which tables.
    pub pattern: TablePattern,
    /// What holds for them.
    pub policy: TablePolicy,
}

impl FromStr for TableRule {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let Some((pattern, policy)) = text.split_once('=') else {
            return Err(Invalid::new(format!(
                "`{text}` gives no policy: write `keyspace.table=exclusive`, `=max-staleness=60s` or `=off`"
            )));
        };
        Ok(TableRule { pattern: pattern.parse()?, policy: policy.parse()? })
    }
}

impl fmt::Display for TableRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.policy)
    }
}

/// The rules in the order they were written: the first that matches a table holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TablePolicies {
    /// First match wins.
    pub rules: Vec<TableRule>,
}

impl TablePolicies {
    /// What holds for a table (names as the database stores them): the first matching rule's
    /// policy, else the default.
    pub fn policy(&self, keyspace: &str, table: &str) -> TablePolicy {
        let rule = self.rules.iter().find(|rule| rule.pattern.matches(keyspace, table));
        rule.map_or_else(TablePolicy::default, |rule| rule.policy)
    }

    /// Whether some table may be `exclusive`, so that the lease is needed.
    pub fn any_exclusive(&self) -> bool {
        self.rules.iter().any(|rule| rule.policy == TablePolicy::Exclusive)
    }
}

/// The policies in force: read by the front ends, replaced when the configuration is reloaded.
///
/// A front end keeps what it resolved for a table together with [`LivePolicies::generation`] and
/// resolves again when that moved on.
#[derive(Debug, Default)]
pub struct LivePolicies {
    generation: AtomicU64,
    current: RwLock<Arc<TablePolicies>>,
}

impl LivePolicies {
    /// These policies, at generation 0.
    pub fn new(policies: TablePolicies) -> Self {
        LivePolicies { generation: AtomicU64::new(0), current: RwLock::new(Arc::new(policies)) }
    }

    /// Grows with every replacement; one load, for the hot path.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What holds now, with its generation.
    pub fn current(&self) -> (u64, Arc<TablePolicies>) {
        let current = self.current.read();
        (self.generation(), current.clone())
    }

    /// Puts other policies in force.
    pub fn replace(&self, policies: TablePolicies) {
        let mut current = self.current.write();
        *current = Arc::new(policies);
        // Under the lock: whoever reads both has those that belong together.
        self.generation.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policies(rules: &[&str]) -> TablePolicies {
        TablePolicies { rules: rules.iter().map(|rule| rule.parse().unwrap()).collect() }
    }

    #[test]
    fn the_first_rule_that_matches_holds() {
        let policies = policies(&[
            "shop.cart=off",
            "shop.*=exclusive",
            "log?.*=max-staleness=5s",
            "*=max-staleness=2m",
        ]);
        let seconds = |s| TablePolicy::MaxStaleness(Duration::from_secs(s));
        for (keyspace, table, policy) in [
            ("shop", "cart", TablePolicy::Off),
            ("shop", "item", TablePolicy::Exclusive),
            ("logs", "x", seconds(5)),
            ("log", "x", seconds(120)),
            ("logs2", "x", seconds(120)),
            ("Shop", "cart", seconds(120)),
        ] {
            assert_eq!(policies.policy(keyspace, table), policy, "{keyspace}.{table}");
        }
    }

    #[test]
    fn without_a_rule_others_may_write() {
        assert_eq!(
            policies(&["a.b=exclusive"]).policy("a", "c"),
            TablePolicy::MaxStaleness(Duration::from_secs(60))
        );
    }

    #[test]
    fn rules_are_read_back_as_printed() {
        for (text, shown) in [
            ("a.b=exclusive", "a.b=exclusive"),
            ("a.*=max-staleness", "a.*=max-staleness=60s"),
            ("*=max-staleness=250s", "*.*=max-staleness=250s"),
            ("a?.b=off", "a?.b=off"),
        ] {
            let rule: TableRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(shown.parse(), Ok(rule));
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        for (text, hint) in [
            ("shop.cart", "`keyspace.table=exclusive`"),
            ("shop=exclusive", "`shop.*`"),
            ("shop.cart.x=off", "`keyspace.table`"),
            ("shop.=off", "`keyspace.table`"),
            ("=off", "`keyspace.table`"),
            ("a.b=exclusiv", "`exclusive`, `max-staleness`"),
            ("a.b=exclusive=1s", "takes no value"),
            ("a.b=max-staleness=60", "`60s`"),
            ("a.b=max-staleness=250ms", "at least `1s`"),
            ("a.b=max-staleness=", "`60s`"),
        ] {
            let message = text.parse::<TableRule>().unwrap_err().0;
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    /// The obvious definition, to hold the fast one against.
    fn glob_plain(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some(b'*'), _) => {
                glob_plain(&pattern[1..], name)
                    || (!name.is_empty() && glob_plain(pattern, &name[1..]))
            }
            (Some(b'?'), Some(_)) => glob_plain(&pattern[1..], &name[1..]),
            (Some(p), Some(n)) => p == n && glob_plain(&pattern[1..], &name[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_defined(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(glob(pattern, name), glob_plain(pattern, name));
        }
    }

    #[test]
    fn a_pattern_covers_what_it_always_matches() {
        let covers =
            |a: &str, b: &str| a.parse::<TablePattern>().unwrap().covers(&b.parse().unwrap());
        assert!(
            covers("*", "shop.c*")
                && covers("shop.*", "shop.cart")
                && covers("a?.x", "ab.x")
                && covers("a.b", "a.b")
        );
        assert!(!covers("shop.cart", "shop.*") && !covers("?.x", "*.x") && !covers("a.*", "b.*"));
    }

    #[test]
    fn who_reads_a_generation_has_policies_at_least_as_new() {
        let live = LivePolicies::new(policies(&["a.b=off"]));
        let (before, _) = live.current();
        live.replace(policies(&["a.b=exclusive"]));
        let (after, now) = live.current();
        assert_ne!(before, after);
        assert_eq!(now.policy("a", "b"), TablePolicy::Exclusive);
    }
}
