//! The label values: one enumeration a label, one word a value. To count a new reason, add a line
//! here.

/// The values of a label, all known when the program is compiled.
pub trait Label: Copy + 'static {
    /// The label's name: `tier`, `reason`.
    const NAME: &'static str;
    /// Every value, in the order of [`Label::index`].
    const ALL: &'static [Self];
    /// Where it stands in [`Label::ALL`].
    fn index(self) -> usize;
    /// The word Prometheus sees.
    fn word(self) -> &'static str;
    /// Whether it means something for that front end.
    fn is_of(self, front_end: &str) -> bool;
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident = $label:literal $(of $all:literal)? {
        $($(#[$vdoc:meta])* $variant:ident => $word:literal $(of $front_end:literal)?),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl Label for $name {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$variant),+];
            fn index(self) -> usize {
                self as usize
            }
            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
            fn is_of(self, front_end: &str) -> bool {
                let only: &[&str] = match self { $(Self::$variant => &[$($front_end)?]),+ };
                let all: &[&str] = &[$($all)?];
                only.iter().chain(all).all(|known| *known == front_end)
            }
        }
    };
}

label! {
    /// Where a hit came from.
    Tier = "tier" {
        /// Memory.
        Dram => "dram",
        /// Memory that waits to be written to flash.
        Buffer => "buffer",
        /// A read of the device.
        Flash => "flash",
        /// The row's owner, another instance of the ring.
        Ring => "ring" of "cql",
    }
}

label! {
    /// Why a TLS handshake with a client failed.
    TlsFailure = "reason" {
        /// The client speaks no TLS.
        Plain => "plain",
        /// It took too long, or hung up.
        Late => "late",
        /// Too many others made theirs.
        Crowded => "crowded",
        /// A certificate was refused, by either side.
        Certificate => "certificate",
        /// Anything else.
        Other => "other",
    }
}

label! {
    /// Why a cacheable read was not answered from the cache: the engine's reasons, then the front
    /// end's own.
    MissReason = "reason" {
        /// Nothing is known of the key.
        Absent => "absent",
        /// The cache was opened a moment ago and its index is still loading.
        Loading => "loading",
        /// Its time was over.
        Expired => "expired",
        /// A write of its partition or table, or a schema change, had killed the copy.
        Killed => "killed",
        /// What was found is older than what the journal knows.
        Superseded => "superseded",
        /// The place belonged to another key.
        Collision => "collision",
        /// What was read was not what had been written.
        Corrupt => "corrupt",
        /// The device failed to read.
        Device => "device",
        /// The copy moved while it was read, too often to follow.
        Moved => "moved",
        /// The read was given up before its outcome was known.
        Abandoned => "abandoned",
        /// Too many reads of the device were in flight.
        Busy => "busy",
        /// A write of the partition is in flight; nothing cached may be shown.
        WriteInFlight => "write_in_flight" of "cql",
        /// The partition waits for a write whose outcome is unknown.
        Quarantined => "quarantined" of "cql",
        /// The row or slice was too large to keep when it was last read, a moment ago.
        TooLarge => "too_large" of "cql",
        /// Joined the read of the database that another request had started.
        Coalesced => "coalesced" of "cql",
        /// The copy could not answer this request (rows of another schema or of an earlier claim,
        /// say).
        Unusable => "unusable" of "cql",
        /// The cached rows of the partition end before the last that the read may want.
        Beyond => "beyond" of "cql",
        /// Fills of the partition's slices read many rows, and are seldom hit.
        Churn => "churn" of "cql",
    }
}

