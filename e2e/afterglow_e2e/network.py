"""Hosts with a network of their own on this machine, each in a network namespace; as root.

All hosts and this process are on one switch. What one sends to another can be made to vanish, in
either direction, and nobody is told. All that a host sends can be made to come late. Nothing has a
name that could be left behind: with this process all of it ends.
"""

import ctypes
import os
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .process import Failure, poll

PROGRAMS = ("ip", "tc", "nsenter", "unshare", "setpriv")
# What a narrow link lets through, and how long it keeps what it does not before it is lost.
NARROW = ("tbf", "burst", "2kb", "latency", "1s", "rate")
# Nobody has this one.
NOWHERE = "02:00:00:00:ff:ff"
# Of setns(2), which Python 3.11 does not have.
CLONE_NEWNET = 0x40000000


def lacking():
    """Why there can be no such network here; None if there can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if absent := [name for name in PROGRAMS if not shutil.which(name)]:
        return f"no {', '.join(absent)}"
    probe = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", *NARROW, "64kbit"]
    done = subprocess.run(probe, capture_output=True, text=True)
    return done.stderr.strip() or None


def command(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


class Space:
    """A network namespace, and the process that keeps it."""

    def __init__(self):
        keeper = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
        self.process = subprocess.Popen(keeper)
        here = Path("/proc/self/ns/net").readlink()
        poll("a network namespace", lambda: self.link().readlink() != here, 10, every=0.005)

    def link(self):
        return Path(f"/proc/{self.process.pid}/ns/net")

    @property
    def wrapper(self):
        """What runs a program in it."""
        return ("nsenter", f"--net={self.link()}")

    def ip(self, *words):
        command(*self.wrapper, "ip", *words)

    def listen(self, address, port):
        """A listening socket of ours in it. Connections that are made there are accepted here."""

        def inside():
            # The thread that is in it ends with this.
            with self.link().open("rb") as link:
                if ctypes.CDLL(None, use_errno=True).setns(link.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            return socket.create_server((address, port))

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(inside).result()

    def close(self):
        self.process.kill()
        self.process.wait()


class Host(Space):
    """One host on the switch."""

    def __init__(self, address, mac):
        super().__init__()
        self.address, self.mac = address, mac

    def send(self, address, mac):
        """From now on what goes to this address goes there."""
        self.ip("neigh", "replace", address, "lladdr", mac, "dev", "out", "nud", "permanent")


class Network:
    """So many hosts, and addresses of our own for programs that they are to reach."""

    def __init__(self, hosts, ours):
        number = os.getpid()
        self.prefix = f"198.18.{number % 250}"
        self.mac = "02:00:00:00:00:01"
        # The first is what our own connections come from.
        self.ours = [f"{self.prefix}.{100 + n}" for n in range(ours + 1)]
        self.switch, self.hosts = Space(), []
        try:
            self.switch.ip("link", "add", "switch", "type", "bridge", "forward_delay", "0")
            self.switch.ip("link", "set", "switch", "up")
            self._plug_in(f"afterglow{number}"[:15])
            for n in range(hosts):
                self._add(Host(f"{self.prefix}.{1 + n}", f"02:00:00:00:01:{n:02x}"))
            for host in self.hosts:
                for other in self.hosts:
                    if other is not host:
                        self.mend(host, other)
                self.reach(host, self.ours)
        except BaseException:
            self.close()
            raise

    def _plug_in(self, name):
        far = ("peer", "name", "us", "netns", self.switch.process.pid)
        command("ip", "link", "add", name, "address", self.mac, "type", "veth", *far)
        for address in self.ours:
            command("ip", "address", "add", f"{address}/24", "dev", name)
        command("ip", "link", "set", name, "up")
        self._connect("us")

    def _add(self, host):
        self.hosts.append(host)
        name = f"host{len(self.hosts)}"
        far = ("peer", "name", "out", "address", host.mac, "netns", host.process.pid)
        self.switch.ip("link", "add", name, "type", "veth", *far)
        self._connect(name)
        host.ip("address", "add", f"{host.address}/24", "dev", "out")
        for device in ("out", "lo"):
            host.ip("link", "set", device, "up")

    def _connect(self, name):
        self.switch.ip("link", "set", name, "master", "switch", "up")

    @staticmethod
    def cut(host, other):
        """Nothing that `host` sends reaches `other`."""
        host.send(other.address, NOWHERE)

    @staticmethod
    def mend(host, other):
        """It does again."""
        host.send(other.address, other.mac)

    @staticmethod
    def narrow(host, kilobits):
        """So much a second is all that it can send."""
        where = ("dev", "out", "root")
        command(*host.wrapper, "tc", "qdisc", "replace", *where, *NARROW, f"{kilobits}kbit")

    @staticmethod
    def widen(host):
        """It can send as much as it likes."""
        command(*host.wrapper, "tc", "qdisc", "delete", "dev", "out", "root")

    @staticmethod
    def lose(host, ours):
        """Nothing that `host` sends reaches these addresses of ours."""
        for address in ours:
            host.send(address, NOWHERE)

    def reach(self, host, ours):
        """It does again."""
        for address in ours:
            host.send(address, self.mac)

    def close(self):
        for space in (*self.hosts, self.switch):
            space.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
