//! Metrics of the process, under the names that every Prometheus client uses.

use std::{fs, time::SystemTime};

use rustix::time::{ClockId, clock_gettime};

use super::{Exposition, Kind};
use crate::version;

pub(super) fn expose(started: SystemTime, out: &mut Exposition) {
    const BUILD: &str = "afterglow_build_info";
    out.header(BUILD, Kind::Gauge, "Always 1; the labels name the version.");
    out.sample(BUILD, &[("version", version::VERSION), ("commit", version::COMMIT)], 1);

    let since_epoch =
        started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    out.single(
        "process_start_time_seconds",
        Kind::Gauge,
        "When the process started, in seconds since 1970.",
        since_epoch,
    );

    out.single(
        "process_cpu_seconds_total",
        Kind::Counter,
        "Processor time used, user and system.",
        cpu_seconds(),
    );

    // Without /proc these are left out rather than wrong.
    if let Some(bytes) = resident_bytes() {
        out.single("process_resident_memory_bytes", Kind::Gauge, "Memory in use.", bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        out.single("process_open_fds", Kind::Gauge, "Open file descriptors.", open.count());
    }
}

/// Processor time of the process, user and system.
pub fn cpu_seconds() -> f64 {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9
}

/// Memory of the process; `None` where there is no /proc.
pub fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}