label! {
    /// Why a read went to the database without a look into the cache.
    PassReason = "reason" of "cql" {
        /// The table's policy is `off`.
        PolicyOff => "policy_off",
        /// The table's policy is `exclusive` and this instance has no lease.
        NoLease => "no_lease",
        /// Another instance of the ring owns the row, and does not answer for it.
        NotOwner => "not_owner",
        /// The settings of this instance are not those of its ring, or not known to be.
        RingSettings => "ring_settings",
        /// The database must say (again) whether this client's user may read the table.
        Authentication => "authentication",
        /// System tables, virtual tables, materialised views, tables with masked columns.
        UncacheableTable => "uncacheable_table",
        /// The table's schema is not known (yet), or just changing.
        SchemaUnknown => "schema_unknown",
        /// It names neither one row by its full primary key nor a slice of one partition.
        NotOneRow => "not_one_row",
        /// It selects more than plain columns: functions, aggregates, JSON.
        Projection => "projection",
        /// It has clauses that are not cached: `GROUP BY`, `DISTINCT`, `ALLOW FILTERING` and such.
        Clause => "clause",
        /// Its consistency level asks for more than the cache may promise.
        Consistency => "consistency",
        /// It asks for a trace.
        Tracing => "tracing",
        /// It carries a custom payload.
        Payload => "payload",
        /// It continues a paged result, or its answer has a page more.
        Paging => "paging",
        /// Its answer may be longer than what is answered from the cache.
        TooLong => "too_long",
        /// It sets something for itself that is not cached (`now_in_seconds`, say).
        Option => "option",
        /// The statement was not understood; counted as a write too unless it is provably a read.
        NotUnderstood => "not_understood",
        /// The table is not cached for a time (a write that may touch all of it is under way, say).
        Suspended => "suspended",
    }
}

label! {
    /// How much a write may touch.
    WriteScopeLabel = "scope" of "cql" {
        /// Nothing that is cached: the database makes the key anew, or the table is unknown.
        Nothing => "nothing",
        /// Rows named by their full primary key.
        Row => "row",
        /// Whole partitions.
        Partition => "partition",
        /// A whole table.
        Table => "table",
        /// A whole keyspace.
        Keyspace => "keyspace",
        /// Everything.
        Everything => "everything",
    }
}

label! {
    /// What a write did to the cached rows that it names.
    WriteOutcome = "outcome" of "cql" {
        /// The row is cached with the new values: the next read is a hit.
        Updated => "updated",
        /// The row is being read again, for the cache: the next read waits for that.
        Refreshed => "refreshed",
        /// They are not cached any more, if they were.
        Dropped => "dropped",
        /// The row was on flash only, and was not found there before the database answered. It is
        /// not cached any more.
        OnFlash => "on_flash",
        /// The outcome of the write is unknown: they are not cached, and will not be for a while.
        Quarantined => "quarantined",
    }
}

label! {
    /// What became of a read of the database that was to fill the cache.
    FillOutcome = "outcome" of "cql" {
        /// A row is now cached.
        Installed => "installed",
        /// That the row does not exist is now cached.
        InstalledAbsent => "installed_absent",
        /// A write came between; the answer went to the client only.
        Overtaken => "overtaken",
        /// The engine did not take it (its journal is full, its time was over).
        Refused => "refused",
        /// The row is larger than what can be kept: reads of it go past the cache for a while.
        TooLarge => "too_large",
        /// The answer may not be cached (warnings, more pages, unknown shape).
        Uncacheable => "uncacheable",
        /// The database answered with an error; the client's own request was sent instead.
        Failed => "failed",
        /// The database took too long; the client's own request was sent instead.
        Late => "late",
    }
}

label! {
    /// Where a row was cached before its shard moved.
    CarriedFrom = "from" of "cql" {
        /// By this instance, which owned the shard before.
        Here => "here",
        /// By the shard's old owner.
        OldOwner => "old_owner",
    }
}

impl CarriedFrom {
    /// As the hit of which tier a row from there counts.
    pub fn tier(self) -> Tier {
        match self {
            Self::Here => Tier::Flash,
            Self::OldOwner => Tier::Ring,
        }
    }
}

label! {
    /// Why partitions were quarantined.
    QuarantineReason = "reason" of "cql" {
        /// WRITE_TIMEOUT from the coordinator.
        WriteTimeout => "write_timeout",
        /// WRITE_FAILURE or CAS_WRITE_UNKNOWN from the coordinator.
        WriteFailure => "write_failure",
        /// SERVER_ERROR, OVERLOADED or another answer that does not say whether the write happened.
        ServerError => "server_error",
        /// The connection was lost before the answer.
        ConnectionLost => "connection_lost",
        /// Intents found unsettled after a crash.
        Restart => "restart",
    }
}

