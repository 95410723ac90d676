//! Staged runs: few members, few rows, few random faults, and scenes. In a scene a single rule of
//! the protocol prevents a stale read.
//!
//! A scene is a short list of faults with random timings. Its members are the owner of the hot row,
//! a writer, an heir, and others. Where two events must coincide, a trap sees to it, not a time.

use super::plan::{Plan, Rates, config};
use super::plot::{Deed, Extent, Fault, MS, Snare};
use super::random::SimRandom;
use crate::config::Time;

const OWNER: usize = 0;
const WRITER: usize = 1;
const HEIR: usize = 2;

/// A run of some scenes.
pub fn staged(seed: u64) -> Plan {
    let mut random = SimRandom::new(seed);
    let members = random.pick(&[1, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 5]);
    let mut config = config(&mut random);
    config.rho = random.pick(&[1_000, 1_000, 1_000, 200_000, 500_000]);
    config.confirm = random.pick(&[2_500, 2_500, 6_000]) * MS;
    config.shards = random.pick(&[2, 4, 4, 8]);
    config.stable = random.pick(&[60, 60_000, 60_000, 60_000]) * MS;
    config.transaction = random.pick(&[900, 900, 2_500]) * MS;
    let short = config.hold < config.lease;
    let tokens = (0..random.between(2, 4)).map(|_| random.next() as i64).collect();
    let noise = random.permille(300);
    let rates = Rates {
        lost: if noise { random.below(20) } else { 0 },
        doubled: if noise { random.below(60) } else { 0 },
        late: if noise { random.below(40) } else { 0 },
        transaction: if noise { random.below(200) } else { 0 },
        row: random.pick(&[0, 0, 60, 400]),
        split: 0,
        weak: if short { 0 } else { 200 },
        everything: random.pick(&[0, 100]),
        writes: random.pick(&[5, 30, 100]),
    };
    let latest = random.pick(&[900, 2_500, 2_900]) * MS;
    let mut stage = Stage { random, at: 2_500 * MS, members, short, faults: Vec::new() };
    for _ in 0..stage.random.between(1, 3) {
        stage.scene();
    }
    let Stage { at: heal, mut faults, mut random, .. } = stage;
    faults.retain(|(at, _)| *at < heal);
    let mut judged = random.permille(200);
    if random.permille(60) {
        // The last thing before the calm is a move that never comes.
        judged = true;
        let at = heal - 300 * MS;
        let (node, deed, snare) = (OWNER, Deed::Handover, Snare::Lose);
        faults.push((at, Fault::Cast { row: 0 }));
        faults.push((at, Fault::Trap { node, deed, snare }));
        faults.push((at + 5 * MS, Fault::Move { to: WRITER, row: 0 }));
    }
    let calm = config.stretched(config.confirm) + config.stretched(config.hold) + 7_000 * MS;
    let end = heal + if judged { calm } else { 200 * MS };
    if judged && random.permille(700) {
        faults.push((end - 4_200 * MS, Fault::Outsider { time: 1_400 * MS }));
    }
    let wire = random.permille(50);
    Plan {
        seed,
        members,
        config,
        tokens,
        rates,
        heal,
        end,
        faults,
        wire,
        latest,
        hot: true,
        judged,
        grows: false,
        light: false,
        made: None,
    }
}

struct Stage {
    random: SimRandom,
    at: Time,
    members: usize,
    /// A hold ends before a write can be applied: only what is acknowledged counts.
    short: bool,
    faults: Vec<(Time, Fault)>,
}

