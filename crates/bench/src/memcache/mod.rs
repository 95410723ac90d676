//! The memcached front end beside memcached and the device: the server on the first core, the load
//! on the second, in one run.
//!
//! Every row is measured as often as asked for, contenders in alternating order, and judged by the
//! median of pairs. A row whose client used more than 0.9 of its core says that it is void.

mod bench;
mod dram;
mod flash;
mod floor;
mod floor_ring;
mod large;
mod row;
mod servers;
mod sets;
mod sweep;

use super::{BenchError, report::Report, store::Scratch};

use bench::MemcacheBench;
pub use bench::{MemcacheOptions, Part};
pub use large::BESIDES;
pub use servers::{Memcached, find_memcached};

/// `afterglow-bench memcache`.
///
/// # Errors
/// When a server cannot be started, breaks off, or answers with a wrong value.
pub fn memcache(options: &MemcacheOptions) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let report = Report::new("memcache", scratch.path());
    let mut bench = MemcacheBench { options, scratch, report };
    if let Err(why) = &options.memcached {
        bench.report.missing.push(format!("everything beside memcached: {why}"));
    }
    for part in &options.parts {
        match part {
            Part::Flash => flash::measure(&mut bench)?,
            Part::Dram => dram::measure(&mut bench)?,
            Part::Sets => sets::measure(&mut bench)?,
            Part::Large => large::measure(&mut bench)?,
            Part::Sweep => sweep::measure(&mut bench)?,
        }
        bench.scratch.clear()?;
    }
    Ok(bench.report)
}
