//! `afterglow size`: what memory, index, flash and write budget a set of objects needs, how many
//! reads each tier answers, and how fast the drive wears.
//!
//! `layout` says in what records an object lies. `plan` finds the cache, by the engine's own
//! division of memory and flash. `popularity` computes hit ratios of Zipf's law; `trace` replays
//! requests. `report` says it all.

mod layout;
mod plan;
mod popularity;
mod report;
mod trace;

pub use plan::{Objects, Plan, PlanError, Wishes};
pub use popularity::{HitRatio, Lifetime, Popularity};
pub use report::{Estimate, Rates};
pub use trace::{Replay, TraceError, read_trace};
