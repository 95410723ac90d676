//! Why a kill test could not be done.

use std::{io, path::PathBuf, process::ExitStatus};

use crate::history::HistoryError;
use afterglow_loadgen::cql::CqlError;

/// Why the test could not be done.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// The binary could not be run.
    #[error("cannot run {}: {source}; build it with `cargo build -p afterglow`", binary.display())]
    Start {
        /// The binary.
        binary: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It ended although nobody killed it.
    #[error("the server ended by itself ({status}); its log ends with:\n{log}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// Last lines.
        log: String,
    },
    /// It did not come up.
    #[error(
        "the server's CQL front end did not answer within {seconds} s; its log ends with:\n{log}"
    )]
    Silent {
        /// How long was waited.
        seconds: u64,
        /// Last lines.
        log: String,
    },
    /// It did not end after SIGTERM.
    #[error("the server did not end within {0} s after SIGTERM")]
    Undying(u64),
    /// It ended with an error after SIGTERM.
    #[error("the server ended with {0} after SIGTERM")]
    Unclean(ExitStatus),
    /// The directory or a file in it cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No free port, or the child cannot be killed.
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
    /// The table could not be made, or not be read in the end.
    #[error(transparent)]
    Cql(#[from] CqlError),
    /// The recorder is at fault.
    #[error(transparent)]
    History(#[from] HistoryError),
}