label! {
    /// What a client sent.
    RequestKind = "request" {
        /// STARTUP, OPTIONS, REGISTER, AUTH_RESPONSE.
        Session => "session" of "cql",
        /// QUERY.
        Query => "query" of "cql",
        /// PREPARE.
        Prepare => "prepare" of "cql",
        /// EXECUTE.
        Execute => "execute" of "cql",
        /// BATCH.
        Batch => "batch" of "cql",
        /// What no server would take.
        Malformed => "malformed" of "cql",
        /// A read, of however many keys, also one that touches.
        Get => "get" of "memcache",
        /// `set` and its kin.
        Store => "store" of "memcache",
        /// A removal.
        Delete => "delete" of "memcache",
        /// Counting up or down.
        Arithmetic => "arithmetic" of "memcache",
        /// `stats`, `flush_all`, `version`, what is refused and the like.
        Other => "other" of "memcache",
    }
}

label! {
    /// Which way a request was answered, for its latency.
    Path = "path" {
        /// From memory.
        Dram => "dram",
        /// From the device.
        Flash => "flash",
        /// From another instance of the ring.
        Ring => "ring" of "cql",
        /// Read from the database to fill the cache; in the place of memcached, answered that there
        /// is nothing.
        Miss => "miss",
        /// A read the cache had no part in.
        Pass => "pass" of "cql",
        /// A write.
        Write => "write",
        /// Answered by Afterglow itself (system tables, unknown prepared statements, `stats`).
        Local => "local",
    }
}

label! {
    /// Why a connection to the database did not come to be, or ended.
    ConnectFailure = "reason" {
        /// Nobody listens, no route, no such name.
        Unreachable => "unreachable",
        /// No answer in time.
        Timeout => "timeout",
        /// The handshake failed (protocol version, authentication).
        Handshake => "handshake",
        /// An established connection was closed or reset.
        Lost => "lost",
        /// The database sent what no server should.
        Protocol => "protocol",
    }
}

label! {
    /// Where this instance stands with the lease of `exclusive` tables.
    LeaseState = "state" {
        /// No table is `exclusive`.
        NotNeeded => "not_needed",
        /// Asked for, not held: `exclusive` tables pass through.
        Waiting => "waiting",
        /// Held: `exclusive` tables are cached.
        Held => "held",
        /// Another instance holds it: `exclusive` tables pass through.
        HeldByOther => "held_by_other",
    }
}

label! {
    /// Why a link to another instance of the ring was not made.
    LinkHandshakeFailure = "reason" {
        /// Nobody listens, no route, no such name.
        Unreachable => "unreachable",
        /// It took too long.
        Timeout => "timeout",
        /// The other side is no instance of a ring.
        Garbage => "garbage",
        /// What we sent came back.
        Reflected => "reflected",
        /// The other side has another secret.
        Secret => "secret",
        /// The other side is of another ring.
        Ring => "ring",
        /// No common version, or another number of shards.
        Version => "version",
        /// Another member than was looked for, or one with our own id.
        Member => "member",
        /// A frame that is too long, changed or unknown.
        Malformed => "malformed",
        /// The connection ended.
        Lost => "lost",
        /// Too many connections had not proven the secret.
        Crowded => "crowded",
        /// This instance ended, or the member left the map.
        GivenUp => "given_up",
    }
}

label! {
    /// Why a link to another instance of the ring ended.
    LinkEnd = "reason" {
        /// The connection ended.
        Lost => "lost",
        /// Nothing came for too long.
        Silent => "silent",
        /// The other side took nothing for too long.
        Stalled => "stalled",
        /// The other side asked more than it may.
        Overdrawn => "overdrawn",
        /// A frame was changed, repeated or left out.
        Forged => "forged",
        /// A frame was too long or unknown.
        Malformed => "malformed",
        /// The member had newer links.
        Replaced => "replaced",
        /// The member left the map, or its address changed.
        Unwanted => "unwanted",
        /// This instance ended.
        Stopped => "stopped",
    }
}

label! {
    /// Why a message to another instance of the ring was not sent.
    LinkDrop = "reason" {
        /// There is no link.
        NoLink => "no_link",
        /// Too much waits for the other side.
        QueueFull => "queue_full",
        /// The other side lets us ask no more now.
        Credit => "credit",
        /// It is longer than any may be.
        TooLong => "too_long",
        /// The link ended while it waited.
        LinkEnded => "link_ended",
    }
}
