//! Opens devices with the best interface that the kernel offers.

use std::path::PathBuf;
use std::sync::Arc;

use super::disk::{DeviceConfig, DeviceSet, Disk, IoEngine, Truncated, memlock_hint};
use super::error::DeviceError;
use super::files;
use super::pread::PreadDisk;
use super::uring::UringDisk;

/// Open devices: the queue for the thread that drives them, and the shared view.
pub struct OpenDevices {
    /// The submission queue.
    pub disk: Box<dyn Disk>,
    /// The shared view of the same devices.
    pub set: Arc<dyn DeviceSet>,
    /// What drives `disk`: never [`IoEngine::Auto`].
    pub engine: IoEngine,
    /// Files that were shorter than configured, although something was in them.
    pub truncated: Vec<Truncated>,
}

/// Opens (creates, preallocates, locks) the devices and a queue over them.
///
/// # Errors
/// [`DeviceError`] names the device, the cause and what to do about it.
pub fn open(devices: &[DeviceConfig], engine: IoEngine) -> Result<OpenDevices, DeviceError> {
    open_with(devices, engine, false, &[])
}

/// The same. With `without`, it goes on without devices that fail or are missing, as long as there
/// is another. Those that are `silent` ([`silent_among`](super::silent_among)) fail.
pub(crate) fn open_with(
    devices: &[DeviceConfig],
    engine: IoEngine,
    without: bool,
    silent: &[PathBuf],
) -> Result<OpenDevices, DeviceError> {
    let files = Arc::new(files::Files::open(devices, without, silent)?);
    let set: Arc<dyn DeviceSet> = files.clone();
    let truncated = files.truncated().to_vec();
    if engine != IoEngine::Pread {
        match UringDisk::new(files.clone()) {
            Ok(disk) => {
                let engine = IoEngine::Uring;
                return Ok(OpenDevices { disk: Box::new(disk), set, engine, truncated });
            }
            Err(source) if engine == IoEngine::Uring => {
                return Err(DeviceError::UringRefused { source });
            }
            Err(reason) => {
                tracing::warn!(%reason, "{}", threads_instead(&reason));
            }
        }
    }
    let disk = PreadDisk::new(files).map_err(|source| DeviceError::Threads { source })?;
    Ok(OpenDevices { disk: Box::new(disk), set, engine: IoEngine::Pread, truncated })
}

/// What the log says where io_uring is refused for that reason.
fn threads_instead(reason: &std::io::Error) -> String {
    let hint = memlock_hint(reason).unwrap_or_default();
    format!("io_uring is refused here: flash uses pread/pwrite threads{hint}")
}

/// Refuses an interface to the kernel that is asked for by name and not to be had.
pub(crate) fn try_engine(engine: IoEngine) -> Result<(), DeviceError> {
    if engine != IoEngine::Uring {
        return Ok(());
    }
    let nothing = Arc::new(files::Files::open(&[], false, &[])?);
    UringDisk::new(nothing).map(drop).map_err(|source| DeviceError::UringRefused { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_for_want_of_locked_memory_name_the_limit() {
        let said = |errno: rustix::io::Errno| threads_instead(&errno.into());
        let nomem = said(rustix::io::Errno::NOMEM);
        assert!(nomem.contains("pread/pwrite") && nomem.contains("RLIMIT_MEMLOCK"), "{nomem}");
        assert!(!said(rustix::io::Errno::PERM).contains("MEMLOCK"));
    }
}
