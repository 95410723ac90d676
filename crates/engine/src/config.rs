//! How a cache and its namespaces are set up.

use std::path::PathBuf;

use crate::device::area::unfit_to_map;
use crate::device::{DeviceConfig, IoEngine};

/// How to open a cache. Start from [`Config::new`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Directory of journal, metadata and lock; created when missing.
    pub data_dir: PathBuf,
    /// Files or block devices that hold the objects.
    pub devices: Vec<DeviceConfig>,
    /// Bytes of memory for everything: index, DRAM tier, write buffers, epochs. Default 256 MiB, at
    /// least 16 MiB.
    pub memory: u64,
    /// Share of `memory` that the index begins with; default: what the flash needs at 1 KiB per
    /// object, at most a quarter of `memory`.
    pub index_memory: Option<u64>,
    /// Whether the index may grow where objects turn out to be smaller: to sixteen times what it
    /// begins with, by at most half of the DRAM tier's memory. Default: it may.
    pub index_growth: bool,
    /// How to talk to the devices.
    pub io: IoEngine,
    /// Bytes per segment: a power of two from 64 KiB to 16 MiB. Default: 16 MiB, or smaller so that
    /// there are at least 256. Fixed when the cache is created.
    pub segment_size: Option<u32>,
    /// Bytes of journal. Default 64 MiB. Fixed when the cache is created.
    pub journal_size: u64,
    /// Whether the journal is mapped into memory, which is fastest. Without, it is written with
    /// `pwrite`. This is for processes that a failing disk must not end with a signal, such as a
    /// JVM. It is also for file systems on which a store into a mapped file may fail (btrfs, ZFS,
    /// overlayfs, NFS and others). Default: mapped.
    pub mapped_journal: bool,
    /// Bytes per second that may be written, averaged over an hour and more; `None` for no limit.
    /// All that is written counts: objects, also those that a reclaim writes again
    /// ([`Config::reinsertion`]), padding, metadata, journal. Objects are refused to keep it. Only
    /// a clean stop, which writes the DRAM tier out, and metadata may exceed it for a while.
    pub write_budget: Option<u64>,
    /// Objects read since they were written may be reinserted when their segment is reclaimed. The
    /// bound is this share of the bytes of other records written lately. Default 0.15, 0 switches
    /// it off.
    pub reinsertion: f64,
    /// Whether a cache is thrown away when its devices are configured with other sizes, in another
    /// order or number than it was made of. Otherwise opening is refused
    /// ([`OpenError::Mismatch`](crate::OpenError::Mismatch)). Default: it is.
    pub discard: bool,
    /// Device reads that blocking callers may have in flight at once; more are misses
    /// ([`MissReason::Busy`](crate::MissReason)).
    pub max_blocking_reads: u32,
    /// Shards the key space is divided into: a power of two. Default 16.
    pub shards: u32,
    /// Lives of a cache, from its first on, that write records as format 1 did.
    #[cfg(test)]
    pub(crate) fixed_lives: u64,
    /// Whether the areas of checkpoints are made for a few lines of index.
    #[cfg(test)]
    pub(crate) small_areas: bool,
    /// When a device has too much to do.
    #[cfg(test)]
    pub(crate) balance: crate::background::BalanceRules,
    /// When the journal is compacted.
    #[cfg(test)]
    pub(crate) compaction: crate::background::CompactionRules,
    /// Removed groups of a namespace from which on some are forgotten.
    #[cfg(test)]
    pub(crate) forget_above: usize,
}

impl Config {
    /// The defaults, for this directory and these devices.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>, devices: Vec<DeviceConfig>) -> Self {
        Self {
            data_dir: data_dir.into(),
            devices,
            memory: 256 << 20,
            index_memory: None,
            index_growth: true,
            io: IoEngine::Auto,
            segment_size: None,
            journal_size: 64 << 20,
            mapped_journal: true,
            write_budget: None,
            reinsertion: 0.15,
            discard: true,
            max_blocking_reads: 256,
            shards: 16,
            #[cfg(test)]
            fixed_lives: 0,
            #[cfg(test)]
            small_areas: false,
            #[cfg(test)]
            balance: crate::background::BalanceRules::default(),
            #[cfg(test)]
            compaction: crate::background::CompactionRules::default(),
            #[cfg(test)]
            forget_above: crate::background::FORGET_ABOVE,
        }
    }
}

impl Config {
    /// Whether the journal is mapped: where that is asked for and no risk.
    pub(crate) fn maps_journal(&self) -> bool {
        self.mapped_journal && unfit_to_map(&self.data_dir).is_none()
    }
}

/// Whether a key may get another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutability {
    /// Values change: every put and remove is journalled so that no older value returns after a
    /// crash.
    #[default]
    Mutable,
    /// A key has one value for ever (a chunk of an immutable file): puts need no journal.
    Immutable,
}

/// After what the objects of a namespace are still served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Survives {
    /// After a clean stop and after `kill -9`.
    #[default]
    Crash,
    /// After a clean stop only: no journal, cold after a crash.
    CleanStop,
}

/// When a put is acknowledged.
///
/// Beyond [`Durability::WriteBack`] each put waits for the device; those that wait at the same time
/// share one write, padded to 4 KiB. A device that fails, or does not answer within five seconds,
/// refuses the put, and the older object is gone all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// At once; the copy on flash follows within 10 s.
    #[default]
    WriteBack,
    /// Once its record is on flash: it is a hit after the death of the process.
    WriteThrough,
    /// Once its record and its journal entry would survive power loss. After power loss the
    /// namespace is warm and the object is a hit, unless the journal had lost an entry.
    Synced,
}

/// Options of a namespace. A namespace opened with another mutability or survival than before
/// starts empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceOptions {
    /// Whether a key may get another value.
    pub mutability: Mutability,
    /// After what objects are still served.
    pub survives: Survives,
    /// When a put is acknowledged.
    pub durability: Durability,
    /// Objects are tied to one of 2^20 partition epochs (8 MiB once all were bumped) for
    /// [`Namespace::bump_epoch`](crate::Namespace::bump_epoch).
    pub partition_epochs: bool,
}

impl NamespaceOptions {
    /// Whether every put must leave a journal entry before it is acknowledged.
    pub(crate) fn journals_puts(&self) -> bool {
        self.mutability == Mutability::Mutable && self.survives == Survives::Crash
    }

    /// Whether it may be warm after a power loss although its objects change.
    pub(crate) fn outlives_power_loss(&self) -> bool {
        self.journals_puts() && self.durability == Durability::Synced
    }

    /// Whether every remove must leave a journal entry before it is acknowledged.
    pub(crate) fn journals_removes(&self) -> bool {
        self.survives == Survives::Crash
    }
}
