//! What is measured, and the benchmark under way.

use std::path::PathBuf;

use super::super::{BenchError, report::Report, store::Scratch};
use super::servers::{Memcached, Server};

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Filling, then gets from flash, beside extstore and the device's limit.
    Flash,
    /// Gets and sets in DRAM, beside memcached.
    Dram,
    /// Sets sustained, and what they do to reads.
    Sets,
    /// Gets of large values from DRAM and flash, beside memcached.
    Large,
    /// Sizes of values and numbers of connections, as plots.
    Sweep,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct MemcacheOptions {
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
    /// Threads of extstore; the first is the peer, others are measured with one request
    /// outstanding.
    pub extstore_threads: Vec<usize>,
    /// Stores a second that extstore is filled with: faster, and it evicts what it has not written.
    pub extstore_fill: f64,
    /// Connections.
    pub connections: usize,
    /// Sizes of large values.
    pub large_values: Vec<usize>,
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
pub(super) struct MemcacheBench<'a> {
    pub(super) options: &'a MemcacheOptions,
    pub(super) scratch: Scratch,
    pub(super) report: Report,
}

/// Seconds of runs, of a kind, that are over before the engine begins to copy to flash what was
/// stored just before.
const SOON_OVER: f64 = 0.4;

impl MemcacheBench<'_> {
    /// Waits until what was stored is on flash, where its writing behind would otherwise fall into
    /// what is measured next.
    pub(super) fn calm(&self, server: &Server) -> Result<(), BenchError> {
        match self.options.seconds * self.options.runs as f64 <= SOON_OVER {
            true => Ok(()),
            false => server.settle(),
        }
    }
}
