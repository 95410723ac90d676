//! When an operation should start: as soon as another has ended (closed loop) or by the clock (open
//! loop).
//!
//! In an open loop latency counts from the *intended* start. If a server stalls for a second, the
//! second counts for every operation that was due meanwhile, although the client could not send
//! them. So there is no coordinated omission.

use crate::rng::Rng;

/// Hands out intended start times. Times are nanoseconds on the caller's clock.
#[derive(Clone, Debug)]
pub enum Pacer {
    /// An operation starts when the one before it in its slot has ended.
    Closed,
    /// Operations start at a rate of their own.
    Open(Schedule),
}

/// The arrivals of an open loop.
#[derive(Clone, Debug)]
pub struct Schedule {
    next: f64,
    interval: f64,
    poisson: Option<Rng>,
}

impl Pacer {
    /// `rate` operations a second in equal distances, the first at `start`.
    pub fn open(rate: f64, start: u64) -> Self {
        Pacer::Open(Schedule { next: start as f64, interval: 1e9 / rate, poisson: None })
    }

    /// `rate` operations a second on average, in the random distances of independent users.
    pub fn poisson(rate: f64, start: u64, seed: u64) -> Self {
        Pacer::Open(Schedule {
            next: start as f64,
            interval: 1e9 / rate,
            poisson: Some(Rng::new(seed)),
        })
    }

    /// The time from which the latency of an operation sent at `now` counts; `None` if none is due
    /// yet.
    #[inline]
    pub fn take(&mut self, now: u64) -> Option<u64> {
        match self {
            Pacer::Closed => Some(now),
            Pacer::Open(schedule) => {
                if schedule.next > now as f64 {
                    return None;
                }
                let due = schedule.next as u64;
                schedule.next += match &mut schedule.poisson {
                    None => schedule.interval,
                    Some(rng) => -(1.0 - rng.next_f64()).ln() * schedule.interval,
                };
                Some(due)
            }
        }
    }

    /// When the next operation is due, if that is not "at once".
    pub fn due_at(&self) -> Option<u64> {
        match self {
            Pacer::Closed => None,
            Pacer::Open(schedule) => Some(schedule.next.ceil() as u64),
        }
    }

    /// How many operations were due by `now` and never sent: above zero at the end of a run, the
    /// server did not keep up.
    pub fn backlog(&self, now: u64) -> u64 {
        match self {
            Pacer::Closed => 0,
            Pacer::Open(s) if s.next > now as f64 => 0,
            Pacer::Open(s) => ((now as f64 - s.next) / s.interval) as u64 + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::{Latency, Summary};

    const MS: u64 = 1_000_000;

    /// One slot, a fake clock, a server that needs 0.1 ms but stands still from 1 s to 2 s; 4 s in
    /// all.
    fn run(mut pacer: Pacer) -> (Summary, Summary) {
        let (mut from_intent, mut from_send) = (Latency::new(), Latency::new());
        let mut now = 0;
        while now < 4000 * MS {
            let Some(intended) = pacer.take(now) else {
                now = pacer.due_at().unwrap();
                continue;
            };
            let sent = now;
            let served = if (1000 * MS..2000 * MS).contains(&sent) { 2000 * MS } else { sent };
            now = served + MS / 10;
            from_intent.record(now - intended);
            from_send.record(now - sent);
        }
        (from_intent.summary(), from_send.summary())
    }

    #[test]
    fn an_open_loop_charges_a_stall_to_everyone_who_had_to_wait() {
        // 1000 a second for 4 s: a quarter was due during the stall and waited 0 to 1000 ms (more
        // until the queue was drained).
        let (from_intent, from_send) = run(Pacer::open(1000.0, 0));
        assert!(from_intent.p99_us > 900_000.0, "{from_intent:?}");
        assert!(from_intent.mean_us > 100_000.0, "{from_intent:?}");
        assert!(from_intent.p50_us < 200.0, "{from_intent:?}");
        // What a naive client reports of the very same run:
        assert!(from_send.p999_us < 200.0, "{from_send:?}");
        assert_eq!(from_intent.count, 4000);
    }

    #[test]
    fn a_closed_loop_counts_from_the_sending() {
        let (from_intent, from_send) = run(Pacer::Closed);
        assert_eq!(from_intent, from_send);
    }

    #[test]
    fn random_arrivals_keep_the_rate() {
        let mut pacer = Pacer::poisson(1000.0, 0, 9);
        let mut sent = 0;
        while pacer.take(100_000 * MS).is_some() {
            sent += 1;
        }
        assert!((98_000..102_000).contains(&sent), "{sent}");
    }

    #[test]
    fn what_was_due_and_not_sent_is_the_backlog() {
        let mut pacer = Pacer::open(1000.0, 0);
        assert_eq!(pacer.take(0), Some(0));
        assert_eq!(pacer.take(MS / 2), None);
        assert_eq!(pacer.backlog(MS / 2), 0);
        assert_eq!(pacer.backlog(10 * MS), 10);
    }
}
