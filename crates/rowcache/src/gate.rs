//! Version gates: they keep a fill from installing a value that a write has made stale.
//!
//! Every partition belongs to one of [`SLOTS`] slots, every slot has a gate, and so has every table
//! and the cache as a whole. Writes and fills use the gates in this order. It is the lease of
//! "Scaling Memcache at Facebook" (NSDI'13), but fills are closed out for as long as the write is
//! in flight:
//!
//! ```text
//!   write   begin: version + 1, writers + 1 | drop from the cache | send to the database | settle: writers - 1
//!                                                                                        (unknown: hold)
//!   fill    join: note the versions         | read from the database | finish: install only if no version moved
//! ```
//!
//! Invariants:
//! - While `writers > 0`, or a hold lasts, no fill starts. So no fill can install later what it
//!   read during the write.
//! - Check and install are one step under the slot's lock. A write that begins before it makes the
//!   check fail; one that begins after it finds the entry and drops it.
//! - A row may be replaced by the write that dropped it, once that is acknowledged. No other write
//!   that may touch the row was in flight when it began or has begun since, and no gate is held or
//!   weak. So what it replaces is what the database had before it.
//! - A write that a quorum read may miss (`W + R <= RF`) leaves its gates *weak* for a while. Fills
//!   go on, but what they install must be short-lived.
//! - A read joins a fill in flight only if no write has begun since the fill started. Then every
//!   write acknowledged before the read came is older than the fill's own read of the database.
//! - A read joins no fill that began under another claim. Between the two somebody else may have
//!   had the row, and may have let writes pass that no gate here knows of.
//! - A read joins no fill that has taken long. The node that was asked may be gone, and a retry
//!   must not wait for it too. So several fills of a row may be in flight. No older fill replaces
//!   what a later one installed. Reads of a row may be served from its partition's unit, so this
//!   holds between the two as well. Nor is it joined any more: a read may have seen the later one.
//! - A unit may come back although writes began ([`amendments`]), if each is known by its row, and
//!   each row was read after the last of its writes. Until then it is not served.
//!
//! Lock order: the wide gates (shared for fills, exclusive for wide writes), then one stripe, then
//! the rows that are too large.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use afterglow_cql::plan::unit_part;
use parking_lot::{Mutex, RwLock};

use crate::clock::Millis;
use crate::stamp::Stamp;
use crate::too_large::TooLarge;

mod amendment;
mod amendments;
mod wide;

pub use amendment::AWAITED_FOR;
use amendment::Amendment;
pub(crate) use amendments::{Acknowledged, Amended, AmendmentId, Reread, Share};
pub use wide::{Bypass, GateScope, Settled};
use wide::{Hold, Wide};

/// Gates for partitions. The engine's partition epochs have as many, by the same top bits of the
/// token.
pub const SLOTS: u32 = 1 << SLOT_BITS;
/// Bits of a token that name its slot.
pub const SLOT_BITS: u32 = 20;
const SLOTS_PER_STRIPE: u32 = 1 << 10;
const STRIPES: u32 = SLOTS / SLOTS_PER_STRIPE;

/// A read joins no fill that is older than this. Most fills take a hundredth of it.
const JOINED_FOR: Millis = 1_000;
/// So many rows that are newer than a unit in flight are remembered; with more it is not installed.
const MOST_NEWER_ROWS: usize = 64;

/// The slot of a token: its top bits.
pub fn slot_of(token: u64) -> u32 {
    (token >> (64 - SLOT_BITS)) as u32
}

/// What a read does after a miss.
pub enum Join<W> {
    /// Read the row from the database and [`Ticket::finish`].
    Lead(Ticket<W>),
    /// Another read leads. The waiter is told of its result.
    Wait,
    /// Ask the database with the client's own statement and install nothing.
    Bypass(Bypass),
}

/// The outcome of a finished fill.
pub struct FinishedFill<W> {
    /// Whether the value was installed. False if a write began since the fill did, or a younger
    /// fill has installed.
    pub installed: bool,
    /// Reads that waited for the result.
    pub waiters: Vec<W>,
    /// The writes that had begun when the fill began.
    pub stamp: Stamp,
}

