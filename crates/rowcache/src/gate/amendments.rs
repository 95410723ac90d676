//! Units that are written, under the locks of their gates.
//!
//! 1. [`Gates::amend`]: the first write of a row takes the unit.
//! 2. [`Gates::begin_row_write`]: another write of one row of it begins, in one step with closing
//!    its gate.
//! 3. [`Share::acknowledged`]: a write was acknowledged, and its gates are open. The last one of a
//!    row has the row read again.
//! 4. [`Reread::amend`]: the row is put into the unit.
//! 5. [`Gates::open`]: with no row left, the unit is put into the cache.
//!
//! Invariants:
//! - All writes since the unit was taken are known by their rows: any other write changes the stamp
//!   and not the amendment's. Such a unit never comes back.
//! - Each write ends in one of two ways: it is acknowledged, or the amendment ends. So does each
//!   read of a row, but for one that another write of the row has overtaken. So no read waits in
//!   vain.
//! - Check and install are one step under the lock, as for a fill.
//! - A write of a table or of everything ends the amendments that it overtakes, once its gate is
//!   closed. So reads that wait for them go to the database at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use afterglow_cql::plan::RowKey;

use super::amendment::{AfterWrite, Amendment};
use super::wide::Wide;
use super::{Gates, SLOTS_PER_STRIPE, Stripe};
use crate::clock::Millis;
use crate::kept_unit::{KeptOf, KeptUnit};
use crate::stamp::Stamp;

/// Names one amendment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AmendmentId {
    /// Of the unit.
    table: u32,
    slot: u32,
    key: Box<[u8]>,
    id: u64,
}

/// What one write has in a unit. If it is dropped, the unit does not come back.
pub(crate) struct Share<W> {
    gates: Arc<Gates<W>>,
    of: Arc<KeptOf>,
    at: AmendmentId,
    row: RowKey,
    /// The unit reaches to the row.
    covered: bool,
    done: bool,
}

/// What an acknowledged write leaves to do for the unit.
pub(crate) enum Acknowledged<W> {
    /// To read the row again.
    Read(Reread<W>),
    /// Nothing: others go on with the unit.
    Wait,
    /// To put the unit back: [`Gates::open`].
    Open(AmendmentId),
    /// Nothing: the unit does not come back.
    Lost,
}

/// A row that is to be read again. If this is dropped, the unit does not come back, unless another
/// write of the row has begun.
pub(crate) struct Reread<W> {
    gates: Arc<Gates<W>>,
    of: Arc<KeptOf>,
    at: AmendmentId,
    row: RowKey,
    turn: u64,
    done: bool,
}

/// What came of a row that was read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Amended {
    /// Another write has begun. If it is one of the same row, the row is read again after it.
    Overtaken,
    /// The unit does not come back: it cannot have the row.
    Lost,
    /// It is in the unit, which waits for others.
    Waits,
    /// It was the last: [`Gates::open`].
    Whole(AmendmentId),
}

/// A unit that comes back soon.
pub(crate) struct AwaitedUnit {
    at: AmendmentId,
    /// As it is without what is being written.
    pub(crate) unit: KeptUnit,
}

/// A unit that was put into the cache again.
pub(crate) struct Opened<W, I> {
    /// What `install` says.
    pub(crate) installed: I,
    /// The unit.
    pub(crate) unit: KeptUnit,
    /// Reads that waited for it.
    pub(crate) waiters: Vec<W>,
}

impl<W> Stripe<W> {
    /// The amendment of this unit, if it knows of every write.
    fn amendment(
        &mut self,
        wide: &Wide,
        (table, slot, key): (u32, u32, &[u8]),
    ) -> Option<&mut Amendment<W>> {
        let present = self.stamp(wide, table, slot);
        self.amendments.get_mut(key).filter(|one| one.stamp == present && !one.barred)
    }

