//! `ycsb-check`

use std::{fs, path::PathBuf, process::ExitCode};

use afterglow_loadgen::say;
use afterglow_loadgen::ycsb;

use super::outcome::Outcome;

#[derive(clap::Args)]
pub struct YcsbCheckArgs {
    /// Histograms printed by crates/bench/ycsb-check.
    golden: PathBuf,
    /// Seed of our draws.
    #[arg(long, default_value_t = 2017)]
    seed: u64,
    /// Largest chi-square deviate that passes; 4 is a false alarm in 30,000 per distribution.
    #[arg(long, default_value_t = 4.0)]
    tolerance: f64,
}

pub fn run(options: &YcsbCheckArgs) -> Outcome {
    let text = fs::read_to_string(&options.golden)
        .map_err(|e| format!("cannot read {}: {e}", options.golden.display()))?;
    let golden = ycsb::parse_golden(&text)?;
    let mut failed = false;
    for case in ycsb::cases() {
        let name = case.name;
        let counts = golden.iter().find(|(n, _)| n == name).map(|(_, c)| c.as_slice());
        let counts = counts.ok_or_else(|| ycsb::CheckError::Missing(name.to_owned()))?;
        match ycsb::compare(case, counts, options.seed, options.tolerance) {
            Ok(z) => say!("same       {name:<16} deviate {z:5.2}"),
            Err(error) => {
                failed = true;
                say!("DIFFERENT  {name:<16} {error}");
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