#[derive(Default, Clone, Copy)]
struct Slot {
    /// Counts every write that begins. A fill lasts seconds, so 32 bits cannot wrap around
    /// meanwhile.
    version: u32,
    writers: u32,
}

struct RunningFill<W> {
    id: u64,
    /// See [`Gates::join`].
    claim: u64,
    stamp: Stamp,
    since: Millis,
    /// A younger fill has installed its row.
    barred: bool,
    /// Of a unit: rows that younger fills have installed.
    newer_rows: Vec<Box<[u8]>>,
    waiters: Vec<W>,
}

impl<W> RunningFill<W> {
    fn bar(&mut self) {
        self.barred = true;
    }

    fn note_newer(&mut self, row: &[u8]) {
        match self.newer_rows.len() < MOST_NEWER_ROWS {
            true => self.newer_rows.push(row.into()),
            false => self.bar(),
        }
    }
}

struct Stripe<W> {
    slots: Box<[Slot]>,
    /// Slots that are closed or weak for a while, at most one entry per slot.
    holds: HashMap<u32, Hold>,
    /// Fills in flight, by key, the oldest first. Only the last of a key can be joined. The others
    /// have been overtaken or are slow.
    fills: HashMap<Box<[u8]>, Vec<RunningFill<W>>>,
    /// Units that are written, by key.
    amendments: HashMap<Box<[u8]>, Amendment<W>>,
    next_fill: u64,
}

impl<W> Stripe<W> {
    fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[(slot % SLOTS_PER_STRIPE) as usize]
    }

    /// A write begins.
    fn close(&mut self, slot: u32) {
        let gate = self.slot(slot);
        gate.version = gate.version.wrapping_add(1);
        gate.writers += 1;
    }

    /// Which writes have begun so far that may touch rows of a table in a slot.
    fn stamp(&mut self, wide: &Wide, table: u32, slot: u32) -> Stamp {
        Stamp { slot: self.slot(slot).version, wide: wide.version_of(table) }
    }

    fn closed(&mut self, slot: u32, now: Millis) -> Option<Bypass> {
        if self.slot(slot).writers > 0 {
            return Some(Bypass::WriteInFlight);
        }
        let hold = self.holds.get(&slot)?;
        if hold.is_over(now) {
            self.holds.remove(&slot);
            return None;
        }
        (hold.closed_until > now).then_some(Bypass::Quarantined)
    }

    fn is_weak(&self, slot: u32, now: Millis) -> bool {
        self.holds.get(&slot).is_some_and(|hold| hold.weak_until > now)
    }

    fn is_held(&self, slot: u32, now: Millis) -> bool {
        self.holds.get(&slot).is_some_and(|hold| !hold.is_over(now))
    }

    /// Whether a fill that begins now may miss an acknowledged write.
    fn is_doubted(&self, wide: &Wide, (table, slot): (u32, u32), now: Millis) -> bool {
        wide.is_held(table, now) || self.is_held(slot, now)
    }

    /// The new fill's id.
    fn begin_fill(&mut self, key: &[u8], stamp: Stamp, now: Millis, claim: u64) -> u64 {
        let id = self.next_fill;
        self.next_fill += 1;
        let (newer_rows, waiters) = (Vec::new(), Vec::new());
        let fill = RunningFill { id, claim, stamp, since: now, barred: false, newer_rows, waiters };
        self.fills.entry(key.into()).or_default().push(fill);
        id
    }

    fn take_fill(&mut self, key: &[u8], id: u64) -> Option<RunningFill<W>> {
        let fills = self.fills.get_mut(key)?;
        let at = fills.iter().position(|fill| fill.id == id)?;
        let fill = fills.remove(at);
        if fills.is_empty() {
            self.fills.remove(key);
        }
        Some(fill)
    }

    /// Something with this key is installed. Older fills of the key must not install what they
    /// read. Nor must those of a unit's rows, and a fill of a row's unit must not install that row.
    fn bar_older(&mut self, key: &[u8], than: u64) {
        let older = |fills: &mut Vec<RunningFill<W>>, then: &dyn Fn(&mut RunningFill<W>)| {
            fills.iter_mut().filter(|fill| fill.id < than).for_each(then);
        };
        let unit = unit_part(key);
        if unit.len() < key.len() {
            self.fills.get_mut(key).into_iter().for_each(|fills| older(fills, &|f| f.bar()));
            let of_unit = self.fills.get_mut(unit).into_iter();
            of_unit.for_each(|fills| older(fills, &|fill| fill.note_newer(key)));
            self.amendments.get_mut(unit).into_iter().for_each(|one| one.note_newer(key));
        } else {
            let kin = self.fills.iter_mut().filter(|(other, _)| unit_part(other) == unit);
            kin.for_each(|(_, fills)| older(fills, &|fill| fill.bar()));
        }
    }
}

