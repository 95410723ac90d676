//! Gets from flash beside the device's own limit, on the same file, in the same run.
//!
//! The limit reads the cache's flash file at random offsets. Lengths are drawn from those that the
//! engine's own lookups ask for. So both sides ask the device for the same reads.

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use afterglow_engine::{
    Cache, FlashRead, Lookup, Namespace, Stats, Tier,
    device::{AlignedBuf, DeviceId},
};

use super::{
    BenchError,
    device::{self, Pattern, Target, run_threads},
    meter::Meter,
    pin::Pinned,
    progress,
    report::{Check, Report, Run, Section, Series},
    ring::{Finished, ReadRing},
    store::{self, Scratch, Shape, is_value, key},
};
use afterglow_loadgen::{latency::Latency, rng::Rng};

/// What is measured.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where to make the cache.
    pub dir: PathBuf,
    /// Bytes of flash to fill.
    pub size: u64,
    /// Bytes of memory: little, so that gets reach flash.
    pub memory: u64,
    /// Sizes of values.
    pub values: Vec<usize>,
    /// Gets in flight of the submitted form.
    pub depth: usize,
    /// Threads of the blocking form.
    pub threads: Vec<usize>,
    /// How long each run is.
    pub seconds: f64,
    /// Pairs of runs.
    pub runs: usize,
}

/// Share of the device's limit for submitted gets.
const SUBMITTED: f64 = 0.95;
/// Share of plain `pread` threads for blocking gets.
const BLOCKING: f64 = 0.9;
/// Device reads per hit.
const READS_PER_HIT: f64 = 1.01;
/// Lookups whose reads are the pattern of the limit.
const SAMPLED: u64 = 4096;
/// Objects of the DRAM runs.
const HOT: u64 = 4096;
/// DRAM hits timed together: a clock takes as long as a good part of one.
const BATCH: u64 = 16;

/// One cache full of values of one size.
struct Subject {
    cache: Cache,
    ns: Namespace,
    objects: u64,
    value: usize,
}

/// `afterglow-bench engine`.
pub fn engine(options: &EngineOptions) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let mut report = Report::new("engine", scratch.path());
    for &value in &options.values {
        let shape = Shape {
            dir: scratch.path().to_path_buf(),
            size: options.size,
            memory: options.memory,
            index_memory: None,
            value,
        };
        measure(&shape, options, &mut report)?;
        scratch.clear()?;
    }
    Ok(report)
}

fn measure(shape: &Shape, options: &EngineOptions, report: &mut Report) -> Result<(), BenchError> {
    let subject = Subject::fill(shape)?;
    let target = Target::open(&shape.flash())?;
    let pattern = subject.pattern()?;
    let mean =
        pattern.lengths.iter().map(|&l| f64::from(l)).sum::<f64>() / pattern.lengths.len() as f64;
    let value = shape.value;
    report.figure(format!("objects of {value} B"), subject.objects as f64, "");
    report.figure(format!("bytes per device read, values of {value} B"), mean, "B");
    let before = subject.cache.stats();
    submitted(&subject, (&target, &pattern, mean), options, report)?;
    blocking(&subject, (&target, &pattern), options, report)?;
    reads_per_hit(report, &before, &subject.cache.stats(), value);
    dram(&subject, options, report)
}

/// Submitted gets from flash beside the device's limit with reads of the same lengths.
fn submitted(
    subject: &Subject,
    (target, pattern, mean): (&Target, &Pattern, f64),
    options: &EngineOptions,
    report: &mut Report,
) -> Result<(), BenchError> {
    let (value, length) = (subject.value, Duration::from_secs_f64(options.seconds));
    let limit_name = format!("device limit, {mean:.0} B");
    let note = format!(
        "Random gets of values of {value} B from flash, {} in flight, one thread on one core. The limit reads the same file with the same \
         lengths (mean {mean:.0} B). Only gets that reached flash are counted.",
        options.depth
    );
    let mut section = Section::new(format!("{value} B, submitted"), note);
    let (limits, gets) = paired(
        options.runs,
        &format!("{value} B, submitted"),
        |n| one_core(|| device::by_ring(target, pattern, options.depth, length, n)),
        |n| one_core(|| subject.by_ring(options.depth, length, n)),
    )?;
    section.series =
        vec![Series { name: limit_name, runs: limits }, Series { name: "gets".into(), runs: gets }];
    let share = section.series[1].ratio_to(&section.series[0]);
    report.checks.push(Check::at_least(
        format!("{value} B, {} in flight: share of the limit", options.depth),
        share,
        SUBMITTED,
    ));
    let busy = Subject::as_busy(&section.series, target, pattern, options)?;
    let rate = |series: &Series| series.median(|run| run.per_second);
    report.figure(
        format!("{value} B, {} in flight: share of a reader as busy", options.depth),
        rate(&section.series[1]) / rate(&busy),
        "",
    );
    section.series.push(busy);
    report.sections.push(section);
    Ok(())
}