impl Stage {
    fn scene(&mut self) {
        self.now(Fault::Cast { row: 0 });
        let begins = self.at;
        match self.random.below(if self.members == 1 { 22 } else { 19 }) {
            0 | 1 => self.late_write(),
            15 => self.there_and_back(),
            16 => self.lease_about_to_end(),
            17 => self.grants_for_a_dead_writer(),
            18 => self.dropped_at_another(),
            2 => self.owner_restarts(),
            3 => self.writer_restarts(),
            4 | 5 => self.weak_write_before_a_death(),
            6..=8 => self.moves(),
            9 => self.move_that_fails(),
            10 => self.everybody_cut_off(),
            11 => self.split_with_the_writer(),
            12 => self.batch_with_one_out_of_reach(),
            13 => self.everything_while_it_moves(),
            14 => self.traps_all_over(),
            19 => self.everybody_cut_off(),
            _ => self.last_one_leaves(),
        }
        let last = self.faults.iter().map(|(at, _)| *at).max().unwrap_or(begins);
        self.at = last.max(begins + 1_500 * MS) + self.random.between(1_500, 4_000) * MS;
    }

    fn now(&mut self, fault: Fault) {
        self.faults.push((self.at, fault));
    }

    fn after(&mut self, low: u64, high: u64, fault: Fault) {
        let at = self.at + self.random.between(low, high) * MS;
        self.faults.push((at, fault));
    }

    fn ms(&mut self, low: u64, high: u64) -> Time {
        self.random.between(low, high) * MS
    }

    fn trap(&mut self, node: usize, deed: Deed, snare: Snare) {
        self.now(Fault::Trap { node, deed, snare });
    }

    fn anyone(&mut self) -> usize {
        self.random.below(self.members as u64 + 1) as usize
    }

    fn writer(&self) -> usize {
        WRITER.min(self.members - 1)
    }

    fn write(&mut self, low: u64, high: u64, node: usize) {
        let extent = self.random.pick(&[Extent::One, Extent::One, Extent::Both, Extent::All]);
        let weak = !self.short && self.random.permille(300);
        self.after(low, high, Fault::Write { node, row: 0, extent, weak });
    }

    /// The owner loses its shards, some way.
    fn owner_changes(&mut self, low: u64, high: u64) {
        let time = self.ms(1_200, 3_500);
        match self.random.below(6) {
            0 => {
                let back = self.random.pick(&[None, Some(2_500 * MS)]);
                self.after(low, high, Fault::Kill { node: OWNER, back, lost: false });
            }
            1 => self.after(low, high, Fault::Pause { node: OWNER, time: time.min(2_600 * MS) }),
            2 => {
                self.after(low, low, Fault::Isolate { node: OWNER, time });
                self.after(low, high, Fault::NoDatabase { node: OWNER, time });
            }
            3 => self.after(low, high, Fault::Isolate { node: OWNER, time }),
            _ => {
                self.after(low, high, Fault::Move { to: HEIR, row: 0 });
                if self.random.permille(500) {
                    let to = self.random.pick(&[OWNER, WRITER]);
                    self.after(high + 40, high + 1_500, Fault::Move { to, row: 0 });
                }
            }
        }
    }

    /// A write that is sent late, comes late or is answered late, while its owner changes.
    fn late_write(&mut self) {
        let node = self.random.pick(&[OWNER, self.writer(), self.writer()]);
        let time = self.ms(200, 2_600);
        let stands_still = Snare::First(Box::new(Fault::Pause { node, time }));
        let (deed, snare) = match self.random.below(4) {
            0 => (Deed::Acknowledge, stands_still),
            1 => (Deed::SendWrite, stands_still),
            _ => (Deed::SendWrite, Snare::Late(time)),
        };
        self.trap(node, deed, snare);
        if self.random.permille(300) {
            let time = self.ms(300, 2_000);
            let of = self.random.pick(&[OWNER, HEIR]);
            self.after(
                0,
                2_200,
                Fault::Trap { node: of, deed: Deed::ReadRow, snare: Snare::Late(time) },
            );
        }
        self.write(10, 60, node);
        let soon = self.random.permille(600);
        let (low, high) = if soon { (20, 500) } else { (1_020, 1_800) };
        self.owner_changes(low, high);
        if self.random.permille(300) {
            self.any_trap();
        }
    }

