//! Where a report goes.

use std::path::{Path, PathBuf};

use afterglow::cli::output::{Failure, print};
use afterglow_bench::Report;
use clap::Args;

#[derive(Args)]
pub(super) struct ReportOutput {
    /// Write everything measured to this file, as JSON; `-` is standard output, instead of the
    /// tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print tables as Markdown
    #[arg(long)]
    markdown: bool,
}

/// Prints and writes a report; a missed target is a failure.
pub(super) fn tell(report: &Report, output: &ReportOutput) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(report)
        .map_err(|e| Failure::failed(format!("error: {e}")))?
        + "\n";
    let to_stdout = output.json.as_deref() == Some(Path::new("-"));
    for (path, content) in [(&output.json, &json), (&output.html, &report.html())] {
        if let Some(path) = path.as_ref().filter(|p| *p != Path::new("-")) {
            std::fs::write(path, content).map_err(|e| {
                Failure::failed(format!("error: cannot write {}: {e}", path.display()))
            })?;
        }
    }
    match (to_stdout, output.markdown) {
        (true, _) => print(&json)?,
        (false, true) => print(&report.markdown())?,
        (false, false) => print(&report.text())?,
    }
    match report.failures().count() {
        0 => Ok(()),
        n => Err(Failure::failed(format!("{n} of {} targets missed", report.checks.len()))),
    }
}
