//! Relieves a device that has too much to do for long: what is read most there moves to another.
//!
//! Placement balances writes. Reads follow what was written, so a device may stay busier than
//! another for as long as its objects are popular. The steps:
//!
//! 1. Each device's reads and writes in flight are averaged over a minute. A device has too much to
//!    do when it has twice the load of another.
//! 2. When that has lasted, the other one takes what is read most ([`Core::relocate`]): a lookup
//!    that has read a record from the busy device writes it again there.
//! 3. It ends as soon as the last seconds show no imbalance, or the other one is full or fails.
//!
//! Invariants:
//! - Nothing is dropped for it: so many segments stay free that reclaim has nothing to do. So no
//!   more moves while a cache is open than was free, also where it moves to and fro.
//! - So many bytes move a second, within half of the write budget.
//! - A device alone is never looked at.

use super::Background;
use super::parts::balance::DeviceLoad;
#[cfg(doc)]
use crate::core::Core;
use crate::device::DeviceId;

/// Of a segment's bytes, so manieth part may move a second.
const RATE: u64 = 4;
/// The same at once.
const AT_ONCE: u64 = 2;
/// Of these bytes so manieth part is kept for what was read before.
const KEPT: u64 = 2;

impl Background {
    /// Looks whether a device is to be relieved.
    pub(super) fn step_balance(&mut self, now: u64) {
        if self.core.table.devices() < 2 {
            return;
        }
        // While the index loads, slots change that lookups have not seen.
        if self.close.is_running() || self.load.is_some() {
            self.balance.end();
            return self.core.table.end_relief();
        }
        if !self.balance.is_due(now) {
            return;
        }
        let table = &self.core.table;
        // Reclaim is to have nothing to do because of it.
        let has_room = table.free_count() > self.core.admission.free_target + 1;
        let load = |n: usize| {
            let (device, work) = (DeviceId(n as u16), &self.devices[n]);
            let free = table.free_count_on(device);
            let takes = !work.is_resting(now) && has_room && free > 1;
            if work.silent {
                // Lookups that hang there are no work that another could do.
                return DeviceLoad::default();
            }
            DeviceLoad { minute: work.load(), lately: work.load_lately(), takes }
        };
        let loads: Vec<DeviceLoad> = (0..table.devices()).map(load).collect();
        let running = table.relief_to();
        let Some(relief) = self.balance.look(now, &loads) else {
            if let Some(to) = running {
                coverage_mark!(ReliefEnded);
                tracing::info!(to = to.0, "what is read most moves between devices no more");
                table.end_relief();
            }
            return;
        };
        let to = DeviceId(relief.to as u16);
        table.begin_relief(|device| relief.from.contains(&usize::from(device.0)), to);
        if running.is_none() {
            let from = &relief.from;
            tracing::info!(?from, to = to.0, "what is read most moves between devices");
        }
        let size = u64::from(table.segment_size());
        let bytes = self.balance.grant(now, size / RATE);
        table.grant_relief(bytes, size / AT_ONCE);
        let least = self.balance.least(|part| table.is_free_on(to, part));
        table.prefer_in_relief(least, size / AT_ONCE / KEPT);
    }
}
