"""Processes that may use only so much CPU and read only so often from a device: control groups of
the kernel, version 1 or 2; as root.
"""

import contextlib
import os
from pathlib import Path

from .process import Failure, poll

MOUNT = Path("/sys/fs/cgroup")
# Microseconds in which the CPU time is counted: short, so that nobody waits long for the next.
PERIOD = 10_000


def lacking():
    """Why there can be no such groups here; None if there can."""
    if os.geteuid() != 0:
        return "only root makes control groups"
    try:
        with Group("probe", cores=0.5):
            return None
    except (OSError, Failure) as error:
        return str(error)


def device_of(path):
    """The disk that has this path, as `MAJOR:MINOR`: of a partition the whole disk."""
    number = Path(path).stat().st_dev
    major, minor = os.major(number), os.minor(number)
    shown = Path(f"/sys/dev/block/{major}:{minor}").resolve()
    if (shown / "partition").exists():
        shown = shown.parent
    if not (shown / "dev").exists():
        raise Failure(f"{path} is on no disk whose reads can be limited: keep the project on one")
    return (shown / "dev").read_text().strip()


class Group:
    """A group with these limits, until the end of the block. `wrapper` runs a program in it."""

    def __init__(self, name, cores=None, reads=None, device=None):
        self.cores, self.reads, self.device = cores, reads, device
        name = f"afterglow-{os.getpid()}-{name}"
        if (MOUNT / "cgroup.controllers").exists():
            self.folders = [MOUNT / name]
        else:
            self.folders = [MOUNT / controller / name for controller in ("cpu", "blkio")]

    def __enter__(self):
        for folder in self.folders:
            folder.mkdir()
        if len(self.folders) == 1:
            self._limit_v2(self.folders[0])
        else:
            self._limit_v1(*self.folders)
        return self

    def _limit_v2(self, folder):
        control = MOUNT / "cgroup.subtree_control"
        control.write_text("+cpu +io")
        if self.cores:
            (folder / "cpu.max").write_text(f"{int(self.cores * PERIOD)} {PERIOD}")
        if self.reads:
            (folder / "io.max").write_text(f"{self.device} riops={self.reads}")

    def _limit_v1(self, cpu, blkio):
        if self.cores:
            (cpu / "cpu.cfs_period_us").write_text(str(PERIOD))
            (cpu / "cpu.cfs_quota_us").write_text(str(int(self.cores * PERIOD)))
        if self.reads:
            limit = f"{self.device} {self.reads}"
            (blkio / "blkio.throttle.read_iops_device").write_text(limit)

    @property
    def wrapper(self):
        enter = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in self.folders)
        return ("sh", "-c", f'{enter}; exec "$@"', "sh")

    def __exit__(self, *_):
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError):
                poll(f"{folder} to be empty", lambda of=folder: self._removed(of), 10)

    @staticmethod
    def _removed(folder):
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            raise
        except OSError:
            return False
