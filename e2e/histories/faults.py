"""What breaks during a run: one thing at a time, from a seed, and all of it whole again at the
end.
"""

import contextlib
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

from afterglow_e2e.process import ROOT, Failure


class Relay:
    """Between Afterglow and a node: it can cut every connection, or make each wait."""

    def __init__(self, address, port, target):
        self.target, self.delay = target, 0.0
        self.pairs, self.lock = set(), threading.Lock()
        self.listener = socket.create_server((address, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(self.target, 2)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self.lock:
                    self.pairs.add((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._copy, args=(*ends, (near, far)), daemon=True
                    ).start()

    def _copy(self, source, sink, pair):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        self._close(pair)

    def _close(self, pair):
        with self.lock:
            self.pairs.discard(pair)
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut(self):
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self._close(pair)

    def close(self):
        self.listener.close()
        self.cut()


class Clock:
    """The wall clock of the processes that `environment` is for, stepped by whole seconds."""

    def __init__(self, folder, name="clock"):
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
        self.file = folder / name
        self.step(0)
        self.wrapper = ("env", f"LD_PRELOAD={library}", f"AFTERGLOW_CLOCK={self.file}")

    def step(self, seconds):
        # In place: the page is mapped by those who read it.
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, seconds.to_bytes(1, "big", signed=True), 0)
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
        self.wanted, self.counts = wanted, {}
        self.stopping = threading.Event()

    def run(self, seconds):
        """For that long; what was broken last is whole again when this returns."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = self.random.choice(self.wanted)
            getattr(self, name)()
            self.counts[name] = self.counts.get(name, 0) + 1
            self.pause(0.5, 3)

    def pause(self, least, most):
        self.stopping.wait(self.random.uniform(least, most))

    def kill(self):
        """kill -9 of Afterglow, and a start on the same files."""
        self.instance.kill()
        self.pause(0, 0.5)
        self.instance.start()

    def terminate(self):
        """An orderly stop, and a start."""
        self.instance.terminate()
        self.instance.start()

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
