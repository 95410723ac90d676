//! How often a campaign reached each rare path: what was never reached was not tested.

use std::cell::Cell;

/// Names paths, each with the words a report uses.
macro_rules! paths {
    ($($name:ident = $label:literal,)*) => {
        /// A rare path, or a fault that was injected.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Path { $($name,)* }

        const LABELS: &[&str] = &[$($label,)*];
    };
}

paths! {
    // Faults.
    ReadError = "fault: EIO on read",
    WriteError = "fault: EIO on write, in part written",
    SyncError = "fault: EIO on flush",
    NoSpace = "fault: ENOSPC",
    ShortRead = "fault: short read",
    FlipOnRead = "fault: bit flipped on read",
    FlipOnWrite = "fault: bit flipped on write",
    LostWrite = "fault: lost write",
    MisdirectedWrite = "fault: misdirected write",
    SlowIo = "fault: slow I/O",
    HeldUp = "fault: one I/O held up, overtaken by all others",
    Blocked = "fault: the background thread makes no step for a while",
    BlockedFlush = "fault: a flush of journal or state file blocks the background thread",
    MediaError = "fault: journal store fails",
    WritebackError = "fault: a page of the journal is given up, and read as it was",
    MetaError = "fault: state file fails",
    DeviceAway = "fault: I/O to a device that is away",
    HungOpening = "fault: a device does not answer in the middle of an opening",
    MuteOverCrash = "fault: a device does not answer over a crash",
    DeviceSilent = "fault: a device does not answer and is left alone",
    CopyGivenUp = "fault: a copy was being written to a device that does not answer",
    CopyUnflushed = "fault: a clean stop without a flush of a device that does not answer",
    StopGivenUp = "fault: no device answers, the clean stop is given up",
    DeviceExchanged = "fault: a device exchanged between two lives",
    ClockBack = "fault: wall clock set back",
    SleptBehind = "fault: the machine sleeps while its wall clock is behind",
    // Ends of lives.
    CrashProcess = "crash: process, between two steps",
    CrashMachine = "crash: machine, between two steps",
    CrashProcessCut = "crash: process, in the middle of an effect",
    CrashMachineCut = "crash: machine, in the middle of an effect",
    CrashOpening = "crash: while opening",
    CrashClosing = "crash: while closing",
    CrashLoading = "crash: while the index loads",
    CrashAfterClose = "crash: machine, after a clean stop",
    // The index.
    Displaced = "index: slot moved to its other line",
    IndexGrew = "index: grown by a line",
    SlotEvicted = "index: slot evicted, both lines full",
    TagCollision = "index: slot of another key with the same tag",
    LineKept = "index: loaded slot left out for a newer one",
    LineDropped = "index: loaded slot without room",
    // Reads.
    ReadFollowed = "read: the record moved, followed",
    ReadRaced = "read: ended beside a newer copy, not promoted",
    ReadNotPromoted = "read: not promoted, since flash takes nothing at this moment",
    ReadSuperseded = "read: contradicted by the kill map",
    JournalledAgain = "open: a record is journalled whose entry the power loss took",
    OlderInMemory = "open: an older version was in memory when its newer record was read",
    ReadUnknown = "read: slot changed while the kill map was in force",
    ReadExpired = "read: expired on flash",
    ReadKilled = "read: killed on flash",
    ReadCorrupt = "read: checksum does not hold",
    ReadStaleSlot = "read: slot into a segment given up",
    // Compare-and-put.
    PutIfStored = "put_if: stored",
    PutIfRefused = "put_if: another version",
    Modified = "modify: object found and changed",
    ModifyOvertaken = "modify: overtaken, searched again",
    ModifyGivenUp = "modify: object could not be looked at",
    // Acknowledgements.
    Acked = "put: acknowledged once on flash",
    AckRefused = "put: refused while it waited for the device",
    AckUnheard = "put: the machine died before its acknowledgement",
    // Writing and reclaim.
    QueueFull = "write: too many chunks wait",
    NoFreeSegment = "write: no segment free",
    NotAdmitted = "write: not popular enough",
    RefusedCopyProven = "get: object in DRAM that was not admitted has become popular",
    WriteBudget = "write: budget used up",
    SegmentRetired = "write: segment retired",
    Reclaimed = "reclaim: segment freed",
    Reinserted = "reclaim: record written again",
    ReinsertRaced = "reclaim: slot changed before the record was written again",
    ReinsertSuperseded = "reclaim: record contradicted by the kill map, not written again",
    ReclaimCopied = "reclaim: object in DRAM copied anew",
    ReclaimDirtied = "reclaim: object in DRAM needs another copy, no room for it",
    ReclaimRefused = "reclaim: object in DRAM refused another copy",
    ReclaimBlind = "reclaim: footer cannot be read",
    Probed = "read: a device that has nothing but lookups is asked whether it answers",
    RefusedIo = "write: not asked of a device that does not answer",
    ReliefEnded = "read: what is read most moves between devices no more",
    Relocated = "read: record moved to another device",
    RelocationRefused = "read: record not moved, although its device has too much to do",
    ReclaimStopped = "reclaim: ended because its device does not answer",
    ReclaimLoading = "reclaim: while the index loads",
    GroupsForgotten = "reclaim: removals of groups forgotten, nothing older is left",
    RemovedInMemory = "reclaim: object of a removed group taken out of DRAM",
    // Journal and checkpoints.
    JournalLap = "journal: next lap",
    JournalWaited = "journal: waited for room",
    JournalFull = "journal: full, poisoned",
    JournalTruncated = "journal: truncated",
    CompactionGivenUp = "compaction: given up, a checkpoint was faster or an entry was lost",
    HoleCompacted = "compaction: passed over a hole of an earlier life",
    EntryGone = "compaction: an entry of this life is gone",
    CompactionFailed = "compaction: failed",
    RunsDropped = "compaction: runs made needless by a checkpoint",
    RunRead = "open: a run of the kill log",
    RunUnread = "open: a run of the kill log that cannot be read",
    RunPartLost = "load: a part of the kill log cannot be read, its shards stay empty",
    LoadedInParts = "load: index loaded in several parts",
    PoisonLifted = "journal: poison lifted",
    SealedForJournal = "journal: segment sealed that held it",
    Checkpoint = "checkpoint: complete",
    CheckpointFailed = "checkpoint: given up",
    AttemptErased = "checkpoint: the header of an attempt that failed is erased",
    CheckpointHomeLost = "checkpoint: goes on without one of its homes",
    CheckpointGrown = "checkpoint: of an index that has grown",
    BlockInSegment = "checkpoint: a block in a segment",
    CheckpointWaited = "checkpoint: waited for the copies of what is reclaimed",
    // Recovery.
    CheckpointErased = "open: checkpoint that cannot be read erased",
    HomeLeftOut = "open: a home left out whose checkpoint can be neither read nor erased",
    TwoHomes = "open: two homes of checkpoints",
    OpenedNew = "open: new cache",
    OpenedClean = "open: after a clean stop",
    OpenedProcess = "open: after the death of the process",
    OpenedMachine = "open: after the death of the machine",
    OpenedDoubtful = "open: journal not whole",
    ScannedUnwritten = "open: the kernel could not write all of the journal",
    OpenedFromFooters = "open: from footers alone",
    MemberMissing = "open: a device of the cache is missing",
    MemberJoined = "open: a device joins, empty",
    OlderCopy = "open: the data directory is an older copy",
    DirectoryBroughtBack = "the data directory is brought back as it was",
    DevicesSwapped = "devices are exchanged between their places",
    DeviceReplaced = "an empty device of another size is in the place of one",
    DeviceRolledBack = "a device is rolled back to what it had stored earlier",
    CarriedOver = "open: removals carried over into a new journal",
    ExactFooter = "open: records known by a footer",
    ExactScan = "open: records found without a footer",
    ExactFixed = "open: a segment whose records are of format 1",
    LoadedFormat1 = "open: index lines of a checkpoint of format 1",
    ReinsertedFixed = "reclaim: a record of format 1 written anew",
    LoadedFromSegment = "load: block of the index in a segment",
    LoadedGrown = "load: lines of an index that had grown",
    BlockOfOtherHome = "load: block of the index read from the other home",
    LostBlock = "load: block of the index lost",
    Rebuilt = "load: index rebuilt in another shape",
    Swept = "load: contradicted slot swept",
    Spoiled = "close: clean marker taken back",
    // What was checked.
    WarmAfterClose = "checked: warm after a clean stop",
    WarmAfterProcess = "checked: warm after a process crash",
    OlderCopyAtRisk = "not asked for: power may take an older copy that hides the newest",
    WarmAfterMachine = "checked: warm after a machine crash",
    WarmReclaimed = "checked: warm although segments were reclaimed",
    WarmReshaped = "checked: warm although segments were reclaimed, in an index of another shape",
    RestedFoul = "checked: as well as ever after faults that have ended",
    CopiedInTime = "checked: on its way to flash, and there in ten seconds",
    CopiedWhileChanging = "checked: changed on its way to flash, and copied in ten seconds",
    CountedOn = "checked: beside counters that never rest",
    BlockedJournal = "checked: nobody awaits room in the journal for more than 50 ms, with the thread blocked",
    BlockedQueue = "checked: nobody awaits room in the write queue for more than a second, with the thread blocked",
    Live = "checked: everything comes to rest",
}

