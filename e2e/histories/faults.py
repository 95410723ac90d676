"""What breaks during a run: one thing at a time, from a seed, and all of it whole again at the
end.
"""

import os
import struct
import subprocess
import threading
import time
from pathlib import Path

from afterglow_e2e.process import ROOT, Failure

from .counted import Counted

# Seconds from a fault to the next.
APART = (0.5, 3)
# An absence is longer than the first one's promise, and within the second one's.
PLANNED = ("--restart-grace", "1s", "--planned-restart-grace", "60s")
ABSENCE = 2
# After some lost connections: what was lost with them is settled once the hold of 6 s is over.
LULL = (7, 9)


class Clock:
    """The clocks of the processes that `wrapper` is for. The wall clock is stepped by whole
    seconds. The others run faster by `drift` parts of 10,000: those of a build with `test-clock`,
    for others ask the kernel and not libc.
    """

    def __init__(self, folder, name="clock", drift=0):
        library = ROOT / "target" / "scratch" / "clock.so"
        source = Path(__file__).with_name("clock.c")
        if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
            library.parent.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                ["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise Failure(f"{source} does not compile:\n{done.stderr}")
        self.file, self.drift = folder / name, drift
        self.base = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.step(0)
        self.wrapper = ("env", f"LD_PRELOAD={library}", f"AFTERGLOW_CLOCK={self.file}")

    def step(self, seconds):
        # In place: the page is mapped by those who read it.
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, struct.pack("bb6xq", seconds, self.drift, self.base), 0)
        finally:
            os.close(descriptor)


class Faults:
    """Breaks things until told to stop; `counts` says how often what."""

    def __init__(self, random, instance, nodes, relay, clock, wanted):
        self.random, self.instance, self.nodes, self.relay, self.clock = (
            random,
            instance,
            nodes,
            relay,
            clock,
        )
        self.wanted, self.counts, self.counted = wanted, {}, Counted(instance)
        # How often a cut was followed by a lull, in which what it left in doubt can be settled.
        self.lulls = 0
        # That of the tables, once they are made.
        self.keyspace = None
        self.stopping = threading.Event()

    def run(self, seconds):
        """For that long; what was broken last is whole again when this returns."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = self.random.choice(self.wanted)
            getattr(self, name)()
            self.counts[name] = self.counts.get(name, 0) + 1
            is_lull = name == "cut" and self.random.random() < 0.5
            self.pause(*(LULL if is_lull else APART))
            self.lulls += is_lull

    def pause(self, least, most):
        self.stopping.wait(self.random.uniform(least, most))

    def kill(self):
        """kill -9 of Afterglow, and a start on the same files."""
        self.counted.ends()
        self.instance.kill()
        self.pause(0, 0.5)
        self.instance.start()

    def terminate(self):
        """An orderly stop, and a start; in half of them rows stay for a planned absence alone."""
        self.counted.ends()
        self.instance.terminate()
        extra = self.instance.extra
        if self.random.random() < 0.5:
            self.instance.extra = (*extra, *PLANNED)
            self.pause(ABSENCE, ABSENCE)
        try:
            self.instance.start()
        finally:
            self.instance.extra = extra

    def succeed(self):
        """A successor takes over while it runs."""
        self.counted.ends()
        self.instance.succeed()

    def invalidate(self):
        """Cached rows are dropped, some times over: of a partition, a table, the keyspace, or
        all.
        """
        for _ in range(self.random.randrange(1, 6)):
            table = f"{self.keyspace}.{self.random.choice(('plain', 'feed', 'duel'))}"
            partition = self.random.randrange(6)
            what = ((table, "--where", f"k = {partition}"), (table,), (self.keyspace,), ("--all",))
            self.instance.invalidate(*self.random.choice(what))
            self.pause(0, 0.3)

    def hold(self):
        """A node that hangs."""
        node = self.random.choice(self.nodes)
        node.pause()
        try:
            self.pause(0.2, 3)
        finally:
            node.resume()

    def fell(self):
        """kill -9 of a node, and a start on the same files."""
        self.random.choice(self.nodes).restart()

    def cut(self):
        """Every connection to the database, some times over."""
        for _ in range(self.random.randrange(1, 6)):
            self.relay.cut()
            self.pause(0, 0.3)

    def slow(self):
        """Everything to and from the database comes late."""
        self.relay.delay = self.random.uniform(0.002, 0.2)
        try:
            self.pause(0.5, 3)
        finally:
            self.relay.delay = 0.0

    def step(self):
        """Afterglow's wall clock, a second back or forth."""
        self.clock.step(self.random.choice((-1, 0, 1)))
