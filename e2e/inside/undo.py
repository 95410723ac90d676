"""Takes back what a benchmark does to the machine, even when it is killed. Standard library only.

A process of its own is told what there will be to undo, and does it, the latest first, when its
input ends.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# Seconds. On a machine that is busy a large process takes its time to die.
PATIENCE = 120


class Undo:
    """Tell it before something is done: what was announced and never came to be is no error."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def note(self, kind, what):
        print(kind, what, file=self.process.stdin, flush=True)

    def close(self):
        """Undo everything now, and wait for it."""
        self.process.stdin.close()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _patiently(step):
    """Try until it is true: what the kernel still holds for a process that has just died takes a
    moment.
    """
    deadline = time.monotonic() + PATIENCE
    while not step() and time.monotonic() < deadline:
        time.sleep(0.05)


def _quietly(*command):
    return subprocess.run([str(part) for part in command], capture_output=True).returncode == 0


def cgroup(path):
    """Ends all that is in a control group, and removes it."""

    def empty():
        with contextlib.suppress(FileNotFoundError):
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                path.rmdir()
        return not path.exists()

    _patiently(empty)


def mount(path):
    _patiently(lambda: not os.path.ismount(path) or _quietly("umount", path))
    if os.path.ismount(path):
        _quietly("umount", "--lazy", path)


def loop(image):
    """Detaches the loop devices over a file: found by that, so that there is no moment without a
    note.
    """
    listed = subprocess.run(["losetup", "-j", image], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        _quietly("losetup", "--detach", line.split(":", 1)[0])


def folder(path):
    shutil.rmtree(path, ignore_errors=True)


KINDS = {step.__name__: step for step in (cgroup, mount, loop, folder)}


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    notes = [line.rstrip("\n").split(" ", 1) for line in sys.stdin]
    for kind, what in reversed(notes):
        KINDS[kind](Path(what))


if __name__ == "__main__":
    main()
