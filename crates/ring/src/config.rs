//! The durations of the protocol.

/// Microseconds on the instance's own clock, which counts during sleep and never steps
/// (CLOCK_BOOTTIME).
pub type Time = u64;

const MS: Time = 1_000;

/// The durations of the protocol, in microseconds. All members of a ring have the same.
#[derive(Debug, Clone)]
pub struct Config {
    /// T: how long a read of the map counts.
    pub confirm: Time,
    /// L: how long a promise counts, and the longest permit.
    pub lease: Time,
    /// ρ: by how much the rates of two clocks may differ, in millionths.
    pub rho: u64,
    /// Between two pings to a member.
    pub ping: Time,
    /// A member that has not answered for so long is accused.
    pub silence: Time,
    /// What each rank adds to a delay, so that members do not all act at once.
    pub rank_step: Time,
    /// How long a write of unknown outcome may still be applied.
    pub hold: Time,
    /// How many partitions are known one by one that writes keep from being filled. Where there are
    /// more, their shards are weak.
    pub holds: usize,
    /// How long a joiner pings the members before it joins.
    pub probe: Time,
    /// A joiner that hears no member for so long takes all of them for gone.
    pub deserted: Time,
    /// The timeout of a transaction, and of a read of the map.
    pub transaction: Time,
    /// When a BEGIN or a DROP is sent again.
    pub retry: Time,
    /// The timeout of a GET. The database is asked then.
    pub get: Time,
    /// The timeout of a write that gets no permits, or whose rows are not dropped.
    pub write: Time,
    /// How long the members must have been the same before shards move.
    pub stable: Time,
    /// For so long after a move missing rows are pulled from the shard's old owner.
    pub pull: Time,
    /// A fill can be joined for so long.
    pub join_fill: Time,
    /// Whether what a quorum read may miss is filled all the same, for a short time: the rows then
    /// say so. Otherwise it is not filled for the time of a hold.
    pub weak_fills: bool,
    /// How many shards a ring has, a power of two. All members have the same.
    pub shards: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            confirm: 60_000 * MS,
            lease: 1_500 * MS,
            rho: 1_000,
            ping: 200 * MS,
            silence: 600 * MS,
            rank_step: 150 * MS,
            hold: 3_600_000 * MS,
            holds: 1 << 18,
            probe: 2_000 * MS,
            deserted: 4_000 * MS,
            transaction: 2_000 * MS,
            retry: 200 * MS,
            get: 500 * MS,
            write: 10_000 * MS,
            stable: 60_000 * MS,
            pull: 600_000 * MS,
            join_fill: 1_000 * MS,
            weak_fills: false,
            shards: crate::map::SHARDS,
        }
    }
}

impl Config {
    /// A wait on this clock that outlasts `time` on any other: `time`(1 + 2ρ).
    #[must_use]
    pub fn stretched(&self, time: Time) -> Time {
        let more = time.saturating_mul(2 * self.rho).div_ceil(1_000_000) + 1;
        time.saturating_add(more)
    }

    /// B: by how much a member's last read must be older than ours for it to have lost the database
    /// alone. Each reads the map every T/3: if all lose it, their last reads differ by that.
    #[must_use]
    pub fn blind(&self) -> Time {
        self.confirm / 3 + self.confirm / 8
    }

    /// How long a member has to read the map once the database is back: a read that hangs times out
    /// first, and the next one may have to connect.
    #[must_use]
    pub fn recovers(&self) -> Time {
        3 * self.transaction
    }

    /// How long the gates of a permit that nobody ends stay closed. Its write may be sent as late
    /// as the permit ends, and be applied a hold later.
    #[must_use]
    pub fn intent(&self) -> Time {
        self.stretched(self.hold + self.lease)
    }
}
