//! What a benchmark of the engine leaves behind: JSON, text, and one page of HTML.

use std::{fmt::Write, path::Path, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::comparison::{
    Table,
    chart::{Chart, Line},
    html::STYLE,
    median,
    table::escape,
    thousands,
};
use afterglow_loadgen::latency::Summary;

/// Version of the JSON's layout.
const FORMAT: u32 = 1;

/// Everything a benchmark found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of this layout.
    pub format: u32,
    /// Which benchmark.
    pub bench: String,
    /// The command that made it.
    pub command: String,
    /// When, in seconds since 1970.
    pub started_unix: u64,
    /// Where.
    pub machine: Machine,
    /// Runs, by what they have in common.
    pub sections: Vec<Section>,
    /// Tables of figures that are no runs.
    #[serde(default)]
    pub grids: Vec<Grid>,
    /// Single figures.
    pub figures: Vec<Figure>,
    /// Figures against their targets.
    pub checks: Vec<Check>,
    /// Plots over something other than percentiles.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// What could not be measured here, and why.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// A table of figures that no clock was needed for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grid {
    /// Its title.
    pub name: String,
    /// What was done.
    pub note: String,
    /// Titles of the columns, with units.
    pub columns: Vec<String>,
    /// Title and figures of each row; one that there is not is left empty.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

/// Lines over sizes or numbers, both axes logarithmic unless said otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// What the horizontal axis counts.
    pub x: String,
    /// What the vertical axis counts.
    pub y: String,
    /// Both axes are linear: the horizontal one is in percent.
    #[serde(default)]
    pub linear: bool,
    /// Names of the lines, and their points.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// The machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The kernel's version.
    pub kernel: String,
    /// What was read and written.
    pub path: String,
    /// Whether the program was compiled with optimisation.
    pub optimised: bool,
}

/// Runs of things to be compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Its title.
    pub name: String,
    /// What was done.
    pub note: String,
    /// The things.
    pub series: Vec<Series>,
}

/// Runs of one thing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its runs, in the order they were made; the n-th runs of a section's series are a pair.
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Operations that ended well.
    pub operations: u64,
    /// How long it took.
    pub seconds: f64,
    /// Operations a second.
    pub per_second: f64,
    /// User and system time of the whole process (of a server: its process) per operation, in
    /// microseconds.
    pub cpu_us_per_operation: f64,
    /// Latency; of very short operations a sample.
    pub latency: Summary,
    /// Points (percentile, microseconds) of the latency's curve.
    pub curve: Vec<(f64, f64)>,
    /// What the load client saw, where there was one.
    #[serde(default)]
    pub client: Option<ClientSide>,
}

/// A run as its load client saw it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ClientSide {
    /// Cores the client used itself: above 0.9 it may have been what limited the run.
    pub cores: f64,
    /// Objects found of those asked for; 1 for stores.
    pub hit_ratio: f64,
    /// Of the hits, those that were read from flash, where the server says so.
    pub from_flash: Option<f64>,
    /// Stores the server refused.
    pub refused: u64,
    /// It never slept, by order: the cores it used say nothing.
    #[serde(default)]
    pub polls: bool,
}

impl ClientSide {
    /// Share of a core above which a row is void.
    pub const LIMIT: f64 = 0.9;
}

/// A single figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What it says.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// A figure with a target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What it says.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Least it should be.
    pub at_least: Option<f64>,
    /// Most it should be.
    pub at_most: Option<f64>,
    /// Whether it is.
    pub holds: bool,
    /// What it was made from: our figure and the peer's.
    #[serde(default)]
    pub from: String,
}

impl Check {
    /// A figure that should be at least so much.
    pub fn at_least(name: impl Into<String>, value: f64, bound: f64) -> Self {
        Self {
            name: name.into(),
            value,
            at_least: Some(bound),
            at_most: None,
            holds: value >= bound,
            from: String::new(),
        }
    }

    /// A figure that should be at most so much.
    pub fn at_most(name: impl Into<String>, value: f64, bound: f64) -> Self {
        Self {
            name: name.into(),
            value,
            at_least: None,
            at_most: Some(bound),
            holds: value <= bound,
            from: String::new(),
        }
    }

    /// Of a figure that could not be had: the target is missed.
    #[must_use]
    pub fn unmeasured(self) -> Self {
        Self { holds: false, from: "not measured: no run counts".into(), ..self }
    }

