//! `afterglow serve`.

use std::path::{Path, PathBuf};

use clap::ArgMatches;

use super::{inputs, output::Failure};
use crate::{
    config::{Config, LogFormat, check_rereadable, load},
    logging::Logging,
    serve::{self, Reload},
};

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let file = arguments.get_one::<String>("config").map(PathBuf::from);
    let given = inputs::gather(arguments, file.as_deref())?;
    let loaded = load(&given).map_err(Failure::usage)?;
    let logging = Logging::start(&loaded.config);
    // Where errors are filtered out, the one that ends the process is told all the same.
    let json =
        loaded.config.log_format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR);
    for note in &loaded.notes {
        tracing::info!("configuration: {note}");
    }
    // Flags and environment cannot change any more; only the file is read again.
    let reload = move || read_again(&given, file.as_deref());
    serve::run(loaded.config, &logging, &reload as &Reload<'_>).map_err(|e| match json {
        // Who reads the log as JSON reads nothing else.
        true => {
            tracing::error!("{e}");
            Failure::said()
        }
        false => Failure::failed(format!("error: {e}")),
    })
}

fn read_again(given: &crate::config::Inputs, file: Option<&Path>) -> Result<Config, String> {
    if let Some(path) = file {
        check_rereadable(path)
            .map_err(|why| format!("cannot read the configuration {}: {why}", path.display()))?;
    }
    let file = file.map(inputs::read).transpose().map_err(|failure| failure.message)?;
    let again = crate::config::Inputs { file, ..given.clone() };
    load(&again).map(|loaded| loaded.config).map_err(|faults| faults.to_string())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::config::Inputs;

    #[test]
    fn a_pipe_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let given = Inputs { file: None, environment: Vec::new(), flags: Vec::new() };
        let error = read_again(&given, Some(&pipe)).unwrap_err();
        assert!(error.contains("only a regular file can be read again"), "{error}");
    }
}
