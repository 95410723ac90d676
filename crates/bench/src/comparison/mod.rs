//! Compares runs: medians per label, ratios of paired runs, plots.
//!
//! Runs of two labels within one scenario are paired in the order in which they were made, so that
//! what changed on the machine meanwhile touches both sides of a pair alike; the ratio reported is
//! the median of the pairs' ratios, not the ratio of the medians.

pub(crate) mod chart;
pub(crate) mod figures;
pub(crate) mod html;
pub(crate) mod table;

pub use figures::{
    LabelledRuns, ReportError, Scenario, comparison, group, median, paired, summary, thousands,
};
pub use html::html;
pub use table::Table;
