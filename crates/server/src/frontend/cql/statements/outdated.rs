//! Clients of v5 that were told of a statement's new columns and still use the old ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// A client that takes on new columns has done so by then. What it had sent before does not count.
const TAKES_ON: Duration = Duration::from_secs(1);
/// Statements remembered for one client. Of further ones it is told in answers only.
const MOST: usize = 1024;

/// What one client was told in answers, by statement.
#[derive(Default)]
pub struct Outdated(HashMap<Bytes, ToldColumns>);

struct ToldColumns {
    /// Id of the new columns.
    columns: Bytes,
    /// When it was first told.
    at: Instant,
    /// It has been asked to prepare again.
    asked: bool,
}

impl Outdated {
    /// An answer told the client the id of the statement's new columns.
    pub fn told(&mut self, statement: &Bytes, columns: &Bytes, now: Instant) {
        let news = || ToldColumns { columns: columns.clone(), at: now, asked: false };
        if let Some(told) = self.0.get_mut(statement) {
            if told.columns != columns {
                *told = news();
            }
        } else if self.0.len() < MOST {
            self.0.insert(statement.clone(), news());
        }
    }

    /// The client executes the statement with another id than `columns`. Whether it must prepare
    /// again: it was told that id long enough ago. True once for each statement and change.
    pub fn must_prepare(&mut self, statement: &[u8], columns: &Bytes, now: Instant) -> bool {
        let Some(told) = self.0.get_mut(statement) else { return false };
        let late = now.saturating_duration_since(told.at) >= TAKES_ON;
        late && told.columns == columns && !std::mem::replace(&mut told.asked, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_take_on_new_columns_prepares_again_once_for_each_change() {
        let mut outdated = Outdated::default();
        let [read, one, two] = [b"read", b"one!", b"two!"].map(|id| Bytes::from_static(id));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(!outdated.must_prepare(&read, &one, after(9)), "nobody has told it");
        outdated.told(&read, &one, start);
        assert!(!outdated.must_prepare(&read, &one, start), "it may not have heard");
        outdated.told(&read, &one, after(1));
        assert!(!outdated.must_prepare(&read, &two, after(1)), "it was told of others");
        assert!(outdated.must_prepare(&read, &one, after(1)));
        assert!(!outdated.must_prepare(&read, &one, after(2)), "it has been asked");
        outdated.told(&read, &one, after(3));
        assert!(!outdated.must_prepare(&read, &one, after(9)), "also if it is told again");
        outdated.told(&read, &two, after(10));
        assert!(outdated.must_prepare(&read, &two, after(11)));
    }

    #[test]
    fn what_is_remembered_of_a_client_is_bounded() {
        let mut outdated = Outdated::default();
        let (start, columns) = (Instant::now(), Bytes::from_static(b"columns"));
        for n in 0..2 * MOST {
            outdated.told(&Bytes::from(n.to_string()), &columns, start);
        }
        assert_eq!(outdated.0.len(), MOST);
    }
}