    /// The owner dies with a write on its way, and is back at once.
    fn owner_restarts(&mut self) {
        let node = self.writer();
        let back = Some(self.random.pick(&[5, 20, 60, 300]) * MS);
        let lost = self.random.permille(500);
        let time = self.ms(150, 1_400);
        self.trap(node, Deed::SendWrite, Snare::Late(time));
        let dies = Fault::Kill { node: OWNER, back, lost };
        self.trap(node, Deed::SendWrite, Snare::Then(Box::new(dies)));
        self.write(10, 60, node);
        if self.random.permille(500) {
            let again =
                Fault::Kill { node: OWNER, back: Some(20 * MS), lost: self.random.permille(200) };
            self.after(150, 1_500, again);
        }
        if self.random.permille(400) {
            self.after(300, 1_500, Fault::Move { to: HEIR, row: 0 });
        }
    }

    /// The writer dies with a write on its way, and its next process counts from the beginning.
    fn writer_restarts(&mut self) {
        let node = self.writer();
        let time = self.ms(300, 2_800);
        let back = Some(self.random.pick(&[5, 40]) * MS);
        self.now(Fault::Kill { node, back, lost: false });
        let dies = || Snare::Then(Box::new(Fault::Kill { node, back, lost: false }));
        let at = self.at + 60 * MS;
        self.faults.push((at, Fault::Trap { node, deed: Deed::End, snare: dies() }));
        self.faults
            .push((at, Fault::Trap { node, deed: Deed::SendWrite, snare: Snare::Late(time) }));
        let both = Fault::Write { node, row: 0, extent: Extent::Both, weak: !self.short };
        self.after(400, 700, both);
        self.after(750, 1_500, Fault::Kill { node, back, lost: false });
        let next = Fault::Write { node, row: 1, extent: Extent::One, weak: false };
        self.after(1_510, 2_200, next);
    }

    /// A write that quorums may miss is acknowledged, then its owner dies.
    fn weak_write_before_a_death(&mut self) {
        let node = self.writer();
        let back = self.random.pick(&[None, Some(3_000 * MS), Some(20 * MS)]);
        let lost = self.random.permille(300);
        let dies = Box::new(Fault::Kill { node: OWNER, back, lost });
        let deed = self.random.pick(&[Deed::Acknowledge, Deed::SendWrite, Deed::End]);
        let first = self.random.permille(300);
        self.trap(node, deed, if first { Snare::First(dies) } else { Snare::Then(dies) });
        if self.random.permille(500) {
            let time = self.ms(200, 2_000);
            self.trap(node, Deed::SendWrite, Snare::Late(time));
        }
        let extent = self.random.pick(&[Extent::One, Extent::Both]);
        self.after(10, 60, Fault::Write { node, row: 0, extent, weak: !self.short });
        for _ in 0..self.random.below(4) {
            let to = self.anyone();
            self.after(1_500, 2_900, Fault::Move { to, row: 0 });
        }
    }

    /// The hot row's shard goes from hand to hand under writes.
    fn moves(&mut self) {
        let mut at = 0;
        for _ in 0..self.random.between(2, 7) {
            at += self.random.between(20, 500);
            match self.random.below(5) {
                0 => self.any_trap_after(at),
                1 => {
                    let node = self.anyone();
                    let time = self.ms(200, 2_800);
                    let snare = if self.random.permille(500) {
                        Snare::Late(time)
                    } else {
                        Snare::First(Box::new(Fault::Pause { node, time: time.min(2_600 * MS) }))
                    };
                    self.after(at, at, Fault::Trap { node, deed: Deed::SendWrite, snare });
                    self.write(at, at + 30, node);
                }
                _ => {
                    let to = self.anyone();
                    self.after(at, at, Fault::Move { to, row: 0 });
                    if self.random.permille(500) {
                        let node = self.anyone();
                        self.write(at.saturating_sub(20), at + 40, node);
                    }
                }
            }
        }
    }

