//! What operations take and return.

use bytes::Bytes;

/// Expiry meaning "never".
pub const NO_EXPIRY: u32 = 0;

/// Keys that [`Namespace::prefetch`](crate::Namespace::prefetch) takes note of at once: what many
/// more of them touch would push each other out of the processor's nearest cache.
pub const PREFETCHED: usize = 16;

/// Names of a closed set of reasons, for statistics and metrics labels.
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every reason, in the order of the counters in [`Stats`](crate::Stats).
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The metrics label: lower case, underscores, never changed once released.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}

reasons! {
    /// Where a hit came from.
    Tier {
        /// The DRAM tier.
        Dram = "dram",
        /// Memory that holds a part of an open segment not yet written to flash.
        Buffer = "buffer",
        /// One device read.
        Flash = "flash",
    }
}

reasons! {
    /// Why a lookup missed.
    MissReason {
        /// The index knows nothing under this key.
        Absent = "absent",
        /// The cache was opened a moment ago and the index is still loading.
        Loading = "loading",
        /// The object was found but its expiry had passed.
        Expired = "expired",
        /// The object was found but its group, partition epoch or namespace was removed after it
        /// was put.
        Killed = "killed",
        /// A record was found that is older than a put or remove known from the journal.
        Superseded = "superseded",
        /// The slot belonged to another key with the same tag.
        Collision = "collision",
        /// The record's checksum does not hold: torn, lost, misdirected or flipped.
        Corrupt = "corrupt",
        /// The device failed to read.
        Device = "device",
        /// The record moved during the read, more often than the lookup was willing to follow.
        Moved = "moved",
        /// More reads were in flight than configured.
        Busy = "busy",
        /// The caller dropped the [`FlashRead`](crate::FlashRead) without finishing it.
        Abandoned = "abandoned",
    }
}

reasons! {
    /// Why a put was refused. The older copy is gone all the same, but for
    /// [`RefuseReason::VersionMismatch`] and [`RefuseReason::Closed`].
    RefuseReason {
        /// Key and value are more than a quarter of a segment.
        TooLarge = "too_large",
        /// The key is longer than 65,535 bytes.
        KeyTooLong = "key_too_long",
        /// The expiry had passed when the put came.
        Expired = "expired",
        /// Compare-and-put found another version than expected; nothing was changed.
        VersionMismatch = "version_mismatch",
        /// The cache is closed; nothing was changed.
        Closed = "closed",
        /// `write-through` and `synced`: the device refused it, did not take it within five
        /// seconds, or the cache was dropped meanwhile.
        Device = "device",
        /// `write-through` and `synced`: too much waits for the device.
        QueueFull = "queue_full",
        /// `write-through` and `synced`: no segment is free at this moment.
        NoFreeSegment = "no_free_segment",
        /// `write-through` and `synced`: the write budget is used up.
        WriteBudget = "write_budget",
    }
}

reasons! {
    /// Why an object (or only its copy on flash) went although nobody removed it.
    DropReason {
        /// Not popular enough to replace what is on flash.
        NotAdmitted = "not_admitted",
        /// The write budget was used up.
        WriteBudget = "write_budget",
        /// No segment was free.
        NoFreeSegment = "no_free_segment",
        /// Too many chunks were waiting for the device.
        QueueFull = "queue_full",
        /// Its segment was reclaimed.
        Reclaimed = "reclaimed",
        /// The index was full and gave its slot to another object.
        IndexFull = "index_full",
        /// Writing its segment failed.
        WriteFailed = "write_failed",
        /// It left the DRAM tier after its expiry or removal by group, epoch or namespace.
        Dead = "dead",
    }
}

impl MissReason {
    /// Whether it says that there is no such object for readers, rather than that it could not be
    /// looked at.
    #[must_use]
    pub fn is_absence(self) -> bool {
        match self {
            Self::Absent
            | Self::Expired
            | Self::Killed
            | Self::Superseded
            | Self::Collision
            | Self::Corrupt => true,
            Self::Loading | Self::Device | Self::Moved | Self::Busy | Self::Abandoned => false,
        }
    }
}

/// A found object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// The value as it was put. May share memory with the cache; cheap to clone.
    pub value: Bytes,
    /// Its version: larger for every later put of any key.
    pub version: u64,
    /// Unix seconds when it expires, [`NO_EXPIRY`] for never.
    pub expiry: u32,
    /// The group it was put into, 0 for none.
    pub group: u32,
    /// The partition epoch it was put into: the top 20 bits of its token.
    pub partition: u32,
    /// Where it was found.
    pub tier: Tier,
}

/// Bits of a put's token below those that choose the partition.
pub const PARTITION_SHIFT: u32 = 44;

/// What a put carries besides key and value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Unix seconds when the object expires, [`NO_EXPIRY`] for never.
    pub expiry: u32,
    /// Objects of one group die together by
    /// [`Namespace::remove_group`](crate::Namespace::remove_group); 0 is no group.
    pub group: u32,
    /// Its top 20 bits, from [`PARTITION_SHIFT`] on, choose the partition epoch, in namespaces that
    /// have them.
    pub token: u64,
    /// Where the namespace is write-back: this put alone is written and acknowledged as
    /// [`Durability::WriteThrough`](crate::Durability) has it. If flash takes nothing at this
    /// moment, the object is stored as any other of the namespace. A later put of the key says
    /// anew.
    pub through: bool,
    /// With `through`: it is refused if flash takes nothing at this moment. So it is on flash when
    /// it is acknowledged.
    pub or_refused: bool,
}

/// Outcome of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum PutOutcome {
    /// Reads find it from now on.
    Stored {
        /// The version it got.
        version: u64,
    },
    /// Not stored; see [`RefuseReason`] for what became of the older copy.
    Refused(RefuseReason),
}

impl PutOutcome {
    /// The version, when stored.
    #[must_use]
    pub fn version(self) -> Option<u64> {
        match self {
            Self::Stored { version } => Some(version),
            Self::Refused(_) => None,
        }
    }
}

/// An object that a listing comes by, or that is evicted.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Its version.
    pub version: u64,
    /// Unix seconds when it expires, 0 for never.
    pub expiry: u32,
    /// The group it was put into, 0 for none.
    pub group: u32,
    /// The partition epoch it was put into.
    pub partition: u32,
}

/// What became of a change of the memory for objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Resized {
    /// It is as large as it was to be.
    Done,
    /// It ended on the way, with what had left by then.
    Stopped,
    /// Less than a page a shard would be left: nothing was changed.
    TooSmall,
}
