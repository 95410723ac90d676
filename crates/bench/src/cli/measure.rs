//! The benchmarks: options and printing; the work is done in the library.

use std::path::PathBuf;

use afterglow_bench::{
    BenchError, alloc, cql, device, devices, engine, find_fio, memcache, memory, recovery, traces,
};
use afterglow_cql::frame::Version;
use afterglow_loadgen::ycsb::Workload;
use clap::{Args, Subcommand, ValueEnum};

use afterglow::cli::output::Failure;
use afterglow::config::Size;

use super::{
    memcache::{self as memcache_options, Memcache},
    outcome::server,
    output::{ReportOutput, tell},
};

/// One of the benchmarks. Caches, and servers where they need some, are made in `--dir` and removed
/// afterwards.
#[derive(Subcommand)]
pub(super) enum Benchmark {
    /// Random reads by io_uring with O_DIRECT on one core: the limit everything else is judged by
    DeviceLimit(DeviceLimit),
    /// Random gets from flash, submitted and blocking, beside the device's limit; DRAM hits
    Engine(Engine),
    /// Several devices of unequal speed as one cache: its rate beside the sum of theirs, and what a
    /// device costs that hangs or is pulled out. Needs root, loop devices and control groups
    Devices(Devices),
    /// Memory per object, what a miss costs, whether the memory budget holds during a bulk load
    Memory(Memory),
    /// How soon a cache of many objects serves again after a clean stop and after kill -9
    Recovery(Recovery),
    /// Hit ratios of DRAM and flash together and flash bytes written, over public traces, beside
    /// other policies and an offline bound
    Traces(Traces),
    /// The CQL front end: what passing through adds to a read, how soon hits are answered, how many
    /// a core answers; or YCSB's workloads and others beside the database itself
    Cql(Cql),
    /// The memcached front end beside memcached, its extstore, and the device's limit
    Memcache(Memcache),
    /// One life of the cache of `recovery`
    #[command(hide = true)]
    RecoveryLife(LifeArgs),
}

#[derive(Args)]
pub(super) struct DeviceLimit {
    /// A directory (a file of --size is written there and removed), or a file or block device that
    /// is only read
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
    output: ReportOutput,
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
    output: ReportOutput,
}

#[derive(Args)]
pub(super) struct Devices {
    /// Directory to make the devices' files and the cache in; one in memory, such as /dev/shm, has
    /// no speed of its own
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Size of each device
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1GiB,1GiB")]
    size: Vec<Size>,
    /// Reads a second of each device
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "500,2000", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    iops: Vec<u64>,
    /// How much of the flash is filled, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=90))]
    fill: u32,
    /// Memory of the cache: little, so that gets reach flash
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    memory: Size,
    /// Size of values
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    value: Size,
    /// Gets in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0)]
    seconds: f64,
    /// Seconds of zipfian reads between their first and their last run
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    balance: f64,
    /// Seconds of load before a device fails, meanwhile, and afterwards; 0 leaves that out
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0)]
    outage: f64,
    #[command(flatten)]
    output: ReportOutput,
}

#[derive(Args)]
pub(super) struct Memory {
    /// Directory to make the caches in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Objects of the cache whose index is weighed, at 90 % fill; 0 leaves it out
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000_000, value_parser = weighed)]
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
    output: ReportOutput,
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
    output: ReportOutput,
}

#[derive(Args)]
#[command(after_help = "\
Traces are read where they are. What is not there is named under \"not measured\". Nothing is timed: \
a --dir in memory, such as /dev/shm, gives the same figures sooner.")]
pub(super) struct Traces {
    /// Folder with the traces
    #[arg(long, value_name = "DIR", env = "AFTERGLOW_TRACES")]
    traces: Option<PathBuf>,
    /// Traces to replay, by their files' names up to the first dot; without it all that are there
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    trace: Vec<String>,
    /// Directory to make the caches in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Bytes of flash for each byte of DRAM
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "10,50,100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    ratio: Vec<u32>,
    /// Both tiers together, in percent of the bytes of a trace's objects
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    share: f64,
    /// Size of objects where the trace names none
    #[arg(long, value_name = "SIZE", default_value = "4000B", value_parser = object)]
    object: Size,
    #[command(flatten)]
    output: ReportOutput,
}

