//! Both tiers together on public traces: hit ratios and flash bytes written, at several ratios of
//! flash to DRAM, beside other policies and an offline bound.
//!
//! - [`read`] reads traces.
//! - [`ours`] replays one through the engine.
//! - [`tiers`], [`admission`] and [`s3_fifo`] are models of the policies it is compared with.
//! - [`offline`] is what could be had with knowledge of the future.
//!
//! All of them have the same bytes of DRAM and flash, pay the same for an object, begin empty, and
//! store no object that is larger than a quarter of the engine's segments.

mod admission;
mod offline;
mod ours;
mod policy;
mod queue;
mod read;
mod s3_fifo;
mod tiers;

use std::path::PathBuf;

use self::{
    admission::{Random, Regions, RejectFirst, TinyLfu},
    ours::{Plan, Replayed, cost},
    policy::{Room, Tally, replay},
    read::Trace,
    s3_fifo::S3Fifo,
    tiers::{AdmitAll, Fifo, Tiers},
};
use crate::{
    BenchError, progress,
    report::{Check, Grid, Report},
    store::Scratch,
};

/// What is replayed.
#[derive(Clone, Debug)]
pub struct TracesOptions {
    /// Where the traces are; without it none is replayed.
    pub traces: Option<PathBuf>,
    /// Names of traces; empty for all that are there.
    pub names: Vec<String>,
    /// Where to make the caches.
    pub dir: PathBuf,
    /// Bytes of flash for each byte of DRAM.
    pub ratios: Vec<u32>,
    /// Both tiers together, in percent of the bytes of all objects.
    pub share: f64,
    /// Bytes of an object where the trace does not say.
    pub object: u32,
}

/// Points that ours may be below the best online policy that writes no more.
const POINTS: f64 = 1.0;
/// A policy that writes at most so many times what ours writes counts as writing no more.
const NO_MORE: f64 = 1.02;
/// Share of what admit-all writes.
const HALF: f64 = 0.5;
/// CacheLib's regions in the model, and the probability of its random admission: a limit of half
/// the bytes.
const REGIONS: usize = 128;
const PROBABILITY: f64 = 0.5;

/// Names in tables.
const OURS: &str = "ours";
const ADMIT_ALL: &str = "admit-all FIFO";

/// `afterglow-bench traces`.
///
/// # Errors
/// A trace that is named is not there, one is damaged, or a cache cannot be opened.
pub fn traces(options: &TracesOptions) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let mut report = Report::new("traces", scratch.path());
    let all = || read::names().map(str::to_owned).collect();
    let names: Vec<String> = if options.names.is_empty() { all() } else { options.names.clone() };
    for name in names {
        match find(options, &name)? {
            Some(trace) => one(options, &trace, &scratch, &mut report)?,
            None => report.missing.push(format!("trace {name}: {}", why_missing(options))),
        }
    }
    Ok(report)
}

fn why_missing(options: &TracesOptions) -> String {
    match &options.traces {
        Some(dir) => format!("it is not in {}", dir.display()),
        None => "no folder of traces is named, by --traces or AFTERGLOW_TRACES".into(),
    }
}

fn find(options: &TracesOptions, name: &str) -> Result<Option<Trace>, BenchError> {
    let Some(dir) = &options.traces else { return Ok(None) };
    if !dir.is_dir() {
        let why = format!("{} is no folder: name the one with the traces", dir.display());
        return Err(BenchError::Void(why));
    }
    let trace = read::read(dir, name, options.object)?;
    if trace.is_none() && !options.names.is_empty() {
        return Err(BenchError::Void(format!("trace {name}: {}", why_missing(options))));
    }
    Ok(trace)
}

/// Replays a trace at each ratio, and enters its table.
fn one(
    options: &TracesOptions,
    trace: &Trace,
    scratch: &Scratch,
    report: &mut Report,
) -> Result<(), BenchError> {
    let mut grid = Grid::new(&trace.name, note(options, trace), &COLUMNS);
    for &ratio in &options.ratios {
        progress(format_args!("{}: flash {ratio} times DRAM", trace.name));
        let both = trace.bytes as f64 * options.share / 100.0;
        let dram = both / f64::from(ratio + 1);
        let plan = Plan::new(scratch.path(), trace, dram as u64, (both - dram) as u64)?;
        let ours = ours::ours(&plan, trace)?;
        scratch.clear()?;
        let online = online(trace, plan.room());
        grid.row(format!("{ratio}x {OURS}"), row(&ours.tally));
        for (name, tally) in &online {
            grid.row(format!("{ratio}x {name}"), row(tally));
        }
        grid.row(format!("{ratio}x offline bound"), bound(trace, plan.room()));
        judge(&format!("{}, {ratio}x", trace.name), &ours, &online, report);
    }
    report.grids.push(grid);
    Ok(())
}

