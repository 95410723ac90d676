//! What must hold at the end of each life: warmth (G3, G4), budgets (G6), counters (G7), and that
//! no work is left over.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::coverage::{Path, reach, reach_times};
use super::plan::Key;
use super::state::{Ending, Run, key_bytes, look_up, say};
use super::world::{Copied, Life};
use crate::api::DropReason;
use crate::clock::Clock;
use crate::device::sim::Crash;
use crate::format::journal::TIME_AT;
use crate::ops::get::Lookup;
use crate::segment::SegmentState;

/// Turns in which everything must have come to rest, a tenth of a second each at least.
const REST: u32 = 4_000;

impl Run {
    /// Finishes the clean stop and begins the next life.
    pub(super) fn close(&mut self, mut life: Life, removes: u8, kind: Crash, check: bool) -> Life {
        while !self.waiting.is_empty() || !self.changing.is_empty() {
            self.finish(0);
        }
        self.start_close(&life, check);
        let (mut known, before) = self.to_keep.take().expect("it has begun");
        // The clock may have been set since it began.
        known.retain(|key| !self.is_dead(&life, *key));
        let closed = self.world.close(&mut life);
        if life.core.totals.devices_silent.get() != self.silences {
            // Nobody has looked which copies that cost.
            self.fell_silent = true;
            self.flashed.clear();
        }
        if !closed {
            reach(Path::CrashClosing);
            return self
                .crash(life, Ending { kind, check, cut: true, again: None, exchange: None });
        }
        self.take_acks(&life);
        assert!(self.acking.is_empty(), "somebody waits after a clean stop");
        let after = life.core.stats();
        let dropped = |s: &crate::stats::Stats| {
            s.totals.dropped.iter().chain(s.namespaces.iter().flat_map(|n| &n.dropped)).sum::<u64>()
        };
        let lossless = after.totals.segments_reclaimed == before.totals.segments_reclaimed
            && dropped(&after) == dropped(&before)
            && dropped(&after) == 0;
        for n in 0..removes {
            let key = Key {
                ns: n % self.options.len() as u8,
                n: self.world.random.below(u64::from(self.keys())) as u32,
            };
            self.remove(&life, key);
            if self.world.machine.is_down() {
                return self
                    .crash(life, Ending { kind, check, cut: true, again: None, exchange: None });
            }
        }
        if kind == Crash::Machine {
            reach(Path::CrashAfterClose);
            known.retain(|key| !self.is_unflushed(&life, *key));
        }
        let armed = self.world.machine.is_armed();
        let marker_cleared = life.core.state.marker_cleared.load(Ordering::SeqCst);
        let sound = life.core.state.marked.load(Ordering::SeqCst) && !marker_cleared;
        // Without a marker it is as a crash: the only home of checkpoints did not answer, perhaps.
        if self.foul || (!sound && kind == Crash::Machine) {
            self.doubt_removals(kind);
        }
        if sound && !self.foul {
            // Everything that was seen lasts now.
            self.unheard.clear();
        }
        self.holes = false;
        let ending = Ending { kind, check, cut: false, again: None, exchange: None };
        let mut life = self.reopen(life, &ending);
        if check && lossless && sound && !armed && !self.foul {
            self.world.load(&mut life);
            if self.must_hit(&life, &known, "after a clean stop") {
                reach(Path::WarmAfterClose);
            }
        }
        life
    }

    /// Whether power loss may take a key's copy although the stop was clean: its device did not
    /// answer when it was to be flushed.
    fn is_unflushed(&self, life: &Life, key: Key) -> bool {
        let machine = &self.world.machine;
        let at = life.on_flash(machine, key.ns, &key_bytes(key));
        let lasts = at.is_none_or(|at| {
            let from = at.offset / 512 * 512;
            machine.is_durable(at.device, from, at.offset + at.len - from)
        });
        let unflushed = !lasts && life.core.totals.devices_silent.get() > 0;
        if unflushed {
            reach(Path::CopyUnflushed);
        }
        unflushed
    }

    /// Notes what the clean stop that begins now is to keep.
    pub(super) fn start_close(&mut self, life: &Life, check: bool) {
        if self.closing {
            return;
        }
        self.closing = true;
        let unread = life.core.progress.unread.load(Ordering::Acquire);
        let known = if check && !self.foul && !unread {
            self.live(life, |run, life, key| {
                let newest = run.oracle.current(key).map(|(_, version)| version);
                let is_known =
                    |version| life.is_known(&run.world.machine, key.ns, &key_bytes(key), version);
                newest.is_some_and(is_known)
            })
        } else {
            Vec::new()
        };
        self.to_keep = Some((known, life.core.stats()));
    }

