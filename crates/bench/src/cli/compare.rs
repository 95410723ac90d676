//! `report`: compares runs of `run-cql`.

use std::{fs, path::PathBuf, process::ExitCode};

use afterglow_bench::comparison::{self, Scenario};
use afterglow_loadgen::result::RunResult;
use afterglow_loadgen::say;

use super::outcome::Outcome;

#[derive(clap::Args)]
#[command(after_help = "\
Runs of two labels within a scenario are paired in the order they were made. Alternate them, and
make at least five pairs.

  afterglow-bench report runs/*.json --baseline direct --markdown report.md --html report.html")]
pub struct ReportArgs {
    /// Results written by `run-cql --json`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The label the others are compared with; without it the one that ran first.
    #[arg(long)]
    baseline: Option<String>,
    /// Title of the report.
    #[arg(long, default_value = "Afterglow measurements")]
    title: String,
    /// Write the tables as Markdown here.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write tables and plots as one self-contained page here.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub fn run(options: &ReportArgs) -> Outcome {
    let mut results = Vec::new();
    for path in &options.files {
        let name = path.display();
        let text = fs::read_to_string(path).map_err(|e| format!("cannot read {name}: {e}"))?;
        let result: RunResult = serde_json::from_str(&text)
            .map_err(|e| format!("{name} is not a result of run-cql: {e}"))?;
        results.push(result);
    }
    let scenarios = comparison::group(&results, options.baseline.as_deref())?;
    say!("{}", text(&scenarios).trim_end());
    if let Some(path) = &options.markdown {
        write(path, &markdown(&options.title, &scenarios))?;
    }
    if let Some(path) = &options.html {
        write(path, &comparison::html(&options.title, &scenarios))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &PathBuf, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn text(scenarios: &[Scenario<'_>]) -> String {
    let mut out = String::new();
    for scenario in scenarios {
        out += &format!("{}: medians\n{}\n", scenario.name, comparison::summary(scenario).text());
        if let Some(table) = comparison::comparison(scenario) {
            out += &format!("ratios of paired runs: median (lowest-highest)\n{}\n", table.text());
        }
    }
    out
}

fn markdown(title: &str, scenarios: &[Scenario<'_>]) -> String {
    let mut out = format!("# {title}\n");
    for scenario in scenarios {
        out += &format!(
            "\n## {}\n\nMedians.\n\n{}",
            scenario.name,
            comparison::summary(scenario).markdown()
        );
        if let Some(table) = comparison::comparison(scenario) {
            out += &format!(
                "\nRatios of paired runs: median (lowest-highest).\n\n{}",
                table.markdown()
            );
        }
    }
    out
}
