//! What several devices of unequal speed give together, and what is left when one fails.
//!
//! Devices are loop devices over files, whose speed a control group limits. So the limits decide
//! and not the machine, and one core is enough. The steps:
//!
//! 1. Each device alone: a cache on it, random reads from flash. The sum of these rates is what the
//!    set is judged by.
//! 2. A cache on all of them: uniform reads, then zipfian ones, which go on for a while, then both
//!    again.
//! 3. The device that has most of the reads hangs under load, and answers again later.
//! 4. It is pulled out under load.

mod load;
mod loops;
mod throttle;
mod windows;

use std::{
    cell::Cell,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use afterglow_engine::{Cache, Config, DeviceConfig, NamespaceOptions};
use afterglow_loadgen::ycsb::{Distribution, KeyChooser};

use self::{
    load::{FilledCache, Measured},
    loops::LoopDevice,
    throttle::{Limit, Throttle},
    windows::Windows,
};
use super::{
    BenchError, progress,
    report::{Check, Grid, Report, Section, Series},
    store::{self, KEY, Scratch},
};

/// What is measured.
#[derive(Clone, Debug)]
pub struct DevicesOptions {
    /// Where to make the devices' files and the cache's directory.
    pub dir: PathBuf,
    /// Bytes of each device.
    pub sizes: Vec<u64>,
    /// Reads a second that each device does.
    pub reads: Vec<u64>,
    /// Share of the flash that is filled, in percent.
    pub fill: u32,
    /// Bytes of memory: little, so that gets reach flash.
    pub memory: u64,
    /// Size of values.
    pub value: usize,
    /// Gets in flight.
    pub depth: usize,
    /// How long each run is.
    pub seconds: f64,
    /// How long zipfian reads go on between their first and their last run.
    pub balance: f64,
    /// How long the load goes on before a device fails, meanwhile, and afterwards; 0 leaves out
    /// what fails.
    pub outage: f64,
}

/// Share of the sum of the devices' rates.
const SET: f64 = 0.95;
/// Seconds until the p99 is back.
const BACK: f64 = 5.0;
/// A p99 is back where it is at most so many times what it was.
const AS_BEFORE: u32 = 2;
/// Bytes that a device writes in the time of one read.
const WRITTEN: u64 = 64 << 10;
/// Bytes of objects of a device alone.
const ALONE: u64 = 256 << 20;
/// Share of the set's rate that a device fails under.
const LOADED: f64 = 0.5;
/// Lookups are judged together that begin within this time.
const WINDOW: Duration = Duration::from_millis(500);

/// The devices, their limits, and where the caches lie.
struct Bench<'a> {
    options: &'a DevicesOptions,
    scratch: Scratch,
    devices: Vec<LoopDevice>,
    numbers: Vec<(u32, u32)>,
    throttle: Throttle,
    /// Runs so far: each has random numbers of its own, or it would ask for the same keys again.
    runs: Cell<u64>,
}

/// `afterglow-bench devices`.
pub fn devices(options: &DevicesOptions) -> Result<Report, BenchError> {
    let bench = Bench::new(options)?;
    let mut report = Report::new("devices", bench.scratch.path());
    let sum = bench.alone(&mut report)?;
    let subject = bench.fill(0..options.sizes.len(), u64::MAX)?;
    let rate = bench.set(&subject, sum, &mut report)?;
    if options.outage > 0.0 {
        bench.outages(&subject, rate, &mut report)?;
    }
    Ok(report)
}

impl<'a> Bench<'a> {
    fn new(options: &'a DevicesOptions) -> Result<Self, BenchError> {
        let scratch = Scratch::new(&options.dir)?;
        let attach = |&size| LoopDevice::attach(scratch.path(), size);
        let devices = options.sizes.iter().map(attach).collect::<Result<Vec<_>, _>>()?;
        let numbers = devices.iter().map(LoopDevice::numbers).collect::<Result<Vec<_>, _>>()?;
        let bench = Self {
            options,
            throttle: Throttle::new()?,
            scratch,
            devices,
            numbers,
            runs: Cell::new(0),
        };
        for n in 0..bench.devices.len() {
            bench.as_fast_as_it_is(n)?;
        }
        Ok(bench)
    }

    fn as_fast_as_it_is(&self, n: usize) -> Result<(), BenchError> {
        let reads = self.options.reads[n];
        let limit = Limit { reads, read_bytes: 0, written_bytes: reads * WRITTEN };
        self.throttle.limit(self.numbers[n], limit)
    }

