//! Sets sustained once flash is full, and what sets at half of the device's bandwidth do to reads.

use std::{
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use afterglow_engine::device::AlignedBuf;
use rustix::fs::OFlags;

use super::{
    super::{
        BenchError,
        device::Target,
        progress,
        report::{Check, Run, Section, Series},
    },
    bench::MemcacheBench,
    flash::{fill, space},
    row::{self, Contender, P999, run_of, tiers},
    servers::Server,
};
use afterglow_loadgen::{
    memcache::{Client, Load, Objects, RequestKind},
    metrics,
    rng::Rng,
};

/// Bytes of a value, and about what its record takes on flash.
const VALUE: usize = 4096;
const RECORD: f64 = 4224.0 + 40.0;
/// Share of the device's sequential rate to be reached, if memcached is not slower.
const SUSTAINED: f64 = 0.9;
/// Of that rate, beside reads; and how many times slower the slowest reads may be then.
const BESIDE: f64 = 0.5;
const SLOWER: f64 = 3.0;
/// Of the rate that reads reach alone, so that they wait for the device and not for each other.
const READING: f64 = 0.25;
const WRITE: usize = 1 << 20;
const WRITERS: usize = 4;

/// The whole part.
pub fn measure(bench: &mut MemcacheBench<'_>) -> Result<(), BenchError> {
    let options = bench.options;
    let target = Target::make(bench.scratch.path(), options.size.next_multiple_of(WRITE as u64))?;
    let device = sequential(&target, bench.length())?;
    drop(target);
    let (objects, count) = (Objects::new(VALUE), options.size / VALUE as u64);
    let peer = peer(bench, &objects, count)?;

    let data = bench.scratch.path().join("sets");
    let server = Server::afterglow(&options.program, &data, space(options.size), options.memory)?;
    fill(bench, &server, &objects, 0..count, None)?;
    let before = on_flash(&server)?;
    let mut run = fill(bench, &server, &objects, count..2 * count, None)?;
    // What memory took is not sustained: what was written meanwhile counts.
    let (written, acknowledged) = ((on_flash(&server)? - before) / RECORD, run.per_second);
    run.per_second = acknowledged.min(written / run.seconds);
    server.settle()?;
    drops(bench, &server)?;

    let rate = run.per_second;
    let wanted =
        peer.as_ref().map_or(f64::INFINITY, |p| p.per_second).min(SUSTAINED * device.per_second);
    let from = format!("{rate:.0} / {wanted:.0}");
    let name = "sets sustained: to 0.9 of the device's rate or memcached's, the lower";
    bench.report.checks.push(Check::at_least(name, rate / wanted, 1.0).from(from));
    let refused = run.client.map_or(0, |c| c.refused);
    bench.report.checks.push(Check::at_most("sets sustained: refused", refused as f64, 0.0));
    let note = format!(
        "Sets of {VALUE} B into flash that is full, as many as were written to flash meanwhile. The device: sequential writes of 1 MiB by \
         {WRITERS} threads, as objects of {RECORD} B. memcached keeps them in memory and evicts."
    );
    let mut section = Section::new("sets sustained", note);
    section.series.push(Series { name: server.name.clone(), runs: vec![run] });
    section.series.extend(peer.map(|run| Series { name: "memcached".into(), runs: vec![run] }));
    section.series.push(Series { name: "device".into(), runs: vec![device.clone()] });
    bench.report.sections.push(section);
    // A device may write faster than sets can be sent.
    beside_reads(bench, &server, &objects, count, BESIDE * device.per_second.min(acknowledged))
}

/// Bytes of objects written to flash so far, without those written again.
fn on_flash(server: &Server) -> Result<f64, BenchError> {
    let page = server.metrics()?.unwrap_or_default();
    let written = |kind: &str| {
        metrics::sum(&page, &format!("afterglow_engine_written_bytes_total{{kind=\"{kind}\"}}"))
            as f64
    };
    Ok(written("record") - written("reinserted"))
}

/// What was dropped, and why: of flash that is full, what is reclaimed.
fn drops(bench: &mut MemcacheBench<'_>, server: &Server) -> Result<(), BenchError> {
    let page = server.metrics()?.unwrap_or_default();
    let samples =
        page.lines().filter_map(|line| line.strip_prefix("afterglow_engine_dropped_total"));
    for (labels, count) in samples.filter_map(|sample| sample.rsplit_once(' ')) {
        let count: f64 = count.parse().unwrap_or(0.0);
        if count > 0.0 {
            bench.report.figure(format!("sets sustained: dropped {labels}"), count, "objects");
        }
    }
    Ok(())
}

/// Sequential writes over a file, as sets of that many objects.
fn sequential(target: &Target, length: Duration) -> Result<Run, BenchError> {
    progress(format_args!("sequential writes"));
    let fail = || BenchError::io(format!("write {}", target.path.display()));
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .write(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(&target.path)
        .map_err(fail())?;
    let (next, begin, writes) = (AtomicU64::new(0), Instant::now(), target.size / WRITE as u64);
    let worker = |n: usize| {
        let (mut rng, mut data) = (Rng::new(n as u64), AlignedBuf::zeroed(WRITE));
        data.chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        // At least once: on a busy machine a thread may begin when the time is over.
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed) % writes;
            file.write_all_at(&data, at * WRITE as u64)?;
            if begin.elapsed() >= length {
                return std::io::Result::Ok(());
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WRITERS).map(|n| scope.spawn(move || worker(n))).collect();
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|_| Err(std::io::Error::other("panicked"))))
    })
    .map_err(fail())?;
    let seconds = begin.elapsed().as_secs_f64();
    let bytes = (next.into_inner() * WRITE as u64) as f64;
    let per_second = bytes / RECORD / seconds;
    Ok(Run { operations: (bytes / RECORD) as u64, seconds, per_second, ..Run::default() })
}

