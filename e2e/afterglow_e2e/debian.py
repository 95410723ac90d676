"""Debian's programs without installing them, and a root file system to install packages into."""

import os
import shutil
import subprocess
from pathlib import Path

from .process import ROOT, Failure, run


def program(name, package=None):
    """Path of a program: the installed one, or that of Debian's package unpacked into .tools."""
    if found := shutil.which(name):
        return found
    script = f"source tools/debian.sh; debian {name} {package or name}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{name} cannot be had: {done.stdout}{done.stderr}")
    return str(ROOT / ".tools" / name / name)


class CleanRoot:
    """A root file system that forgets what is done to it; wants root.

    Below is this machine's own, or the one in `lower`, such as debootstrap makes. All changes go to
    `folder`. Mounts are those of one process, so that nothing stays when it ends.
    """

    def __init__(self, folder, lower="/"):
        self.path = folder / "root"
        for name in ("root", "changes", "work"):
            (folder / name).mkdir(parents=True)
        layers = f"lowerdir={lower},upperdir={folder / 'changes'},workdir={folder / 'work'}"
        mounts = [
            f"mount -t overlay overlay -o {layers} {self.path}",
            *(f"mount --rbind /{name} {self.path}/{name}" for name in ("proc", "dev")),
            f"mount -t tmpfs tmpfs {self.path}/run",
            "echo mounted",
            "exec cat",
        ]
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", "; ".join(mounts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.holder.stdout.readline() != "mounted\n":
            raise Failure("no root file system of our own: it wants root and overlayfs")

    def command(self, *command):
        """The command line that runs a command with this root."""
        enter = ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "chroot", self.path)
        return (*enter, *command)

    def run(self, *command):
        """What a command says that ends well."""
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        return run(*self.command(*command), env={**clean, "LC_ALL": "C.UTF-8"})

    def succeeds(self, *command):
        """Whether a command ends well."""
        command = [str(part) for part in self.command(*command)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()


def can_make_roots():
    """Whether this process may mount."""
    return os.geteuid() == 0 and Path("/proc/filesystems").read_text().find("overlay") >= 0
