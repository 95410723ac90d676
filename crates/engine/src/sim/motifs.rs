//! Motifs: short sequences within a run that break an order that the engine relies on. Single
//! random steps hardly ever produce them. Each could happen in reality; its details are random.

use super::maker::{Maker, Weather, choose};
use super::plan::{Expiry, Fault, HeldIo, Key, ModifyKind, Race, Size, What};
use crate::device::sim::SimRandom;

/// Turns in which a checkpoint is complete, if nothing is held up.
const CHECKPOINT_TURNS: u32 = 40;

impl Maker<'_> {
    /// [`Maker::push`], for steps that are themselves drawn from `r`.
    pub(super) fn then(&mut self, what: What, r: &mut SimRandom) {
        self.push(r, what);
    }

    pub(super) fn motif(&mut self, r: &mut SimRandom) {
        match r.below(20) {
            0 | 1 => self.journal_goes_round(r),
            2 if self.weather == Weather::Foul => self.entries_lost(r),
            3 | 4 => self.reclaimed_while_loading(r),
            5 | 6 => self.copies_held_up(r),
            7 => self.footer_held_up(r),
            8 => self.changed_while_reinserted(r),
            9 => self.counted_on(r),
            10..13 => self.blocked(r),
            13 => self.seen_after_a_power_loss(r),
            14 | 15 if self.may_relieve() => self.relieved(r),
            18 => self.evicted_beside_a_reclaim(r),
            19 if self.weather == Weather::Foul => self.removed_after_a_clean_stop(r),
            _ => self.overtaken(r),
        }
    }

    /// One I/O or some are overtaken by everything else, for as long as other operations press;
    /// then the life ends, or does not.
    fn overtaken(&mut self, r: &mut SimRandom) {
        if r.chance(0.5) {
            self.then(What::Idle { turns: 5 + r.below(40) as u32 }, r);
        }
        let wants_another_size = r.chance(0.3);
        if wants_another_size {
            let size = Size::random(r);
            self.then(What::Resize { size }, r);
        }
        if r.chance(0.4) {
            self.crash(r, false);
            if wants_another_size && r.chance(0.5) {
                let size = Size::random(r);
                self.then(What::Resize { size }, r);
            }
        }
        self.hold_up(r);
        let most = choose(r, &[30, 100]);
        let count = 10 + r.below(most);
        self.press(r, count);
        match r.below(8) {
            0..3 => self.crash(r, false),
            3 => {
                self.then(What::Sync, r);
                self.crash(r, true);
            }
            4..6 => self.close(r),
            6 => self.then(What::CutAfter { effects: r.below(40) as u32 }, r),
            _ => {}
        }
        if r.chance(0.5) {
            self.read_all_hot(r);
        }
    }

    /// The data directory is copied and comes back, after keys have changed and a checkpoint was
    /// taken, in one life or in several.
    pub(super) fn older_directory(&mut self, r: &mut SimRandom) {
        let keys: Vec<Key> = (0..6 + r.below(10)).map(|_| self.key(r)).collect();
        for &key in &keys {
            self.put_up_to(key, 1000, r);
        }
        self.then(What::Idle { turns: 60 + r.below(60) as u32 }, r);
        self.then(What::CopyDirectory, r);
        self.end_somehow(r);
        for life in 0..1 + r.below(2) {
            for &key in &keys {
                match r.below(3) {
                    0 => self.put_up_to(key, 1000, r),
                    1 => self.then(What::Remove { key }, r),
                    _ => {}
                }
            }
            self.then(What::Idle { turns: 30 + r.below(60) as u32 }, r);
            if life == 0 || r.chance(0.5) {
                self.checkpoint(r);
            }
            let count = r.below(10);
            self.press(r, count);
            if life == 0 && r.chance(0.5) {
                self.end_somehow(r);
            }
        }
        self.then(What::OlderDirectory, r);
        self.end_somehow(r);
        self.read_all(&keys, r);
        let count = 20 + r.below(40);
        self.press(r, count);
        if r.chance(0.5) {
            self.end_somehow(r);
        }
        self.read_all_hot(r);
    }

    pub(super) fn end_somehow(&mut self, r: &mut SimRandom) {
        match r.below(4) {
            0 | 1 => self.close(r),
            n => self.crash(r, n == 3),
        }
    }

    /// Whether one of several devices is soon relieved of what is read most.
    fn may_relieve(&self) -> bool {
        self.setup.relieves_after.is_some() && self.setup.segments.len() > 1
    }

    /// Lookups wait for one device more than for another, until what is read most there moves. It
    /// is changed meanwhile, I/Os are held up, or the life ends.
    fn relieved(&mut self, r: &mut SimRandom) {
        let keys: Vec<Key> = (0..8 + r.below(12)).map(|_| self.key(r)).collect();
        for &key in &keys {
            self.put_up_to(key, 1000, r);
        }
        self.then(What::Idle { turns: 120 }, r);
        // What is read then is not in DRAM.
        self.restart_with_dram(1 << 10, r);
        self.then(What::Idle { turns: 30 }, r);
        for &key in keys.iter().take(7) {
            self.then(What::Get { key }, r);
        }
        self.then(What::Idle { turns: 10 + r.below(20) as u32 }, r);
        for _ in 0..2 + r.below(3) {
            for &key in &keys {
                let race = self.race(r);
                self.then(What::Read { key, race }, r);
                if r.chance(0.5) {
                    self.then(What::Turn { ms: r.below(300) as u32 }, r);
                }
            }
            match r.below(6) {
                0 => self.then(What::Checkpoint, r),
                1 => self.press(r, 5),
                2 => self.hold_up(r),
                _ => {}
            }
        }
        if r.chance(0.5) {
            let machine = r.chance(0.2);
            self.crash(r, machine);
            self.read_all(&keys, r);
        }
    }

    /// Loading takes so long that a segment has to be freed before the index is whole, with slots
    /// in it that the journal contradicts.
    fn reclaimed_while_loading(&mut self, r: &mut SimRandom) {
        let keys: Vec<Key> = (0..6 + r.below(10)).map(|_| self.key(r)).collect();
        for &key in &keys {
            self.put_up_to(key, 1000, r);
        }
        self.then(What::Idle { turns: 60 + r.below(60) as u32 }, r);
        let others = r.below(30);
        self.press_hard(r, others);
        for _ in 0..2 {
            self.read_all(&keys, r);
        }
        self.checkpoint(r);
        for &key in &keys {
            if r.chance(0.6) {
                self.then(What::Remove { key }, r);
            }
        }
        self.crash(r, false);
        for _ in 0..1 + r.below(2) {
            let turns = 100 + r.below(300) as u32;
            self.then(What::HoldUp { io: HeldIo::Read, after: r.below(4) as u8, turns }, r);
        }
        if self.weather == Weather::Foul {
            // Segments out of use that come back are what a reclaim can write to while no other is
            // free.
            self.then(What::Fault { fault: Fault::Write, permille: 1000 }, r);
            let count = 2 + r.below(8);
            self.press_hard(r, count);
            self.then(What::Idle { turns: 5 + r.below(20) as u32 }, r);
            self.then(What::Heal, r);
        }
        for _ in 0..20 + r.below(40) {
            self.press_hard(r, 1);
            self.then(What::Turn { ms: r.below(600) as u32 }, r);
        }
        self.then(What::Idle { turns: 20 + r.below(200) as u32 }, r);
        self.read_all(&keys, r);
    }

    /// Another life begins, with so much memory.
    fn restart_with_dram(&mut self, dram: u32, r: &mut SimRandom) {
        let size = Size { dram, ..Size::random(r) };
        self.then(What::Resize { size }, r);
        self.crash(r, false);
    }

    /// Puts large objects, and so many others after them. The keys of the first.
    fn put_large_and_press(&mut self, others: u64, r: &mut SimRandom) -> Vec<Key> {
        let keys: Vec<Key> = (0..4 + r.below(8)).map(|_| self.key(r)).collect();
        for &key in &keys {
            self.put_large(key, r);
        }
        self.press_hard(r, others);
        keys
    }

    /// Objects are put and left alone beside counters that never rest.
    fn counted_on(&mut self, r: &mut SimRandom) {
        let ns = r.below(self.setup.namespaces.len() as u64) as u8;
        let counters = 1 + r.below(4) as u8;
        self.then(What::Count { ns, counters, turns: 1 }, r);
        for _ in 0..2 + r.below(10) {
            let key = self.key(r);
            self.put_up_to(key, 1000, r);
        }
        self.then(What::Count { ns, counters, turns: 100 + r.below(80) as u32 }, r);
        if r.chance(0.5) {
            self.crash(r, false);
        }
    }

    /// The background thread is blocked for long, or for longer than anybody waits; then the life
    /// ends, or does not.
    fn blocked(&mut self, r: &mut SimRandom) {
        if r.chance(0.5) {
            self.hold_up(r);
        }
        for _ in 0..1 + r.below(3) {
            let count = r.below(20);
            self.press(r, count);
            let (ms, most) = (choose(r, &[20, 300, 4_000, 30_000]), choose(r, &[10, 30, 100]));
            let operations = r.below(most) as u8;
            self.then(What::Block { ms, operations, flush: r.chance(0.7) }, r);
        }
        match r.below(4) {
            0 => self.crash(r, false),
            1 => self.crash(r, true),
            _ => self.then(What::Turn { ms: r.below(100) as u32 }, r),
        }
        if r.chance(0.5) {
            self.read_all_hot(r);
        }
    }

    /// Segments are freed and used again while a write is held up that may be the copy of what they
    /// held.
    fn copies_held_up(&mut self, r: &mut SimRandom) {
        if r.chance(0.5) {
            self.then(What::Idle { turns: 5 + r.below(60) as u32 }, r);
        }
        if r.chance(0.5) {
            self.read_all_hot(r);
        }
        for _ in 0..1 + r.below(2) {
            let (io, after) =
                (choose(r, &[HeldIo::Read, HeldIo::Write, HeldIo::Write]), r.below(20) as u8);
            self.then(What::HoldUp { io, after, turns: 50 + r.below(200) as u32 }, r);
        }
        let count = 10 + r.below(50);
        self.press_hard(r, count);
        self.crash(r, false);
    }

    /// What does not stay in DRAM is removed or replaced while a reclaim reads it to write it
    /// again.
    fn changed_while_reinserted(&mut self, r: &mut SimRandom) {
        self.restart_with_dram(1 << 10, r);
        for _ in 0..1 + r.below(3) {
            let others = 4 + r.below(16);
            let keys = self.put_large_and_press(others, r);
            self.read_all(&keys, r);
            for &key in &keys {
                let (after, turns) = (r.below(6) as u8, 5 + r.below(40) as u32);
                self.then(What::HoldUp { io: HeldIo::Read, after, turns }, r);
                let count = 1 + r.below(3);
                self.press_hard(r, count);
                if r.chance(0.7) {
                    self.then(What::Remove { key }, r);
                } else {
                    self.put_large(key, r);
                }
            }
            self.then(What::Idle { turns: 10 + r.below(40) as u32 }, r);
            self.read_all(&keys, r);
        }
    }

    /// Objects are read from flash while a reclaim waits for what it reads. They leave memory again
    /// at once. A checkpoint is taken, or the reclaimed segment is used again, and the process
    /// ends.
    fn evicted_beside_a_reclaim(&mut self, r: &mut SimRandom) {
        if r.chance(0.7) {
            let dram = choose(r, &[1, 3, 10, 30]) << 10;
            self.restart_with_dram(dram, r);
        }
        for _ in 0..1 + r.below(3) {
            // Until what they are in is about the oldest.
            let segments: u32 = self.setup.segments.iter().sum();
            let others = u64::from(segments.min(24)) * (3 + r.below(3));
            let keys = self.put_large_and_press(others, r);
            let (after, turns) = (r.below(3) as u8, 20 + r.below(100) as u32);
            self.then(What::HoldUp { io: HeldIo::Read, after, turns }, r);
            let with_checkpoint = r.chance(0.5);
            // Without one no segment is to be free but the one that is reclaimed.
            let count = if with_checkpoint { 1 + r.below(3) } else { 4 + r.below(30) };
            self.press_hard(r, count);
            // What a lookup has seen a reclaim may write again, and then it waits for its own
            // writes.
            let seen = if r.chance(0.5) { keys.len() } else { 1 + r.below(2) as usize };
            self.read_all(&keys[..seen], r);
            for _ in 0..1 + r.below(3) {
                let key = self.key(r);
                self.put_up_to(key, 4000, r);
            }
            if with_checkpoint {
                self.then(What::Checkpoint, r);
                let turns = CHECKPOINT_TURNS / 2 + r.below(60) as u32;
                (0..turns).for_each(|_| self.then(What::Turn { ms: 0 }, r));
            } else {
                // What was written again is on its way for long.
                let (after, turns) = (r.below(3) as u8, 30 + r.below(60) as u32);
                self.then(What::HoldUp { io: HeldIo::Write, after, turns }, r);
                let count = 2 + r.below(24);
                self.press_hard(r, count);
            }
            self.crash(r, false);
        }
    }

    /// A footer that recovery has written anew is overtaken by a checkpoint; the next index has
    /// another size.
    fn footer_held_up(&mut self, r: &mut SimRandom) {
        let count = r.below(12);
        self.press(r, count);
        self.then(What::Idle { turns: 20 + r.below(100) as u32 }, r);
        self.crash(r, false);
        for _ in 0..1 + r.below(2) {
            let turns = 100 + r.below(200) as u32;
            self.then(What::HoldUp { io: HeldIo::Write, after: r.below(3) as u8, turns }, r);
        }
        self.then(What::Idle { turns: r.below(30) as u32 }, r);
        self.checkpoint(r);
        if r.chance(0.8) {
            let size = Size::random(r);
            self.then(What::Resize { size }, r);
        }
        self.crash(r, false);
    }

    /// Two checkpoints near each other; the process ends with the second one's header written and
    /// not flushed. The journal goes round, as far as the first one needs it, before the power goes
    /// too.
    fn journal_goes_round(&mut self, r: &mut SimRandom) {
        let synced = |o: &super::plan::Options| o.durability == 2 && !o.clean_stop;
        let told = |o: &super::plan::Options| !o.immutable && !o.clean_stop && o.durability != 2;
        let options = &self.setup.namespaces;
        let (Some(kept), Some(other)) =
            (options.iter().position(synced), options.iter().position(told))
        else {
            return self.overtaken(r);
        };
        let (kept, other) = (kept as u8, other as u8);
        let hot: Vec<Key> = (0..self.hot).map(|n| Key { ns: kept, n }).collect();
        for &key in &hot {
            self.put_up_to(key, 1000, r);
        }
        self.then(What::Idle { turns: 20 + r.below(60) as u32 }, r);
        self.checkpoint(r);
        for &key in &hot {
            self.then(What::Remove { key }, r);
        }
        self.then(What::Idle { turns: 10 }, r);
        self.then(What::CutBehindHeader { effects: r.below(2) as u8 }, r);
        self.checkpoint(r);
        self.then(What::Lap { ns: other, over: 1 + r.below(4) as u8 }, r);
        let (check, again, exchange) = (true, None, None);
        self.then(What::Crash { machine: true, check, again, exchange }, r);
        self.read_all(&hot, r);
    }

    /// Entries of the journal are lost between two checkpoints, the second of which cannot be read.
    fn entries_lost(&mut self, r: &mut SimRandom) {
        let keys: Vec<Key> = (0..4 + r.below(8)).map(|_| self.key(r)).collect();
        for &key in &keys {
            self.put_up_to(key, 1000, r);
        }
        self.then(What::Idle { turns: 20 + r.below(60) as u32 }, r);
        self.checkpoint(r);
        self.then(What::Fault { fault: Fault::Media, permille: 300 }, r);
        for &key in &keys {
            self.then(What::Remove { key }, r);
        }
        self.then(What::Fault { fault: Fault::Media, permille: 0 }, r);
        self.checkpoint(r);
        self.then(What::Fault { fault: Fault::Read, permille: 300 }, r);
        self.crash(r, false);
        self.then(What::Fault { fault: Fault::Read, permille: 0 }, r);
        self.then(What::Idle { turns: 20 }, r);
        self.read_all(&keys, r);
    }

    /// Objects are removed after a clean stop. Its marker cannot be taken back, and the power goes.
    fn removed_after_a_clean_stop(&mut self, r: &mut SimRandom) {
        let keys: Vec<Key> = (0..4 + r.below(8)).map(|_| self.key(r)).collect();
        for &key in &keys {
            self.put_up_to(key, 1000, r);
        }
        let permille = choose(r, &[300, 600]);
        self.then(What::Fault { fault: Fault::Meta, permille }, r);
        if r.chance(0.7) {
            // What was removed is not in the journal either.
            self.then(What::Fault { fault: Fault::Media, permille }, r);
        }
        let removes = 1 + r.below(6) as u8;
        self.then(What::Close { removes, machine: r.chance(0.8), check: false }, r);
        self.then(What::Heal, r);
        for &key in &keys {
            self.put_up_to(key, 1000, r);
        }
        self.crash(r, false);
        self.read_all(&keys, r);
    }

    /// The power takes journal entries of puts that nobody was told of, and may leave their
    /// records. These are seen, perhaps under other options, then removed with many others, and the
    /// process dies.
    fn seen_after_a_power_loss(&mut self, r: &mut SimRandom) {
        let synced = |o: &super::plan::Options| o.durability == 2 && !o.clean_stop && !o.immutable;
        let Some(ns) = self.setup.namespaces.iter().position(synced) else {
            return self.overtaken(r);
        };
        let ns = ns as u8;
        let keys: Vec<Key> = (0..2 + r.below(6)).map(|_| Key { ns, ..self.key(r) }).collect();
        let put = |key: Key, group: u8, r: &mut SimRandom| {
            let len = r.below(1500) as u32;
            What::Put { key, len, expiry: Expiry::Never, group, slot: r.below(8) as u8 }
        };
        for &key in &keys {
            let what = put(key, 0, r);
            self.then(what, r);
        }
        self.then(What::Idle { turns: 5 + r.below(40) as u32 }, r);
        let group = 1 + r.below(3) as u8;
        for &key in &keys {
            let what = put(key, group, r);
            self.then(what, r);
        }
        for _ in 0..r.below(6) {
            self.then(What::Turn { ms: 0 }, r);
        }
        if r.chance(0.3) {
            let durability = r.below(3) as u8;
            let options =
                super::plan::Options { durability, ..self.setup.namespaces[usize::from(ns)] };
            self.then(What::SetOptions { ns, options }, r);
        }
        self.crash(r, true);
        self.then(What::Idle { turns: r.below(30) as u32 }, r);
        self.read_all(&keys, r);
        if r.chance(0.3) {
            let count = r.below(60);
            self.press_hard(r, count);
        }
        self.then(What::RemoveGroup { ns, group }, r);
        self.crash(r, false);
        self.then(What::Idle { turns: r.below(30) as u32 }, r);
        self.read_all(&keys, r);
    }

    pub(super) fn checkpoint(&mut self, r: &mut SimRandom) {
        self.then(What::Checkpoint, r);
        self.then(What::Idle { turns: CHECKPOINT_TURNS }, r);
    }

    pub(super) fn crash(&mut self, r: &mut SimRandom, machine: bool) {
        self.then(What::Crash { machine, check: r.chance(0.8), again: None, exchange: None }, r);
    }

    /// A clean stop in the course of which a checkpoint is asked for.
    fn close(&mut self, r: &mut SimRandom) {
        self.then(What::StartClose, r);
        for _ in 0..r.below(20) {
            self.then(What::Turn { ms: 0 }, r);
        }
        self.then(What::Checkpoint, r);
        for _ in 0..r.below(40) {
            self.then(What::Turn { ms: 0 }, r);
        }
        self.then(What::Close { removes: 0, machine: r.chance(0.5), check: true }, r);
    }

    fn hold_up(&mut self, r: &mut SimRandom) {
        for _ in 0..1 + r.below(3) {
            let io = choose(
                r,
                &[HeldIo::Read, HeldIo::Read, HeldIo::Write, HeldIo::Write, HeldIo::Sync],
            );
            let (most, longest) = (choose(r, &[1, 4, 12]), choose(r, &[50, 200, 500]));
            let (after, turns) = (r.below(most) as u8, 20 + r.below(longest) as u32);
            self.then(What::HoldUp { io, after, turns }, r);
        }
    }

    /// Operations that need room, and such as make copies on flash stale.
    pub(super) fn press(&mut self, r: &mut SimRandom, count: u64) {
        let (removals, most_ms) = (choose(r, &[30, 30, 150]), choose(r, &[1, 100]));
        for _ in 0..count {
            let key = self.key(r);
            let what = match r.below(1000) {
                n if n < removals => What::Remove { key },
                n if n < 2 * removals => What::Modify {
                    key,
                    len: self.len(r),
                    change: choose(r, &[ModifyKind::Value, ModifyKind::Remove]),
                    expiry: Expiry::Never,
                },
                n if n < 600 => {
                    What::Put { key, len: self.len(r), expiry: Expiry::Never, group: 0, slot: 0 }
                }
                600..680 => What::Read { key, race: Race::None },
                680..720 => What::Get { key },
                720..740 => What::Checkpoint,
                _ => What::Turn { ms: r.below(most_ms) as u32 },
            };
            self.then(what, r);
        }
    }

    /// Large objects, with time for their writes.
    fn press_hard(&mut self, r: &mut SimRandom, count: u64) {
        for _ in 0..count {
            let key = self.key(r);
            self.put_large(key, r);
            for _ in 0..r.below(4) {
                self.then(What::Turn { ms: r.below(50) as u32 }, r);
            }
        }
    }

    fn put_large(&mut self, key: Key, r: &mut SimRandom) {
        let most = u64::from(self.setup.segment_kib) << 8;
        let len = (most / 2 + r.below(most / 2 - 300)) as u32;
        self.then(What::Put { key, len, expiry: Expiry::Never, group: 0, slot: 0 }, r);
    }

    pub(super) fn put_up_to(&mut self, key: Key, most: u64, r: &mut SimRandom) {
        let len = r.below(most) as u32;
        self.then(What::Put { key, len, expiry: Expiry::Never, group: 0, slot: 0 }, r);
    }

    pub(super) fn read_all(&mut self, keys: &[Key], r: &mut SimRandom) {
        for &key in keys {
            self.then(What::Read { key, race: Race::None }, r);
        }
    }

    pub(super) fn read_all_hot(&mut self, r: &mut SimRandom) {
        for ns in 0..self.setup.namespaces.len() as u8 {
            for n in 0..self.hot {
                self.then(What::Read { key: Key { ns, n }, race: Race::None }, r);
            }
        }
    }
}
