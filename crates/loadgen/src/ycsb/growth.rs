//! Records that are added while others are read: YCSB's `AcknowledgedCounterGenerator`.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Numbers of inserts. A record may be asked for once its insert, and each before it, is
/// acknowledged.
#[derive(Debug)]
pub struct Growth {
    next: AtomicU64,
    limit: AtomicU64,
    /// Acknowledged, above the limit.
    early: Mutex<BTreeSet<u64>>,
}

impl Growth {
    /// The records below `present` are there.
    pub fn new(present: u64) -> Self {
        let (next, limit) = (AtomicU64::new(present), AtomicU64::new(present));
        Self { next, limit, early: Mutex::default() }
    }

    /// The number of the next insert.
    pub fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Below this all numbers may have been written.
    pub fn issued(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Below this all records are there.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// The insert of `number` is acknowledged.
    pub fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        early.insert(number);
        let mut limit = self.limit();
        while early.remove(&limit) {
            limit += 1;
        }
        self.limit.store(limit, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_once_all_before_it_are_acknowledged() {
        let growth = Growth::new(10);
        assert_eq!([growth.next(), growth.next(), growth.next()], [10, 11, 12]);
        assert_eq!((growth.issued(), growth.limit()), (13, 10));
        growth.acknowledge(11);
        assert_eq!(growth.limit(), 10);
        growth.acknowledge(10);
        assert_eq!(growth.limit(), 12);
        growth.acknowledge(12);
        assert_eq!(growth.limit(), 13);
    }
}
