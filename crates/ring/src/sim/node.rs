//! A simulated process: its clock, its cache, what waits while it stands still.

use std::collections::{BTreeMap, VecDeque};

use super::event::Input;
use super::plot::MS;
use crate::config::Time;
use crate::custody::{Durable, Kept};
use crate::identity::PermitKey;
use crate::io::{Action, Rows, WriteBody};
use crate::map::Setting;
use crate::member::Member;
use crate::message::{Detail, Outcome, RowKey, Scope};
use crate::schema::SchemaVersion;

/// The settings of a member.
pub fn settings(caches: bool) -> Vec<Setting> {
    let value = if caches { "exclusive" } else { "off" };
    vec![Setting { name: "table-policy".into(), value: value.into() }]
}

/// What a write says that does no more than make a row.
const MAKES: &[u8] = b"makes";

/// The same, of this token.
pub fn makes(token: i64) -> Detail {
    [MAKES, &token.to_le_bytes()].concat().into()
}

/// Each row is of a table that few others are of.
pub fn bit_of(token: i64) -> u64 {
    1 << (token & 63)
}

/// How long a row lives that may miss writes.
pub const WEAK: Time = 300 * MS;

/// A row and the epoch that it was cached in. One that may miss writes has its end behind its
/// bytes, on the instance's clock; on its way to another instance, how much of its time is left.
pub type CachedRow = (u64, Option<Vec<u8>>);

/// The bytes of a row, and what is behind them.
const ROW: usize = 8;

/// The write that a row shows, 0 for none.
pub fn stamp_of(row: Option<&Vec<u8>>) -> u64 {
    row.map_or(0, |row| u64::from_le_bytes(row[..ROW].try_into().expect("a row of eight bytes")))
}

/// What is behind the bytes of a row.
fn bound_of(row: &[u8]) -> Option<Time> {
    row.get(ROW..)?.try_into().ok().map(u64::from_le_bytes)
}

fn with_bound(row: Option<&Vec<u8>>, bound: Time) -> Vec<u8> {
    [stamp_of(row).to_le_bytes(), bound.to_le_bytes()].concat()
}

/// The cached rows of an instance. They outlive its process, and so do the gates of writes that it
/// has granted: nothing is cached of these before they have ended.
#[derive(Debug, Default, Clone)]
pub struct SimRows {
    pub rows: BTreeMap<i64, CachedRow>,
    granted: BTreeMap<PermitKey, Vec<Scope>>,
    /// What was granted by processes that have died, and what was written to everything with an
    /// unknown outcome; each with its end.
    held: Vec<(Scope, Time)>,
    /// How long a write of everything is held whose outcome is unknown, where its gates are the
    /// rows' own: see [`Config::weak_fills`](crate::Config::weak_fills).
    pub hold: Option<Time>,
    /// On the instance's clock.
    pub now: Time,
    /// Nothing is served or cached, because of the settings.
    pub idle: bool,
    /// Until when fills may miss writes, as this instance has heard itself.
    pub weak_until: Time,
}

impl SimRows {
    /// What is cached of a row, unless its time is over.
    pub fn live(&self, token: i64) -> Option<&CachedRow> {
        let over = |row: &Vec<u8>| bound_of(row).is_some_and(|end| end <= self.now);
        self.rows.get(&token).filter(|(_, row)| !self.idle && !row.as_ref().is_some_and(over))
    }

    /// The process has died. `until`: when what it has granted cannot be applied any more; `None`
    /// where the ring's own state keeps that.
    pub fn died(&mut self, until: Option<Time>) {
        let granted = std::mem::take(&mut self.granted);
        if let Some(until) = until {
            self.held.extend(granted.into_values().flatten().map(|scope| (scope, until)));
        }
    }

    /// Whether an earlier process has granted a write to this token that may still be applied, or
    /// the rows' own gate of everything is closed.
    pub fn holds(&self, token: i64) -> bool {
        let touches = |scope: &Scope| matches!(scope, Scope::All) || *scope == Scope::Token(token);
        let is_written = || self.granted.values().flatten().any(|scope| *scope == Scope::All);
        self.held.iter().any(|(scope, until)| *until > self.now && touches(scope))
            || self.hold.is_some() && is_written()
    }

    fn ended(&mut self, write: PermitKey) -> Vec<Scope> {
        self.granted.remove(&write).expect("a write ends that has begun")
    }
}

