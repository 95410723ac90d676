"""Debian's programs without installing them, and a root file system to install packages into."""

import os
import shutil
import subprocess
import sys
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


BOOTSTRAPPED = ROOT / ".tools" / "clean-root"
MIRROR = "http://deb.debian.org/debian"
# Brings the loopback interface of the network up that it runs in.
LOOPBACK_UP = """
import fcntl, socket, struct
request = struct.pack("16sh14x", b"lo", 1)
fcntl.ioctl(socket.socket(), 0x8914, request)
"""


def bootstrapped():
    """A Debian with nothing but its essential packages, of this machine's release, made once by
    debootstrap.

    None where this is no Debian, or we are not root.
    """
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if line
    )
    if release.get("ID") != "debian" or not can_make_roots():
        return None
    ready = BOOTSTRAPPED / "ready"
    if not ready.exists():
        shutil.rmtree(BOOTSTRAPPED, ignore_errors=True)
        debootstrap = program("debootstrap")
        scripts = Path(debootstrap).parent / "usr" / "share" / "debootstrap"
        own = {"DEBOOTSTRAP_DIR": str(scripts)} if scripts.exists() else {}
        options = ("--variant=minbase", release["VERSION_CODENAME"].strip('"'))
        environment = {**os.environ, **own, "LC_ALL": "C.UTF-8"}
        run(debootstrap, *options, BOOTSTRAPPED / "root", MIRROR, env=environment, timeout=900)
        ready.touch()
    return BOOTSTRAPPED / "root"


CLEAN = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
}


class CleanRoot:
    """A root file system that forgets what is done to it; wants root.

    Below is this machine's own, or the one in `lower`, such as debootstrap makes. All changes go to
    `folder`. Mounts are those of one process, so that nothing stays when it ends.

    With `network` it has one of its own, in which all ports are free and nobody else is: commands
    of `alone` run in it, others in that of this machine.
    """

    def __init__(self, folder, lower="/", network=False):
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
        own = ["--mount", "--net"] if network else ["--mount"]
        self.holder = subprocess.Popen(
            ["unshare", *own, "sh", "-ec", "; ".join(mounts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.holder.stdout.readline() != "mounted\n":
            raise Failure("no root file system of our own: it wants root and overlayfs")
        if network:
            run(*self.in_network(), sys.executable, "-c", LOOPBACK_UP)

    def in_network(self):
        """What runs a command of this machine in the network of its own."""
        return ("nsenter", f"--net=/proc/{self.holder.pid}/ns/net")

    def alone(self, *command):
        """The command line that runs a command with this root, in the network of its own."""
        return (*self.in_network(), *self.command(*command))

    def command(self, *command):
        """The command line that runs a command with this root."""
        enter = ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "chroot", self.path)
        return (*enter, *command)

    def run(self, *command):
        """What a command says that ends well."""
        return run(*self.command(*command), env=CLEAN, timeout=600)

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