/// Blocking gets from flash beside `pread`, by ever more threads.
fn blocking(
    subject: &Subject,
    (target, pattern): (&Target, &Pattern),
    options: &EngineOptions,
    report: &mut Report,
) -> Result<(), BenchError> {
    let (value, length) = (subject.value, Duration::from_secs_f64(options.seconds));
    let note = "The same by blocking threads, on all cores: `pread` of the same lengths into a buffer of each thread's own, and get_blocking.";
    let mut section = Section::new(format!("{value} B, blocking"), note);
    for &threads in &options.threads {
        let (limits, gets) = paired(
            options.runs,
            &format!("{value} B, {threads} threads"),
            |n| device::by_threads(target, pattern, threads, length, n),
            |n| subject.by_threads(threads, length, n),
        )?;
        let plain = Series { name: format!("{threads} threads, pread"), runs: limits };
        let gets = Series { name: format!("{threads} threads, gets"), runs: gets };
        let share = gets.ratio_to(&plain);
        report.checks.push(Check::at_least(
            format!("{value} B, {threads} threads: share of pread"),
            share,
            BLOCKING,
        ));
        section.series.extend([plain, gets]);
    }
    report.sections.push(section);
    Ok(())
}

/// Gets from DRAM.
fn dram(subject: &Subject, options: &EngineOptions, report: &mut Report) -> Result<(), BenchError> {
    let (value, length) = (subject.value, Duration::from_secs_f64(options.seconds));
    let mut section = Section::new(
        format!("{value} B, DRAM hits"),
        format!("Gets of {HOT} objects that are in the DRAM tier, one thread on one core."),
    );
    let runs: io::Result<Vec<Run>> =
        (0..options.runs as u64).map(|n| one_core(|| subject.dram_hits(length, n))).collect();
    section.series.push(Series {
        name: "gets".into(),
        runs: runs.map_err(BenchError::io("measure DRAM hits"))?,
    });
    report.sections.push(section);
    Ok(())
}

/// Runs in pairs, the order changing from pair to pair.
fn paired(
    pairs: usize,
    what: &str,
    a: impl Fn(u64) -> io::Result<Run>,
    b: impl Fn(u64) -> io::Result<Run>,
) -> Result<(Vec<Run>, Vec<Run>), BenchError> {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    progress(format_args!("{what}: {pairs} pairs of runs"));
    for n in 0..pairs as u64 {
        let mut first = || a(n).map(|run| of_a.push(run));
        let mut second = || b(n).map(|run| of_b.push(run));
        let both = if n % 2 == 0 {
            first().and_then(|()| second())
        } else {
            second().and_then(|()| first())
        };
        both.map_err(BenchError::io(format!("measure {what}")))?;
    }
    Ok((of_a, of_b))
}

fn one_core(work: impl FnOnce() -> io::Result<Run>) -> io::Result<Run> {
    let _pinned = Pinned::to(0)?;
    work()
}

fn reads_per_hit(report: &mut Report, before: &Stats, after: &Stats, value: usize) {
    let hits = |s: &Stats| s.namespaces.iter().map(|n| n.hits_from(Tier::Flash)).sum::<u64>();
    let (reads, hits) =
        (after.totals.device_reads - before.totals.device_reads, hits(after) - hits(before));
    let ratio = reads as f64 / hits.max(1) as f64;
    report.checks.push(Check::at_most(
        format!("{value} B: device reads per hit on flash"),
        ratio,
        READS_PER_HIT,
    ));
}

impl Subject {
    /// Fills a cache and opens it anew, so that DRAM holds nothing.
    fn fill(shape: &Shape) -> Result<Self, BenchError> {
        // A fifth stays free: reclaim is not what is measured here.
        let objects = shape.size / 5 * 4 / shape.flash_for(1_000_000).div_ceil(1_000_000);
        progress(format_args!(
            "filling {} MiB with {objects} objects of {} B",
            shape.size >> 20,
            shape.value
        ));
        let (cache, ns) = shape.open()?;
        store::fill(&cache, &ns, 0..objects, shape.value);
        store::no_drops(&cache)?;
        cache.close();
        drop((ns, cache));
        let (cache, ns) = shape.open()?;
        store::wait_until(&cache, "loading the index", |s| !s.loading)?;
        Ok(Self { cache, ns, objects, value: shape.value })
    }

    /// The reads that random lookups ask for.
    fn pattern(&self) -> Result<Pattern, BenchError> {
        let (mut rng, mut reads) = (Rng::new(11), Vec::new());
        for _ in 0..SAMPLED {
            // Dropped unread: counted as an abandoned lookup.
            if let Lookup::Flash(read) = self.ns.get(&key(rng.below(self.objects))) {
                reads.push((read.offset(), read.len()));
            }
        }
        let from = reads.iter().map(|r| r.0).min();
        let to = reads.iter().map(|r| r.0 + u64::from(r.1)).max();
        let (Some(from), Some(to)) = (from, to) else {
            return Err(BenchError::Void("no lookup reached flash: fill more of it".into()));
        };
        let step = u64::from(self.cache.devices().infos()[0].alignment);
        Ok(Pattern { region: from..to, step, lengths: reads.into_iter().map(|r| r.1).collect() })
    }

