//! Turns the command line and the environment into the inputs of a configuration.

use std::path::{Path, PathBuf};

use clap::ArgMatches;

use super::output::Failure;
use crate::config::{Inputs, keys::KEYS};

/// Gathers flags, environment and the file, which is read now.
pub(super) fn gather(arguments: &ArgMatches, file: Option<&Path>) -> Result<Inputs, Failure> {
    let flags = KEYS.iter().filter_map(|key| {
        let values = arguments.get_many::<String>(key.name)?;
        Some((key.name, values.cloned().collect()))
    });
    // A variable that is not text cannot be one of ours.
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("AFTERGLOW_"))?;
        Some((name, value.into_string().ok()?))
    });
    Ok(Inputs {
        file: file.map(read).transpose()?,
        environment: environment.collect(),
        flags: flags.collect(),
    })
}

/// Reads the file.
pub(super) fn read(path: &Path) -> Result<(PathBuf, String), Failure> {
    let content = std::fs::read(path).map_err(|e| {
        Failure::usage(format!("error: cannot read the configuration {}: {e}", path.display()))
    })?;
    let content = String::from_utf8(content).map_err(|e| {
        let valid = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        Failure::usage(format!("error: {}:{line}: not UTF-8 text", path.display()))
    })?;
    Ok((path.to_path_buf(), content))
}
