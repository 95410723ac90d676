//! How often rare paths were reached.

use std::cell::RefCell;
use std::fmt;

macro_rules! paths {
    ($($path:ident),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Path { $($path),* }
        const PATHS: &[Path] = &[$(Path::$path),*];
    };
}

paths![
    AccusedAfterConfirmation,
    AccusedBlind,
    AccusedSomebody,
    AcknowledgedAfterDrop,
    AnsweredTooLate,
    BeginAfterEnd,
    BeginAgain,
    BeginRefused,
    CountsOverEpochs,
    DropRefused,
    EndAsked,
    EndPassedOn,
    EndSaidAgain,
    EndedBeforeMove,
    FillJoined,
    FillOvertaken,
    GetJoined,
    GetUnanswered,
    HandoverTooLate,
    HeldBesideRows,
    JoinedDeserted,
    LacksNothing,
    Left,
    Moved,
    MovedOn,
    OldOwnerDiffers,
    OldOwnerIsDeaf,
    PartingInDoubt,
    AskingInDoubt,
    PartingTooEarly,
    PartingTooLate,
    PartingWaits,
    PermitCame,
    PermitCameBefore,
    OlderMapFound,
    OwnChangeUnsettled,
    PermitExpired,
    PermitsGoBack,
    PullUnanswered,
    Pulled,
    StandsStill,
    TakenWeakly,
    TooManyHolds,
    TookShards,
    TransactionUnknown,
    WrittenPast,
];

thread_local! {
    static REACHED: RefCell<Coverage> = RefCell::default();
}

/// Notes that a path was reached on this thread.
pub fn reach(path: Path) {
    REACHED.with_borrow_mut(|c| c.0[path as usize] += 1);
}

/// Counts of all paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage([u64; PATHS.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; PATHS.len()])
    }
}

impl Coverage {
    /// What this thread has reached since it was last taken.
    pub fn take() -> Self {
        REACHED.take()
    }

    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }

    pub fn missing(&self) -> Vec<Path> {
        PATHS.iter().copied().filter(|p| self.0[*p as usize] == 0).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PATHS.iter().try_for_each(|p| write!(f, "{p:?} {}, ", self.0[*p as usize]))
    }
}
