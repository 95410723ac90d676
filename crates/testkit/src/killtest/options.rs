//! What a kill test is told to do.

use std::{path::PathBuf, time::Duration};

use super::schedule::Place;
use crate::fake_backend::Faults;

/// Settings.
#[derive(Clone, Debug)]
pub struct KillOptions {
    /// The `afterglow` binary.
    pub binary: PathBuf,
    /// CQL address of the database; `None` for the in-memory one, which alone allows to judge
    /// warmth.
    pub backend: Option<String>,
    /// What goes wrong in the in-memory database, in every round.
    pub faults: Faults,
    /// Directory for caches and logs; made if missing. The history is left there if something is
    /// wrong.
    pub directory: PathBuf,
    /// Lives of the server that are ended.
    pub rounds: u32,
    /// Only these places; all that can be had if empty.
    pub places: Vec<Place>,
    /// Length of a life: from, to.
    pub life: (Duration, Duration),
    /// Keys of the largest place; about 11 KiB each. Sizes of flash and memory follow from it.
    pub keys: u64,
    /// Rows read before and after each end.
    pub sample: u64,
    /// Clients that read.
    pub readers: usize,
    /// Clients that write.
    pub writers: usize,
    /// Pause of each client between its operations.
    pub pause: Duration,
    /// `--unknown-outcome-hold` of the server: longer than the database needs to give up a write.
    pub hold: String,
    /// Keyspace of the table `rows`, which is created and emptied.
    pub keyspace: String,
    /// Seed of kinds and moments.
    pub seed: u64,
    /// A lie, to see that it is found.
    pub lie: Option<Lie>,
}

/// What is done to a cache between two lives that must make the test fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lie {
    /// Flash, journal and state are taken away, who we are is not: nothing is warm.
    Emptied,
    /// The journal is put back to what it was in the middle of the life: removals are forgotten.
    RolledBack,
}
