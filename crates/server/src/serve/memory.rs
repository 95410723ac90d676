//! How much memory the process may use.

use super::error::ServeError;
use crate::config::{Config, Size};

/// Refuses a budget that no machine like this could hold.
pub(super) fn check(config: &Config) -> Result<(), ServeError> {
    let Some(there) = available() else { return Ok(()) };
    if config.memory.get() <= there {
        return Ok(());
    }
    Err(ServeError::Memory { wanted: config.memory, there: Size::bytes(there) })
}

/// Memory of the machine, or less where the process is in a group that may have less; `None` where
/// the system does not tell.
fn available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = group(&groups).and_then(|group| {
        let folder = std::path::Path::new("/sys/fs/cgroup").join(group);
        let limits = folder.ancestors().filter(|path| path.starts_with("/sys/fs/cgroup"));
        limits
            .filter_map(|path| {
                std::fs::read_to_string(path.join("memory.max")).ok()?.trim().parse().ok()
            })
            .min()
    });
    machine.into_iter().chain(limit).min()
}

/// All memory, of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The group of the unified hierarchy, of `/proc/self/cgroup`, without its leading `/`.
fn group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_tells_is_understood() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(
            group("1:name=x:/y\n0::/system.slice/a.service\n"),
            Some("system.slice/a.service")
        );
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
