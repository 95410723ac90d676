"""Block devices that are files, which a test pulls out: the kernel's loop devices."""

import os
import shutil
import subprocess
from pathlib import Path

from .process import run


def missing():
    """What this machine lacks for them, in words; empty if nothing."""
    if os.geteuid() != 0:
        return "root: only root may make loop devices"
    if not shutil.which("losetup"):
        return "losetup: apt install mount"
    done = subprocess.run(["losetup", "--find"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"a free loop device: {done.stderr.strip()}"


class LoopDevice:
    """A file of so many bytes as a block device. The kernel lets go of it once nobody has it open,
    and its file is without a name: nothing is left however the test ends.
    """

    def __init__(self, folder, size):
        name = Path(folder) / "device"
        self.file = name.open("wb")
        self.file.truncate(size)
        self.path = Path(run("losetup", "--find", "--show", "--sector-size", "4096", name).strip())
        try:
            self.held = self.path.open("rb", buffering=0)
        finally:
            run("losetup", "--detach", self.path)
            name.unlink()

    def pull(self):
        """It has no bytes any more: each read and write of it fails."""
        self.file.truncate(0)
        run("losetup", "--set-capacity", self.path)

    def close(self):
        self.held.close()
        self.file.close()