    /// A cache on some of the devices, blank ones, filled with `most` bytes of objects or as the
    /// options say. It is opened anew, so that DRAM holds nothing.
    fn fill(&self, on: std::ops::Range<usize>, most: u64) -> Result<FilledCache, BenchError> {
        let (options, on) = (self.options, &self.devices[on]);
        on.iter().try_for_each(LoopDevice::wipe)?;
        let dir = self.scratch.path().join("cache");
        if dir.exists() {
            std::fs::remove_dir_all(&dir).map_err(BenchError::io("remove a cache"))?;
        }
        let record = (32 + KEY + options.value) as u64;
        let size = on.iter().map(|device| device.size).sum::<u64>();
        let objects = (size * u64::from(options.fill) / 100).min(most) / record;
        let names: Vec<_> = on.iter().map(|device| device.path.display().to_string()).collect();
        progress(format_args!("filling {} with {objects} objects", names.join(" and ")));
        let open = || -> Result<_, BenchError> {
            let cache = Cache::open(config(&dir, on, objects, options))?;
            let ns = cache.namespace("bench", NamespaceOptions::default())?;
            Ok((cache, ns))
        };
        let (cache, ns) = open()?;
        store::fill(&cache, &ns, 0..objects, options.value);
        store::settle(&cache)?;
        store::no_drops(&cache)?;
        cache.close();
        drop((ns, cache));
        let (cache, ns) = open()?;
        store::wait_until(&cache, "loading the index", |s| !s.loading)?;
        let subject = FilledCache::new(cache, ns, objects, options.value);
        subject.map_err(BenchError::io("read the devices"))
    }

    fn measure(
        &self,
        subject: &FilledCache,
        what: &str,
        chooser: &mut KeyChooser,
        length: Duration,
    ) -> Result<Measured, BenchError> {
        progress(format_args!("{what}: {:.0} s", length.as_secs_f64()));
        let times = (Duration::from_secs(2).min(length), length);
        self.runs.set(self.runs.get() + 1);
        let measured = subject.closed_loop(chooser, self.options.depth, times, self.runs.get());
        measured.map_err(BenchError::io(format!("measure {what}")))
    }

    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.options.seconds)
    }

    /// Measures each device alone, and returns the sum of the rates.
    fn alone(&self, report: &mut Report) -> Result<f64, BenchError> {
        let note = format!(
            "Random gets from flash, {} in flight, one thread. The limits are {:?} reads a second, \
             and {} KiB written in the time of a read.",
            self.options.depth,
            self.options.reads,
            WRITTEN >> 10
        );
        let mut section = Section::new("Each device alone", note);
        let mut sum = 0.0;
        for n in 0..self.devices.len() {
            let subject = self.fill(n..n + 1, ALONE)?;
            let mut chooser = KeyChooser::new(Distribution::Uniform, subject.objects);
            let name = format!("device {}, {} MiB", n + 1, self.options.sizes[n] >> 20);
            let measured = self.measure(&subject, &name, &mut chooser, self.length())?;
            sum += measured.run.per_second;
            section.series.push(Series { name, runs: vec![measured.run] });
            subject.cache.close();
        }
        report.sections.push(section);
        report.figure("sum of the devices' rates", sum, "gets/s");
        Ok(sum)
    }

    /// Measures the set, and returns the lookups a second of zipfian reads in the end.
    fn set(&self, subject: &FilledCache, sum: f64, report: &mut Report) -> Result<f64, BenchError> {
        let chooser = |kind| KeyChooser::new(kind, subject.objects);
        let (mut uniform, mut zipfian) =
            (chooser(Distribution::Uniform), chooser(Distribution::Zipfian));
        let mut section = Section::new("The set", "The same load on all devices. Gets from flash.");
        let columns: Vec<String> = ["share of the sum", "from DRAM", "misses"]
            .into_iter()
            .map(str::to_owned)
            .chain((0..self.devices.len()).map(|n| format!("reads of device {}", n + 1)))
            .chain((0..self.devices.len()).map(|n| format!("free on device {}", n + 1)))
            .chain(["moved so far, MiB".to_owned()])
            .collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut grid = Grid::new("Balance", "Shares, in the order of the runs.", &columns);
        let mut add = |name: &str, measured: &Measured| {
            let share = measured.run.per_second / sum;
            let all = measured.reads.iter().sum::<u64>().max(1) as f64;
            let mut row = vec![share, measured.from_dram, measured.misses as f64];
            row.extend(measured.reads.iter().map(|&reads| reads as f64 / all));
            row.extend(subject.free());
            row.push(subject.cache.stats().totals.relocated_bytes as f64 / f64::from(1 << 20));
            progress(format_args!("{name}: {row:.3?}"));
            grid.row(name, row.into_iter().map(Some).collect());
            share
        };
        let first = self.measure(subject, "uniform reads", &mut uniform, self.length())?;
        add("uniform, at first", &first);
        let begun = self.measure(subject, "zipfian reads", &mut zipfian, self.length())?;
        add("zipfian, at first", &begun);
        let (mut passed, step) = (self.options.seconds, self.options.seconds.max(10.0));
        while passed < self.options.balance {
            let length = Duration::from_secs_f64(step);
            let measured = self.measure(subject, "zipfian reads", &mut zipfian, length)?;
            passed += step;
            add(&format!("zipfian, until {passed:.0} s"), &measured);
        }
        let last = self.measure(subject, "zipfian reads", &mut zipfian, self.length())?;
        let share = add("zipfian, in the end", &last);
        let even = self.measure(subject, "uniform reads", &mut uniform, self.length())?;
        let even_share = add("uniform, in the end", &even);
        let of = |rate: f64| format!("{rate:.0} of {sum:.0} gets/s");
        report.checks.push(
            Check::at_least("zipfian reads: share of the sum", share, SET)
                .from(of(last.run.per_second)),
        );
        report.checks.push(
            Check::at_least("uniform reads: share of the sum", even_share, SET)
                .from(of(even.run.per_second)),
        );
        let lookups = last.run.per_second / (1.0 - last.from_dram).max(0.01);
        let series = [
            ("uniform, at first", first),
            ("zipfian, at first", begun),
            ("zipfian, in the end", last),
            ("uniform, in the end", even),
        ];
        section.series = series
            .into_iter()
            .map(|(name, measured)| Series { name: name.into(), runs: vec![measured.run] })
            .collect();
        report.sections.push(section);
        report.grids.push(grid);
        Ok(lookups)
    }

    /// The fastest device hangs and answers again, then it is pulled out.
    fn outages(
        &self,
        subject: &FilledCache,
        rate: f64,
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let reads = &self.options.reads;
        let fastest = (0..reads.len()).max_by_key(|&n| reads[n]).expect("there are devices");
        let rate = rate * LOADED;
        report.figure("lookups begun while a device fails", rate, "/s");
        let failed = |what: &str| BenchError::io(format!("measure a device that {what}"));
        let mut chooser = KeyChooser::new(Distribution::Zipfian, subject.objects);
        let fails = Duration::from_secs_f64(self.options.outage);
        let (answers, end) = (fails * 2, fails * 3);
        progress(format_args!("device {} hangs: {:.0} s", fastest + 1, end.as_secs_f64()));
        let (mut hung, mut lifted) = (false, false);
        let windows = subject.open_loop(&mut chooser, rate, WINDOW, 1011, |now| {
            if now >= fails && !std::mem::replace(&mut hung, now >= fails) {
                let hangs = self.throttle.limit(self.numbers[fastest], Limit::HANGS);
                hangs.map_err(io::Error::other)?;
            }
            if now >= answers && !std::mem::replace(&mut lifted, now >= answers) {
                self.as_fast_as_it_is(fastest).map_err(io::Error::other)?;
            }
            Ok(now >= end)
        });
        let windows = windows.map_err(failed("hangs"))?;
        outage(report, "hangs", &windows, (fails, answers));
        report.figure(
            "a device hangs: hit ratio when it answers again",
            windows.hit_ratio(answers + fails / 2, end),
            "",
        );

        let end = fails * 2;
        progress(format_args!("device {} is pulled out: {:.0} s", fastest + 1, end.as_secs_f64()));
        let mut pulled = false;
        let windows = subject.open_loop(&mut chooser, rate, WINDOW, 1013, |now| {
            if now >= fails && !std::mem::replace(&mut pulled, now >= fails) {
                self.devices[fastest].pull().map_err(io::Error::other)?;
            }
            Ok(now >= end)
        });
        let windows = windows.map_err(failed("is pulled out"))?;
        outage(report, "is pulled out", &windows, (fails, end));
        Ok(())
    }
}