    /// A move whose compare-and-set does not apply; the old owner goes on and then dies. Whom it
    /// was for may have had the shard before, and has rows of then.
    fn move_that_fails(&mut self) {
        let (taker, owner) = if self.random.permille(500) {
            self.after(0, 20, Fault::Move { to: HEIR, row: 0 });
            (OWNER, HEIR)
        } else {
            (HEIR, OWNER)
        };
        let time = self.ms(50, 3_000);
        let (node, deed) = if self.random.permille(700) {
            (taker, Deed::Transact)
        } else {
            (owner, Deed::Handover)
        };
        let snare = if self.random.permille(500) { Snare::Lose } else { Snare::Late(time) };
        self.after(60, 60, Fault::Trap { node, deed, snare });
        self.after(70, 120, Fault::Move { to: taker, row: 0 });
        if self.random.permille(600) {
            self.after(100, 600, Fault::Bump);
        }
        let writer = self.writer();
        self.write(300, 2_000, writer);
        self.write(1_200, 2_200, writer);
        if self.random.permille(800) {
            self.after(2_000, 3_500, Fault::Kill { node: owner, back: None, lost: false });
        } else {
            self.owner_changes(900, 3_500);
        }
    }

    /// The shard goes to another and comes back to rows of an older epoch.
    fn there_and_back(&mut self) {
        let writer = self.writer();
        for _ in 0..4 {
            self.after(0, 60, Fault::Read { node: OWNER, row: 0 });
        }
        if self.random.permille(500) {
            // The row that the new owner pulls is on its way while it is written.
            let node = self.random.pick(&[OWNER, HEIR]);
            let snare = Snare::Late(self.ms(5, 240));
            self.trap(node, Deed::Pulled, snare);
            self.after(101, 108, Fault::Read { node: HEIR, row: 0 });
            let write = Fault::Write { node: writer, row: 0, extent: Extent::One, weak: false };
            self.after(105, 180, write);
        }
        self.after(70, 100, Fault::Move { to: HEIR, row: 0 });
        self.write(40, 300, writer);
        if self.random.permille(600) {
            let back = Some(self.random.pick(&[5, 20, 60]) * MS);
            let lost = self.random.permille(700);
            self.after(310, 400, Fault::Kill { node: HEIR, back, lost });
        }
        let to = self.random.pick(&[OWNER, OWNER, WRITER]);
        self.after(500, 1_600, Fault::Move { to, row: 0 });
        self.after(1_600, 2_600, Fault::Move { to: OWNER, row: 0 });
    }

    /// The owner hears of the writer alone, which does not tell it of the newer map; its lease is
    /// about to end when it grants.
    fn lease_about_to_end(&mut self) {
        let time = self.ms(1_800, 3_000);
        let node = self.writer();
        for other in (2..self.members.max(3)).chain([self.members]) {
            self.now(Fault::Cut { from: other, to: OWNER, both: true, time });
        }
        self.now(Fault::NoDatabase { node: OWNER, time });
        self.now(Fault::LateNews { node: OWNER, time });
        let late = self.ms(450, 1_100);
        self.trap(node, Deed::SendWrite, Snare::Late(late));
        let extent = self.random.pick(&[Extent::One, Extent::Both]);
        self.after(550, 1_000, Fault::Write { node, row: 0, extent, weak: false });
        self.reads_everywhere(1_200, 2_200);
    }

    fn reads_everywhere(&mut self, low: u64, high: u64) {
        for node in 0..self.members {
            for _ in 0..6 {
                self.after(low, high, Fault::Read { node, row: 0 });
            }
        }
    }

    /// A write is so late that the gate of its first owner is open again. It is dropped at the
    /// second, and the first gets the shard back. Or its writer does not hear of the second.
    fn dropped_at_another(&mut self) {
        let node = self.writer();
        let late = self.ms(1_700, 2_700);
        let stands_still = self.random.permille(400);
        if stands_still {
            let still = Fault::Pause { node, time: late };
            self.trap(node, Deed::SendWrite, Snare::First(Box::new(still)));
        } else {
            self.trap(node, Deed::SendWrite, Snare::Late(late));
        }
        self.after(5, 60, Fault::Write { node, row: 0, extent: Extent::One, weak: false });
        self.after(1_080, 1_500, Fault::Move { to: HEIR, row: 0 });
        self.reads_everywhere(1_020, 2_700);
        if stands_still || self.random.permille(300) {
            self.now(Fault::NoDatabase { node, time: 3_500 * MS });
            self.now(Fault::LateNews { node, time: 3_500 * MS });
        } else {
            let again = late / MS;
            self.after(again + 20, again + 500, Fault::Move { to: OWNER, row: 0 });
            self.reads_everywhere(again + 100, again + 900);
        }
    }