impl Path {
    /// The words a report uses for it.
    pub fn label(self) -> &'static str {
        LABELS[self as usize]
    }
}

const COUNT: usize = LABELS.len();

thread_local! {
    static REACHED: [Cell<u64>; COUNT] = const { [const { Cell::new(0) }; COUNT] };
}

/// Counts an arrival on this thread.
pub fn reach(path: Path) {
    reach_times(path, 1);
}

/// Counts several arrivals.
pub fn reach_times(path: Path, times: u64) {
    REACHED.with(|r| r[path as usize].set(r[path as usize].get() + times));
}

/// Arrivals by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; COUNT])
    }
}

impl Coverage {
    /// What this thread has counted since it was last asked.
    pub fn take() -> Self {
        REACHED.with(|r| Self(r.iter().map(|c| c.replace(0)).collect()))
    }

    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }

    /// Paths reached.
    pub fn coverage_mark(&self) -> impl Iterator<Item = &'static str> {
        LABELS.iter().zip(&self.0).filter(|(_, n)| **n > 0).map(|(label, _)| *label)
    }

    /// Paths never reached.
    pub fn missing(&self) -> Vec<&'static str> {
        LABELS.iter().zip(&self.0).filter(|(_, n)| **n == 0).map(|(label, _)| *label).collect()
    }
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (label, n) in LABELS.iter().zip(&self.0) {
            let never = if *n == 0 { "  NEVER REACHED" } else { "" };
            writeln!(f, "{n:>14}  {label}{never}")?;
        }
        Ok(())
    }
}
