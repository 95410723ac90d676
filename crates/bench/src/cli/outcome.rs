//! What commands end with, and the server that some of them need.

use std::{path::PathBuf, process::ExitCode};

use afterglow::cli::output::Failure;

/// The exit status, or what went wrong.
pub(super) type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;

/// The server to measure: `afterglow` next to this program, where both are built and installed.
pub(super) fn server() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::failed(format!("error: {e}")))?;
    let server = own.with_file_name("afterglow");
    if server.is_file() {
        return Ok(server);
    }
    let missing = server.display();
    Err(Failure::failed(format!(
        "error: {missing} is missing: build it (make release), or put both into one folder"
    )))
}
