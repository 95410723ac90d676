//! `run-cql`

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use afterglow_loadgen::{
    cql::{
        run::{self, Progress, RunOptions, Verify, Warm},
        table::TableSpec,
    },
    result::{LoadShape, RunResult},
    ycsb::{Distribution, HOT_SET, Workload},
};

use afterglow_loadgen::{
    cql::target::{Target, duration},
    say,
};

use super::outcome::Outcome;

#[derive(clap::Args)]
#[command(after_help = "\
Closed loop (default): every slot sends its next operation when the last one is answered. It shows
the highest throughput.
Open loop (--rate): operations start by the clock. Latency counts from the intended start, so that a
stall is charged to everyone who had to wait.
A run where the client used more than 0.9 of its core is marked void. Pin server and client with
taskset and say so.
Exit code 1: something read was wrong or missing, or was never answered.

  afterglow-bench run-cql --hosts 127.0.0.1:9042 --warmup flat --pid cassandra=4242 \\
    --label direct --json direct-1.json
  afterglow-bench run-cql --hosts 127.0.0.1:9043 --rate 15000 --metrics 127.0.0.1:9180 \\
    --label afterglow --json after-1.json")]
pub struct RunCqlArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    table: TableSpec,
    #[command(flatten)]
    shape: LoadArgs,
    #[command(flatten)]
    output: RunOutput,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Load")]
struct LoadArgs {
    /// Which records are asked for.
    #[arg(long, value_enum, default_value_t = Distribution::Zipfian)]
    distribution: Distribution,
    /// Fraction of the records that get 80 % of the requests with `--distribution hotspot`.
    #[arg(long, default_value_t = HOT_SET, value_parser = fraction)]
    hot_set: f64,
    /// One of YCSB's workloads, or a feed: which operations, and which records they ask for. For E
    /// and feeds load a table with --partition-rows, for feeds --newest-first too.
    #[arg(long, value_enum, conflicts_with_all = ["read_ratio", "distribution"])]
    workload: Option<Workload>,
    /// Fraction of the operations that read; the others update one field.
    #[arg(long, default_value_t = 1.0, value_parser = fraction)]
    read_ratio: f64,
    /// Threads; one drives well over 150,000 operations a second.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Connections of each thread.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Requests in flight per connection.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=32768))]
    in_flight: u16,
    /// Ask only for records that the first of the hosts owns, by the tokens that it shows to
    /// drivers: what a token-aware client sends to it.
    #[arg(long)]
    owned: bool,
    /// Open loop: operations a second of all threads together.
    #[arg(long, value_parser = positive)]
    rate: Option<f64>,
    /// Open loop with the random distances of independent users instead of equal ones.
    #[arg(long, requires = "rate")]
    poisson: bool,
    /// Never sleep: each thread takes a core, and latencies leave out how long it would take to
    /// wake up.
    #[arg(long)]
    poll: bool,
    /// Warm-up before measuring, always in a closed loop: a duration, or `flat`: until throughput
    /// is level (ten seconds within 5 %).
    #[arg(long, default_value = "flat", value_parser = warm)]
    warmup: Warm,
    /// Longest warm-up with `--warmup flat`.
    #[arg(long, default_value = "120s", value_parser = duration)]
    warmup_max: Duration,
    /// How long to measure.
    #[arg(long, default_value = "30s", value_parser = duration)]
    duration: Duration,
    /// Stop measuring after so many operations, if that comes first.
    #[arg(long)]
    ops: Option<u64>,
    /// Seed of the choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Which reads are verified byte for byte.
    #[arg(long, value_enum, default_value_t = Verify::Sample, num_args = 0..=1, default_missing_value = "all")]
    verify: Verify,
    /// Connect again where a connection breaks, and go on: for runs that kill the server.
    #[arg(long)]
    reconnect: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Measuring and output")]
struct RunOutput {
    /// Process whose CPU per operation is reported, PID or NAME=PID; repeatable.
    #[arg(long, value_name = "[NAME=]PID", value_parser = watched)]
    pid: Vec<(String, u32)>,
    /// Afterglow's admin address HOST:PORT: reports from where the reads were answered.
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// What is measured; the report compares labels.
    #[arg(long, default_value = "run")]
    label: String,
    /// Under which load; the report compares labels within a scenario.
    #[arg(long, default_value = "default")]
    scenario: String,
    /// Write the result here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print no progress.
    #[arg(long, short)]
    quiet: bool,
}

fn fraction(text: &str) -> Result<f64, String> {
    let value = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err("between 0 and 1".to_owned()) }
}

fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err("above 0".to_owned()) }
}