    /// Permits that were granted to a process that is dead come to its successor.
    fn grants_for_a_dead_writer(&mut self) {
        let node = self.writer();
        let back = Some(self.random.pick(&[5, 40]) * MS);
        self.now(Fault::Kill { node, back, lost: false });
        for _ in 0..4 {
            let snare = Snare::Late(self.ms(400, 1_500));
            self.after(100, 100, Fault::Trap { node: OWNER, deed: Deed::Grant, snare });
        }
        self.after(300, 600, Fault::Write { node, row: 0, extent: Extent::One, weak: false });
        self.after(620, 1_100, Fault::Kill { node, back, lost: false });
        for _ in 0..4 {
            self.after(1_100, 1_100, Fault::Trap { node, deed: Deed::Begin, snare: Snare::Lose });
        }
        self.after(1_101, 1_500, Fault::Write { node, row: 1, extent: Extent::One, weak: false });
    }

    /// No member reaches the database or a machine that joins, which reaches none of them.
    fn everybody_cut_off(&mut self) {
        let time = self.ms(5_000, 11_000);
        let (begins, joiner) = (self.at, self.members);
        let accused = self.random.permille(600) && self.members > 1;
        let apart = if accused { self.ms(3_400, 4_900) } else { time };
        if accused {
            // An accusation waits in the database while the link is whole again.
            let silent = self.ms(600, 950);
            let waits = self.ms(400, 2_000);
            self.trap(WRITER, Deed::Transact, Snare::Late(waits));
            self.trap(OWNER, Deed::Transact, Snare::Late(waits + 400 * MS));
            self.now(Fault::Cut { from: OWNER, to: WRITER, both: true, time: silent });
            self.at += silent + self.random.below(200) * MS;
            // Whoever joined meets the accuser, while the accused hears of nobody.
            self.after(apart / MS - 3, apart / MS - 1, Fault::Isolate { node: OWNER, time });
        } else {
            let all = self.members;
            (0..all).for_each(|node| self.now(Fault::SlowMap { node, time: 4_000 * MS }));
            self.at += self.random.below(3_000) * MS;
        }
        for node in 0..self.members {
            self.now(Fault::NoDatabase { node, time });
        }
        self.now(Fault::Isolate { node: joiner, time: apart });
        let soon = if self.random.permille(500) { self.ms(0, 700) } else { self.ms(1_600, 2_300) };
        let joins = self.at.saturating_sub(soon);
        let unheard = Fault::Isolate { node: joiner, time: soon };
        self.faults.push((joins.max(begins), unheard));
        self.faults.push((joins.max(begins), Fault::Join));
        self.after(time / MS, time / MS + 100, Fault::Bump);
    }

    /// The owner and a writer are cut off together, from the others and from the map.
    fn split_with_the_writer(&mut self) {
        let time = self.ms(1_800, 4_500);
        let tight = self.random.permille(500);
        let late = if tight { self.ms(350, 980) } else { self.ms(300, 2_800) };
        let node = self.writer();
        self.trap(node, Deed::SendWrite, Snare::Late(late));
        let split = if tight { 0 } else { 800 };
        self.write(if tight { 300 } else { 10 }, 950, node);
        self.after(0, split, Fault::Split { at: 2, time });
        self.after(0, 5, Fault::NoDatabase { node: OWNER, time });
        self.after(0, 5, Fault::NoDatabase { node: WRITER, time });
        self.reads_everywhere(1_200, 2_200);
    }