    fn amendment_at(&mut self, wide: &Wide, at: &AmendmentId) -> Option<&mut Amendment<W>> {
        let found = self.amendment(wide, (at.table, at.slot, &at.key));
        found.filter(|one| one.id == at.id)
    }

    /// A write has begun that no amendment of the slot knows of. To be dropped outside the lock.
    pub(super) fn end_amendments(&mut self, slot: u32) -> Vec<Amendment<W>> {
        self.amendments.extract_if(|_, one| one.slot == slot).map(|(_, one)| one).collect()
    }

    fn take_fill_number(&mut self) -> u64 {
        self.next_fill += 1;
        self.next_fill - 1
    }
}

impl<W> Gates<W> {
    /// As [`Gates::begin_write`], for a write of one row. If the row's unit, with this key, is
    /// written by others, it goes on to wait for this write too.
    pub(crate) fn begin_row_write(
        self: &Arc<Self>,
        (table, slot): (u32, u32),
        row: &RowKey,
    ) -> Option<Share<W>> {
        let wide = self.wide.read();
        let mut stripe = self.stripe(slot).lock();
        let unit = (table, slot, row.unit_key());
        let known = stripe.amendment(&wide, unit).map(|one| one.id);
        stripe.close(slot);
        let present = stripe.stamp(&wide, table, slot);
        let known = known.map(|id| {
            let mut one = stripe.amendments.remove(row.unit_key()).expect("it was found");
            one.stamp = present;
            (id, one.begin(row.engine_key()), one)
        });
        let mut ended = stripe.end_amendments(slot);
        let joined = match known {
            Some((id, true, one)) => {
                let unit = one.unit.clone();
                stripe.amendments.insert(row.unit_key().into(), one);
                Some((id, unit))
            }
            full => {
                ended.extend(full.map(|(_, _, one)| one));
                None
            }
        };
        drop((stripe, wide));
        drop(ended); // outside the lock: a waiter's end may run foreign code
        let (id, unit) = joined?;
        let at = AmendmentId { table, slot, key: row.unit_key().into(), id };
        let mut share = Share {
            gates: self.clone(),
            of: unit.shared(),
            at,
            row: row.clone(),
            covered: true,
            done: false,
        };
        share.covered = unit.covers(row)?;
        Some(share)
    }

    /// For the write with this stamp, whose gates are closed and which is the only one: takes the
    /// unit of its row, which is to be dropped from the cache. `covered`: the unit reaches to the
    /// row. `None` if another write has begun.
    pub(crate) fn amend(
        self: &Arc<Self>,
        unit: KeptUnit,
        row: &RowKey,
        covered: bool,
        stamp: Stamp,
        now: Millis,
    ) -> Option<Share<W>> {
        let (of, (table, slot)) = (unit.shared(), unit.of().gates);
        let wide = self.wide.read();
        let mut stripe = self.stripe(slot).lock();
        if stripe.stamp(&wide, table, slot) != stamp {
            return None;
        }
        let id = stripe.take_fill_number();
        let mut one = Amendment::new(id, slot, stamp, unit, now);
        let begun = one.begin(row.engine_key());
        assert!(begun, "a unit of which one row is written may have more");
        let before = stripe.amendments.insert(row.unit_key().into(), one);
        let (word, bit) = amending_bit(slot);
        self.amending[word].fetch_or(bit, Ordering::Relaxed);
        drop((stripe, wide));
        drop(before);
        let at = AmendmentId { table, slot, key: row.unit_key().into(), id };
        let (gates, row) = (self.clone(), row.clone());
        Some(Share { gates, of, at, row, covered, done: false })
    }

