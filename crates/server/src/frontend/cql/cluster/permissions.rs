//! Who may read which table from the cache: decisions of the database, none older than [`VALID`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

/// How long a decision counts: what the database keeps its own for by default
/// (`permissions_validity`), less a little.
const VALID: Duration = Duration::from_millis(1900);
/// From this age on, one request goes to the database to renew it, while others are still answered.
const RENEW: Duration = Duration::from_millis(1000);
/// Decisions remembered on one reactor.
const MAX_DECISIONS: usize = 64 * 1024;

/// Decisions by user and table, of one reactor.
#[derive(Default)]
pub struct PermissionCache(RefCell<HashMap<(u32, Uuid), Permission>>);

#[derive(Clone, Copy)]
struct Permission {
    /// When the database was asked.
    asked: Instant,
    /// When a request was last sent there to renew it.
    renewing: Option<Instant>,
}

/// What to do with a read that the cache could answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// The database has let this user read this table, not long ago.
    Answer,
    /// The database must answer it.
    Ask,
}

impl PermissionCache {
    /// Whether the cache may answer.
    pub fn may(&self, user: u32, table: Uuid, now: Instant) -> May {
        let mut permissions = self.0.borrow_mut();
        let Some(permit) = permissions.get_mut(&(user, table)) else { return May::Ask };
        let age = now.saturating_duration_since(permit.asked);
        let renewing =
            permit.renewing.is_some_and(|since| now.saturating_duration_since(since) < RENEW);
        if age >= VALID || age >= RENEW && !renewing {
            permit.renewing = Some(now);
            return May::Ask;
        }
        May::Answer
    }

    /// Whether a decision is valid now.
    pub fn has(&self, user: u32, table: Uuid, now: Instant) -> bool {
        let permissions = self.0.borrow();
        permissions
            .get(&(user, table))
            .is_some_and(|permit| now.saturating_duration_since(permit.asked) < VALID)
    }

    /// The database has answered a read of this user, of which it was asked at `asked` or later.
    pub fn allow(&self, user: u32, table: Uuid, asked: Instant) {
        let mut permissions = self.0.borrow_mut();
        if permissions.len() >= MAX_DECISIONS {
            permissions.clear();
        }
        permissions.insert((user, table), Permission { asked, renewing: None });
    }

    /// The database has refused one.
    pub fn deny(&self, user: u32, table: Uuid) {
        self.0.borrow_mut().remove(&(user, table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_renewed_by_one_request_while_it_counts_and_ends() {
        let (permissions, table, start) =
            (PermissionCache::default(), Uuid::from_u128(7), Instant::now());
        let may = |after: u64| permissions.may(1, table, start + Duration::from_millis(after));
        assert_eq!(may(0), May::Ask);
        permissions.allow(1, table, start);
        assert_eq!([may(0), may(999)], [May::Answer; 2]);
        assert_eq!([may(1000), may(1001), may(1899)], [May::Ask, May::Answer, May::Answer]);
        assert_eq!([may(1900), may(1901)], [May::Ask; 2], "nobody has renewed it");
        assert_eq!(permissions.may(2, table, start), May::Ask, "another user");
        assert_eq!(permissions.may(1, Uuid::from_u128(8), start), May::Ask, "another table");
        permissions.allow(1, table, start + Duration::from_secs(2));
        assert_eq!(may(2500), May::Answer);
        permissions.deny(1, table);
        assert_eq!(may(2500), May::Ask);
        assert!(!permissions.has(1, table, start));
    }
}
