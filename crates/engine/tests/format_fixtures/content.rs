//! What the images of released formats hold. It never changes: the images are not made again.

use afterglow_engine::{Cache, Config, DeviceConfig, Durability, IoEngine, Mutability, Namespace};
use afterglow_engine::{NamespaceOptions, OpenError};
use std::path::Path;

/// Objects put into each namespace.
pub const OBJECTS: u32 = 120;
/// Removed one by one.
pub const REMOVED: u32 = 7;
/// How an image is opened, and made. That of format 1 has 1 MiB.
pub fn config(dir: &Path) -> Config {
    let path = dir.join("flash");
    let size = std::fs::metadata(&path).map_or(2 << 20, |file| file.len());
    let flash = DeviceConfig { path, size };
    let mut config = Config::new(dir, vec![flash]);
    config.memory = 16 << 20;
    config.journal_size = 32 << 10;
    config.io = IoEngine::Pread;
    config.shards = 2;
    config
}

/// The namespaces of an image: one whose keys get other values, one whose keys do not.
pub fn namespaces(cache: &Cache) -> Result<[Namespace; 2], OpenError> {
    let rows = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
    let chunks = NamespaceOptions {
        mutability: Mutability::Immutable,
        durability: Durability::WriteThrough,
        ..NamespaceOptions::default()
    };
    Ok([cache.namespace("rows", rows)?, cache.namespace("chunks", chunks)?])
}

/// The key of object `n`.
pub fn key(n: u32) -> Vec<u8> {
    format!("object/{n:05}").into_bytes()
}

/// The value of object `n`: 40 to about 2,400 bytes.
pub fn value(n: u32) -> Vec<u8> {
    let word = format!("<{n}>");
    word.bytes().cycle().take(40 + (n as usize * 97) % 2400).collect()
}