/// Notes what a device that fails at `fails` costs, up to `end`.
fn outage(report: &mut Report, what: &str, windows: &Windows, (fails, end): (Duration, Duration)) {
    let before = windows.p99(fails / 2, fails);
    let later = end - (end - fails) / 3;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    for (when, from, to) in [("before", fails / 2, fails), ("at last", later, end)] {
        report.figure(format!("a device {what}: p99 {when}"), ms(windows.p99(from, to)), "ms");
        let hits = windows.hit_ratio(from, to);
        report.figure(format!("a device {what}: hit ratio {when}"), hits, "");
    }
    let name = format!("a device {what}: seconds until the p99 is back");
    let back = windows.back_after(fails, end, before * AS_BEFORE);
    let check = Check::at_most(name, back.unwrap_or(end - fails).as_secs_f64(), BACK);
    let check = if back.is_some() { check } else { Check { holds: false, ..check } };
    report.checks.push(check.from(format!("at most {:.1} ms", ms(before * AS_BEFORE))));
    let name = format!("a device {what}: lookups that never end");
    report.checks.push(Check::at_most(name, windows.unended(Duration::ZERO, end) as f64, 0.0));
    let note = "Lookups by when they begin; those that have not ended took for ever.";
    let columns = ["p99, ms", "hit ratio"];
    let title = format!("A device {what} at {:.0} s", fails.as_secs_f64());
    let mut grid = Grid::new(title, note, &columns);
    for (begin, p99, hits) in windows.rows(end) {
        grid.row(format!("{begin:.1} s"), vec![p99.is_finite().then_some(p99), Some(hits)]);
    }
    report.grids.push(grid);
}

fn config(dir: &Path, on: &[LoopDevice], objects: u64, options: &DevicesOptions) -> Config {
    let device = |d: &LoopDevice| DeviceConfig { path: d.path.clone(), size: d.size };
    let mut config = Config::new(dir, on.iter().map(device).collect());
    config.memory = options.memory;
    config.index_memory = Some(objects * 10);
    config
}
