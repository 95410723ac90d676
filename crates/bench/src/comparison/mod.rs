//! Compares runs: medians per label, ratios of paired runs, plots.
//!
//! Runs of two labels within one scenario are paired in the order in which they were made. So a
//! change on the machine affects both sides of a pair alike. The reported ratio is the median of
//! the pairs' ratios, not the ratio of the medians.

pub(crate) mod chart;
pub(crate) mod figures;
pub(crate) mod html;
pub(crate) mod table;

pub use figures::{
    LabelledRuns, ReportError, Scenario, comparison, group, median, paired, summary, thousands,
};
pub use html::html;
pub use table::Table;