fn warm(text: &str) -> Result<Warm, String> {
    // The limit is filled in from --warmup-max.
    if text == "flat" { Ok(Warm::UntilFlat(Duration::ZERO)) } else { duration(text).map(Warm::For) }
}

fn watched(text: &str) -> Result<(String, u32), String> {
    let (name, pid) = text.split_once('=').unwrap_or(("server", text));
    let pid = pid.parse().map_err(|_| "a process id, or NAME=PID".to_owned())?;
    Ok((name.to_owned(), pid))
}

pub fn run(options: RunCqlArgs) -> Outcome {
    let RunCqlArgs { target, table, shape, output } = options;
    let settings = RunOptions {
        label: output.label,
        scenario: output.scenario,
        load: LoadShape {
            table,
            distribution: shape.workload.map_or(shape.distribution, Workload::distribution),
            hot_set: shape.hot_set,
            read_ratio: shape.read_ratio,
            workload: shape.workload,
            threads: usize::from(shape.threads),
            connections: usize::from(shape.connections) * usize::from(shape.threads),
            in_flight: usize::from(shape.in_flight),
            rate: shape.rate,
            seed: shape.seed,
        },
        connect: target.connect()?,
        hosts: target.hosts,
        owned: shape.owned,
        consistency: target.consistency,
        reconnect: shape.reconnect,
        poisson: shape.poisson,
        polls: shape.poll,
        warm: match shape.warmup {
            Warm::UntilFlat(_) => Warm::UntilFlat(shape.warmup_max),
            fixed => fixed,
        },
        duration: shape.duration,
        operations: shape.ops,
        verify: shape.verify,
        watch: output.pid,
        metrics: output.metrics,
    };
    let result = run::run(&settings, |progress| {
        if !output.quiet {
            report_progress(&progress);
        }
    })?;
    say!("{}", describe(&result).trim_end());
    if let Some(path) = output.json {
        let text = serde_json::to_string_pretty(&result)?;
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(if result.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report_progress(progress: &Progress) {
    match progress {
        Progress::Warming(second, operations) => {
            eprintln!("warming   {second:>4} s  {operations:>9} op/s")
        }
        Progress::Warm(None) => {}
        Progress::Warm(Some(true)) => eprintln!("warm: throughput is level"),
        Progress::Warm(Some(false)) => {
            eprintln!("NOT LEVEL after the longest warm-up allowed; measuring anyway")
        }
        Progress::Measuring(second, operations, 0) => {
            eprintln!("measuring {second:>4} s  {operations:>9} op/s")
        }
        Progress::Measuring(second, operations, failures) => {
            eprintln!("measuring {second:>4} s  {operations:>9} op/s  {failures} failed")
        }
    }
}

/// The result for a reader.
fn describe(result: &RunResult) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut line = |args: std::fmt::Arguments<'_>| {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{args}");
    };
    line(format_args!(
        "{}: {} operations in {:.1} s, {:.0} a second",
        result.label, result.operations, result.seconds, result.per_second
    ));
    for (name, s) in
        [("reads", &result.reads), ("writes", &result.writes), ("from sending", &result.service)]
    {
        if s.count > 0 {
            line(format_args!(
                "  {name:<13} mean {:.0}  p50 {:.0}  p95 {:.0}  p99 {:.0}  p99.9 {:.0}  max {:.0} us",
                s.mean_us, s.p50_us, s.p95_us, s.p99_us, s.p999_us, s.max_us
            ));
        }
    }
    for server in &result.servers {
        line(format_args!(
            "  CPU of {}: {:.2} cores, {:.2} us per operation",
            server.name, server.cores, server.us_per_operation
        ));
    }
    if let Some(cache) = &result.cache {
        line(format_args!(
            "  hits {:.2} %: {} from DRAM, {} from flash; {} misses",
            100.0 * cache.hit_ratio(),
            cache.dram_hits,
            cache.flash_hits,
            cache.misses
        ));
    }
    let client = &result.client;
    line(format_args!(
        "  CPU of this client: {:.2} cores, busiest thread {:.2}{}",
        client.cores,
        client.busiest_thread,
        if client.void { "  VOID: the client was the bottleneck" } else { "" }
    ));
    if let Some(other) = result.other_cores {
        line(format_args!("  other work on this machine: {other:.2} cores"));
    }
    let e = &result.errors;
    line(format_args!(
        "  verified {} reads; {} wrong, {} not found, {} without an answer, {} reconnects, {} due but unsent",
        result.verified, e.wrong, e.not_found, e.lost, e.reconnects, e.unsent
    ));
    for (code, count, message) in &e.refused {
        line(format_args!("  refused {count} times with 0x{code:04X}: {message}"));
    }
    text
}
