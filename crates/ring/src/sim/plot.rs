//! What a plan is made of: faults and the other turns of a plot.

use crate::config::Time;

/// A millisecond.
pub const MS: Time = 1_000;

/// How much a write of a scene is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    One,
    Both,
    All,
    /// The row is made by the database. Owners are asked as for everything.
    Made,
}

/// A fault, or another turn of the plot. Members are told by their place in the cast: the order of
/// their numbers, or, from a `Cast` on, the owner of a row first.
#[derive(Debug, Clone)]
pub enum Fault {
    Pause {
        node: usize,
        time: Time,
    },
    Kill {
        node: usize,
        back: Option<Time>,
        lost: bool,
    },
    /// Messages from one to the other are lost; both ways where `both`.
    Cut {
        from: usize,
        to: usize,
        both: bool,
        time: Time,
    },
    /// No messages between this one and all others.
    Isolate {
        node: usize,
        time: Time,
    },
    /// The members are in two halves.
    Split {
        at: usize,
        time: Time,
    },
    /// The database does not answer this one.
    NoDatabase {
        node: usize,
        time: Time,
    },
    /// The database does nothing for anybody.
    DatabaseDown {
        time: Time,
    },
    /// It answers reads, and refuses every change of the map.
    DatabaseRefuses {
        time: Time,
    },
    Join,
    Leave {
        node: usize,
    },
    /// All that run leave at once.
    LeaveAll,
    /// The next transactions of this member wait long before they are executed.
    Queue {
        node: usize,
        time: Time,
    },
    /// The owner of the row is the first of the cast, the others follow in some order.
    Cast {
        row: usize,
    },
    /// Something goes wrong when this one next does that.
    Trap {
        node: usize,
        deed: Deed,
        snare: Snare,
    },
    /// A client writes the row, or also the one after it, or everything.
    Write {
        node: usize,
        row: usize,
        extent: Extent,
        weak: bool,
    },
    /// A client reads.
    Read {
        node: usize,
        row: usize,
    },
    /// A member asks for the shard of a row.
    Move {
        to: usize,
        row: usize,
    },
    /// The version moves on with no other change.
    Bump,
    /// Answers to this one's reads of the map are late.
    SlowMap {
        node: usize,
        time: Time,
    },
    /// What others say to this one of newer maps comes late.
    LateNews {
        node: usize,
        time: Time,
    },
    /// The operator says on all members whether rows are cached, within this time.
    Policy {
        caches: bool,
        spread: Time,
    },
    /// Somebody writes past the ring, if no member caches.
    WritePast {
        row: usize,
    },
    /// The keyspace gets more replicas, which lack all rows.
    Grow,
    /// They get them.
    Repair,
    /// The schema changes in what touches no row of ours. Members may distrust rows of before.
    OtherTable {
        distrusts: bool,
    },
    /// This one hears of no change of the schema.
    Deaf {
        node: usize,
        time: Time,
    },
    /// A machine that reaches the database and no member, in the calm.
    Outsider {
        time: Time,
    },
    /// A member loses the database alone, in the calm.
    Blind {
        time: Time,
    },
    /// The keeper of a member hangs, in the calm.
    Hang {
        time: Time,
    },
    /// All lose the database, in the calm.
    Outage {
        time: Time,
    },
    /// The only owner dies, in the calm, and all others leave.
    Bereave,
    /// A member stops while a write of its waits for one owner, in the calm.
    StopAsking,
    /// A row moves while it is written, in the calm.
    MoveWritten,
    /// The database loses the map, in the calm.
    Forget,
    /// A member stops as it is told, and is back after that time.
    Stop {
        node: usize,
        back: Time,
    },
    /// A member loses all others, in the calm, but not the database.
    Hermit {
        time: Time,
    },
}

/// What a process does, as far as traps wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Begin,
    Grant,
    Drop,
    Dropped,
    End,
    Get,
    Found,
    Pull,
    Pulled,
    HandoverWanted,
    Handover,
    Ping,
    Pong,
    MapIs,
    ReadMap,
    Transact,
    ReadRow,
    SendWrite,
    Acknowledge,
}

/// What a trap does.
#[derive(Debug, Clone)]
pub enum Snare {
    /// It reaches its destination so much later.
    Late(Time),
    /// It is lost.
    Lose,
    /// A message comes once more, so much later.
    Again(Time),
    /// This happens first; it may be the end of the process.
    First(Box<Fault>),
    /// This happens right after it.
    Then(Box<Fault>),
}

/// A trap that waits for a process.
#[derive(Debug)]
pub struct Trap {
    pub node: usize,
    pub deed: Deed,
    pub snare: Snare,
    pub until: Time,
}
