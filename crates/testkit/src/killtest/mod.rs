//! Kills the real binary with `kill -9` at random moments under a concurrent load, starts it again,
//! judges every read, and counts what the restart kept.
//!
//! ```text
//!   load ------CQL---> afterglow ---CQL---> database (or the fake backend, which tells what it was asked for)
//!    |                     ^
//!    |                     | start, fill a disk, stop, continue, SIGTERM, kill -9, start ...
//!    +-- events --> checker +--- rounds, drawn from a seed
//! ```
//!
//! A round goes on with what the round before left: it lives, something happens to it, some rows
//! are read as a [sample](warmth), it is ended, the reads are judged, the flash is searched for the
//! sample, it is started again, and the sample is read once more.

mod account;
mod clock;
mod counters;
mod disk;
mod ledger;
mod load;
mod probe;
mod process;
mod report;
mod round;
mod rows;
mod scan;
mod schedule;
mod segments;
mod site;
mod warmth;

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

pub use account::{Losses, Window};
pub use report::{KillReport, Round};
pub use schedule::{EndKind, Place};
pub use warmth::Kept;

use self::clock::Lived;
use crate::{fake_backend::Faults, history::HistoryError};
use afterglow_loadgen::{cql::CqlError, rng::Rng};

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

/// Runs the test; `progress` hears a line per round.
pub fn run(options: &KillOptions, mut progress: impl FnMut(&str)) -> Result<KillReport, KillError> {
    let places = places(options, &mut progress);
    let (lived, _ticker) = Lived::start();
    let mut report = KillReport::default();
    let mut rng = Rng::new(options.seed);
    for (place, mut kinds) in schedule::plan(options.rounds, &places, options.seed) {
        if options.backend.is_some() {
            // Only the in-memory database lets writes time out on demand.
            kinds
                .iter_mut()
                .filter(|kind| **kind == EndKind::Doubt)
                .for_each(|kind| *kind = EndKind::Kill);
        }
        let mut stage = round::Stage::begin(place, options, &lived, &mut rng)?;
        for kind in kinds {
            let round = stage.round(kind, report.rounds.len() as u32 + 1)?;
            progress(&round.line(options.rounds));
            let over = !round.passed();
            report.rounds.push(round);
            if over {
                break;
            }
        }
        stage.end(&mut report)?;
        if !report.passed() {
            break;
        }
    }
    Ok(report)
}

/// The places that can be had.
fn places(options: &KillOptions, progress: &mut impl FnMut(&str)) -> Vec<Place> {
    let wanted = if options.places.is_empty() { &Place::ALL[..] } else { &options.places };
    let mut places = wanted.to_vec();
    if let Some(why) = disk::cannot_mount() {
        places.retain(|place| {
            let left_out = matches!(place, Place::Disk | Place::Device);
            if left_out {
                progress(&format!("LEFT OUT: {} ({why})", place.label()));
            }
            !left_out
        });
    }
    places
}
