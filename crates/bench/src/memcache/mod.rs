//! The memcached front end beside memcached and the device: the server on the first core, the load on the second, in one run.
//!
//! Every row is measured as often as asked for, contenders in alternating order, and judged by the median of pairs. A row whose
//! client used more than 0.9 of its core says that it is void.

mod dram;
mod flash;
mod row;
mod servers;
mod sets;
mod sweep;

use std::path::PathBuf;

use super::{BenchError, report::Report, store::Scratch};

pub use servers::{Memcached, find_memcached};

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Filling, then gets from flash, beside extstore and the device's limit.
    Flash,
    /// Gets and sets in DRAM, beside memcached.
    Dram,
    /// Sets sustained, and what they do to reads.
    Sets,
    /// Sizes of values and numbers of connections, as plots.
    Sweep,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to make caches and files.
    pub dir: PathBuf,
    /// The program that has `serve`.
    pub program: PathBuf,
    /// The peer, or why there is none.
    pub memcached: Result<Memcached, String>,
    /// Which parts.
    pub parts: Vec<Part>,
    /// Bytes of values on flash.
    pub size: u64,
    /// All memory of Afterglow over flash.
    pub memory: u64,
    /// Memory of both servers where everything is in DRAM.
    pub dram_memory: u64,
    /// Sizes of values where everything is in DRAM.
    pub dram_values: Vec<usize>,
    /// Sizes of values on flash.
    pub values: Vec<usize>,
    /// Threads of extstore; the first is the peer, others are measured with one request outstanding.
    pub extstore_threads: Vec<usize>,
    /// Stores a second that extstore is filled with: faster, and it evicts what it has not written.
    pub extstore_fill: f64,
    /// Connections.
    pub connections: usize,
    /// Sizes of the sweep.
    pub sweep_values: Vec<usize>,
    /// Numbers of connections of the sweep.
    pub sweep_connections: Vec<usize>,
    /// How long each run is.
    pub seconds: f64,
    /// Runs of each kind.
    pub runs: usize,
}

/// The benchmark under way.
struct Bench<'a> {
    options: &'a Options,
    scratch: Scratch,
    report: Report,
}

/// Seconds of runs, of a kind, that are over before the engine begins to copy to flash what was stored just before.
const SOON_OVER: f64 = 0.4;

impl Bench<'_> {
    /// Waits until what was stored is on flash, where its writing behind would otherwise fall into what is measured next.
    fn calm(&self, server: &servers::Server) -> Result<(), BenchError> {
        match self.options.seconds * self.options.runs as f64 <= SOON_OVER {
            true => Ok(()),
            false => server.settle(),
        }
    }
}

/// `afterglow-bench memcache`.
///
/// # Errors
/// When a server cannot be started, breaks off, or answers with a wrong value.
pub fn memcache(options: &Options) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let report = Report::new("memcache", scratch.path());
    let mut bench = Bench { options, scratch, report };
    if let Err(why) = &options.memcached {
        bench.report.missing.push(format!("everything beside memcached: {why}"));
    }
    for part in &options.parts {
        match part {
            Part::Flash => flash::measure(&mut bench)?,
            Part::Dram => dram::measure(&mut bench)?,
            Part::Sets => sets::measure(&mut bench)?,
            Part::Sweep => sweep::measure(&mut bench)?,
        }
        bench.scratch.clear()?;
    }
    Ok(bench.report)
}
