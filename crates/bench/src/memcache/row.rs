//! One row: the same load on every contender, in turn.

use std::time::Duration;

use super::{
    super::{
        BenchError,
        device::{self, Pattern, Target},
        pin::Pinned,
        progress,
        report::{Check, ClientSide, Run, Section, Series},
    },
    bench::MemcacheBench,
    servers::Server,
};
use crate::comparison::{median, thousands};
use afterglow_loadgen::{
    memcache::{Client, Load, Objects, Outcome, RequestKind},
    metrics,
};

/// Requests outstanding, and keys in each.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub name: &'static str,
    pub outstanding: usize,
    pub keys: usize,
}

impl Form {
    /// Seed of a run. Each form asks for keys of its own: those that another has read are in DRAM.
    pub fn seed(&self, run: u64) -> u64 {
        run << 16 | (self.outstanding as u64) << 8 | self.keys as u64
    }
}

/// One outstanding; sixteen; one with sixteen keys.
pub const FORMS: [Form; 3] = [
    Form { name: "one outstanding", outstanding: 1, keys: 1 },
    Form { name: "16 outstanding", outstanding: 16, keys: 1 },
    Form { name: "16-key gets", outstanding: 1, keys: 16 },
];

/// Share of a run that goes before it unmeasured.
pub const WARM: f64 = 0.15;

/// Something that can be measured again and again.
pub struct Contender<'a> {
    pub name: String,
    pub run: Box<dyn Fn(u64) -> Result<Run, BenchError> + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: &str, run: impl Fn(u64) -> Result<Run, BenchError> + 'a) -> Self {
        Self { name: name.to_owned(), run: Box::new(run) }
    }

    /// Random gets of `count` objects.
    pub fn gets(length: Duration, server: &'a Server, objects: &'a Objects, gets: Gets) -> Self {
        Self::new(&server.name, move |seed| gets.clone().run(server, objects, seed, length))
    }
}

/// Random gets.
#[derive(Clone, Debug)]
pub struct Gets {
    pub connections: usize,
    pub form: Form,
    pub ids: std::ops::Range<u64>,
}

impl Gets {
    pub fn run(
        self,
        server: &Server,
        objects: &Objects,
        seed: u64,
        length: Duration,
    ) -> Result<Run, BenchError> {
        let load = Load {
            connections: self.connections,
            outstanding: self.form.outstanding,
            kind: RequestKind::Get { keys: self.form.keys },
            ids: self.ids,
            rate: None,
            seed: self.form.seed(seed),
        };
        under_load(server, objects, load, length)
    }
}

/// Runs a load from the second core, after a short one that is not counted if it is one of gets.
pub fn under_load(
    server: &Server,
    objects: &Objects,
    load: Load,
    length: Duration,
) -> Result<Run, BenchError> {
    let failed = |e| BenchError::Void(format!("{}: {e}", server.name));
    let _pinned = Pinned::to(1).map_err(BenchError::io("keep the load on a core of its own"))?;
    let warm = matches!(load.kind, RequestKind::Get { .. });
    let mut client = Client::connect(&server.address, objects, load).map_err(failed)?;
    if warm {
        client.run(length.mul_f64(WARM)).map_err(failed)?;
    }
    let (tiers, cpu) = (tiers(server)?, server.cpu()?);
    let outcome = client.run(length).map_err(failed)?;
    let cpu = server.cpu()? - cpu;
    run_of(server, &outcome, cpu, tiers)
}

/// The figures of what a client saw, given the server's CPU and its hits by tier before.
pub fn run_of(
    server: &Server,
    outcome: &Outcome,
    cpu: u64,
    before: (u64, u64),
) -> Result<Run, BenchError> {
    let after = tiers(server)?;
    let (all, flash) = (after.0 - before.0, after.1 - before.1);
    seen(&server.name, outcome, cpu, (all > 0).then(|| flash as f64 / all as f64))
}

