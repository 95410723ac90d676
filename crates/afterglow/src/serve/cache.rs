//! The cache as the configuration wants it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use afterglow_engine::{Cache, DeviceConfig, IoEngine, OpenError, Outlook, disk, media::MediaError};

use super::FLASH_FILE;
use crate::{
    config::{Config, IoChoice, Size},
    metrics::{self, Metrics},
};

/// How long a device may stay in use after the process that had it is gone.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between attempts to take it.
const RELEASE_RETRY: Duration = Duration::from_millis(20);
/// Devices are used in steps of this many bytes.
const STEP: u64 = 4096;

/// Opens the cache in `data_dir`, says what it found, and adds its figures to the metrics.
pub(super) fn open(config: &Config, data_dir: PathBuf, metrics: &Metrics) -> Result<Arc<Cache>, OpenError> {
    let started = std::time::Instant::now();
    let cache = Arc::new(open_when_released(engine_config(config, data_dir))?);
    let (stats, found) = (cache.stats(), cache.opening());
    for cut in &found.truncated {
        tracing::warn!(
            "{} was truncated: {} of its {} bytes were left, what it lost is a miss",
            cut.path.display(),
            cut.left,
            cut.size
        );
    }
    tracing::info!(
        "cache opened in {} ms, {found}; {} of flash in {} segments, {} free; of {} of memory {} are index, for {} \
         objects on flash",
        started.elapsed().as_millis(),
        mebibytes(stats.segments * stats.segment_size),
        stats.segments,
        stats.segments_free,
        config.memory,
        mebibytes(stats.index_bytes),
        stats.index_slots,
    );
    // Asked only as long as somebody else keeps the cache open.
    let asked = Arc::downgrade(&cache);
    metrics.add_source(move |out| {
        if let Some(cache) = asked.upgrade() {
            metrics::engine::expose(&cache.stats(), out);
        }
    });
    Ok(cache)
}

/// Opens the cache; where a device is still in use although the data directory is not, tries again for a moment: after
/// `kill -9` the kernel holds a device until the reads that were in flight on it are done.
fn open_when_released(config: afterglow_engine::Config) -> Result<Cache, OpenError> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match Cache::open(config.clone()) {
            Err(error) if is_device_in_use(&error) && Instant::now() < deadline => {
                tracing::debug!(%error, "trying again");
                std::thread::sleep(RELEASE_RETRY);
            }
            opened => return opened,
        }
    }
}

fn is_device_in_use(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Device(disk::OpenError::InUse { .. }) | OpenError::Journal(MediaError::InUse { .. })
    )
}

/// Sees whether it could be opened, and how large its parts would be; changes nothing.
pub(super) fn look(config: &Config, data_dir: &Path) -> Result<Outlook, OpenError> {
    afterglow_engine::look(&engine_config(config, data_dir.to_path_buf()))
}

fn engine_config(config: &Config, data_dir: PathBuf) -> afterglow_engine::Config {
    let default =
        || vec![DeviceConfig { path: data_dir.join(FLASH_FILE), size: whole_steps(config.flash_size) }];
    let named = config.flash.iter().map(|flash| DeviceConfig {
        path: flash.path.clone(),
        // The engine takes 0 for all of a block device.
        size: flash.size.map_or(0, whole_steps),
    });
    let devices = if config.flash.is_empty() { default() } else { named.collect() };
    let mut engine = afterglow_engine::Config::new(data_dir, devices);
    let buffers = if config.has_memcache() { config.buffers().get() } else { 0 };
    engine.memory = config.memory.get() - buffers;
    engine.write_budget = config.write_budget.map(Size::get);
    engine.discard = config.discard_cache;
    engine.io = match config.io {
        IoChoice::Auto => IoEngine::Auto,
        IoChoice::Uring => IoEngine::Uring,
        IoChoice::Pread => IoEngine::Pread,
    };
    engine
}

fn whole_steps(size: Size) -> u64 {
    size.get() / STEP * STEP
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
