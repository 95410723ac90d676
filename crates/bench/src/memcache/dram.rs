//! Gets and sets in DRAM beside memcached, CPU per operation first: both servers have the same
//! core, in turn.

use std::cell::RefCell;

use super::{
    super::{
        BenchError,
        report::{Check, Run, Section, Series},
    },
    bench::MemcacheBench,
    flash::{fill, space},
    row::{self, CPU, Contender, FORMS, Form, Gets},
    servers::Server,
};
use afterglow_loadgen::memcache::{Load, Objects, RequestKind};

/// Objects of a size when there is memory for all: fewer of larger ones.
const MOST: u64 = 1_000_000;
const MOST_BYTES: u64 = 800 << 20;
/// Times memcached's CPU, with one get outstanding.
const ONE_BY_ONE: f64 = 0.95;
/// Of gets of several keys: 5 % over the median of pairs is no higher.
const NO_HIGHER: f64 = 1.05;
/// Of sets: the threads that answer, and all with the writing to flash.
const ANSWERING: f64 = 1.15;
const WRITING: f64 = 1.4;
/// With sixteen outstanding, where memcached makes one send of every answer.
const PIPELINED: f64 = 0.5;
/// Of the memory, for the objects of one size.
const PART: u64 = 8;

/// Objects of a size, given the memory for it.
fn count(most: u64, memory: u64, value: usize) -> u64 {
    most.min(memory / PART / (value as u64 + 150))
}

/// Sizes of values, each with keys of its own.
fn sizes(bench: &MemcacheBench<'_>) -> Vec<(usize, u64)> {
    bench.options.dram_values.iter().copied().zip((0..).map(|n| n << 40)).collect()
}

/// The whole part.
pub fn measure(bench: &mut MemcacheBench<'_>) -> Result<(), BenchError> {
    let memory = bench.options.dram_memory;
    let at = |what: &str| bench.scratch.path().join(what);
    let (data, log) = (at("dram"), at("memcached.log"));
    let memcached = bench.options.memcached.clone().ok();
    let start = |data: &std::path::Path| -> Result<Vec<Server>, BenchError> {
        let mut servers =
            vec![Server::afterglow(&bench.options.program, data, space(memory), memory)?];
        if let Some(program) = &memcached {
            servers.push(Server::memcached(program, "memcached", memory, None, &log)?);
        }
        Ok(servers)
    };
    let servers = start(&data)?;
    for (value, from) in sizes(bench) {
        let objects = Objects::new(value);
        let ids = from..from + count(MOST.min(MOST_BYTES / value as u64), memory, value);
        for server in &servers {
            fill(bench, server, &objects, ids.clone(), None)?;
            bench.calm(server)?;
        }
        for form in FORMS {
            let gets = Gets { connections: bench.options.connections, form, ids: ids.clone() };
            let contenders: Vec<_> = servers
                .iter()
                .map(|s| Contender::gets(bench.length(), s, &objects, gets.clone()))
                .collect();
            let note = format!(
                "{} objects of {value} B, {} connections, {}. Server on the first core, load on the second.",
                ids.end - ids.start,
                bench.options.connections,
                form.name
            );
            let section =
                bench.row(format!("DRAM, {value} B, {}", form.name), note, &contenders)?;
            judge_gets(bench, &section, value, form);
            bench.report.sections.push(section);
        }
    }
    drop(servers);
    bench.scratch.clear()?;
    let servers = start(&data)?;
    for (value, from) in sizes(bench) {
        sets(bench, &servers, value, (1 << 50) + from)?;
    }
    Ok(())
}

fn judge_gets(bench: &mut MemcacheBench<'_>, section: &Section, value: usize, form: Form) {
    let what = format!("DRAM, {value} B, {}", form.name);
    let hits = section.series[0].median(|run| run.client.map_or(0.0, |c| c.hit_ratio));
    bench.report.checks.push(Check::at_least(format!("{what}: hit ratio"), hits, 0.9999));
    if let [ours, theirs] = &section.series[..] {
        let bound = match form {
            Form { outstanding: 2.., .. } => PIPELINED,
            Form { keys: 2.., .. } => NO_HIGHER,
            _ => ONE_BY_ONE,
        };
        let name = format!("{what}: CPU per get to memcached");
        bench.report.checks.push(row::at_most(name, ours, theirs, CPU, bound));
    }
}

/// Stores of new objects, as many a run as fit beside those of the other runs.
fn sets(
    bench: &mut MemcacheBench<'_>,
    servers: &[Server],
    value: usize,
    from: u64,
) -> Result<(), BenchError> {
    let objects = Objects::new(value);
    let runs = bench.options.runs as u64;
    let a_run = count(u64::MAX, 2 * bench.options.dram_memory, value) / runs;
    let a_run = a_run.min((400_000.0 * bench.options.seconds) as u64).max(1);
    let answering = RefCell::new(Vec::new());
    let contenders: Vec<_> = servers
        .iter()
        .map(|server| {
            let (objects, connections, answering) =
                (&objects, bench.options.connections, &answering);
            Contender::new(&server.name, move |n| {
                let ids = from + n * a_run..from + (n + 1) * a_run;
                let load = Load {
                    connections,
                    outstanding: 16,
                    kind: RequestKind::Set,
                    ids,
                    rate: None,
                    seed: n,
                };
                let (before, answered) = (server.cpu()?, server.answering_cpu()?);
                let mut run =
                    row::under_load(server, objects, load, std::time::Duration::from_secs(120))?;
                let each = |cpu: u64| cpu as f64 / 1000.0 / run.operations.max(1) as f64;
                if server.has_flash() {
                    let cpu_us_per_operation = each(server.answering_cpu()? - answered);
                    answering.borrow_mut().push(Run { cpu_us_per_operation, ..run.clone() });
                }
                // Writing them behind is a part of what they cost.
                server.settle()?;
                run.cpu_us_per_operation = each(server.cpu()? - before);
                Ok(run)
            })
        })
        .collect();
    let note = format!(
        "{a_run} sets a run, 16 outstanding on each of {} connections; CPU until they are on flash as well, and of the threads that answer alone.",
        bench.options.connections
    );
    let mut section = bench.row(format!("DRAM, {value} B, sets of new keys"), note, &contenders)?;
    drop(contenders);
    let answering = Series {
        name: format!("{}, answering", section.series[0].name),
        runs: answering.into_inner(),
    };
    if let [ours, theirs] = &section.series[..] {
        let name = |what: &str| format!("DRAM, {value} B, sets: CPU per set to memcached, {what}");
        let checks = &mut bench.report.checks;
        checks.push(row::at_most(name("answering"), &answering, theirs, CPU, ANSWERING));
        checks.push(row::at_most(name("writing to flash included"), ours, theirs, CPU, WRITING));
    }
    section.series.insert(1, answering);
    let refused: u64 = refused(&section.series[0]);
    bench.report.checks.push(Check::at_most(
        format!("DRAM, {value} B, sets: refused"),
        refused as f64,
        0.0,
    ));
    bench.report.sections.push(section);
    Ok(())
}

/// Stores refused over all runs.
pub fn refused(series: &Series) -> u64 {
    series.runs.iter().filter_map(|run| run.client).map(|c| c.refused).sum()
}