fn peer(
    bench: &MemcacheBench<'_>,
    objects: &Objects,
    count: u64,
) -> Result<Option<Run>, BenchError> {
    let Ok(program) = &bench.options.memcached else { return Ok(None) };
    let log = bench.scratch.path().join("memcached.log");
    let server =
        Server::memcached(program, "memcached", bench.options.memory.max(64 << 20), None, &log)?;
    fill(bench, &server, objects, 0..count, None)?;
    fill(bench, &server, objects, count..2 * count, None).map(Some)
}

/// Reads at a fixed rate, alone and beside sets at `sets` a second, in alternating order.
fn beside_reads(
    bench: &mut MemcacheBench<'_>,
    server: &Server,
    objects: &Objects,
    count: u64,
    sets: f64,
) -> Result<(), BenchError> {
    let options = bench.options;
    // The newest are on flash whatever is written meanwhile.
    let ids = count + count / 2..2 * count;
    let form = row::FORMS[0];
    let alone = row::Gets { connections: options.connections, form, ids: ids.clone() };
    let flat_out = alone.run(server, objects, 5, bench.length())?;
    let reads = Load {
        connections: options.connections,
        outstanding: 16,
        kind: RequestKind::Get { keys: 1 },
        ids,
        rate: Some(READING * flat_out.per_second),
        seed: 0,
    };
    let (length, fresh) = (bench.length(), AtomicU64::new(3 * count));
    let stored = AtomicU64::new(0);
    let mixed = |seed: u64| {
        // A little more than the run needs: it ends with its time.
        let many = (sets * length.as_secs_f64() * 1.5) as u64 + 1;
        let from = fresh.fetch_add(many, Ordering::Relaxed);
        let writes = Load {
            connections: 16,
            outstanding: 64,
            kind: RequestKind::Set,
            ids: from..from + many,
            rate: Some(sets),
            seed,
        };
        let (run, written) =
            at_once(server, objects, [Load { seed, ..reads.clone() }, writes], length)?;
        stored.fetch_add(written, Ordering::Relaxed);
        Ok(run)
    };
    let read_only = |seed| {
        let reads = Load { seed, ..reads.clone() };
        row::under_load(server, objects, reads, length)
    };
    let contenders =
        [Contender::new("reads alone", read_only), Contender::new("beside sets", mixed)];
    let note = format!(
        "Gets of {VALUE} B at {:.0} a second, open loop, alone and beside {sets:.0} sets a second. That is half of what the device writes, or of \
         what sets reach where that is less.",
        READING * flat_out.per_second
    );
    let section = bench.row("reads beside sets".to_owned(), note, &contenders)?;
    drop(contenders);
    let reached = stored.load(Ordering::Relaxed) as f64 / options.runs as f64 / sets;
    bench.report.checks.push(Check::at_least(
        "reads beside sets: share of the sets' rate reached",
        reached,
        0.95,
    ));
    let [alone, beside] = &section.series[..] else { return Ok(()) };
    let name = "reads beside sets: p99.9 to that of reads alone";
    bench.report.checks.push(row::at_most(name.to_owned(), beside, alone, P999, SLOWER));
    bench.report.sections.push(section);
    Ok(())
}

/// Reads and writes at once: the reads with the refusals and the CPU of both, and the writes a
/// second.
fn at_once(
    server: &Server,
    objects: &Objects,
    loads: [Load; 2],
    length: Duration,
) -> Result<(Run, u64), BenchError> {
    let (before, cpu) = (tiers(server)?, server.cpu()?);
    let outcomes = thread::scope(|scope| {
        let both = loads.map(|load| {
            scope.spawn(move || {
                let _pinned = super::super::pin::Pinned::to(1);
                Client::connect(&server.address, objects, load)?.run(length)
            })
        });
        both.map(|thread| {
            thread.join().unwrap_or_else(|_| Err(std::io::Error::other("panicked").into()))
        })
    });
    let [reads, writes] =
        outcomes.map(|o| o.map_err(|e| BenchError::Void(format!("{}: {e}", server.name))));
    let (mut reads, writes) = (reads?, writes?);
    reads.cpu += writes.cpu;
    reads.refused += writes.refused;
    let run = run_of(server, &reads, server.cpu()? - cpu, before)?;
    Ok((run, (writes.operations as f64 / writes.seconds) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_go_round_the_file_for_as_long_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::make(dir.path(), 4 << 20).unwrap();
        let run = sequential(&target, Duration::from_millis(30)).unwrap();
        assert!(run.operations > 0 && run.seconds >= 0.03 && run.latency.count == 0);
    }
}
