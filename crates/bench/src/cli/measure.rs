//! The benchmarks: options and printing; the work is done in the library.

use std::path::{Path, PathBuf};

use afterglow_bench::{BenchError, Report, alloc, cql, device, engine, find_fio, memcache, memory, recovery};
use afterglow_cql::frame::Version;
use clap::{Args, Subcommand};

use afterglow::config::Size;

use super::{
    Failure,
    memcache::{self as memcache_options, Memcache},
    print, server,
};

/// One of the benchmarks. Caches, and servers where they need some, are made in `--dir` and removed afterwards.
#[derive(Subcommand)]
pub(super) enum Bench {
    /// Random reads by io_uring with O_DIRECT on one core: the limit everything else is judged by
    DeviceLimit(DeviceLimit),
    /// Random gets from flash, submitted and blocking, beside the device's limit; DRAM hits
    Engine(Engine),
    /// Memory per object, what a miss costs, whether the memory budget holds during a bulk load
    Memory(Memory),
    /// How soon a cache of many objects serves again after a clean stop and after kill -9
    Recovery(Recovery),
    /// The CQL front end: what passing through adds to a read, how soon hits are answered, how many a core answers
    Cql(Cql),
    /// The memcached front end beside memcached, its extstore, and the device's limit
    Memcache(Memcache),
    /// One life of the cache of `recovery`
    #[command(hide = true)]
    RecoveryLife(Life),
}

#[derive(Args)]
pub(super) struct Output {
    /// Write everything measured to this file, as JSON; `-` is standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print tables as Markdown
    #[arg(long)]
    markdown: bool,
}

#[derive(Args)]
pub(super) struct DeviceLimit {
    /// A directory (a file of --size is written there and removed), or a file or block device that is only read
    #[arg(long, value_name = "PATH", default_value = ".")]
    path: PathBuf,
    /// Size of the file to write
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    size: Size,
    /// Bytes per read
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "512B,1KiB,4KiB,8KiB,16KiB,64KiB"
    )]
    block: Vec<Size>,
    /// Reads in flight
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,4,16,64,128", value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: Vec<u16>,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Measure the same with fio, run by run, and compare
    #[arg(long)]
    fio: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub(super) struct Engine {
    /// Directory to make the cache in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Flash to use
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    size: Size,
    /// Memory of the cache: little, so that gets reach flash
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    memory: Size,
    /// Sizes of values, each measured in a cache of its own
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4KiB,1KiB")]
    value: Vec<Size>,
    /// Gets in flight of the submitted form
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// Threads of the blocking form
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,4,16,64,128", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Pairs of runs
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub(super) struct Memory {
    /// Directory to make the caches in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Objects of the cache whose index is weighed, at 90 % fill
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    objects: u64,
    /// Size of values
    #[arg(long, value_name = "SIZE", default_value = "64B")]
    value: Size,
    /// Objects of the bulk load; 0 leaves it out
    #[arg(long, value_name = "NUMBER", default_value_t = 50_000_000)]
    bulk: u64,
    /// Memory of the bulk load
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: Size,
    /// Flash of the bulk load
    #[arg(long, value_name = "SIZE", default_value = "12GiB")]
    size: Size,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub(super) struct Recovery {
    /// Directory to make the cache in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Objects in it
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    objects: u64,
    /// Size of values
    #[arg(long, value_name = "SIZE", default_value = "64B")]
    value: Size,
    /// Memory of the cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: Size,
    /// Objects put again before each kill -9
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    updates: u64,
    /// Stops of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
#[command(after_help = "\
Makes, fills and drops the keyspace afterglow_bench in the database: do not name one that is in use. \
Needs two cores: the load client has the second, Afterglow the first while hits are measured and the client's while reads \
pass through it.")]
pub(super) struct Cql {
    /// The database to stand in front of, HOST:PORT
    #[arg(long, value_name = "HOST:PORT")]
    backend: String,
    /// The database's process, if it is on this machine: kept on the first core, its CPU shown
    #[arg(long, value_name = "PID")]
    backend_pid: Option<u32>,
    /// Directory to make caches in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Protocol version, 4 or 5
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(4..=5))]
    protocol: u8,
    /// Rows of 100 B, for DRAM and for passing through
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(2..))]
    rows: u64,
    /// Rows of 4 KB, for flash: the cache's memory is 64MiB
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(2..))]
    large_rows: u64,
    /// Flash to use
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    size: Size,
    /// Reads a second under light load
    #[arg(long, value_name = "NUMBER", default_value_t = 2000)]
    light: u32,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    seconds: f64,
    /// Runs of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub(super) struct Life {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    objects: u64,
    #[arg(long)]
    value: Size,
    #[arg(long)]
    memory: Size,
}

