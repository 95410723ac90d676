//! Which rounds there are, and in what order: drawn from the seed, every kind at least once where
//! there are rounds enough.

use serde::Serialize;

use afterglow_loadgen::rng::Rng;

/// What happens in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndKind {
    /// kill -9 under load.
    Kill,
    /// kill -9 under load, then again and again at random moments of the start.
    Recovery,
    /// SIGTERM, and kill -9 before it is done.
    Stop,
    /// SIGTERM, and nothing else.
    Clean,
    /// kill -9 while a checkpoint is being written.
    Checkpoint,
    /// kill -9, and another `--memory` at the next start.
    Memory,
    /// Stopped and continued again and again, then kill -9.
    Pause,
    /// Writes of unknown outcome, then kill -9.
    Doubt,
    /// Objects are set once, and for more than ten seconds counters alone are changed; then kill
    /// -9.
    Counters,
    /// The disk is full while it runs, when it is killed, and when it starts again.
    FullDisk,
    /// The device fails while it runs, then kill -9.
    Device,
    /// Reads, writes and syncs fail at random while it runs, then kill -9.
    IoErrors,
}

impl EndKind {
    /// All of them.
    pub const ALL: [EndKind; 12] = [
        EndKind::Kill,
        EndKind::Recovery,
        EndKind::Stop,
        EndKind::Clean,
        EndKind::Checkpoint,
        EndKind::Memory,
        EndKind::Pause,
        EndKind::Doubt,
        EndKind::Counters,
        EndKind::FullDisk,
        EndKind::Device,
        EndKind::IoErrors,
    ];

    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            EndKind::Kill => "kill",
            EndKind::Recovery => "recovery",
            EndKind::Stop => "stop",
            EndKind::Clean => "clean",
            EndKind::Checkpoint => "checkpoint",
            EndKind::Memory => "memory",
            EndKind::Pause => "pause",
            EndKind::Doubt => "doubt",
            EndKind::Counters => "counters",
            EndKind::FullDisk => "full-disk",
            EndKind::Device => "device",
            EndKind::IoErrors => "io-errors",
        }
    }

    /// Whether flash keeps what was written to it, so that warmth can be asked for.
    pub fn keeps_flash(self) -> bool {
        !matches!(self, EndKind::Device | EndKind::IoErrors)
    }
}

/// Where the cache lives: a round of the campaign goes on with what the round before left there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A file with room for everything, io_uring.
    Roomy,
    /// A file with less room than there is data: segments are reclaimed all the time.
    Tight,
    /// A small disk of its own.
    Disk,
    /// A block device that can be made to fail, io_uring.
    Device,
    /// A file under a shim that makes I/O fail, pread and pwrite.
    Shim,
}

impl Place {
    /// All of them, in the order of a campaign.
    pub const ALL: [Place; 5] =
        [Place::Roomy, Place::Tight, Place::Disk, Place::Device, Place::Shim];

    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            Place::Roomy => "roomy",
            Place::Tight => "tight",
            Place::Disk => "disk",
            Place::Device => "device",
            Place::Shim => "shim",
        }
    }

    /// Whether all that is cached fits its flash. Where it does not, what is less asked for than
    /// what would have to go is not written.
    pub fn has_room(self) -> bool {
        self != Place::Tight
    }

    /// What can happen there.
    fn kinds(self) -> &'static [EndKind] {
        use EndKind::*;
        match self {
            Place::Roomy => &[Kill, Recovery, Stop, Memory, Pause, Doubt, Counters, Clean],
            Place::Tight => &[Checkpoint, Kill, Recovery, Stop],
            Place::Disk => &[FullDisk],
            Place::Device => &[Device],
            Place::Shim => &[IoErrors],
        }
    }

    /// After how many rounds it is made anew. A file with room for everything has none any more
    /// once so much has been written that segments are reclaimed. Then popularity decides what a
    /// crash may cost.
    fn stays(self) -> usize {
        if self == Place::Roomy { 10 } else { usize::MAX }
    }

    /// Its part of the rounds, in percent.
    fn share(self) -> u32 {
        match self {
            Place::Roomy => 45,
            Place::Tight => 25,
            _ => 10,
        }
    }
}

/// Divides `rounds` over `places`, and draws the kinds of each place's rounds. A place is made
/// anew for each part.
pub fn plan(rounds: u32, places: &[Place], seed: u64) -> Vec<(Place, Vec<EndKind>)> {
    let shares: u32 = places.iter().map(|place| place.share()).sum();
    let mut rng = Rng::new(seed ^ 0x5EED);
    let (mut left, mut shares_left) = (rounds, shares);
    let mut plan = Vec::new();
    for place in places {
        let part = if shares_left == 0 {
            0
        } else {
            (left * place.share()).div_ceil(shares_left).min(left)
        };
        (left, shares_left) = (left - part, shares_left - place.share());
        let kinds = place.kinds();
        let first = kinds.iter().copied().take(part as usize);
        let more =
            (kinds.len()..part as usize).map(|_| kinds[rng.below(kinds.len() as u64) as usize]);
        let mut drawn: Vec<EndKind> = first.chain(more).collect();
        for last in (1..drawn.len()).rev() {
            drawn.swap(last, rng.below(last as u64 + 1) as usize);
        }
        plan.extend(drawn.chunks(place.stays()).map(|kinds| (*place, kinds.to_vec())));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_plan_has_every_kind_and_a_long_one_is_drawn_from_its_seed() {
        let kinds = |plan: Vec<(Place, Vec<EndKind>)>| {
            plan.into_iter().flat_map(|(_, k)| k).collect::<Vec<_>>()
        };
        let short = kinds(plan(16, &Place::ALL, 1));
        assert_eq!(short.len(), 16);
        assert!(EndKind::ALL.iter().all(|kind| short.contains(kind)), "{short:?}");
        let long = kinds(plan(300, &Place::ALL, 1));
        assert_eq!(long.len(), 300);
        assert_eq!(long, kinds(plan(300, &Place::ALL, 1)));
        assert_ne!(long, kinds(plan(300, &Place::ALL, 2)));
        assert_eq!(kinds(plan(3, &[Place::Roomy], 1)).len(), 3);
        let parts: Vec<usize> = plan(40, &[Place::Roomy], 1).iter().map(|p| p.1.len()).collect();
        assert_eq!(parts, [10, 10, 10, 10]);
    }
}
