//! What a run leaves behind: one JSON file, read again by the report.

use serde::{Deserialize, Serialize};

use crate::{
    cql::table::TableSpec,
    latency::Summary,
    metrics::CacheCounters,
    ycsb::{Action, Distribution, OpMix, Workload},
};

/// Version of the file's layout.
pub const FORMAT: u32 = 1;
/// A client that used more of a core than this was itself the bottleneck: its row is void.
pub const VOID_ABOVE: f64 = 0.9;

/// One measured run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// Always [`FORMAT`].
    pub format: u32,
    /// What was measured, `direct` for instance. Results of one label are runs of the same thing.
    pub label: String,
    /// The load it was measured under, `flat out` for instance. Labels are compared within a
    /// scenario.
    pub scenario: String,
    /// The command that made it.
    pub command: String,
    /// When the measured phase began, seconds since 1970.
    pub started_unix: u64,
    /// The load.
    pub load: LoadShape,
    /// Throughput of each window of the warm-up, operations a second.
    pub warmup: Warmup,
    /// Seconds measured.
    pub seconds: f64,
    /// Operations that ended well.
    pub operations: u64,
    /// Of them a second.
    pub per_second: f64,
    /// Latency of reads, from the intended start.
    pub reads: Summary,
    /// Latency of writes, from the intended start.
    pub writes: Summary,
    /// Latency of all from the moment of sending: differs from the above in an open loop that does
    /// not keep up.
    pub service: Summary,
    /// Points (percentile, microseconds) of the curve of reads.
    pub curve: Vec<(f64, f64)>,
    /// Latency of reads and writes together, from the intended start.
    #[serde(default)]
    pub all: Summary,
    /// Points of the curve of both.
    #[serde(default)]
    pub all_curve: Vec<(f64, f64)>,
    /// Records there are now, those among them that this run inserted.
    #[serde(default)]
    pub records: u64,
    /// What went wrong.
    pub errors: Errors,
    /// Reads whose every byte was checked.
    pub verified: u64,
    /// The load client itself.
    pub client: ClientCpu,
    /// The processes watched.
    pub servers: Vec<ServerCpu>,
    /// Cores that neither the client nor the watched processes used: other work on the machine.
    /// `None` if no process was watched.
    pub other_cores: Option<f64>,
    /// Where Afterglow answered the reads from.
    pub cache: Option<CacheCounters>,
    /// One point per second.
    pub timeline: Vec<Second>,
}

/// The load of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadShape {
    /// The table.
    pub table: TableSpec,
    /// Which records are asked for.
    pub distribution: Distribution,
    /// Fraction of the records that is hot in `hotspot`.
    #[serde(default = "default_hot_set")]
    pub hot_set: f64,
    /// Fraction of the operations that read.
    pub read_ratio: f64,
    /// The workload whose operations these are instead.
    #[serde(default)]
    pub workload: Option<Workload>,
    /// Threads.
    pub threads: usize,
    /// Connections of all threads.
    pub connections: usize,
    /// Requests in flight per connection.
    pub in_flight: usize,
    /// Operations a second of an open loop; `None` is a closed loop.
    pub rate: Option<f64>,
    /// Seed of the choices.
    pub seed: u64,
}

impl LoadShape {
    /// Shares of its operations.
    pub fn mix(&self) -> OpMix {
        let plain = || OpMix::new(Action::Read, self.read_ratio, Action::Update);
        self.workload.map_or_else(plain, Workload::mix)
    }
}

fn default_hot_set() -> f64 {
    crate::ycsb::HOT_SET
}

/// How it was warmed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Warmup {
    /// Seconds it took.
    pub seconds: f64,
    /// Whether throughput was level in the end; `None` if that was not asked for.
    pub flat: Option<bool>,
    /// Operations a second of each window.
    pub windows: Vec<f64>,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Reads that found no row.
    pub not_found: u64,
    /// Reads that returned something never written there.
    pub wrong: u64,
    /// Refusals by the server: code, how many, one of the texts.
    pub refused: Vec<(i32, u64, String)>,
    /// Operations without an answer.
    pub lost: u64,
    /// Connections made anew.
    pub reconnects: u64,
    /// Operations that were due but never sent: the open loop was not kept up with.
    pub unsent: u64,
}

/// CPU of the load client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientCpu {
    /// Cores used by all its threads.
    pub cores: f64,
    /// Cores used by its busiest thread.
    pub busiest_thread: f64,
    /// The client was the bottleneck: the row says nothing about the server.
    pub void: bool,
}

/// CPU of a watched process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerCpu {
    /// As named on the command line.
    pub name: String,
    /// Cores used by all its threads.
    pub cores: f64,
    /// Microseconds of CPU per operation.
    pub us_per_operation: f64,
}

/// One second of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Operations that ended well.
    pub operations: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Median latency of both.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl RunResult {
    /// Whether everything read was right and nothing failed.
    pub fn is_clean(&self) -> bool {
        let e = &self.errors;
        e.not_found == 0 && e.wrong == 0 && e.refused.is_empty() && e.lost == 0
    }

    /// CPU of all watched processes per operation; `None` if none was watched.
    pub fn server_us_per_operation(&self) -> Option<f64> {
        let sum: f64 = self.servers.iter().map(|s| s.us_per_operation).sum();
        (!self.servers.is_empty()).then_some(sum)
    }
}
