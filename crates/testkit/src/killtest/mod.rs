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
//! A round goes on with the server that the round before left:
//!
//! 1. The server runs, and a fault may happen to it.
//! 2. Some rows are read as a [sample](warmth).
//! 3. The server is ended.
//! 4. The reads are judged, and the flash is searched for the sample.
//! 5. The server is started again, and the sample is read once more.

mod account;
mod clock;
mod counters;
mod database_reads;
mod disk;
mod error;
mod load;
mod options;
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

pub use account::{Losses, Window};
pub use error::KillError;
pub use options::{KillOptions, Lie};
pub use report::{KillReport, Round};
pub use schedule::{EndKind, Place};
pub use warmth::Kept;

use self::clock::Lived;
use afterglow_loadgen::rng::Rng;

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
