//! What a segment is used for. Which state follows which is drawn in [`super::state`].

/// What a segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    /// Holds nothing.
    Free = 0,
    /// Records are being appended.
    Open = 1,
    /// Full; chunks and footer are on their way.
    Sealing = 2,
    /// Written.
    Sealed = 3,
    /// Its records are being dropped or moved.
    Reclaiming = 4,
    /// Writing it failed.
    Retired = 5,
    /// Holds blocks of checkpoints, for which the first device has no area: the index has grown.
    Checkpoint = 6,
}

impl SegmentState {
    pub(super) fn from_u8(n: u8) -> Self {
        Self::ALL[usize::from(n)]
    }

    /// Every state, in the order of its number.
    pub const ALL: [Self; 7] = [
        Self::Free,
        Self::Open,
        Self::Sealing,
        Self::Sealed,
        Self::Reclaiming,
        Self::Retired,
        Self::Checkpoint,
    ];

    /// The word for it: lower case, never changed once released.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Open => "open",
            Self::Sealing => "sealing",
            Self::Sealed => "sealed",
            Self::Reclaiming => "reclaiming",
            Self::Retired => "retired",
            Self::Checkpoint => "checkpoint",
        }
    }
}