    /// Gets in the submitted form, on a ring of our own.
    fn by_ring(&self, depth: usize, length: Duration, seed: u64) -> io::Result<Run> {
        let fd =
            self.cache.device_fd(DeviceId(0)).ok_or_else(|| io::Error::other("no descriptor"))?;
        let mut ring = ReadRing::new(depth)?;
        let (mut rng, mut latency) = (Rng::new(seed), Latency::new());
        type Asked = (FlashRead, u64, Instant);
        let (mut done, mut again) = (Vec::<Finished<Asked>>::new(), Vec::<Asked>::new());
        let mut hits = 0;
        let meter = Meter::start();
        loop {
            let going = meter.elapsed() < length;
            while ring.has_room() && (going || !again.is_empty()) {
                let asked = again.pop().or_else(|| {
                    let id = rng.below(self.objects);
                    match self.ns.get(&key(id)) {
                        Lookup::Flash(read) => Some((read, id, Instant::now())),
                        _ => None,
                    }
                });
                let Some(asked) = asked else { continue };
                let (offset, buf) =
                    (asked.0.offset(), AlignedBuf::for_read(asked.0.len() as usize));
                ring.read(fd, offset, buf, asked);
            }
            // The device has its next reads to do before what it brought is looked at.
            ring.submit()?;
            for Finished { tag: (read, id, begin), result } in done.drain(..) {
                match read.finish(result) {
                    Lookup::Hit(hit) => {
                        self.verify(id, &hit.value)?;
                        latency.record(begin.elapsed().as_nanos() as u64);
                        hits += 1;
                    }
                    Lookup::Miss(_) => {}
                    Lookup::Flash(read) => again.push((read, id, begin)),
                }
            }
            if ring.in_flight() == 0 && again.is_empty() && !going {
                return Ok(meter.stop(hits, &latency));
            }
            ring.wait(&mut done)?;
        }
    }

    /// What a reader could reach whose core is busy with each read for as long as a get takes more
    /// CPU than its read. This is the rest of the gap between gets and the limit. `series` are the
    /// limit and the gets.
    fn as_busy(
        series: &[Series],
        target: &Target,
        pattern: &Pattern,
        options: &EngineOptions,
    ) -> Result<Series, BenchError> {
        let cpu = |series: &Series| series.median(|run| run.cpu_us_per_operation);
        let busy = Duration::from_secs_f64((cpu(&series[1]) - cpu(&series[0])).max(0.0) / 1e6);
        let length = Duration::from_secs_f64(options.seconds);
        let run =
            |n| one_core(|| device::by_busy_ring(target, pattern, options.depth, length, n, busy));
        let runs: io::Result<Vec<Run>> = (0..options.runs as u64).map(run).collect();
        let name = format!("limit, busy for {:.1} us with each", busy.as_secs_f64() * 1e6);
        Ok(Series { name, runs: runs.map_err(BenchError::io("measure a reader that is as busy"))? })
    }

    /// Gets in the blocking form.
    fn by_threads(&self, threads: usize, length: Duration, seed: u64) -> io::Result<Run> {
        run_threads(threads, length, |n, go_on, latency| {
            let (mut rng, mut hits) = (Rng::new(seed ^ n), 0);
            while go_on() {
                let id = rng.below(self.objects);
                let begin = Instant::now();
                let Some(hit) = self.ns.get_blocking(&key(id)) else { continue };
                if hit.tier == Tier::Flash {
                    latency.record(begin.elapsed().as_nanos() as u64);
                    hits += 1;
                }
                self.verify(id, &hit.value)?;
            }
            Ok(hits)
        })
    }

    /// Gets of few objects, all of them in DRAM.
    fn dram_hits(&self, length: Duration, seed: u64) -> io::Result<Run> {
        let hot = HOT.min(self.objects);
        for _ in 0..4 {
            for id in 0..hot {
                drop(self.ns.get_blocking(&key(id)));
            }
        }
        let (mut rng, mut latency, mut hits) = (Rng::new(seed), Latency::new(), 0);
        let meter = Meter::start();
        while meter.elapsed() < length {
            for _ in 0..64 {
                let begin = Instant::now();
                for _ in 0..BATCH {
                    let id = rng.below(hot);
                    if let Lookup::Hit(hit) = self.ns.get(&key(id)) {
                        self.verify(id, &hit.value)?;
                        hits += 1;
                    }
                }
                latency.record(begin.elapsed().as_nanos() as u64 / BATCH);
            }
        }
        Ok(meter.stop(hits, &latency))
    }

    fn verify(&self, id: u64, value: &[u8]) -> io::Result<()> {
        if is_value(id, value, self.value) {
            return Ok(());
        }
        Err(io::Error::other(format!("object {id} came back with another value")))
    }
}
