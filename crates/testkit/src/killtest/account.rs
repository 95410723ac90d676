//! What the server itself counted of a life: objects dropped and puts refused, by reason, and how
//! long the oldest unsaved object waited.
//!
//! A loss that a counter names is allowed (G7). It comes from `/metrics`. After a clean stop it
//! also comes from the last line of the log, which has what was dropped after `/metrics` had ended.

use std::collections::BTreeMap;

use afterglow_loadgen::metrics;

/// Reasons for which an object that readers could have had is dropped. `dead` is none: nobody could
/// have had it.
const DROPPED: [&str; 7] = [
    "not_admitted",
    "write_budget",
    "no_free_segment",
    "queue_full",
    "reclaimed",
    "index_full",
    "write_failed",
];
/// Reasons for which a put is refused that takes the older object with it.
const REFUSED: [&str; 4] = ["device", "queue_full", "no_free_segment", "write_budget"];
/// How old what is not on flash may be where the device takes writes, in seconds.
const UNSAVED: u64 = 10;

/// What was counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// By `dropped:REASON` and `refused:REASON`.
    losses: BTreeMap<String, u64>,
    /// How long the oldest object that is not on flash has waited, in seconds.
    pub(super) unsaved_age: u64,
    /// Writes and flushes of the device that failed.
    pub(super) write_errors: u64,
    /// Segments that were given up.
    pub(super) reclaimed: u64,
    /// Copies of objects in DRAM that flash refused: a crash loses the objects.
    pub(super) copies_refused: u64,
    /// Copies that a reclaim took from objects in DRAM: a crash loses these too, until they are
    /// copied again.
    pub(super) copies_lost: u64,
}

impl Account {
    /// Objects that DRAM alone may have, however old: flash had no place for their copies.
    pub(super) fn in_dram_alone(&self) -> u64 {
        self.copies_refused + self.copies_lost
    }

    /// From the page `/metrics`.
    pub(super) fn read(page: &str) -> Account {
        let mut losses = BTreeMap::new();
        let mut add = |name: &str, what: &str| {
            for (labels, count) in samples(page, name) {
                let reason =
                    labels.split("reason=\"").nth(1).and_then(|rest| rest.split('"').next());
                *losses.entry(format!("{what}:{}", reason.unwrap_or_default())).or_default() +=
                    count;
            }
        };
        add("afterglow_engine_dropped_total", "dropped");
        add("afterglow_engine_flash_dropped_total", "dropped");
        add("afterglow_engine_refused_puts_total", "refused");
        Account {
            losses,
            unsaved_age: metrics::sum(page, "afterglow_engine_unsaved_age_seconds"),
            write_errors: metrics::sum(page, "afterglow_engine_device_write_errors_total"),
            reclaimed: metrics::sum(page, "afterglow_engine_reclaimed_segments_total"),
            copies_refused: metrics::sum(page, "afterglow_engine_copies_refused_total"),
            copies_lost: metrics::sum(page, "afterglow_engine_copies_lost_total"),
        }
    }

    /// From the line that a clean stop ends the log with.
    pub(super) fn read_end(log: &str) -> Option<Account> {
        let line = log.lines().rev().find(|line| line.contains(" ended dropped="))?;
        let mut losses = BTreeMap::new();
        for what in ["dropped", "refused"] {
            let list = line
                .split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(what)?.strip_prefix('='))?;
            for (reason, count) in list.split(',').filter_map(|pair| pair.split_once(':')) {
                losses.insert(format!("{what}:{reason}"), count.parse().ok()?);
            }
        }
        Some(Account { losses, ..Account::default() })
    }

    /// How many objects that a reader could have had were lost for a reason since `earlier`, with
    /// the reasons.
    pub(super) fn losses_since(&self, earlier: &Account) -> Losses {
        let is_loss = |name: &str| {
            name.split_once(':').is_some_and(|(what, reason)| match what {
                "dropped" => DROPPED.contains(&reason),
                _ => REFUSED.contains(&reason),
            })
        };
        let more = |(name, count): (&String, &u64)| {
            let count = count.saturating_sub(earlier.losses.get(name).copied().unwrap_or(0));
            (count > 0 && is_loss(name)).then(|| (name.clone(), count))
        };
        Losses(self.losses.iter().filter_map(more).collect())
    }
}

/// Losses that the server has accounted for, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Losses(BTreeMap<String, u64>);

impl Losses {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// How many of so many missing objects no counter names.
    pub fn unnamed(&self, missing: u64) -> u64 {
        missing.saturating_sub(self.count())
    }
}

