//! Settings that all members must share: what decides which rows are cached, and for how long.
//!
//! * Each member's are in its entry of the map. The ring's are those of its *eldest* active member,
//!   whose incarnation came first.
//! * Who has others caches nothing. It goes on granting writes for the shards that it has, so that
//!   settings can be changed in one member after the other.
//! * Who is no member and has others does not become one, unless all members are gone.

use crate::identity::MemberId;
use crate::map::{Map, Setting};

/// A setting that two have in different ways. None: it is not said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What its operator calls it.
    pub name: String,
    /// The value here.
    pub ours: Option<String>,
    /// The value there.
    pub theirs: Option<String>,
}

/// Whether an instance has the settings of its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// It is not known: no map was read yet, or the map does not have our present ones yet.
    Unknown,
    /// It has.
    Same,
    /// It has others than this member, the eldest.
    Differs(MemberId),
}

/// In what the settings of two differ, by name.
#[must_use]
pub fn differences(ours: &[Setting], theirs: &[Setting]) -> Vec<Difference> {
    let value = |of: &[Setting], name: &str| {
        of.iter().find(|setting| setting.name == name).map(|setting| setting.value.clone())
    };
    let mut names: Vec<&str> =
        ours.iter().chain(theirs).map(|setting| setting.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .map(|name| Difference {
            name: name.to_owned(),
            ours: value(ours, name),
            theirs: value(theirs, name),
        })
        .filter(|difference| difference.ours != difference.theirs)
        .collect()
}

/// Whether an instance with these settings has those of its ring.
///
/// Its own entry counts as the eldest's does. While it says others, anybody may rely on it who
/// looks into the map: so on that this member caches nothing.
pub fn agreement(map: Option<&Map>, me: MemberId, ours: &[Setting]) -> Agreement {
    let Some(map) = map else { return Agreement::Unknown };
    let says_others = map.entry(me).is_some_and(|entry| entry.profile.settings != ours);
    match map.eldest() {
        Some(eldest) if eldest.profile.settings == ours && says_others => Agreement::Unknown,
        Some(eldest) if eldest.profile.settings == ours => Agreement::Same,
        // The others know of our earlier ones.
        Some(eldest) if eldest.identity.id == me => Agreement::Unknown,
        Some(eldest) => Agreement::Differs(eldest.identity.id),
        None => Agreement::Same,
    }
}

/// Whether the other members, if any, have the settings that a joiner has.
pub fn fits(map: &Map, me: MemberId, ours: &[Setting]) -> bool {
    let others = map.active().filter(|member| member.identity.id != me);
    let eldest = others.min_by_key(|member| member.age());
    eldest.is_none_or(|eldest| eldest.profile.settings == ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;
    use crate::map::Profile;

    fn settings(policy: &str) -> Vec<Setting> {
        [("table-policy", policy), ("unknown-outcome-hold", "3600s")]
            .map(|(name, value)| Setting { name: name.into(), value: value.into() })
            .into()
    }

    #[test]
    fn the_ring_has_the_settings_of_whoever_came_first() {
        assert_eq!(agreement(None, MemberId(1), &settings("a")), Agreement::Unknown);
        let mut map = Map::empty(1);
        assert_eq!(agreement(Some(&map), MemberId(1), &settings("a")), Agreement::Same);
        for (id, version, policy) in [(5, 1, "a"), (1, 2, "b"), (2, 3, "a")] {
            map.version = version;
            let profile = Profile { settings: settings(policy), ..Profile::default() };
            map.put(MemberId(id), Incarnation(id.into()), profile);
        }
        let of = |map: &Map, id, policy| agreement(Some(map), MemberId(id), &settings(policy));
        assert_eq!(of(&map, 5, "a"), Agreement::Same);
        assert_eq!(of(&map, 5, "b"), Agreement::Unknown, "the map does not have them yet");
        assert_eq!(of(&map, 1, "b"), Agreement::Differs(MemberId(5)));
        assert_eq!(of(&map, 2, "a"), Agreement::Same);
        assert_eq!(of(&map, 1, "a"), Agreement::Unknown, "the map says it has others");
        assert!(fits(&map, MemberId(9), &settings("a")));
        assert!(!fits(&map, MemberId(9), &settings("b")));
        assert!(!fits(&map, MemberId(5), &settings("a")), "the eldest of the others counts");
        map.accuse(map.members[2].identity);
        assert_eq!(of(&map, 1, "b"), Agreement::Same);
    }

    #[test]
    fn differences_are_named_with_both_values() {
        let found = differences(&settings("a"), &settings("b"));
        let named = |ours: Option<&str>, theirs: Option<&str>| Difference {
            name: "table-policy".into(),
            ours: ours.map(str::to_owned),
            theirs: theirs.map(str::to_owned),
        };
        assert_eq!(found, [named(Some("a"), Some("b"))]);
        assert_eq!(differences(&settings("a")[1..], &settings("b")), [named(None, Some("b"))]);
        assert_eq!(differences(&settings("a"), &settings("a")), []);
    }
}
