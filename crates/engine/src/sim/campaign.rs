//! Many seeds on all cores, and what becomes of one that fails.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::attempt::try_run;
use super::coverage::Coverage;
use super::plan::Plan;
use super::shrink::shrink;
use super::state::Outcome;

/// Seeds a thread takes at a time.
const BATCH: u64 = 16;
/// One seed in so many is run twice, to see that it is the same run.
const TWICE: u64 = 128;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// What a campaign saw.
#[derive(Debug, Default)]
pub struct Total {
    pub seeds: u64,
    pub outcome: Outcome,
    pub coverage: Coverage,
}

/// A seed that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub message: String,
}

/// Runs `seeds` seeds from `from` on; ends early at one that fails, always the first one.
pub fn campaign(from: u64, seeds: u64, progress: bool) -> Result<Total, Failure> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let (next, end) = (AtomicU64::new(from), AtomicU64::new(from + seeds));
    let failure: Mutex<Option<Failure>> = Mutex::new(None);
    let total = Mutex::new(Total::default());
    let began = Instant::now();
    std::thread::scope(|scope| {
        let work = || {
            let _ = Coverage::take();
            let (mut outcome, mut done) = (Outcome::default(), 0);
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                let mine =
                    (first..first + BATCH).take_while(|seed| *seed < end.load(Ordering::Relaxed));
                let before = done;
                for seed in mine {
                    match try_seed(seed) {
                        Ok(o) => outcome = outcome.and(o),
                        Err(message) => {
                            let mut failure = failure.lock();
                            if failure.as_ref().is_none_or(|f| seed < f.seed) {
                                end.store(seed, Ordering::Relaxed);
                                *failure = Some(Failure { seed, message });
                            }
                            break;
                        }
                    }
                    done += 1;
                }
                if done < before + BATCH {
                    break;
                }
                if (first / BATCH).is_multiple_of(64) {
                    flush(&total, &mut done, &mut outcome);
                }
            }
            flush(&total, &mut done, &mut outcome);
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut said = Instant::now();
        while progress && !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::park_timeout(Duration::from_millis(100));
            if said.elapsed() >= PROGRESS {
                said = Instant::now();
                let done = total.lock().seeds;
                let rate = done as f64 / began.elapsed().as_secs_f64();
                eprintln!("{done} of {seeds} seeds, {rate:.0} a second");
            }
        }
    });
    match failure.into_inner() {
        Some(failure) => Err(failure),
        None => Ok(total.into_inner()),
    }
}

fn flush(total: &Mutex<Total>, done: &mut u64, outcome: &mut Outcome) {
    let mut total = total.lock();
    total.seeds += std::mem::take(done);
    total.outcome = total.outcome.and(std::mem::take(outcome));
    total.coverage.add(&Coverage::take());
}

/// Runs a seed, now and then twice.
pub fn try_seed(seed: u64) -> Result<Outcome, String> {
    let plan = Plan::of(seed);
    let outcome = try_run(&plan)?;
    if seed.is_multiple_of(TWICE) {
        let again = try_run(&plan)?;
        if outcome != again {
            return Err(format!("one seed, two runs: {outcome:?} and {again:?}"));
        }
    }
    Ok(outcome)
}

/// Shortens a failed run and writes it where it can be looked at, replayed and kept; says where.
pub fn report(failure: &Failure) -> String {
    if std::env::var("AFTERGLOW_SIM_SHRINK").is_ok_and(|v| v == "0") {
        return format!("seed {} failed: {}", failure.seed, failure.message);
    }
    let (plan, message) = shrink(&Plan::of(failure.seed), &failure.message);
    let text =
        format!("# seed {}: {}\n{}", failure.seed, message.replace('\n', " "), plan.to_text());
    let dir = std::env::var_os("AFTERGLOW_SIM_OUT").map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join(format!("afterglow-sim-{}.trace", failure.seed));
    let written = std::fs::write(&path, &text);
    format!(
        "seed {} failed: {}\n{} steps are enough for: {message}\n{}",
        failure.seed,
        failure.message,
        plan.steps.len(),
        match written {
            Ok(()) =>
                format!("they are in {0}; replay them with AFTERGLOW_SIM_TRACE={0}", path.display()),
            Err(error) =>
                format!("they could not be written to {}: {error}\n{text}", path.display()),
        }
    )
}