/// All gates. `W` is the means to tell a waiting read of the result.
///
/// Memory: 8 bytes per slot (8 MiB). Each fill in flight, each held slot and each table that was
/// written as a whole has an entry. A bounded number of rows that are too large is remembered.
pub struct Gates<W> {
    wide: RwLock<Wide>,
    stripes: Box<[Mutex<Stripe<W>>]>,
    /// Stripes that may have amendments, a bit each. Set and cleared under the stripe's lock.
    amending: Box<[AtomicU64]>,
    too_large: TooLarge,
}

impl<W> Default for Gates<W> {
    fn default() -> Self {
        let stripe = || {
            Mutex::new(Stripe {
                slots: vec![Slot::default(); SLOTS_PER_STRIPE as usize].into_boxed_slice(),
                holds: HashMap::new(),
                fills: HashMap::new(),
                amendments: HashMap::new(),
                next_fill: 0,
            })
        };
        let stripes = (0..STRIPES).map(|_| stripe()).collect();
        let amending = (0..STRIPES.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect();
        Gates { wide: RwLock::default(), stripes, amending, too_large: TooLarge::default() }
    }
}

impl<W> Gates<W> {
    /// All gates open.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn stripe(&self, slot: u32) -> &Mutex<Stripe<W>> {
        &self.stripes[(slot / SLOTS_PER_STRIPE) as usize]
    }

    /// Closes the gates of `scope`: no fill starts, and fills in flight are not installed. Must
    /// come before the cached rows are dropped and the write is sent. Every call needs one
    /// [`Gates::end_write`].
    pub fn begin_write(&self, scope: &GateScope) {
        if let GateScope::Slots(slots) = scope {
            for &slot in slots {
                let mut stripe = self.stripe(slot).lock();
                stripe.close(slot);
                let ended = stripe.end_amendments(slot);
                drop(stripe);
                drop(ended); // outside the lock: a waiter's end may run foreign code
            }
            return;
        }
        let mut wide = self.wide.write();
        let gate = wide.gate_mut(scope);
        gate.version += 1;
        gate.writers += 1;
        drop(wide);
        self.end_overtaken();
    }

    /// Opens the gates again, at once or after a hold.
    pub fn end_write(&self, scope: &GateScope, settled: Settled) {
        if let GateScope::Slots(slots) = scope {
            for &slot in slots {
                let mut stripe = self.stripe(slot).lock();
                let gate = stripe.slot(slot);
                gate.writers = gate.writers.checked_sub(1).expect("each end follows its begin");
                if settled != Settled::Definite {
                    stripe.holds.entry(slot).or_default().add(settled);
                }
            }
            return;
        }
        let mut wide = self.wide.write();
        let gate = wide.gate_mut(scope);
        gate.writers = gate.writers.checked_sub(1).expect("each end follows its begin");
        gate.hold.add(settled);
    }

    /// Holds what a write of unknown outcome may touch. For writes that an earlier run left behind.
    pub fn hold(&self, scope: &GateScope, until: Millis) {
        self.begin_write(scope);
        self.end_write(scope, Settled::Unknown { hold_until: until });
    }