pub(super) fn run(bench: Bench) -> Result<(), Failure> {
    // For `memory`; nothing that matters to it has been allocated yet.
    if matches!(bench, Bench::Memory(_)) {
        alloc::count();
    }
    let failed = |e: BenchError| Failure::failed(format!("error: {e}"));
    let (report, output) = match bench {
        Bench::DeviceLimit(o) => {
            let options = device::Options {
                path: o.path,
                size: o.size.get(),
                blocks: blocks(&o.block)?,
                depths: o.depth.iter().map(|&d| d.into()).collect(),
                seconds: o.seconds,
                runs: o.runs.into(),
                fio: o.fio.then(find_fio).transpose().map_err(failed)?,
            };
            (device::limit(&options), o.output)
        }
        Bench::Engine(o) => {
            let options = engine::Options {
                dir: o.dir,
                size: o.size.get(),
                memory: o.memory.get(),
                values: o.value.iter().map(|v| v.get() as usize).collect(),
                depth: o.depth.into(),
                threads: o.threads.iter().map(|&t| t.into()).collect(),
                seconds: o.seconds,
                runs: o.runs.into(),
            };
            (engine::engine(&options), o.output)
        }
        Bench::Memory(o) => {
            let options = memory::Options {
                dir: o.dir,
                objects: o.objects,
                value: o.value.get() as usize,
                bulk: o.bulk,
                memory: o.memory.get(),
                size: o.size.get(),
            };
            (memory::memory(&options), o.output)
        }
        Bench::Recovery(o) => {
            let program = std::env::current_exe().map_err(|e| Failure::failed(format!("error: {e}")))?;
            let options = recovery::Options {
                dir: o.dir,
                objects: o.objects,
                value: o.value.get() as usize,
                memory: o.memory.get(),
                updates: o.updates,
                runs: o.runs.into(),
                program,
                arguments: vec!["recovery-life".into()],
            };
            (recovery::recovery(&options), o.output)
        }
        Bench::Cql(o) => {
            let options = cql::Options {
                dir: o.dir,
                program: server()?,
                backend: o.backend,
                backend_pid: o.backend_pid,
                version: Version::from_u8(o.protocol).expect("clap lets no other pass"),
                rows: o.rows,
                large_rows: o.large_rows,
                flash: o.size.get(),
                light: o.light.into(),
                seconds: o.seconds,
                runs: o.runs.into(),
            };
            (cql::cql(&options), o.output)
        }
        Bench::Memcache(o) => (memcache::memcache(&memcache_options::options(&o)?), o.output),
        Bench::RecoveryLife(o) => {
            let (value, memory) = (o.value.get() as usize, o.memory.get());
            return recovery::Life { dir: o.dir, objects: o.objects, value, memory }.run().map_err(failed);
        }
    };
    tell(&report.map_err(failed)?, &output)
}

fn blocks(sizes: &[Size]) -> Result<Vec<u32>, Failure> {
    let block = |size: &Size| match size.get() {
        n @ 512..=1_048_576 if n.is_multiple_of(512) => Ok(n as u32),
        _ => Err(Failure::usage(format!(
            "error: --block {size}: choose a multiple of 512 bytes, at most 1 MiB"
        ))),
    };
    sizes.iter().map(block).collect()
}

/// Prints and writes a report; a missed target is a failure.
fn tell(report: &Report, output: &Output) -> Result<(), Failure> {
    let json =
        serde_json::to_string_pretty(report).map_err(|e| Failure::failed(format!("error: {e}")))? + "\n";
    let to_stdout = output.json.as_deref() == Some(Path::new("-"));
    for (path, content) in [(&output.json, &json), (&output.html, &report.html())] {
        if let Some(path) = path.as_ref().filter(|p| *p != Path::new("-")) {
            std::fs::write(path, content)
                .map_err(|e| Failure::failed(format!("error: cannot write {}: {e}", path.display())))?;
        }
    }
    match (to_stdout, output.markdown) {
        (true, _) => print(&json)?,
        (false, true) => print(&report.markdown())?,
        (false, false) => print(&report.text())?,
    }
    match report.failures().count() {
        0 => Ok(()),
        n => Err(Failure::failed(format!("{n} of {} targets missed", report.checks.len()))),
    }
}
