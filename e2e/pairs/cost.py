"""What requests cost a server, and on which cores who runs."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from afterglow_e2e.process import Failure, pin

# The server has a core of its own; the client and a database share the other.
SERVER, OTHERS = {0}, {1}


@dataclass
class Cost:
    """Of one run: CPU of the server in microseconds a request, and requests a second."""

    cpu: float
    rate: float


@dataclass
class Wait:
    """Of one run: how long requests of a client took, in ms."""

    p50: float
    p99: float


def alone():
    """Keeps this process, and what it starts from now on, off the server's core."""
    if not os.sched_getaffinity(0) >= SERVER | OTHERS:
        raise Failure("this takes two cores, 0 and 1: allow both, e.g. by `taskset -c 0,1`")
    os.sched_setaffinity(0, OTHERS)


def settle(server):
    """Puts a server on its core."""
    pin(server.pid, SERVER)


def cpu_microseconds(pid):
    """CPU time of all threads of a process that live, by the scheduler's own count."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # ended meanwhile
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1000