    /// Crashes, or goes on from where the machine has died already.
    pub(super) fn crash(&mut self, mut life: Life, ending: Ending) -> Life {
        let Ending { kind, cut, check, .. } = ending;
        say!(self, "crash {kind:?}, cut {cut}, {:?}", life.core.stats().totals);
        reach(match (kind, cut) {
            (Crash::Process, false) => Path::CrashProcess,
            (Crash::Machine, false) => Path::CrashMachine,
            (Crash::Process, true) => Path::CrashProcessCut,
            (Crash::Machine, true) => Path::CrashMachineCut,
        });
        if life.core.progress.loading.load(Ordering::Relaxed) {
            reach(Path::CrashLoading);
        }
        if !cut {
            self.turn(&mut life);
        }
        self.take_acks(&life);
        let survivors = if check && !self.foul { self.survivors(&life, kind) } else { Vec::new() };
        // Without a checkpoint of its own a journal begun in doubt does not make Mutable namespaces
        // warm.
        let poisoned = life.core.journal.is_poisoned() || life.core.journal.is_bare();
        self.holes &= life.core.stats().totals.checkpoints == 0;
        let exact = !poisoned && !self.holes;
        self.holes |= kind == Crash::Machine;
        if kind == Crash::Machine || self.foul {
            self.doubt_removals(kind);
        }
        let mut life = self.reopen(life, &ending);
        if check && exact && !self.foul {
            self.world.load(&mut life);
            let when = if kind == Crash::Machine {
                "after a machine crash"
            } else {
                "after a process crash"
            };
            if self.must_hit(&life, &survivors, when) {
                reach(if kind == Crash::Machine {
                    Path::WarmAfterMachine
                } else {
                    Path::WarmAfterProcess
                });
            }
        }
        life
    }

    fn keys(&self) -> u32 {
        self.oracle.keys()
    }

    /// Power loss, or a broken journal, may undo removals in Immutable namespaces: their bytes are
    /// right for ever.
    fn doubt_removals(&mut self, kind: Crash) {
        for (n, options) in (0u8..).zip(self.options.clone()) {
            let synced = options.durability == 2;
            if options.immutable && (self.foul || (kind == Crash::Machine && !synced)) {
                self.oracle.doubt_removals(n);
            }
        }
    }

    /// Notes of which keys the end of a life may take an older copy.
    pub(super) fn note_risks(&mut self, life: &Life, kind: Crash) {
        if life.core.stats().totals.checkpoints > 0 {
            self.at_risk.clear();
        }
        if kind == Crash::Machine {
            // What is put later has a higher version, and is read behind what was lost.
            let highest = life.core.versions.peek();
            let lost = life.at_risk(&self.world.machine).into_iter();
            self.at_risk.extend(lost.map(|key| (key, highest)));
        }
    }

    /// Keys with copies on flash that must survive.
    fn survivors(&self, life: &Life, kind: Crash) -> Vec<Key> {
        let machine = &self.world.machine;
        if life.core.progress.unread.load(Ordering::Acquire) {
            // What the index knows of a key may not be its last copy, and that one may be torn.
            return Vec::new();
        }
        if kind == Crash::Machine && machine.unsynced("journal").iter().any(|at| *at != TIME_AT) {
            // The openings of segments may be lost with the rest.
            return Vec::new();
        }
        // A footer on its way may survive a power loss, and a record that it names may not. Read
        // behind the checkpoint, it hides a newer copy where no journal entry tells which is newer:
        // a miss in an Immutable namespace. So it does at any later opening behind the same
        // checkpoint, though none may have hidden it before.
        let mut at_risk = HashMap::default();
        if life.core.stats().totals.checkpoints == 0 {
            at_risk.clone_from(&self.at_risk);
        }
        if kind == Crash::Machine {
            at_risk.extend(life.at_risk(machine).into_iter().map(|key| (key, u64::MAX)));
        }
        self.live(life, |run, life, key| {
            let options = run.options[usize::from(key.ns)];
            let newest = run.oracle.current(key).map(|(_, version)| version);
            let most = at_risk.get(&(key.ns.into(), key_bytes(key)));
            if options.immutable && most.is_some_and(|most| newest <= Some(*most)) {
                reach(Path::OlderCopyAtRisk);
                return false;
            }
            let at = life.on_flash(machine, key.ns, &key_bytes(key));
            // The index may still know an older copy.
            let safe = |at: Copied| {
                let from = at.offset / 512 * 512;
                let durable = machine.is_durable(at.device, from, at.offset + at.len - from);
                newest == Some(at.version) && (kind == Crash::Process || durable)
            };
            let kept = kind == Crash::Process || options.immutable || options.durability == 2;
            // Once the clean stop is over nothing is on its way: what a read that outlived it has
            // brought into memory stays there.
            let moved =
                kind == Crash::Process && !life.background.is_closed() && run.is_moving(life, key);
            !options.clean_stop && kept && (at.is_some_and(safe) || moved)
        })
    }

