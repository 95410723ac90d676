//! A simulated process: its clock, its cache, what waits while it stands still.

use std::collections::{BTreeMap, VecDeque};

use super::event::Input;
use crate::config::Time;
use crate::custody::Durable;
use crate::io::{Action, Rows};
use crate::member::Member;
use crate::message::RowKey;

/// A row and the epoch that it was cached in.
pub type CachedRow = (u64, Option<Vec<u8>>);

#[derive(Debug, Default, Clone)]
pub struct SimRows(pub BTreeMap<i64, CachedRow>);

impl Rows for SimRows {
    fn get(&self, key: &RowKey) -> Option<(u64, Option<Vec<u8>>)> {
        self.0.get(&key.token).cloned()
    }

    fn install(&mut self, key: &RowKey, epoch: u64, row: Option<Vec<u8>>) {
        self.0.insert(key.token, (epoch, row));
    }

    fn drop_token(&mut self, token: i64) {
        self.0.remove(&token);
    }

    fn drop_all(&mut self) {
        self.0.clear();
    }
}

#[derive(Debug)]
pub struct Node {
    pub member: Option<Member>,
    /// What the last process left.
    pub durable: Durable,
    pub rows: SimRows,
    /// The rows as they once were.
    pub archive: BTreeMap<i64, CachedRow>,
    /// Clock: an offset, and how many millionths it is too fast.
    pub offset: Time,
    pub fast: u64,
    /// Which process this is.
    pub life: u64,
    /// Until when it stands still.
    pub paused: Time,
    /// What it will do first when it goes on.
    pub undone: VecDeque<Action>,
    pub inbox: VecDeque<Input>,
    /// Transactions wait long before this time.
    pub queued: Time,
    pub no_database: Time,
    /// Its reads of the map are answered late before this time.
    pub slow_map: Time,
    /// Maps that others send it are late before this time.
    pub late_news: Time,
    /// It comes back then.
    pub back: Option<(Time, bool)>,
    /// It has left, or is dead for good.
    pub gone: bool,
    /// Requests of clients that it works on.
    pub clients: Vec<u64>,
}

impl Node {
    pub fn new(offset: Time, fast: u64) -> Self {
        Self {
            member: None,
            durable: Durable::default(),
            rows: SimRows::default(),
            archive: BTreeMap::new(),
            offset,
            fast,
            life: 0,
            paused: 0,
            undone: VecDeque::new(),
            inbox: VecDeque::new(),
            queued: 0,
            no_database: 0,
            slow_map: 0,
            late_news: 0,
            back: None,
            gone: false,
            clients: Vec::new(),
        }
    }

    /// Its clock at a time.
    pub fn clock(&self, now: Time) -> Time {
        self.offset + now + now * self.fast / 1_000_000
    }
}
