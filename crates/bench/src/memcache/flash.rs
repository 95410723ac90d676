//! Filling, then gets from flash: beside extstore at its best, and beside what the device gives.

use std::{path::PathBuf, time::Duration};

use super::{
    super::{
        BenchError,
        device::Target,
        progress,
        report::{Check, Run, Section, Series},
    },
    bench::MemcacheBench,
    floor::{self, FloorFile},
    row::{self, CPU, Contender, FORMS, Form, Gets, P99, RATE, under_load},
    servers::{Extstore, Memcached, Server},
};
use afterglow_loadgen::{
    memcache::{Client, Load, Objects, RequestKind},
    metrics,
};

/// Bytes of flash for a byte of values of 1 KiB or more: keys, headers, footers and a few segments
/// to spare.
const SPACE: f64 = 4.7 / 4.0;
/// Least flash.
const LEAST: u64 = 128 << 20;
/// Stores a second, of 1 KiB.
const FILLING: f64 = 150_000.0;
/// Times extstore, one request outstanding: at its best, and with one thread.
const EXTSTORE: f64 = 1.8;
const EXTSTORE_ONE: f64 = 5.0;
/// CPU of a get with one request outstanding, in microseconds.
const CPU_US: f64 = 14.0;
/// Times the CPU of the floor, one request outstanding.
const FLOOR: f64 = 1.15;
/// Share of the device's rate: records within a page, and longer ones.
const SHARE: f64 = 0.94;
const SHARE_LONG: f64 = 0.88;
/// Metadata written beside records: headers, footers, checkpoints, journal.
const METADATA: f64 = 0.03;
/// Of a core, with nothing to do.
const IDLE: f64 = 0.01;
/// Far longer than a fill takes; it ends with its last object.
const FOREVER: Duration = Duration::from_secs(900);

/// Flash for `size` bytes of values.
pub fn space(size: u64) -> u64 {
    ((size as f64 * SPACE) as u64).max(LEAST).next_multiple_of(1 << 20)
}

/// Stores all of `ids`, sixteen outstanding on each connection.
pub fn fill(
    bench: &MemcacheBench<'_>,
    server: &Server,
    objects: &Objects,
    ids: std::ops::Range<u64>,
    rate: Option<f64>,
) -> Result<Run, BenchError> {
    progress(format_args!(
        "{}: storing {} objects of {} B",
        server.name,
        ids.end - ids.start,
        objects.value_len()
    ));
    let load = Load {
        connections: bench.options.connections,
        outstanding: 16,
        kind: RequestKind::Set,
        ids,
        rate,
        seed: 0,
    };
    under_load(server, objects, load, FOREVER)
}

/// The whole part.
pub fn measure(bench: &mut MemcacheBench<'_>) -> Result<(), BenchError> {
    let target = Target::make(bench.scratch.path(), bench.options.size.next_multiple_of(1 << 20))?;
    for &value in &bench.options.values {
        let at = |what: &str| bench.scratch.path().join(format!("{what}-{value}"));
        let paths = (at("afterglow"), at("extstore"));
        of_value(bench, &target, value, paths)?;
    }
    Ok(())
}

fn of_value(
    bench: &mut MemcacheBench<'_>,
    target: &Target,
    value: usize,
    (data, ext): (PathBuf, PathBuf),
) -> Result<(), BenchError> {
    let (objects, count) = (Objects::new(value), bench.options.size / value as u64);
    let server = Server::afterglow(
        &bench.options.program,
        &data,
        space(bench.options.size),
        bench.options.memory,
    )?;
    filling(bench, &server, &objects, count)?;
    let memcached = bench.options.memcached.clone().ok();
    let mut peers = Vec::new();
    for &threads in bench.options.extstore_threads.iter().filter(|_| memcached.is_some()) {
        if let Some(program) = &memcached {
            peers.push(extstore(bench, program, &objects, count, threads, &ext)?);
        }
    }
    let answers = FloorFile::write(target, &objects, block(value))?;
    for form in FORMS {
        let one = form.outstanding * form.keys == 1;
        let gets = Gets { connections: bench.options.connections, form, ids: 0..count };
        let mut contenders = vec![
            Contender::gets(bench.length(), &server, &objects, gets.clone()),
            row::device_limit(bench.length(), target, block(value)),
        ];
        if one {
            contenders.push(floor::contender(bench.length(), &answers, &objects, gets.clone()));
        }
        let measured = if one { peers.len() } else { peers.len().min(1) };
        contenders.extend(
            peers[..measured]
                .iter()
                .map(|peer| Contender::gets(bench.length(), peer, &objects, gets.clone())),
        );
        let note = format!(
            "{count} objects of {value} B on flash, {} connections, {}. Server on the first core, load on the second.",
            bench.options.connections, form.name
        );
        let section = bench.row(format!("flash, {value} B, {}", form.name), note, &contenders)?;
        judge(bench, &section, value, form);
        bench.report.sections.push(section);
    }
    costs(bench, &server, value)
}

/// What one read of the device has at least for a value of this length: whole pages.
fn block(value: usize) -> u32 {
    if value <= 3072 { 4096 } else { (value + 4096).next_multiple_of(4096) as u32 }
}

