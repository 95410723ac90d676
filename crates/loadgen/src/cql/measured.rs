//! What a driver thread counts.

use std::time::Duration;

use super::work::{Done, Op};
use crate::latency::Latency;

const WINDOW_NS: u64 = 1_000_000_000;

/// An operation in flight and its times.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) op: Op,
    pub(super) intended: u64,
    pub(super) sent: u64,
}

/// One second of a run.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Operations that ended well.
    pub operations: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Their latencies.
    pub latency: Latency,
}

/// What one driver thread measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Latencies of reads, from the intended start.
    pub reads: Latency,
    /// Latencies of writes, from the intended start.
    pub writes: Latency,
    /// Latencies of both from the moment of sending.
    pub service: Latency,
    /// Reads without a row.
    pub not_found: u64,
    /// Reads with a wrong row.
    pub wrong: u64,
    /// Refusals by error code, with one text each.
    pub refused: std::collections::BTreeMap<i32, (u64, String)>,
    /// Operations whose connection broke, or that had no answer in the end.
    pub lost: u64,
    /// Connections made anew.
    pub reconnects: u64,
    /// Operations due and never sent (open loop).
    pub unsent: u64,
    /// From the beginning of the measured phase to its end, or to the last answer if that came
    /// later.
    pub elapsed: Duration,
    /// CPU time of this thread in that time, nanoseconds.
    pub cpu: u64,
    /// One entry per second.
    pub windows: Vec<Window>,
}

impl Measured {
    /// Counts an answer that came `into` nanoseconds after the phase began.
    pub(super) fn count(&mut self, slot: &Slot, done: &Done, now: u64, into: u64) {
        let well = match done {
            Done::Again => return,
            Done::Fine => true,
            Done::NotFound => {
                self.not_found += 1;
                true
            }
            Done::Wrong => false,
            Done::Refused(error) => {
                self.refused.entry(error.code).or_insert_with(|| (0, error.message.clone())).0 += 1;
                false
            }
        };
        self.elapsed = self.elapsed.max(Duration::from_nanos(into));
        let window = (into / WINDOW_NS) as usize;
        while self.windows.len() <= window {
            self.windows.push(Window::default());
        }
        let window = &mut self.windows[window];
        if !well {
            window.failures += 1;
            return;
        }
        let latency = now.saturating_sub(slot.intended);
        window.operations += 1;
        window.latency.record(latency);
        if slot.op.write { &mut self.writes } else { &mut self.reads }.record(latency);
        self.service.record(now.saturating_sub(slot.sent));
    }

    /// Adds what another thread measured in the same phase.
    pub fn merge(&mut self, other: &Measured) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.service.merge(&other.service);
        self.not_found += other.not_found;
        self.wrong += other.wrong;
        for (code, (count, message)) in &other.refused {
            self.refused.entry(*code).or_insert_with(|| (0, message.clone())).0 += count;
        }
        self.lost += other.lost;
        self.reconnects += other.reconnects;
        self.unsent += other.unsent;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.cpu += other.cpu;
        while self.windows.len() < other.windows.len() {
            self.windows.push(Window::default());
        }
        for (window, other) in self.windows.iter_mut().zip(&other.windows) {
            window.operations += other.operations;
            window.failures += other.failures;
            window.latency.merge(&other.latency);
        }
    }
}