    /// Makes fills short-lived that may miss what an earlier run wrote.
    pub fn weaken(&self, scope: &GateScope, until: Millis) {
        self.begin_write(scope);
        self.end_write(scope, Settled::Weak { until });
    }

    /// Slots and wide gates that are held now.
    pub fn held(&self, now: Millis) -> usize {
        let wide = self.wide.read();
        let wide_held = std::iter::once(&wide.all).chain(wide.tables.values());
        let wide_held = wide_held.filter(|gate| gate.hold.closed_until > now).count();
        drop(wide);
        let held = |hold: &&Hold| hold.closed_until > now;
        let slots = |stripe: &Mutex<Stripe<W>>| stripe.lock().holds.values().filter(held).count();
        wide_held + self.stripes.iter().map(slots).sum::<usize>()
    }

    /// Whether no gate is closed or weak, now or for a while.
    pub fn is_settled(&self, now: Millis) -> bool {
        let wide = self.wide.read();
        let mut gates = std::iter::once(&wide.all).chain(wide.tables.values());
        let settled = gates.all(|gate| gate.writers == 0 && gate.hold.is_over(now));
        drop(wide);
        settled
            && self.stripes.iter().all(|stripe| {
                let stripe = stripe.lock();
                stripe.holds.values().all(|hold| hold.is_over(now))
                    && stripe.slots.iter().all(|slot| slot.writers == 0)
            })
    }

    /// What a read does after a miss of `key` (of `table`, in `slot`). `waiter` is called only if
    /// the answer is [`Join::Wait`]. `tolerant`: what it installs is short-lived anyway. Then
    /// unknown outcomes need not stop it, because no client was told of those writes. `claim`:
    /// under what it is permitted; it joins no fill of another.
    pub fn join(
        self: &Arc<Self>,
        (table, slot, key): (u32, u32, &[u8]),
        now: Millis,
        tolerant: bool,
        claim: u64,
        waiter: impl FnOnce() -> W,
    ) -> Join<W> {
        let stops = |bypass: &Bypass| !(tolerant && *bypass == Bypass::Quarantined);
        let wide = self.wide.read();
        if let Some(bypass) = wide.closed(table, now).filter(stops) {
            return Join::Bypass(bypass);
        }
        let mut stripe = self.stripe(slot).lock();
        if let Some(bypass) = stripe.closed(slot, now).filter(stops) {
            return Join::Bypass(bypass);
        }
        let stamp = stripe.stamp(&wide, table, slot);
        if let Some(fill) = stripe.fills.get_mut(key).and_then(|fills| fills.last_mut())
            && fill.stamp == stamp
            && fill.claim == claim
            && !fill.barred
            && now < fill.since + JOINED_FOR
        {
            fill.waiters.push(waiter());
            return Join::Wait;
        }
        if self.too_large.has(key, stamp, now) {
            return Join::Bypass(Bypass::TooLarge);
        }
        let weak = wide.is_weak(table, now) || stripe.is_weak(slot, now);
        let doubted = stripe.is_doubted(&wide, (table, slot), now);
        let id = stripe.begin_fill(key, stamp, now, claim);
        // Reads have waited for that unit too long, or it is too small.
        let ended = stripe.amendments.remove(key);
        drop(stripe);
        drop(ended);
        let gates = self.clone();
        Join::Lead(Ticket { gates, table, slot, key: key.into(), id, weak, doubted, done: false })
    }

    /// Whether no gate of a row is held or weak: a fill that begins now sees every acknowledged
    /// write. `row`: its table and slot.
    pub fn is_undoubted(&self, (table, slot): (u32, u32), now: Millis) -> bool {
        let wide = self.wide.read();
        let stripe = self.stripe(slot).lock();
        !stripe.is_doubted(&wide, (table, slot), now)
    }

