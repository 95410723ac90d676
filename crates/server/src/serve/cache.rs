//! Opens the cache as configured.

use std::{
    fs::File,
    io::{Seek, SeekFrom},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use afterglow_engine::{
    Cache, DeviceConfig, IoEngine, Looked, OpenError,
    device::{self, area::MediaError},
};

use crate::{
    config::{Config, IoChoice, Size},
    metrics::{self, Metrics},
};

/// The flash file in the data directory, when no other place is configured.
pub const FLASH_FILE: &str = "flash";
/// How long a device may stay in use after the process that had it is gone.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between attempts to take it.
const RELEASE_RETRY: Duration = Duration::from_millis(20);
/// Devices are used in steps of this many bytes.
const STEP: u64 = 4096;

/// Opens the cache in `data_dir`, says what it found, and adds its figures to the metrics.
pub(super) fn open(
    config: &Config,
    data_dir: PathBuf,
    metrics: &Metrics,
) -> Result<Arc<Cache>, OpenError> {
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

/// Opens the cache. If a device is still in use although the data directory is not, this tries
/// again for a moment. After `kill -9` the kernel holds a device until the reads that were in
/// flight on it are done.
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
        OpenError::Device(device::DeviceError::InUse { .. })
            | OpenError::Journal(MediaError::InUse { .. })
    )
}

/// Sees whether it could be opened, and how large its parts would be; changes nothing.
pub(super) fn look(config: &Config, data_dir: &Path) -> Result<Looked, OpenError> {
    afterglow_engine::look(&engine_config(config, data_dir.to_path_buf()))
}

fn engine_config(config: &Config, data_dir: PathBuf) -> afterglow_engine::Config {
    engine_config_with(config, data_dir, whole_device)
}

/// Bytes of a block device; 0, which the engine refuses by itself, of what is none or cannot be
/// measured.
fn whole_device(path: &Path) -> u64 {
    let measured = File::open(path).and_then(|mut file| {
        match file.metadata()?.file_type().is_block_device() {
            true => file.seek(SeekFrom::End(0)),
            false => Ok(0),
        }
    });
    measured.unwrap_or(0)
}

/// With the size of a whole block device in bytes, as `whole_device` measures it. The engine then
/// refuses a device of another size than the cache was made for, as it refuses a file. Of "all,
/// however much that is" it would make an empty cache.
fn engine_config_with(
    config: &Config,
    data_dir: PathBuf,
    whole_device: impl Fn(&Path) -> u64,
) -> afterglow_engine::Config {
    let default = || {
        vec![DeviceConfig { path: data_dir.join(FLASH_FILE), size: whole_steps(config.flash_size) }]
    };
    let named = config.flash.iter().map(|flash| DeviceConfig {
        path: flash.path.clone(),
        size: flash.size.map_or_else(|| whole_device(&flash.path) / STEP * STEP, whole_steps),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FlashSpec;

    #[test]
    fn a_block_device_that_changed_its_size_is_refused_as_a_file_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        let mut config = Config {
            flash: vec![FlashSpec { path: path.clone(), size: None }],
            ..Config::default()
        };
        // A file in the place of the device, which only root can make.
        let engine = |config: &Config, mebibytes: u64| {
            engine_config_with(config, dir.path().to_owned(), move |_| (mebibytes << 20) + 512)
        };
        let opened = Cache::open(engine(&config, 64)).expect("a new cache");
        opened.close();
        drop(opened);
        afterglow_engine::look(&engine(&config, 64)).expect("it is as it was");
        for now in [32, 128] {
            let refused = afterglow_engine::look(&engine(&config, now)).expect_err("another size");
            let size = 64 << 20;
            assert!(
                matches!(refused, OpenError::Mismatch { size: was, .. } if was == size),
                "{refused}"
            );
            config.discard_cache = true;
            afterglow_engine::look(&engine(&config, now)).expect("it is to be discarded");
            config.discard_cache = false;
        }
        assert_eq!(whole_device(&path), 0, "a file is no device: all of it is not taken");
    }
}
