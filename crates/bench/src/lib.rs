//! Benchmarks: of the engine alone, without network and protocol, each beside the physical limit it
//! is judged by, and of the front ends.
//!
//! - [`device`] measures what the device can do, [`engine`] what is left of it through the cache.
//! - [`devices`] measures what several devices of unequal speed give, and what is left of them.
//! - [`memory`] measures what an object costs in DRAM.
//! - [`recovery`] measures how soon a cache of many objects serves again.
//! - [`traces`] replays public traces and compares hit ratios and flash writes with other policies.
//! - [`cql`] measures what the CQL front end adds and takes.
//! - [`memcache`] compares the memcached front end with memcached.
//!
//! All of them end in a [`Report`]: runs of which the medians count, figures, and checks against
//! the targets of the design.

pub mod alloc;
pub mod comparison;
pub mod cql;
pub mod device;
pub mod devices;
pub mod engine;
mod fio;
pub mod memcache;
pub mod memory;
mod meter;
mod pin;
pub mod recovery;
mod report;
mod ring;
mod store;
pub mod traces;

use std::{io, path::PathBuf};

pub use fio::{Fio, find as find_fio};
pub use report::{Check, ClientSide, Figure, Grid, Machine, Plot, Report, Run, Section, Series};

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The operating system refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was attempted.
        doing: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The engine refused to open.
    #[error(transparent)]
    Open(#[from] afterglow_engine::OpenError),
    /// A figure that would not mean what it says.
    #[error("{0}")]
    Void(String),
    /// A trace cannot be read.
    #[error("cannot read trace {path}: {source}")]
    Trace {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it, or what the kernel said.
        source: io::Error,
    },
    /// A file is in the way.
    #[error("{0} exists: choose another directory, or remove it")]
    Exists(PathBuf),
}

impl BenchError {
    fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

/// Says on standard error what is being done: benchmarks take minutes.
fn progress(what: std::fmt::Arguments<'_>) {
    eprintln!("{what}");
}
