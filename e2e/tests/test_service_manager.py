"""What a service manager hears: a socket in the place of systemd's."""

import ctypes
import os
import select
import signal
import socket
import time
from pathlib import Path

import pytest

from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import poll

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.address = address

    def wrapper(self, watchdog=None):
        """What puts it into the environment of a server, with a watchdog of so many seconds."""
        more = [f"WATCHDOG_USEC={int(watchdog * 1e6)}"] if watchdog else []
        return ("env", f"NOTIFY_SOCKET={self.address}", *more)

    def read(self, seconds):
        """The fields of the next message; None when there is none in this time."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return None
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def expect(self, field, seconds=30):
        """The first message with this field; those before it are dropped."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            message = self.read(left)
            if message and field in message:
                return message
        raise AssertionError(f"no {field} within {seconds} s")

    def pings(self, seconds):
        """Pings in this time; whatever else comes is dropped."""
        deadline, count = time.monotonic() + seconds, 0
        while (left := deadline - time.monotonic()) > 0:
            count += "WATCHDOG" in (self.read(left) or {})
        return count


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    where = str(tmp_path / "notify") if request.param == "path" else f"@afterglow-e2e-{os.getpid()}"
    manager = Manager(where)
    yield manager
    manager.socket.close()


def test_ready_comes_when_clients_are_served_and_stopping_before_the_end(manager, tmp_path):
    file = tmp_path / "afterglow.toml"
    file.write_text('log-level = "info"\n')
    front_end = MemcacheAfterglow(
        folder=tmp_path / "a", wrapper=manager.wrapper(), extra=("--config", file)
    )
    front_end.launch()
    try:
        ready = manager.expect("READY")
        # At once: nothing is polled.
        assert front_end.connect().line(b"mn") == b"MN"
        assert front_end.ready()
        assert front_end.contact in ready["STATUS"]

        front_end.child.signal(signal.SIGHUP)
        reloading = manager.expect("RELOADING")
        # Of the same clock as the manager's, so that it can tell this reload from an earlier one.
        assert abs(int(reloading["MONOTONIC_USEC"]) / 1e6 - time.monotonic()) < 30
        assert manager.expect("READY")["READY"] == "1"

        front_end.child.signal(signal.SIGTERM)
        stopping = manager.expect("STOPPING")
        # drain-timeout (10 s), 20 s, and 1 s for each 20 MiB of 64.
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) == (10 + 20 + 4) * 1_000_000
        assert manager.expect("STATUS")["STATUS"] == "writing the cache out"
        assert front_end.child.process.wait(30) == 0
    finally:
        front_end.stop()


def test_a_start_that_fails_says_nothing_of_ready(tmp_path):
    manager = Manager(str(tmp_path / "notify"))
    front_end = MemcacheAfterglow(folder=tmp_path / "a", wrapper=manager.wrapper())
    with socket.socket() as taken:
        taken.bind((front_end.address, front_end.port))
        taken.listen()
        front_end.launch()
        assert front_end.child.process.wait(30) != 0
    assert manager.read(0) is None


def ptrace(request, thread):
    assert LIBC.ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())


def test_pings_stop_while_one_reactor_stands_still(tmp_path):
    manager = Manager(str(tmp_path / "notify"))
    with MemcacheAfterglow(
        folder=tmp_path / "a",
        wrapper=manager.wrapper(watchdog=0.4),
        extra=("--reactors", "2"),
    ) as front_end:
        for _ in range(3):
            manager.expect("WATCHDOG")
        tasks = Path(f"/proc/{front_end.pid}/task")
        (thread,) = (
            int(task.name)
            for task in tasks.iterdir()
            if (task / "comm").read_text() == "reactor-1\n"
        )
        # A debugger's stop of this thread alone: all others go on, the watchdog's among them.
        ptrace(SEIZE, thread)
        ptrace(INTERRUPT, thread)
        os.waitpid(thread, 0x40000000)  # __WALL
        poll("the pings to stop", lambda: manager.pings(2) == 0, 30)
        assert front_end.get("/healthz")[0] == 200
        ptrace(DETACH, thread)
        for _ in range(3):
            manager.expect("WATCHDOG")
