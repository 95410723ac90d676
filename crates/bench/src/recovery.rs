//! How soon a cache of many objects serves again, after a clean stop and after `kill -9`.
//!
//! Each life is a process of its own, since only that can be killed. The parent starts it, reads
//! what it reports on standard output, and ends it in one of the two ways; the next life is
//! measured.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use afterglow_engine::{Namespace, PutOptions};

use super::{
    BenchError, pin, progress,
    report::{Check, Report},
    store::{self, Scratch, Shape, is_value, key, write_value},
};
use crate::comparison::median;
use afterglow_loadgen::{cpu, rng::Rng};

/// What is measured.
#[derive(Clone, Debug)]
pub struct RecoveryOptions {
    /// Where to make the cache.
    pub dir: PathBuf,
    /// Objects in it.
    pub objects: u64,
    /// Bytes of each value.
    pub value: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Objects put again before each `kill -9`.
    pub updates: u64,
    /// Times of each kind.
    pub runs: usize,
    /// The program that has [`life`] behind these arguments.
    pub program: PathBuf,
    /// The arguments.
    pub arguments: Vec<String>,
}

/// From opening to the first hit, in milliseconds.
const FIRST_HIT: f64 = 200.0;
/// Objects loaded a second.
const LOADED: f64 = 4e6;
/// Of the objects, found again.
const FOUND: f64 = 0.999;
/// One in so many objects is put again before a kill: what a crash may cost is looked for among the
/// others.
const UPDATED: u64 = 4;
/// Keys tried to find the first hit.
const TRIES: u64 = 10_000_000;
/// Lookups for the share found again.
const SAMPLE: u64 = 20_000;
/// Objects put again between two reports.
const REPORT_EVERY: u64 = 10_000;

/// What a life reports once it has loaded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Opening {
    /// Milliseconds until the cache was open.
    pub open_ms: f64,
    /// Milliseconds of CPU that took, all threads.
    pub open_cpu_ms: f64,
    /// Milliseconds from the start of opening until the first hit.
    pub first_hit_ms: f64,
    /// Milliseconds from the start of opening until the index was loaded.
    pub loaded_ms: f64,
    /// Slots of the index then.
    pub slots: u64,
    /// Share found then of a sample of objects that no update touched: they had reached flash.
    pub found: f64,
    /// Highest resident memory until then.
    pub peak: u64,
}

/// A life, in a process of its own: opens the cache (filling a new one), reports, then does what it
/// is told.
#[derive(Clone, Debug)]
pub struct Life {
    /// Where it lies.
    pub dir: PathBuf,
    /// Objects in it.
    pub objects: u64,
    /// Bytes of each value.
    pub value: usize,
    /// Bytes of memory.
    pub memory: u64,
}

impl Life {
    fn shape(&self) -> Shape {
        let mut shape = Shape {
            dir: self.dir.clone(),
            size: 0,
            memory: self.memory,
            index_memory: None,
            value: self.value,
        };
        let index = (self.objects as f64 / 0.9) as u64 * 8;
        shape.index_memory = Some(index);
        // Room for the copies that updates make until a checkpoint and reclaim have caught up.
        shape.size = shape.flash_for(self.objects).max((index + 4096) * 64) * 5 / 4;
        shape
    }

    /// Runs it: one line of JSON when loaded, then for `update N` lines of counts until killed, for
    /// `close` a clean end.
    pub fn run(&self) -> Result<(), BenchError> {
        let shape = self.shape();
        let is_new = !shape.flash().exists();
        let begin = Instant::now();
        let cpu_before = cpu::of_self();
        let (cache, ns) = shape.open()?;
        let open_cpu_ms = (cpu::of_self() - cpu_before) as f64 / 1e6;
        let open_ms = begin.elapsed().as_secs_f64() * 1e3;
        if is_new {
            store::fill(&cache, &ns, 0..self.objects, self.value);
            store::settle(&cache)?;
            store::no_drops(&cache)?;
            say(&Opening::default());
        } else {
            let first_hit_ms = self.first_hit(&ns, begin)?;
            while cache.stats().loading {
                thread::sleep(Duration::from_millis(1));
            }
            let loaded_ms = begin.elapsed().as_secs_f64() * 1e3;
            let peak = pin::resident().map_err(BenchError::io("read /proc/self/status"))?.peak;
            let slots = cache.stats().index_slots_used;
            let found = self.found(&ns)?;
            say(&Opening { open_ms, open_cpu_ms, first_hit_ms, loaded_ms, slots, found, peak });
        }
        let mut order = String::new();
        std::io::stdin().read_line(&mut order).map_err(BenchError::io("read an order"))?;
        if order.trim() == "update" {
            self.update(&ns);
        }
        cache.close();
        Ok(())
    }

    fn first_hit(&self, ns: &Namespace, begin: Instant) -> Result<f64, BenchError> {
        let mut rng = Rng::new(begin.elapsed().as_nanos() as u64);
        for _ in 0..TRIES {
            let id = rng.below(self.objects);
            if let Some(hit) = ns.get_blocking(&key(id)) {
                self.verify(id, &hit.value)?;
                return Ok(begin.elapsed().as_secs_f64() * 1e3);
            }
        }
        Err(BenchError::Void("nothing was found again".into()))
    }

    fn found(&self, ns: &Namespace) -> Result<f64, BenchError> {
        let (mut rng, mut found) = (Rng::new(5), 0u64);
        for _ in 0..SAMPLE {
            let id = self.objects / UPDATED + rng.below(self.objects - self.objects / UPDATED);
            if let Some(hit) = ns.get_blocking(&key(id)) {
                self.verify(id, &hit.value)?;
                found += 1;
            }
        }
        Ok(found as f64 / SAMPLE as f64)
    }