    /// The unit with this key (of `table`, in `slot`), if it was taken under this claim and comes
    /// back soon.
    pub(crate) fn awaited(
        &self,
        unit: (u32, u32, &[u8]),
        now: Millis,
        claim: u64,
    ) -> Option<AwaitedUnit> {
        let (table, slot, key) = unit;
        let wide = self.wide.read();
        let mut stripe = self.stripe(slot).lock();
        let one = stripe.amendment(&wide, unit)?;
        if !one.is_awaited(now) || one.unit.of().claim != claim {
            return None;
        }
        let at = AmendmentId { table, slot, key: key.into(), id: one.id };
        Some(AwaitedUnit { at, unit: one.unit.clone() })
    }

    /// Waits for a unit. False, without a call of `waiter`, if it does not come back any more or is
    /// back.
    pub(crate) fn wait(&self, awaited: &AwaitedUnit, waiter: impl FnOnce() -> W) -> bool {
        let wide = self.wide.read();
        let mut stripe = self.stripe(awaited.at.slot).lock();
        let found = stripe.amendment_at(&wide, &awaited.at);
        found.map(|one| one.waiters.push(waiter())).is_some()
    }

    /// Ends an amendment in which nothing is left to do: calls `install` with the unit and the rows
    /// that fills have installed meanwhile. Check and `install` are one step under the lock. `None`
    /// if another write has begun. If that is one which it does not know of, nobody else would end
    /// the amendment: nothing of it is under way.
    pub(crate) fn open<I>(
        &self,
        at: &AmendmentId,
        install: impl FnOnce(&KeptUnit, &[Box<[u8]>]) -> I,
    ) -> Option<Opened<W, I>> {
        let wide = self.wide.read();
        let mut stripe = self.stripe(at.slot).lock();
        let Some(is_whole) = stripe.amendment_at(&wide, at).map(|one| one.is_whole()) else {
            drop((stripe, wide));
            self.end_amendment(at);
            return None;
        };
        if !is_whole {
            return None;
        }
        let one = stripe.amendments.remove(&at.key).expect("it was found");
        // Every write that has begun since the unit was taken was acknowledged, after its gates had
        // been opened.
        let writers = stripe.slot(at.slot).writers + wide.writers(at.table);
        assert!(writers == 0, "a unit of slot {} comes back beside {writers} writers", at.slot);
        let installed = install(&one.unit, &one.newer_rows);
        stripe.bar_older(&at.key, one.fill);
        Some(Opened { installed, unit: one.unit, waiters: one.waiters })
    }

    /// A write of a table or of everything has begun: ends the amendments that do not know of it,
    /// so that nobody waits for them. Few stripes have any, and only those are looked at.
    ///
    /// The race with an amendment that begins meanwhile: it either has been inserted, under the
    /// wide gates' lock, before the write closed its gate, and then its bit is set. Or it begins
    /// after that, and knows of the write.
    pub(super) fn end_overtaken(&self) {
        for (at, word) in self.amending.iter().enumerate() {
            let mut left = word.load(Ordering::Relaxed);
            while left != 0 {
                let stripe = at as u32 * u64::BITS + left.trailing_zeros();
                left &= left - 1;
                drop(self.overtaken_of(stripe)); // a waiter's end may run foreign code
            }
        }
    }

    /// Takes the amendments of a stripe that do not know of every write.
    fn overtaken_of(&self, number: u32) -> Vec<Amendment<W>> {
        let slot = number * SLOTS_PER_STRIPE;
        let wide = self.wide.read();
        let mut stripe = self.stripe(slot).lock();
        let Stripe { slots, amendments, .. } = &mut *stripe;
        let is_overtaken = |one: &Amendment<W>| {
            let version = slots[(one.slot % SLOTS_PER_STRIPE) as usize].version;
            one.stamp != Stamp { slot: version, wide: wide.version_of(one.unit.of().gates.0) }
        };
        let overtaken =
            amendments.extract_if(|_, one| is_overtaken(one)).map(|(_, one)| one).collect();
        if amendments.is_empty() {
            let (word, bit) = amending_bit(slot);
            self.amending[word].fetch_and(!bit, Ordering::Relaxed);
        }
        overtaken
    }