impl Rows for SimRows {
    /// Bytes that say of no row how long it lives would say that there is one.
    fn get(&self, key: &RowKey) -> Option<(u64, Option<Vec<u8>>)> {
        let (epoch, row) = self.live(key.token)?;
        if row.is_some() && stamp_of(row.as_ref()) == 0 {
            return None;
        }
        let end = row.as_ref().and_then(|row| bound_of(row));
        let left = end.map(|end| with_bound(row.as_ref(), end - self.now));
        Some((*epoch, left.or_else(|| row.clone())))
    }

    fn is_idle(&self) -> bool {
        self.idle
    }

    fn is_held(&self, key: &RowKey) -> bool {
        self.holds(key.token)
    }

    fn makes_rows(&self, detail: &Detail) -> Option<u64> {
        let token = detail.strip_prefix(MAKES)?.try_into().ok()?;
        Some(bit_of(i64::from_le_bytes(token)))
    }

    fn table_bit(&self, key: &RowKey) -> u64 {
        bit_of(key.token)
    }

    fn install(
        &mut self,
        key: &RowKey,
        (epoch, began): (u64, Time),
        row: Option<Vec<u8>>,
        weak: bool,
    ) {
        assert!(!self.holds(key.token), "no fill begins while the rows hold the key");
        if self.idle {
            return;
        }
        // A database that answers late does not lengthen it.
        let weak = (weak || self.now < self.weak_until).then_some(began + WEAK);
        let left = row.as_ref().and_then(|row| bound_of(row));
        let end = [weak, left.map(|left| self.now + left)].into_iter().flatten().min();
        let bounded = end.map(|end| with_bound(row.as_ref(), end));
        self.rows.insert(key.token, (epoch, bounded.or(row)));
    }

    fn begin(&mut self, write: PermitKey, body: WriteBody<'_>) {
        self.forget(body, false);
        self.granted.entry(write).or_default().extend(body.scopes);
    }

    fn end(&mut self, write: PermitKey, outcome: Outcome) {
        let scopes = self.ended(write);
        if let Some(hold) = self.hold
            && matches!(outcome, Outcome::Unknown | Outcome::Decided)
            && scopes.contains(&Scope::All)
        {
            self.held.push((Scope::All, self.now + hold));
        }
    }

    fn run_out(&mut self, write: PermitKey) {
        self.ended(write);
    }

    fn forget(&mut self, body: WriteBody<'_>, _: bool) {
        let only_makes = self.makes_rows(body.detail).is_some();
        for scope in body.scopes {
            match scope {
                Scope::Token(token) => drop(self.rows.remove(token)),
                Scope::All => {
                    self.rows.retain(|_, (_, row)| only_makes && stamp_of(row.as_ref()) > 0)
                }
            }
        }
    }

    fn drop_all(&mut self) {
        self.rows.clear();
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
    /// What the process had written down at some time, see [`Kept`].
    pub kept: Kept,
    /// Clock: an offset, and how many millionths it is too fast.
    pub offset: Time,
    pub fast: u64,
    /// Which process this is.
    pub life: u64,
    /// When it started.
    pub started: Time,
    /// Until when it stands still.
    pub paused: Time,
    /// Until when no time passes for its member: its keeper hangs.
    pub hangs: Time,
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
    /// Whether its settings say that rows are cached.
    pub caches: bool,
    /// Up to where it has heard of changes that touch rows of ours.
    pub heard: u128,
    /// Of how many changes it has heard that touch no row of ours.
    pub others: u128,
    /// It hears of no change of the schema before this time.
    pub deaf: Time,
}

impl Node {
    pub fn new(offset: Time, fast: u64) -> Self {
        Self {
            member: None,
            durable: Durable::default(),
            rows: SimRows::default(),
            archive: BTreeMap::new(),
            kept: Kept::default(),
            offset,
            fast,
            life: 0,
            started: 0,
            paused: 0,
            hangs: 0,
            undone: VecDeque::new(),
            inbox: VecDeque::new(),
            queued: 0,
            no_database: 0,
            slow_map: 0,
            late_news: 0,
            back: None,
            gone: false,
            clients: Vec::new(),
            caches: true,
            heard: 0,
            others: 0,
            deaf: 0,
        }
    }

    /// The version of the schema up to which it has heard of changes.
    pub fn version(&self) -> SchemaVersion {
        SchemaVersion(self.heard | self.others << 64)
    }

    /// Its clock at a time.
    pub fn clock(&self, now: Time) -> Time {
        self.offset + now + now * self.fast / 1_000_000
    }
}