    /// Whether a copy is in flight of a key that flash has had already. The index must not have
    /// forgotten it in between.
    fn is_moving(&self, life: &Life, key: Key) -> bool {
        let totals = life.core.stats().totals;
        let forgotten = totals.copies_lost + totals.dropped[DropReason::IndexFull as usize];
        let newest = self.oracle.current(key).map(|(_, version)| version);
        forgotten == 0
            && newest.is_some_and(|version| self.flashed.get(&key) == Some(&version))
            && life.is_in_memory(key.ns, &key_bytes(key))
    }

    /// Where keys have their copies that a device may be given up with in the next turn.
    pub(super) fn copies_at_stake(&self, life: &Life) -> Vec<(Key, u32)> {
        if !life.background.may_give_up() {
            return Vec::new();
        }
        let in_use = |&key: &Key| {
            let hash = life.core.hash(key.ns.into(), &key_bytes(key));
            let segment = life.core.shard(hash).index.peek(hash)?.location().segment;
            let is_given_up = life.core.table.state(segment) == SegmentState::Retired;
            (!is_given_up).then_some((key, segment))
        };
        self.flashed.keys().filter_map(in_use).collect()
    }

    /// A device that does not answer costs the copies in segments that were being written there,
    /// and no others.
    pub(super) fn forget_given_up(&mut self, life: &Life, copies: &[(Key, u32)]) {
        let silences = life.core.totals.devices_silent.get();
        self.fell_silent = std::mem::replace(&mut self.silences, silences) != silences;
        for (key, segment) in copies {
            if life.core.table.state(*segment) == SegmentState::Retired {
                reach(Path::CopyGivenUp);
                self.flashed.remove(key);
            }
        }
    }

