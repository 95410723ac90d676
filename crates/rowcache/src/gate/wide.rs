//! The gates of tables and of the cache as a whole, and until when a gate is held.

use std::collections::HashMap;

use crate::clock::Millis;

/// What a write may touch, as gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateScope {
    /// Partitions, each by the slot of its token.
    Slots(Vec<u32>),
    /// Any row of a table, named by its group.
    Table(u32),
    /// Any row at all.
    Everything,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The database said what it did.
    Definite,
    /// It is unknown whether, or when, it takes effect. No fill starts before `hold_until`.
    Unknown {
        /// First moment at which fills may start again.
        hold_until: Millis,
    },
    /// It took effect on so few replicas that a fill may miss it.
    Weak {
        /// First moment at which fills may be long-lived again.
        until: Millis,
    },
}

/// Why a read is a bypass: it goes to the database without leading or joining a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bypass {
    /// A write that may touch the row is in flight.
    WriteInFlight,
    /// The outcome of an earlier write is unknown.
    Quarantined,
    /// The row was too large to cache a moment ago, and no write has begun since.
    TooLarge,
}

/// Until when a gate is closed or weak after its last write. Later ends win over earlier ones.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Hold {
    pub(super) closed_until: Millis,
    pub(super) weak_until: Millis,
}

impl Hold {
    pub(super) fn add(&mut self, settled: Settled) {
        match settled {
            Settled::Definite => {}
            Settled::Unknown { hold_until } => {
                self.closed_until = self.closed_until.max(hold_until)
            }
            Settled::Weak { until } => self.weak_until = self.weak_until.max(until),
        }
    }

    pub(super) fn is_over(&self, now: Millis) -> bool {
        self.closed_until <= now && self.weak_until <= now
    }
}

#[derive(Default)]
pub(super) struct WideGate {
    pub(super) version: u64,
    pub(super) writers: u32,
    pub(super) hold: Hold,
}

#[derive(Default)]
pub(super) struct Wide {
    pub(super) all: WideGate,
    /// By the lower half of the table's number. That bounds their count, whatever names statements
    /// invent. Tables that share a gate share their writes.
    pub(super) tables: HashMap<u16, WideGate>,
}

impl Wide {
    pub(super) fn gate_mut(&mut self, scope: &GateScope) -> &mut WideGate {
        match scope {
            GateScope::Table(group) => self.tables.entry(*group as u16).or_default(),
            GateScope::Everything => &mut self.all,
            GateScope::Slots(_) => unreachable!("slots have their own gates"),
        }
    }

    fn table(&self, table: u32) -> Option<&WideGate> {
        self.tables.get(&(table as u16))
    }

    pub(super) fn version_of(&self, table: u32) -> u64 {
        // Both only grow, so their sum moves whenever either does.
        self.all.version + self.table(table).map_or(0, |gate| gate.version)
    }

    pub(super) fn closed(&self, table: u32, now: Millis) -> Option<Bypass> {
        let gates = [Some(&self.all), self.table(table)];
        let gates = gates.iter().flatten();
        if gates.clone().any(|gate| gate.writers > 0) {
            return Some(Bypass::WriteInFlight);
        }
        gates.clone().any(|gate| gate.hold.closed_until > now).then_some(Bypass::Quarantined)
    }

    pub(super) fn writers(&self, table: u32) -> u32 {
        self.all.writers + self.table(table).map_or(0, |gate| gate.writers)
    }

    pub(super) fn is_held(&self, table: u32, now: Millis) -> bool {
        let table = self.table(table);
        [Some(&self.all), table].iter().flatten().any(|gate| !gate.hold.is_over(now))
    }

    pub(super) fn is_weak(&self, table: u32, now: Millis) -> bool {
        let table = self.table(table);
        self.all.hold.weak_until > now || table.is_some_and(|gate| gate.hold.weak_until > now)
    }
}