#[derive(Args)]
#[command(after_help = "\
Makes, fills and drops the keyspace afterglow_bench in the database: do not name one that is in \
use. Needs two cores: the load client has the second, Afterglow the first while hits are measured \
and the client's while reads pass through it. With --workload each load is measured directly and \
through Afterglow in turn. There database and Afterglow share the first core.

  afterglow-bench cql --backend 127.0.0.1:9042 --backend-pid 4242 --workload a,b,c,d,f \\
    --memory 48MiB,64MiB,96MiB,1GiB --html ycsb.html")]
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
    /// Measure these loads beside the database itself, instead of the front end alone: YCSB's
    /// workloads by their letters, a feed, and rows of 4 KB while the database compacts
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    workload: Vec<LoadName>,
    /// With --workload: records of each table, but of those of 4 KB
    #[arg(long, value_name = "NUMBER", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(2000..))]
    records: u64,
    /// With --workload: memory of the cache, from little to enough for all
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "64MiB,96MiB,192MiB,1GiB"
    )]
    memory: Vec<Size>,
    /// With --workload: seconds in which the database is warmed before it is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    warm: f64,
    /// With --workload large: reads a second, instead of half of what the database can do
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    seconds: f64,
    /// Runs of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    #[command(flatten)]
    output: ReportOutput,
}

/// A load by its name.
#[derive(Clone, Copy, ValueEnum)]
enum LoadName {
    A,
    B,
    C,
    D,
    E,
    F,
    /// The 50 newest rows of partitions of 1,000; one operation in ten adds a row
    Feed,
    /// Rows of 4 KB in an open loop
    Large,
}

impl LoadName {
    fn load(self) -> cql::Load {
        cql::Load::Workload(match self {
            LoadName::A => Workload::A,
            LoadName::B => Workload::B,
            LoadName::C => Workload::C,
            LoadName::D => Workload::D,
            LoadName::E => Workload::E,
            LoadName::F => Workload::F,
            LoadName::Feed => Workload::Feed,
            LoadName::Large => return cql::Load::LargeRows,
        })
    }
}

#[derive(Args)]
pub(super) struct LifeArgs {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    objects: u64,
    #[arg(long)]
    value: Size,
    #[arg(long)]
    memory: Size,
}

/// How many objects to weigh an index with: none, or enough to fill one.
fn weighed(text: &str) -> Result<u64, String> {
    let objects = text.parse().ok().filter(|&objects: &u64| objects == 0 || objects >= 1000);
    objects.ok_or_else(|| "give 0, or a number of at least 1000".into())
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
    percent.ok_or_else(|| "give a number above 0 and up to 100".into())
}

/// A size that objects of every cache may have.
fn object(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|e| format!("{e}"))?;
    let fits = (1..=8 << 10).contains(&size.get());
    fits.then_some(size).ok_or_else(|| "give 1B to 8KiB".into())
}

/// Runs one, and prints and writes its report.
pub(super) fn run(bench: Benchmark) -> Result<(), Failure> {
    // For `memory`; nothing that matters to it has been allocated yet.
    if matches!(bench, Benchmark::Memory(_)) {
        alloc::count();
    }
    let (report, output) = match bench {
        Benchmark::DeviceLimit(o) => (device::limit(&o.options()?), o.output),
        Benchmark::Engine(o) => (engine::engine(&o.options()), o.output),
        Benchmark::Devices(o) => (devices::devices(&o.options()?), o.output),
        Benchmark::Memory(o) => (memory::memory(&o.options()), o.output),
        Benchmark::Recovery(o) => (recovery::recovery(&o.options()?), o.output),
        Benchmark::Traces(o) => (traces::traces(&o.options()), o.output),
        Benchmark::Cql(o) => (cql::cql(&o.options()?), o.output),
        Benchmark::Memcache(o) => (memcache::memcache(&memcache_options::options(&o)?), o.output),
        Benchmark::RecoveryLife(o) => {
            let (value, memory) = (o.value.get() as usize, o.memory.get());
            return recovery::Life { dir: o.dir, objects: o.objects, value, memory }
                .run()
                .map_err(failed);
        }
    };
    tell(&report.map_err(failed)?, &output)
}