    fn verify(&self, id: u64, value: &[u8]) -> Result<(), BenchError> {
        if is_value(id, value, self.value) {
            return Ok(());
        }
        Err(BenchError::Void(format!("object {id} came back with another value")))
    }

    /// Puts objects again for as long as the process lives (or its parent reads on).
    fn update(&self, ns: &Namespace) {
        let (mut rng, mut value) = (Rng::new(std::process::id().into()), vec![0xa5; self.value]);
        for n in 1.. {
            let id = rng.below((self.objects / UPDATED).max(1));
            write_value(id, &mut value);
            let _ = ns.put(&key(id), &value, PutOptions::default());
            if n % REPORT_EVERY == 0 && writeln!(std::io::stdout(), "{n}").is_err() {
                return;
            }
        }
    }
}

fn say(opening: &Opening) {
    let line = serde_json::to_string(opening).expect("a struct of numbers is JSON");
    // A parent that is gone has its reasons.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A life seen from its parent; killed when dropped.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(options: &RecoveryOptions, dir: &Path) -> Result<(Self, Opening), BenchError> {
        let fail = || BenchError::io(format!("run {}", options.program.display()));
        let mut child = Command::new(&options.program)
            .args(&options.arguments)
            .arg("--dir")
            .arg(dir)
            .args([
                "--objects",
                &options.objects.to_string(),
                "--value",
                &format!("{}B", options.value),
            ])
            .args(["--memory", &format!("{}B", options.memory)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail())?;
        let out = child.stdout.take().expect("it is piped");
        let mut running = Self { child, lines: BufReader::new(out).lines() };
        let line = running.line()?;
        let opening = serde_json::from_str(&line).map_err(|e| fail()(e.into()))?;
        Ok((running, opening))
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let ended = || {
            BenchError::Void("the process ended before its time; its own words are above".into())
        };
        self.lines.next().ok_or_else(ended)?.map_err(BenchError::io("read from the process"))
    }

    fn order(&mut self, order: &str) -> Result<(), BenchError> {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{order}").map_err(BenchError::io("write to the process"))
    }

    /// A clean stop.
    fn close(mut self) -> Result<(), BenchError> {
        self.order("close")?;
        let status = self.child.wait().map_err(BenchError::io("wait for the process"))?;
        if status.success() {
            Ok(())
        } else {
            Err(BenchError::Void(format!("the process ended with {status}")))
        }
    }

    /// `kill -9` in the middle of updates.
    fn kill_after(mut self, updates: u64) -> Result<(), BenchError> {
        self.order("update")?;
        while self.line()?.trim().parse::<u64>().is_ok_and(|n| n < updates) {}
        self.child.kill().map_err(BenchError::io("kill the process"))
    }
}

/// `afterglow-bench recovery`.
pub fn recovery(options: &RecoveryOptions) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let mut report = Report::new("recovery", scratch.path());
    progress(format_args!("putting {} objects of {} B", options.objects, options.value));
    Running::start(options, scratch.path())?.0.close()?;
    let (mut clean, mut killed) = (Vec::new(), Vec::new());
    for n in 0..options.runs {
        progress(format_args!("clean stop and kill -9, {} of {}", n + 1, options.runs));
        let (running, opening) = Running::start(options, scratch.path())?;
        clean.push(opening);
        running.kill_after(options.updates)?;
        let (running, opening) = Running::start(options, scratch.path())?;
        killed.push(opening);
        running.close()?;
    }
    report.figure("objects", options.objects as f64, "");
    report.figure("objects put again before each kill -9", options.updates as f64, "");
    for (how, openings) in [("clean stop", clean), ("kill -9", killed)] {
        enter(&mut report, how, &openings, options);
    }
    Ok(report)
}

fn enter(report: &mut Report, how: &str, openings: &[Opening], options: &RecoveryOptions) {
    let middle = |figure: fn(&Opening) -> f64| median(openings.iter().map(figure));
    let most = |figure: fn(&Opening) -> f64| openings.iter().map(figure).fold(0.0, f64::max);
    report.figure(format!("after {how}: open"), middle(|o| o.open_ms), "ms");
    report.figure(format!("after {how}: CPU of opening"), middle(|o| o.open_cpu_ms), "ms");
    report.figure(format!("after {how}: slowest first hit"), most(|o| o.first_hit_ms), "ms");
    report.figure(format!("after {how}: loaded"), middle(|o| o.loaded_ms), "ms");
    report.figure(format!("after {how}: slots loaded"), middle(|o| o.slots as f64), "");
    report.figure(format!("after {how}: highest resident memory"), most(|o| o.peak as f64), "B");
    report.checks.push(Check::at_most(
        format!("after {how}: first hit, ms"),
        middle(|o| o.first_hit_ms),
        FIRST_HIT,
    ));
    let rate = middle(|o| o.slots as f64 / o.loaded_ms * 1e3);
    report.checks.push(Check::at_least(
        format!("after {how}: objects loaded a second, opening included"),
        rate,
        LOADED,
    ));
    report.checks.push(Check::at_least(
        format!("after {how}: share found again"),
        middle(|o| o.found),
        FOUND,
    ));
    let peak = most(|o| o.peak as f64) / options.memory as f64;
    report.checks.push(Check::at_most(
        format!("after {how}: highest resident memory as a share of the budget"),
        peak,
        1.0,
    ));
}