/// The figures of what a client saw of a server, given the CPU that the server used meanwhile, in
/// nanoseconds, and the share of hits that it read from flash.
pub fn seen(
    name: &str,
    outcome: &Outcome,
    cpu: u64,
    from_flash: Option<f64>,
) -> Result<Run, BenchError> {
    if outcome.wrong > 0 {
        return Err(BenchError::Void(format!("{name} returned {} wrong values", outcome.wrong)));
    }
    let operations = outcome.operations;
    let asked = operations + outcome.misses;
    Ok(Run {
        operations,
        seconds: outcome.seconds,
        per_second: operations as f64 / outcome.seconds,
        cpu_us_per_operation: cpu as f64 / 1000.0 / operations.max(1) as f64,
        latency: outcome.latency.summary(),
        curve: outcome.latency.curve(),
        client: Some(ClientSide {
            cores: outcome.cpu as f64 / 1e9 / outcome.seconds,
            hit_ratio: operations as f64 / asked.max(1) as f64,
            from_flash,
            refused: outcome.refused,
            polls: false,
        }),
    })
}

/// Hits so far: all, and those from flash.
pub fn tiers(server: &Server) -> Result<(u64, u64), BenchError> {
    let Some(page) = server.metrics()? else { return Ok((0, 0)) };
    let hits = |tier: &str| {
        metrics::sum(
            &page,
            &format!("afterglow_hits_total{{frontend=\"memcache\",tier=\"{tier}\"}}"),
        )
    };
    let flash = hits("flash");
    Ok((hits("dram") + hits("buffer") + flash, flash))
}

/// What the device does with `block` bytes a read, 64 in flight, on the servers' core.
pub fn device_limit(length: Duration, target: &Target, block: u32) -> Contender<'_> {
    Contender::new(&format!("device, {block} B, 64 in flight"), move |seed| {
        let end = target.size / u64::from(block) * u64::from(block);
        let pattern = Pattern { region: 0..end, step: block.into(), lengths: vec![block] };
        let _pinned = Pinned::to(0).map_err(BenchError::io("keep a thread on one core"))?;
        device::by_ring(target, &pattern, 64, length, seed)
            .map_err(BenchError::io("read through io_uring"))
    })
}

impl MemcacheBench<'_> {
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.options.seconds)
    }

    /// Measures every contender as often as asked for, in alternating order.
    pub fn row(
        &self,
        name: String,
        note: String,
        contenders: &[Contender<'_>],
    ) -> Result<Section, BenchError> {
        progress(format_args!("{name}: {} runs of {}", self.options.runs, contenders.len()));
        let mut section = Section::new(name, note);
        section.series =
            contenders.iter().map(|c| Series { name: c.name.clone(), runs: Vec::new() }).collect();
        for n in 0..self.options.runs {
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if n % 2 == 1 {
                order.reverse();
            }
            for i in order {
                section.series[i].runs.push((contenders[i].run)(n as u64)?);
            }
        }
        Ok(section)
    }
}

/// A figure of a run that two series are compared by.
pub type FigureOf = fn(&Run) -> f64;

pub const RATE: FigureOf = |run| run.per_second;
pub const CPU: FigureOf = |run| run.cpu_us_per_operation;
pub const P99: FigureOf = |run| run.latency.p99_us;
pub const P999: FigureOf = |run| run.latency.p999_us;

/// The median over pairs of ours to theirs, and the medians it is made from.
pub fn beside(ours: &Series, theirs: &Series, figure: FigureOf) -> (f64, String) {
    let pairs = ours.runs.iter().zip(&theirs.runs).map(|(a, b)| (figure(a), figure(b)));
    let ratio = median(pairs.filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b));
    let text = |series: &Series| match series.median(figure) {
        n if n >= 100.0 => thousands(n),
        n => format!("{n:.2}"),
    };
    (ratio, format!("{} / {}", text(ours), text(theirs)))
}

/// Ours is at least so many times theirs.
pub fn at_least(
    name: String,
    ours: &Series,
    theirs: &Series,
    figure: FigureOf,
    bound: f64,
) -> Check {
    let (ratio, from) = beside(ours, theirs, figure);
    Check::at_least(name, ratio, bound).from(from)
}

/// Ours is at most so many times theirs.
pub fn at_most(
    name: String,
    ours: &Series,
    theirs: &Series,
    figure: FigureOf,
    bound: f64,
) -> Check {
    let (ratio, from) = beside(ours, theirs, figure);
    Check::at_most(name, ratio, bound).from(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_run_asks_for_the_keys_of_another() {
        let runs = FORMS.iter().flat_map(|form| (0..100).map(|run| form.seed(run)));
        let seeds: std::collections::HashSet<u64> = runs.collect();
        assert_eq!(seeds.len(), 100 * FORMS.len());
    }
}
