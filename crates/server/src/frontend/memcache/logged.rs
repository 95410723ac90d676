//! Lines about requests and evictions for clients that `watch`.

use afterglow_engine::{Hit, Listed, MissReason};
use afterglow_memcache::{
    Action, Fetched, LogEntry, Mode, Outcome, Store as Storing, Topics, expiry_of, store_status,
};

use super::object;
use super::shared::MemcacheShared;

impl MemcacheShared {
    /// An object was looked up, by the connection of descriptor `cfd`.
    pub(super) fn log_fetch(&self, key: &[u8], found: Result<&Hit, MissReason>, cfd: i32) {
        if !self.watchers.want_any(Topics::FETCHERS) {
            return;
        }
        let fetched = match found {
            Ok(hit) => {
                object::decode(hit).map_or(Fetched::Missing, |item| Fetched::Found(item.len()))
            }
            Err(MissReason::Expired) => Fetched::Expired,
            Err(MissReason::Killed) => Fetched::Flushed,
            Err(_) => Fetched::Missing,
        };
        self.watchers.log(&LogEntry::Fetch { key, fetched, cfd });
    }

    /// A store came to `outcome`; `old` is what it found, if it looked.
    pub(super) fn log_store(
        &self,
        key: &[u8],
        store: &Storing<'_>,
        old: Option<&Hit>,
        outcome: &Outcome<'_>,
        cfd: i32,
    ) {
        if !self.watchers.want_any(Topics::MUTATIONS) {
            return;
        }
        let now = self.store.now();
        let expiry = match (store.mode, old) {
            (Mode::Append | Mode::Prepend, Some(old)) => old.expiry,
            _ => expiry_of(store.ttl, now),
        };
        let size = match outcome {
            Outcome::Stored { size, .. } => *size,
            _ => store.len(),
        };
        let (mode, status) = (store.mode, store_status(outcome));
        let ttl = left(expiry, now).unwrap_or(0);
        self.watchers.log(&LogEntry::Store { key, mode, status, ttl, size, cfd });
    }

    /// A counter that was not there was stored, or anything else but a store changed an object.
    pub(super) fn log_change(
        &self,
        key: &[u8],
        action: &Action<'_>,
        found: Result<&Hit, MissReason>,
        outcome: &Outcome<'_>,
        cfd: i32,
    ) {
        self.log_fetch(key, found, cfd);
        match action {
            Action::Store(store) => self.log_store(key, store, found.ok(), outcome, cfd),
            Action::Arithmetic(arithmetic) => {
                if let (Err(_), Outcome::Number { value, .. }, Some((_, ttl))) =
                    (found, outcome, arithmetic.initial)
                {
                    let now = self.store.now();
                    let ttl = left(expiry_of(ttl, now), now).unwrap_or(0);
                    let size = value.to_string().len();
                    let (mode, status) = (Mode::Add, "stored");
                    self.watchers.log(&LogEntry::Store { key, mode, status, ttl, size, cfd });
                }
            }
            Action::Get(_) | Action::Delete(_) => {}
        }
    }

    /// A store was refused before its value had come, for it is too large.
    pub(super) fn log_too_large(&self, key: &[u8], mode: Mode, cfd: i32) {
        let (status, ttl, size) = ("too_large", 0, 0);
        self.watchers.log(&LogEntry::Store { key, mode, status, ttl, size, cfd });
    }

    /// An object left memory, and flash did not take it. Called under a lock of the cache.
    pub(super) fn log_eviction(&self, evicted: &Listed<'_>) {
        if !self.watchers.want_any(Topics::EVICTIONS) {
            return;
        }
        let now = self.store.now();
        let Some(item) = self.store.listed(evicted, now) else { return };
        let (ttl, size) = (left(item.expiry, now), item.len());
        let (key, fetched, idle) = (evicted.key, item.fetched, item.idle);
        self.watchers.log(&LogEntry::Eviction { key, fetched, ttl, idle, size });
    }
}

/// Seconds left until an object expires; `None` for never.
fn left(expiry: u32, now: u64) -> Option<u32> {
    (expiry != afterglow_memcache::NEVER)
        .then(|| u32::try_from(u64::from(expiry).saturating_sub(now)).unwrap_or(u32::MAX))
}
