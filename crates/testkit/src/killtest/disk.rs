//! Disks that fill up and devices that fail, made with what a Linux machine has: loop devices,
//! small file systems, a preloaded shim.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Runs a tool; an error has its words.
fn tool(name: &str, args: &[&str]) -> io::Result<String> {
    let done = Command::new(name).args(args).stdin(Stdio::null()).output();
    let done = done.map_err(|e| io::Error::other(format!("cannot run `{name}`: {e}")))?;
    if !done.status.success() {
        let words = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(format!("`{name} {}`: {}", args.join(" "), words.trim())));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("directories of tests have plain names")
}

/// Why disks and devices cannot be made here, if so.
pub(super) fn cannot_mount() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may mount and make loop devices");
    }
    let tools = ["/sbin", "/usr/sbin", "/bin", "/usr/bin"];
    let found = |name: &&str| tools.iter().any(|dir| Path::new(dir).join(name).exists());
    let needed = ["losetup", "mkfs.ext4", "mount"];
    (!needed.iter().all(found) || !Path::new("/dev/loop-control").exists())
        .then_some("losetup, mkfs.ext4, mount and /dev/loop-control are needed")
}

/// A loop device over a file. Taken away when dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(image: &Path) -> io::Result<Loop> {
        tool("losetup", &["--find", "--show", text(image)]).map(|device| Loop(device.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = tool("losetup", &["--detach", text(&self.0)]);
    }
}

/// A file system that is mounted; unmounted when dropped.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = tool("umount", &["--lazy", text(&self.0)]);
    }
}

/// A file system that a file can fill to the last block.
fn fill(ballast: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(ballast)?;
    for step in [1 << 20, 4096, 1] {
        let zeros = vec![0; step];
        loop {
            match file.write_all(&zeros).and_then(|()| file.sync_data()) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::StorageFull => break,
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// A small ext4 file system.
pub(super) struct SmallDisk {
    mount: Mount,
    _device: Loop,
}

impl SmallDisk {
    /// Makes one of `bytes` in `directory`.
    pub(super) fn make(directory: &Path, bytes: u64) -> io::Result<SmallDisk> {
        let (image, at) = (directory.join("disk.img"), directory.join("disk"));
        fs::create_dir_all(&at)?;
        File::create(&image)?.set_len(bytes)?;
        tool("mkfs.ext4", &["-q", "-F", "-m", "0", text(&image)])?;
        let device = Loop::over(&image)?;
        tool("mount", &["-t", "ext4", text(&device.0), text(&at)])?;
        Ok(SmallDisk { mount: Mount(at), _device: device })
    }

    pub(super) fn path(&self) -> &Path {
        &self.mount.0
    }

    /// Leaves no free block.
    pub(super) fn fill(&self) -> io::Result<()> {
        fill(&self.mount.0.join("ballast"))
    }

    /// Gives the space back.
    pub(super) fn free(&self) -> io::Result<()> {
        match fs::remove_file(self.mount.0.join("ballast")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

/// A block device that fails when it is told to: a loop device over a file in a memory file system
/// of little room.
pub(super) struct FailingDevice {
    device: Loop,
    image: PathBuf,
    ballast: PathBuf,
    bytes: u64,
    _mount: Mount,
}

impl FailingDevice {
    /// Makes one of `bytes` in `directory`.
    pub(super) fn make(directory: &Path, bytes: u64) -> io::Result<FailingDevice> {
        let at = directory.join("device");
        fs::create_dir_all(&at)?;
        tool(
            "mount",
            &["-t", "tmpfs", "-o", &format!("size={}", bytes + (1 << 20)), "none", text(&at)],
        )?;
        let mount = Mount(at.clone());
        let image = at.join("image");
        File::create(&image)?.set_len(bytes)?;
        let device = Loop::over(&image)?;
        Ok(FailingDevice { device, image, ballast: at.join("ballast"), bytes, _mount: mount })
    }

    pub(super) fn path(&self) -> &Path {
        &self.device.0
    }

    /// Every read and write from `from` on fails, and what was there is lost.
    pub(super) fn cut(&self, from: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(&self.image)?.set_len(from)?;
        fill(&self.ballast)
    }

    /// Nothing fails any more; what was lost reads as zeros.
    pub(super) fn heal(&self) -> io::Result<()> {
        match fs::remove_file(&self.ballast) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        OpenOptions::new().write(true).open(&self.image)?.set_len(self.bytes)
    }
}

/// What the preloaded library shall make fail, in shares of 1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DiskFaults {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) syncs: f64,
    /// Nothing can be appended to files, and no new ones be made.
    pub(super) full: bool,
}

/// A library to be preloaded into the server, built by the C compiler that also links Rust
/// programs.
pub(super) struct Shim {
    pub(super) library: PathBuf,
    pub(super) control: PathBuf,
    file: File,
}

impl Shim {
    pub(super) fn build(directory: &Path) -> io::Result<Shim> {
        let (source, library) = (directory.join("shim.c"), directory.join("shim.so"));
        fs::write(&source, include_str!("shim.c"))?;
        tool(
            "cc",
            &["-O2", "-Wall", "-shared", "-fPIC", "-o", text(&library), text(&source), "-ldl"],
        )?;
        let control = directory.join("shim.control");
        fs::write(&control, [0; 4096])?;
        let file = OpenOptions::new().read(true).write(true).open(&control)?;
        Ok(Shim { library, control, file })
    }

    /// From now on this fails.
    pub(super) fn set(&self, faults: DiskFaults) -> io::Result<()> {
        let millionths = |share: f64| (share * 1e6) as u32;
        let words = [
            millionths(faults.reads),
            millionths(faults.writes),
            millionths(faults.syncs),
            faults.full.into(),
        ];
        self.file.write_all_at(&words.map(u32::to_le_bytes).concat(), 0)
    }

    /// How many calls were made to fail so far.
    pub(super) fn failed(&self) -> io::Result<u64> {
        let mut words = [0; 16];
        self.file.read_exact_at(&mut words, 32)?;
        Ok(words
            .chunks_exact(4)
            .map(|w| u64::from(u32::from_le_bytes([w[0], w[1], w[2], w[3]])))
            .sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_makes_files_of_its_directory_fail_and_no_others() {
        let dir = std::env::temp_dir().join(format!("afterglow-shim-{}", std::process::id()));
        let data = dir.join("data");
        fs::create_dir_all(&data).unwrap();
        let shim = Shim::build(&dir).unwrap();
        let copy = |to: &Path| {
            let mut command = Command::new("dd");
            command
                .args(["if=/dev/zero", "bs=512", "count=1", "status=none"])
                .arg(format!("of={}", to.display()));
            command.env("LD_PRELOAD", &shim.library).env("AFTERGLOW_SHIM_DIR", &data);
            command.env("AFTERGLOW_SHIM_CONTROL", &shim.control).stderr(Stdio::null());
            command.status().unwrap().success()
        };
        assert!(copy(&data.join("a")));
        shim.set(DiskFaults { writes: 1.0, ..DiskFaults::default() }).unwrap();
        assert!(!copy(&data.join("a")));
        assert!(copy(&dir.join("elsewhere")));
        shim.set(DiskFaults { full: true, ..DiskFaults::default() }).unwrap();
        assert!(!copy(&data.join("b")));
        assert!(shim.failed().unwrap() >= 2);
        shim.set(DiskFaults::default()).unwrap();
        assert!(copy(&data.join("b")));
        fs::remove_dir_all(&dir).unwrap();
    }
}