fn judge(bench: &mut MemcacheBench<'_>, section: &Section, value: usize, form: Form) {
    let [ours, limit, others @ ..] = &section.series[..] else { return };
    let what = format!("flash, {value} B, {}", form.name);
    let one = form.outstanding * form.keys == 1;
    let (floor, peers) = others.split_at(usize::from(one));
    let checks = &mut bench.report.checks;
    let hits = ours.median(|run| run.client.map_or(0.0, |c| c.hit_ratio));
    checks.push(Check::at_least(format!("{what}: hit ratio"), hits, 0.9999));
    if one && value <= 1024 {
        checks.push(Check::at_most(format!("{what}: CPU us per get"), ours.median(CPU), CPU_US));
    }
    if let [floor] = floor {
        checks.push(row::at_most(format!("{what}: CPU to the floor"), ours, floor, CPU, FLOOR));
    }
    if !one || value > 1024 {
        let share = if value <= 3072 { SHARE } else { SHARE_LONG };
        checks.push(row::at_least(
            format!("{what}: share of the device"),
            ours,
            limit,
            RATE,
            share,
        ));
    }
    if let Some(best) = peers.first() {
        if one && value <= 1024 {
            checks.push(row::at_least(
                format!("{what}: gets/s to extstore"),
                ours,
                best,
                RATE,
                EXTSTORE,
            ));
        }
        checks.push(row::at_most(format!("{what}: p99 to extstore"), ours, best, P99, 1.0));
    }
    if let Some(single) = peers.get(1) {
        let name = format!("{what}: gets/s to {}", single.name);
        checks.push(row::at_least(name, ours, single, RATE, EXTSTORE_ONE));
    }
}

/// Stores everything, waits until it is on flash, and judges by the time that took.
fn filling(
    bench: &mut MemcacheBench<'_>,
    server: &Server,
    objects: &Objects,
    count: u64,
) -> Result<(), BenchError> {
    let value = objects.value_len();
    let (begin, cpu) = (std::time::Instant::now(), server.cpu()?);
    let mut run = fill(bench, server, objects, 0..count, None)?;
    server.settle()?;
    run.seconds = begin.elapsed().as_secs_f64();
    run.per_second = run.operations as f64 / run.seconds;
    run.cpu_us_per_operation = (server.cpu()? - cpu) as f64 / 1000.0 / run.operations.max(1) as f64;
    let refused = run.client.map_or(0, |c| c.refused);
    let mut section = Section::new(
        format!("filling, {value} B"),
        format!("{count} sets, 16 outstanding on each connection, until all of it is on flash."),
    );
    let checks = &mut bench.report.checks;
    if value == 1024 {
        checks.push(Check::at_least(
            format!("filling, {value} B: sets/s until on flash"),
            run.per_second,
            FILLING,
        ));
    }
    checks.push(Check::at_most(format!("filling, {value} B: sets refused"), refused as f64, 0.0));
    section.series.push(Series { name: server.name.clone(), runs: vec![run] });
    bench.report.sections.push(section);
    Ok(())
}

/// memcached with its values on flash, filled slowly enough to keep them.
fn extstore(
    bench: &mut MemcacheBench<'_>,
    program: &Memcached,
    objects: &Objects,
    count: u64,
    threads: usize,
    path: &std::path::Path,
) -> Result<Server, BenchError> {
    let path = path.with_extension(threads.to_string());
    // Headers of all items stay in memory, about 110 B each with their hash table.
    let memory = (count * 150 + (100 << 20)).max(256 << 20);
    let mebibytes = ((bench.options.size >> 20) * 3 / 2).max(1024);
    let store = Extstore { path: path.clone(), mebibytes, threads };
    let name = format!("extstore, {threads} threads");
    let server =
        Server::memcached(program, &name, memory, Some(&store), &path.with_extension("log"))?;
    if let Some(why) = &server.unbounded {
        let what = format!(
            "{name} with its page cache bounded: no memory cgroup can be made here ({why})"
        );
        bench.report.missing.push(what);
    }
    fill(
        bench,
        &server,
        objects,
        0..count,
        Some(bench.options.extstore_fill / (1.0 + objects.value_len() as f64 / 4096.0)),
    )?;
    // Its writer looks for work every so often: reads of what is still in memory would flatter it.
    let load = Load {
        connections: bench.options.connections,
        outstanding: 1,
        kind: RequestKind::Get { keys: 1 },
        ids: 0..count,
        rate: None,
        seed: 99,
    };
    let failed = |e| BenchError::Void(format!("{name}: {e}"));
    let mut client = Client::connect(&server.address, objects, load).map_err(failed)?;
    client.run(Duration::from_secs_f64(bench.options.seconds)).map_err(failed)?;
    let evicted = server.stat("evictions")?;
    bench.report.figure(
        format!("{name}, {} B: evicted while filled", objects.value_len()),
        evicted as f64,
        "",
    );
    Ok(server)
}

/// Memory, bytes written, and CPU with nothing to do.
fn costs(bench: &mut MemcacheBench<'_>, server: &Server, value: usize) -> Result<(), BenchError> {
    const IDLING: Duration = Duration::from_secs(2);
    let Some(page) = server.metrics()? else { return Ok(()) };
    let written = |kind: &str| {
        metrics::sum(&page, &format!("afterglow_engine_written_bytes_total{{kind=\"{kind}\"}}"))
            as f64
    };
    let (records, again) = (written("record"), written("reinserted"));
    let metadata = written("metadata") + written("journal") + written("kill_log");
    let checks = &mut bench.report.checks;
    let name = |what: &str| format!("flash, {value} B: {what}");
    checks.push(Check::at_most(
        name("record bytes written to bytes stored"),
        records / (records - again).max(1.0),
        1.001,
    ));
    checks.push(Check::at_most(
        name("metadata written to records"),
        metadata / records.max(1.0),
        METADATA,
    ));
    let peak = server.resident().1 as f64 / bench.options.memory as f64;
    checks.push(Check::at_most(name("highest resident memory to the budget"), peak, 1.0));
    let before = server.cpu()?;
    std::thread::sleep(IDLING);
    let cores = (server.cpu()? - before) as f64 / IDLING.as_nanos() as f64;
    checks.push(Check::at_most(name("cores with nothing to do"), cores, IDLE));
    Ok(())
}
