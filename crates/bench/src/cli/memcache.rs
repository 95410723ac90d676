//! `afterglow-bench memcache`: its flags.

use std::path::PathBuf;

use afterglow::{cli::output::Failure, config::Size};
use afterglow_bench::memcache;
use clap::Args;

use super::{outcome::server, output::ReportOutput};

/// Flags.
#[derive(Args)]
pub(super) struct Memcache {
    /// Directory to make caches in
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// What to measure
    #[arg(
        long,
        value_enum,
        value_name = "PARTS",
        value_delimiter = ',',
        default_value = "flash,dram,sets,large,sweep"
    )]
    parts: Vec<memcache::Part>,
    /// Bytes of values on flash
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    size: Size,
    /// All memory of Afterglow over flash
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: Size,
    /// Memory of Afterglow and memcached where everything is in DRAM
    #[arg(long, value_name = "SIZE", default_value = "3GiB")]
    dram_memory: Size,
    /// Sizes of values where everything is in DRAM
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "100B,1KiB,4KiB")]
    dram_value: Vec<Size>,
    /// Sizes of values on flash
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1KiB,4KiB")]
    value: Vec<Size>,
    /// Threads of extstore; the first is the peer, others are measured with one request outstanding
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "8,1", value_parser = clap::value_parser!(u16).range(1..=64))]
    extstore_threads: Vec<u16>,
    /// Stores a second that extstore is filled with, fewer for larger values: faster, and it evicts
    /// what it has not written
    #[arg(long, value_name = "NUMBER", default_value_t = 80_000.0)]
    extstore_fill: f64,
    /// Connections
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Sizes of large values, up to 4095KiB
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "128KiB,256KiB,1MiB,4095KiB"
    )]
    large_value: Vec<Size>,
    /// Sizes of values of the sweep
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "64B,256B,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB"
    )]
    sweep_value: Vec<Size>,
    /// Numbers of connections of the sweep
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,4,16,64,256,1024", value_parser = clap::value_parser!(u16).range(1..=1024))]
    sweep_connections: Vec<u16>,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Runs of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    #[command(flatten)]
    pub(super) output: ReportOutput,
}

/// What to measure.
pub(super) fn options(o: &Memcache) -> Result<memcache::MemcacheOptions, Failure> {
    let bytes = |sizes: &[Size]| sizes.iter().map(|size| size.get() as usize).collect::<Vec<_>>();
    let numbers = |numbers: &[u16]| numbers.iter().map(|&n| n.into()).collect::<Vec<usize>>();
    for size in o.value.iter().chain(&o.dram_value).chain(&o.sweep_value) {
        if !(1..=1 << 20).contains(&size.get()) {
            return Err(Failure::usage(format!(
                "error: a value of {size}: choose one of 1B to 1MiB"
            )));
        }
    }
    let most = (4 << 20) - memcache::BESIDES as u64;
    if let Some(size) = o.large_value.iter().find(|size| !(1..=most).contains(&size.get())) {
        return Err(Failure::usage(format!(
            "error: a large value of {size}: choose one of 1B to 4095KiB"
        )));
    }
    Ok(memcache::MemcacheOptions {
        dir: o.dir.clone(),
        program: server()?,
        memcached: memcache::find_memcached().map_err(|e| e.to_string()),
        parts: o.parts.clone(),
        size: o.size.get(),
        memory: o.memory.get(),
        dram_memory: o.dram_memory.get(),
        dram_values: bytes(&o.dram_value),
        values: bytes(&o.value),
        extstore_threads: numbers(&o.extstore_threads),
        extstore_fill: o.extstore_fill,
        connections: o.connections.into(),
        large_values: bytes(&o.large_value),
        sweep_values: bytes(&o.sweep_value),
        sweep_connections: numbers(&o.sweep_connections),
        seconds: o.seconds,
        runs: o.runs.into(),
    })
}
