//! The transaction that this member has under way, at most one.
//!
//! Its outcome may stay unknown. Then it may apply at any later time, as long as the version is the
//! one it was for. So reading settles nothing while the version stands: a further compare-and-set
//! must move it on.
//!
//! The database may refuse all of them for a reason that stays, such as a missing right. So each
//! one of unknown outcome, in a row, makes the next wait twice as long since it was sent. The wait
//! ends at the time after which an answer counts as missing: a silent database is asked as often.
//! A newer map ends the row too: the database changes it for somebody.
//!
//! One that has told the database of other settings may have been applied, though no map that we
//! know shows it. So what each said of them is kept until a map shows which was applied.

use std::sync::Arc;

use crate::config::{Config, Time};
use crate::identity::MemberId;
use crate::map::{Map, Setting};

/// Between the first of unknown outcome and the next.
const FIRST_WAIT: Time = 50_000;

#[derive(Debug, Default, Clone)]
pub struct Transactions {
    next: u64,
    under_way: Option<UnderWay>,
    /// The version that a transaction of unknown outcome was for.
    unsettled: Option<u64>,
    /// How many in a row had no known outcome.
    failed: u32,
    /// When the last was sent.
    sent: Time,
    /// The settings of this member by those that were to make newer versions than it knows.
    said: Vec<(u64, Vec<Setting>)>,
}

#[derive(Debug, Clone)]
struct UnderWay {
    id: u64,
    map: Arc<Map>,
    sent: Time,
}

impl Transactions {
    /// Whether one is under way.
    pub fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether the version must be moved on, to settle one of unknown outcome.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    /// Whether the next one waits, because the last ones had no known outcome.
    pub fn backs_off(&self, now: Time, config: &Config) -> bool {
        let Some(doubled) = self.failed.checked_sub(1) else { return false };
        let wait = FIRST_WAIT.saturating_mul(1 << doubled.min(16)).min(config.transaction);
        now < self.sent + wait
    }

    /// Begins one of this member, which makes `map` of the version before it; its number.
    pub fn begin(&mut self, map: Arc<Map>, me: MemberId, now: Time) -> u64 {
        self.next += 1;
        self.sent = now;
        if let Some(entry) = map.entry(me) {
            let said = (map.version, entry.profile.settings.clone());
            if !self.said.contains(&said) {
                self.said.push(said);
            }
        }
        self.under_way = Some(UnderWay { id: self.next, map, sent: now });
        self.next
    }

    /// Whether the map in the database may show other settings of this member than these, by what
    /// it said itself.
    pub fn may_say_others(&self, ours: &[Setting]) -> bool {
        self.said.iter().any(|(_, said)| said != ours)
    }

    /// An answer: the map that the transaction was to make, if it is the one under way.
    pub fn answered(&mut self, id: u64) -> Option<Arc<Map>> {
        self.under_way.take_if(|t| t.id == id).map(|t| t.map)
    }

    /// The database has said whether the last one was applied.
    pub fn known(&mut self) {
        self.failed = 0;
    }

    /// The last one has no outcome that will be known.
    pub fn unknown(&mut self, map: &Map) {
        coverage_mark!(TransactionUnknown);
        self.failed = self.failed.saturating_add(1);
        self.unsettled = Some(map.version - 1);
    }

    /// The one under way, if it has been sent so long ago that it counts as unknown.
    pub fn overdue(&mut self, now: Time, after: Time) -> Option<Arc<Map>> {
        self.under_way.take_if(|t| now >= t.sent + after).map(|t| t.map)
    }

    /// A newer map: whatever was to change an older version cannot apply any more.
    pub fn adopted(&mut self, map: &Map) {
        self.failed = 0;
        self.said.retain(|(version, _)| *version > map.version);
        if self.unsettled.is_some_and(|version| map.version > version) {
            self.unsettled = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;
    use crate::map::Profile;

    #[test]
    fn what_was_said_of_our_settings_counts_until_a_map_of_that_version_is_known() {
        let mut transactions = Transactions::default();
        let settings = |value: &str| vec![Setting { name: "policy".into(), value: value.into() }];
        let saying = |version, value| {
            let mut map = Map { version, ..Map::empty(1) };
            let profile = Profile { settings: settings(value), ..Profile::default() };
            map.put(MemberId(1), Incarnation(1), profile);
            Arc::new(map)
        };
        for (version, value) in [(4, "off"), (4, "on"), (5, "on")] {
            transactions.begin(saying(version, value), MemberId(1), 0);
        }
        transactions.begin(saying(5, "strange"), MemberId(2), 0);
        assert!(transactions.may_say_others(&settings("on")));
        transactions.adopted(&saying(3, "on"));
        assert!(transactions.may_say_others(&settings("on")), "the fourth may be applied");
        transactions.adopted(&saying(4, "off"));
        assert!(!transactions.may_say_others(&settings("on")), "it shows them by itself");
        assert!(transactions.may_say_others(&settings("off")));
    }

    /// Another member has made the map, so the reason may be gone.
    #[test]
    fn a_newer_map_ends_the_wait_after_transactions_of_unknown_outcome() {
        let (config, mut transactions) = (Config::default(), Transactions::default());
        let next = Arc::new(Map::empty(1).next());
        for now in 0..9 {
            let id = transactions.begin(next.clone(), MemberId(1), now);
            let ours = transactions.answered(id).expect("it is under way");
            transactions.unknown(&ours);
        }
        let later = config.transaction - 1;
        assert!(transactions.backs_off(later, &config) && transactions.is_unsettled());
        transactions.adopted(&next);
        assert!(!transactions.backs_off(later, &config) && !transactions.is_unsettled());
    }
}