    /// A figure that should be between two.
    pub fn between(name: impl Into<String>, value: f64, low: f64, high: f64) -> Self {
        let holds = (low..=high).contains(&value);
        Self {
            name: name.into(),
            value,
            at_least: Some(low),
            at_most: Some(high),
            holds,
            from: String::new(),
        }
    }

    /// Says what it was made from.
    pub fn from(mut self, from: impl Into<String>) -> Self {
        self.from = from.into();
        self
    }
}

impl Section {
    pub(super) fn new(name: impl Into<String>, note: impl Into<String>) -> Self {
        Self { name: name.into(), note: note.into(), series: Vec::new() }
    }
}

impl Grid {
    pub(super) fn new(name: impl Into<String>, note: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { name: name.into(), note: note.into(), columns, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, name: impl Into<String>, figures: Vec<Option<f64>>) {
        self.rows.push((name.into(), figures));
    }

    fn table(&self) -> Table {
        let columns = self.columns.iter().map(String::as_str);
        let mut table = Table::new(&[""].into_iter().chain(columns).collect::<Vec<_>>());
        for (name, figures) in &self.rows {
            let figure = |f: &Option<f64>| f.map_or_else(String::new, |f| format!("{f:.2}"));
            table.row([name.clone()].into_iter().chain(figures.iter().map(figure)).collect());
        }
        table
    }
}

impl Series {
    /// The median of a figure over the runs.
    pub fn median(&self, figure: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(figure))
    }

    /// Operations a second as a share of another's: the median over pairs of runs.
    pub fn ratio_to(&self, other: &Series) -> f64 {
        let pairs = self.runs.iter().zip(&other.runs).filter(|(_, o)| o.per_second > 0.0);
        median(pairs.map(|(run, o)| run.per_second / o.per_second))
    }
}

fn first_line_of(path: &str, field: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|l| l.strip_prefix(field)).unwrap_or_default();
    value.trim_start_matches([' ', '\t', ':']).trim().to_owned()
}