    /// A batch of two owners, one of which cannot grant for a while.
    fn batch_with_one_out_of_reach(&mut self) {
        let time = self.ms(900, 2_400);
        let node = self.random.pick(&[OWNER, self.writer(), HEIR]);
        let other = self.random.pick(&[OWNER, HEIR, HEIR]);
        let both = self.random.permille(500);
        match self.random.below(3) {
            0 => self.now(Fault::Pause { node: other, time }),
            1 => self.now(Fault::Cut { from: other, to: node, both, time }),
            _ => self.now(Fault::Isolate { node: other, time }),
        }
        let extent = self.random.pick(&[Extent::Both, Extent::All]);
        self.after(5, 300, Fault::Write { node, row: 0, extent, weak: false });
        if self.random.permille(400) {
            let late = self.ms(100, 1_500);
            self.trap(node, Deed::SendWrite, Snare::Late(late));
        }
    }

    /// TRUNCATE while a shard moves to a member that has none.
    fn everything_while_it_moves(&mut self) {
        let late = self.ms(50, 900);
        let (taker, node) = (self.random.pick(&[HEIR, self.members]), self.writer());
        if taker == self.members {
            self.now(Fault::Join);
            self.at += 1_200 * MS;
        }
        let (slow, soon) = (self.ms(20, 700), self.ms(0, 200));
        self.trap(taker, Deed::Transact, Snare::Late(slow));
        self.trap(node, Deed::SendWrite, Snare::Late(late));
        self.after(5, 20, Fault::Move { to: taker, row: 0 });
        let all = Fault::Write { node, row: 0, extent: Extent::All, weak: false };
        self.after(5, 10 + soon / MS, all);
        for _ in 0..6 {
            self.after(30, 1_000, Fault::Read { node: taker, row: 0 });
        }
    }

    fn traps_all_over(&mut self) {
        for _ in 0..self.random.between(2, 5) {
            self.any_trap();
        }
        let writer = self.anyone();
        self.write(20, 900, writer);
        self.owner_changes(20, 900);
    }

    fn any_trap(&mut self) {
        let at = self.random.below(900);
        self.any_trap_after(at);
    }

    fn any_trap_after(&mut self, at: u64) {
        let node = self.anyone();
        let deed = self.random.pick(&[
            Deed::Begin,
            Deed::Grant,
            Deed::Drop,
            Deed::Dropped,
            Deed::End,
            Deed::Get,
            Deed::Found,
            Deed::Pull,
            Deed::Pulled,
            Deed::HandoverWanted,
            Deed::Handover,
            Deed::Pong,
            Deed::MapIs,
            Deed::ReadMap,
            Deed::Transact,
            Deed::ReadRow,
            Deed::SendWrite,
            Deed::Acknowledge,
        ]);
        let time = self.ms(50, 2_500);
        let back = Some(self.random.pick(&[5, 60, 1_500]) * MS);
        let snare = match self.random.below(7) {
            0 | 1 => Snare::Late(time),
            2 => Snare::Lose,
            3 => Snare::Again(time),
            4 => {
                Snare::First(Box::new(Fault::Kill { node, back, lost: self.random.permille(300) }))
            }
            5 => {
                let to = self.anyone();
                let both = self.random.permille(400);
                Snare::First(Box::new(Fault::Cut { from: node, to, both, time }))
            }
            _ => Snare::First(Box::new(Fault::Pause { node, time })),
        };
        self.after(at, at, Fault::Trap { node, deed, snare });
    }

    /// A ring of one: it goes, and somebody else comes at once.
    fn last_one_leaves(&mut self) {
        let time = self.ms(1_500, 5_000);
        self.now(Fault::Join);
        self.now(Fault::Isolate { node: self.members, time: 1_500 * MS });
        let late = self.ms(0, 600);
        self.trap(OWNER, Deed::Transact, Snare::Late(late));
        self.after(20, 200, Fault::Leave { node: OWNER });
        let lost = Fault::NoDatabase { node: OWNER, time };
        self.trap(OWNER, Deed::Transact, Snare::Then(Box::new(lost)));
    }
}
