//! The same reads by fio, whose figures everybody trusts.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{BenchError, report::Run};
use afterglow_loadgen::latency::Summary;

/// A fio that can be run.
#[derive(Clone, Debug)]
pub struct Fio {
    /// The program.
    pub program: PathBuf,
}

/// Finds fio: the project's own in `.tools`, else the one in the search path; says how to get one
/// otherwise.
pub fn find() -> Result<Fio, BenchError> {
    for program in [".tools/fio/fio", "fio"].map(PathBuf::from) {
        if Command::new(&program).arg("--version").output().is_ok_and(|o| o.status.success()) {
            return Ok(Fio { program });
        }
    }
    Err(BenchError::Void(
        "fio is missing: `apt install fio`, or `make bench-engine`, which fetches it into .tools"
            .into(),
    ))
}

impl Fio {
    /// Random reads as [`super::device::by_ring`] does them, on the first core too.
    pub fn randread(
        &self,
        path: &Path,
        size: u64,
        block: u32,
        depth: usize,
        seconds: f64,
    ) -> Result<Run, BenchError> {
        let fail = || BenchError::io(format!("run {}", self.program.display()));
        let output = Command::new(&self.program)
            .args([
                "--name=limit",
                "--rw=randread",
                "--direct=1",
                "--ioengine=io_uring",
                "--norandommap",
            ])
            .args([
                "--readonly",
                "--time_based",
                "--output-format=json",
                "--randrepeat=0",
                "--cpus_allowed=0",
            ])
            .arg(format!("--filename={}", path.display()))
            .arg(format!("--size={size}"))
            .arg(format!("--bs={block}"))
            .arg(format!("--iodepth={depth}"))
            .arg(format!("--runtime={}ms", (seconds * 1000.0) as u64))
            .output()
            .map_err(fail())?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(fail()(io::Error::other(why)));
        }
        let json = serde_json::from_slice(&output.stdout).map_err(|e| fail()(e.into()))?;
        run_of(&json).ok_or_else(|| fail()(io::Error::other("its output has no figures")))
    }
}

fn run_of(json: &Value) -> Option<Run> {
    let job = json.get("jobs")?.get(0)?;
    let read = job.get("read")?;
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_f64);
    let (operations, seconds) = (number(read, "total_ios")?, number(read, "runtime")? / 1000.0);
    let cores = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
    let clat = read.get("clat_ns")?;
    let at =
        |p: &str| clat.get("percentile").and_then(|all| number(all, p)).unwrap_or(0.0) / 1000.0;
    let latency = Summary {
        count: operations as u64,
        mean_us: number(clat, "mean")? / 1000.0,
        p50_us: at("50.000000"),
        p95_us: at("95.000000"),
        p99_us: at("99.000000"),
        p999_us: at("99.900000"),
        max_us: number(clat, "max")? / 1000.0,
    };
    Some(Run {
        operations: operations as u64,
        seconds,
        per_second: operations / seconds,
        cpu_us_per_operation: cores * seconds * 1e6 / operations.max(1.0),
        latency,
        curve: Vec::new(),
        client: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_understood() {
        let json = serde_json::json!({"jobs": [{"usr_cpu": 10.0, "sys_cpu": 40.0, "read": {
            "total_ios": 1000, "runtime": 2000,
            "clat_ns": {"mean": 5000.0, "max": 9000, "percentile": {"50.000000": 4000, "99.000000": 8000}}}}]});
        let run = run_of(&json).unwrap();
        assert_eq!((run.per_second, run.cpu_us_per_operation), (500.0, 1000.0));
        assert_eq!((run.latency.p50_us, run.latency.p99_us), (4.0, 8.0));
        assert_eq!(run_of(&serde_json::json!({"jobs": []})).map(|r| r.operations), None);
    }
}