impl Report {
    pub(super) fn new(bench: &str, path: &Path) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut words: Vec<String> = std::env::args().collect();
        if let Some(program) = words.first_mut() {
            "afterglow".clone_into(program);
        }
        Self {
            format: FORMAT,
            bench: bench.to_owned(),
            command: words.join(" "),
            started_unix: now.as_secs(),
            machine: Machine {
                cpu: first_line_of("/proc/cpuinfo", "model name"),
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                kernel: first_line_of("/proc/sys/kernel/osrelease", ""),
                path: path.display().to_string(),
                optimised: !cfg!(debug_assertions),
            },
            sections: Vec::new(),
            grids: Vec::new(),
            figures: Vec::new(),
            checks: Vec::new(),
            plots: Vec::new(),
            missing: Vec::new(),
        }
    }

    pub(super) fn figure(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        self.figures.push(Figure { name: name.into(), value, unit: unit.to_owned() });
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|c| !c.holds)
    }

    /// For the terminal.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.command, self.place());
        for section in &self.sections {
            let _ = write!(out, "\n{}\n{}\n{}", section.name, section.note, table(section).text());
        }
        for grid in &self.grids {
            let _ = write!(out, "\n{}\n{}\n{}", grid.name, grid.note, grid.table().text());
        }
        for (title, table) in self.lists() {
            let _ = write!(out, "\n{title}\n{}", table.text());
        }
        for what in &self.missing {
            let _ = writeln!(out, "\nnot measured: {what}");
        }
        out
    }

    /// For documents.
    pub fn markdown(&self) -> String {
        let mut out = format!("`{}`, {}\n", self.command, self.place());
        for section in &self.sections {
            let _ = write!(
                out,
                "\n{}: {}\n\n{}",
                section.name,
                section.note,
                table(section).markdown()
            );
        }
        for grid in &self.grids {
            let table = grid.table().markdown();
            let _ = write!(out, "\n{}: {}\n\n{table}", grid.name, grid.note);
        }
        for (_, table) in self.lists() {
            let _ = write!(out, "\n{}", table.markdown());
        }
        for what in &self.missing {
            let _ = writeln!(out, "\nNot measured: {what}");
        }
        out
    }

    /// One page that needs nothing from elsewhere.
    pub fn html(&self) -> String {
        let title = escape(&format!("afterglow bench {}", self.bench));
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body><h1>{title}</h1>\
             <p>{}</p><p><code>{}</code></p>",
            escape(&self.place()),
            escape(&self.command)
        );
        for (title, table) in self.lists().into_iter().rev() {
            let _ = write!(out, "<h2>{title}</h2>{}", table.html());
        }
        for what in &self.missing {
            let _ = write!(out, "<p><b>Not measured:</b> {}</p>", escape(what));
        }
        for plot in &self.plots {
            out += &plot.chart().svg();
        }
        for grid in &self.grids {
            let (name, note) = (escape(&grid.name), escape(&grid.note));
            let _ = write!(out, "<h2>{name}</h2><p>{note}</p>{}", grid.table().html());
        }
        for section in &self.sections {
            let _ =
                write!(out, "<h2>{}</h2><p>{}</p>", escape(&section.name), escape(&section.note));
            out += &table(section).html();
            out += &Chart::of_latencies("Latency", section.series.iter().filter_map(middle_curve))
                .svg();
        }
        out + "</body></html>\n"
    }

    fn place(&self) -> String {
        let m = &self.machine;
        let debug =
            if m.optimised { "" } else { "; COMPILED WITHOUT OPTIMISATION: figures mean nothing" };
        format!("{} cores of {}, Linux {}, {}{debug}", m.cores, m.cpu, m.kernel, m.path)
    }

    fn lists(&self) -> Vec<(&'static str, Table)> {
        let mut lists = Vec::new();
        if !self.figures.is_empty() {
            let mut table = Table::new(&["figure", "value", "unit"]);
            for f in &self.figures {
                table.row(vec![f.name.clone(), plain(f.value), f.unit.clone()]);
            }
            lists.push(("Figures", table));
        }
        if !self.checks.is_empty() {
            let mut table = Table::new(&["target", "measured", "of", "at least", "at most", ""]);
            let bound = |b: Option<f64>| b.map_or_else(String::new, plain);
            for c in &self.checks {
                let verdict = if c.holds { "holds" } else { "MISSED" };
                table.row(vec![
                    c.name.clone(),
                    plain(c.value),
                    c.from.clone(),
                    bound(c.at_least),
                    bound(c.at_most),
                    verdict.into(),
                ]);
            }
            lists.push(("Targets", table));
        }
        lists
    }
}

/// Four digits that count.
fn plain(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => thousands(value),
        v if v >= 10.0 => format!("{value:.2}"),
        v if v >= 0.01 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.6}"),
    }
}

/// Medians, and the lowest and highest throughput.
fn table(section: &Section) -> Table {
    let watched = section.series.iter().flat_map(|s| &s.runs).any(|r| r.client.is_some());
    let mut head =
        vec!["", "runs", "op/s", "lowest", "highest", "CPU us/op", "p50 us", "p99", "p99.9"];
    if watched {
        head.extend(["client cores", "hits", "from flash", ""]);
    }
    let mut table = Table::new(&head);
    for s in &section.series {
        let rate =
            |f: fn(f64, f64) -> f64| s.runs.iter().map(|r| r.per_second).reduce(f).unwrap_or(0.0);
        let us = |figure: fn(&Summary) -> f64| {
            let value = s.median(|r| figure(&r.latency));
            if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
        };
        let mut row = vec![
            s.name.clone(),
            s.runs.len().to_string(),
            thousands(s.median(|r| r.per_second)),
            thousands(rate(f64::min)),
            thousands(rate(f64::max)),
            format!("{:.2}", s.median(|r| r.cpu_us_per_operation)),
            us(|l| l.p50_us),
            us(|l| l.p99_us),
            us(|l| l.p999_us),
        ];
        if watched {
            row.extend(client_cells(s));
        }
        table.row(row);
    }
    table
}