fn failed(error: BenchError) -> Failure {
    Failure::failed(format!("error: {error}"))
}

impl DeviceLimit {
    fn options(&self) -> Result<device::LimitOptions, Failure> {
        Ok(device::LimitOptions {
            path: self.path.clone(),
            size: self.size.get(),
            blocks: blocks(&self.block)?,
            depths: self.depth.iter().map(|&d| d.into()).collect(),
            seconds: self.seconds,
            runs: self.runs.into(),
            fio: self.fio.then(find_fio).transpose().map_err(failed)?,
        })
    }
}

impl Engine {
    fn options(&self) -> engine::EngineOptions {
        engine::EngineOptions {
            dir: self.dir.clone(),
            size: self.size.get(),
            memory: self.memory.get(),
            values: self.value.iter().map(|v| v.get() as usize).collect(),
            depth: self.depth.into(),
            threads: self.threads.iter().map(|&t| t.into()).collect(),
            seconds: self.seconds,
            runs: self.runs.into(),
        }
    }
}

impl Devices {
    fn options(&self) -> Result<devices::DevicesOptions, Failure> {
        if self.size.len() != self.iops.len() || self.size.len() < 2 {
            return Err(Failure::usage(
                "error: give --size and --iops of two devices or more, one of each for each",
            ));
        }
        Ok(devices::DevicesOptions {
            dir: self.dir.clone(),
            sizes: self.size.iter().map(|size| size.get().next_multiple_of(4096)).collect(),
            reads: self.iops.clone(),
            fill: self.fill,
            memory: self.memory.get(),
            value: self.value.get() as usize,
            depth: self.depth.into(),
            seconds: self.seconds,
            balance: self.balance,
            outage: self.outage,
        })
    }
}

impl Memory {
    fn options(&self) -> memory::MemoryOptions {
        memory::MemoryOptions {
            dir: self.dir.clone(),
            objects: self.objects,
            value: self.value.get() as usize,
            bulk: self.bulk,
            memory: self.memory.get(),
            size: self.size.get(),
        }
    }
}

impl Recovery {
    fn options(&self) -> Result<recovery::RecoveryOptions, Failure> {
        let program =
            std::env::current_exe().map_err(|e| Failure::failed(format!("error: {e}")))?;
        Ok(recovery::RecoveryOptions {
            dir: self.dir.clone(),
            objects: self.objects,
            value: self.value.get() as usize,
            memory: self.memory.get(),
            updates: self.updates,
            runs: self.runs.into(),
            program,
            arguments: vec!["recovery-life".into()],
        })
    }
}

impl Traces {
    fn options(&self) -> traces::TracesOptions {
        traces::TracesOptions {
            traces: self.traces.clone(),
            names: self.trace.clone(),
            dir: self.dir.clone(),
            ratios: self.ratio.clone(),
            share: self.share,
            object: self.object.get() as u32,
        }
    }
}

impl Cql {
    fn options(&self) -> Result<cql::CqlOptions, Failure> {
        Ok(cql::CqlOptions {
            dir: self.dir.clone(),
            program: server()?,
            backend: self.backend.clone(),
            backend_pid: self.backend_pid,
            version: Version::from_u8(self.protocol).expect("clap lets no other pass"),
            rows: self.rows,
            large_rows: self.large_rows,
            flash: self.size.get(),
            light: self.light.into(),
            loads: self.workload.iter().map(|name| name.load()).collect(),
            records: self.records,
            memory: self.memory.iter().map(|size| size.get()).collect(),
            warm: self.warm,
            rate: self.rate.map(f64::from),
            seconds: self.seconds,
            runs: self.runs.into(),
        })
    }
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
