"""Disks and control groups of a benchmark: what a Linux machine lets root make for a while."""

import os
import shutil
import subprocess
from pathlib import Path

from afterglow_e2e.process import Failure

from .undo import cgroup as remove_cgroup

CGROUPS = Path("/sys/fs/cgroup")
SECTOR = 512
TOOLS = (
    ("losetup", "mount"),
    ("mount", "mount"),
    ("fstrim", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
)


def missing():
    """What this machine lacks, in words; empty if everything is there."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root: only root may make control groups and loop devices, and mount")
    lacks += [
        f"{tool}: apt install {package}"
        for tool, package in TOOLS
        if not shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    ]
    if not Path("/dev/loop-control").exists():
        lacks.append("/dev/loop-control: modprobe loop")
    if not controllers():
        lacks.append("control groups for memory and block devices: mount cgroup2 at /sys/fs/cgroup")
    return lacks or _forbidden()


def _forbidden():
    """What root of a container may not do."""
    probe = (
        CGROUPS / "memory" if controllers() == 1 else CGROUPS
    ) / f"afterglow-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return [f"control groups that can be made: {error}"]
    done = subprocess.run(["losetup", "--find"], capture_output=True, text=True)
    return [] if done.returncode == 0 else [f"a free loop device: {done.stderr.strip()}"]


def controllers(root=CGROUPS):
    """The version of the control groups that can limit memory and disks here: 1, 2 or None."""
    if (root / "memory" / "memory.limit_in_bytes").exists() and (root / "blkio").is_dir():
        return 1
    listed = root / "cgroup.controllers"
    return 2 if listed.exists() and {"memory", "io"} <= set(listed.read_text().split()) else None


class Group:
    """A control group: so much memory, page cache included, and, when told, so many reads of one
    disk.
    """

    def __init__(self, undo, name, memory, root=CGROUPS):
        self.version = controllers(root)
        if self.version == 1:
            self.folders = [root / "memory" / name, root / "blkio" / name]
        else:
            (root / "cgroup.subtree_control").write_text("+memory +io")
            self.folders = [root / name]
        for folder in self.folders:
            undo.note("cgroup", folder)
            folder.mkdir(exist_ok=True)
        if self.version == 1:
            (self.folders[0] / "memory.limit_in_bytes").write_text(str(memory))
        else:
            (self.folders[0] / "memory.max").write_text(str(memory))

    def throttle(self, disk, speed=None):
        """From now on reads of the disk are no faster; without a speed as fast as it can."""
        device = disk.number
        if self.version == 1:
            most = (speed.bytes, speed.operations) if speed else (0, 0)
            (self.folders[1] / "blkio.throttle.read_bps_device").write_text(f"{device} {most[0]}")
            (self.folders[1] / "blkio.throttle.read_iops_device").write_text(f"{device} {most[1]}")
        else:
            most = (speed.bytes, speed.operations) if speed else ("max", "max")
            (self.folders[0] / "io.max").write_text(f"{device} rbps={most[0]} riops={most[1]}")

    def remove(self):
        for folder in self.folders:
            remove_cgroup(folder)

    def enter(self, command):
        """The command that runs another one in here."""
        joins = "".join(f"echo $$ >{folder}/cgroup.procs && " for folder in self.folders)
        return ["/bin/sh", "-c", joins + 'exec "$@"', "sh", *command]


class Disk:
    """A file system of its own on a loop device, which reads and writes its image without the page
    cache.
    """

    def __init__(self, undo, image, at, size):
        new = not image.exists()
        undo.note("loop", image)
        undo.note("mount", at)
        at.mkdir(parents=True, exist_ok=True)
        if new:
            with image.open("wb") as file:
                file.truncate(size)
        self.device = Path(_tool("losetup", "--direct-io=on", "--find", "--show", image))
        if new:
            _tool("mkfs.ext4", "-q", "-m", "0", self.device)
        _tool("mount", "-t", "ext4", "-o", "noatime", self.device, at)
        self.path = at

    @property
    def number(self):
        device = self.device.stat().st_rdev
        return f"{os.major(device)}:{os.minor(device)}"

    def empty(self):
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def trim(self):
        """What was deleted on it takes no room in its image any more."""
        _tool("fstrim", self.path)

    def bytes_read(self):
        """From the device, since it was made."""
        return int((Path("/sys/block") / self.device.name / "stat").read_text().split()[2]) * SECTOR


def _tool(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


def forget(folder):
    """Puts the files of a folder out of the page cache: what others had read must not answer."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
