//! How fast this process may use a block device: a control group of its own, with limits.
//!
//! Version 1 of control groups has the controller `blkio`, version 2 has `io`. Both count what a
//! process asks of a device, and hold back what is too much. The group is made for this process
//! and removed at the end. The process goes back to where it was before.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use crate::BenchError;

/// What is needed, for whoever does not have it.
const NEEDED: &str = "limits need root and a control group controller that throttles: `blkio` with \
     blkio.throttle.read_iops_device (version 1) or `io` with io.max (version 2), with a kernel \
     that has CONFIG_BLK_DEV_THROTTLING";
/// How often the removal of a group is tried: the kernel takes a moment to empty it.
const ATTEMPTS: u32 = 50;
const NAP: Duration = Duration::from_millis(10);

/// Most of a device a second; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl Limit {
    /// A device that answers nothing, until there is another limit.
    pub(super) const HANGS: Self = Self { reads: 1, read_bytes: 1, written_bytes: 1 };
}

/// A mounted hierarchy of control groups that throttles.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Where it is mounted.
    mount: PathBuf,
    /// It is version 2.
    unified: bool,
}

/// This process' own control group, left and removed when dropped.
pub(super) struct Throttle {
    unified: bool,
    group: PathBuf,
    home: PathBuf,
    /// The controller was not yet on for groups below the root of version 2.
    switched_on: Option<PathBuf>,
}

impl Throttle {
    /// Makes a group and moves this process into it.
    pub(super) fn new() -> Result<Self, BenchError> {
        let read =
            |path: &str| fs::read_to_string(path).map_err(BenchError::io(format!("read {path}")));
        let mounts = hierarchies(&read("/proc/self/mountinfo")?);
        let found = mounts.into_iter().find(throttles);
        let hierarchy =
            found.ok_or_else(|| BenchError::Void(format!("{NEEDED}: there is none")))?;
        let home = home_of(&hierarchy, &read("/proc/self/cgroup")?);
        // In version 2 a group that has processes has no groups below it with controllers.
        let parent = if hierarchy.unified { &hierarchy.mount } else { &home };
        let group = parent.join(format!("afterglow-bench-{}", process::id()));
        let mut throttle = Self { unified: hierarchy.unified, group, home, switched_on: None };
        throttle.enter(&hierarchy.mount).map_err(|error| {
            BenchError::Void(format!("{NEEDED}: {}: {error}", throttle.group.display()))
        })?;
        Ok(throttle)
    }

    fn enter(&mut self, root: &Path) -> io::Result<()> {
        if self.unified && !fs::read_to_string(root.join("cgroup.subtree_control"))?.contains("io")
        {
            let control = root.join("cgroup.subtree_control");
            fs::write(&control, "+io")?;
            self.switched_on = Some(control);
        }
        fs::create_dir(&self.group)?;
        move_into(&self.group)
    }

    /// Limits a device, by its numbers. What waits already is held back or let go accordingly.
    pub(super) fn limit(&self, device: (u32, u32), limit: Limit) -> Result<(), BenchError> {
        for (file, line) in lines(self.unified, device, limit) {
            let path = self.group.join(file);
            fs::write(&path, &line)
                .map_err(BenchError::io(format!("write {line:?} to {}", path.display())))?;
        }
        Ok(())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // Fails where it never left.
        let _ = move_into(&self.home);
        for _ in 0..ATTEMPTS {
            match fs::remove_dir(&self.group) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(NAP),
                _ => break,
            }
        }
        if let Some(control) = &self.switched_on {
            let _ = fs::write(control, "-io");
        }
    }
}

fn move_into(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), process::id().to_string())
}

fn throttles(hierarchy: &Hierarchy) -> bool {
    let root = &hierarchy.mount;
    if hierarchy.unified {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        return controllers.split_whitespace().any(|c| c == "io");
    }
    root.join("blkio.throttle.read_iops_device").exists()
}

/// The hierarchies that may throttle, of `/proc/self/mountinfo`.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let mount = PathBuf::from(mount.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        match (kind.next()?, kind.nth(1).unwrap_or_default()) {
            ("cgroup", options) if options.split(',').any(|o| o == "blkio") => {
                Some(Hierarchy { mount, unified: false })
            }
            ("cgroup2", _) => Some(Hierarchy { mount, unified: true }),
            _ => None,
        }
    };
    mountinfo.lines().filter_map(hierarchy).collect()
}

/// The group that this process is in, by `/proc/self/cgroup`.
fn home_of(hierarchy: &Hierarchy, groups: &str) -> PathBuf {
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let ours = if hierarchy.unified {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|c| c == "blkio")
        };
        ours.then(|| path.trim_start_matches('/'))
    });
    hierarchy.mount.join(path.unwrap_or_default())
}

/// Files and what is written to them.
fn lines(unified: bool, (major, minor): (u32, u32), limit: Limit) -> Vec<(&'static str, String)> {
    let device = format!("{major}:{minor}");
    if unified {
        let most = |n: u64| if n == 0 { "max".to_owned() } else { n.to_string() };
        let (reads, read, written) =
            (most(limit.reads), most(limit.read_bytes), most(limit.written_bytes));
        return vec![("io.max", format!("{device} riops={reads} rbps={read} wbps={written}"))];
    }
    vec![
        ("blkio.throttle.read_iops_device", format!("{device} {}", limit.reads)),
        ("blkio.throttle.read_bps_device", format!("{device} {}", limit.read_bytes)),
        ("blkio.throttle.write_bps_device", format!("{device} {}", limit.written_bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 22 0:24 / /sys/fs/cgroup ro - tmpfs tmpfs mode=755
28 27 0:25 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
29 27 0:26 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
30 27 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn hierarchies_are_found_where_they_are_mounted() {
        let at = |mount: &str, unified| Hierarchy { mount: mount.into(), unified };
        let found = hierarchies(MOUNTS);
        let expected = [at("/sys/fs/cgroup/blkio", false), at("/sys/fs/cgroup/unified", true)];
        assert_eq!(found, expected);
        let groups = "9:cpu:/elsewhere\n5:blkio:/a/b\n0::/c\n";
        assert_eq!(home_of(&found[0], groups), Path::new("/sys/fs/cgroup/blkio/a/b"));
        assert_eq!(home_of(&found[1], groups), Path::new("/sys/fs/cgroup/unified/c"));
        assert_eq!(home_of(&found[0], "5:blkio:/\n"), Path::new("/sys/fs/cgroup/blkio/"));
    }

    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        let limit = Limit { reads: 500, read_bytes: 0, written_bytes: 7 };
        let second = lines(true, (7, 1), limit);
        assert_eq!(second, [("io.max", "7:1 riops=500 rbps=max wbps=7".to_owned())]);
        let first: Vec<String> =
            lines(false, (7, 1), limit).into_iter().map(|(_, line)| line).collect();
        assert_eq!(first, ["7:1 500", "7:1 0", "7:1 7"], "0 takes a limit away");
    }
}
