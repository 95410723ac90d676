//! Gets of large values: CPU beside memcached, which has them in memory, from DRAM and from flash.

use std::path::Path;

use super::{
    super::{
        BenchError,
        report::{Check, Plot},
    },
    bench::MemcacheBench,
    flash::{fill, space},
    row::{self, CPU, Contender, FORMS, Gets},
    servers::Server,
};
use afterglow_loadgen::memcache::Objects;

/// Memory of the server whose objects are on flash: a few percent of them fit.
const LITTLE: u64 = 96 << 20;
/// Least flash: segments of 16 MiB, which take the largest values.
const LEAST_FLASH: u64 = 4500 << 20;
/// What the largest objects count besides their value: key, header and what memcached adds.
pub const BESIDES: usize = 1024;
/// Most CPU a get, to memcached's.
const BOUND: f64 = 1.3;

/// The whole part.
pub fn measure(bench: &mut MemcacheBench<'_>) -> Result<(), BenchError> {
    let mut lines = Vec::new();
    for &value in &bench.options.large_values {
        let points = of_value(bench, value)?;
        lines.resize_with(points.len(), || (String::new(), Vec::new()));
        for ((line, all), (name, cpu)) in lines.iter_mut().zip(points) {
            *line = name;
            all.push((value as f64, cpu / value as f64 * 1000.0));
        }
        bench.scratch.clear()?;
    }
    bench.report.plots.push(Plot {
        title: "CPU a byte of large values".to_owned(),
        x: "bytes of a value".to_owned(),
        y: "ns a byte".to_owned(),
        linear: false,
        lines,
    });
    Ok(())
}

/// Name of each server, and its CPU a get in microseconds.
fn of_value(bench: &mut MemcacheBench<'_>, value: usize) -> Result<Vec<(String, f64)>, BenchError> {
    let options = bench.options;
    let objects = Objects::new(value);
    let count = (options.size.min(options.dram_memory / 2) / (value as u64 + 200)).max(1);
    let at = |what: &str| bench.scratch.path().join(what);
    let (dram, flash, log) = (at("dram"), at("flash"), at("memcached.log"));
    let bytes = space(2 * count * (value as u64 + 200)).max(LEAST_FLASH);
    let afterglow = |name: &str, data: &Path, memory| -> Result<Server, BenchError> {
        let mut server = Server::afterglow(&options.program, data, bytes, memory)?;
        name.clone_into(&mut server.name);
        Ok(server)
    };
    let cold = afterglow("afterglow, flash", &flash, options.dram_memory)?;
    fill(bench, &cold, &objects, 0..count, None)?;
    // The stop writes everything out. Started anew with little memory it has all of it on flash.
    cold.stop()?;
    let mut servers = vec![
        afterglow("afterglow, DRAM", &dram, options.dram_memory)?,
        afterglow("afterglow, flash", &flash, LITTLE)?,
    ];
    if let Ok(program) = &options.memcached {
        servers.push(Server::memcached(program, "memcached", options.dram_memory, None, &log)?);
    }
    for server in servers.iter().filter(|server| server.name != "afterglow, flash") {
        fill(bench, server, &objects, 0..count, None)?;
        server.settle()?;
    }
    let connections = options.connections;
    let gets = Gets { connections, form: FORMS[0], ids: 0..count };
    let contenders: Vec<_> = servers
        .iter()
        .map(|server| Contender::gets(bench.length(), server, &objects, gets.clone()))
        .collect();
    let note = format!(
        "{count} objects of {value} B, {connections} connections, one outstanding. Server on the first core, load on the second."
    );
    let section = bench.row(format!("large values, {value} B"), note, &contenders)?;
    let checks = &mut bench.report.checks;
    if let [dram, flash, theirs] = &section.series[..] {
        for ours in [dram, flash] {
            let name = format!("{}, {value} B: CPU per get to memcached", ours.name);
            checks.push(row::at_most(name, ours, theirs, CPU, BOUND));
        }
    }
    let from_flash =
        section.series[1].median(|run| run.client.and_then(|c| c.from_flash).unwrap_or(0.0));
    let name = format!("afterglow, flash, {value} B: gets that read flash");
    checks.push(Check::at_least(name, from_flash, 0.8));
    let points = section.series.iter().map(|s| (s.name.clone(), s.median(CPU))).collect();
    bench.report.sections.push(section);
    Ok(points)
}
