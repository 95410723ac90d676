//! Sizes of values and numbers of connections: throughput and latency in DRAM and on flash, as
//! plots.

use std::path::Path;

use super::{
    super::{
        BenchError,
        report::{Plot, Section, Series},
    },
    bench::MemcacheBench,
    flash::{fill, space},
    row::{FORMS, Gets},
    servers::Server,
};
use afterglow_loadgen::memcache::Objects;

/// Size of values while connections change, in bytes.
const VALUE: usize = 1024;
/// Most objects of one size.
const MOST: u64 = 1_000_000;
/// Memory of the server whose objects are to be read from flash.
const LITTLE: u64 = 96 << 20;

/// Least flash: segments of a size that takes values of 1 MiB.
const LARGE: u64 = 2 << 30;

/// One line of the plots.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Dram,
    Flash,
    Memcached,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Dram => "afterglow, DRAM",
            Side::Flash => "afterglow, flash",
            Side::Memcached => "memcached",
        }
    }
}

/// Where along the horizontal axis.
#[derive(Clone, Copy)]
struct Point {
    value: usize,
    connections: usize,
}

/// The whole part.
pub fn measure(bench: &mut MemcacheBench<'_>) -> Result<(), BenchError> {
    let options = bench.options;
    let sizes: Vec<Point> = options
        .sweep_values
        .iter()
        .map(|&value| Point { value, connections: options.connections })
        .collect();
    let counts: Vec<Point> = options
        .sweep_connections
        .iter()
        .map(|&connections| Point { value: VALUE, connections })
        .collect();
    axis(bench, "sizes of values", "bytes of a value", &sizes, |p| p.value as f64)?;
    axis(bench, "numbers of connections", "connections", &counts, |p| p.connections as f64)
}

fn axis(
    bench: &mut MemcacheBench<'_>,
    name: &str,
    label: &str,
    points: &[Point],
    x: impl Fn(&Point) -> f64,
) -> Result<(), BenchError> {
    let sides = match bench.options.memcached {
        Ok(_) => &[Side::Dram, Side::Flash, Side::Memcached][..],
        Err(_) => &[Side::Dram, Side::Flash],
    };
    let note = "Gets, one outstanding on each connection, a run a point. Server on the first core, load on the second.";
    let mut section = Section::new(format!("sweep over {name}"), note);
    let (mut rates, mut medians, mut tails, mut cpu) =
        <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    for &side in sides {
        let mut lines = <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
        let mut current: Option<(usize, Server)> = None;
        // Other objects at each point: those of the last are in DRAM.
        for (seed, point) in (1..).zip(points) {
            let server = match current.take() {
                Some((value, server)) if value == point.value => server,
                _ => prepare(bench, side, point.value)?,
            };
            let gets = Gets {
                connections: point.connections,
                form: FORMS[0],
                ids: 0..count(bench, point.value),
            };
            let run = gets.run(&server, &Objects::new(point.value), seed, bench.length())?;
            lines.0.push((x(point), run.per_second));
            lines.1.push((x(point), run.latency.p50_us));
            lines.2.push((x(point), run.latency.p99_us));
            lines.3.push((x(point), run.cpu_us_per_operation));
            let name =
                format!("{}, {} B, {} connections", side.name(), point.value, point.connections);
            section.series.push(Series { name, runs: vec![run] });
            current = Some((point.value, server));
        }
        rates.push((side.name().to_owned(), lines.0));
        medians.push((side.name().to_owned(), lines.1));
        tails.push((side.name().to_owned(), lines.2));
        cpu.push((side.name().to_owned(), lines.3));
    }
    for (what, y, lines) in [
        ("Throughput", "gets/s", rates),
        ("Median latency", "us", medians),
        ("99th percentile", "us", tails),
        ("CPU of the server", "us a get", cpu),
    ] {
        let title = format!("{what} over {name}");
        let (x, y) = (label.to_owned(), y.to_owned());
        bench.report.plots.push(Plot { title, x, y, linear: false, lines });
    }
    // Every point has its plot; curves of all would be unreadable.
    section.series.iter_mut().flat_map(|s| &mut s.runs).for_each(|run| run.curve.clear());
    bench.report.sections.push(section);
    Ok(())
}

/// Objects of a size: a quarter of the data, and what memory holds in DRAM.
fn count(bench: &MemcacheBench<'_>, value: usize) -> u64 {
    let bytes = (bench.options.size / 4).min(bench.options.dram_memory / 4);
    (bytes / (value as u64 + 150)).clamp(1, MOST)
}

/// A server with objects of that size, in the tier of the line.
fn prepare(bench: &MemcacheBench<'_>, side: Side, value: usize) -> Result<Server, BenchError> {
    let (options, objects, count) = (bench.options, Objects::new(value), count(bench, value));
    let data = bench.scratch.path().join("sweep");
    if data.exists() {
        std::fs::remove_dir_all(&data).map_err(BenchError::io("clear the last cache"))?;
    }
    let flash = space(2 * count * (value as u64 + 200)).max(LARGE);
    let afterglow =
        |memory: u64, data: &Path| Server::afterglow(&options.program, data, flash, memory);
    let server = match (side, &options.memcached) {
        (Side::Memcached, Ok(program)) => {
            let log = bench.scratch.path().join("memcached.log");
            Server::memcached(program, side.name(), options.dram_memory, None, &log)?
        }
        _ => afterglow(options.dram_memory, &data)?,
    };
    fill(bench, &server, &objects, 0..count, None)?;
    if side != Side::Flash {
        bench.calm(&server)?;
        return Ok(server);
    }
    // The stop writes everything out. Started anew with little memory it has all of it on flash.
    server.stop()?;
    afterglow(LITTLE, &data)
}
