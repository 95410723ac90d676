//! The queue of events of a run, in the order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::plot::Fault;
use crate::config::Time;
use crate::io::{TransactionResult, WriteResult};
use crate::map::Map;
use crate::message::{Detail, Envelope, RowKey, Scope};
use crate::schema::SchemaVersion;

/// What reaches a process.
#[derive(Debug, Clone)]
pub enum Input {
    Message(Envelope),
    Tick,
    MapRead(u64, Option<Arc<Map>>),
    Transacted(u64, TransactionResult),
    RowRead(u64, Result<Option<Vec<u8>>, ()>),
    Written(u64, WriteResult),
    Read(u64, RowKey),
    Write(u64, Vec<Scope>, Detail),
    Leave,
    /// Refuses all writes that wait for their permits.
    Refuse,
    /// Asks for a shard.
    Want(usize),
    /// Moves the version on.
    MoveOn,
    /// The operator says whether rows are cached.
    Policy(bool),
    /// The schema has changed, up to this version.
    Heard(u128),
    /// The schema has so many changes that touch no row of ours. This one may have rows of before
    /// distrusted.
    HeardOther {
        others: u128,
        distrusts: bool,
    },
    /// It has read the schema of this version.
    Noted(SchemaVersion),
    /// The map's table was dropped or made anew; it may be gone.
    Doubt(bool),
}

#[derive(Debug, Clone)]
pub enum Event {
    /// To the process of this number, or to whichever runs.
    Input(usize, Option<u64>, Input),
    ReadMap(usize, u64, u64),
    Transact(usize, u64, u64, Arc<Map>),
    /// A read of a row: of whom, process and number, which row, of which replicas when, and by how
    /// much its answer is late.
    ReadRow(usize, (u64, u64), usize, [(usize, Time); 2], Time),
    Fault(Fault),
    Resume(usize),
    /// A machine stands still for so long.
    Faint(usize, Time),
    Restart(usize),
    /// A process refuses what waits and ends, for so long.
    Stop(usize, Time),
    Client,
    /// A read of a row at a member.
    ReadAt(usize, usize),
    Check,
    Heal,
    /// A write past the ring is acknowledged.
    WrittenPast(u64),
}

struct Entry(Time, u64, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.0, other.1).cmp(&(self.0, self.1))
    }
}

#[derive(Default)]
pub struct Queue {
    heap: BinaryHeap<Entry>,
    next: u64,
}

impl Queue {
    pub fn push(&mut self, at: Time, event: Event) {
        self.next += 1;
        self.heap.push(Entry(at, self.next, event));
    }

    pub fn pop(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|entry| (entry.0, entry.2))
    }
}