/// Columns of a trace's table.
const COLUMNS: [&str; 5] = [
    "objects: DRAM %",
    "objects: both %",
    "bytes: DRAM %",
    "bytes: both %",
    "flash written / requested",
];

fn row(tally: &Tally) -> Vec<Option<f64>> {
    let ([o, objects], [b, bytes]) = (tally.objects(), tally.in_bytes());
    [o, objects, b, bytes, tally.written_share()].map(Some).to_vec()
}

fn note(options: &TracesOptions, trace: &Trace) -> String {
    let sizes = match trace.sized {
        true => format!("of the trace's sizes, {} B on average", trace.mean()),
        false => format!("of {} B each, as the trace names no sizes", options.object),
    };
    format!(
        "{} requests for {} objects {sizes}; both tiers have {} % of their bytes",
        trace.requests.len(),
        trace.unique,
        options.share
    )
}

/// The policies that stand beside ours.
fn online(trace: &Trace, room: &Room) -> Vec<(&'static str, Tally)> {
    let requests = &trace.requests;
    let fifo = || Fifo::new(room);
    let regions = Regions::new(room, REGIONS);
    vec![
        (ADMIT_ALL, replay(requests, room, cost, Tiers::new(room, fifo(), AdmitAll))),
        ("S3-FIFO admission", replay(requests, room, cost, S3Fifo::new(room))),
        (
            "TinyLFU admission",
            replay(requests, room, cost, Tiers::new(room, fifo(), TinyLfu::new(room))),
        ),
        (
            "reject-first",
            replay(requests, room, cost, Tiers::new(room, fifo(), RejectFirst::new(room))),
        ),
        (
            "CacheLib defaults",
            replay(requests, room, cost, Tiers::new(room, regions, Random::new(PROBABILITY))),
        ),
    ]
}

/// The row of the offline bound: what DRAM alone and both tiers could answer.
fn bound(trace: &Trace, room: &Room) -> Vec<Option<f64>> {
    let of = |bytes, cost: fn(u32) -> u32| {
        offline::offline(&trace.requests, trace.unique, bytes, room.largest, cost)
    };
    let dram = of(room.dram, |len| cost(len).dram);
    let both = of(room.dram + room.flash, |len| cost(len).flash);
    let figures = [dram.objects()[0], both.objects()[0], dram.in_bytes()[0], both.in_bytes()[0]];
    figures.into_iter().map(Some).chain([None]).collect()
}

/// Judges ours by the goals: near the best that writes no more, and no worse than admit-all at
/// half its bytes.
fn judge(name: &str, ours: &Replayed, online: &[(&str, Tally)], report: &mut Report) {
    let (hits, written) = (ours.tally.objects()[1], ours.tally.written as f64);
    let no_more = |(_, tally): &&(&str, Tally)| tally.written as f64 <= written * NO_MORE;
    let best = online
        .iter()
        .filter(no_more)
        .map(|(name, tally)| (*name, tally.objects()[1]))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    let check = match best {
        Some((best, theirs)) => Check::at_most(
            format!("{name}: points below the best that writes no more"),
            theirs - hits,
            POINTS,
        )
        .from(format!("{hits:.1} and {theirs:.1} of {best}")),
        None => Check::at_most(
            format!("{name}: points below the best that writes no more"),
            0.0,
            POINTS,
        )
        .from(format!("{hits:.1}; all others write more")),
    };
    report.checks.push(check);
    if let Some((_, all)) = online.iter().find(|(name, _)| *name == ADMIT_ALL) {
        let theirs = all.objects()[1];
        report.checks.push(
            Check::at_least(format!("{name}: points above {ADMIT_ALL}"), hits - theirs, 0.0)
                .from(format!("{hits:.1} and {theirs:.1}")),
        );
        report.checks.push(Check::at_most(
            format!("{name}: flash written, share of {ADMIT_ALL}"),
            written / (all.written as f64).max(1.0),
            HALF,
        ));
    }
    let share = |bytes: u64| 100.0 * bytes as f64 / written.max(1.0);
    report.figure(format!("{name}: ours, reinserted"), share(ours.reinserted), "% of written");
    report.figure(format!("{name}: ours, metadata and padding"), share(ours.metadata), "% besides");
    report.figure(format!("{name}: ours, lost for other reasons"), ours.lost as f64, "objects");
}
