//! `afterglow inspect DIR`.

use std::path::{Path, PathBuf};

use clap::ArgMatches;

use super::output::{Failure, print};
use crate::{config::FlashSpec, inspect, serve::FLASH_FILE};

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let data_dir = arguments
        .get_one::<String>("DIR")
        .map(Path::new)
        .ok_or_else(|| Failure::usage("error: no DIR"))?;
    let named = arguments.get_many::<String>("flash").unwrap_or_default().map(|text| path(text));
    let mut devices: Vec<PathBuf> = named.collect();
    let default = data_dir.join(FLASH_FILE);
    // Where it is not there, flash lies elsewhere or is gone: only who configured it knows.
    if devices.is_empty() && default.exists() {
        devices.push(default);
    }
    let report = inspect::inspect(data_dir, &devices).map_err(|e| {
        Failure::failed(format!("error: cannot look into {}: {e}", data_dir.display()))
    })?;
    match arguments.get_flag("json") {
        true => {
            let json = serde_json::to_string_pretty(&report)
                .map_err(|e| Failure::failed(format!("error: {e}")))?;
            print(&format!("{json}\n"))
        }
        false => print(&report.to_string()),
    }
}

/// The path alone, or with the size behind it as `serve` has it.
fn path(text: &str) -> PathBuf {
    text.parse::<FlashSpec>().map_or_else(|_| PathBuf::from(text), |spec| spec.path)
}
