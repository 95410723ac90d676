//! What all members of a ring must have in common, as their entries in its map say it.

use std::time::Duration;

use afterglow_ring::Setting;
use twox_hash::XxHash3_64;

use crate::config::TablePolicies;

/// A longer value is told by its length and digest.
const LONGEST: usize = 120;

/// The settings of an instance that decide which rows it caches, and for how long.
pub fn settings_of(policies: &TablePolicies, hold: Duration) -> Vec<Setting> {
    let rules: Vec<String> = policies.rules.iter().map(ToString::to_string).collect();
    let policy = match rules.join(", ") {
        none if none.is_empty() => "none".to_owned(),
        short if short.len() <= LONGEST => short,
        long => {
            let digest = XxHash3_64::oneshot(long.as_bytes());
            format!("{} rules of digest {digest:016x}", rules.len())
        }
    };
    let hold = format!("{}ms", hold.as_millis());
    [("table-policy", policy), ("unknown-outcome-hold", hold)]
        .map(|(name, value)| Setting { name: name.to_owned(), value })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_in_full_or_by_a_digest_and_differ_when_they_do() {
        let value = |rules: &[String], hold| {
            let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            settings_of(&TablePolicies { rules }, Duration::from_secs(hold))
        };
        let two = ["a.b=off".to_owned(), "*=exclusive".to_owned()];
        let told = value(&two, 60);
        assert_eq!(told[0].value, "a.b=off, *.*=exclusive");
        assert_eq!(told[1].value, "60000ms");
        assert_ne!(value(&two, 61), told);
        let turned = [two[1].clone(), two[0].clone()];
        assert_ne!(value(&turned, 60), told, "the first rule that matches holds");
        let many = |last: &str| -> Vec<String> {
            let rules = (0..40).map(|n| format!("keyspace.table{n}=exclusive"));
            rules.chain([last.to_owned()]).collect()
        };
        let (one, other) = (value(&many("a.b=off"), 60), value(&many("a.c=off"), 60));
        assert!(one[0].value.starts_with("41 rules of digest "), "{}", one[0].value);
        assert_ne!(one, other);
        assert!(one[0].value.len() <= 255);
    }
}
