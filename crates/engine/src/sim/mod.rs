//! Deterministic simulation: one seed is one run of the whole engine over a simulated machine.
//!
//! A seed makes ([`maker`]) a [`plan`]: a small cache and 100 to 400 steps, in one seed of 64
//! 2,500. The cache has:
//! - one to three devices of unequal size, with segments from 16 KiB;
//! - an index with hardly enough space for its keys, sometimes with tags of a few bits;
//! - two to four namespaces with options of all kinds.
//!
//! The steps are:
//! - puts, compare-and-puts, removals of all kinds, and lookups whose reads wait while other steps
//!   run;
//! - background work, and clocks that step;
//! - sizes and options that change between lives, and clean stops;
//! - a data directory that comes back as it was earlier, while devices have gone on;
//! - a device that does not answer over a crash;
//! - devices in other places of the list, and an empty one of another size in the place of one;
//! - a device that comes back as it was earlier, while the data directory has gone on;
//! - crashes of the process and of the machine, between two steps, in the middle of every kind of
//!   effect, and while opening;
//! - indexes that outgrow the areas of their checkpoints ([`kinds`]);
//! - short sequences that break an order that the engine relies on ([`motifs`]). Examples are I/Os
//!   held up, checkpoints close to each other, and a background thread that is blocked while
//!   operations go on ([`blocked`]).
//!
//! Half of the seeds also have faults. The fault model is at the head of [`crate::device::sim`].
//!
//! [`run`] carries a plan out; its state between two steps is in [`state`] and [`parts`]. The
//! [`oracle`] knows for every key which values a get may return. [`checks`] checks warmth, budgets
//! and counters, and that no work is left over. [`coverage`] counts how often rare paths were
//! reached.
//!
//! `make soak SEEDS=n FROM=m` is a [`campaign`]. `AFTERGLOW_SIM_SEED=n` replays a seed and prints
//! its steps. `AFTERGLOW_SIM_TRACE=file` replays a run that was shortened after its seed had failed
//! ([`shrink`]). Those that found something are kept in `regressions/` and replayed by every test
//! run.

mod acks;
mod admission;
mod attempt;
mod backpressure;
mod blocked;
mod campaign;
mod changes;
mod checks;
mod copies;
pub mod coverage;
mod device_changes;
mod devices;
mod directory;
mod durable;
mod forgetting;
mod growth;
mod hangs;
mod kill_log;
mod kill_log_lives;
mod kinds;
mod lateness;
#[cfg(loom)]
mod loom_tests;
mod maker;
mod metadata;
mod motifs;
mod older_devices;
mod openings;
mod oracle;
mod parted;
mod parts;
mod plan;
mod reinsertion;
mod relief;
mod run;
mod scenarios;
mod shrink;
mod state;
mod warnings;
mod world;

use std::path::Path;

use attempt::try_run;
use campaign::{campaign, report, try_seed};
use plan::Plan;

/// Seeds of a normal test run.
const SEEDS: u64 = 2_000;
/// From so many seeds on every path must have been reached.
const ALL_PATHS: u64 = 50_000;

fn env(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is not a number")))
}

#[test]
fn no_seed_returns_a_stale_or_wrong_value_or_forgets_what_it_must_keep() {
    if let Some(seed) = env("AFTERGLOW_SIM_SEED") {
        println!("{:?}", run::run(&Plan::of(seed), true));
        return;
    }
    if let Ok(path) = std::env::var("AFTERGLOW_SIM_TRACE") {
        println!("{:?}", run::run(&read(Path::new(&path)), true));
        return;
    }
    let seeds = env("AFTERGLOW_SIM_SEEDS").unwrap_or(SEEDS);
    let from = env("AFTERGLOW_SIM_FROM").unwrap_or(0);
    let began = std::time::Instant::now();
    let total = campaign(from, seeds, seeds > SEEDS)
        .unwrap_or_else(|failure| panic!("{}", report(&failure)));
    let (outcome, seconds) = (total.outcome, began.elapsed().as_secs_f64());
    println!("{} seeds in {seconds:.0} s: {outcome:?}\n{}", total.seeds, total.coverage);
    let missing = total.coverage.missing();
    if !missing.is_empty() {
        println!("never reached: {missing:?}");
    }
    if seeds < SEEDS {
        return;
    }
    // A cache that forgets everything would never be stale: it must also have remembered.
    assert!(outcome.hits * 2 > outcome.gets, "{outcome:?}");
    assert!(outcome.flash_hits * 20 > outcome.gets && outcome.warm > seeds, "{outcome:?}");
    assert!(
        seeds < ALL_PATHS || missing.is_empty(),
        "a campaign of {seeds} seeds never reached {missing:?}"
    );
}

#[test]
fn a_seed_is_one_run() {
    for seed in [3, 8, 21, 34, 63] {
        assert_eq!(try_seed(seed), try_seed(seed), "seed {seed}");
    }
}

fn read(path: &Path) -> Plan {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Plan::from_text(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn what_once_failed_does_not_fail_again() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sim/regressions");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .expect("the folder of regressions")
        .map(|f| f.expect("a readable folder").path())
        .filter(|p| p.extension().is_some_and(|e| e == "trace"))
        .collect();
    files.sort();
    for path in files {
        if let Err(wrong) = try_run(&read(&path)) {
            panic!("{} fails again: {wrong}", path.display());
        }
    }
}

#[test]
fn a_plan_reads_back_as_it_was_written() {
    for seed in 0..20 {
        let plan = Plan::of(seed);
        assert_eq!(Plan::from_text(&plan.to_text()).expect("it was just written"), plan);
    }
}
