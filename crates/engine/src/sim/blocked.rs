//! The background thread makes no step for a while, and operations go on. Other threads have the
//! processor, or a flush of the journal or a change of the state file does not return.
//!
//! The operations run within the blocked call, by [`Blocked::run`]. The thread keeps the locks it
//! holds there, so an operation that needs one of them never ends. The oracle is told afterwards,
//! in the same order.
//! - A caller that awaits space in the journal is woken after 50 ms, in the write queue after a
//!   second. Only [`crate::durability::backpressure::Watch`] can do that: its thread is neither
//!   blocked nor an operation's.
//! - A lookup is judged as any other.
//! - The first step afterwards refuses what has waited for the device too long
//!   ([`Run::nobody_waits_too_long`]).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use super::coverage::{Path, reach};
use super::oracle::SimObject;
use super::parts::{Happened, Performed};
use super::plan::{Expiry, Key};
use super::state::{Run, WAITING, key_bytes, put_options};
use super::world::Life;
use crate::clock::ManualClock;
use crate::core::Core;
use crate::device::sim::SimMachine;
use crate::durability::backpressure::Backpressure;
use crate::namespace::Namespace;

/// Steps within which a flush has come, in the end.
const TURNS: u32 = 60;
/// How long anybody waits for room in the journal, and for room in the write queue, in
/// milliseconds.
const JOURNAL: u64 = 50;
const QUEUE: u64 = 1_000;

/// What is to be done while the thread is blocked.
enum Planned {
    Put(SimObject),
    Remove,
    Get,
}

/// The world while the thread is blocked.
struct Blocked {
    operations: Vec<(Key, Planned)>,
    namespaces: Vec<Namespace>,
    core: Arc<Core>,
    machine: SimMachine,
    clock: Arc<ManualClock>,
    /// Milliseconds between two operations.
    pause: u64,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Blocked {
    fn run(&self) -> Vec<Happened> {
        let mut happened = Vec::new();
        for (key, planned) in &self.operations {
            self.clock.pass(self.pause);
            if self.machine.is_down() {
                // Nobody hears of what comes now.
                break;
            }
            self.waits_end();
            let (handle, bytes) = (&self.namespaces[usize::from(key.ns)], key_bytes(*key));
            let what = match planned {
                Planned::Put(object) => Performed::Put(
                    *object,
                    handle.submit_put(&bytes, &object.value(), put_options(*object)),
                ),
                Planned::Remove => Performed::Removed(handle.submit_remove(&bytes)),
                Planned::Get => Performed::Got(Box::new(handle.get(&bytes))),
            };
            happened.push(Happened { key: *key, what, certain: !self.machine.is_down() });
        }
        happened
    }

    /// Somebody awaits room, if there is none: that ends in time.
    fn waits_end(&self) {
        if let Some(room) = self.core.backpressure() {
            reach(Path::BlockedJournal);
            self.await_room(room, JOURNAL);
        }
        if let Some(room) = self.core.put_backpressure() {
            reach(Path::BlockedQueue);
            self.await_room(room, JOURNAL + QUEUE);
        }
    }

    /// Awaits room as a reactor does: it is asked again once it was woken, and not before.
    fn await_room(&self, room: Backpressure, most: u64) {
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let (mut room, mut waited) = (pin!(room), 0);
        while room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            while !woken.0.swap(false, Ordering::Relaxed) {
                assert!(
                    waited < most,
                    "room is awaited for {waited} ms while the background thread is blocked"
                );
                self.clock.pass(JOURNAL);
                waited += JOURNAL;
                // What the watching thread does.
                self.core.wake_for_room();
            }
        }
    }
}

impl Run {
    /// Blocks the background thread for about `ms` while so many operations are done. With `flush`,
    /// it is first brought to a flush and blocked in the middle of that.
    pub(super) fn block(&mut self, life: &mut Life, ms: u32, operations: u8, flush: bool) {
        // Who comes while a clean stop writes its marker has to wait for it: a removal must take it
        // back first.
        if self.closing || self.world.machine.is_down() {
            return self.world.clock.pass(ms.into());
        }
        let synced = (0u8..)
            .zip(&self.options)
            .find(|(_, options)| options.durability == 2)
            .map(|(ns, _)| ns);
        let blocked = self.plan_block(life, ms, operations);
        let happened = self.happened.clone();
        let run = move || happened.lock().extend(blocked.run());
        if !flush {
            run();
            reach(Path::Blocked);
            return self.tell_happened();
        }
        if let Some(ns) = synced {
            let (key, len) = (Key { ns, n: 0 }, 1 + self.world.random.below(300) as u32);
            let object = self.object(key, len, Expiry::Never, 0, 0);
            self.put(life, key, object);
        }
        life.core.wait_lists.want();
        self.world.machine.block_with(Some(Box::new(run)));
        for _ in 0..TURNS {
            self.world.clock.pass(10);
            self.turn(life);
            if !self.world.machine.is_to_block() {
                reach(Path::BlockedFlush);
                break;
            }
        }
        self.world.machine.block_with(None);
    }

    fn plan_block(&mut self, life: &Life, ms: u32, operations: u8) -> Blocked {
        let planned = (0..operations).map(|_| {
            let ns = self.world.random.below(self.options.len() as u64) as u8;
            let key = Key { ns, n: self.world.random.below(self.oracle.keys().into()) as u32 };
            let len = self.world.random.below(1_500) as u32;
            let what = match self.world.random.below(8) {
                0..5 => Planned::Put(self.object(key, len, Expiry::Never, 0, 0)),
                5 => Planned::Remove,
                _ => Planned::Get,
            };
            (key, what)
        });
        Blocked {
            operations: planned.collect(),
            namespaces: life.namespaces.clone(),
            core: life.core.clone(),
            machine: self.world.machine.clone(),
            clock: self.world.clock.clone(),
            pause: u64::from(ms) / u64::from(operations.max(1)),
        }
    }

    /// Tells the oracle what has happened while the thread was blocked.
    pub(super) fn tell_happened(&mut self) {
        let happened = std::mem::take(&mut *self.happened.lock());
        for Happened { key, what, certain } in happened {
            self.outcome.operations += 1;
            match what {
                Performed::Put(object, ack) => self.put_acked(key, object, ack, certain),
                Performed::Removed(ack) => self.removed(key, ack, certain),
                Performed::Got(lookup) => {
                    self.done[usize::from(key.ns)].gets += 1;
                    let start = self.oracle.now();
                    self.settle(key, start, *lookup);
                }
            }
        }
        while self.waiting.len() > WAITING {
            self.finish(0);
        }
    }

    /// Whoever had waited for the device too long when a step began is refused when it ends, or
    /// acknowledged.
    pub(super) fn nobody_waits_too_long(&self, step_began: u64) {
        let late = self.acking.iter().find(|a| a.pending.is_late(step_began));
        assert!(
            late.is_none(),
            "{:?} waits for the device for more than five seconds",
            late.map(|a| a.key)
        );
    }
}
