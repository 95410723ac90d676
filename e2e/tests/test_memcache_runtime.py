"""What changes while the memcached front end serves: by SIGHUP, and by commands that memcached has
too.
"""

import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest

from afterglow_e2e.debian import program
from afterglow_e2e.memcache import MemcacheAfterglow, Memcached, fill, peer, say
from afterglow_e2e.process import Child, poll

TOO_MANY = b"ERROR Too many open connections\r\n"


class Configured(MemcacheAfterglow):
    """An instance whose limits are in a file."""

    def __init__(self, folder, **settings):
        super().__init__(folder=folder)
        self.file = self.folder / "afterglow.toml"
        self.write(**settings)

    def write(self, **settings):
        lines = [f"{name.replace('_', '-')} = {value!r}" for name, value in settings.items()]
        self.file.write_text("\n".join(lines).replace("'", '"') + "\n")

    def command(self):
        command = super().command()
        at = command.index("--memory")
        return [*command[:at], *command[at + 2 :], "--config", self.file]

    def reload(self, said, **settings):
        """SIGHUP with other settings, until the log says so."""
        before = len(self.log_text())
        self.write(**settings)
        os.kill(self.pid, signal.SIGHUP)
        poll("SIGHUP to be served", lambda: said in self.log_text()[before:], 30)


def stat(server, name, which=b""):
    raw = server.connect()
    raw.send(b"stats%s\r\n" % which)
    found = re.search(rb"STAT %s (\S+)\r\n" % name, raw.until(b"END\r\n"))
    raw.close()
    return int(found[1])


def test_limits_are_put_in_force_by_sighup(tmp_path):
    with Configured(tmp_path, memory="32MiB", memcache_connections=3) as server:
        held = [server.connect() for _ in range(3)]
        for raw in held:
            assert raw.line(b"mn") == b"MN"
        assert server.connect().until(b"\r\n") == TOO_MANY
        settings = {"memory": "32MiB", "memcache_connections": 5}
        server.reload("memcache-connections is now 5 (was 3)", **settings)
        assert server.connect().line(b"mn") == b"MN"
        assert stat(server, b"maxconns", b" settings") == 5
        # Fewer than there are: these stay, and nobody else comes in.
        settings["memcache_connections"] = 1
        server.reload("memcache-connections is now 1 (was 5)", **settings)
        for raw in held:
            assert raw.line(b"mn") == b"MN"
        assert server.connect().until(b"\r\n") == TOO_MANY
        settings.update(memcache_idle_timeout="1s", memcache_connections=9)
        server.reload("memcache-idle-timeout is now 1s", **settings)
        for raw in held:
            assert raw.connection.recv(1) == b"", "it was idle"
        server.reload("reactors stays", **settings, reactors=7)


def test_memory_shrinks_and_grows_live_and_under_load(tmp_path):
    with Configured(tmp_path, memory="64MiB") as server:
        raw = server.connect()
        fill(raw, 8_000, 4_000)
        full = stat(server, b"limit_maxbytes")
        held = server.metrics().value("afterglow_engine_dram_bytes")
        assert held > 24 << 20
        ended, wrong = threading.Event(), []

        def load(number):
            connection, i = server.connect(), 0
            while not ended.is_set():
                key = b"l%d-%d" % (number, i % 500)
                if connection.set(key, b"v" * 3000) != b"STORED" or connection.get(key) is None:
                    wrong.append(key)
                i += 1

        workers = [threading.Thread(target=load, args=(n,)) for n in range(2)]
        for worker in workers:
            worker.start()
        for wanted, was in (("32MiB", "64MiB"), ("96MiB", "32MiB"), ("64MiB", "96MiB")) * 2:
            server.reload(f"memory is now {wanted} (was {was})", memory=wanted)
            limit, mib = stat(server, b"limit_maxbytes"), int(wanted[:-3])
            assert abs(limit - full - ((mib - 64) << 20)) < 64 << 10, wanted
            if wanted == "32MiB":
                assert server.metrics().value("afterglow_engine_dram_bytes") < 32 << 20
        ended.set()
        for worker in workers:
            worker.join()
        assert not wrong
        server.reload("memory is now 32MiB (was 64MiB)", memory="32MiB")
        # Clients may lower what is there now, and raise it up to that.
        assert raw.line(b"cache_memlimit 24") == b"OK"
        assert raw.line(b"cache_memlimit 32") == b"OK"
        refused = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust"
        assert raw.line(b"cache_memlimit 33") == refused
        # What left memory is on flash, or counted.
        missing = sum(raw.get(b"o%d" % i) is None for i in range(8_000))
        assert missing <= stat(server, b"evictions") + 8
        server.reload("memory stays 32MiB", memory="900TiB")
        assert raw.get(b"l0-0") == b"v" * 3000


