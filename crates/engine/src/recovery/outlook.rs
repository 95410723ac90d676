//! How a cache of a configuration is divided: flash into segments, memory into its parts.

use crate::config::Config;
use crate::error::OpenError;
use crate::format::superblock::Superblock;
use crate::geometry;
use crate::index::SLOTS_PER_LINE;

/// How a cache would be divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlook {
    /// Bytes of flash.
    pub flash: u64,
    /// Segments it is divided into.
    pub segments: u64,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// Bytes of memory that are index at the beginning.
    pub index_bytes: u64,
    /// Objects on flash that the index has slots for at the beginning.
    pub index_slots: u64,
    /// Slots that it may grow to have, at the cost of what holds objects.
    pub index_slots_most: u64,
    /// Bytes of memory that hold objects.
    pub dram: u64,
    /// Shards of the index.
    pub(crate) shards: u32,
    /// Bytes of a checkpoint area, and most bytes of tables in it.
    pub(crate) area: [u64; 2],
}

impl Outlook {
    /// Of devices with these superblocks.
    pub(crate) fn divided(config: &Config, blocks: &[Superblock]) -> Result<Self, OpenError> {
        let flash = blocks.iter().map(|block| block.size).sum();
        let segment_size = blocks[0].segment_size;
        let memory = geometry::memory(config, flash, segment_size)?;
        // Homes all have areas of one size.
        let area = blocks.iter().map(|block| block.area).max().unwrap_or(0);
        let (memory, tables) = geometry::check_area(config, flash, &memory, (segment_size, area))?;
        let segments = blocks.iter().map(|block| u64::from(block.segments)).sum::<u64>();
        let lines = memory.lines as u64 * u64::from(config.shards);
        let most_lines = memory.most_lines as u64 * u64::from(config.shards);
        Ok(Outlook {
            flash,
            segments: segments.min(u64::from(geometry::MOST_SEGMENTS)),
            segment_size,
            index_bytes: lines * 64,
            index_slots: lines * SLOTS_PER_LINE as u64,
            index_slots_most: most_lines * SLOTS_PER_LINE as u64,
            dram: memory.dram as u64 * u64::from(config.shards),
            shards: config.shards,
            area: [area, tables],
        })
    }
}
