//! Checks in random runs that acknowledged objects reach flash in time (G3). An object that DRAM
//! holds has a whole copy on flash within ten seconds, whatever else changes meanwhile. An object
//! that changes before that is copied within ten seconds of its first change since the last copy.
//!
//! Time counts only while the background thread runs and can copy, a tenth of a second at most for
//! each of its steps. It stands still
//! - while the clean stop runs, which copies everything in its own order,
//! - while an I/O is held up or a write is slow, and until the write queue has room for copies: the
//!   device is behind,
//! - while no segment is free: reclaim has to find one first,
//! - while a device is away or writes fail, and in the pause behind a failure (a minute at most),
//!   in which nothing is tried.
//!
//! It begins again for all objects when a write fails or a reclaim could not move an object. Such
//! an object has lost its copy and is copied again. Nothing is promised of an object that the cache
//! refused to copy (write budget, popularity: DRAM says so). The same holds if the object lost its
//! index slot to another key. Nothing is promised at all once stored bytes may be wrong (bits
//! flipped on write, lost and misdirected writes). All other faults, of reads, flushes, the journal
//! and the state file, delay nothing and excuse nothing.

use super::coverage::{Path, reach};
use super::parts::{Lateness, OnItsWaySince};
use super::plan::Key;
use super::state::{Run, key_bytes};
use super::world::Life;
use crate::clock::Clock;
use crate::index::Location;
use crate::tier::EntryState;
use crate::tier::NOWHERE;

/// Milliseconds within which an object comes to flash.
const IN_TIME: u64 = 10_000;
/// Milliseconds that a step of the background thread counts for at most.
const STEP: u64 = 100;
/// Steps between two looks.
const EVERY: u64 = 16;

/// Where the newest version of a key is.
enum Whereabouts {
    /// In DRAM alone, or in a chunk that is not written.
    OnItsWay,
    OnFlash,
    /// Nothing is promised.
    Elsewhere,
}

impl Run {
    /// Looks after a step of the background thread whether something is late.
    pub(super) fn watch_copies(&mut self, life: &Life) {
        let now = self.world.clock.millis();
        let passed = now - std::mem::replace(&mut self.lateness.at, now);
        if self.closing
            || self.stained
            || self.world.machine.is_down()
            || life.background.is_closed()
        {
            return;
        }
        if self.can_copy(life) {
            self.lateness.time += passed.min(STEP);
        }
        self.follow_changes(life);
        self.lateness.steps += 1;
        if self.lateness.steps.is_multiple_of(EVERY) {
            self.look_for_late(life);
        }
    }

    /// Follows objects that change on their way to flash, and forgets those that DRAM lost. Their
    /// time restarts with a copy, and with the first change behind one. A copy of an object that
    /// changes all the time is superseded soon: it can be seen only right after the step that made
    /// it.
    fn follow_changes(&mut self, life: &Life) {
        let time = self.lateness.time;
        self.lateness.seen.retain(|key, seen| {
            let bytes = key_bytes(*key);
            let hash = life.core.hash(key.ns.into(), &bytes);
            let shard = life.core.shard(hash).lock();
            let Some(entry) = shard.dram.peek(hash, key.ns.into(), &bytes) else { return false };
            let (changed, copied) = (entry.version > seen.first, entry.state != EntryState::Dirty);
            if changed && copied {
                reach(Path::CopiedWhileChanging);
            }
            if changed && (copied || seen.copied) {
                *seen = OnItsWaySince { first: entry.version, newest: entry.version, time, copied };
            }
            seen.copied |= copied;
            true
        });
    }

    fn can_copy(&self, life: &Life) -> bool {
        let faults = &self.world.faults;
        let core = &life.core;
        faults.write_error + faults.no_space == 0.0
            && !self.world.machine.any_away()
            && !self.world.machine.any_mute()
            && !self.world.machine.is_held_up()
            && !self.world.machine.is_writing_slowly()
            && !life.background.is_pausing()
            && !core.streams.is_ahead()
            && core.table.free_count() > 0
    }

    fn look_for_late(&mut self, life: &Life) {
        let totals = &life.core.totals;
        let setbacks =
            totals.write_errors.get() + totals.copies_lost.get() + totals.devices_silent.get();
        if std::mem::replace(&mut self.lateness.setbacks, setbacks) != setbacks {
            self.lateness.seen.clear();
        }
        let (now, time) = (life.core.time.now(), self.lateness.time);
        let live = self.oracle.live().filter(|(_, o)| o.expiry == 0 || u64::from(o.expiry) > now);
        let keys: Vec<Key> = live.map(|(key, _)| key).collect();
        for key in keys {
            let Some((_, version)) = self.oracle.current(key) else { continue };
            if self.flashed.get(&key) == Some(&version) {
                continue;
            }
            match self.whereabouts(life, key, version) {
                Whereabouts::Elsewhere => drop(self.lateness.seen.remove(&key)),
                Whereabouts::OnFlash => {
                    if self.lateness.seen.remove(&key).is_some_and(|seen| seen.newest == version) {
                        reach(Path::CopiedInTime);
                    }
                    self.flashed.insert(key, version);
                }
                Whereabouts::OnItsWay => {
                    let seen =
                        OnItsWaySince { first: version, newest: version, time, copied: false };
                    self.lateness.seen.entry(key).or_insert(seen).newest = version;
                    // The slot may be another key's of the same tag. Its record lies where the
                    // copy was before its segment was reclaimed. Then the object passes for copied.
                    assert!(
                        !self.is_old(key) || self.crowded(life).contains(&key),
                        "{key:?} of version {version} is not on flash after ten seconds: {:?}",
                        life.core.stats()
                    );
                }
            }
        }
    }

    /// Whether a change that is not copied has been seen ten seconds ago.
    fn is_old(&self, key: Key) -> bool {
        let seen = self.lateness.seen.get(&key);
        seen.is_some_and(|seen| self.lateness.time - seen.time > IN_TIME)
    }

    fn whereabouts(&self, life: &Life, key: Key, version: u64) -> Whereabouts {
        let (core, bytes) = (&life.core, key_bytes(key));
        let hash = core.hash(key.ns.into(), &bytes);
        let place: Option<Location> = {
            let shard = core.shard(hash).lock();
            let Some(entry) = shard
                .dram
                .peek(hash, key.ns.into(), &bytes)
                .filter(|entry| entry.version == version)
            else {
                return Whereabouts::Elsewhere;
            };
            match entry.state {
                EntryState::Clean(NOWHERE) => return Whereabouts::Elsewhere,
                EntryState::Clean(at) if !shard.is_at(hash, at) => return Whereabouts::Elsewhere,
                EntryState::Clean(at) => Some(at),
                EntryState::Dirty => None,
            }
        };
        let written = life
            .on_flash(&self.world.machine, key.ns, &bytes)
            .is_some_and(|at| at.version == version);
        if place.is_some() && written { Whereabouts::OnFlash } else { Whereabouts::OnItsWay }
    }

    /// Another life begins.
    pub(super) fn forget_copies(&mut self) {
        self.lateness = Lateness { at: self.world.clock.millis(), ..Lateness::default() };
    }
}