def test_a_stop_does_not_wait_for_memory_to_shrink(tmp_path):
    """On a drive that takes half a second for each write: what leaves memory waits for it."""
    slow = "--inject=pwrite64,pwritev:delay_enter=500000"
    calls = "--trace=pwrite64,pwritev"
    slowed = (program("strace"), "-f", "-qq", "-o", "/dev/null", calls, slow)
    with Configured(tmp_path, memory="128MiB", io="pread") as server:
        fill(server.connect(), 20_000, 4_000)
        held = server.metrics().value("afterglow_engine_dram_bytes")
        tracer = Child("strace", [*slowed, "-p", server.pid], tmp_path / "strace.log")
        traced = f"/proc/{server.pid}/status"
        poll("strace", lambda: "TracerPid:\t0" not in Path(traced).read_text(), 20)
        # More than the write queue takes at once.
        fill(server.connect(), 20_000, 4_000, tag=b"y")
        server.write(memory="32MiB", io="pread")
        os.kill(server.pid, signal.SIGHUP)
        poll(
            "memory to shrink",
            lambda: server.metrics().value("afterglow_engine_dram_bytes") < held - (1 << 20),
            60,
        )
        os.kill(server.pid, signal.SIGTERM)
        poll("the stop to begin", lambda: "finishing requests in flight" in server.log_text(), 20)
        tracer.kill()
        assert server.child.process.wait(120) == 0
        said = server.log_text()
        assert "memory stays 128MiB: the server stops before it is resized" in said, said
        assert "memory for objects was resized" not in said


def test_connections_that_were_busy_keep_little_while_idle(tmp_path):
    """docs/guide/operations.md names 64 KiB each; what else there is of a connection and of the
    allocator is as much again at most.
    """
    count, value = 200, b"v" * 200_000
    with MemcacheAfterglow(folder=tmp_path, memory="128MiB") as server:

        def resident():
            return server.metrics().value("process_resident_memory_bytes")

        connections = [server.connect() for _ in range(count)]
        for connection in connections:
            assert connection.set(b"large", value) == b"STORED"
            assert connection.get(b"large") == value
        # The first ones have filled what all of them use together.
        before = resident()
        more = [server.connect() for _ in range(count)]
        for connection in more:
            connection.send(b"set large 0 0 %d\r\n%s\r\n" % (len(value), value) * 5)
            for _ in range(5):
                assert connection.until(b"\r\n") == b"STORED\r\n"
            connection.send(b"get large large large large large\r\n")
            connection.until(b"END\r\n")
        each = (resident() - before) / count
        assert each < 128 << 10, f"{each:.0f} bytes each"


def test_users_and_limits_together(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    users.chmod(0o600)
    settings = {"memory": "64MiB", "memcache_auth_file": str(users), "memcache_connections": 50}
    with Configured(tmp_path / "folder", **settings) as server:
        users.write_text("bob:secret\n")
        settings["memcache_connections"] = 40
        server.reload("memcache-connections is now 40", **settings)
        login = b"set auth 0 0 10\r\n%s secret"
        poll(
            "the users to be read again",
            lambda: server.connect().line(login % b"bob") == b"STORED",
            10,
        )
        failed = b"CLIENT_ERROR authentication failure"
        assert server.connect().line(login % b"ada") == failed


def test_sizes_and_verbosity_as_in_memcached(tmp_path):
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    quiet = ["-o", "no_lru_maintainer,no_lru_crawler"]
    with MemcacheAfterglow(folder=tmp_path) as ours, Memcached(quiet) as theirs:
        both = []
        for server in (ours, theirs):
            raw, said = server.connect(), []
            for command in (b"stats sizes", b"stats sizes_enable", b"stats sizes"):
                said.append(say(raw, command + b"\r\n"))
            for i in range(300):
                raw.set(b"k%d" % i, b"v" * (i % 7 * 100))
            said.append(sorted(say(raw, b"stats sizes\r\n").split(b"\r\n")))
            said.append(stat_text(raw, b"track_sizes"))
            said.append(say(raw, b"stats sizes_disable\r\nstats sizes\r\nstats sizes_x\r\n"))
            for command in (b"verbosity 1", b"verbosity 9", b"verbosity 1 noreply", b"verbosity x"):
                said.append(say(raw, command + b"\r\n"))
                said.append(stat_text(raw, b"verbosity"))
            both.append(said)
        assert both[0] == both[1]
        # With more objects than are sampled the sum is about that of all.
        raw = ours.connect()
        say(raw, b"flush_all\r\nstats sizes_enable\r\n")
        fill(raw, 9_000, 200)
        counts = re.findall(rb"STAT (\d+) (\d+)", say(raw, b"stats sizes\r\n"))
        assert 8_000 < sum(int(count) for _, count in counts) < 10_000
        # What was flushed does not count. Keys are 2 to 5 bytes, and all else takes 63.
        assert {int(size) for size, _ in counts} == {288}


def stat_text(raw, name):
    answer = say(raw, b"stats settings\r\n")
    return re.search(rb"STAT %s (\S+)\r\n" % name, answer)[1]


def test_the_age_of_what_is_in_memory_is_told(tmp_path):
    with MemcacheAfterglow(folder=tmp_path) as server:
        raw = server.connect()
        raw.set(b"old", b"1")
        poll("a second to pass", lambda: stat(server, b"items:1:age_hot", b" items") >= 1, 20)
        assert stat(server, b"items:1:age_hot", b" items") <= stat(server, b"uptime") + 1
        assert stat(server, b"items:1:age_warm", b" items") == 0


def test_a_unix_socket_counts_against_the_same_limit(tmp_path):
    with Configured(tmp_path, memory="32MiB", memcache_connections=1) as server:
        held = server.connect()
        assert held.line(b"mn") == b"MN"
        other = socket.socket(socket.AF_UNIX)
        other.connect(str(server.socket))
        assert other.recv(100) == TOO_MANY