    /// The unit does not come back. Reads that wait for it go on.
    pub(crate) fn end_amendment(&self, at: &AmendmentId) {
        let mut stripe = self.stripe(at.slot).lock();
        let is_it = stripe.amendments.get(&at.key).is_some_and(|one| one.id == at.id);
        let ended = if is_it { stripe.amendments.remove(&at.key) } else { None };
        drop(stripe);
        drop(ended);
    }
}

/// Where [`Gates::amending`] has the stripe of a slot.
fn amending_bit(slot: u32) -> (usize, u64) {
    let stripe = slot / SLOTS_PER_STRIPE;
    ((stripe / u64::BITS) as usize, 1 << (stripe % u64::BITS))
}

impl<W> Share<W> {
    /// What the unit is of.
    pub(crate) fn of(&self) -> &KeptOf {
        &self.of
    }

    /// The write was acknowledged, every quorum sees it, and its gates are open.
    pub(crate) fn acknowledged(mut self) -> Acknowledged<W> {
        self.done = true;
        let wide = self.gates.wide.read();
        let mut stripe = self.gates.stripe(self.at.slot).lock();
        let fill = stripe.take_fill_number();
        let Some(one) = stripe.amendment_at(&wide, &self.at) else {
            drop((stripe, wide));
            self.gates.end_amendment(&self.at);
            return Acknowledged::Lost;
        };
        one.fill = fill;
        let next = one.acknowledge(self.row.engine_key(), self.covered);
        drop((stripe, wide));
        match next {
            AfterWrite::Read(turn) => Acknowledged::Read(Reread {
                gates: self.gates.clone(),
                of: self.of.clone(),
                at: self.at.clone(),
                row: self.row.clone(),
                turn,
                done: false,
            }),
            AfterWrite::Wait => Acknowledged::Wait,
            AfterWrite::Open => Acknowledged::Open(self.at.clone()),
        }
    }
}

impl<W> Drop for Share<W> {
    fn drop(&mut self) {
        if !self.done {
            self.gates.end_amendment(&self.at);
        }
    }
}

impl<W> Reread<W> {
    /// What the unit is of.
    pub(crate) fn of(&self) -> &KeptOf {
        &self.of
    }

    /// The row.
    pub(crate) fn row(&self) -> &RowKey {
        &self.row
    }

    /// Puts the row that was read into the unit. `with` makes the new unit of the present one, or
    /// none. It is called outside the lock, and once more for each row that comes between.
    pub(crate) fn amend(mut self, with: impl Fn(&KeptUnit) -> Option<KeptUnit>) -> Amended {
        let gates = self.gates.clone();
        let mut made: Option<(KeptUnit, KeptUnit)> = None;
        loop {
            let wide = gates.wide.read();
            let mut stripe = gates.stripe(self.at.slot).lock();
            let current =
                stripe.amendment_at(&wide, &self.at).filter(|one| one.is_current(self.turn));
            let Some(one) = current else { return Amended::Overtaken };
            match made.take() {
                Some((before, after)) if before.is(&one.unit) => {
                    self.done = true;
                    one.amended(self.turn, after);
                    let is_whole = one.is_whole();
                    let whole = is_whole.then(|| Amended::Whole(self.at.clone()));
                    return whole.unwrap_or(Amended::Waits);
                }
                _ => {}
            }
            let before = one.unit.clone();
            drop((stripe, wide));
            let Some(after) = with(&before) else { return Amended::Lost };
            made = Some((before, after));
        }
    }
}

impl<W> Drop for Reread<W> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut stripe = self.gates.stripe(self.at.slot).lock();
        let one = stripe.amendments.get(&self.at.key).filter(|one| one.id == self.at.id);
        let ends = one.is_some_and(|one| one.is_current(self.turn));
        let ended = if ends { stripe.amendments.remove(&self.at.key) } else { None };
        drop(stripe);
        drop(ended);
    }
}
