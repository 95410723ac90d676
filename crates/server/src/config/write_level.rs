//! Levels that writes of some tables are raised to, so that quorum reads see them.

use std::{fmt, str::FromStr};

use afterglow_cql::message::Consistency;

use super::{Invalid, TablePattern};

/// Levels that a rule may name, from the one that waits for the fewest replicas on.
const LEVELS: [Consistency; 4] =
    [Consistency::LocalQuorum, Consistency::Quorum, Consistency::EachQuorum, Consistency::All];

/// One rule: writes of which tables are raised to which level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteLevelRule {
    /// Which tables.
    pub pattern: TablePattern,
    level: Consistency,
}

impl FromStr for WriteLevelRule {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let names = LEVELS.map(Consistency::name).join(", ");
        let Some((pattern, name)) = text.split_once('=') else {
            return Err(Invalid::new(format!(
                "`{text}` gives no level: write `keyspace.table=LOCAL_QUORUM`"
            )));
        };
        let level = LEVELS.into_iter().find(|level| level.name().eq_ignore_ascii_case(name));
        let level = level.ok_or_else(|| {
            Invalid::new(format!("`{name}` is not a level to raise writes to: one of {names}"))
        })?;
        Ok(WriteLevelRule { pattern: pattern.parse()?, level })
    }
}

impl fmt::Display for WriteLevelRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.level.name())
    }
}

/// The rules in the order they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteLevels {
    /// The first that matches a table holds.
    pub rules: Vec<WriteLevelRule>,
}

impl WriteLevels {
    /// The level for writes of a table (names as the database stores them), where a rule matches.
    pub fn level(&self, keyspace: &str, table: &str) -> Option<Consistency> {
        let rule = self.rules.iter().find(|rule| rule.pattern.matches(keyspace, table));
        rule.map(|rule| rule.level)
    }

    /// The level for a write of several tables: the one that waits for the most replicas.
    pub fn highest(levels: impl IntoIterator<Item = Consistency>) -> Option<Consistency> {
        let rank = |level: &Consistency| LEVELS.iter().position(|one| one == level);
        levels.into_iter().max_by_key(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_holds_and_is_printed_as_written() {
        let rules = ["shop.carts=all", "shop.*=LOCAL_QUORUM"];
        let levels = WriteLevels { rules: rules.map(|rule| rule.parse().unwrap()).to_vec() };
        assert_eq!(levels.level("shop", "carts"), Some(Consistency::All));
        assert_eq!(levels.level("shop", "items"), Some(Consistency::LocalQuorum));
        assert_eq!(levels.level("other", "items"), None);
        assert_eq!(levels.rules[0].to_string(), "shop.carts=ALL");
        let both = [Consistency::All, Consistency::LocalQuorum];
        assert_eq!(WriteLevels::highest(both), Some(Consistency::All));
        assert_eq!(WriteLevels::highest([]), None);
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        let refused = |text: &str| text.parse::<WriteLevelRule>().unwrap_err().to_string();
        assert!(refused("shop.items").contains("keyspace.table=LOCAL_QUORUM"));
        for low in ["shop.*=ONE", "shop.*=ANY", "shop.*=TWO", "shop.*=SERIAL", "shop.*="] {
            assert!(refused(low).contains("LOCAL_QUORUM, QUORUM, EACH_QUORUM, ALL"), "{low}");
        }
    }
}
