//! Deterministic simulation of rings of whole instances, as far as they have no sockets: members
//! with their caches of rows. One seed is one run.
//!
//! The ring alone is simulated in its own crate, with a model of a cache; the engine in its own.
//! Here both are joined as the server joins them:
//!
//! - Each [`machine`] has an engine, the files `ring` and `intents`, and a clock of its own rate.
//! - Its [`process`] has the server's [`Ring`](super::core::Ring) over a cache of rows. It reads,
//!   fills, carries rows over, answers other instances, and writes, by the server's own code where
//!   that has no socket.
//! - A seed makes a [`plan`]. The [`world`] carries it out, with [`network`], [`database`] and
//!   [`faults`].
//! - The [`oracle`] judges what clients hear, [`checks`] what caches have.
//!
//! `make instances-soak SEEDS=n FROM=m` is a campaign. `AFTERGLOW_SIM_SEED=n` replays a seed and
//! prints its events; with `AFTERGLOW_SIM_FAULTS=0,2` only these faults of its plan happen.
//!
//! One thread runs a seed. So what threads of an instance do to each other between two awaits is
//! not shown. No run has settings or a schema that change, units of partitions, rows on flash, or
//! links.

mod catalog;
mod checks;
mod database;
mod faults;
mod machine;
mod network;
mod oracle;
mod plan;
mod process;
mod random;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use oracle::Counts;
use plan::{RunPlan, plan_of};
use world::SimWorld;

/// Seeds of a normal test run.
const SEEDS: u64 = 32;
/// So many seeds are run twice: one in so many.
const TWICE: u64 = 16;

/// Runs a plan; what was wrong, a panic too.
fn run_plan(plan: RunPlan, trace: bool) -> Result<Counts, String> {
    // Its timers never run, so that futures wait for the world's time alone.
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    let run = AssertUnwindSafe(|| runtime.enter(|| SimWorld::new(plan, trace).run()));
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(text.unwrap_or_default())
    })
}

/// Runs a seed, now and then twice.
fn try_seed(seed: u64) -> Result<Counts, String> {
    let counts = run_plan(plan_of(seed), false)?;
    if seed.is_multiple_of(TWICE) && run_plan(plan_of(seed), false)? != counts {
        return Err("one seed, two runs".to_owned());
    }
    Ok(counts)
}

/// Runs `seeds` seeds from `from` on, each `step`th, to the first that fails.
fn campaign((from, step): (u64, u64), seeds: u64) -> Result<Counts, (u64, String)> {
    let (next, end) = (AtomicU64::new(from), AtomicU64::new(from + seeds * step));
    let total = Mutex::new((Counts::default(), None::<(u64, String)>));
    let work = || {
        loop {
            let seed = next.fetch_add(step, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                return;
            }
            let result = try_seed(seed);
            let mut total = total.lock().expect("nobody panics");
            match result {
                Ok(counts) => total.0 += counts,
                Err(message) => {
                    end.fetch_min(seed, Ordering::Relaxed);
                    if total.1.as_ref().is_none_or(|(first, _)| seed < *first) {
                        total.1 = Some((seed, message));
                    }
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (counts, failure) = total.into_inner().expect("nobody panics");
    failure.map_or(Ok(counts), Err)
}

/// A plan with only these of its faults.
fn only(plan: &RunPlan, faults: &[usize]) -> RunPlan {
    let faults = faults.iter().filter_map(|n| plan.faults.get(*n).copied()).collect();
    RunPlan { faults, ..plan.clone() }
}

fn env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

#[test]
fn no_seed_reads_what_is_stale_through_any_instance() {
    if let Some(seed) = env("AFTERGLOW_SIM_SEED") {
        let mut plan = plan_of(seed);
        if let Ok(faults) = std::env::var("AFTERGLOW_SIM_FAULTS") {
            let faults: Vec<_> = faults.split(',').filter_map(|n| n.trim().parse().ok()).collect();
            plan = only(&plan, &faults);
        }
        println!("{plan:?}");
        println!("{:?}", run_plan(plan, true));
        return;
    }
    let seeds = env("AFTERGLOW_SIM_SEEDS").unwrap_or(SEEDS);
    let from = (env("AFTERGLOW_SIM_FROM").unwrap_or(0), env("AFTERGLOW_SIM_STEP").unwrap_or(1));
    let began = Instant::now();
    let counts = campaign(from, seeds).unwrap_or_else(|(seed, message)| {
        panic!("seed {seed} failed: {message}\n{message}");
    });
    println!("{seeds} seeds in {:.1} s: {counts:?}", began.elapsed().as_secs_f64());
    if seeds < SEEDS {
        return;
    }
    // A cache that forgets everything would never be stale: it must also have remembered.
    assert!(counts.quiet_hits * 10 > counts.quiet * 8, "{counts:?}");
    assert!(counts.hits * 8 > counts.reads, "{counts:?}");
    assert!(counts.from_owners * 8 > counts.reads, "{counts:?}");
    assert!(counts.acknowledged * 2 > counts.writes, "{counts:?}");
    assert!(counts.carried > 0 && counts.judged > 0, "{counts:?}");
}
