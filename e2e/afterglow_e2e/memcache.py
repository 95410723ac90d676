"""Afterglow's memcached front end, a real memcached to compare it with, and libmemcached's
programs.
"""

import os
import shutil
import socket
import subprocess
from pathlib import Path

from .afterglow import Afterglow, binary
from .process import ROOT, Child, Failure, free_port, poll, run, scratch

PEERS = ROOT / "target" / "peers"
CLIENTS = ROOT / "e2e" / "memcache-clients"
JARS = ROOT / "target" / "memcache-jars"
GO = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
PACKAGES = "memcached libmemcached-tools libmemcached11 libmemcachedutil2 libhashkit2 libevent-2.1-7".split()


def client_jars():
    """The folder of the Java clients' jars; the first time Maven fetches them."""
    if not list(JARS.glob("folsom-*.jar")):
        pom = CLIENTS / "java" / "pom.xml"
        options = ["-q", "-B", "-f", pom, f"-DoutputDirectory={JARS}"]
        run("mvn", *options, "dependency:copy-dependencies", timeout=900)
    return JARS


def go_modules():
    """Fetches what the Go clients are made of, where there is a Go."""
    if GO:
        run(GO, "mod", "download", cwd=CLIENTS / "go", timeout=900)


class MemcacheAfterglow(Afterglow):
    """An instance with the memcached front end alone."""

    def __init__(self, folder=None, flash="256MiB", memory="64MiB", extra=(), **more):
        super().__init__(None, folder=folder, flash=flash, memory=memory, extra=extra, **more)
        self.socket = self.folder / "memcache.sock"

    def command(self):
        return [
            *self.wrapper,
            self.program or binary(profile=self.profile),
            "serve",
            *("--memcache", self.contact),
            *("--memcache-unix", self.socket),
            *("--data-dir", self.data),
            *("--flash-size", self.flash),
            *("--memory", self.memory),
            *("--admin", f"127.0.0.1:{self.admin}"),
            *self.extra,
        ]

    def connect(self):
        return Raw(socket.create_connection((self.address, self.port)))


class Raw:
    """A plain connection: bytes there, answers back."""

    def __init__(self, connection):
        self.connection = connection
        self.connection.settimeout(20)
        self.buffer = b""

    def send(self, data):
        self.connection.sendall(data)

    def until(self, end):
        """What has come up to and with `end`."""
        while end not in self.buffer:
            data = self.connection.recv(1 << 16)
            if not data:
                raise Failure(f"the connection ended before {end!r}: {self.buffer!r}")
            self.buffer += data
        answer, found, self.buffer = self.buffer.partition(end)
        return answer + found

    def line(self, command):
        """The line that answers a command."""
        self.send(command + b"\r\n")
        return self.until(b"\r\n")[:-2]

    def get(self, key):
        """The value of a key, None when there is none."""
        self.send(b"get " + key + b"\r\n")
        head = self.until(b"\r\n")
        if head == b"END\r\n":
            return None
        length = int(head.split()[3])
        while len(self.buffer) < length + 7:
            self.buffer += self.connection.recv(1 << 16)
        value, self.buffer = self.buffer[:length], self.buffer[length + 7 :]
        return value

    def set(self, key, value, expiry=0):
        return self.line(b"set %s 0 %d %d\r\n%s" % (key, expiry, len(value), value))

    def close(self):
        self.connection.close()


def peer(program):
    """A program of Debian's packages: the one that is installed, or unpacked from the package
    without installing it.

    None where there is neither.
    """
    if found := shutil.which(program):
        return Path(found)
    path = PEERS / "usr" / "bin" / program
    if not path.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        PEERS.mkdir(parents=True, exist_ok=True)
        quiet = {"cwd": PEERS, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.run(["apt-get", "download", *PACKAGES], **quiet).returncode == 0:
            for package in PEERS.glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, PEERS], check=True)
    return path if path.exists() else None


def peer_environment():
    libraries = [str(path) for path in (PEERS / "usr" / "lib").glob("*-linux-gnu")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


class Memcached:
    """A real memcached."""

    def __init__(self, extra=()):
        self.port = free_port()
        self.folder = Path(scratch("memcached-"))
        command = [
            peer("memcached"),
            "-u",
            "root",
            "-l",
            "127.0.0.1",
            "-p",
            self.port,
            "-U",
            0,
            "-t",
            1,
            *extra,
        ]
        self.child = Child("memcached", command, self.folder / "log", env=peer_environment())

    def connect(self):
        return Raw(socket.create_connection(("127.0.0.1", self.port)))

    def __enter__(self):
        def listening():
            try:
                self.connect().close()
                return True
            except OSError:
                return False

        poll("memcached to listen", listening, 10, check=self.child.check)
        return self

    def __exit__(self, *_):
        self.child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def say(connection, data):
    """What is answered to some bytes, known to be whole because a command that always answers comes
    after them.
    """
    connection.send(data + b"mn\r\n")
    return connection.until(b"MN\r\n")


def fill(raw, count, size, tag=b"x"):
    """So many objects, each of its own content."""
    for first in range(0, count, 100):
        keys = range(first, min(first + 100, count))
        raw.send(
            b"".join(b"set o%d 5 0 %d\r\n%s\r\n" % (i, size, content(i, size, tag)) for i in keys)
        )
        for _ in keys:
            assert raw.until(b"\r\n") == b"STORED\r\n"


def content(i, size, tag=b"x"):
    return (b"%s-%d-" % (tag, i) * (size // 4))[:size]


def on_flash(front_end):
    """Waits until nothing is in memory only."""
    poll(
        "everything to be on flash",
        lambda: front_end.metrics().value("afterglow_engine_unsaved_bytes") == 0,
        30,
    )


def collisions(front_end):
    """How many reads missed because another key of the same tag had taken the slot of theirs."""
    return front_end.metrics().total(
        "afterglow_engine_misses_total", namespace="memcache", reason="collision"
    )
