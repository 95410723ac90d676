//! Block devices that are files: the kernel's loop devices.
//!
//! Nothing is left of them however this process ends. The file has no name once it is attached.
//! And the device is told to let go of it when the last one closes it, which we keep open.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{self, Command},
};

use rustix::fs::{FallocateFlags, fallocate, major, minor};

use crate::BenchError;

/// A file attached as a block device of sectors of 4 KiB.
pub(super) struct LoopDevice {
    file: File,
    /// Keeps it attached.
    device: File,
    pub(super) path: PathBuf,
    pub(super) size: u64,
}

impl LoopDevice {
    /// Makes a file of `size` bytes in `dir` and attaches it.
    pub(super) fn attach(dir: &Path, size: u64) -> Result<Self, BenchError> {
        let name = dir.join(format!("afterglow-bench-{}.device", process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&name)
            .map_err(BenchError::io(format!("make {}", name.display())))?;
        let attached = Self::attach_file(&name, file, size);
        let _ = fs::remove_file(&name);
        attached
    }

    fn attach_file(name: &Path, file: File, size: u64) -> Result<Self, BenchError> {
        fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|e| {
            BenchError::io(format!("make {} of {size} bytes", name.display()))(e.into())
        })?;
        let name = name.display().to_string();
        let path = losetup(&["--find", "--show", "--sector-size", "4096", &name])?;
        let path = PathBuf::from(path.trim());
        let open = || OpenOptions::new().read(true).write(true).open(&path);
        let device = open().map_err(BenchError::io(format!("open {}", path.display())));
        // It is let go of when it is closed: at once if it could not be opened.
        losetup(&["--detach", &path.display().to_string()])?;
        Ok(Self { file, device: device?, path, size })
    }

    /// Its numbers.
    pub(super) fn numbers(&self) -> Result<(u32, u32), BenchError> {
        let metadata = self.device.metadata();
        let device =
            metadata.map_err(BenchError::io(format!("look at {}", self.path.display())))?.rdev();
        Ok((major(device), minor(device)))
    }

    /// Makes it blank.
    pub(super) fn wipe(&self) -> Result<(), BenchError> {
        run("blkdiscard", &["--zeroout", &self.path.display().to_string()]).map(drop)
    }

    /// Pulls it out: it has no bytes any more, so each read and write of it fails.
    pub(super) fn pull(&self) -> Result<(), BenchError> {
        self.file.set_len(0).map_err(BenchError::io("cut a device's file"))?;
        losetup(&["--set-capacity", &self.path.display().to_string()]).map(drop)
    }
}

fn losetup(arguments: &[&str]) -> Result<String, BenchError> {
    run("losetup", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<String, BenchError> {
    let command = format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(BenchError::io(format!("run {command}, which is in the package util-linux")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(BenchError::Void(format!(
            "{command}: {}: loop devices need root and a kernel that has them",
            said.trim()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