    /// Notes what is on flash.
    pub(super) fn note_flashed(&mut self, life: &Life) {
        let keys: Vec<Key> = self.oracle.live().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(at) = life.on_flash(&self.world.machine, key.ns, &key_bytes(key)) {
                self.flashed.insert(key, at.version);
            }
        }
    }

    /// Live, unexpired keys that `which` chooses and that share their index slot with nobody.
    fn live(&self, life: &Life, which: impl Fn(&Self, &Life, Key) -> bool) -> Vec<Key> {
        let now = life.core.time.now();
        let alive: Vec<Key> = self
            .oracle
            .live()
            .filter(|(_, o)| o.expiry == 0 || u64::from(o.expiry) > now)
            .map(|(key, _)| key)
            .collect();
        let crowded = self.crowded(life);
        alive.into_iter().filter(|key| !crowded.contains(key) && which(self, life, *key)).collect()
    }

    /// Keys that share their index slot with another one, as the index is now.
    pub(super) fn crowded(&self, life: &Life) -> Vec<Key> {
        let mut slots: Vec<_> =
            self.oracle.all_keys().map(|key| (Self::slot_of(life, key), key)).collect();
        slots.sort_unstable_by_key(|(slot, _)| *slot);
        let shared = slots.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1);
        shared.flatten().map(|(_, key)| *key).collect()
    }

    /// Whether time or a removal of many has killed what was put.
    pub(super) fn is_dead(&self, life: &Life, key: Key) -> bool {
        let alive = |(o, _): (super::oracle::SimObject, u64)| {
            o.expiry == 0 || u64::from(o.expiry) > life.core.time.now()
        };
        !self.oracle.current(key).is_some_and(alive)
    }

    /// What a slot of the key is found by: keys that agree in it share a slot.
    fn slot_of(life: &Life, key: Key) -> (usize, u64, [usize; 2]) {
        let core = &life.core;
        let hash = core.hash(key.ns.into(), &key_bytes(key));
        let index = &core.shard(hash).index;
        // The lines of before the index grew: those agree for good.
        let mut lines = index.lines_of(hash).map(|line| line % index.base_lines());
        lines.sort_unstable();
        (hash as usize & (core.shards.len() - 1), (hash >> 48).max(1), lines)
    }

    /// Where the objects of a life that ends have their copies.
    pub(super) fn homes(&self, life: &Life) -> HashMap<Key, (u32, u64)> {
        let (core, machine) = (&life.core, &self.world.machine);
        let home = |key: Key| {
            let bytes = key_bytes(key);
            life.on_flash(machine, key.ns, &bytes)?;
            let hash = core.hash(key.ns.into(), &bytes);
            let segment = core.shard(hash).index.peek(hash)?.location().segment;
            Some((key, (segment, core.table.generation(segment))))
        };
        self.oracle.live().filter_map(|(key, _)| home(key)).collect()
    }

    /// Whether no reclaim has begun of the segment that a key had its copy in when the life before
    /// ended.
    fn is_home(&self, life: &Life, key: Key) -> bool {
        let table = &life.core.table;
        self.homes.get(&key).is_some_and(|&(segment, generation)| {
            table.generation(segment) == generation && table.state(segment) == SegmentState::Sealed
        })
    }

    /// Gets all of `keys`. They must be there, except those whose slot another key may have taken.
    /// As many more may be missing as this life counts as dropped: for lack of index space, by a
    /// reclaim, or behind one. Nothing is asked when the machine died. In an index of another
    /// shape, nobody counts what a reclaim found in a segment before its index lines were loaded.
    /// There, only objects in segments without a begun reclaim are asked for.
    fn must_hit(&mut self, life: &Life, keys: &[Key], when: &str) -> bool {
        if self.world.machine.is_down() {
            return false;
        }
        let mut keys = keys.to_vec();
        if life.core.stats().totals.segments_reclaimed > 0 {
            if self.reshaped {
                keys.retain(|key| self.is_home(life, *key));
                reach_times(Path::WarmReshaped, u64::from(!keys.is_empty()));
            }
            reach(Path::WarmReclaimed);
        }
        let mut missing = Vec::new();
        for &key in &keys {
            // Other options may have killed it meanwhile.
            let Some((_, version)) = self.oracle.current(key) else { continue };
            self.done[usize::from(key.ns)].gets += 1;
            let start = self.oracle.now();
            let lookup = look_up(life, &life.namespaces[usize::from(key.ns)], &key_bytes(key));
            match &lookup {
                // In an Immutable namespace any put of the key will do.
                Lookup::Hit(hit)
                    if self.options[usize::from(key.ns)].immutable || hit.version == version =>
                {
                    self.outcome.warm += 1;
                }
                Lookup::Miss(reason) => missing.push((key, *reason)),
                other => panic!("{key:?} of version {version} gave {other:?} {when}"),
            }
            self.settle(key, start, lookup);
        }
        if missing.is_empty() {
            return !keys.is_empty();
        }
        let crowded = self.crowded(life);
        missing.retain(|(key, _)| !crowded.contains(key));
        let stats = life.core.stats();
        let dropped = [&stats.totals.dropped]
            .into_iter()
            .chain(stats.namespaces.iter().map(|ns| &ns.dropped));
        let dropped = dropped.flatten().sum::<u64>() + stats.totals.copies_lost;
        assert!(
            missing.len() as u64 <= dropped,
            "{} of {} keys are missing {when}, {dropped} were dropped: {missing:?} {:?}",
            missing.len(),
            keys.len(),
            life.core.stats(),
        );
        true
    }

    /// Faults end: everything that waits must be done in bounded time, and writing must go on.
    pub(super) fn rest(&mut self, life: &mut Life) {
        self.heal();
        if self.closing {
            return;
        }
        for _ in 0..REST {
            let (ms, machine) = (100 + self.world.random.below(400), self.world.machine.clone());
            self.world.clock.pass(ms);
            self.turn(life);
            if machine.is_down() {
                return;
            }
            if self.is_at_rest(life) {
                let retired = life.core.table.in_state(SegmentState::Retired).next().is_some();
                if self.foul && !self.stained && !retired {
                    if !self.checkpoint_at_rest(life) {
                        return;
                    }
                    // From here on everything is judged again.
                    reach(Path::RestedFoul);
                    (self.foul, self.fouled) = (false, true);
                }
                self.note_flashed(life);
                reach(Path::Live);
                return;
            }
        }
        panic!(
            "nothing comes to rest: {:?}, bare {}",
            life.core.stats(),
            life.core.journal.is_bare()
        );
    }

    /// Has a checkpoint taken where faults have ended. False when the machine died, or went on
    /// dying of what was there before.
    fn checkpoint_at_rest(&mut self, life: &mut Life) -> bool {
        // A page that was given up is told to whoever flushes next: not to the next life.
        let _ = life.core.journal.sync();
        let before = life.core.stats().totals.checkpoints;
        for _ in 0..REST {
            life.core.wait_lists.want();
            self.world.clock.pass(100);
            self.turn(life);
            if self.world.machine.is_down() {
                return false;
            }
            let stats = life.core.stats();
            let covered = stats.totals.checkpoints > before + 1;
            if covered && !stats.journal_poisoned && !life.core.journal.is_bare() {
                return true;
            }
        }
        panic!("no checkpoint is taken although nothing fails: {:?}", life.core.stats());
    }

    fn is_at_rest(&self, life: &Life) -> bool {
        let (core, table) = (&life.core, &life.core.table);
        let stats = core.stats();
        let quiet = !stats.loading
            && stats.chunks_waiting == 0
            && self.acking.is_empty()
            && !stats.journal_poisoned
            && stats.journal_used <= stats.journal_capacity / 4 * 3;
        // With segments out of use there may be no room for anything until they are given back.
        let retired = table.in_state(SegmentState::Retired).next().is_some();
        let room = retired
            || (stats.segments_free > u64::from(core.admission.free_target)
                || table.in_state(SegmentState::Sealed).all(|s| table.is_pending(s)));
        let saved = retired || stats.unsaved_bytes == 0;
        quiet && room && saved && table.in_state(SegmentState::Reclaiming).next().is_none()
    }

    /// Checks the accounts of a life.
    pub(super) fn end_life(&mut self, life: &Life) {
        let stats = life.core.stats();
        for (n, ns) in stats.namespaces.iter().enumerate() {
            let done = self.done[n];
            let keys =
                self.waiting.iter().map(|w| w.key).chain(self.changing.iter().map(|c| c.key));
            let waiting = keys.filter(|key| usize::from(key.ns) == n).count() as u64;
            assert_eq!(ns.lookups() + waiting, done.gets, "lookups counted: {done:?} {ns:?}");
            let puts = ns.stored + ns.refused.iter().sum::<u64>();
            assert_eq!(puts, done.puts, "puts counted: {done:?} {ns:?}");
            assert_eq!(ns.removes, done.removes, "{ns:?}");
            let most = done.kills + u64::from(done.cleared);
            assert!((done.kills..=most).contains(&ns.kills), "{done:?} {ns:?}");
        }
        assert!(
            stats.dram_bytes <= stats.dram_capacity + 4096,
            "DRAM beyond its budget: {stats:?}"
        );
        assert!(stats.index_slots_used <= stats.index_slots, "{stats:?}");
        let all_answered = stats.totals.devices_silent == 0;
        if all_answered && !self.foul && !self.fouled && !self.world.machine.is_down() {
            assert_eq!(stats.totals.write_errors + stats.totals.read_errors, 0, "{stats:?}");
            assert_eq!(stats.totals.segments_retired, 0, "{stats:?}");
        }
        self.count(&stats);
    }

    /// No object is written once as much as allowed has been, of whatever kind. (But by a clean
    /// stop.)
    pub(super) fn within_write_budget(&mut self, life: &Life) {
        let Some(rate) = self.world.write_budget() else { return };
        let elapsed = self.world.clock.millis() - self.began;
        let most = rate * (3600 + elapsed / 1000 + 1);
        // Not what the budget itself asks: it might leave something out.
        let written = life.core.totals.written() + life.core.journal.appended_bytes();
        let records = life.core.totals.record_bytes.get();
        let (written_before, records_before) =
            std::mem::replace(&mut self.written, (written, records));
        if records > records_before && !self.closing {
            assert!(written_before <= most, "{:?}, {rate} bytes/s", life.core.stats());
        }
    }

    fn count(&self, stats: &crate::stats::Stats) {
        let totals = &stats.totals;
        let dropped = |reason: DropReason| {
            let objects = stats.namespaces.iter().map(|n| n.dropped[reason as usize]).sum::<u64>();
            totals.dropped[reason as usize] + objects
        };
        reach_times(Path::Checkpoint, totals.checkpoints);
        reach_times(Path::CheckpointFailed, totals.checkpoint_failures);
        reach_times(Path::Reclaimed, totals.segments_reclaimed);
        reach_times(Path::LostBlock, totals.lost_index_blocks);
        reach_times(Path::SegmentRetired, totals.segments_retired);
        reach_times(Path::ReadStaleSlot, totals.stale_slots);
        reach_times(Path::NoFreeSegment, dropped(DropReason::NoFreeSegment));
        reach_times(Path::NotAdmitted, dropped(DropReason::NotAdmitted));
        reach_times(Path::WriteBudget, dropped(DropReason::WriteBudget));
        reach_times(Path::SlotEvicted, dropped(DropReason::IndexFull));
    }
}
