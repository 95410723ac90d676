//! From the start of a run to its figures.

use std::time::{Duration, Instant};

use super::report::Run;
use afterglow_loadgen::{cpu, latency::Latency};

/// Wall clock and CPU of the process since it was made.
pub struct Meter {
    wall: Instant,
    cpu: u64,
}

impl Meter {
    pub fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu::of_self() }
    }

    pub fn elapsed(&self) -> Duration {
        self.wall.elapsed()
    }

    /// The run's figures; `operations` counts all that ended well, `latency` may hold a sample of
    /// them only.
    pub fn stop(&self, operations: u64, latency: &Latency) -> Run {
        let (seconds, cpu) = (self.wall.elapsed().as_secs_f64(), cpu::of_self() - self.cpu);
        Run {
            operations,
            seconds,
            per_second: operations as f64 / seconds,
            cpu_us_per_operation: cpu as f64 / 1000.0 / operations.max(1) as f64,
            latency: latency.summary(),
            curve: latency.curve(),
            client: None,
        }
    }
}