    /// For the one write that may touch a row now, whose gates are closed: its stamp, with which it
    /// may [replace](Gates::replace) the row. `None` if another such write has not ended, or a gate
    /// is held or weak. `row`: its table and slot.
    pub fn sole_writer(&self, (table, slot): (u32, u32), now: Millis) -> Option<Stamp> {
        let wide = self.wide.read();
        let mut stripe = self.stripe(slot).lock();
        let sole = wide.writers(table) == 0 && stripe.slot(slot).writers == 1;
        let held = stripe.is_doubted(&wide, (table, slot), now);
        let stamp = stripe.stamp(&wide, table, slot);
        (sole && !held).then_some(stamp)
    }

    /// Calls `install` if no write has begun since the one with this stamp: so no hold has begun
    /// either. Check and `install` are one step under the lock: a write that begins after it finds
    /// the row and drops it.
    pub fn replace(
        &self,
        (table, slot): (u32, u32),
        stamp: Stamp,
        install: impl FnOnce() -> bool,
    ) -> bool {
        let wide = self.wide.read();
        let mut stripe = self.stripe(slot).lock();
        let present = stripe.stamp(&wide, table, slot);
        if present != stamp {
            return false;
        }
        let writers = stripe.slot(slot).writers + wide.writers(table);
        assert!(writers == 1, "a row of slot {slot} is replaced beside {writers} writers");
        install()
    }

    /// A fill that began at `stamp` has read a row that is too large to cache. Reads of the row are
    /// a bypass for a while, or until the next write that may touch it. If such a write has begun
    /// already, this has no effect.
    pub fn note_too_large(&self, key: &[u8], stamp: Stamp, now: Millis) {
        self.too_large.note(key, stamp, now);
    }
}

/// The right to install one fill. If it is dropped unfinished (its client left, its read failed),
/// it installs nothing and drops its waiters. They then ask the database themselves.
pub struct Ticket<W> {
    gates: Arc<Gates<W>>,
    table: u32,
    slot: u32,
    key: Box<[u8]>,
    id: u64,
    weak: bool,
    doubted: bool,
    done: bool,
}

impl<W> Ticket<W> {
    /// Whether what is installed must be short-lived: the fill may miss acknowledged writes.
    pub fn is_weak(&self) -> bool {
        self.weak
    }

    /// Whether a gate was weak or held when the fill began. What it installs never gets the values
    /// of a later write.
    pub fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// Ends the fill. Calls `install` if no write has begun since the fill started, and no younger
    /// fill was installed. Check and `install` are one step under the lock.
    pub fn finish(self, install: impl FnOnce()) -> FinishedFill<W> {
        self.finish_beside(|_| install())
    }

    /// As [`Ticket::finish`]. `install` gets the keys of the rows that younger fills have
    /// installed: a unit that has one of them must not be installed.
    pub fn finish_beside(mut self, install: impl FnOnce(&[Box<[u8]>])) -> FinishedFill<W> {
        self.done = true;
        let wide = self.gates.wide.read();
        let mut stripe = self.gates.stripe(self.slot).lock();
        let now = stripe.stamp(&wide, self.table, self.slot);
        let fill = stripe
            .take_fill(&self.key, self.id)
            .expect("a ticket's fill stays until it is finished");
        let installed = fill.stamp == now && !fill.barred;
        if installed {
            // [`Gates::join`] asserts the same: no fill starts during a write, and every write
            // since then has changed the stamp.
            let writers = stripe.slot(self.slot).writers + wide.writers(self.table);
            assert!(
                writers == 0,
                "a fill of slot {} is installed beside {writers} writers",
                self.slot
            );
            install(&fill.newer_rows);
            stripe.bar_older(&self.key, self.id);
        }
        FinishedFill { installed, waiters: fill.waiters, stamp: fill.stamp }
    }
}

impl<W> Drop for Ticket<W> {
    fn drop(&mut self) {
        if !self.done {
            let abandoned = self.gates.stripe(self.slot).lock().take_fill(&self.key, self.id);
            drop(abandoned); // outside the lock: a waiter's end may run foreign code
        }
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