impl std::fmt::Display for Losses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        let words: Vec<String> =
            self.0.iter().map(|(name, count)| format!("{count} {name}")).collect();
        f.write_str(&words.join(", "))
    }
}

/// What the server and its disk did while objects had time to reach flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Window {
    /// The most that `afterglow_engine_unsaved_age_seconds` said.
    pub unsaved_age: u64,
    /// Writes and flushes of the device that failed.
    pub write_errors: u64,
    /// Copies that flash refused, because other objects are more popular: a crash may lose so many
    /// objects.
    pub copies_refused: u64,
    /// The longest that a small write to the same directory took, in milliseconds.
    pub slowest_write_ms: u64,
}

impl Window {
    /// What of it explains that something did not reach flash; empty where nothing does.
    pub(super) fn explain(&self) -> String {
        let mut words = Vec::new();
        if self.unsaved_age > UNSAVED {
            words.push(format!(
                "the server itself says that something waited {} s",
                self.unsaved_age
            ));
        }
        if self.write_errors > 0 {
            words.push(format!("{} of its writes failed", self.write_errors));
        }
        if !words.is_empty() {
            words
                .push(format!("a small write beside it took {} ms at most", self.slowest_write_ms));
        }
        words.join(", ")
    }
}

/// The samples of a family: labels and value.
fn samples<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
    page.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        labels.starts_with('{').then(|| (labels, value.parse().unwrap_or(0)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP afterglow_engine_dropped_total x\n\
        afterglow_engine_dropped_total{namespace=\"cql\",reason=\"queue_full\"} 3\n\
        afterglow_engine_dropped_total{namespace=\"memcache\",reason=\"queue_full\"} 1\n\
        afterglow_engine_dropped_total{namespace=\"cql\",reason=\"dead\"} 50\n\
        afterglow_engine_flash_dropped_total{reason=\"write_failed\"} 2\n\
        afterglow_engine_refused_puts_total{namespace=\"cql\",reason=\"queue_full\"} 1\n\
        afterglow_engine_refused_puts_total{namespace=\"cql\",reason=\"expired\"} 9\n\
        afterglow_engine_device_write_errors_total 4\n\
        afterglow_engine_reclaimed_segments_total 6\n\
        afterglow_engine_copies_refused_total 3\n\
        afterglow_engine_copies_lost_total 2\n\
        afterglow_engine_unsaved_age_seconds 11\n";

    #[test]
    fn a_loss_is_accounted_for_when_a_counter_names_it() {
        let account = Account::read(PAGE);
        assert_eq!((account.unsaved_age, account.write_errors, account.reclaimed), (11, 4, 6));
        assert_eq!(account.in_dram_alone(), 5);
        let losses = account.losses_since(&Account::default());
        assert_eq!(losses.count(), 3 + 1 + 2 + 1, "what is dead or expired is no loss: {losses}");
        assert_eq!((losses.unnamed(7), losses.unnamed(9)), (0, 2));
        assert!(losses.to_string().contains("4 dropped:queue_full"), "{losses}");
        let since = account.losses_since(&account);
        assert_eq!(
            (since.count(), since.unnamed(2), since.to_string()),
            (0, 2, "nothing".to_owned())
        );
    }

    #[test]
    fn what_was_lost_by_a_clean_stop_is_in_the_last_line_of_its_log() {
        let log = "t INFO afterglow: ended dropped=queue_full:1 refused=nothing\n\
            t INFO afterglow: afterglow 1 starts\n\
            t INFO afterglow: ended dropped=dead:7,queue_full:6 refused=device:1\n";
        let end = Account::read_end(log).unwrap();
        let losses = end.losses_since(&Account::read(PAGE));
        assert_eq!(losses.to_string(), "2 dropped:queue_full, 1 refused:device");
        assert_eq!(Account::read_end("t INFO afterglow: ended\n"), None);
    }

    #[test]
    fn what_the_server_says_of_itself_is_in_the_complaint() {
        let calm = Window {
            unsaved_age: UNSAVED,
            write_errors: 0,
            copies_refused: 0,
            slowest_write_ms: 900,
        };
        assert_eq!(calm.explain(), "");
        let late = Window { unsaved_age: 12, ..calm };
        assert!(late.explain().contains("waited 12 s") && late.explain().contains("900 ms"));
        assert!(Window { write_errors: 2, ..calm }.explain().contains("2 of its writes failed"));
    }
}
