//! Checks whether a cache could be opened, without a lock and without a change.

use std::io::Read;

use super::find::refuse_others;
use crate::config::Config;
use crate::device::area::{FileMetaStore, look_at_area};
use crate::device::{self, DeviceError, DeviceInfo};
use crate::error::OpenError;
use crate::format::superblock::{Found, RESERVED, Superblock};
use crate::geometry;
use crate::index::SLOTS_PER_LINE;

/// What opening a cache would find.
#[derive(Debug)]
pub struct Looked {
    /// How it would be divided.
    pub outlook: Outlook,
    /// Why devices would be left out, where the cache can go on without them: one for each.
    pub left_out: Vec<DeviceError>,
}

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

/// Checks what [`Cache::open`](crate::Cache::open) would open. It refuses what `open` would refuse,
/// as far as that can be seen without a lock. Otherwise it says how flash and memory would be
/// divided. Changes nothing.
///
/// # Errors
/// Those of opening.
pub fn look(config: &Config) -> Result<Looked, OpenError> {
    let silent = device::silent_among(&config.devices);
    let without = refuse_others(config, &FileMetaStore::new(&config.data_dir), &silent)?;
    if config.devices.is_empty() {
        return Err(OpenError::Config(
            "no flash is configured: give at least one file or device".into(),
        ));
    }
    let (mut infos, mut left_out) = (Vec::new(), Vec::new());
    let sizes = device::examine(&config.devices, without, &silent)?;
    for (device, size) in config.devices.iter().zip(sizes) {
        match size {
            Ok(size) => {
                infos.push(DeviceInfo { size, alignment: 4096, path: device.path.clone() });
            }
            Err(error) => left_out.push(error),
        }
    }
    device::try_engine(config.io)?;
    look_at_area(&config.data_dir.join("journal"), config.maps_journal())?;
    let new = geometry::format(config, &infos, [0; 16], 0, 1);
    let found: Vec<_> = infos.iter().filter_map(superblock).collect();
    let blocks = if found.len() == infos.len() { found } else { new? };
    Ok(Looked { outlook: Outlook::divided(config, &blocks)?, left_out })
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

/// The superblock of a device that is used as it was.
fn superblock(info: &DeviceInfo) -> Option<Superblock> {
    let mut head = Vec::new();
    std::fs::File::open(&info.path).ok()?.take(RESERVED).read_to_end(&mut head).ok()?;
    head.resize(RESERVED as usize, 0);
    match Superblock::decode(&head) {
        Found::Ours(block) if block.size == info.size => Some(block),
        _ => None,
    }
}
