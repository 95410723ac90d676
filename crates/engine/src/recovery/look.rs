//! Checks whether a cache could be opened, without a lock and without a change.

use std::io::Read;

use super::find::refuse_others;
use super::outlook::Outlook;
use crate::config::Config;
use crate::device::area::{FileMetaStore, look_at_area};
use crate::device::{self, DeviceError, DeviceInfo};
use crate::error::OpenError;
use crate::format::superblock::{Found, RESERVED, Superblock};
use crate::geometry;

/// What opening a cache would find.
#[derive(Debug)]
pub struct Looked {
    /// How it would be divided.
    pub outlook: Outlook,
    /// Why devices would be left out, where the cache can go on without them: one for each.
    pub left_out: Vec<DeviceError>,
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