/// What the client says of a series: its cores, hit ratio, share from flash, and why not to believe
/// it.
fn client_cells(series: &Series) -> [String; 4] {
    let sides: Vec<ClientSide> = series.runs.iter().filter_map(|r| r.client).collect();
    if sides.is_empty() {
        return [(); 4].map(|()| String::new());
    }
    let middle = |figure: fn(&ClientSide) -> f64| median(sides.iter().map(figure));
    let cores = middle(|c| c.cores);
    let flash: Vec<f64> = sides.iter().filter_map(|c| c.from_flash).collect();
    let refused: u64 = sides.iter().map(|c| c.refused).sum();
    let limited = cores > ClientSide::LIMIT && !sides.iter().any(|c| c.polls);
    let remark = match (limited, refused) {
        (true, _) => "void: the client was the limit".to_owned(),
        (false, 0) => String::new(),
        (false, n) => format!("{n} refused"),
    };
    let flash = if flash.is_empty() { "-".to_owned() } else { format!("{:.2}", median(flash)) };
    [format!("{cores:.2}"), format!("{:.4}", middle(|c| c.hit_ratio)), flash, remark]
}

impl Plot {
    fn chart(&self) -> Chart<'_> {
        let at = |x: f64| if self.linear { x } else { x.log2() };
        let lines = self.lines.iter().map(|(name, points)| Line {
            name: name.clone(),
            points: points.iter().map(|(x, y)| (at(*x), *y)).collect(),
        });
        let mut xs: Vec<f64> =
            self.lines.iter().flat_map(|(_, points)| points).map(|p| p.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        if self.linear {
            xs = (0..=20).map(|x| f64::from(5 * x)).collect();
        }
        let label = |x: f64| match x {
            x if x >= 1_048_576.0 => format!("{}M", x / 1_048_576.0),
            x if x >= 1024.0 => format!("{}k", (x / 102.4).round() / 10.0),
            x => format!("{x}"),
        };
        Chart {
            title: &self.title,
            x_label: &self.x,
            y_label: &self.y,
            logarithmic: !self.linear,
            x_ticks: xs.iter().map(|x| (at(*x), label(*x))).collect(),
            lines: lines.collect(),
        }
    }
}

/// The latency curve of a series' middle run, with the name of the series.
fn middle_curve(series: &Series) -> Option<(String, &[(f64, f64)])> {
    let mut runs: Vec<&Run> = series.runs.iter().filter(|r| !r.curve.is_empty()).collect();
    runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    Some((series.name.clone(), &runs.get(runs.len() / 2)?.curve))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, rates: &[f64]) -> Series {
        let run = |&per_second: &f64| Run {
            operations: 10,
            seconds: 1.0,
            per_second,
            cpu_us_per_operation: 2.5,
            latency: Summary { p50_us: 3.0, ..Summary::default() },
            curve: vec![(0.0, 1.0), (99.0, 5.0)],
            client: None,
        };
        Series { name: name.into(), runs: rates.iter().map(run).collect() }
    }

    #[test]
    fn ratios_are_medians_of_pairs() {
        let (ours, limit) =
            (series("ours", &[90.0, 50.0, 99.0]), series("limit", &[100.0, 50.0, 110.0]));
        assert_eq!(ours.ratio_to(&limit), 0.9);
    }

    #[test]
    fn every_form_shows_rows_figures_and_missed_targets() {
        let mut report = Report::new("engine", Path::new("/<dev>"));
        let mut section = Section::new("4 KiB", "note");
        section.series.push(series("ring", &[1000.0, 2000.0, 3000.0]));
        report.sections.push(section);
        report.figure("bytes per object", 8.889, "B");
        let mut grid = Grid::new("trace", "all of <it>", &["hits %", "written"]);
        grid.row("ours", vec![Some(12.345), None]);
        report.grids.push(grid);
        report.checks.push(Check::at_least("share", 0.5, 0.95));
        report.checks.push(Check::at_most("reads", 1.0, 1.01));
        let text = report.text();
        assert!(
            text.contains("2,000")
                && text.contains("8.889")
                && text.contains("MISSED")
                && text.contains("holds"),
            "{text}"
        );
        assert!(text.contains("all of <it>") && text.contains("12.35"), "{text}");
        let html = report.html();
        assert!(html.contains("all of &lt;it&gt;") && html.contains("<td>12.35</td>"), "{html}");
        assert!(report.markdown().contains("| ours |  12.35 |"), "{}", report.markdown());
        assert!(html.contains("/&lt;dev&gt;") && html.contains("<svg") && html.contains("MISSED"));
        assert!(!html.contains("http") && !html.contains("src="));
        assert!(report.markdown().contains("| ring |"));
        let back: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(back.failures().count(), 1);
    }
}
