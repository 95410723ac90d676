//! Many seeds on all cores. A seed that fails is shrunk and printed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::coverage::Coverage;
use super::oracle::Counts;
use super::plan::Plan;
use super::seeds::plan_of;
use super::world::World;

/// One seed in so many is run twice, to see that it is the same run.
const TWICE: u64 = 64;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// A campaign of so many seeds says how far it is.
const LONG: u64 = 1_000;

/// What a campaign saw.
#[derive(Debug, Default)]
pub struct Total {
    pub seeds: u64,
    pub counts: Counts,
    pub coverage: Coverage,
}

/// A seed that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub message: String,
}

/// Runs a plan; what was wrong, a panic too.
pub fn run_plan(plan: Plan, trace: bool) -> Result<Counts, String> {
    let run = std::panic::AssertUnwindSafe(|| World::new(plan, trace).run());
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            .unwrap_or_default())
    })
}

/// Runs a seed, now and then twice.
pub fn try_seed(seed: u64) -> Result<Counts, String> {
    let counts = run_plan(plan_of(seed), false)?;
    if seed.is_multiple_of(TWICE) && run_plan(plan_of(seed), false)? != counts {
        return Err("one seed, two runs".to_owned());
    }
    Ok(counts)
}

/// Runs `seeds` seeds from `from` on, each `step`th. It ends early at one that fails, or goes on
/// and prints each. The first of them is told in any case.
pub fn campaign((from, step): (u64, u64), seeds: u64, go_on: bool) -> Result<Total, Failure> {
    let progress = seeds >= LONG;
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let (next, end) = (AtomicU64::new(from), AtomicU64::new(from + seeds * step));
    let failure: Mutex<Option<Failure>> = Mutex::new(None);
    let total = Mutex::new(Total::default());
    let began = Instant::now();
    let work = || {
        let _ = Coverage::take();
        loop {
            let seed = next.fetch_add(step, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                return;
            }
            match try_seed(seed) {
                Ok(counts) => {
                    let mut total = total.lock().expect("nobody panics");
                    total.seeds += 1;
                    total.counts = total.counts.and(counts);
                    total.coverage.add(&Coverage::take());
                }
                Err(message) => {
                    if go_on {
                        eprintln!("seed {seed}: {message}");
                    }
                    let mut failure = failure.lock().expect("nobody panics");
                    if failure.as_ref().is_none_or(|f| seed < f.seed) {
                        *failure = Some(Failure { seed, message });
                    }
                    if !go_on {
                        end.fetch_min(seed, Ordering::Relaxed);
                        return;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut said = Instant::now();
        while progress && !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::park_timeout(Duration::from_millis(100));
            if said.elapsed() >= PROGRESS {
                said = Instant::now();
                let done = total.lock().expect("nobody panics").seeds;
                let rate = done as f64 / began.elapsed().as_secs_f64();
                eprintln!("{done} of {seeds} seeds, {rate:.0} a second");
            }
        }
    });
    match failure.into_inner().expect("nobody panics") {
        Some(failure) => Err(failure),
        None => Ok(total.into_inner().expect("nobody panics")),
    }
}

/// Leaves out faults of a failed run as long as it still fails: which are left, and with what.
pub fn shorten(seed: u64, message: &str) -> (Vec<usize>, String) {
    let whole = plan_of(seed);
    let mut left: Vec<usize> = (0..whole.faults.len()).collect();
    let mut message = message.to_owned();
    let mut at = 0;
    while at < left.len() {
        let mut fewer = left.clone();
        fewer.remove(at);
        match run_plan(only(&whole, &fewer), false) {
            Err(wrong) => (left, message) = (fewer, wrong),
            Ok(_) => at += 1,
        }
    }
    (left, message)
}

/// A plan with only these of its faults.
pub fn only(plan: &Plan, faults: &[usize]) -> Plan {
    let faults = faults.iter().filter_map(|n| plan.faults.get(*n).cloned()).collect();
    Plan { faults, ..plan.clone() }
}
